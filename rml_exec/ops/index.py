"""Ops that read x at positions which another operand holds."""

from __future__ import annotations

import math

import numpy as np

from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import INDICES, axis_in_range, dtype_in, per_axis, representable
from rml_exec.types import DType, TensorType


def positions(indices: np.ndarray, size: int, wrap_negative: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices with negative ones wrapped and all clipped into the axis, and where they are out of its range."""
    wrapped = np.where(indices < 0, indices + size, indices) if wrap_negative else indices
    return np.clip(wrapped, 0, max(size - 1, 0)), (wrapped < 0) | (wrapped >= size)


def refuse_outside(indices: np.ndarray, outside: np.ndarray, axis: int, size: int) -> None:
    """Raises :class:`Rule` naming the first index that is out of range."""
    if np.any(outside):
        raise Rule(f"indices must be in range for axis {axis} of size {size}", indices[outside].flat[0])


def _check_read(x: TensorType, indices: TensorType, oob: str, fill_value: float | None) -> None:
    dtype_in(indices.dtype, INDICES, "element type of indices")
    if (fill_value is None) == (oob == "fill"):
        raise Rule("fill_value must be given for oob fill and null for the others", fill_value)
    if fill_value is not None:
        if x.dtype is DType.BF16:
            raise Rule("bf16 takes oob error and clamp only: NumPy has no bfloat16 for the fill value")
        representable(fill_value, x.dtype, "fill_value")


def _some_in_range(x: TensorType, axis: int, reads: int, oob: str) -> None:
    if x.shape[axis] == 0 and reads and oob != "fill":
        raise Rule(f"axis {axis} is empty, so no index is in range", f"{reads} indices")


def _infer_take(x: TensorType, indices: TensorType, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> TensorType:
    axis_in_range(axis, x.rank)
    _check_read(x, indices, oob, fill_value)
    _some_in_range(x, axis, indices.size, oob)
    return TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _take(x: np.ndarray, indices: np.ndarray, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> np.ndarray:
    at, outside = positions(indices, x.shape[axis], wrap_negative)
    if oob == "error":
        refuse_outside(indices, outside, axis, x.shape[axis])
    if fill_value is None:
        return np.take(x, at, axis)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    if x.shape[axis] == 0:
        return np.full(shape, x.dtype.type(fill_value))
    missing = outside.reshape((1,) * axis + indices.shape + (1,) * (x.ndim - axis - 1))
    return np.where(missing, x.dtype.type(fill_value), np.take(x, at, axis))


def _infer_take_along_axis(
    x: TensorType, indices: TensorType, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None
) -> TensorType:
    along_axis(x, indices, axis)
    _check_read(x, indices, oob, fill_value)
    _some_in_range(x, axis, indices.size, oob)
    return TensorType(x.dtype, indices.shape)


def along_axis(x: TensorType, indices: TensorType, axis: int) -> None:
    """Requires indices of the rank of x and, on every axis but one, at most its size."""
    axis_in_range(axis, x.rank)
    if indices.rank != x.rank:
        raise Rule("indices must have the rank of x", f"ranks {indices.rank} and {x.rank}")
    if any(taken > size for at, (taken, size) in enumerate(zip(indices.shape, x.shape, strict=True)) if at != axis):
        raise Rule(f"on every axis but {axis} indices must be at most the size of x", f"{list(indices.shape)} and {list(x.shape)}")


def _take_along_axis(
    x: np.ndarray, indices: np.ndarray, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None
) -> np.ndarray:
    at, outside = positions(indices, x.shape[axis], wrap_negative)
    if oob == "error":
        refuse_outside(indices, outside, axis, x.shape[axis])
    if x.shape[axis] == 0:
        return np.full(indices.shape, x.dtype.type(fill_value or 0))
    seen = x[tuple(slice(None if i == axis else size) for i, size in enumerate(indices.shape))]
    y = np.take_along_axis(seen, at.astype(np.intp), axis)
    return y if fill_value is None else np.where(outside, x.dtype.type(fill_value), y)


def points(x: TensorType, indices: TensorType, first: int) -> int:
    """Returns how many axes of x, from ``first`` on, the last axis of indices addresses."""
    if not indices.rank:
        raise Rule("indices must have at least 1 axis", "rank 0")
    depth = indices.shape[-1]
    if depth > x.rank - first:
        raise Rule(f"the last axis of indices must be at most the {x.rank - first} axes it can address", depth)
    return depth


def _infer_gather_nd(
    x: TensorType, indices: TensorType, *, batch_dims: int, oob: str, wrap_negative: bool, fill_value: float | None
) -> TensorType:
    if not 0 <= batch_dims <= min(x.rank, indices.rank - 1):
        raise Rule("batch_dims must be at least 0, at most the rank of x and below that of indices", batch_dims)
    if x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise Rule(f"x and indices must agree on the first {batch_dims} axes", f"{list(x.shape)} and {list(indices.shape)}")
    depth = points(x, indices, batch_dims)
    _check_read(x, indices, oob, fill_value)
    for axis in range(batch_dims, batch_dims + depth):
        _some_in_range(x, axis, math.prod(indices.shape[:-1]), oob)
    return TensorType(x.dtype, indices.shape[:-1] + x.shape[batch_dims + depth :])


def coordinates(x: np.ndarray, indices: np.ndarray, first: int, oob: str, wrap_negative: bool) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Returns, for each addressed axis from ``first`` on, the clipped positions, and where any of them is out of range."""
    at, outside = [], np.zeros(indices.shape[:-1], np.bool_)
    for part in range(indices.shape[-1]):
        index, size = indices[..., part], x.shape[first + part]
        clipped, missing = positions(index, size, wrap_negative)
        if oob == "error":
            refuse_outside(index, missing, first + part, size)
        at.append(clipped)
        outside |= missing
    return tuple(at), outside


def _gather_nd(
    x: np.ndarray, indices: np.ndarray, *, batch_dims: int, oob: str, wrap_negative: bool, fill_value: float | None
) -> np.ndarray:
    at, outside = coordinates(x, indices, batch_dims, oob, wrap_negative)
    shape = indices.shape[:-1] + x.shape[batch_dims + len(at) :]
    if 0 in x.shape[batch_dims : batch_dims + len(at)]:
        return np.full(shape, x.dtype.type(fill_value or 0))
    batch = tuple(np.arange(size).reshape((-1,) + (1,) * (indices.ndim - 2 - axis)) for axis, size in enumerate(indices.shape[:batch_dims]))
    y = np.array(np.broadcast_to(x[(*batch, *at)], shape)) if batch or at else np.array(np.broadcast_to(x, shape))
    if fill_value is not None:
        y[outside] = x.dtype.type(fill_value)
    return y


def _infer_dynamic_slice(x: TensorType, start: TensorType, *, sizes: tuple[int, ...]) -> TensorType:
    start_vector(x, start)
    window(x, sizes, "sizes")
    return TensorType(x.dtype, sizes)


def start_vector(x: TensorType, start: TensorType) -> None:
    """Requires one start index per axis of x."""
    dtype_in(start.dtype, INDICES, "element type of start")
    if start.shape != (x.rank,):
        raise Rule(f"start must have the shape [{x.rank}]: one index per axis of x", list(start.shape))


def window(x: TensorType, sizes: tuple[int, ...], name: str) -> None:
    """Requires a window that lies within x somewhere."""
    per_axis(sizes, x.rank, name, 0)
    if any(size > whole for size, whole in zip(sizes, x.shape, strict=True)):
        raise Rule(f"{name} must be at most the sizes of x", f"{list(sizes)} and {list(x.shape)}")


def window_at(start: np.ndarray, sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Returns the window of ``sizes`` that begins at ``start``, moved so that it lies within ``shape``."""
    firsts = [min(max(int(first), 0), whole - size) for first, size, whole in zip(start, sizes, shape, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _some(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_READ = {
    "oob": Attr("str", ("error", "clamp", "fill")),
    "wrap_negative": Attr("bool"),
    "fill_value": Attr("float", optional=True),
}
_STRICT = {"oob": "error", "wrap_negative": False, "fill_value": None}

define(
    name="take",
    inputs=("x", "indices"),
    attrs={"axis": Attr("int"), **_READ},
    infer=_infer_take,
    reference=_take,
    cases=(
        case("scalar-index", (7, 17), np.array(3, np.int32), axis=0, **_STRICT),
        case("embedding", (17, 5), np.array([[0, 16, 3], [2, 2, 9]]), axis=0, **_STRICT),
        case("wrap", (7, 17), _some(-1, 0, -17), axis=1, oob="error", wrap_negative=True, fill_value=None),
        case("clamp", (3, 7, 2), _some(-9, -1, 6, 7), axis=1, oob="clamp", wrap_negative=False, fill_value=None),
        case("fill", (3, 7, 2), _some(-9, -1, 6, 7), axis=1, oob="fill", wrap_negative=True, fill_value=float("nan")),
        case("fill-i32", TensorType(DType.I32, (5,)), _some(4, 5), axis=0, oob="fill", wrap_negative=False, fill_value=-(2.0**31)),
        case("no-indices", (7, 17), np.zeros((0, 3), np.int64), axis=0, **_STRICT),
        case("empty-axis", (0, 3), _some(0, 1), axis=0, oob="fill", wrap_negative=False, fill_value=0.5),
        case("empty-other", (3, 0), _some(0, 2), axis=0, **_STRICT),
        case("tail", (1027,), np.arange(1026, -1, -13), axis=0, **_STRICT),
        case("bf16", TensorType(DType.BF16, (5,)), _some(4, 0), axis=0, oob="clamp", wrap_negative=False, fill_value=None),
    ),
    doc="y[.., i.., ..] = x[.., indices[i..], ..] along axis; shape x[:axis] + indices + x[axis+1:]. With wrap_negative a "
    "negative index first has the size added. What is out of range then is an error of the run (torch, tf), the nearest "
    "valid index (clamp: jax x[i]) or fill_value (jnp.take).",
)

_GRID = np.array([[0, 2, -1], [1, 1, -7], [4, 5, 7]])
define(
    name="take_along_axis",
    inputs=("x", "indices"),
    attrs={"axis": Attr("int"), **_READ},
    infer=_infer_take_along_axis,
    reference=_take_along_axis,
    cases=(
        case("line", (17,), _some(16, 0, 3), axis=0, **_STRICT),
        case("rows", (7, 17), np.arange(21).reshape(7, 3) % 17, axis=1, **_STRICT),
        case("columns", (7, 17), np.arange(85, dtype=np.int32).reshape(5, 17) % 7, axis=0, **_STRICT),
        case("smaller", (5, 7, 9), np.arange(24).reshape(2, 3, 4) % 9, axis=2, **_STRICT),
        case("wrap", (3, 5), np.clip(_GRID, -5, 4), axis=1, oob="error", wrap_negative=True, fill_value=None),
        case("clamp", (3, 5), _GRID, axis=1, oob="clamp", wrap_negative=False, fill_value=None),
        case("fill", (3, 5), _GRID, axis=1, oob="fill", wrap_negative=True, fill_value=float("nan")),
        case("no-indices", (3, 5), np.zeros((3, 0), np.int64), axis=1, **_STRICT),
        case("empty-axis", (3, 0), np.zeros((3, 3), np.int64), axis=1, oob="fill", wrap_negative=False, fill_value=0.5),
        case("i64", TensorType(DType.I64, (3, 5)), np.clip(_GRID, 0, 4), axis=1, **_STRICT),
        case("bf16", TensorType(DType.BF16, (3, 5)), _GRID, axis=1, oob="clamp", wrap_negative=False, fill_value=None),
    ),
    doc="y[i.., j, ..] = x[i.., indices[i.., j, ..], ..] along axis; y has the shape of indices, which has the rank of x and on the other "
    "axes at most its sizes (torch.gather; nothing broadcasts). Indices as in take.",
)

_POINTS = np.array([[0, 1], [2, 3], [-1, 2], [1, 9]])
define(
    name="gather_nd",
    inputs=("x", "indices"),
    attrs={"batch_dims": Attr("int"), **_READ},
    infer=_infer_gather_nd,
    reference=_gather_nd,
    cases=(
        case("elements", (3, 5), np.clip(_POINTS, 0, 2), batch_dims=0, **_STRICT),
        case("rows", (3, 5, 7), np.array([[[0, 4], [2, 2]], [[1, 0], [1, 0]]], np.int32), batch_dims=0, **_STRICT),
        case("one-point", (3, 5), _some(2, 4), batch_dims=0, **_STRICT),
        case("nothing-addressed", (3, 5), np.zeros((7, 0), np.int64), batch_dims=0, **_STRICT),
        case("batch", (2, 5, 3), np.array([[[4], [0], [1]], [[2], [2], [3]]]), batch_dims=1, **_STRICT),
        case("two-batch-axes", (2, 3, 5), np.arange(6).reshape(2, 3, 1) % 5, batch_dims=2, **_STRICT),
        case("wrap", (3, 5), _POINTS[:3], batch_dims=0, oob="error", wrap_negative=True, fill_value=None),
        case("clamp", (3, 5), _POINTS, batch_dims=0, oob="clamp", wrap_negative=False, fill_value=None),
        case("fill", (3, 5, 3), _POINTS, batch_dims=0, oob="fill", wrap_negative=True, fill_value=-2.5),
        case("no-indices", (3, 5), np.zeros((0, 2), np.int64), batch_dims=0, **_STRICT),
        case("empty-axis", (0, 5), np.zeros((3, 1), np.int64), batch_dims=0, oob="fill", wrap_negative=False, fill_value=1.0),
        case("bool", TensorType(DType.BOOL, (3, 5)), _POINTS, batch_dims=0, oob="fill", wrap_negative=False, fill_value=1.0),
    ),
    doc="y[b.., i..] = x[b.., p0, p1, .., :] where p is the point indices[b.., i.., :], one index per axis of x after the batch_dims "
    "shared leading ones; the axes of x that a point leaves out are copied. Shape indices[:-1] + x[batch_dims+D:], D the last axis of "
    "indices. Each index as in take; with fill a point with any index out of range gives fill_value.",
)

define(
    name="dynamic_slice",
    inputs=("x", "start"),
    attrs={"sizes": Attr("ints")},
    infer=_infer_dynamic_slice,
    reference=lambda x, start, *, sizes: x[window_at(start, sizes, x.shape)].copy(),
    cases=(
        case("line", (17,), _some(3), sizes=(5,)),
        case("clamped", (5, 7), _some(4, -2), sizes=(3, 3)),
        case("whole", (3, 5), np.array([2, 2], np.int32), sizes=(3, 5)),
        case("scalar", (), np.zeros(0, np.int64), sizes=()),
        case("nothing", (3, 5), _some(9, 1), sizes=(0, 3)),
        case("empty", (0, 5), _some(0, 1), sizes=(0, 3)),
        case("bf16", TensorType(DType.BF16, (5,)), _some(2), sizes=(3,)),
    ),
    doc="y = the window of sizes of x that begins at start, one index per axis known only at run time. A window that would leave x is "
    "moved back into it: start is clamped to 0 and size of x - sizes, as XLA does; a negative start does not wrap.",
)
