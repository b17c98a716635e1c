"""Gathers, scatters and windows in their kernels: large and odd sizes, repeated and bad indices, in place."""

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.errors import KernelError
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference

RANDOM = np.random.default_rng(6)
READ = {"oob": "error", "wrap_negative": True, "fill_value": None}
WRITE = {"oob": "error", "wrap_negative": True}


def _values(shape, dtype="f32"):
    if dtype == "f32":
        return RANDOM.standard_normal(shape).astype(np.float32)
    return RANDOM.integers(-100, 100, shape).astype({"i64": np.int64, "i32": np.int32, "u8": np.uint8, "f64": np.float64}[dtype])


def _graph(op, operands, attrs, *, in_place=False):
    """Returns a graph of one node; ``in_place`` makes its first operand and its result values inside the graph."""
    b = GraphBuilder(op)
    names = [b.input(f"v{i}", str(_DTYPES[array.dtype]), array.shape) for i, array in enumerate(operands)]
    if in_place:
        names[0] = b.add("reverse", names[:1], axes=(0,))
        names[0] = b.add("reshape", names[:1], shape=(*operands[0].shape[1:], operands[0].shape[0]))  # a copy: strides cannot express it
    y = b.add(op, names, **attrs)
    b.output("y", b.add("select", [b.add("compare", [y, y], dir="eq"), y, y]) if in_place else y)
    return b.build()


_DTYPES = {
    np.dtype(name): short for name, short in (("f4", "f32"), ("f8", "f64"), ("i8", "i64"), ("i4", "i32"), ("u1", "u8"), ("?", "bool"))
}


def _check(op, operands, attrs, kernels, *, in_place=False):
    graph = _graph(op, operands, attrs, in_place=in_place)
    feed = {f"v{i}": array for i, array in enumerate(operands)}
    want = run_reference(graph, feed, precision="f32")["y"]
    for threads in (1, 2, 3):
        executor = Executor.create(graph, threads=threads)
        assert kernels in [step.kernel for step in executor.steps]
        if in_place:
            assert any(action.reuses for action in executor.plan.actions)
        np.testing.assert_array_equal(executor.run(feed)["y"], want)


@pytest.mark.parametrize("dtype", ["f32", "u8", "i64"])
@pytest.mark.parametrize(
    ("shape", "points", "batch_dims"), [((7, 5, 3), (4001, 2), 0), ((31, 257), (3, 11, 1), 0), ((3, 5, 17), (3, 700, 1), 1)]
)
def test_gather_nd(shape, points, batch_dims, dtype):
    sizes = shape[batch_dims : batch_dims + points[-1]]
    indices = np.stack([RANDOM.integers(-size, size, points[:-1]) for size in sizes], -1)
    _check("gather_nd", [_values(shape, dtype), indices], {"batch_dims": batch_dims, **READ}, "gather_nd")


@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
@pytest.mark.parametrize(
    ("shape", "taken", "axis"), [((9, 1031), (7, 5003), 1), ((1031, 9), (5003, 7), 0), ((5, 7, 65), (5, 300, 13), 1), ((17,), (3,), 0)]
)
def test_take_along_axis(shape, taken, axis, index_dtype):
    indices = RANDOM.integers(-shape[axis], shape[axis], taken).astype(index_dtype.replace("i", "int"))
    _check("take_along_axis", [_values(shape), indices], {"axis": axis, **READ}, "take_along")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "u8"])
@pytest.mark.parametrize("reduce", ["none", "add", "mul", "max", "min"])
def test_scatters_make_updates_in_order(reduce, dtype, in_place):
    x, attrs = _values((13, 37), dtype), {"reduce": reduce, **WRITE}
    shape = (37, 13) if in_place else (13, 37)
    points = np.stack([RANDOM.integers(-size, size, 999) for size in shape], -1)  # every element twice, on average
    with np.errstate(all="ignore"):
        _check("scatter_nd", [x, points, _values((999,), dtype)], attrs, "check_indices,copy,scatter_nd", in_place=in_place)
        rows = RANDOM.integers(0, shape[0], (50, 1))
        _check("scatter_nd", [x, rows, _values((50, shape[1]), dtype)], attrs, "check_indices,copy,scatter_nd", in_place=in_place)
        for axis in (0, 1):
            along = (101, shape[1] - 2) if axis == 0 else (shape[0] - 2, 101)
            indices = RANDOM.integers(-shape[axis], shape[axis], along)
            operands = [x, indices, _values(along, dtype)]
            _check("scatter_along_axis", operands, {"axis": axis, **attrs}, "check_indices,copy,scatter_along", in_place=in_place)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [37, -38, 2**40])
@pytest.mark.parametrize("op", ["take_along_axis", "gather_nd", "scatter_along_axis", "scatter_nd"])
def test_an_index_out_of_range_is_named_and_no_harm_done(op, bad, threads):
    """In place as well, where the operand must not be overwritten before the bad index is found."""
    x, indices = _values((13, 37)), np.zeros((37, 13), np.int64)
    if op == "scatter_nd":
        operands, attrs = [x, indices.reshape(-1, 1), _values((481, 13))], {"reduce": "add"}
    elif op == "gather_nd":
        operands, attrs = [x, indices.reshape(-1, 1)], {"batch_dims": 0, "fill_value": None}
    elif op == "scatter_along_axis":
        operands, attrs = [x, indices, _values((37, 13))], {"reduce": "add", "axis": 0}
    else:
        operands, attrs = [x, indices], {"axis": 0, "fill_value": None}
    executor = Executor.create(_graph(op, operands, {**attrs, "oob": "error", "wrap_negative": True}, in_place=True), threads=threads)
    feed = {f"v{i}": array for i, array in enumerate(operands)}
    want = executor.run(feed)["y"]
    operands[1].flat[-1] = bad
    with pytest.raises(KernelError, match=rf"axis 0 of size 37; got {bad}"):
        executor.run(feed)
    operands[1].flat[-1] = 0
    np.testing.assert_array_equal(executor.run(feed)["y"], want)


@pytest.mark.parametrize("dtype", ["f32", "u8", "i64"])
@pytest.mark.parametrize(
    ("shape", "window"), [((3, 65, 17), (3, 1, 17)), ((3, 65, 17), (2, 31, 5)), ((9001,), (8000,)), ((5, 7, 9, 11), (5, 3, 9, 11))]
)
def test_windows_move_back_into_range(shape, window, dtype):
    x, update = _values(shape, dtype), _values(window, dtype)
    for start in (0, 1, -3, 10**12):
        first = np.full(len(shape), start)
        _check("dynamic_slice", [x, first], {"sizes": window}, "window")
        _check("dynamic_update_slice", [x, update, first], {}, "copy,window")
    if len(shape) > 1:
        turned = tuple(min(size, most) for size, most in zip(window, (*shape[1:], shape[0]), strict=True))
        _check("dynamic_update_slice", [x, _values(turned, dtype), np.ones(len(shape), np.int32)], {}, "copy,window", in_place=True)
