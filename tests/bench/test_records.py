"""The record of a cell and the file of records."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.records import SCHEMA_VERSION, CellRecord, append_record, prepare_results, read_records

FULL = CellRecord(
    "tiny", "rml", 2, "ok", check="pass", max_abs_error=1e-7, max_rel_error=2e-7, iterations=30, mean_ms=1.5, min_ms=1.0, p10_ms=1.1,
    median_ms=1.4, p90_ms=2.0, ratio=1.0, load_ms=3.0, first_call_ms=4.0, import_ms=5.0, framework_version="0.1", options={"isa": "avx2"},
    environment={"cpu": "X", "governor": None},
)  # fmt: skip
FAILED = CellRecord("tiny", "torch", 1, "failed", 'a "quoted" reason: ä')


def read(path: Path) -> list[CellRecord]:
    with path.open() as file:
        return read_records(file)


def test_records_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "results.jsonl"
    append_record(path, FULL)
    append_record(path, FAILED)
    assert read(path) == [FULL, FAILED]


def test_a_line_is_one_json_object_with_the_fields_of_the_record():
    found = json.loads(FULL.to_json())
    assert list(found)[:5] == ["model", "framework", "threads", "status", "reason"]
    assert found["schema_version"] == SCHEMA_VERSION
    assert "\n" not in FULL.to_json()


def test_a_number_that_json_lacks_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        CellRecord("tiny", "rml", 1, "ok", mean_ms=math.nan).to_json()


def test_a_half_last_line_is_passed_over_and_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    whole = FULL.to_json() + "\n"
    for length in (*range(12), *range(12, len(whole), 50), len(whole) - 1):
        path.write_text(whole + whole[:length])
        assert read(path) == [FULL]
        prepare_results(path)
        assert path.read_text() == whole
    append_record(path, FAILED)
    assert read(path) == [FULL, FAILED]


def test_a_missing_or_empty_file_is_made_ready(tmp_path):
    path = tmp_path / "results.jsonl"
    prepare_results(path)
    prepare_results(path)
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "content", ["# my notes\n", "precious", '{"model": "x"}\n', '[1]\n{"model": ', FULL.to_json().replace('n": 1}', 'n": 99}') + "\n"]
)
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(ValueError, match="line"):
        prepare_results(path)
    assert path.read_text() == content


def test_errors_name_the_line():
    whole = FULL.to_json() + "\n"
    with pytest.raises(ValueError, match="line 2: is not a record"):
        read_records([whole, "nonsense\n"])
    with pytest.raises(ValueError, match="line 1: schema version must be 1; got 2"):
        read_records([whole.replace('schema_version": 1', 'schema_version": 2')])
    with pytest.raises(ValueError, match="line 1: is not a record"):
        read_records([whole.replace("median_ms", "median_s")])
