"""Ops that read x at positions which another operand holds."""

from __future__ import annotations

import numpy as np

from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import INDICES, axis_in_range, dtype_in, representable
from rml_exec.types import DType, TensorType


def _infer_take(x: TensorType, indices: TensorType, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> TensorType:
    axis_in_range(axis, x.rank)
    dtype_in(indices.dtype, INDICES, "element type of indices")
    if (fill_value is None) == (oob == "fill"):
        raise Rule("fill_value must be given for oob fill and null for the others", fill_value)
    if fill_value is not None:
        if x.dtype is DType.BF16:
            raise Rule("bf16 takes oob error and clamp only: NumPy has no bfloat16 for the fill value")
        representable(fill_value, x.dtype, "fill_value")
    if x.shape[axis] == 0 and indices.size and oob != "fill":
        raise Rule(f"axis {axis} is empty, so no index is in range", f"{indices.size} indices")
    return TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _take(x: np.ndarray, indices: np.ndarray, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> np.ndarray:
    size = x.shape[axis]
    wrapped = np.where(indices < 0, indices + size, indices) if wrap_negative else indices
    outside = (wrapped < 0) | (wrapped >= size)
    if oob == "error" and np.any(outside):
        raise Rule(f"indices must be in range for axis {axis} of size {size}", indices[outside].flat[0])
    if fill_value is None:
        return np.take(x, wrapped, axis, mode="clip")
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    if size == 0:
        return np.full(shape, x.dtype.type(fill_value))
    missing = outside.reshape((1,) * axis + indices.shape + (1,) * (x.ndim - axis - 1))
    return np.where(missing, x.dtype.type(fill_value), np.take(x, wrapped, axis, mode="clip"))


def _some(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


define(
    name="take",
    inputs=("x", "indices"),
    attrs={
        "axis": Attr("int"),
        "oob": Attr("str", ("error", "clamp", "fill")),
        "wrap_negative": Attr("bool"),
        "fill_value": Attr("float", optional=True),
    },
    infer=_infer_take,
    reference=_take,
    cases=(
        case("scalar-index", (7, 17), np.array(3, np.int32), axis=0, oob="error", wrap_negative=False, fill_value=None),
        case("embedding", (17, 5), np.array([[0, 16, 3], [2, 2, 9]]), axis=0, oob="error", wrap_negative=False, fill_value=None),
        case("wrap", (7, 17), _some(-1, 0, -17), axis=1, oob="error", wrap_negative=True, fill_value=None),
        case("clamp", (3, 7, 2), _some(-9, -1, 6, 7), axis=1, oob="clamp", wrap_negative=False, fill_value=None),
        case("fill", (3, 7, 2), _some(-9, -1, 6, 7), axis=1, oob="fill", wrap_negative=True, fill_value=float("nan")),
        case("fill-i32", TensorType(DType.I32, (5,)), _some(4, 5), axis=0, oob="fill", wrap_negative=False, fill_value=-(2.0**31)),
        case("no-indices", (7, 17), np.zeros((0, 3), np.int64), axis=0, oob="error", wrap_negative=False, fill_value=None),
        case("empty-axis", (0, 3), _some(0, 1), axis=0, oob="fill", wrap_negative=False, fill_value=0.5),
        case("empty-other", (3, 0), _some(0, 2), axis=0, oob="error", wrap_negative=False, fill_value=None),
        case("tail", (1027,), np.arange(1026, -1, -13), axis=0, oob="error", wrap_negative=False, fill_value=None),
        case("bf16", TensorType(DType.BF16, (5,)), _some(4, 0), axis=0, oob="clamp", wrap_negative=False, fill_value=None),
    ),
    doc="y[.., i.., ..] = x[.., indices[i..], ..] along axis; shape x[:axis] + indices + x[axis+1:]. With wrap_negative a "
    "negative index first has the size added. What is out of range then is an error of the run (torch, tf), the nearest "
    "valid index (clamp: jax x[i]) or fill_value (jnp.take).",
)
