"""``take`` in its kernel: rows of every width and element type, and indices that are out of range."""

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.errors import KernelError
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference


def _graph(shape, count, axis=0, dtype="f32", index_dtype="i64", **attrs):
    b = GraphBuilder("take")
    operands = [b.input("x", dtype, shape), b.input("indices", index_dtype, count)]
    given = {"oob": "error", "wrap_negative": False, "fill_value": None, **attrs}
    b.output("y", b.add("take", operands, axis=axis, **given))
    return b.build()


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "i64", "bool"])
@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((7, 1), 0), ((5, 7), 1), ((3, 7, 17), 1), ((211, 65), 0), ((0, 7, 3), 1)])
@pytest.mark.parametrize("count", [(), (0,), (1,), (13,), (2, 67)])
def test_rows_of_every_kind(shape, axis, dtype, index_dtype, count):
    graph = _graph(shape, count, axis, dtype, index_dtype, wrap_negative=True)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(graph.inputs[0].type.dtype.numpy)
    indices = rng.integers(-shape[axis], shape[axis], count).astype(graph.inputs[1].type.dtype.numpy)
    for threads in (1, 2):
        executor = Executor.create(graph, threads=threads)
        np.testing.assert_array_equal(executor.run({"x": x, "indices": indices})["y"], np.take(x, indices, axis))


@pytest.mark.parametrize(
    "attrs", [{"oob": "clamp"}, {"oob": "fill", "fill_value": 7.5}, {"oob": "fill", "fill_value": float("nan")}], ids=str
)
@pytest.mark.parametrize("wrap_negative", [False, True])
def test_indices_out_of_range(attrs, wrap_negative):
    graph = _graph((5, 3), (9,), wrap_negative=wrap_negative, **attrs)
    x, indices = np.arange(15, dtype=np.float32).reshape(5, 3), np.array([0, 4, 5, -1, -5, -6, 2**62, -(2**62), 3])
    want = run_reference(graph, {"x": x, "indices": indices}, precision="f32")["y"]
    np.testing.assert_array_equal(Executor.create(graph).run({"x": x, "indices": indices})["y"], want)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [5, -1, 2**40])
def test_an_index_out_of_range_is_named(threads, bad):
    graph = _graph((5, 3), (20_000,))
    executor, x, indices = Executor.create(graph, threads=threads), np.ones((5, 3), np.float32), np.zeros(20_000, np.int64)
    assert [step.kernel for step in executor.steps] == ["take"]
    indices[19_999] = bad
    with pytest.raises(KernelError, match=rf"take .*axis 0 of size 5; got {bad}"):
        executor.run({"x": x, "indices": indices})
    indices[19_999] = 4
    assert executor.run({"x": x, "indices": indices})["y"].all()
