"""Ops that read or write at positions which another operand holds.

ONNX's operators count negative indices from the end and fail on those out of range. What our ops say instead is written around them where
the positions are not known to be in range; in ``take``, which models spend time in, only when edge cases are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.to_onnx.context import ONNX, Context, Held
from exporters.to_onnx.reductions import reduced
from rml_exec.ir.dims import Expr
from rml_exec.types import DType

_END = 2**63 - 1


def _in_range(ctx: Context, index: int, sizes: Sequence[int | Expr], wrap_negative: bool) -> bool:
    """True if operand ``index`` is known to hold legal positions only, its last axis (or all of it) along ``sizes``."""
    known = ctx.known(index)
    if known is None or any(isinstance(size, Expr) for size in sizes):
        return False
    limits = np.array(sizes, np.int64)
    lowest = -limits if wrap_negative else np.zeros_like(limits)
    return bool(np.all((known >= lowest) & (known < limits)))


def _positions(ctx: Context, index: int, sizes: Sequence[int | Expr], wrap_negative: bool) -> str:
    """Emits the indices as i64, negative ones counted from the end where that is asked for; others stay negative."""
    positions = ctx.input(index)
    if ctx.dtype(index) is not DType.I64:
        positions = ctx.cast(positions, DType.I64)
    if not wrap_negative:
        return positions
    wrapped = ctx.emit("Add", positions, ctx.ints(sizes))
    return ctx.emit("Where", ctx.emit("Less", positions, ctx.constant(np.int64(0))), wrapped, positions)


def _clamped(ctx: Context, positions: str, sizes: Sequence[int | Expr]) -> str:
    zero = ctx.constant(np.int64(0))
    last = ctx.emit("Sub", ctx.ints(sizes), ctx.constant(np.int64(1)))
    return ctx.emit("Max", ctx.emit("Min", positions, last), zero)


def _outside(ctx: Context, positions: str, sizes: Sequence[int | Expr]) -> str:
    below = ctx.emit("Less", positions, ctx.constant(np.int64(0)))
    return ctx.emit("Or", below, ctx.emit("GreaterOrEqual", positions, ctx.ints(sizes)))


def _any_outside(ctx: Context, outside: str) -> str:
    """Emits which points have any coordinate out of range; the last axis holds a point's coordinates."""
    return ctx.cast(reduced(ctx, "ReduceMax", ctx.cast(outside, DType.I32), [-1], False), DType.BOOL)


