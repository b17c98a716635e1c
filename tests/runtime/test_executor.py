import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from rml_exec import Executor, GraphBuilder, InputError, KernelError, TypeInferenceError, load_graph
from rml_exec.graph_run import compare_with_golden, load_golden
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import cnn_graph, elementwise_graph, mlp_graph, random_inputs
from tests.helpers.strategies import graphs


def assert_equal_to_reference(graph, executor, inputs, rtol=1e-5):
    want = run_reference(graph, inputs, precision="f64")
    got = executor.run(inputs)
    assert list(got) == [output.name for output in graph.outputs]
    for name, array in want.items():
        assert got[name].shape == array.shape
        scale = np.sqrt(np.mean(np.square(array))) if array.size else 0
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("graph", [mlp_graph(), cnn_graph(), cnn_graph(layout="NHWC", batch=3), elementwise_graph()], ids=lambda g: g.name)
def test_a_run_gives_what_the_reference_gives(graph, fuse, threads):
    assert_equal_to_reference(graph, Executor.create(graph, fuse=fuse, threads=threads), random_inputs(graph))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_random_graphs_give_what_the_reference_gives(graph):
    inputs = random_inputs(graph)
    want = run_reference(graph, inputs, precision="f32")
    for fuse in (True, False):
        got = Executor.create(graph, fuse=fuse, threads=1).run(inputs)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=1e-30)


def test_memory_full_of_nan_changes_nothing():
    graph = cnn_graph(batch=2)
    executor = Executor.create(graph)
    inputs = random_inputs(graph)
    want = executor.run(inputs)
    arena = np.full(executor.memory.arena_bytes // 4 + 1, np.nan, np.float32)
    outputs = [np.full(type_.shape, np.nan, np.float32) for type_ in executor.output_types.values()]
    executor.program.run(arena, list(inputs.values()), outputs, 1)
    for array, name in zip(outputs, want, strict=True):
        np.testing.assert_array_equal(array, want[name])


def test_nothing_is_written_behind_the_arena_or_the_outputs():
    graph = cnn_graph(batch=2)
    executor = Executor.create(graph)
    inputs = random_inputs(graph)
    guard = 64
    arena = np.full(executor.memory.arena_bytes + guard, 0xA5, np.uint8)
    outputs = [np.full(type_.nbytes + guard, 0xA5, np.uint8) for type_ in executor.output_types.values()]
    executor.program.run(arena, list(inputs.values()), outputs, 1)
    assert all((array[-guard:] == 0xA5).all() for array in (arena, *outputs))


def test_threads_do_not_change_a_bit():
    graph = cnn_graph(batch=3, size=20)
    inputs = random_inputs(graph)
    one, two = (Executor.create(graph, threads=n).run(inputs) for n in (1, 2))
    for name, array in one.items():
        np.testing.assert_array_equal(array.view(np.uint32), two[name].view(np.uint32))


def test_outputs_are_the_callers_own():
    graph = elementwise_graph()
    executor = Executor.create(graph)
    inputs = random_inputs(graph)
    before = {name: array.copy() for name, array in inputs.items()}
    got = executor.run(inputs)
    arrays = list(got.values())
    for i, array in enumerate(arrays):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (*inputs.values(), *arrays[:i]))
    first = {name: array.copy() for name, array in got.items()}
    for array in arrays:
        array[:] = np.nan
    for name, array in executor.run(inputs).items():
        np.testing.assert_array_equal(array, first[name])
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


def test_an_output_may_be_an_input_a_constant_or_a_view_of_either():
    b = GraphBuilder("passthrough")
    x = b.input("x", "f32", (2, 3))
    c = b.constant(np.arange(6, dtype=np.float32).reshape(3, 2), name="c")
    b.output("x", x)
    b.output("c", c)
    b.output("xt", b.add("transpose", [x], perm=(1, 0)))
    b.output("row", b.add("slice", [c], start=(2, 0), limit=(3, 2), strides=(1, 1)))
    graph = b.build()
    executor = Executor.create(graph)
    x_array = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    got = executor.run([x_array])
    np.testing.assert_array_equal(got["x"], x_array)
    np.testing.assert_array_equal(got["xt"], x_array.T)
    np.testing.assert_array_equal(got["row"], [[4, 5]])
    got["c"][:] = 0
    np.testing.assert_array_equal(executor.run([x_array])["c"], np.arange(6).reshape(3, 2))


