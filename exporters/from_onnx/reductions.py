"""Lowerings of reductions. NaN wins, and over no elements a reduction gives its identity, as ONNX specifies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.shapes import axes_of, integers_of
from rml_exec.types import DType

_FLOATS = (DType.F16, DType.F32, DType.F64)


def _reduce(ctx: Context, x: str, kind: str, *, keepdims: bool | None = None, make: Callable[..., Any] | None = None) -> str:
    """Returns ``x`` reduced over the operator's axes: all if it names none, or with noop_with_empty_axes none at all.

    Args:
        ctx: the operator.
        x: what to reduce.
        kind: as in ``reduce``.
        keepdims: the operator's own if None.
        make: ``ctx.step`` where the reduction is not the operator's result.
    """
    rank = ctx.type(x).rank
    given = integers_of(ctx, "axes", 1)
    if not given:
        given = [] if ctx.attr("noop_with_empty_axes", 0) else list(range(rank))
    axes = tuple(sorted(axes_of(ctx, given, rank)))
    kept = bool(ctx.attr("keepdims", 1)) if keepdims is None else keepdims
    return str((make or ctx.add)("reduce", [x], kind=kind, axes=axes, keepdims=kept, nan="propagate", empty="identity"))


@ONNX.lowers("ReduceSum", "ReduceProd")
def _sum(ctx: Context, node: onnx.NodeProto) -> str:
    return _reduce(ctx, ctx.need(0), node.op_type.removeprefix("Reduce").lower())


@ONNX.lowers("ReduceMax", "ReduceMin")
def _extreme(ctx: Context, node: onnx.NodeProto) -> str:
    x, maximum = ctx.need(0), node.op_type == "ReduceMax"
    if ctx.type(x).dtype is DType.BOOL:
        return _reduce(ctx, x, "any" if maximum else "all")
    return _reduce(ctx, x, "max" if maximum else "min")


@ONNX.lowers("ReduceMean")
def _mean(ctx: Context, node: onnx.NodeProto) -> str:
    """Of integers the quotient is cut toward zero."""
    x = ctx.need(0)
    dtype = ctx.type(x).dtype
    if dtype in _FLOATS:
        return _reduce(ctx, x, "mean")
    total = _reduce(ctx, x, "sum", make=ctx.step)
    reduced = math.prod(ctx.type(total).shape)
    if not reduced:
        return total
    count = ctx.type(x).size // reduced
    if not count:
        raise RefusedError("the mean of no integers is not defined")
    return str(ctx.add("div", [total, ctx.scalar(count, dtype)], rounding="trunc"))


@ONNX.lowers("ReduceL1")
def _l1(ctx: Context, node: onnx.NodeProto) -> str:
    return _reduce(ctx, ctx.step("abs", [ctx.need(0)]), "sum")


@ONNX.lowers("ReduceSumSquare")
def _sum_square(ctx: Context, node: onnx.NodeProto) -> str:
    return _reduce(ctx, ctx.step("mul", [ctx.need(0)] * 2), "sum")


@ONNX.lowers("ReduceL2")
def _l2(ctx: Context, node: onnx.NodeProto) -> str:
    total = _reduce(ctx, ctx.step("mul", [ctx.need(0)] * 2), "sum", make=ctx.step)
    return _in_floats(ctx, "sqrt", total)


@ONNX.lowers("ReduceLogSum")
def _log_sum(ctx: Context, node: onnx.NodeProto) -> str:
    return _in_floats(ctx, "log", _reduce(ctx, ctx.need(0), "sum", make=ctx.step))


def _in_floats(ctx: Context, op: str, x: str) -> str:
    """Returns a function that is defined on floats; of integers by way of float64, cut toward zero."""
    dtype = ctx.type(x).dtype
    if dtype in _FLOATS:
        return str(ctx.add(op, [x]))
    return ctx.cast(ctx.step(op, [ctx.cast(x, DType.F64)]), dtype)


@ONNX.lowers("ReduceLogSumExp")
def _log_sum_exp(ctx: Context, node: onnx.NodeProto) -> str:
    """The largest element is taken out before, unless it is infinite."""
    given = ctx.need(0)
    dtype = ctx.type(given).dtype
    x = given if dtype in _FLOATS else ctx.cast(given, DType.F64)
    largest = _reduce(ctx, x, "max", keepdims=True, make=ctx.step)
    infinite = ctx.step("is_inf", [largest])
    shift = ctx.step("select", [infinite, ctx.scalar(0, ctx.type(x).dtype), largest])
    total = _reduce(ctx, ctx.step("exp", [ctx.step("sub", [x, shift])]), "sum", make=ctx.step)
    log = ctx.step("log", [total])
    operands = [log, ctx.reshape(shift, ctx.type(log).shape)]
    return str(ctx.add("add", operands)) if x == given else ctx.cast(ctx.step("add", operands), dtype)
