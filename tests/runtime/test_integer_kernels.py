"""Elementwise ops, selections and reductions of integers, and reductions of short rows, in their kernels against NumPy's."""

import itertools

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference
from rml_exec.types import DType

RANDOM = np.random.default_rng(8)
DTYPES = ("i8", "i16", "i64", "u8", "u16", "u32", "u64")
SHAPES = [((7,), (7,)), ((33, 65), (65,)), ((1, 300), (70, 1)), ((2, 3, 1000), (2, 3, 1000)), ((), (5, 1))]


def _values(shape, dtype):
    numpy = DType(dtype).numpy
    if numpy.kind == "f":
        return RANDOM.standard_normal(shape).astype(numpy)
    if numpy.kind == "b":
        return RANDOM.integers(0, 2, shape).astype(numpy)
    info = np.iinfo(numpy)
    values = RANDOM.integers(info.min, info.max, shape, numpy, endpoint=True)
    return np.where(RANDOM.integers(0, 2, shape), values, RANDOM.choice(np.array([info.min, info.max, 0, 1, 2], numpy), shape)).astype(
        numpy
    )


def _check(op, operands, attrs, *, constants=(), kernel, views=False):
    b = GraphBuilder(op)
    names, feed = [], {}
    for i, array in enumerate(operands):
        if i in constants:
            names.append(b.constant(array, name=f"c{i}", key=f"c{i}"))
            continue
        feed[f"v{i}"] = np.array(array.T, order="C") if views else array
        name = b.input(f"v{i}", DType.of(array.dtype), feed[f"v{i}"].shape)
        names.append(b.add("transpose", [name], perm=tuple(reversed(range(array.ndim)))) if views else name)
    b.output("y", b.add(op, names, **attrs))
    graph = b.build()
    with np.errstate(all="ignore"):
        want = run_reference(graph, feed, precision="f32")["y"]
    for threads in (1, 2, 3):
        executor = Executor.create(graph, threads=threads, numerics="exact")
        assert all(step.native for step in executor.steps)
        assert any(kernel in step.kernel.split(",") for step in executor.steps)
        np.testing.assert_array_equal(executor.run(feed)["y"], want)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_operations(dtype, shapes):
    operands = [_values(shape, dtype) for shape in shapes]
    for op in ("add", "sub", "mul", "max", "min", "and", "or", "xor"):
        _check(op, operands, {}, kernel="integers")
    for direction in ("eq", "ne", "lt", "le", "gt", "ge"):
        _check("compare", operands, {"dir": direction}, kernel="integers")
    _check("select", [_values(shapes[1], "bool"), *operands], {}, kernel="select")
    _check("sub", operands, {}, kernel="integers", views=True)


@pytest.mark.parametrize("dtype", [*DTYPES, "i32"])
def test_division_by_constants(dtype):
    a = _values((70, 33), dtype)
    for divisor in (1, 7, 100, *((-1, -7) if dtype[0] == "i" else ())):
        b = np.array(divisor, DType(dtype).numpy)
        for op, attrs in (
            ("div", {"rounding": "floor"}),
            ("div", {"rounding": "trunc"}),
            ("rem", {"sign": "divisor"}),
            ("rem", {"sign": "dividend"}),
        ):
            _check(op, [a, b], attrs, constants=(1,), kernel="integers")


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_with_a_number(dtype):
    x = _values((5, 401), dtype)
    for op, attrs in (("neg", {}), ("not", {}), ("relu", {}), ("clamp", {"lo": 3.0, "hi": 100.0}), ("clamp", {"lo": None, "hi": 5.0})):
        _check(op, [x], attrs, kernel="integers")


@pytest.mark.parametrize(
    ("shape", "axes"), [((7, 1031), (1,)), ((1031, 7), (0,)), ((3, 65, 130), (1,)), ((5, 6, 7), (0, 2)), ((3, 1), (1,))], ids=str
)
@pytest.mark.parametrize("dtype", [*DTYPES, "i32", "bool"])
def test_reductions(dtype, shape, axes):
    x = _values(shape, dtype)
    for kind in ("any", "all") if dtype == "bool" else ("sum", "prod", "max", "min"):
        attrs = {"kind": kind, "axes": axes, "keepdims": True, "nan": "propagate", "empty": "error"}
        _check("reduce", [x], attrs, kernel="reduce_integers")


def _reduced(x, kind, nan):
    b = GraphBuilder("reduce")
    attrs = {"kind": kind, "axes": (1,), "keepdims": False, "nan": nan, "empty": "error"}
    b.output("y", b.add("reduce", [b.input("x", "f32", x.shape)], **attrs))
    return Executor.create(b.build(), numerics="exact").run({"x": x})["y"]


@pytest.mark.parametrize("n", range(1, 9))
def test_short_rows_have_the_bits_of_rows_filled_up_with_what_changes_nothing(n):
    """Rows of up to 8 have a way of their own; filled up to 9, the same elements go the way of long rows."""
    x = (RANDOM.standard_normal((1003, n)) * 10.0 ** RANDOM.integers(-3, 4, (1003, n))).astype(np.float32)
    x[::10, -1], x[::11, 0] = np.nan, -0.0
    for (kind, nothing), nan in itertools.product((("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf)), ("propagate", "skip")):
        filled = np.concatenate([x, np.full((1003, 9 - n), nothing, np.float32)], 1)
        got, want = _reduced(x, kind, nan), _reduced(filled, kind, nan)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert got[~np.isnan(got)].tobytes() == want[~np.isnan(want)].tobytes()
