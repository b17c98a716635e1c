"""The scenarios, and the order of turns, with fake arms in real worker processes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bench.rounds
from bench.cells import Cell
from bench.inputs import draw_shapes, further_goldens, model_hashes
from bench.rounds import turns
from bench.settings import Settings
from bench.supervisor import Measured, run_cells
from rml_exec import GraphBuilder, load_graph, save_graph
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from tests.bench.conftest import QUICK

EIGHT = replace(QUICK, min_rounds=8)


@pytest.fixture
def run(graphs: Path, use_arms: Callable[..., list[str]], quiet: None) -> Callable[..., Measured]:
    """Returns a function that runs fake arms on tiny_mlp (default: two honest ones) and returns everything."""

    def run(settings: Settings = QUICK, model: str = "tiny_mlp", **arms: str) -> Measured:
        names = use_arms(**(arms or {"rml": "Honest", "other": "Second"}))
        return run_cells(model, 1, names, graphs=str(graphs), settings=settings, environment={}, blocks_file="b.jsonl")

    return run


def add_goldens(graphs: Path, count: int) -> None:
    """Puts further golden sets of the same inputs beside tiny_mlp's."""
    for number in range(1, count + 1):
        shutil.copy(graphs / "tiny_mlp.golden.safetensors", graphs / f"tiny_mlp.golden.{number}.safetensors")


@pytest.fixture
def dims_graph(tmp_path: Path, graphs: Path) -> Path:
    """Returns the prefix of a graph with a symbolic batch and its golden at batch 2."""
    b = GraphBuilder("sized")
    x = b.input("x", "f32", (2, 3))
    b.output("y", b.add("relu", [x]))
    save_graph(b.build(), graphs / "sized")
    text = (graphs / "sized.json").read_text()
    text = text.replace("[2, 3]", '["n", 3]').replace("[2,3]", '["n",3]')
    text = text.replace("{", '{"dims": {"n": {"min": 1, "max": 9, "hint": 2}},', 1)
    (graphs / "sized.json").write_text(text)
    inputs = {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)}
    golden = Golden(inputs, {"y": np.maximum(inputs["x"], 0)}, {**graph_hashes(graphs / "sized"), "rtol.y": "0", "atol.y": "0"})
    write_golden(graphs / "sized.golden.safetensors", golden)
    return graphs / "sized"


def test_abba_turns_go_forwards_and_backwards():
    cells = [Cell(name) for name in "abc"]
    orders = ["".join(cell.framework for cell in turns(cells, number, replace(QUICK, order="abba"))) for number in range(4)]
    assert orders == ["abc", "cba", "abc", "cba"]


def test_random_turns_mirror_each_other_and_come_again_with_the_seed():
    cells = [Cell(name) for name in "abcdef"]

    def orders(seed: int) -> list[str]:
        settings = replace(QUICK, order="random", seed=seed)
        return ["".join(cell.framework for cell in turns(cells, number, settings)) for number in range(40)]

    found = orders(1)
    assert all(second == first[::-1] for first, second in zip(found[::2], found[1::2], strict=True))
    assert len(set(found)) > 20
    assert found == orders(1) != orders(2)


def test_every_block_is_kept_with_what_is_needed_to_compute_the_record_again(run):
    measured = run(replace(EIGHT, calls=5, seed=11))
    record = measured.records[1]
    lines = [line for line in measured.blocks if line["cell"] == record.cell]
    assert [line["round"] for line in lines] == list(range(8))
    assert {line["run"] for line in measured.blocks} == {record.run}
    assert all(len(line["times_ns"]) == 5 and len(line["canary_ns"]) == 2 and line["cpu_ns"] > 0 for line in lines)
    assert sum(line["flagged"] for line in lines) == record.blocks_flagged
    assert (record.iterations, record.rounds, record.seed, record.order, record.blocks_file) == (40, 8, 11, "abba", "b.jsonl")
    assert (record.reference, record.settings["calls"]) == ("rml", 5)
    assert record.started < record.finished
    assert next(iter(lines[0])) == "run"  # how the results file knows its lines


def test_the_reference_is_the_one_asked_for(run):
    records = run(replace(EIGHT, reference="other")).records
    assert [record.verdict for record in records][1] == "reference"
    assert (records[1].ratio, records[1].ratio_low, records[1].ratio_high) == (1.0, 1.0, 1.0)
    assert records[0].ratio > 0


def test_the_twin_gives_the_noise_floor_to_every_row(run):
    records = run(EIGHT, **{"rml": "Honest", "rml#2": "Honest", "other": "Second"}).records
    twin = records[1]
    assert twin.framework == "rml#2"
    assert {record.noise_floor for record in records} == {(twin.ratio_high - twin.ratio_low) / 2}


def test_polluted_blocks_are_kept_but_have_no_say(run, monkeypatch):
    times = iter([1000, *(1000, 1000, 9000), *[1000] * 1000])  # the first one is that of the constructor
    monkeypatch.setattr(bench.rounds.Canary, "measure", lambda _: next(times))
    measured = run(EIGHT)
    assert [record.blocks_flagged for record in measured.records] == [0, 1]
    assert [(line["cell"], line["round"]) for line in measured.blocks if line["flagged"]] == [(measured.records[1].cell, 0)]
    assert all(record.iterations == 8 for record in measured.records)
    assert all(record.ratio_low is not None for record in measured.records)


