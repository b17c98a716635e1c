"""Lowerings of reductions, their composites (variance), arg-reductions, running sums and the like, and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exporters.from_torch.context import ATEN, Context, Scalar
from rml_exec.types import DType

Dims = int | Sequence[int] | None


def _axes(ctx: Context, x: str, dims: Dims) -> tuple[int, ...]:
    """Returns torch's dims as axes: None and an empty list mean all of them, and a 0-d tensor has none."""
    rank = ctx.type(x).rank
    listed = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return tuple(sorted({dim % rank for dim in listed})) if rank else ()


def _reduce(ctx: Context, x: str, kind: str, dims: Dims, keepdims: bool) -> str:
    """Over nothing ``sum`` is 0, ``prod`` 1 and ``mean`` NaN; ``max`` and ``min`` are errors, in torch at export already."""
    empty = "error" if kind in ("max", "min") else "identity"
    return str(ctx.add("reduce", [x], kind=kind, axes=_axes(ctx, x, dims), keepdims=keepdims, nan="propagate", empty=empty))


def _accumulating(kind: str, overload: str) -> None:
    """``sum``, ``mean`` and ``prod``: computed in the result's type (i64 for the sum of bools and integers)."""

    @ATEN.lowers(f"aten.{kind}.default")
    def whole(ctx: Context, x: str, dtype: object) -> str:
        return _reduce(ctx, ctx.cast(x, ctx.result().dtype), kind, None, False)

    @ATEN.lowers(f"aten.{kind}.{overload}")
    def along(ctx: Context, x: str, dims: Dims, keepdim: bool, dtype: object) -> str:
        return _reduce(ctx, ctx.cast(x, ctx.result().dtype), kind, dims, keepdim)


_accumulating("sum", "dim_IntList")
_accumulating("mean", "dim")
_accumulating("prod", "dim_int")


@ATEN.lowers("aten.amax", "aten.amin")
def _amax(ctx: Context, x: str, dims: Dims, keepdim: bool) -> str:
    return _reduce(ctx, x, ctx.packet.removeprefix("a"), dims, keepdim)


@ATEN.lowers("aten.any", "aten.all")
def _any(ctx: Context, x: str, dims: Dims = None, keepdim: bool = False) -> str:
    return _reduce(ctx, ctx.cast(x, DType.BOOL), ctx.packet, dims, keepdim)


def _extreme(packet: str) -> None:
    @ATEN.lowers(f"aten.{packet}.default")
    def whole(ctx: Context, x: str) -> str:
        return _reduce(ctx, x, packet, None, False)

    @ATEN.lowers(f"aten.{packet}.dim")
    def along(ctx: Context, x: str, dim: int, keepdim: bool) -> tuple[str, str]:
        return _reduce(ctx, x, packet, dim, keepdim), _arg(ctx, x, packet, dim, keepdim)

    @ATEN.lowers(f"aten.arg{packet}")
    def arg(ctx: Context, x: str, dim: int | None, keepdim: bool) -> str:
        result = _arg(ctx, ctx.reshape(x, [ctx.type(x).size]) if dim is None else x, packet, dim or 0, keepdim and dim is not None)
        return ctx.reshape(result, ctx.result().shape)


def _arg(ctx: Context, x: str, kind: str, dim: int, keepdims: bool) -> str:
    """The first of equals wins and the first NaN beats everything, as measured."""
    x = x if ctx.type(x).rank else ctx.reshape(x, [1])
    if ctx.type(x).dtype is DType.BOOL:
        x = ctx.cast(x, DType.U8)
    return str(ctx.step("argreduce", [x], kind=kind, axis=ctx.axis(x, dim), keepdims=keepdims, tie="first", nan="first", index_dtype="i64"))


for _name in ("max", "min"):
    _extreme(_name)


@ATEN.lowers("aten.linalg_vector_norm")
def _vector_norm(ctx: Context, x: str, order: Scalar, dims: Dims, keepdim: bool, dtype: object) -> str:
    result = ctx.result().dtype
    x = ctx.cast(x, result)
    if order == 2:
        return str(ctx.add("sqrt", [_total(ctx, ctx.step("mul", [x, x]), dims, keepdim)]))
    size = ctx.step("abs", [x])
    if order == 1:
        return _reduce(ctx, size, "sum", dims, keepdim)
    if abs(order) == math.inf:
        return _reduce(ctx, size, "max" if order > 0 else "min", dims, keepdim)
    if order == 0:
        present = ctx.step("compare", [size, ctx.scalar(0, result)], dir="ne")
        return _reduce(ctx, ctx.cast(present, result), "sum", dims, keepdim)
    total = _total(ctx, ctx.step("pow", [size, ctx.scalar(order, result)]), dims, keepdim)
    return str(ctx.add("pow", [total, ctx.scalar(1 / order, result)]))