def test_a_chain_of_views_costs_one_copy_in_all():
    b = GraphBuilder("views")
    x = b.input("x", "f32", (2, 3, 4))
    y = b.add("transpose", [x], perm=(2, 0, 1))
    y = b.add("slice", [y], start=(0, 0, 0), limit=(4, 2, 3), strides=(2, 1, 1))
    y = b.add("reverse", [y], axes=(1,))
    y = b.add("broadcast", [y], shape=(2, 2, 2, 3))
    b.output("y", y)
    executor = Executor.create(b.build())
    assert [step.kernel for step in executor.steps] == ["copy"]
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    want = np.broadcast_to(array.transpose(2, 0, 1)[::2][:, ::-1], (2, 2, 2, 3))
    np.testing.assert_array_equal(executor.run([array])["y"], want)


def test_out_receives_the_results():
    graph = mlp_graph()
    executor, inputs = Executor.create(graph), random_inputs(graph)
    mine = np.full((2, 4), np.nan, np.float32)
    got = executor.run(inputs, out={"y": mine})
    assert got["y"] is mine
    np.testing.assert_array_equal(mine, executor.run(inputs)["y"])


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ({"z": np.empty((2, 4), np.float32)}, "'z' is not an output"),
        ({"y": np.empty((2, 4), np.float64)}, "'y' must be f32[2,4], got f64[2,4]"),
        ({"y": np.empty((4, 2), np.float32).T}, "C-contiguous"),
    ],
)
def test_an_out_array_that_does_not_fit_is_named(out, text):
    graph = mlp_graph()
    with pytest.raises(InputError) as caught:
        Executor.create(graph).run(random_inputs(graph), out=out)
    assert text in str(caught.value)


def test_an_out_array_must_not_overlap_an_input():
    graph = elementwise_graph()
    inputs = random_inputs(graph)
    with pytest.raises(InputError, match="'y' must not overlap"):
        Executor.create(graph).run(inputs, out={"y": inputs["x"]})


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ({}, ["'x' is missing"]),
        ({"x": np.zeros((2, 8), np.float32), "z": 1}, ["'z' is not an input"]),
        ({"x": np.zeros((2, 8))}, ["'x' must be f32[2,8], got f64[2,8]", "astype(np.float32)"]),
        ({"x": np.zeros((2, 9), np.float32)}, ["'x' must be f32[2,8], got f32[2,9]"]),
        ({"x": object()}, ["'x'"]),
        ([], ["takes 1 inputs (x)"]),
        ({"x": np.zeros((2, 8), ">f4")}, ["'x' must be f32[2,8]"]),
    ],
)
def test_a_bad_input_is_named(inputs, texts):
    with pytest.raises(InputError) as caught:
        Executor.create(mlp_graph()).run(inputs)
    assert all(text in str(caught.value) for text in texts)


def test_inputs_may_be_strided_or_buffers():
    graph = mlp_graph()
    executor, inputs = Executor.create(graph), random_inputs(graph)
    want = executor.run(inputs)["y"]
    x = inputs["x"]
    strided = np.empty((8, 2), np.float32).T
    strided[:] = x
    for given_x in (strided, memoryview(x), x[:, ::-1].copy()[:, ::-1]):
        np.testing.assert_array_equal(executor.run({"x": given_x})["y"], want)


def test_a_kernel_error_ends_the_run_and_leaves_the_executor_usable():
    b = GraphBuilder("take")
    x, i = b.input("x", "f32", (5,)), b.input("i", "i64", (2,))
    b.output("y", b.add("take", [x, i], axis=0, oob="error", wrap_negative=False, fill_value=None, name="pick"))
    executor = Executor.create(b.build())
    x_array = np.arange(5, dtype=np.float32)
    with pytest.raises(KernelError, match="take 'pick'"):
        executor.run([x_array, np.array([1, 7])])
    np.testing.assert_array_equal(executor.run([x_array, np.array([1, 4])])["y"], [1, 4])


def test_a_graph_that_does_not_verify_never_becomes_an_executor():
    graph = mlp_graph()
    with pytest.raises(TypeInferenceError):
        Executor.create(graph.with_nodes((replace(graph.nodes[0], attrs={"weight_layout": "io"}), *graph.nodes[1:])))


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": -1}, {"numerics": "sloppy"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError):
        Executor.create(mlp_graph(), **options)


