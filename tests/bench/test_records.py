"""The record of a cell and the file of records."""

from __future__ import annotations

import inspect
import json
import math
import re
from dataclasses import fields, replace

import pytest

from bench.records import SCHEMA_VERSION, CellRecord, read_records

FULL = CellRecord(
    "tiny", "rml", 2, "ok", check="pass", max_abs_error=1e-7, max_rel_error=2e-7, iterations=30, mean_ms=1.5, min_ms=1.0, p10_ms=1.1,
    median_ms=1.4, p90_ms=2.0, ratio=1.0, load_ms=3.0, first_call_ms=4.0, import_ms=5.0, framework_version="0.1", options={"isa": "avx2"},
    environment={"cpu": "X", "governor": None},
)  # fmt: skip
FAILED = CellRecord("tiny", "torch", 1, "failed", 'a "quoted" reason: ä')


def test_records_come_back_as_they_were_written():
    assert read_records(record.to_json() + "\n" for record in (FULL, FAILED)) == [FULL, FAILED]


def test_a_line_is_one_json_object_with_the_fields_of_the_record():
    found = json.loads(FULL.to_json())
    assert list(found)[:5] == ["model", "framework", "threads", "status", "reason"]
    assert found["schema_version"] == SCHEMA_VERSION
    assert "\n" not in FULL.to_json()


def test_a_number_that_json_lacks_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        CellRecord("tiny", "rml", 1, "ok", mean_ms=math.nan).to_json()


def test_a_half_last_line_is_passed_over():
    whole = FULL.to_json() + "\n"
    assert all(read_records([whole, whole[:length]]) == [FULL] for length in (1, 12, len(whole) - 1))


def test_the_name_of_a_cell_holds_all_that_tells_it_from_others():
    assert FULL.cell == "tiny/rml/2/latency/tuned"
    assert replace(FULL, framework="rml#2", scenario="cold", setup="installed").cell == "tiny/rml#2/2/cold/installed"


def test_every_field_is_described():
    described = re.findall(r"^        (\w+): ", inspect.getdoc(CellRecord).replace("\n    ", "\n        "), re.M)
    assert sorted(described) == sorted(field.name for field in fields(CellRecord))


def test_errors_name_the_line():
    whole = FULL.to_json() + "\n"
    with pytest.raises(ValueError, match="line 2: is not a record"):
        read_records([whole, "nonsense\n"])
    with pytest.raises(ValueError, match="line 1: schema version must be 2; got 1, of another release"):
        read_records([whole.replace('schema_version": 2', 'schema_version": 1')])
    with pytest.raises(ValueError, match="line 1: is not a record"):
        read_records([whole.replace("median_ms", "median_s")])
