"""Results that are read again, and the numbers computed again from their blocks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.recompute import flags_differ, recompute
from bench.results import blocks_path
from bench.stored import CellBlocks, read_results
from rml_exec.errors import InputError
from tests.bench.stored_runs import RECORDED, write_run


def test_records_and_blocks_of_a_real_run_are_read(tmp_path):
    stored = read_results(RECORDED, blocks=True)
    assert len(stored.records) == 9
    assert [len(cell.blocks) for cell in stored.blocks.values()] == [16] * 6
    assert stored.block_files == [blocks_path(RECORDED)]
    assert read_results(RECORDED, blocks=False).blocks == {}


def test_every_number_of_a_real_run_follows_from_its_blocks():
    stored = read_results(RECORDED, blocks=True)
    computed = {record.framework: recompute(record, stored) for record in stored.records if record.model == "torch_mlp"}
    assert computed["torch-compile"] is None  # it failed
    for record in stored.records:
        for name, value in (recompute(record, stored) or {}).items():
            assert getattr(record, name) == pytest.approx(value), name
    assert {"median_ms", "p90_ms", "p90_low_ms", "mean_ms", "cpu_s_per_call", "ratio", "ratio_low", "ratio_high", "verdict"} <= set(
        computed["torch"]
    )
    assert computed["torch"]["verdict"] == "slower"


def test_flags_follow_from_the_canaries():
    stored = read_results(RECORDED, blocks=True)
    for run in {record.run for record in stored.records}:
        records = [record for record in stored.records if record.run == run]
        assert flags_differ(records, stored) == []  # some of them failed: nothing is said
        assert flags_differ([record for record in records if record.status == "ok"], stored) == []
    key = next(iter(stored.blocks))
    cell = stored.blocks[key]
    stored.blocks[key] = CellBlocks(cell.blocks, [not flag for flag in cell.flags])
    records = [record for record in stored.records if record.run == key[0] and record.status == "ok"]
    assert flags_differ(records, stored) == [f"{key[1]}: 16 of its blocks are flagged otherwise than the canary rule says"]


def test_a_flagged_block_counts_in_percentiles_but_not_in_the_ratio(tmp_path):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 9, "torch": [2.0] * 8 + [50.0]})
    stored = read_results(path, blocks=True)
    torch = stored.records[1]
    cell = stored.of(torch)
    cell.flags[8] = True
    found = recompute(torch, stored)
    assert (found["ratio_low"], found["ratio_high"], found["blocks_flagged"]) == (2.0, 2.0, 1)
    assert found["p90_ms"] > 40


def test_what_was_used_follows_from_the_ledgers(tmp_path):
    stored = read_results(write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 8}), blocks=True)
    record = stored.records[0]
    ledger = {"wall_ns": 10**9, "cpu_ns": 2 * 10**9, "outside_ns": 5 * 10**8, "threads_seen": 3, "throttled": 0}
    key, cell = next(iter(stored.blocks.items()))
    stored.blocks[key] = CellBlocks([replace(one, ledger=ledger) for one in cell.blocks], cell.flags)
    found = recompute(record, stored)
    names = ("threads_seen", "cpu_outside_affinity_s", "throttled", "parity")
    assert [found[name] for name in names] == [3, 4.0, False, False]
    fair = {**ledger, "cpu_ns": 10**9, "outside_ns": 0}
    stored.blocks[key] = CellBlocks([replace(one, ledger=fair) for one in cell.blocks], cell.flags)
    assert "parity" not in recompute(record, stored)  # the warm-up may have said otherwise


def test_a_half_last_line_of_blocks_is_passed_over_and_a_broken_one_refused(tmp_path):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6})
    beside = blocks_path(path)
    whole = beside.read_text()
    beside.write_text(whole + whole[:40])
    assert len(read_results(path, blocks=True).blocks["r1", "m/rml/1/latency/tuned"].blocks) == 6
    beside.write_text(whole + '{"run": "r1"}\n')
    with pytest.raises(InputError, match="line 7: must be the data of a block"):
        read_results(path, blocks=True)


def test_blocks_are_found_by_the_name_in_the_records_and_count_once(tmp_path):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6}, blocks_file="r.jsonl.blocks.jsonl")
    renamed = path.rename(tmp_path / "old.jsonl")
    assert read_results(renamed, blocks=True).block_files == [tmp_path / "r.jsonl.blocks.jsonl"]
    blocks_path(renamed).write_bytes((tmp_path / "r.jsonl.blocks.jsonl").read_bytes())
    assert [len(cell.blocks) for cell in read_results(renamed, blocks=True).blocks.values()] == [6]


def test_the_name_of_a_file_of_blocks_leads_nowhere_else(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6})
    record = read_results(tmp_path / "r.jsonl", blocks=False).records[0]
    (inside / "x.jsonl").write_text(replace(record, blocks_file="../r.jsonl.blocks.jsonl").to_json() + "\n")
    assert read_results(inside / "x.jsonl", blocks=True).blocks == {}


@pytest.mark.parametrize("content", ["nonsense\n", json.dumps({"a": 1}) + "\n"])
def test_another_file_is_refused_with_its_name(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(InputError, match=r"x: must be a file of records.*line 1"):
        read_results(tmp_path / "x", blocks=False)
    with pytest.raises(InputError, match="No such file"):
        read_results(tmp_path / "y", blocks=False)


def changed(path, **fields):
    """Changes the first line of a file of JSON lines."""
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(json.loads(first) | fields) + "\n" + "".join(rest))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"median_ms": "12"}, "median_ms must be a number from 0 on or null; got '12'"),
        ({"median_ms": float("nan")}, "median_ms must be a number from 0 on or null; got nan"),
        ({"ratio": float("inf")}, "ratio must be a number from 0 on or null; got inf"),
        ({"p90_ms": True}, "p90_ms must be a number from 0 on or null; got True"),
        ({"iterations": 1.5}, "iterations must be a whole number from 0 on or null; got 1.5"),
        ({"seed": -1}, "seed must be a whole number from 0 on or null; got -1"),
        ({"threads": None}, "threads must be a whole number from 1 on; got None"),
        ({"run": 3}, "run must be a string or null; got 3"),
        ({"parity": 1}, "parity must be true or false or null; got 1"),
        ({"parity_reasons": [1]}, r"parity_reasons must be a list of strings; got \[1\]"),
        ({"environment": []}, r"environment must be an object of finite numbers and other values; got \[\]"),
        ({"settings": {"canary_limit": "4"}}, "settings.canary_limit must be a number; got '4'"),
        ({"settings": {"cores": 1}}, "settings.cores must be a list of whole numbers; got 1"),
        ({"environment": {"cores": None}}, "environment.cores must be a whole number; got None"),
        ({"options": {"deep": [float("nan")]}}, "options must be an object of finite numbers"),
    ],
)
def test_a_field_of_another_type_is_refused_with_line_and_name(tmp_path, fields, rule):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6})
    changed(path, **fields)
    with pytest.raises(InputError, match=f"r.jsonl: line 1: {rule}"):
        read_results(path, blocks=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"times_ns": []}, {"times_ns": "abc"}, {"times_ns": [1.5]}, {"times_ns": [True]}, {"times_ns": [0]}, {"wall_ns": 0}, {"inputs": []},
        {"canary_ns": ["a", "b"]}, {"canary_ns": 3}, {"round": None}, {"run": []}, {"flagged": 0}, {"ledger": []}, {"ledger": {"cpu_ns": 1}},
        {"cpu_ns": 10**400},
    ],
)  # fmt: skip
def test_a_block_of_other_types_is_refused_with_its_line(tmp_path, fields):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6})
    changed(blocks_path(path), **fields)
    with pytest.raises(InputError, match=r"blocks\.jsonl: line 1: must be the data of a block"):
        read_results(path, blocks=True)
