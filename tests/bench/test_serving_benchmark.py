import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.denormals import PLANTED, planted_graph, planted_inputs
from bench.serving_benchmark import main
from rml_exec import Executor, load_graph
from rml_exec.runtime.reference import run_reference

DATA = Path(__file__).parents[1] / "data"
QUICK = ["--seconds", "0.05", "--repeat", "2", "--threads", "1"]
TINY = float(np.finfo(np.float32).tiny)


def records(capsys, *arguments):
    assert main([*arguments, *QUICK]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def denormal(array):
    return (array != 0) & (np.abs(array) < TINY)


def test_callers_give_throughput_by_their_number(capsys):
    (record,) = records(capsys, str(DATA / "tiny_mlp"), "--callers", "1,2,3")
    assert (record["model"], record["scenario"], record["threads"]) == ("tiny_mlp", "callers", 1)
    assert list(record["calls_per_s"]) == list(record["calls_per_cpu_s"]) == ["1", "2", "3"]
    assert min(record["calls_per_s"].values()) > 0
    assert record["worst_over_best"] == pytest.approx(min(record["calls_per_s"].values()) / max(record["calls_per_s"].values()), abs=1e-3)


def test_calls_at_a_rate_are_held_against_calls_in_a_row(capsys):
    (record,) = records(capsys, str(DATA / "tiny_cnn"), "--rate", "50")
    assert record["hertz"] == 50
    assert record["cpu_over_calls_own"] >= 1
    assert record["cpu_over_calls_in_a_row"] > 0


def test_start_reports_time_and_memory_of_new_processes(capsys):
    (record,) = records(capsys, str(DATA / "tiny_cnn"), "--start")
    assert record["seconds"] >= sum(record["phases_s"].values()) - 0.005
    assert record["packed_mb"] > 0
    assert record["allowed_rss_mb"] == pytest.approx(60 + record["packed_mb"] + record["arena_mb"], abs=0.2)
    assert record["peak_rss_mb"] > 5


def test_scenarios_of_several_models_are_a_line_each(capsys, tmp_path):
    for name in ("tiny_mlp.json", "tiny_mlp.safetensors"):  # without a golden
        shutil.copy(DATA / name, tmp_path)
    found = records(capsys, str(DATA / "tiny_cnn"), str(tmp_path / "tiny_mlp"), "--denormals", "--callers", "1")
    assert [(record["model"], record["scenario"]) for record in found] == [
        ("tiny_cnn", "callers"),
        ("tiny_cnn", "denormals"),
        ("tiny_mlp", "callers"),
        ("tiny_mlp", "denormals"),
    ]
    assert found[1]["fast_ratio"] > 0
    assert found[1]["exact_ratio"] > 0


def test_planted_denormals_are_in_weights_and_activations_and_little_else_changes():
    graph = load_graph(DATA / "tiny_cnn")
    planted = planted_graph(graph)
    assert [node.name for node in planted.nodes] == [node.name for node in graph.nodes]
    weights = [constant.data for constant in planted.constants if constant.type.rank == 4]
    assert any(denormal(data).any() for data in weights)
    assert not any(denormal(constant.data).any() for constant in graph.constants if constant.type.rank)
    inputs = planted_inputs({value.name: np.ones(value.type.shape, np.float32) for value in graph.inputs})
    assert all((array == PLANTED).any() for array in inputs.values())
    convolutions = [node.outputs[0].name for node in graph.nodes if node.op == "conv2d"]
    found = run_reference(planted, inputs, precision="f32", want=convolutions)
    assert any(denormal(found[name]).any() for name in convolutions)
    for numerics in ("fast", "exact"):
        outputs = Executor.create(planted, threads=1, numerics=numerics).run(inputs)
        assert all(np.isfinite(array).all() for array in outputs.values())


@pytest.mark.parametrize(
    "arguments",
    [[], ["--callers", "0"], ["--callers", "x"], ["--rate", "-1"], ["--start", "--repeat", "0"], ["--start", "--seconds", "nan"]],
)
def test_bad_usage_is_exit_code_2(arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(DATA / "tiny_mlp"), *arguments])
    assert caught.value.code == 2


def test_a_model_that_is_not_there_is_a_sentence(capsys, tmp_path):
    assert main([str(tmp_path / "none"), "--callers", "1"]) == 2
    assert main([str(tmp_path / "none"), "--start"]) == 2
    assert "Traceback" not in capsys.readouterr().err
