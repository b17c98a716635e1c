"""Lowerings of reductions: over whole axes, to an index, and over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exporters.from_jax.context import TABLE, Context, RefusedError
from exporters.from_jax.program import Equation

_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod", "rml.mean": "mean"}


@TABLE.lowers(*_REDUCTIONS)
def _reduce(ctx: Context, eqn: Equation) -> str:
    x, kind = eqn.inputs[0], _REDUCTIONS[eqn.primitive]
    if np.dtype(x.dtype).kind == "b":
        kind = {"max": "any", "min": "all"}[kind]
    return ctx.add("reduce", x, kind=kind, axes=sorted(eqn.params["axes"]), keepdims=False, nan="propagate", empty="identity")


@TABLE.lowers("reduce_and", "reduce_or")
def _reduce_bits(ctx: Context, eqn: Equation) -> str:
    kind = "all" if eqn.primitive == "reduce_and" else "any"
    return ctx.add("reduce", eqn.inputs[0], kind=kind, axes=sorted(eqn.params["axes"]), keepdims=False, nan="propagate", empty="identity")


@TABLE.lowers("argmax", "argmin")
def _argreduce(ctx: Context, eqn: Equation) -> str:
    (axis,), wanted = eqn.params["axes"], np.dtype(eqn.params["index_dtype"])
    index = "i64" if wanted.itemsize == 8 or wanted == np.uint32 else "i32"
    result = ctx.add(
        "argreduce", eqn.inputs[0], kind=eqn.primitive[3:], axis=axis, keepdims=False, tie="first", nan="first", index_dtype=index
    )
    return ctx.cast(result, wanted)


@TABLE.lowers("rml.softmax", "rml.log_softmax")
def _softmax(ctx: Context, eqn: Equation) -> str:
    if eqn.primitive == "rml.log_softmax":
        return ctx.add("log_softmax", eqn.inputs[0], axis=eqn.params["axis"])
    return ctx.add("softmax", eqn.inputs[0], axis=eqn.params["axis"], fully_masked="nan")


@TABLE.lowers("reduce_window_max", "reduce_window_min", "reduce_window_sum", "rml.avg_pool")
def _reduce_window(ctx: Context, eqn: Equation) -> str:
    """A window over any axes: the axes it does not touch are batch and channels, in place where they stand so, else after a transpose."""
    x, params, shape = eqn.inputs[0], eqn.params, eqn.outputs[0].shape
    if set(params["base_dilation"]) - {1}:
        raise RefusedError("a window over a dilated operand (base_dilation)")
    steps = list(zip(params["window_dimensions"], params["window_strides"], params["padding"], params["window_dilation"], strict=True))
    touched = [axis for axis, (size, stride, pad, _) in enumerate(steps) if (size, stride, *pad) != (1, 1, 0, 0)]
    if not touched:
        return ctx.name(x)
    rank = len(shape)
    if 3 <= rank <= 5 and set(touched) <= set(range(1, rank - 1)):
        return _pool(ctx, eqn, ctx.name(x), [steps[axis] for axis in range(1, rank - 1)], "NHWC")
    if 3 <= rank <= 5 and set(touched) <= set(range(2, rank)):
        return _pool(ctx, eqn, ctx.name(x), [steps[axis] for axis in range(2, rank)], "NCHW")
    if len(touched) > 3:
        raise RefusedError(f"a window over {len(touched)} axes")
    kept = [axis for axis in range(rank) if axis not in touched]
    order = kept + touched
    rows = ctx.reshape(ctx.transpose(x, order), [math.prod(x.shape[axis] for axis in kept), 1, *(x.shape[axis] for axis in touched)])
    pooled = _pool(ctx, eqn, rows, [steps[axis] for axis in touched], "NCHW")
    return ctx.transpose(ctx.reshape(pooled, [shape[axis] for axis in order]), [order.index(axis) for axis in range(rank)])


def _pool(ctx: Context, eqn: Equation, x: str, steps: list[tuple[int, int, tuple[int, int], int]], layout: str) -> str:
    window, strides, pads, dilations = ([*column] for column in zip(*steps, strict=True))
    attrs: dict[str, Any] = {"window": window, "strides": strides, "pads": pads, "data_layout": layout}
    if eqn.primitive == "reduce_window_max":
        return ctx.add("max_pool", x, dilations=dilations, nan="propagate", **attrs)
    if eqn.primitive == "reduce_window_min":
        if np.dtype(eqn.inputs[0].dtype).kind != "f":
            raise RefusedError("the minimum of integers over a window")
        return ctx.add("neg", ctx.add("max_pool", ctx.add("neg", x), dilations=dilations, nan="propagate", **attrs))
    if set(dilations) != {1}:
        raise RefusedError("a sum over a dilated window")
    return ctx.add("avg_pool", x, divisor=eqn.params.get("divisor", "fixed"), divisor_value=eqn.params.get("divisor_value", 1), **attrs)