def _total(ctx: Context, x: str, dims: Dims, keepdims: bool) -> str:
    return str(ctx.step("reduce", [x], kind="sum", axes=_axes(ctx, x, dims), keepdims=keepdims, nan="propagate", empty="identity"))


@ATEN.lowers("aten.var.correction")
def _variance(ctx: Context, x: str, dims: Dims, correction: float | None, keepdim: bool) -> str:
    """Two passes: the mean, then the sum of squared distances from it, divided by the count less the correction."""
    dtype, axes = ctx.type(x).dtype, _axes(ctx, x, dims)
    mean = ctx.step("reduce", [x], kind="mean", axes=axes, keepdims=True, nan="propagate", empty="identity")
    distance = ctx.step("sub", [x, mean])
    square = ctx.step("mul", [distance, distance])
    total = _total(ctx, square, dims, keepdim)
    count = ctx.type(x).size // max(ctx.type(mean).size, 1) - (1 if correction is None else correction)
    return str(ctx.add("div", [total, ctx.scalar(max(count, 0), dtype)], rounding="true"))


@ATEN.lowers("aten.var.dim")
def _variance_of_dims(ctx: Context, x: str, dims: Dims, unbiased: bool, keepdim: bool) -> str:
    return _variance(ctx, x, dims, int(unbiased), keepdim)


@ATEN.lowers("aten.var_mean.correction")
def _variance_and_mean(ctx: Context, x: str, dims: Dims, correction: float | None, keepdim: bool) -> tuple[str, str]:
    return _variance(ctx, x, dims, correction, keepdim), _reduce(ctx, x, "mean", dims, keepdim)


@ATEN.lowers("aten.cumsum", "aten.cumprod", "aten.logcumsumexp")
def _cumulative(ctx: Context, x: str, dim: int, dtype: object = None) -> str:
    """Computed in the result's type: i64 for bools and integers."""
    kind = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}[ctx.packet]
    return _run(ctx, ctx.cast(x, ctx.result().dtype), kind, dim)


@ATEN.lowers("aten.cummax", "aten.cummin")
def _cumulative_extreme(ctx: Context, x: str, dim: int) -> tuple[str, None]:
    return _run(ctx, x, ctx.packet.removeprefix("cum"), dim), None


def _run(ctx: Context, x: str, kind: str, dim: int) -> str:
    if not ctx.type(x).rank:
        return x
    return str(ctx.step("cumulative", [x], kind=kind, axis=ctx.axis(x, dim), exclusive=False, reverse=False))


@ATEN.lowers("aten.sort.default")
def _sort(ctx: Context, x: str, dim: int, descending: bool) -> tuple[str, str]:
    return _sort_stable(ctx, x, False, dim, descending)


@ATEN.lowers("aten.sort.stable")
def _sort_stable(ctx: Context, x: str, stable: bool | None, dim: int, descending: bool) -> tuple[str, str]:
    shape = ctx.type(x).shape
    line = x if shape else ctx.reshape(x, [1])
    values, indices = ctx.step("sort", [line], axis=ctx.axis(x, dim), descending=descending, stable=bool(stable), index_dtype="i64")
    return ctx.reshape(values, shape), ctx.reshape(indices, shape)


@ATEN.lowers("aten.topk")
def _topk(ctx: Context, x: str, k: int, dim: int, largest: bool, is_sorted: bool) -> tuple[str, str]:
    """Among equals torch leaves the order open (and does not take the first ones); here the lowest index comes first."""
    shape = ctx.type(x).shape
    line = x if shape else ctx.reshape(x, [1])
    attrs = {"k": k, "axis": ctx.axis(x, dim), "largest": largest, "sorted": is_sorted, "index_dtype": "i64"}
    values, indices = ctx.step("topk", [line], **attrs)
    return (values, indices) if shape else (ctx.reshape(values, shape), ctx.reshape(indices, shape))


@ATEN.lowers("aten.kthvalue")
def _kth_value(ctx: Context, x: str, k: int, dim: int, keepdim: bool) -> tuple[str, str]:
    shape = ctx.type(x).shape
    axis = ctx.axis(x, dim)
    line = x if shape else ctx.reshape(x, [1])
    results = ctx.step("sort", [line], axis=axis, descending=False, stable=False, index_dtype="i64")
    rank = ctx.type(line).rank
    bounds = [(k - 1, k) if index == axis else (0, size) for index, size in enumerate(ctx.type(line).shape)]
    start, limit = zip(*bounds, strict=True)
    cut = [ctx.step("slice", [result], start=start, limit=limit, strides=(1,) * rank) for result in results]
    kept = shape[:axis] + ((1,) if keepdim and shape else ()) + shape[axis + 1 :]
    return ctx.reshape(cut[0], kept), ctx.reshape(cut[1], kept)
