"""Reductions and arg-reductions."""

from __future__ import annotations

import math

import numpy as np

from exporters.from_tf.elementwise import cast_to
from exporters.from_tf.table import TABLE, Context, Value
from rml_exec.types import DType

__all__ = ["reduce"]

_KINDS = {"Sum": "sum", "Mean": "mean", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any", "EuclideanNorm": "sum"}


def reduce(ctx: Context, x: Value, kind: str, axes: tuple[int, ...], keepdims: bool) -> Value:
    """Returns a reduction as TensorFlow computes it: NaN wins, and over no elements it gives the identity."""
    return ctx.add("reduce", x, kind=kind, axes=axes, keepdims=keepdims, nan="propagate", empty="identity")


@TABLE.lowers(*_KINDS)
def _reduce(ctx: Context, x: Value, axes: Value) -> Value:
    shape, kind, keepdims = ctx.shape(x), _KINDS[ctx.op.type], ctx.attr("keep_dims")
    chosen = tuple(sorted({axis % len(shape) for axis in ctx.ints(axes, "the axes")}))
    if ctx.op.type == "EuclideanNorm":
        return ctx.add("sqrt", reduce(ctx, ctx.add("mul", x, x), kind, chosen, keepdims))
    if not chosen:
        return x
    if kind == "mean" and not ctx.type(x).dtype.is_float:  # the quotient is cut toward zero
        count = ctx.constant(np.asarray(math.prod(shape[axis] for axis in chosen), ctx.type(x).dtype.numpy))
        return ctx.add("div", reduce(ctx, x, "sum", chosen, keepdims), count, rounding="trunc")
    return reduce(ctx, x, kind, chosen, keepdims)


@TABLE.lowers("ArgMax", "ArgMin")
def _arg_reduce(ctx: Context, x: Value, axis: Value) -> Value:
    """NaN is never chosen; of equals the first is."""
    kind, dtype = ctx.op.type[3:].lower(), ctx.output_dtype()
    index_dtype = dtype if dtype in (DType.I32, DType.I64) else DType.I32
    along = ctx.axis(axis, len(ctx.shape(x)))
    index = ctx.add("argreduce", x, kind=kind, axis=along, keepdims=False, tie="first", nan="skip", index_dtype=index_dtype.value)
    return cast_to(ctx, index, dtype)
