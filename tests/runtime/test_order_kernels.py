"""Positions, running results, sorting and suppression in their kernels, against NumPy's, at odd sizes."""

import itertools

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference
from rml_exec.types import DType

RANDOM = np.random.default_rng(7)
DTYPES = ("f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
SHAPES = [((1, 5003), 1), ((300, 21), 1), ((70, 64), 1), ((33, 65), 1), ((21, 305), 0), ((3, 8, 67), 1), ((2, 1, 5), 1), ((7,), 0)]


def _few_values(shape, dtype):
    """Values that repeat; floats with NaN, infinities and zeros of both signs."""
    numpy = DType(dtype).numpy
    if numpy.kind == "f":
        return RANDOM.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e-42, 3.0], numpy), shape)
    info = np.iinfo(numpy)
    return RANDOM.choice(np.array([info.min, info.max, 0, 1, 5, info.max - 3], numpy), shape)


def _check(op, operands, attrs, *, exact=True):
    b = GraphBuilder(op)
    names = [b.input(f"v{i}", DType.of(array.dtype), array.shape) for i, array in enumerate(operands)]
    results = b.add(op, names, **attrs)
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(f"y{index}", value)
    graph, feed = b.build(), {f"v{i}": array for i, array in enumerate(operands)}
    with np.errstate(all="ignore"):
        want = run_reference(graph, feed, precision="f32")
    for threads in (1, 2, 3):
        executor = Executor.create(graph, threads=threads, numerics="exact")
        assert all(step.native for step in executor.steps)
        got = executor.run(feed)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_argreduce(dtype, shape, axis):
    x = _few_values(shape, dtype)
    for kind, tie, nan in itertools.product(("max", "min"), ("first", "last"), ("first", "skip")):
        _check("argreduce", [x], {"kind": kind, "axis": axis, "keepdims": False, "tie": tie, "nan": nan, "index_dtype": "i32"})


def test_argreduce_of_distinct_values_finds_every_position():
    for n in (1, 2, 15, 16, 17, 33, 64, 65, 129):
        x = np.full((n, n), -1.0, np.float32)
        np.fill_diagonal(x, 2.0)
        _check("argreduce", [x], {"kind": "max", "axis": 1, "keepdims": True, "tie": "first", "nan": "first", "index_dtype": "i64"})


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, "f16"])
def test_sort_and_topk(dtype, shape, axis, descending):
    x = _few_values(shape, dtype)
    _check("sort", [x], {"axis": axis, "descending": descending, "stable": True, "index_dtype": "i64"})
    for k in {1, shape[axis] // 3 + 1, shape[axis]}:
        _check("topk", [x], {"k": k, "axis": axis, "largest": descending, "sorted": True, "index_dtype": "i32"})


def test_topk_of_many_distinct_values():
    x = RANDOM.standard_normal((3, 20_011)).astype(np.float32)
    for k in (1, 50, 9_999, 20_011):
        _check("topk", [x], {"k": k, "axis": 1, "largest": True, "sorted": True, "index_dtype": "i64"})


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cumulative(dtype, shape, axis):
    x = _few_values(shape, dtype)
    for kind, exclusive, reverse in itertools.product(("sum", "prod", "max", "min"), (False, True), (False, True)):
        _check("cumulative", [x], {"kind": kind, "axis": axis, "exclusive": exclusive, "reverse": reverse})


def test_cumulative_in_place():
    b = GraphBuilder("in_place")
    attrs = {"kind": "sum", "axis": 1, "exclusive": True, "reverse": True}
    b.output(
        "y", b.add("neg", [b.add("cumulative", [b.add("softmax", [b.input("x", "f32", (33, 65))], axis=1, fully_masked="nan")], **attrs)])
    )
    executor, x = Executor.create(b.build()), RANDOM.standard_normal((33, 65)).astype(np.float32)
    assert any(action.reuses for action in executor.plan.actions)
    want = run_reference(executor.graph, {"x": x}, precision="f64")["y"]
    np.testing.assert_allclose(executor.run({"x": x})["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 31, 33, 700])
@pytest.mark.parametrize("most", [1, 40, 1000])
def test_nms(n, most):
    corner = RANDOM.uniform(0, 40, (n, 2))
    boxes = np.concatenate([corner, corner + RANDOM.uniform(-9, 9, (n, 2))], 1).astype(np.float32)
    scores = RANDOM.choice(np.array([0.1, 0.25, 0.5, 0.75, -0.0, 0.0, np.nan, np.inf], np.float32), n)
    boxes[n // 2] = np.nan
    for threshold in (None, 0.25):
        attrs = {"max_outputs": most, "iou_threshold": 0.3, "score_threshold": threshold, "index_dtype": "i64"}
        _check("nms", [boxes, scores], attrs)
