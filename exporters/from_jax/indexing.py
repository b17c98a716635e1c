"""Lowerings of reads and writes at computed positions.

XLA's gather and scatter name, for every axis of the operand, whether an index moves along it, how long the window on it is, and whether it
stands in the result; here that becomes ``take`` where one axis is indexed, else points of ``gather_nd`` and ``scatter_nd``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from exporters.from_jax.context import TABLE, Context, RefusedError
from exporters.from_jax.program import Equation, Value


def index_operand(ctx: Context, indices: Value | str) -> str:
    """Casts indices to a type that the ops read: i64 where i32 may be too small."""
    dtype = ctx.builder.type(ctx.name(indices)).dtype.numpy
    if dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return ctx.name(indices)
    return ctx.cast(indices, np.int64 if dtype.itemsize >= 4 else np.int32)


def _start(ctx: Context, starts: Sequence[Value]) -> str:
    """Returns one vector of the scalars where a window begins."""
    if all(start.constant is not None for start in starts):
        return ctx.constant(np.array([int(start.array()) for start in starts], np.int64))
    wide = any(np.dtype(start.dtype) in (np.dtype(np.int64), np.dtype(np.uint32), np.dtype(np.uint64)) for start in starts)
    parts = [ctx.reshape(ctx.cast(start, np.int64 if wide else np.int32), (1,)) for start in starts]
    return parts[0] if len(parts) == 1 else str(ctx.add("concat", *parts, axis=0))


@TABLE.lowers("dynamic_slice")
def _dynamic_slice(ctx: Context, eqn: Equation) -> str:
    x, starts, sizes = eqn.inputs[0], eqn.inputs[1:], eqn.outputs[0].shape
    if all(start.constant is not None or size == whole for start, size, whole in zip(starts, sizes, x.shape, strict=True)):
        first = [
            0 if size == whole else min(max(int(start.array()), 0), whole - size)
            for start, size, whole in zip(starts, sizes, x.shape, strict=True)
        ]
        limit = [low + size for low, size in zip(first, sizes, strict=True)]
        return ctx.name(x) if sizes == x.shape else ctx.add("slice", x, start=first, limit=limit, strides=[1] * len(first))
    return ctx.add("dynamic_slice", x, _start(ctx, starts), sizes=sizes)


@TABLE.lowers("dynamic_update_slice")
def _dynamic_update_slice(ctx: Context, eqn: Equation) -> str:
    x, update, *starts = eqn.inputs
    return ctx.add("dynamic_update_slice", x, update, _start(ctx, starts)) if starts else ctx.name(update)


def reads_one_axis(equation: Equation) -> bool:
    """True if a gather reads whole slices of size 1 along one axis."""
    numbers, shape = equation.params["dimension_numbers"], equation.inputs[0].shape
    axes, sizes = tuple(map(int, numbers.start_index_map)), tuple(map(int, equation.params["slice_sizes"]))
    return len(axes) == 1 and not numbers.operand_batching_dims and sizes == (*shape[: axes[0]], 1, *shape[axes[0] + 1 :])


@TABLE.lowers("gather")
def _gather(ctx: Context, eqn: Equation) -> str:
    """Recognised as wrapping (:mod:`exporters.from_jax.patterns`), the indices lack their last axis."""
    x, indices = eqn.inputs
    numbers = eqn.params["dimension_numbers"]
    axes = tuple(map(int, numbers.start_index_map))
    fill = _fill_value(eqn) if eqn.params["mode"].name == "FILL_OR_DROP" else None
    if not reads_one_axis(eqn):
        return _gather_points(ctx, eqn, fill)
    axis, wrap = axes[0], eqn.params.get("wrap_negative", False)
    batch = indices.shape if wrap else indices.shape[:-1]
    flat = index_operand(ctx, ctx.reshape(indices, batch))
    result = ctx.add("take", x, flat, axis=axis, oob="clamp" if fill is None else "fill", wrap_negative=wrap, fill_value=fill)
    if not numbers.collapsed_slice_dims:
        shape = ctx.shape(result)
        result = ctx.reshape(result, (*shape[: axis + len(batch)], 1, *shape[axis + len(batch) :]))
    return _placed(ctx, result, list(range(axis, axis + len(batch))), tuple(numbers.offset_dims))


def _placed(ctx: Context, result: str, taken: Sequence[int], offsets: Sequence[int]) -> str:
    """Transposes to gather's order: the slice's own axes at ``offsets``, the axes ``taken`` of the indices at the other places."""
    rank = len(ctx.shape(result))
    order = [-1] * rank
    for position, source in zip(offsets, (axis for axis in range(rank) if axis not in taken), strict=True):
        order[position] = source
    rest = iter(taken)
    return ctx.transpose(result, [next(rest) if source < 0 else source for source in order])


def _gather_points(ctx: Context, eqn: Equation, fill: Any) -> str:
    """A gather of windows: their elements become points, one index per axis that is indexed or has a batch of its own."""
    x, indices = eqn.inputs
    numbers, sizes = eqn.params["dimension_numbers"], tuple(map(int, eqn.params["slice_sizes"]))
    mapped, batched = tuple(map(int, numbers.start_index_map)), tuple(map(int, numbers.operand_batching_dims))
    if any(sizes[axis] != x.shape[axis] for axis in range(len(sizes)) if axis not in (*mapped, *batched)):
        raise RefusedError("a gather of windows that are shorter than an axis without index")
    shared = [int(axis) for axis in numbers.start_indices_batching_dims]
    others = [axis for axis in range(len(indices.shape) - 1) if axis not in shared]
    rest = [axis for axis in range(len(sizes)) if axis not in (*mapped, *batched)]
    table = ctx.transpose(x, [*batched, *mapped, *rest])
    starts = ctx.transpose(index_operand(ctx, indices), [*shared, *others, len(indices.shape) - 1])
    window = [sizes[axis] for axis in mapped]
    room = [x.shape[axis] - sizes[axis] for axis in mapped]
    plain = math.prod(window) == 1
    points = starts if plain else _windows(ctx, _clamped(ctx, starts, room), window)
    oob = "clamp" if fill is None or not plain else "fill"
    if plain and len(mapped) == 1 and not rest and len(others) == 1 and len(shared) == len(batched):
        flat = ctx.reshape(points, ctx.shape(points)[:-1])
        options = {"oob": oob, "wrap_negative": False, "fill_value": fill if oob == "fill" else None}
        result = ctx.add("take_along_axis", table, flat, axis=len(batched), **options)
    else:
        options = {"oob": oob, "wrap_negative": False, "fill_value": fill if oob == "fill" else None}
        result = ctx.add("gather_nd", table, points, batch_dims=len(batched), **options)
    batch = len(shared) + len(others)
    if fill is not None and not plain:
        valid = _inside(ctx, starts, room)
        valid = ctx.reshape(valid, [*ctx.shape(valid), *[1] * (len(ctx.shape(result)) - batch)])
        result = ctx.add("select", valid, result, ctx.scalar(fill, x.dtype))
    kept = [axis for axis in range(len(sizes)) if axis not in (*batched, *map(int, numbers.collapsed_slice_dims))]
    shape = [ctx.shape(result)[axis] for axis in range(batch)]
    if plain:
        result = ctx.reshape(result, [*shape, *window, *(x.shape[axis] for axis in rest)])
    order = [*mapped, *rest]
    result = ctx.transpose(result, [*range(batch), *(batch + order.index(axis) for axis in sorted(order))])
    result = ctx.reshape(result, [*shape, *(sizes[axis] for axis in kept)])
    back = [*shared, *others]
    return _placed(ctx, result, [back.index(axis) for axis in range(batch)], tuple(numbers.offset_dims))


def _clamped(ctx: Context, starts: str, room: Sequence[int]) -> str:
    """Moves windows so that they lie inside."""
    dtype = ctx.builder.type(starts).dtype.numpy
    return str(ctx.add("max", ctx.add("min", starts, ctx.constant(np.array(room, dtype))), ctx.scalar(0, dtype)))


def _inside(ctx: Context, starts: str, room: Sequence[int]) -> str:
    """Returns for each window whether it lies inside."""
    dtype = ctx.builder.type(starts).dtype.numpy
    low = ctx.add("compare", starts, ctx.scalar(0, dtype), dir="ge")
    high = ctx.add("compare", starts, ctx.constant(np.array(room, dtype)), dir="le")
    axes = [len(ctx.shape(starts)) - 1]
    return str(ctx.add("reduce", ctx.add("and", low, high), kind="all", axes=axes, keepdims=False, nan="propagate", empty="identity"))


def _windows(ctx: Context, starts: str, window: Sequence[int]) -> str:
    """Returns the points [batch, window, D] of windows that begin at starts [batch, D]."""
    dtype, shape = ctx.builder.type(starts).dtype.numpy, ctx.shape(starts)
    begins = ctx.reshape(starts, [*shape[:-1], *[1] * len(window), shape[-1]])
    if math.prod(window) == 1:
        return begins
    offsets = np.array(list(itertools.product(*map(range, window))), dtype).reshape(*window, len(window))
    return str(ctx.add("add", begins, ctx.constant(offsets)))


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


_COMBINED = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter-sub": "add",
    "scatter-mul": "mul",
    "scatter-max": "max",
    "scatter-min": "min",
}
_COMBINED |= {name.replace("-", "_"): kind for name, kind in _COMBINED.items() if "-" in name}


@TABLE.lowers(*_COMBINED)
def _scatter(ctx: Context, eqn: Equation) -> str:
    """Every axis that is indexed, has a batch of its own or a short window gets a column of the points."""
    x, indices, updates = eqn.inputs
    numbers, clip = eqn.params["dimension_numbers"], eqn.params["mode"].name == "CLIP"
    if eqn.primitive == "scatter" and eqn.params["update_jaxpr"] is not None and _body(eqn.params["update_jaxpr"]).eqns:
        raise RefusedError("a scatter that applies a function, at positions that may repeat")
    mapped, batched = tuple(map(int, numbers.scatter_dims_to_operand_dims)), tuple(map(int, numbers.operand_batching_dims))
    own = tuple(map(int, numbers.update_window_dims))
    inserted = (*map(int, numbers.inserted_window_dims), *batched)
    window_axes = [axis for axis in range(len(x.shape)) if axis not in inserted]
    sizes = [1] * len(x.shape)
    for axis, position in zip(window_axes, own, strict=True):
        sizes[axis] = updates.shape[position]
    short = [axis for axis in window_axes if axis not in mapped and sizes[axis] != x.shape[axis]]
    rest = [axis for axis in window_axes if axis not in (*mapped, *short)]
    batch_axes = [position for position in range(len(updates.shape)) if position not in own]
    batch = [updates.shape[position] for position in batch_axes]
    by_axis = dict(zip(window_axes, own, strict=True))
    columns = [*mapped, *short]
    values = ctx.transpose(updates, [*batch_axes, *(by_axis[axis] for axis in (*columns, *rest) if axis in by_axis)])
    values = ctx.reshape(values, [*batch, *(sizes[axis] for axis in columns), *(sizes[axis] for axis in rest)])
    values = ctx.add("neg", values) if eqn.primitive in ("scatter-sub", "scatter_sub") else values
    room = [x.shape[axis] - sizes[axis] for axis in mapped]
    if not batch and not batched and _COMBINED[eqn.primitive] == "none" and indices.constant is not None:
        first = indices.array().reshape(-1)
        first = np.clip(first, 0, room) if clip else first
        if all(0 <= start <= most for start, most in zip(first, room, strict=True)):
            start = np.zeros(len(x.shape), np.int64)
            start[list(mapped)] = first
            order = [*columns, *rest]
            update = ctx.transpose(ctx.reshape(values, [sizes[axis] for axis in order]), [order.index(axis) for axis in range(len(order))])
            return ctx.add("dynamic_update_slice", x, update, ctx.constant(start))
    starts = index_operand(ctx, indices)
    dtype = ctx.builder.type(starts).dtype.numpy
    drops = False
    if clip:
        starts = _clamped(ctx, starts, room)
    elif drops := math.prod(sizes[axis] for axis in mapped) > 1:  # a window that is not inside is dropped whole
        valid = _inside(ctx, starts, room)
        starts = ctx.add("select", ctx.reshape(valid, [*ctx.shape(valid), 1]), starts, ctx.scalar(-1, dtype))
    if short:
        starts = ctx.add("concat", starts, ctx.constant(np.zeros((*ctx.shape(starts)[:-1], len(short)), dtype)), axis=len(batch))
    window = [sizes[axis] for axis in columns]
    points = _windows(ctx, starts, window)
    if drops:
        begins = ctx.reshape(starts, [*batch, *[1] * len(window), len(window)])
        points = ctx.add("select", ctx.add("compare", begins, ctx.scalar(0, dtype), dir="lt"), ctx.scalar(-1, dtype), points)
    for axis, position in zip(batched, map(int, numbers.scatter_indices_batching_dims), strict=True):
        shape = [*batch, *window, 1]
        steps = ctx.add("iota", dtype=ctx.builder.type(points).dtype.value, shape=shape, axis=position)
        points = ctx.add("concat", points, steps, axis=len(shape) - 1)
        columns = [*columns, axis]
    order = [*columns, *rest]
    table = ctx.transpose(x, order)
    result = ctx.add("scatter_nd", table, points, values, reduce=_COMBINED[eqn.primitive], oob="drop", wrap_negative=False)
    return ctx.transpose(result, [order.index(axis) for axis in range(len(order))])


def _body(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


_CUMULATIVE = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "cumlogsumexp": "logsumexp"}


@TABLE.lowers(*_CUMULATIVE)
def _cumulative(ctx: Context, eqn: Equation) -> str:
    kind, axis, reverse = _CUMULATIVE[eqn.primitive], eqn.params["axis"], eqn.params["reverse"]
    return ctx.add("cumulative", eqn.inputs[0], kind=kind, axis=axis, exclusive=False, reverse=reverse)


@TABLE.lowers("sort")
def _sort(ctx: Context, eqn: Equation) -> list[str]:
    """Sorts by the last key first: each sort is stable, so it keeps that order among equals of the next key."""
    axis, keys = int(eqn.params["dimension"]), eqn.inputs[: eqn.params["num_keys"]]
    values, order = "", ""
    for key in reversed(keys):
        operand = _along(ctx, key, order, axis) if order else ctx.name(key)
        values, found = ctx.add("sort", operand, axis=axis, descending=False, stable=True, index_dtype="i32")
        order = _along(ctx, order, found, axis) if order else found
    results = [values]
    for value in eqn.inputs[1:]:
        results.append(ctx.cast(order, value.dtype) if _counts(value, axis) else _along(ctx, value, order, axis))
    return results


def _along(ctx: Context, x: Value | str, indices: str, axis: int) -> str:
    options = {"axis": axis, "oob": "clamp", "wrap_negative": False, "fill_value": None}
    return str(ctx.add("take_along_axis", x, indices, **options))


def _counts(value: Value, axis: int) -> bool:
    """True if a value holds its own position along the axis, as the second operand of argsort's sort does."""
    if value.producer is not None and value.producer.primitive == "iota":
        return bool(value.producer.params["dimension"] == axis)
    if value.constant is None or np.dtype(value.dtype).kind not in "iu":
        return False
    steps = np.arange(value.shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(value.shape))])
    return bool((value.array() == steps).all())


@TABLE.lowers("top_k", "approx_top_k")
def _top_k(ctx: Context, eqn: Equation) -> list[str]:
    x, params = eqn.inputs[0], eqn.params
    axis = int(params.get("reduction_dimension", params.get("axis", len(x.shape) - 1))) % len(x.shape)
    values, indices = ctx.add(
        "topk", x, k=int(params["k"]), axis=axis, largest=bool(params.get("is_max_k", True)), sorted=True, index_dtype="i32"
    )
    return [values, ctx.cast(indices, eqn.outputs[1].dtype)]