def test_too_few_clean_rounds_are_unresolved(run):
    record = run(replace(EIGHT, canary_limit=0.5)).records[1]
    assert (record.status, record.verdict, record.ratio_low) == ("ok", "unresolved", None)
    assert record.rounds == 16  # the budget was spent after 8; as many more were given a chance to be clean


def test_flagged_rounds_are_made_up_for(run, monkeypatch):
    times = iter([1000, *[1000, 1000, 9000] * 6, *[1000] * 1000])
    monkeypatch.setattr(bench.rounds.Canary, "measure", lambda _: next(times))
    measured = run(EIGHT)
    assert measured.records[1].blocks_flagged >= 3
    assert measured.records[1].ratio_low is not None
    assert 8 < measured.records[1].rounds < 16


def test_inputs_rotate_among_the_golden_sets_and_are_the_same_for_all_arms(run, graphs):
    add_goldens(graphs, 2)
    measured = run(replace(QUICK, min_rounds=6))
    by_round = {line["round"]: set() for line in measured.blocks}
    for line in measured.blocks:
        by_round[line["round"]].add(tuple(line["inputs"]))
    assert by_round == {number: {(number % 3,)} for number in range(6)}


def test_paced_calls_wait_in_between(run):
    measured = run(replace(QUICK, scenario="paced", gap_s=0.02, calls=4))
    assert all(line["wall_ns"] >= 4 * 0.02e9 for line in measured.blocks)
    assert all(max(line["times_ns"]) < line["wall_ns"] / 4 for line in measured.blocks)
    assert measured.records[0].settings["gap_s"] == 0.02


def test_concurrent_callers_call_at_the_same_time(run, graphs):
    record = run(replace(QUICK, scenario="concurrent", callers=3, calls=2), rml="Meets").records[0]
    assert (record.status, record.iterations) == ("ok", 4 * 2 * 3)
    assert record.settings["callers"] == 3


def test_an_error_in_one_of_several_callers_is_a_row(run):
    record = run(replace(QUICK, scenario="concurrent", callers=3, calls=2), rml="RaisesElsewhere").records[0]
    assert (record.status, record.reason) == ("failed", "RuntimeError: not from this thread")


def test_cold_calls_are_processes(run, graphs):
    measured = run(replace(QUICK, scenario="cold", min_rounds=3))
    record = measured.records[0]
    assert (record.status, record.iterations, record.rounds) == ("ok", 3, 3)
    assert record.min_ms > record.first_call_ms
    assert Counter((graphs / "calls").read_text().split()) == {"Honest": 4, "Second": 4}  # one each to see whether it works at all
    assert record.idle_cpu_s is None


def test_a_crash_in_a_later_cold_process_is_a_row(run, graphs):
    records = run(replace(QUICK, scenario="cold", min_rounds=3), rml="Honest", other="CrashesInThirdProcess").records
    assert [record.status for record in records] == ["ok", "failed"]


def test_shapes_need_several(run):
    record = run(replace(QUICK, scenario="shapes")).records[0]
    assert (record.status, record.check) == ("unavailable", "pass")
    assert record.reason == "the scenario shapes needs golden sets of several shapes, or a graph with dims"


def test_shapes_are_drawn_for_a_graph_with_dims_and_every_block_has_all_of_them(run, dims_graph):
    measured = run(replace(QUICK, scenario="shapes", calls=None, min_time_s=1e-12), model="sized", rml="Relu")
    record = measured.records[0]
    assert (record.status, record.reason, record.check) == ("ok", "", "pass")
    assert record.new_shape_ms > 0
    assert all(sorted(line["inputs"]) == list(range(5)) and len(line["times_ns"]) == 5 for line in measured.blocks)
    assert len({tuple(line["inputs"]) for line in measured.blocks}) > 1


def test_drawn_shapes_differ_and_their_outputs_are_those_of_the_graph(dims_graph, tmp_path):
    paths = draw_shapes(dims_graph, 5, tmp_path)
    goldens = [read_golden(path) for path in paths]
    assert len({golden.inputs["x"].shape for golden in goldens}) == 4
    assert all(golden.inputs["x"].shape != (2, 3) for golden in goldens)
    assert all(np.array_equal(golden.outputs["y"], np.maximum(golden.inputs["x"], 0)) for golden in goldens)
    assert load_graph(dims_graph).dims["n"]["max"] == 9


def test_nothing_is_drawn_without_dims(graphs, tmp_path):
    assert draw_shapes(graphs / "tiny_mlp", 5, tmp_path) == []


def test_hashes_are_those_of_all_files_and_missing_ones_have_none(graphs):
    first = model_hashes(graphs / "tiny_mlp")
    assert sorted(first) == ["graph_sha256", "inputs_sha256", "weights_sha256"]
    add_goldens(graphs, 11)
    assert [path.name.split(".")[2] for path in further_goldens(graphs / "tiny_mlp")] == [str(number) for number in range(1, 12)]
    second = model_hashes(graphs / "tiny_mlp")
    assert (second["graph_sha256"], second["inputs_sha256"] != first["inputs_sha256"]) == (first["graph_sha256"], True)
    assert model_hashes(graphs / "missing") == {}
