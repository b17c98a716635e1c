import json
from itertools import pairwise
from pathlib import Path

import pytest

from rml_exec import Executor, load_graph
from rml_exec.graph_run.main import main
from rml_exec.graph_run.show import SHOWN, show_data, show_text
from rml_exec.graph_run.trace import events_of, trace_of
from tests.helpers.graphs import cnn_graph, random_inputs

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def executor():
    return Executor.create(cnn_graph(), threads=1)


@pytest.fixture(scope="module")
def profile(executor):
    return executor.run_profiled(random_inputs(executor.graph))[1]


@pytest.mark.parametrize("what", SHOWN)
def test_text_and_json_go_to_standard_output(what, capsys):
    model = str(DATA / "tiny_cnn")
    executor = Executor.create(load_graph(model), threads=1)
    assert main([model, "--threads", "1", "--show", what]) == 0
    assert capsys.readouterr().out == show_text(executor, what)
    assert main([model, "--threads", "1", "--show", what, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == show_data(executor, what)


def test_steps_name_kernels_and_the_nodes_they_cover(executor):
    lines = show_text(executor, "steps").splitlines()
    assert lines[0].split() == ["step", "label", "kernel", "graph", "nodes"]
    assert [line.split()[1] for line in lines[1:]] == [step.label for step in executor.steps]
    assert [row["covers"] for row in show_data(executor, "steps")["steps"]] == [list(step.covers) for step in executor.steps]


def test_the_plan_lists_every_action(executor):
    assert len(show_text(executor, "plan").splitlines()) == len(executor.plan.actions)
    assert [row["action"] for row in show_data(executor, "plan")["actions"]] == [str(action.kind) for action in executor.plan.actions]


def test_memory_shows_each_buffer_inside_the_arena(executor):
    found = show_data(executor, "memory")
    assert found["buffers"]
    assert all(buffer["offset"] >= 0 and buffer["offset"] + buffer["bytes"] <= found["arena_bytes"] for buffer in found["buffers"])
    assert found["lower_bound_bytes"] <= found["arena_bytes"]
    assert max(live for _, live in found["live"]) == found["peak_bytes"]


def test_the_event_log_follows_the_plan_and_the_clock(executor, profile):
    events = list(events_of(executor, profile))
    assert [event["name"] for event in events] == [action.name for action in executor.plan.actions]
    assert [event["at_ns"] for event in events] == sorted(event["at_ns"] for event in events)
    assert sum(event.get("wall_ns", 0) for event in events) == sum(step.wall_ns for step in profile.steps)


def test_the_trace_has_a_slice_per_step_and_the_bytes_alive(executor, profile):
    events = trace_of(executor, profile)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [step.label for step in executor.steps]
    for one, other in pairwise(slices):
        assert other["ts"] == pytest.approx(one["ts"] + one["dur"])
    counters = [event for event in events if event["ph"] == "C"]
    assert max(event["args"]["bytes"] for event in counters) == executor.memory.peak_bytes


def test_the_files_are_written_by_the_command(tmp_path, capsys):
    assert main([str(DATA / "tiny_cnn"), "--events", str(tmp_path / "events"), "--trace", str(tmp_path / "trace")]) == 0
    assert all("action" in json.loads(line) for line in (tmp_path / "events").read_text().splitlines())
    assert json.loads((tmp_path / "trace").read_text())["traceEvents"]
    capsys.readouterr()
    assert main([str(DATA / "tiny_cnn"), "--trace", str(tmp_path / "no" / "trace")]) == 2
    assert "cannot be written" in capsys.readouterr().err