def test_many_threads_may_run_one_executor_at_once():
    graph = cnn_graph(size=12)
    executor = Executor.create(graph)
    inputs = [random_inputs(graph, seed) for seed in range(8)]
    want = [executor.run(one) for one in inputs]
    wrong = []

    def work(index):
        for _ in range(200):
            got = executor.run(inputs[index])
            if any(not np.array_equal(got[name], want[index][name]) for name in got):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_arenas_are_pooled():
    graph = cnn_graph()
    executor, inputs = Executor.create(graph), random_inputs(graph)
    for _ in range(5):
        executor.run(inputs)
    assert executor.pool.misses == 1
    assert executor.pool.hits == 4
    assert executor.pool.bytes_in_use == 0


def test_a_profiled_run_gives_the_same_results_and_a_time_per_step():
    graph = cnn_graph()
    executor, inputs = Executor.create(graph), random_inputs(graph)
    outputs, profile = executor.run_profiled(inputs)
    np.testing.assert_array_equal(outputs["y"], executor.run(inputs)["y"])
    assert [step.label for step in profile.steps] == [step.label for step in executor.steps]
    assert profile.wall_ns == sum(step.wall_ns for step in profile.steps) + profile.gap_ns
    assert profile.gap_ns >= 0
    assert sum(step.nodes for step in profile.steps) == len(graph.nodes)


def test_steps_show_labels_covers_and_kernels():
    b = GraphBuilder("labels")
    x = b.input("x", "f32", (1, 4, 4, 3))
    w = b.constant(np.ones((2, 3, 3, 3), np.float32), name="w")
    y = b.add("conv2d", [x, w, None], strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(1, 1), groups=1, data_layout="NHWC")
    y = b.add("add", [y, b.constant(np.ones(2, np.float32), name="bias")])
    b.output("y", b.add("tanh", [b.add("relu", [y])]))
    graph = b.build()
    fused, plain = Executor.create(graph), Executor.create(graph, fuse=False)
    assert [step.label for step in fused.steps] == ["conv2d+add+relu", "tanh"]
    assert [len(step.covers) for step in fused.steps] == [3, 1]
    assert all(step.native for step in fused.steps)
    assert [step.label for step in plain.steps] == ["conv2d", "add", "relu", "tanh"]


@pytest.mark.parametrize("shape", [(0, 8), (2, 0)])
def test_empty_tensors_run(shape):
    b = GraphBuilder("empty")
    x = b.input("x", "f32", shape)
    w = b.constant(np.ones((3, shape[1]), np.float32), name="w")
    b.output("y", b.add("relu", [b.add("linear", [x, w, None], weight_layout="oi")]))
    np.testing.assert_array_equal(Executor.create(b.build()).run([np.zeros(shape, np.float32)])["y"], np.zeros((shape[0], 3)))


def test_the_committed_models_agree_with_their_goldens():
    data = Path(__file__).parents[1] / "data"
    models = sorted(path.with_suffix("") for path in data.glob("*.json"))
    assert models
    for model in models:
        golden = load_golden(model)
        found = compare_with_golden(Executor.create(load_graph(model)).run(golden.inputs), golden)
        assert found.passed, found.reason


def test_a_steady_run_into_given_arrays_allocates_nothing():
    graph = cnn_graph()
    executor, inputs = Executor.create(graph, threads=1), random_inputs(graph)
    assert all(step.native for step in executor.steps)
    out = executor.run(inputs)

    def run():
        for _ in range(50):
            executor.run(inputs, out=out)

    run()
    misses, held = executor.pool.misses, executor.pool.bytes_held
    tracemalloc.start()
    try:
        run()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        run()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (executor.pool.misses, executor.pool.bytes_held) == (misses, held)
    assert after - before < 512  # nothing stays (but the numbers measured here)
    assert peak - before < 4096  # and what comes and goes are the call's own little objects, not arrays


def test_other_threads_run_python_while_a_run_computes():
    b = GraphBuilder("long")
    x = b.input("x", "f32", (512, 512))
    w = b.constant(np.full((512, 512), 1e-3, np.float32), name="w")
    y = x
    for _ in range(200):
        y = b.add("linear", [y, w, None], weight_layout="oi")
    b.output("y", y)
    executor = Executor.create(b.build(), threads=1)
    started, finished = threading.Event(), []

    def work():
        started.set()
        executor.run([np.ones((512, 512), np.float32)])
        finished.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked to hand over the GIL: this thread gets it only if the run lets go of it
    try:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        came_first = not finished
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert came_first
