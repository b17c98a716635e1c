"""The JSON Schema of a record, and that the records of a real run follow it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from bench.records import CellRecord
from bench.schema import record_schema, record_table
from tests.bench.stored_runs import RECORDED
from tests.bench.test_records import FAILED, FULL

SHIPPED = json.loads((files("bench") / "record_schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)


def test_the_shipped_schema_is_that_of_the_definition():
    assert record_schema() == SHIPPED, "write it anew: python -m bench.schema > bench/record_schema.json"


def test_every_field_is_described_for_readers():
    text = (Path(__file__).parents[2] / "reports" / "README.md").read_text()
    assert record_table() in text, "write the table anew: python -m bench.schema --markdown"


def test_it_is_a_schema_and_describes_every_field():
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    assert list(SHIPPED["properties"]) == [entry.name for entry in fields(CellRecord)]
    assert all(len(entry["description"]) > 4 for entry in SHIPPED["properties"].values())


def test_records_follow_it():
    for line in (*RECORDED.read_text().splitlines(), FULL.to_json(), FAILED.to_json()):
        VALIDATOR.validate(json.loads(line))


@pytest.mark.parametrize(
    "fault",
    [
        {"status": "good"}, {"verdict": "quicker"}, {"threads": 0}, {"threads": 1.5}, {"median_ms": "1"}, {"median_ms": -1.0}, {"check": "ok"},
        {"parity_reasons": None}, {"graph_sha256": "abc"}, {"schema_version": 1}, {"model": None}, {"scenario": "throughput"}, {"new": 1},
    ],
)  # fmt: skip
def test_what_is_no_record_does_not(fault):
    assert not VALIDATOR.is_valid({**asdict(FULL), **fault})
    assert VALIDATOR.is_valid(asdict(replace(FULL, reason="")))


@pytest.mark.parametrize("name", ["model", "framework", "threads", "status", "schema_version"])
def test_what_names_a_cell_is_required(name):
    found = asdict(FULL)
    del found[name]
    assert not VALIDATOR.is_valid(found)
