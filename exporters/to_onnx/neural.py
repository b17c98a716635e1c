"""Normalisation and softmax."""

from __future__ import annotations

import math

import numpy as np

from exporters.to_onnx.context import ONNX, Context, Laid
from exporters.to_onnx.reductions import reduced
from rml_exec.types import DType


@ONNX.lowers("batch_norm")
def _batch_norm(ctx: Context, *, eps: float, axis: int) -> Laid:
    rank = ctx.rank()
    order = (*(at for at in range(rank) if at != axis),)
    order = (order[0], axis, *order[1:]) if rank > 1 else (0,)
    if rank > 1:
        operands = [ctx.input(0, order), *(ctx.input(index) for index in range(1, 5))]
        return Laid(ctx.emit("BatchNormalization", *operands, epsilon=float(eps)), order)
    factor = ctx.emit("Div", ctx.input(1), ctx.emit("Sqrt", ctx.emit("Add", ctx.input(4), ctx.number(eps))))
    return Laid(ctx.emit("Add", ctx.emit("Mul", ctx.emit("Sub", ctx.input(0), ctx.input(3)), factor), ctx.input(2)), order)


def _vector(ctx: Context, index: int, shape: tuple[int, ...], value: float) -> str:
    """Returns a scale or bias, one of equal numbers where it is absent."""
    return ctx.input(index) if ctx.has(index) else ctx.constant(np.full(shape, value, ctx.dtype().numpy))


@ONNX.lowers("layer_norm")
def _layer_norm(ctx: Context, *, axes: tuple[int, ...], eps: float, variance: str) -> str:
    sizes = tuple(ctx.size(axis) for axis in axes)
    return ctx.emit("LayerNormalization", ctx.input(0), _vector(ctx, 1, sizes, 1), ctx.optional(2), axis=axes[0], epsilon=float(eps))


@ONNX.lowers("rms_norm")
def _rms_norm(ctx: Context, *, axes: tuple[int, ...], eps: float) -> str:
    """Before opset 23 in the form that runtimes fuse."""
    x = ctx.input(0)
    if ctx.opset >= 23:
        sizes = tuple(ctx.size(axis) for axis in axes)
        return ctx.emit("RMSNormalization", x, _vector(ctx, 1, sizes, 1), axis=axes[0], epsilon=float(eps))
    half = ctx.dtype() is DType.F16
    dtype = DType.F32 if half else ctx.dtype()
    x = ctx.cast(x, dtype) if half else x
    mean = reduced(ctx, "ReduceMean", ctx.emit("Pow", x, ctx.constant(2, dtype)), axes, True)
    y = ctx.emit("Div", x, ctx.emit("Sqrt", ctx.emit("Add", mean, ctx.constant(eps, dtype))))
    if ctx.has(1):
        y = ctx.emit("Mul", y, ctx.cast(ctx.input(1), dtype) if half else ctx.input(1))
    return ctx.cast(y, DType.F16) if half else y


@ONNX.lowers("group_norm")
def _group_norm(ctx: Context, *, groups: int, axis: int, eps: float) -> Laid:
    rank = ctx.rank()
    order = (0, axis, *(at for at in range(1, rank) if at != axis))
    x, channels = ctx.input(0, order), ctx.size(axis)
    shape = [ctx.shape()[at] for at in order]
    if groups == channels and rank > 2:
        operands = (x, _vector(ctx, 1, (channels,), 1), _vector(ctx, 2, (channels,), 0))
        return Laid(ctx.emit("InstanceNormalization", *operands, epsilon=float(eps)), order)
    if ctx.opset >= 21 and rank > 2:
        operands = (x, _vector(ctx, 1, (channels,), 1), _vector(ctx, 2, (channels,), 0))
        return Laid(ctx.emit("GroupNormalization", *operands, epsilon=float(eps), num_groups=groups), order)
    grouped = ctx.emit("Reshape", x, ctx.ints([0, groups, -1]))
    ones, zeros = (ctx.constant(np.full(groups, value, ctx.dtype().numpy)) for value in (1, 0))
    y = ctx.emit("Reshape", ctx.emit("InstanceNormalization", grouped, ones, zeros, epsilon=float(eps)), ctx.ints(shape))
    for index, operator in ((1, "Mul"), (2, "Add")):
        if ctx.has(index):
            y = ctx.emit(operator, y, ctx.scope.column(ctx.held(index), rank - 2))
    return Laid(y, order)


@ONNX.lowers("softmax")
def _softmax(ctx: Context, *, axis: int, fully_masked: str) -> str:
    x = ctx.input(0)
    y = ctx.emit("Softmax", x, axis=axis)
    if fully_masked == "nan":
        return y
    masked = ctx.emit("Equal", reduced(ctx, "ReduceMax", x, [axis], True), ctx.number(-math.inf))
    return ctx.emit("Where", masked, ctx.number(0), y)


@ONNX.lowers("log_softmax")
def _log_softmax(ctx: Context, *, axis: int) -> str:
    return ctx.emit("LogSoftmax", ctx.input(0), axis=axis)
