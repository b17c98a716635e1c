"""Ops that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.to_onnx.context import ONNX, Context, Held, Laid, Shape, channels_first, long_axes
from rml_exec.ir.dims import Expr
from rml_exec.types import DType, TensorType

_END = 2**63 - 1


@ONNX.lowers("reshape")
def _reshape(ctx: Context, *, shape: Shape) -> Laid | str:
    if shape == ctx.shape():
        return Laid(ctx.input(0, ctx.order()), ctx.order())
    found = _without_transpose(ctx, shape)
    return found or ctx.emit("Reshape", ctx.input(0), _target(ctx, shape))


def _without_transpose(ctx: Context, shape: Shape) -> Laid | None:
    """Emits a reshape that adds or drops axes of size 1 on x in the order it has; None where that does not do."""
    x, rank = ctx.held(0), len(shape)
    short, long = long_axes(x.shape, ()), long_axes(shape, ())
    if () in x.tensors or x.array is not None or [x.shape[axis] for axis in short] != [shape[axis] for axis in long]:
        return None
    for order, name in x.tensors.items():
        kept = [long[short.index(axis)] for axis in long_axes(x.shape, order)]
        for wanted in (tuple(range(rank)), channels_first(rank) if rank > 2 else (), _placed(kept, rank)):
            if wanted and long_axes(shape, wanted) == kept:
                return Laid(ctx.emit("Reshape", name, ctx.ints([shape[axis] for axis in wanted])), wanted)
    return None


def _placed(kept: list[int], rank: int) -> tuple[int, ...]:
    """Returns an order of all axes that has ``kept`` in this order, the others first."""
    return (*(axis for axis in range(rank) if axis not in kept), *kept)


def _target(ctx: Context, shape: Shape) -> str:
    """Returns the operand of Reshape: plain numbers wherever possible, for 0 copies a size and one may be inferred."""
    given: list[int | Expr] = list(shape)
    if any(isinstance(size, Expr) for size in shape) and 0 not in shape:
        for axis, (size, had) in enumerate(zip(shape, ctx.shape(), strict=False)):
            if isinstance(size, Expr) and size == had:
                given[axis] = 0
        unknown = [axis for axis, size in enumerate(given) if isinstance(size, Expr)]
        if len(unknown) == 1:
            given[unknown[0]] = -1
    return ctx.ints(given)


@ONNX.lowers("transpose")
def _transpose(ctx: Context, *, perm: tuple[int, ...]) -> Held:
    """Nothing is emitted: the tensors of x hold y, in other orders of its axes."""
    x = ctx.held(0)
    type_, shape = ctx.result()
    if x.array is not None or (not x.tensors and x.base is not None):
        ctx.input(0)
    tensors = {}
    for order, name in x.tensors.items():
        found = tuple(perm.index(axis) for axis in order or range(x.type.rank))
        tensors[() if found == tuple(range(len(perm))) else found] = name
    return Held(type_, shape, tensors)


@ONNX.lowers("broadcast")
def _broadcast(ctx: Context, *, shape: Shape) -> Held | str:
    x = ctx.held(0)
    if shape == x.shape:
        return ctx.input(0)
    return Held(*ctx.result(), base=x.base or x)


@ONNX.lowers("slice")
def _slice(ctx: Context, *, start: Shape, limit: Shape, strides: tuple[int, ...]) -> Laid | str:
    order = ctx.order()
    x, shape = ctx.input(0, order), ctx.shape()
    cut = [axis for axis in range(ctx.rank()) if (start[axis], limit[axis], strides[axis]) != (0, shape[axis], 1)]
    if not cut:
        return Laid(x, order)
    limits = [_END if limit[axis] == shape[axis] else limit[axis] for axis in cut]
    steps = [strides[axis] for axis in cut]
    operands = (ctx.ints([start[axis] for axis in cut]), ctx.ints(limits), ctx.ints([order.index(axis) for axis in cut]))
    return Laid(ctx.emit("Slice", x, *operands, None if set(steps) == {1} else ctx.ints(steps)), order)


@ONNX.lowers("reverse")
def _reverse(ctx: Context, *, axes: tuple[int, ...]) -> Laid | str:
    order = ctx.order()
    x = ctx.input(0, order)
    if not axes:
        return Laid(x, order)
    count = len(axes)
    operands = ([-1] * count, [-_END] * count, [order.index(axis) for axis in axes], [-1] * count)
    return Laid(ctx.emit("Slice", x, *map(ctx.ints, operands)), order)


@ONNX.lowers("concat")
def _concat(ctx: Context, *, axis: int) -> Laid:
    largest = max(range(len(ctx.operands)), key=lambda index: ctx.held(index).type.size)
    order = ctx.order(largest)
    parts = [ctx.input(index, order) for index in range(len(ctx.operands))]
    return Laid(parts[0] if len(parts) == 1 else ctx.emit("Concat", *parts, axis=order.index(axis)), order)


@ONNX.lowers("pad")
def _pad(ctx: Context, *, mode: str, low: Shape, high: Shape, interior: tuple[int, ...], value: float | None) -> Laid:
    order = ctx.order()
    x = ctx.input(0, order)
    number = None if value is None or value == 0 else ctx.number(value)
    if any(interior):
        order = tuple(range(ctx.rank()))
        x = _spread(ctx, ctx.input(0), interior, number)
    lows, highs = [low[axis] for axis in order], [high[axis] for axis in order]
    if not any(isinstance(amount, Expr) or amount for amount in (*lows, *highs)):
        return Laid(x, order)
    if mode != "constant":
        return Laid(_repeated(ctx, x, [*lows, *highs], mode), order)
    return Laid(ctx.emit("Pad", x, ctx.ints([*lows, *highs]), number, mode=mode), order)


def _repeated(ctx: Context, x: str, given: Sequence[int | Expr], mode: str) -> str:
    """Emits a pad that repeats elements of x: first what is added, then the crop, for what is cropped may be repeated."""
    amounts = [ctx.fixed(amount, f"a pad of mode {mode}") for amount in given]
    added, rank = [max(amount, 0) for amount in amounts], len(amounts) // 2
    if any(added):
        x = ctx.emit("Pad", x, ctx.ints(added), mode=mode)
    cropped = [axis for axis in range(rank) if min(amounts[axis], amounts[rank + axis]) < 0]
    if not cropped:
        return x
    starts = [max(-amounts[axis], 0) for axis in cropped]
    ends = [min(amounts[rank + axis], 0) or _END for axis in cropped]
    return str(ctx.emit("Slice", x, ctx.ints(starts), ctx.ints(ends), ctx.ints(cropped)))


def _spread(ctx: Context, x: str, interior: Sequence[int], value: str | None) -> str:
    """Emits x with values between its neighbours: each element with what follows it, less what follows the last one."""
    shape = list(ctx.sizes())
    for axis, between in enumerate(interior):
        if not between or shape[axis] < 2:
            continue
        head, tail = shape[: axis + 1], shape[axis + 1 :]
        x = ctx.emit("Reshape", x, ctx.ints([*head, 1, *tail]))
        x = ctx.emit("Pad", x, ctx.ints([0] * (len(shape) + 1) + [between if at == axis + 1 else 0 for at in range(len(shape) + 1)]), value)
        x = ctx.emit("Reshape", x, ctx.ints([*head[:-1], head[-1] * (between + 1), *tail]))
        shape[axis] += (shape[axis] - 1) * between
        x = ctx.emit("Slice", x, ctx.ints([0]), ctx.ints([shape[axis]]), ctx.ints([axis]))
    return x


@ONNX.lowers("iota")
def _iota(ctx: Context, *, dtype: str, shape: Shape, axis: int) -> Held:
    type_, _ = ctx.result()
    count = shape[axis]
    if isinstance(count, Expr):
        scalar = ctx.constant(np.zeros(0, np.int64))
        counted = ctx.emit("Reshape", ctx.ints([count]), scalar)
        line = ctx.emit("Range", ctx.constant(np.int64(0)), counted, ctx.constant(np.int64(1)))
        line = line if type_.dtype is DType.I64 else ctx.cast(line, type_.dtype)
    else:
        line = ctx.constant(np.arange(count).astype(type_.dtype.numpy))
    column = (count,) + (1,) * (len(shape) - axis - 1)
    hinted = (type_.shape[axis],) + (1,) * (len(shape) - axis - 1)
    if len(column) > 1:
        line = ctx.emit("Reshape", line, ctx.ints([-1, *column[1:]]))
    base = Held(TensorType(type_.dtype, hinted), column, {(): line})
    return base if column == shape else Held(*ctx.result(), base=base)
