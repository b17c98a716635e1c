"""Order along an axis: sort, topk, and the running reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ops.reduce import highest, lowest
from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, NUMBERS, axis_in_range, dtype_in
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Positions of the elements in order, equal ones as they come; NaN counts as larger than every number."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


def _infer_sort(x: TensorType, *, axis: int, descending: bool, stable: bool, index_dtype: str) -> tuple[TensorType, TensorType]:
    dtype_in(x.dtype, (*NUMBERS, DType.BOOL))
    axis_in_range(axis, x.rank)
    return x, TensorType(DType(index_dtype), x.shape)


def _sort(x: np.ndarray, *, axis: int, descending: bool, stable: bool, index_dtype: str) -> tuple[np.ndarray, np.ndarray]:
    order = _order(x, axis, descending)
    return np.take_along_axis(x, order, axis), order.astype(DType(index_dtype).numpy)


def _infer_topk(x: TensorType, *, k: int, axis: int, largest: bool, sorted: bool, index_dtype: str) -> tuple[TensorType, TensorType]:
    dtype_in(x.dtype, (*NUMBERS, DType.BOOL))
    axis_in_range(axis, x.rank)
    if not 0 <= k <= x.shape[axis]:
        raise Rule(f"k must be at least 0 and at most the size {x.shape[axis]} of axis {axis}", k)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(DType(index_dtype), shape)


def _topk(x: np.ndarray, *, k: int, axis: int, largest: bool, sorted: bool, index_dtype: str) -> tuple[np.ndarray, np.ndarray]:
    order = np.take(_order(x, axis, largest), range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(DType(index_dtype).numpy)


_INDEX = Attr("str", ("i32", "i64"))
_TIES = np.array([[3, 1, 3, 2, 1], [np.nan, 2, -np.inf, np.nan, np.inf], [0.0, -0.0, 0.0, 1, -1]], np.float32)


def _sorting(axis: int = 0, descending: bool = False, stable: bool = True, index_dtype: str = "i64") -> dict[str, Any]:
    return {"axis": axis, "descending": descending, "stable": stable, "index_dtype": index_dtype}


define(
    name="sort",
    inputs=("x",),
    outputs=("values", "indices"),
    attrs={"axis": Attr("int"), "descending": Attr("bool"), "stable": Attr("bool"), "index_dtype": _INDEX},
    infer=_infer_sort,
    reference=_sort,
    limits=NO_BF16,
    cases=(
        *(case(f"ties-{'down' if down else 'up'}", _TIES, **_sorting(1, down)) for down in (False, True)),
        case("columns", (7, 17), **_sorting(0, True, index_dtype="i32")),
        case("tail", (1027,), **_sorting(stable=False)),
        case("one", (3, 1), **_sorting(1)),
        case("empty-axis", (3, 0), **_sorting(1)),
        case("no-rows", (0, 3), **_sorting(1, True)),
        case("i8", TensorType(DType.I8, (5, 7)), **_sorting(1, True)),
        case("bool", TensorType(DType.BOOL, (17,)), **_sorting()),
        case("f16", TensorType(DType.F16, (17,)), **_sorting()),
    ),
    doc="values = x in ascending or descending order along axis, indices = where each came from. NaN counts as larger than every number: "
    "last when ascending (torch, jax), first when descending (torch; tf leaves the place of NaN open). stable: equal elements keep their "
    "order, in both directions; without it their order is not specified (here it is the same). Zeros of either sign are equal.",
)


def _best(k: int, axis: int = 0, largest: bool = True, sorted: bool = True, index_dtype: str = "i64") -> dict[str, Any]:
    return {"k": k, "axis": axis, "largest": largest, "sorted": sorted, "index_dtype": index_dtype}


define(
    name="topk",
    inputs=("x",),
    outputs=("values", "indices"),
    attrs={"k": Attr("int"), "axis": Attr("int"), "largest": Attr("bool"), "sorted": Attr("bool"), "index_dtype": _INDEX},
    infer=_infer_topk,
    reference=_topk,
    limits=NO_BF16,
    cases=(
        *(case(f"ties-{'largest' if largest else 'smallest'}", _TIES, **_best(3, 1, largest)) for largest in (True, False)),
        case("columns", (7, 17), **_best(3, 0, index_dtype="i32")),
        case("tail", (3, 1027), **_best(5, 1, sorted=False)),
        case("all", (17,), **_best(17)),
        case("none", (3, 5), **_best(0, 1)),
        case("no-rows", (0, 5), **_best(2, 1)),
        case("u8", TensorType(DType.U8, (3, 5)), **_best(3, 1, False)),
        case("f16", TensorType(DType.F16, (17,)), **_best(3)),
    ),
    doc="values = the k largest (or smallest) elements along axis, best first, indices = where each came from. Among equals the lowest "
    "index comes first (jax, tf, ONNX Runtime; torch leaves it open). NaN counts as larger than every number (torch, jax; tf ranks it "
    "below all). sorted=false leaves the order of the k open (here it is the same).",
)


def _infer_cumulative(x: TensorType, *, kind: str, axis: int, exclusive: bool, reverse: bool) -> TensorType:
    dtype_in(x.dtype, FLOATS if kind == "logsumexp" else NUMBERS, f"element type for kind {kind}")
    axis_in_range(axis, x.rank)
    return x


def _identity(kind: str, dtype: np.dtype) -> Any:
    match kind:
        case "sum" | "prod":
            return dtype.type(kind == "prod")
        case "min":
            return highest(dtype)
    return lowest(dtype)


_RUNNING = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp}


@half_in_single
def _cumulative(x: np.ndarray, *, kind: str, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    seen = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0)
    if exclusive:
        first = np.full((min(1, len(seen)), *seen.shape[1:]), _identity(kind, x.dtype), x.dtype)
        seen = np.concatenate([first, seen[:-1]])
    y = np.moveaxis(_RUNNING[kind].accumulate(seen, 0, dtype=x.dtype), 0, axis)
    return np.flip(y, axis) if reverse else y


def _running(kind: str, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> dict[str, Any]:
    return {"kind": kind, "axis": axis, "exclusive": exclusive, "reverse": reverse}


_NANS = np.array([[1, np.nan, 3], [-np.inf, 2, np.inf], [-np.inf, -np.inf, 0]], np.float32)

define(
    name="cumulative",
    inputs=("x",),
    attrs={"kind": Attr("str", tuple(_RUNNING)), "axis": Attr("int"), "exclusive": Attr("bool"), "reverse": Attr("bool")},
    infer=_infer_cumulative,
    reference=_cumulative,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: types[0].size,
    tolerance=Tolerance(rtol=1e-5, atol_rms=1e-5),
    limits=NO_BF16,
    cases=(
        *(case(f"{kind}-rows", (3, 7), **_running(kind, 1)) for kind in _RUNNING),
        *(case(f"{kind}-exclusive-reverse", (5, 3), **_running(kind, 0, True, True)) for kind in _RUNNING),
        *(case(f"{kind}-nan", _NANS, **_running(kind, 1)) for kind in _RUNNING),
        *(case(f"{kind}-i8", TensorType(DType.I8, (7,)), **_running(kind, 0, True)) for kind in ("sum", "prod", "max", "min")),
        case("tail", (1027,), **_running("sum")),
        case("middle", (2, 5, 3), **_running("max", 1, reverse=True)),
        case("empty-axis", (3, 0), **_running("sum", 1, True)),
        case("no-rows", (0, 3), **_running("logsumexp", 1)),
        case("f64", TensorType(DType.F64, (3, 5)), **_running("prod", 1)),
        case("f16", TensorType(DType.F16, (65,)), **_running("sum")),
    ),
    doc="y[i] = the sum, product, largest, smallest or logarithm of the sum of e^x of the elements up to and with i along axis; exclusive: "
    "up to but without i, so the first is 0, 1, -inf or the lowest integer, inf or the highest, -inf. reverse: from the end. The "
    "result keeps the element type of x, so small integers wrap: cast first (torch.cumsum widens). NaN goes on to the end.",
)
