"""Executors over graphs with symbolic dims."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rml_exec import Executor, InputError, load_graph, save_graph
from rml_exec.runtime.plan_cache import PlanCache
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import cnn_graph, mlp_graph, random_inputs


def with_batch(graph, path, low=1, high=None):
    """Returns the graph saved and loaded again with its leading dim symbolic."""
    save_graph(graph, path)
    file = path.with_suffix(".json")
    document = json.loads(file.read_text())
    document["dims"] = {"batch": {"min": low, "max": high, "hint": 2}}
    for value in (*document["inputs"], *(output for node in document["nodes"] for output in node["outputs"])):
        value["shape"][0] = "batch"
    file.write_text(json.dumps(document))
    return load_graph(path)


@pytest.fixture(params=[mlp_graph, cnn_graph], ids=["mlp", "cnn"])
def graph(request, tmp_path):
    return with_batch(request.param(batch=2), tmp_path / "model", high=64)


def test_each_shape_gives_what_its_static_graph_gives(graph):
    executor = Executor.create(graph, threads=1)
    assert executor.input_types[graph.inputs[0].name].shape[0] == 2
    for batch in (1, 5, 2, 64, 5, 1):
        static = graph.bind(batch=batch)
        inputs = random_inputs(static, seed=batch)
        want = run_reference(static, inputs, precision="f64")["y"]
        got = executor.run(inputs)["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        profiled, profile = executor.run_profiled(inputs)
        np.testing.assert_array_equal(profiled["y"], got)
        assert len(profile.steps) == len(executor.steps)


def test_a_row_of_a_batch_is_that_row_alone_in_exact(graph):
    executor = Executor.create(graph, threads=2, numerics="exact")
    inputs = random_inputs(graph.bind(batch=7))
    whole = executor.run(inputs)["y"]
    for row in range(7):
        alone = executor.run({name: array[row : row + 1] for name, array in inputs.items()})["y"]
        np.testing.assert_array_equal(alone[0].view(np.uint32), whole[row].view(np.uint32))


def test_intermediates_follow_the_shape(graph):
    executor = Executor.create(graph)
    name = graph.nodes[1].outputs[0].name
    for batch in (3, 2):
        inputs = random_inputs(graph.bind(batch=batch))
        want = run_reference(graph.bind(batch=batch), inputs, precision="f32", want=[name])[name]
        np.testing.assert_allclose(executor.run(inputs, want=[name])[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(65, 8), (0, 8), (3, 9), (8,)])
def test_a_shape_that_does_not_fit_is_named(tmp_path, shape):
    executor = Executor.create(with_batch(mlp_graph(), tmp_path / "model", high=64))
    with pytest.raises(InputError, match=r"batch|'x'"):
        executor.run([np.zeros(shape, np.float32)])
    assert executor.run([np.zeros((3, 8), np.float32)])["y"].shape == (3, 4)


def test_a_dim_that_no_input_shows_must_be_bound(tmp_path):
    path = tmp_path / "model"
    with_batch(mlp_graph(), path)
    file = path.with_suffix(".json")
    document = json.loads(file.read_text())
    document["dims"]["other"] = {"min": 1, "max": None, "hint": 1}
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match="none for other"):
        Executor.create(load_graph(path))


def test_a_shape_seen_before_is_not_planned_again(tmp_path, monkeypatch):
    from rml_exec.runtime import executor as module

    executor = Executor.create(with_batch(mlp_graph(), tmp_path / "model"))
    planned = []
    original = module.compile_graph
    monkeypatch.setattr(module, "compile_graph", lambda *a, **k: planned.append(1) or original(*a, **k))
    for batch in (3, 4, 3, 4, 3):
        executor.run([np.zeros((batch, 8), np.float32)])
    assert len(planned) == 2


def test_the_cache_drops_what_was_used_longest_ago():
    cache = PlanCache(10, lambda size: size)
    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4)):
        cache.get(key, lambda size=size: size)
    assert cache.bytes == 8
    made = []
    cache.get("a", lambda: made.append("a") or 4)
    cache.get("c", lambda: made.append("c") or 4)
    cache.get("b", lambda: made.append("b") or 4)
    assert made == ["b"]
    cache.get("huge", lambda: 1000)
    assert len(cache) == 1


_SHAPES = """
import resource, sys, numpy as np
from rml_exec import Executor, load_graph

def rss_kb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

executor = Executor.create(load_graph(sys.argv[1]), threads=1)
rng = np.random.default_rng(0)
for _ in range(3):
    executor.run([np.ones((64, 3, 32, 32), np.float32)])
largest = rss_kb()
for _ in range(int(sys.argv[2])):
    executor.run([np.ones((int(rng.integers(1, 65)), 3, 32, 32), np.float32)])
print(largest, rss_kb())
"""


def test_many_shapes_take_no_more_memory_than_the_largest(tmp_path):
    with_batch(cnn_graph(batch=2, size=32), tmp_path / "model")
    run = [sys.executable, "-c", _SHAPES, str(tmp_path / "model"), "300"]
    largest, after = map(int, subprocess.run(run, capture_output=True, text=True, check=True, env=os.environ).stdout.split())
    assert after <= 1.05 * largest
