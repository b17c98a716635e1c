"""Lowerings of primitives that move elements: shapes, joins and cuts."""

from __future__ import annotations

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.program import Equation, Value


@TABLE.lowers("reshape", "squeeze")
def _reshape(ctx: Context, eqn: Equation) -> str:
    return ctx.reshape(eqn.inputs[0], eqn.outputs[0].shape)


@TABLE.lowers("rml.turned_reshape")
def _turned_reshape(ctx: Context, eqn: Equation) -> str:
    return ctx.reshape(ctx.transpose(eqn.inputs[0], eqn.params["dimensions"]), eqn.outputs[0].shape)


@TABLE.lowers("transpose")
def _transpose(ctx: Context, eqn: Equation) -> str:
    return ctx.transpose(eqn.inputs[0], eqn.params["permutation"])


@TABLE.lowers("broadcast_in_dim")
def _broadcast_in_dim(ctx: Context, eqn: Equation) -> str:
    x, shape = eqn.inputs[0], eqn.outputs[0].shape
    spread = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        spread[axis] = size
    leading = next((axis for axis, size in enumerate(spread) if size != 1), len(spread))
    aligned = tuple(spread[min(leading, len(shape) - len(x.shape)) :])  # NumPy adds leading axes by itself
    return ctx.broadcast(x if aligned == x.shape else ctx.reshape(x, spread), shape)


@TABLE.lowers("tile")
def _tile(ctx: Context, eqn: Equation) -> str:
    x, repeats = eqn.inputs[0], [int(repeat) for repeat in eqn.params["reps"]]
    sizes = [1] * (len(repeats) - len(x.shape)) + list(x.shape)
    single = [size for dim in sizes for size in (1, dim)]
    tiled = [size for pair in zip(repeats, sizes, strict=True) for size in pair]
    return ctx.reshape(ctx.broadcast(ctx.reshape(x, single), tiled), eqn.outputs[0].shape)


@TABLE.lowers("concatenate")
def _concatenate(ctx: Context, eqn: Equation) -> str:
    return ctx.add("concat", *eqn.inputs, axis=eqn.params["dimension"])


@TABLE.lowers("stack")
def _stack(ctx: Context, eqn: Equation) -> str:
    axis = eqn.params["axis"]
    parts = [ctx.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in eqn.inputs]
    return ctx.add("concat", *parts, axis=axis)


@TABLE.lowers("split", "unstack")
def _split(ctx: Context, eqn: Equation) -> list[str]:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    results, start = [], 0
    for output, size in zip(eqn.outputs, eqn.params.get("sizes", [1] * len(eqn.outputs)), strict=True):
        results.append(ctx.reshape(_cut(ctx, x, axis, start, start + int(size)), output.shape))
        start += int(size)
    return results


def _cut(ctx: Context, x: Value | str, axis: int, start: int, limit: int) -> str:
    """Slices one axis."""
    shape = ctx.shape(x)
    if (start, limit) == (0, shape[axis]):
        return ctx.name(x)
    starts, limits = [0] * len(shape), list(shape)
    starts[axis], limits[axis] = start, limit
    return ctx.add("slice", x, start=starts, limit=limits, strides=[1] * len(shape))


@TABLE.lowers("slice")
def _slice(ctx: Context, eqn: Equation) -> str:
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    return ctx.add("slice", eqn.inputs[0], start=start, limit=limit, strides=eqn.params["strides"] or [1] * len(start))


@TABLE.lowers("rev")
def _rev(ctx: Context, eqn: Equation) -> str:
    return ctx.add("reverse", eqn.inputs[0], axes=sorted(eqn.params["dimensions"]))


@TABLE.lowers("pad")
def _pad(ctx: Context, eqn: Equation) -> str:
    x, value = eqn.inputs
    low, high, interior = zip(*eqn.params["padding_config"], strict=True) if x.shape else ((), (), ())
    config = {"mode": "constant", "low": low, "high": high, "interior": interior}
    if value.constant is None:
        inside = ctx.add("pad", ctx.broadcast(ctx.constant(np.array(True)), x.shape), value=0, **config)
        return ctx.add("select", inside, ctx.add("pad", x, value=0, **config), value)
    number = value.array().item()
    return ctx.add("pad", x, value=int(number) if isinstance(number, bool) else number, **config)


@TABLE.lowers("iota")
def _iota(ctx: Context, eqn: Equation) -> str:
    output = eqn.outputs[0]
    return ctx.add("iota", dtype=ctx.dtype(output), shape=output.shape, axis=eqn.params["dimension"])


@TABLE.lowers("empty", "empty2")
def _empty(ctx: Context, eqn: Equation) -> str:
    """Memory with anything in it: zeros."""
    output = eqn.outputs[0]
    return ctx.broadcast(ctx.scalar(0, output.dtype), output.shape)
