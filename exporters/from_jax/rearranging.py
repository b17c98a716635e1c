"""Lowerings of primitives that move elements: shapes, joins, cuts, and reads at computed positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exporters.from_jax.context import TABLE, Context, RefusedError
from exporters.from_jax.program import Equation, Value


@TABLE.lowers("reshape", "squeeze")
def _reshape(ctx: Context, eqn: Equation) -> str:
    return ctx.reshape(eqn.inputs[0], eqn.outputs[0].shape)


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
    if value.constant is None:
        raise RefusedError("the padding value is computed at run time")
    low, high, interior = zip(*eqn.params["padding_config"], strict=True) if x.shape else ((), (), ())
    number = value.array().item()
    number = int(number) if isinstance(number, bool) else number
    return ctx.add("pad", x, mode="constant", low=low, high=high, interior=interior, value=number)


@TABLE.lowers("iota")
def _iota(ctx: Context, eqn: Equation) -> str:
    output = eqn.outputs[0]
    return ctx.add("iota", dtype=ctx.dtype(output), shape=output.shape, axis=eqn.params["dimension"])


@TABLE.lowers("dynamic_slice")
def _dynamic_slice(ctx: Context, eqn: Equation) -> str:
    """Cuts with known starts first, then takes along each axis whose start is computed. XLA moves a start so that the slice fits."""
    x, starts, sizes = eqn.inputs[0], eqn.inputs[1:], eqn.outputs[0].shape
    result = ctx.name(x)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start.constant is not None or size == x.shape[axis]:
            first = 0 if size == x.shape[axis] else min(max(int(start.array()), 0), x.shape[axis] - size)
            result = _cut(ctx, result, axis, first, first + size)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start.constant is None and size != x.shape[axis]:
            lowest = ctx.add("clamp", _index(ctx, start), lo=0, hi=x.shape[axis] - size)
            steps = ctx.constant(np.arange(size).astype(ctx.builder.type(lowest).dtype.numpy))
            result = _take(ctx, result, ctx.add("add", lowest, steps), axis, "clamp", None)
    return result


def _index(ctx: Context, indices: Value | str) -> str:
    """Casts indices to a type that ``take`` reads: i64 where i32 may be too small."""
    dtype = ctx.builder.type(ctx.name(indices)).dtype.numpy
    if dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return ctx.name(indices)
    return ctx.cast(indices, np.int64 if dtype.itemsize >= 4 else np.int32)


def _take(ctx: Context, x: Value | str, indices: Value | str, axis: int, oob: str, fill: Any, wrap: bool = False) -> str:
    return ctx.add("take", x, indices, axis=axis, oob=oob, wrap_negative=wrap, fill_value=fill)


@TABLE.lowers("gather")
def _gather(ctx: Context, eqn: Equation) -> str:
    """Handles reads along one axis: whole slices of the others, at positions that the last axis of the indices, of size 1, holds.

    Recognised as wrapping (:mod:`exporters.from_jax.patterns`), the indices lack that axis.
    """
    x, indices = eqn.inputs
    numbers, sizes = eqn.params["dimension_numbers"], tuple(eqn.params["slice_sizes"])
    axes = tuple(numbers.start_index_map)
    if len(axes) != 1 or numbers.operand_batching_dims or not set(numbers.collapsed_slice_dims) <= set(axes):
        raise RefusedError("only a gather along one axis has a lowering")
    axis = axes[0]
    if sizes != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        raise RefusedError("only a gather of whole slices of size 1 along its axis has a lowering")
    wrap = eqn.params.get("wrap_negative", False)
    batch = indices.shape if wrap else indices.shape[:-1]
    mode = eqn.params["mode"].name
    fill = _fill_value(eqn) if mode == "FILL_OR_DROP" else None
    flat = _index(ctx, ctx.reshape(indices, batch))
    result = _take(ctx, x, flat, axis, "clamp" if fill is None else "fill", fill, wrap)
    if not numbers.collapsed_slice_dims:
        shape = ctx.shape(result)
        result = ctx.reshape(result, (*shape[: axis + len(batch)], 1, *shape[axis + len(batch) :]))
    return ctx.transpose(result, _gathered_order(axis, len(batch), tuple(numbers.offset_dims), len(ctx.shape(result))))


def _gathered_order(axis: int, batch_rank: int, offsets: tuple[int, ...], rank: int) -> list[int]:
    """Returns the permutation from take's order (axes before, indices, axes after) to gather's (slice axes at ``offsets``)."""
    taken = list(range(axis, axis + batch_rank))
    kept = [a for a in range(rank) if a not in taken]
    order = [-1] * rank
    for position, source in zip(offsets, kept, strict=True):
        order[position] = source
    rest = iter(taken)
    return [next(rest) if source < 0 else source for source in order]


def _fill_value(eqn: Equation) -> Any:
    """Returns what an index out of range reads: the primitive's value, else NaN, the lowest signed or highest unsigned integer, true."""
    value, dtype = eqn.params["fill_value"], np.dtype(eqn.outputs[0].dtype)
    if value is not None:
        number = np.asarray(value).item()
        return int(number) if dtype.kind == "b" else number
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max)
    return math.nan
