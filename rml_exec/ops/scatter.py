"""Ops that write into a copy of x at positions which another operand holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rml_exec.ops.index import along_axis, coordinates, points, positions, refuse_outside, start_vector, window, window_at
from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import INDICES, NUMBERS, dtype_in, same_dtype
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType

_REDUCTIONS: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_write(x: TensorType, indices: TensorType, updates: TensorType, shape: tuple[int, ...], reduce: str) -> None:
    dtype_in(indices.dtype, INDICES, "element type of indices")
    same_dtype(x, updates)
    if reduce != "none":
        dtype_in(x.dtype, NUMBERS, f"element type for reduce {reduce}")
    if updates.shape != shape:
        raise Rule(f"updates must have the shape {list(shape)}", list(updates.shape))


def _write(x: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, reduce: str) -> np.ndarray:
    """Returns x with updates at the positions, in row-major order: the last one of equal positions stays."""
    y = x.copy()
    if reduce == "none":
        y[at] = updates
    else:
        _REDUCTIONS[reduce].at(y, at, updates)
    return y


def _infer_scatter_along_axis(
    x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, reduce: str, oob: str, wrap_negative: bool
) -> TensorType:
    along_axis(x, indices, axis)
    _check_write(x, indices, updates, indices.shape, reduce)
    if x.shape[axis] == 0 and indices.size and oob != "drop":
        raise Rule(f"axis {axis} is empty, so no index is in range", f"{indices.size} indices")
    return x


@half_in_single
def _scatter_along_axis(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int, reduce: str, oob: str, wrap_negative: bool
) -> np.ndarray:
    at, outside = positions(indices, x.shape[axis], wrap_negative)
    if oob == "error":
        refuse_outside(indices, outside, axis, x.shape[axis])
    full = np.indices(at.shape)
    full[axis] = at
    kept = ~outside if oob == "drop" else np.ones(at.shape, np.bool_)
    return _write(x, tuple(full[:, kept]), updates[kept], reduce)


def _infer_scatter_nd(x: TensorType, indices: TensorType, updates: TensorType, *, reduce: str, oob: str, wrap_negative: bool) -> TensorType:
    depth = points(x, indices, 0)
    _check_write(x, indices, updates, indices.shape[:-1] + x.shape[depth:], reduce)
    written = math.prod(indices.shape[:-1])
    if 0 in x.shape[:depth] and written and oob != "drop":
        raise Rule("an addressed axis of x is empty, so no index is in range", f"{list(x.shape[:depth])}, {written} points")
    return x


@half_in_single
def _scatter_nd(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, reduce: str, oob: str, wrap_negative: bool) -> np.ndarray:
    at, outside = coordinates(x, indices, 0, oob, wrap_negative)
    kept = ~outside if oob == "drop" else np.ones(outside.shape, np.bool_)
    if not at:  # every point is all of x
        y = x.copy()
        for update in updates.reshape(-1, *x.shape):
            y = update.copy() if reduce == "none" else _REDUCTIONS[reduce](y, update)
        return y
    return _write(x, tuple(index[kept] for index in at), updates[kept], reduce)


def _infer_dynamic_update_slice(x: TensorType, update: TensorType, start: TensorType) -> TensorType:
    same_dtype(x, update)
    start_vector(x, start)
    window(x, update.shape, "the sizes of update")
    return x


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, start: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[window_at(start, update.shape, x.shape)] = update
    return y


def _updates(types: Any, outputs: Any, attrs: Any) -> int:
    return int(types[2].size) if attrs["reduce"] != "none" else 0


_WRITE = {
    "reduce": Attr("str", ("none", *_REDUCTIONS)),
    "oob": Attr("str", ("error", "clamp", "drop")),
    "wrap_negative": Attr("bool"),
}


def _attrs(reduce: str = "none", oob: str = "error", wrap_negative: bool = False) -> dict[str, Any]:
    return {"reduce": reduce, "oob": oob, "wrap_negative": wrap_negative}


_SUMMED = Tolerance(rtol=1e-6, atol_rms=1e-6)
_GRID = np.array([[0, 2, -1], [1, 1, -7], [4, 5, 7]])
_IN_RANGE = np.clip(_GRID, 0, 4)
_I32, _HALF = TensorType(DType.I32, (3, 5)), TensorType(DType.F16, (3, 5))

define(
    name="scatter_along_axis",
    inputs=("x", "indices", "updates"),
    attrs={"axis": Attr("int"), **_WRITE},
    infer=_infer_scatter_along_axis,
    reference=_scatter_along_axis,
    inplace=((0, 0),),
    flops=_updates,
    tolerance=_SUMMED,
    cases=(
        *(case(f"repeats-{reduce}", (3, 5), _IN_RANGE, (3, 3), axis=1, **_attrs(reduce)) for reduce in ("none", *_REDUCTIONS)),
        case("columns", (7, 17), np.arange(85, dtype=np.int32).reshape(5, 17) % 7, (5, 17), axis=0, **_attrs()),
        case("smaller", (5, 7, 9), np.arange(24).reshape(2, 3, 4) % 9, (2, 3, 4), axis=2, **_attrs()),
        case("wrap", (3, 5), np.clip(_GRID, -5, 4), (3, 3), axis=1, **_attrs("max", wrap_negative=True)),
        case("clamp", (3, 5), _GRID, (3, 3), axis=1, **_attrs(oob="clamp")),
        case("drop", (3, 5), _GRID, (3, 3), axis=1, **_attrs("add", "drop", True)),
        case("no-indices", (3, 5), np.zeros((3, 0), np.int64), (3, 0), axis=1, **_attrs()),
        case("empty", (0, 5), np.zeros((0, 5), np.int64), (0, 5), axis=0, **_attrs()),
        case("empty-axis", (3, 0), np.zeros((3, 2), np.int64), (3, 2), axis=1, **_attrs(oob="drop")),
        case("i32", _I32, _IN_RANGE, TensorType(DType.I32, (3, 3)), axis=1, **_attrs("mul")),
        case("f16", _HALF, np.zeros((3, 3), np.int64), TensorType(DType.F16, (3, 3)), axis=1, **_attrs("add")),
        case("bool", TensorType(DType.BOOL, (3, 5)), _IN_RANGE, TensorType(DType.BOOL, (3, 3)), axis=1, **_attrs()),
    ),
    doc="y = x with y[i.., indices[i.., j, ..], ..] made updates[i.., j, ..] (none) or combined with it along axis: add, mul, max, min "
    "(NaN wins). indices have the rank of x and on the other axes at most its sizes, updates the shape of indices. Of several updates of "
    "one element all count, one after the other in row-major order; with none the last one stays (the frameworks leave that open). "
    "Negative indices as in take; out of range is an error of the run (torch, tf), the nearest index (clamp) or no update (drop: jax).",
)

_POINTS = np.array([[0, 1], [2, 3], [0, 1], [-1, 2], [1, 9]])
_VALID = np.clip(_POINTS, 0, 2)
define(
    name="scatter_nd",
    inputs=("x", "indices", "updates"),
    attrs=_WRITE,
    infer=_infer_scatter_nd,
    reference=_scatter_nd,
    inplace=((0, 0),),
    flops=_updates,
    tolerance=_SUMMED,
    cases=(
        *(case(f"repeats-{reduce}", (3, 5), _VALID, (5,), **_attrs(reduce)) for reduce in ("none", *_REDUCTIONS)),
        case("rows", (3, 5, 7), np.array([[[2], [0]], [[1], [2]]], np.int32), (2, 2, 5, 7), **_attrs("add")),
        case("wrap", (3, 5), _POINTS[:4], (4,), **_attrs(wrap_negative=True)),
        case("clamp", (3, 5), _POINTS, (5,), **_attrs(oob="clamp")),
        case("drop", (3, 5, 3), _POINTS, (5, 3), **_attrs("max", "drop", True)),
        case("nothing-addressed", (3, 5), np.zeros((2, 0), np.int64), (2, 3, 5), **_attrs("add")),
        case("no-points", (3, 5), np.zeros((0, 2), np.int64), (0,), **_attrs()),
        case("empty", (0, 5), np.zeros((3, 1), np.int64), (3, 5), **_attrs(oob="drop")),
        case("i32", _I32, _VALID, TensorType(DType.I32, (5,)), **_attrs("add")),
        case("f16", _HALF, _VALID, TensorType(DType.F16, (5,)), **_attrs("add")),
    ),
    doc="y = x with y[p0, p1, .., :] made updates[i.., :] (none) or combined with it (add, mul, max, min) for each point p = indices[i.., "
    ":], one index per leading axis of x. updates have the shape indices[:-1] + x[D:], D the last axis of indices. Repeated points, "
    "negative and out-of-range indices as in scatter_along_axis; a point with any index out of range is dropped whole.",
)
define(
    name="dynamic_update_slice",
    inputs=("x", "update", "start"),
    infer=_infer_dynamic_update_slice,
    reference=_dynamic_update_slice,
    inplace=((0, 0),),
    cases=(
        case("line", (17,), (5,), np.array([3])),
        case("clamped", (5, 7), (3, 3), np.array([4, -2])),
        case("whole", (3, 5), (3, 5), np.array([2, 2], np.int32)),
        case("scalar", (), (), np.zeros(0, np.int64)),
        case("nothing", (3, 5), (0, 3), np.array([9, 1])),
        case("empty", (0, 5), (0, 3), np.array([0, 1])),
        case("bf16", TensorType(DType.BF16, (5,)), TensorType(DType.BF16, (3,)), np.array([1])),
    ),
    doc="y = x with the window that begins at start replaced by update. A window that would leave x is moved back into it, as in "
    "dynamic_slice.",
)
