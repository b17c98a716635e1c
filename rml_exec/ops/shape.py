"""Ops that move elements without computing: the views reshape, transpose, broadcast, slice and reverse; concat, pad and iota."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import NUMBERS, axes_in_range, axis_in_range, broadcast, dtype_in, per_axis, representable, same_dtype
from rml_exec.types import DType, TensorType

_I64 = TensorType(DType.I64, (3, 5))


def _infer_reshape(x: TensorType, *, shape: tuple[int, ...]) -> TensorType:
    result = TensorType(x.dtype, shape)
    if min(shape, default=0) < 0:
        raise Rule("shape must be written out, sizes are at least 0", list(shape))
    if result.size != x.size:
        raise Rule(f"shape must hold the {x.size} elements of x", f"{list(shape)} with {result.size}")
    return result


def _infer_transpose(x: TensorType, *, perm: tuple[int, ...]) -> TensorType:
    if sorted(perm) != list(range(x.rank)):
        raise Rule(f"perm must hold each of the {x.rank} axes once", list(perm))
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in perm))


def _infer_broadcast(x: TensorType, *, shape: tuple[int, ...]) -> TensorType:
    if broadcast(x.shape, shape) != shape:
        raise Rule("x must broadcast to exactly shape", f"{list(x.shape)} to {list(shape)}")
    return TensorType(x.dtype, shape)


def _infer_slice(x: TensorType, *, start: tuple[int, ...], limit: tuple[int, ...], strides: tuple[int, ...]) -> TensorType:
    per_axis(start, x.rank, "start", 0)
    per_axis(limit, x.rank, "limit", 0)
    per_axis(strides, x.rank, "strides", 1)
    for axis, (first, end) in enumerate(zip(start, limit, strict=True)):
        if not first <= end <= x.shape[axis]:
            raise Rule(
                f"axis {axis} needs start <= limit <= {x.shape[axis]}",
                f"start {first}, limit {end}",
                "clamp as Python slices do, then export",
            )
    return TensorType(x.dtype, tuple(len(range(*bounds)) for bounds in zip(start, limit, strides, strict=True)))


def _infer_reverse(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    axes_in_range(axes, x.rank)
    return x


define(
    name="reshape",
    inputs=("x",),
    attrs={"shape": Attr("ints")},
    infer=_infer_reshape,
    reference=lambda x, *, shape: x.reshape(shape),
    view=True,
    cases=(
        case("flatten", (3, 5, 7), shape=(105,)),
        case("split", (1027,), shape=(13, 79)),
        case("to-scalar", (1, 1), shape=()),
        case("from-scalar", (), shape=(1,)),
        case("empty", (0, 4), shape=(2, 0, 7)),
        case("i64", _I64, shape=(5, 3)),
        case("bf16", TensorType(DType.BF16, (6,)), shape=(2, 3)),
    ),
    doc="y = the elements of x in row-major order under another shape, which is written out: no -1, and 0 is a size of 0.",
)
define(
    name="transpose",
    inputs=("x",),
    attrs={"perm": Attr("ints")},
    infer=_infer_transpose,
    reference=lambda x, *, perm: x.transpose(perm),
    view=True,
    cases=(
        case("scalar", (), perm=()),
        case("matrix", (7, 17), perm=(1, 0)),
        case("to-nhwc", (2, 3, 5, 7), perm=(0, 2, 3, 1)),
        case("identity", (3, 5), perm=(0, 1)),
        case("empty", (0, 4, 3), perm=(2, 0, 1)),
        case("i64", _I64, perm=(1, 0)),
    ),
    doc="Axis i of y is axis perm[i] of x.",
)
define(
    name="broadcast",
    inputs=("x",),
    attrs={"shape": Attr("ints")},
    infer=_infer_broadcast,
    reference=lambda x, *, shape: np.broadcast_to(x, shape),
    view=True,
    cases=(
        case("scalar", (), shape=(7, 17)),
        case("scalar-to-scalar", (), shape=()),
        case("row", (17,), shape=(7, 17)),
        case("column", (7, 1), shape=(2, 7, 17)),
        case("to-empty", (1, 4), shape=(0, 4)),
        case("i64", _I64, shape=(2, 3, 5)),
    ),
    doc="y = x stretched to shape by NumPy's rule: axes align at the right, an axis of size 1 or a missing one repeats.",
)
define(
    name="slice",
    inputs=("x",),
    attrs={"start": Attr("ints"), "limit": Attr("ints"), "strides": Attr("ints")},
    infer=_infer_slice,
    reference=lambda x, *, start, limit, strides: x[tuple(map(slice, start, limit, strides)) or ...],
    view=True,
    cases=(
        case("scalar", (), start=(), limit=(), strides=()),
        case("middle", (7, 17), start=(1, 3), limit=(6, 16), strides=(1, 1)),
        case("steps", (7, 17), start=(0, 1), limit=(7, 17), strides=(3, 5)),
        case("nothing", (7, 17), start=(2, 4), limit=(2, 9), strides=(1, 1)),
        case("empty", (0, 4), start=(0, 0), limit=(0, 4), strides=(1, 2)),
        case("tail", (1027,), start=(3,), limit=(1027,), strides=(4,)),
        case("i64", _I64, start=(1, 0), limit=(3, 5), strides=(1, 2)),
    ),
    doc="y = x[start:limit:strides] on every axis, with 0 <= start <= limit <= size and strides of at least 1. Going backwards "
    "is ``reverse``.",
)
define(
    name="reverse",
    inputs=("x",),
    attrs={"axes": Attr("ints")},
    infer=_infer_reverse,
    reference=lambda x, *, axes: x[tuple(slice(None, None, -1 if axis in axes else 1) for axis in range(x.ndim)) or ...],
    view=True,
    cases=(
        case("scalar", (), axes=()),
        case("one", (7, 17), axes=(1,)),
        case("both", (7, 17), axes=(0, 1)),
        case("none", (7,), axes=()),
        case("empty", (0, 4), axes=(0,)),
        case("i64", _I64, axes=(0,)),
    ),
    doc="y = x with the order of elements along each of axes turned round.",
)


def _infer_concat(*xs: TensorType, axis: int) -> TensorType:
    if not xs:
        raise Rule("needs at least one operand")
    dtype = same_dtype(*xs)
    axis_in_range(axis, xs[0].rank)
    for index, x in enumerate(xs):
        if x.rank != xs[0].rank or any(a != b for i, (a, b) in enumerate(zip(x.shape, xs[0].shape, strict=True)) if i != axis):
            raise Rule(f"operands must agree on every axis but {axis}", f"xs[{index}] {list(x.shape)} and xs[0] {list(xs[0].shape)}")
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return TensorType(dtype, tuple(shape))


define(
    name="concat",
    inputs=("xs*",),
    attrs={"axis": Attr("int")},
    infer=_infer_concat,
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    cases=(
        case("one", (7,), axis=0),
        case("two", (7, 3), (7, 17), axis=1),
        case("three", (1, 5), (2, 5), (3, 5), axis=0),
        case("with-empty", (0, 5), (2, 5), axis=0),
        case("empty", (0, 0), (0, 3), axis=1),
        case("tail", (1027,), (1,), axis=0),
        case("i64", _I64, _I64, axis=1),
        case("bf16", TensorType(DType.BF16, (3,)), TensorType(DType.BF16, (2,)), axis=0),
    ),
    doc="y = the operands one after the other along axis; they agree in element type and in every other axis.",
)


def _source_indices(size: int, low: int, high: int, interior: int, mode: str) -> np.ndarray:
    """For each position along one padded axis, the position of x it takes, or -1 for the pad value."""
    stretched = max(0, size + (size - 1) * interior) if size else 0
    position = np.arange(-low, stretched + high)
    if mode == "edge":
        return np.clip(position, 0, size - 1)
    if mode == "reflect":
        position = np.abs(position)
        return np.where(position >= size, 2 * (size - 1) - position, position)
    inside = (position >= 0) & (position < stretched) & (position % (interior + 1) == 0)
    return np.where(inside, position // (interior + 1), -1)


def _pad(
    x: np.ndarray, *, mode: str, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...], value: float | None
) -> np.ndarray:
    result = x
    for axis, (size, before, after, between) in enumerate(zip(x.shape, low, high, interior, strict=True)):
        source = _source_indices(size, before, after, between, mode)
        if size == 0:
            shape = (*result.shape[:axis], len(source), *result.shape[axis + 1 :])
            result = np.full(shape, x.dtype.type(value or 0))
            continue
        result = np.take(result, np.maximum(source, 0), axis)
        if value is not None and np.any(source < 0):
            result[(slice(None),) * axis + (source < 0,)] = x.dtype.type(value)
    return result.copy() if result is x else result


def _infer_pad(
    x: TensorType, *, mode: str, low: Sequence[int], high: Sequence[int], interior: Sequence[int], value: float | None
) -> TensorType:
    per_axis(low, x.rank, "low")
    per_axis(high, x.rank, "high")
    per_axis(interior, x.rank, "interior", 0)
    if (value is None) == (mode == "constant"):
        raise Rule("value must be given for mode constant and null for the others", value)
    if value is not None:
        if x.dtype is DType.BF16:
            raise Rule("bf16 takes the modes reflect and edge only: NumPy has no bfloat16 for the value")
        representable(value, x.dtype, "value")
    elif any(interior):
        raise Rule("interior padding needs mode constant", list(interior))
    shape = []
    for axis, (size, before, after, between) in enumerate(zip(x.shape, low, high, interior, strict=True)):
        room = size - 1 if mode == "reflect" else None
        if room is not None and max(before, after) > max(room, 0):
            raise Rule(f"axis {axis} reflects at most {max(room, 0)} elements", f"low {before}, high {after}")
        padded = size + max(0, size - 1) * between + before + after
        if padded < 0:
            raise Rule(f"axis {axis} is cropped by more than it has", f"low {before}, high {after}, size {size}")
        if mode == "edge" and size == 0 and padded:
            raise Rule(f"axis {axis} has no edge to repeat", f"size 0, low {before}, high {after}")
        shape.append(padded)
    return TensorType(x.dtype, tuple(shape))


define(
    name="pad",
    inputs=("x",),
    attrs={
        "mode": Attr("str", ("constant", "reflect", "edge")),
        "low": Attr("ints"),
        "high": Attr("ints"),
        "interior": Attr("ints"),
        "value": Attr("float", optional=True),
    },
    infer=_infer_pad,
    reference=_pad,
    cases=(
        case("scalar", (), mode="constant", low=(), high=(), interior=(), value=1.0),
        case("constant", (3, 5), mode="constant", low=(1, 0), high=(2, 3), interior=(0, 0), value=-1.5),
        case("none", (3, 5), mode="constant", low=(0, 0), high=(0, 0), interior=(0, 0), value=0.0),
        case("infinite", (7,), mode="constant", low=(1,), high=(1,), interior=(0,), value=float("-inf")),
        case("interior", (3, 5), mode="constant", low=(0, 1), high=(1, -2), interior=(2, 1), value=0.5),
        case("crop", (7, 17), mode="constant", low=(-2, 3), high=(-1, -4), interior=(0, 0), value=0.0),
        case("empty", (0, 4), mode="constant", low=(1, 0), high=(1, 2), interior=(3, 0), value=2.0),
        case("to-empty", (7, 3), mode="constant", low=(-7, 1), high=(0, 0), interior=(0, 0), value=0.0),
        case("reflect", (4, 5), mode="reflect", low=(3, 1), high=(2, 4), interior=(0, 0), value=None),
        case("reflect-crop", (7,), mode="reflect", low=(-2,), high=(3,), interior=(0,), value=None),
        case("edge", (3, 5), mode="edge", low=(2, 0), high=(0, 7), interior=(0, 0), value=None),
        case("i64", _I64, mode="constant", low=(1, 1), high=(0, 0), interior=(0, 0), value=-7.0),
        case("bool", TensorType(DType.BOOL, (5,)), mode="constant", low=(1,), high=(2,), interior=(0,), value=1.0),
    ),
    doc="y = x with low positions before and high after each axis and interior between neighbours. mode constant: they hold "
    "value; reflect: x mirrored without repeating its edge, at most size - 1 of it; edge: the edge repeated. Negative low "
    "or high crop: position i of y is position i - low of the padded x.",
)


def _infer_iota(*, dtype: str, shape: tuple[int, ...], axis: int) -> TensorType:
    dtype_in(DType(dtype), NUMBERS, "dtype")
    if min(shape, default=0) < 0:
        raise Rule("sizes are at least 0", list(shape))
    axis_in_range(axis, len(shape))
    return TensorType(DType(dtype), shape)


def _iota(*, dtype: str, shape: tuple[int, ...], axis: int) -> np.ndarray:
    line = np.arange(shape[axis]).astype(DType(dtype).numpy)
    return np.broadcast_to(line.reshape([-1] + [1] * (len(shape) - axis - 1)), shape).copy()


define(
    name="iota",
    inputs=(),
    attrs={"dtype": Attr("dtype"), "shape": Attr("ints"), "axis": Attr("int")},
    infer=_infer_iota,
    reference=_iota,
    cases=(
        case("line", dtype="i64", shape=(17,), axis=0),
        case("rows", dtype="f32", shape=(3, 5), axis=0),
        case("columns", dtype="i32", shape=(3, 5), axis=1),
        case("empty", dtype="i32", shape=(0, 4), axis=1),
        case("f64", dtype="f64", shape=(2, 1027), axis=1),
    ),
    doc="y has the given element type and shape and holds, at each position, its index along axis. Steps and offsets are "
    "``mul`` and ``add``.",
)
