import json
from dataclasses import asdict

import pytest

from bench import profile_model
from bench.cells import Block
from bench.cli import main as bench_frameworks
from bench.profile_trace import block_events
from bench.records import CellRecord
from bench.results import ResultsFile
from bench.stored import read_results
from rml_exec.errors import InputError
from rml_exec.graph_run import load_golden
from rml_exec.loading import load_graph
from rml_exec.runtime.executor import Executor
from tests.helpers.control_graphs import loop_graph
from tests.helpers.graphs import random_inputs

STARTS = {"rml": (5_000, 90_000), "torch": (20_000, 60_000)}
"""When the two blocks of each arm began: rml, torch, torch, rml."""


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as file:
        for model in ("tiny_mlp", "other"):
            for arm, starts in STARTS.items():
                record = CellRecord(model, arm, 1, "ok", run="r1", blocks_file=file.blocks_name)
                blocks = [Block(n, n, start, 10_000, [4_000, 6_000], 9_000, [0], (100, 200)) for n, start in enumerate(starts)]
                lines = [{"run": "r1", "cell": record.cell, **asdict(block), "flagged": block.round == 1} for block in blocks]
                file.append([record], lines)
    return path


def profiled(graphs):
    model = str(graphs / "tiny_mlp")
    return profile_model.measure("tiny_mlp", Executor.create(load_graph(model), threads=1), load_golden(model).inputs, seconds=0)


def test_every_step_has_a_time_with_interval_and_its_fraction_of_the_roofline(graphs):
    profile = profiled(graphs)
    assert [(row.label, row.flops, row.bytes) for row in profile.rows] == [
        ("linear+relu", 2 * 2 * 8 * 16 + 2 * 16, 4 * (2 * 8 + 16 * 8 + 16 + 2 * 16)),
        ("linear", 2 * 2 * 16 * 4, 4 * (2 * 16 + 4 * 16 + 4 + 2 * 4)),
    ]
    for row in profile.rows:
        assert 0 < row.time_ms.low <= row.time_ms.estimate <= row.time_ms.high
        assert row.bound in ("compute", "memory")
        assert row.roofline > 0
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert len(profile.profiles) >= profile_model.MIN_ROUNDS
    assert (profile.level, profile.threads) == ("L1", 1)


def test_the_parts_of_the_wall_time_add_up(graphs):
    total = profiled(graphs).total
    assert total.wall_ms == pytest.approx(total.steps_ms + total.gap_ms + total.overhead_ms)


def test_a_step_whose_work_depends_on_data_has_no_fraction():
    graph = loop_graph()
    profile = profile_model.measure("loop", Executor.create(graph, threads=1), random_inputs(graph), seconds=0)
    loop = next(row for row in profile.rows if row.label == "while")
    assert (loop.flops, loop.bytes, loop.bound, loop.roofline) == (None, None, None, None)
    assert profile_model.profile_report(profile).tables


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json", "html"])
def test_the_command_prints_the_steps(graphs, capsys, form):
    assert bench_frameworks(["profile", "tiny_mlp", "--graphs", str(graphs), "--seconds", "0.01", "--threads", "1", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "linear+relu" in out
    if form == "json":
        assert {row["label"] for row in json.loads(out)["tables"]["steps"]["rows"]} == {"linear", "linear+relu"}


def test_threads_that_there_are_not_are_said(graphs, capsys):
    assert (
        bench_frameworks(["profile", "tiny_mlp", "--graphs", str(graphs), "--seconds", "0.01", "--threads", "999", "--format", "json"]) == 0
    )
    out, err = capsys.readouterr()
    threads = json.loads(out)["environment"]["threads"]
    assert err == f"bench_frameworks profile: runs on {threads} threads, all that this process may use\n"


def test_one_trace_has_the_blocks_of_all_arms_on_one_clock_and_the_steps(graphs, results, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    arguments = [
        "profile",
        str(graphs / "tiny_mlp"),
        "--seconds",
        "0.01",
        "--threads",
        "1",
        "--trace",
        str(trace),
        "--results",
        str(results),
    ]
    assert bench_frameworks(arguments) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    blocks = sorted((event["ts"], event["args"]["arm"], event["args"]["flagged"]) for event in slices if "arm" in event["args"])
    assert blocks == [(0.0, "rml", False), (15.0, "torch", False), (55.0, "torch", True), (85.0, "rml", True)]
    assert len({event["pid"] for event in slices if "arm" in event["args"]}) == 1
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert all(threads[event["pid"], event["tid"]] == event["args"]["arm"] for event in slices if "arm" in event["args"])
    runs = [event for event in slices if event["name"].startswith("run ")]
    steps = [event for event in slices if "node" in event["args"]]
    assert len(runs) >= profile_model.MIN_ROUNDS
    assert len(steps) == 2 * len(runs)
    assert all(any(run["ts"] <= step["ts"] and step["ts"] + step["dur"] <= run["ts"] + run["dur"] + 1e-6 for run in runs) for step in steps)


def test_a_model_without_blocks_is_refused(results):
    stored = read_results(results, blocks=True)
    assert list(block_events(stored, ["other"]))
    with pytest.raises(InputError, match="block data of unknown"):
        list(block_events(stored, ["unknown"]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "must be a path prefix"),
        (["tiny_mlp", "--seconds", "nan"], "--seconds: must be a time above 0 such as 40s, 10ms or 2m; got nan."),
        (["tiny_mlp", "--seconds", "0"], "--seconds: must be a time above 0 such as 40s, 10ms or 2m; got 0."),
        (["tiny_mlp", "--seconds", "1e-9"], "--seconds: must be a time of at least 0.01 s; got 1e-9."),
        (["tiny_mlp", "--results", "x"], "--results x: goes with --trace. Hint: "),
        (["tiny_mlp", "--results", "missing.jsonl", "--trace", "t.json"], "missing.jsonl"),
    ],
)
def test_bad_usage_is_one_sentence(graphs, capsys, arguments, text):
    try:
        code = bench_frameworks(["profile", *arguments, "--graphs", str(graphs)])
    except SystemExit as error:
        code = error.code
    assert code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