@ONNX.lowers("take")
def _take(ctx: Context, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> str:
    x, sizes = ctx.input(0), [ctx.shape()[axis]]
    if oob == "fill" and ctx.held(0).type.shape[axis] == 0:
        return _filled(ctx, fill_value)
    if oob == "error" or not ctx.edge_cases or _in_range(ctx, 1, sizes, wrap_negative):
        return ctx.emit("Gather", x, ctx.input(1), axis=axis)
    positions = _positions(ctx, 1, sizes, wrap_negative)
    y = ctx.emit("Gather", x, _clamped(ctx, positions, sizes), axis=axis)
    if oob == "clamp":
        return y
    outside = _outside(ctx, positions, sizes)
    behind = ctx.rank() - axis - 1
    if behind:
        outside = ctx.emit("Reshape", outside, ctx.ints([*ctx.shape(1), *[1] * behind]))
    return ctx.emit("Where", outside, ctx.number(fill_value or 0), y)


def _filled(ctx: Context, value: float | None) -> str:
    return ctx.emit("Expand", ctx.number(value or 0), ctx.ints(ctx.result()[1]))


@ONNX.lowers("take_along_axis")
def _take_along_axis(ctx: Context, *, axis: int, oob: str, wrap_negative: bool, fill_value: float | None) -> str:
    x, sizes = ctx.input(0), [ctx.shape()[axis]]
    if oob == "fill" and ctx.held(0).type.shape[axis] == 0:
        return _filled(ctx, fill_value)
    if oob == "error" or _in_range(ctx, 1, sizes, wrap_negative):
        return ctx.emit("GatherElements", x, ctx.input(1), axis=axis)
    positions = _positions(ctx, 1, sizes, wrap_negative)
    y = ctx.emit("GatherElements", x, _clamped(ctx, positions, sizes), axis=axis)
    return y if oob == "clamp" else ctx.emit("Where", _outside(ctx, positions, sizes), ctx.number(fill_value or 0), y)


@ONNX.lowers("gather_nd")
def _gather_nd(ctx: Context, *, batch_dims: int, oob: str, wrap_negative: bool, fill_value: float | None) -> str | Held:
    depth = ctx.size(-1, 1)
    x, sizes = ctx.input(0), ctx.shape()[batch_dims : batch_dims + depth]
    if oob == "fill" and 0 in ctx.held(0).type.shape[batch_dims : batch_dims + depth]:
        return _filled(ctx, fill_value)
    if not depth:  # every point is all of x
        between = ctx.rank(1) - 1 - batch_dims
        shape = [*ctx.shape()[:batch_dims], *[1] * between, *ctx.shape()[batch_dims:]]
        return ctx.emit("Expand", ctx.emit("Reshape", x, ctx.ints(shape)), ctx.ints(ctx.result()[1]))
    if oob == "error" or _in_range(ctx, 1, sizes, wrap_negative):
        return ctx.emit("GatherND", x, _positions(ctx, 1, sizes, False), batch_dims=batch_dims)
    positions = _positions(ctx, 1, sizes, wrap_negative)
    y = ctx.emit("GatherND", x, _clamped(ctx, positions, sizes), batch_dims=batch_dims)
    if oob == "clamp":
        return y
    outside = _any_outside(ctx, _outside(ctx, positions, sizes))
    behind = ctx.rank() - batch_dims - depth
    if behind:
        outside = ctx.emit("Reshape", outside, ctx.ints([*ctx.shape(1)[:-1], *[1] * behind]))
    return ctx.emit("Where", outside, ctx.number(fill_value or 0), y)


def _window(ctx: Context, index: int, sizes: Sequence[int | Expr]) -> tuple[str, str]:
    """Emits first and end positions of a window of ``sizes`` that begins at operand ``index``, moved into x."""
    sizes_, start = ctx.ints(sizes), _positions(ctx, index, (), False)
    room = ctx.emit("Sub", ctx.ints(ctx.shape()), sizes_)
    first = ctx.emit("Max", ctx.emit("Min", start, room), ctx.constant(np.int64(0)))
    return first, ctx.emit("Add", first, sizes_)


@ONNX.lowers("dynamic_slice")
def _dynamic_slice(ctx: Context, *, sizes: tuple[int | Expr, ...]) -> str:
    if not sizes or sizes == ctx.shape():
        return ctx.input(0)
    return ctx.emit("Slice", ctx.input(0), *_window(ctx, 1, sizes))


@ONNX.lowers("dynamic_update_slice")
def _dynamic_update_slice(ctx: Context) -> str:
    """What lies before, the update, what lies behind: one concatenation per axis that the update does not fill."""
    sizes = ctx.shape(1)
    axes = [axis for axis in range(ctx.rank()) if sizes[axis] != ctx.shape()[axis]]
    if not axes:
        return ctx.input(1)
    if 0 in ctx.held(1).type.shape:
        return ctx.input(0)
    first, end = _window(ctx, 2, sizes)
    return _replaced(ctx, ctx.input(0), axes, first, end)


def _replaced(ctx: Context, x: str, axes: Sequence[int], first: str, end: str) -> str:
    if not axes:
        return ctx.input(1)
    at = ctx.ints(axes[:1])
    low, high = (ctx.emit("Gather", bound, at, axis=0) for bound in (first, end))
    middle = _replaced(ctx, ctx.emit("Slice", x, low, high, at) if len(axes) > 1 else x, axes[1:], first, end)
    before, behind = ctx.emit("Slice", x, ctx.ints([0]), low, at), ctx.emit("Slice", x, high, ctx.ints([_END]), at)
    return ctx.emit("Concat", before, middle, behind, axis=axes[0])


def _scattered(ctx: Context, operator: str, x: str, positions: str, updates: str, reduce: str, axis: int | None = None) -> str:
    """Emits a scatter; halves are combined in f32."""
    if reduce in ("max", "min"):
        ctx.needs_opset(18, f"{ctx.node.op} with reduce {reduce}")
    half = reduce != "none" and ctx.dtype() is DType.F16
    if half:
        x, updates = ctx.cast(x, DType.F32), ctx.cast(updates, DType.F32)
    y = ctx.emit(operator, x, positions, updates, axis=axis, reduction=None if reduce == "none" else reduce)
    return ctx.cast(y, DType.F16) if half else str(y)


@ONNX.lowers("scatter_along_axis")
def _scatter_along_axis(ctx: Context, *, axis: int, reduce: str, oob: str, wrap_negative: bool) -> str:
    x, updates, sizes = ctx.input(0), ctx.input(2), [ctx.shape()[axis]]
    operator = "ScatterElements"
    if not ctx.held(1).type.size:
        return x
    if oob == "error" or _in_range(ctx, 1, sizes, wrap_negative):
        return _scattered(ctx, operator, x, ctx.input(1), updates, reduce, axis)
    positions = _positions(ctx, 1, sizes, wrap_negative)
    if oob == "clamp":
        return _scattered(ctx, operator, x, _clamped(ctx, positions, sizes), updates, reduce, axis)
    # What is dropped goes to one more place at the end of the axis.
    positions = ctx.emit("Where", _outside(ctx, positions, sizes), ctx.ints(sizes), positions)
    y = _scattered(ctx, operator, _with_spare(ctx, x, axis), positions, updates, reduce, axis)
    return ctx.emit("Slice", y, ctx.ints([0]), ctx.ints([-1]), ctx.ints([axis]))


def _with_spare(ctx: Context, x: str, axis: int) -> str:
    """Emits x with one more element along an axis."""
    shape = list(ctx.shape())
    shape[axis] = 1
    spare = ctx.emit("Expand", ctx.number(0), ctx.ints(shape))
    return ctx.emit("Concat", x, spare, axis=axis)


@ONNX.lowers("scatter_nd")
def _scatter_nd(ctx: Context, *, reduce: str, oob: str, wrap_negative: bool) -> str:
    x, updates, depth = ctx.input(0), ctx.input(2), ctx.size(-1, 1)
    sizes, operator = ctx.shape()[:depth], "ScatterND"
    if not ctx.held(2).type.size:
        return x
    if not depth:
        return _scattered_whole(ctx, x, updates, reduce)
    if oob == "error" or _in_range(ctx, 1, sizes, wrap_negative):
        return _scattered(ctx, operator, x, _positions(ctx, 1, sizes, False), updates, reduce)
    positions = _positions(ctx, 1, sizes, wrap_negative)
    if oob == "clamp":
        return _scattered(ctx, operator, x, _clamped(ctx, positions, sizes), updates, reduce)
    outside = ctx.emit("Unsqueeze", _any_outside(ctx, _outside(ctx, positions, sizes)), ctx.ints([-1]))
    spare = ctx.ints([sizes[0], *[0] * (depth - 1)])
    y = _scattered(ctx, operator, _with_spare(ctx, x, 0), ctx.emit("Where", outside, spare, positions), updates, reduce)
    return ctx.emit("Slice", y, ctx.ints([0]), ctx.ints([-1]), ctx.ints([0]))


def _scattered_whole(ctx: Context, x: str, updates: str, reduce: str) -> str:
    """Emits x combined with every one of the updates, which have its shape."""
    rows = ctx.emit("Reshape", updates, ctx.ints([-1, *ctx.shape()]))
    if reduce == "none":
        return ctx.emit("Gather", rows, ctx.constant(np.int64(-1)), axis=0)
    operators = {"add": ("ReduceSum", "Add"), "mul": ("ReduceProd", "Mul"), "max": ("ReduceMax", "Max"), "min": ("ReduceMin", "Min")}
    over, combine = operators[reduce]
    return ctx.emit(combine, x, reduced(ctx, over, rows, [0], False))
