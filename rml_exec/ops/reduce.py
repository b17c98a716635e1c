"""Reductions over axes, and the position of the largest or smallest element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, INDICES, NO_BF16, NUMBERS, axes_in_range, axis_in_range, dtype_in
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType

_ALLOWED = {"sum": NUMBERS, "prod": NUMBERS, "max": NUMBERS, "min": NUMBERS, "mean": FLOATS, "any": (DType.BOOL,), "all": (DType.BOOL,)}


def _reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keepdims or axis not in axes)


def _infer_reduce(x: TensorType, *, kind: str, axes: tuple[int, ...], keepdims: bool, nan: str, empty: str) -> TensorType:
    dtype_in(x.dtype, _ALLOWED[kind], f"element type for kind {kind}")
    axes_in_range(axes, x.rank)
    if empty == "error" and math.prod(x.shape[axis] for axis in axes) == 0:
        raise Rule("reduces no elements and empty is error", f"axes {list(axes)}")
    return TensorType(x.dtype, _reduced(x.shape, axes, keepdims))


def lowest(dtype: np.dtype) -> Any:
    return dtype.type(-np.inf) if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    return dtype.type(np.inf) if dtype.kind == "f" else np.iinfo(dtype).max


def _mean(x: np.ndarray, present: np.ndarray | bool, **where: Any) -> np.ndarray:
    total = np.sum(x, where=present, **where)
    return total / np.sum(np.broadcast_to(present, x.shape), dtype=x.dtype, **where)


_KINDS: Mapping[str, Callable[..., np.ndarray]] = {
    "sum": lambda x, present, **where: np.sum(x, where=present, dtype=x.dtype, **where),
    "prod": lambda x, present, **where: np.prod(x, where=present, dtype=x.dtype, **where),
    "mean": _mean,
    "max": lambda x, present, **where: np.max(x, where=present, initial=lowest(x.dtype), **where),
    "min": lambda x, present, **where: np.min(x, where=present, initial=highest(x.dtype), **where),
    "any": lambda x, present, **where: np.any(x, **where),
    "all": lambda x, present, **where: np.all(x, **where),
}


@half_in_single
def _reduce(x: np.ndarray, *, kind: str, axes: tuple[int, ...], keepdims: bool, nan: str, empty: str) -> np.ndarray:
    present = ~np.isnan(x) if nan == "skip" and x.dtype.kind == "f" else True
    return _KINDS[kind](x, present, axis=axes, keepdims=keepdims)


def _attrs(kind: str, axes: tuple[int, ...], keepdims: bool = False, nan: str = "propagate", empty: str = "identity") -> dict[str, Any]:
    return {"kind": kind, "axes": axes, "keepdims": keepdims, "nan": nan, "empty": empty}


_NANS = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan], [-2, 0, np.inf]], np.float32)

define(
    name="reduce",
    inputs=("x",),
    attrs={
        "kind": Attr("str", tuple(_KINDS)),
        "axes": Attr("ints"),
        "keepdims": Attr("bool"),
        "nan": Attr("str", ("propagate", "skip")),
        "empty": Attr("str", ("error", "identity")),
    },
    infer=_infer_reduce,
    reference=_reduce,
    flops=lambda types, outputs, attrs: types[0].size,
    tolerance=Tolerance(rtol=1e-5, atol_rms=1e-6),
    limits=NO_BF16,
    cases=(
        *(case(f"{kind}-tail", (3, 1027), **_attrs(kind, (1,))) for kind in ("sum", "mean", "max", "min")),
        *(
            case(f"{kind}-nan-{nan}", _NANS, **_attrs(kind, (1,), nan=nan))
            for kind in ("sum", "mean", "max", "min", "prod")
            for nan in ("propagate", "skip")
        ),
        *(case(f"{kind}-empty", (3, 0), **_attrs(kind, (1,), keepdims=True)) for kind in ("sum", "mean", "max", "min", "prod")),
        *(case(f"{kind}-bool", TensorType(DType.BOOL, (5, 3)), **_attrs(kind, (0,))) for kind in ("any", "all")),
        *(case(f"{kind}-i8", TensorType(DType.I8, (5, 3)), **_attrs(kind, (0,), empty="error")) for kind in ("sum", "max", "min", "prod")),
        case("prod", (7, 5), **_attrs("prod", (1,))),
        case("first-axis", (17, 7), **_attrs("sum", (0,), keepdims=True)),
        case("spatial", (2, 3, 5, 7), **_attrs("mean", (2, 3))),
        case("outer", (2, 3, 5), **_attrs("max", (0, 2), keepdims=True)),
        case("all-axes", (7, 17), **_attrs("sum", (0, 1), empty="error")),
        case("no-axes", (7, 17), **_attrs("sum", ())),
        case("scalar", (), **_attrs("mean", ())),
        case("nothing-left", (0, 3), **_attrs("max", (1,), empty="error")),
        case("i32-lowest", TensorType(DType.I32, (0,)), **_attrs("max", (0,))),
        case("f16", TensorType(DType.F16, (3, 65)), **_attrs("mean", (1,))),
        case("f64", TensorType(DType.F64, (3, 65)), **_attrs("sum", (1,))),
    ),
    doc="y = the sum, mean, largest, smallest or product of the elements along axes (none: x itself), or any/all of bool. The "
    "result keeps the element type of x, so small integers wrap: cast first (torch and jax widen sums). nan=propagate: one "
    "NaN makes NaN; skip: NaN counts as absent (max in ONNX Runtime). Over no elements: empty=error refuses at build time "
    "(torch and jnp max), identity gives 0, 1, -inf or the lowest integer for max, inf or the highest for min, NaN for "
    "mean, false for any, true for all; so does a row of NaN alone under skip.",
)


def _infer_argreduce(x: TensorType, *, kind: str, axis: int, keepdims: bool, tie: str, nan: str, index_dtype: str) -> TensorType:
    dtype_in(x.dtype, (*NUMBERS, DType.BOOL))
    dtype_in(DType(index_dtype), INDICES, "index_dtype")
    axis_in_range(axis, x.rank)
    result = TensorType(DType(index_dtype), _reduced(x.shape, (axis,), keepdims))
    if x.shape[axis] == 0 and result.size:
        raise Rule(f"axis {axis} is empty, so there is no position to give")
    return result


def _argreduce(x: np.ndarray, *, kind: str, axis: int, keepdims: bool, tie: str, nan: str, index_dtype: str) -> np.ndarray:
    if x.shape[axis] == 0:
        return np.zeros(_reduced(x.shape, (axis,), keepdims), DType(index_dtype).numpy)
    best = np.max if kind == "max" else np.min
    unknown = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, np.bool_)
    sortable = np.where(unknown, x.dtype.type(-np.inf if kind == "max" else np.inf), x) if x.dtype.kind == "f" else x
    wanted = (sortable == best(sortable, axis, keepdims=True)) & ~unknown
    found = np.argmax(wanted, axis, keepdims=True)
    if tie == "last":
        found = x.shape[axis] - 1 - np.argmax(np.flip(wanted, axis), axis, keepdims=True)
    any_nan = np.any(unknown, axis, keepdims=True)
    if nan == "first":
        found = np.where(any_nan, np.argmax(unknown, axis, keepdims=True), found)
    else:
        found = np.where(np.all(unknown, axis, keepdims=True), 0, found)
    return (found if keepdims else np.squeeze(found, axis)).astype(DType(index_dtype).numpy)


def _arg(
    kind: str = "max", axis: int = 0, keepdims: bool = False, tie: str = "first", nan: str = "first", index_dtype: str = "i64"
) -> dict[str, Any]:
    return {"kind": kind, "axis": axis, "keepdims": keepdims, "tie": tie, "nan": nan, "index_dtype": index_dtype}


_TIES = np.array([[1, np.nan, 3, 3, np.nan], [3, 1, 3, 1, 2], [np.nan] * 5, [-np.inf] * 5], np.float32)

define(
    name="argreduce",
    inputs=("x",),
    attrs={
        "kind": Attr("str", ("max", "min")),
        "axis": Attr("int"),
        "keepdims": Attr("bool"),
        "tie": Attr("str", ("first", "last")),
        "nan": Attr("str", ("first", "skip")),
        "index_dtype": Attr("str", ("i32", "i64")),
    },
    infer=_infer_argreduce,
    reference=_argreduce,
    flops=lambda types, outputs, attrs: types[0].size,
    limits=NO_BF16,
    cases=(
        *(
            case(f"{kind}-{tie}-{nan}", _TIES, **_arg(kind, 1, tie=tie, nan=nan))
            for kind in ("max", "min")
            for tie in ("first", "last")
            for nan in ("first", "skip")
        ),
        case("tail", (3, 1027), **_arg(axis=1)),
        case("line", (17,), **_arg("min")),
        case("keepdims", (7, 5, 3), **_arg(axis=1, keepdims=True, index_dtype="i32")),
        case("one", (7, 1), **_arg(axis=1)),
        case("nothing-left", (0, 3), **_arg(axis=1)),
        case("empty-both", (0, 0), **_arg(axis=1, keepdims=False)),
        case("u8", TensorType(DType.U8, (5, 7)), **_arg("min", 1)),
        case("bool", TensorType(DType.BOOL, (5, 7)), **_arg("max", 1)),
    ),
    doc="y = the position along axis of the largest or smallest element; among equals the first or the last. nan=first: the "
    "first NaN wins whatever the tie rule (torch, jax); skip: NaN never wins unless all are, then 0 (tf, ONNX Runtime). "
    "index_dtype is i64 in torch and tf, i32 in jax.",
)
