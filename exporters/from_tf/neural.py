"""Convolution, pooling, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from exporters.from_tf.elementwise import cast_to
from exporters.from_tf.table import TABLE, Context, Known, RefusalError, Value

__all__ = ["CONVOLUTIONS", "add_conv", "relay_filter"]

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


def _spatial(ctx: Context, values: Sequence[int], what: str) -> list[int]:
    """Returns the spatial entries of a list with one entry per axis; refuses work along the batch or the channels."""
    channel = 1 if _channels_first(ctx) else len(values) - 1
    if values[0] != 1 or values[channel] != 1:
        raise RefusalError(f"{what} along the batch or the channels is not supported")
    return [value for axis, value in enumerate(values) if axis not in (0, channel)]


def _channels_first(ctx: Context) -> bool:
    layout = ctx.attr("data_format")
    if layout not in ("NHWC", "NCHW", "NDHWC", "NCDHW"):
        raise RefusalError(f"data_format {layout} is not supported")
    return layout.startswith("NC")


def _layout(ctx: Context) -> str:
    return "NCHW" if _channels_first(ctx) else "NHWC"


def _sizes(ctx: Context, x: Value) -> tuple[int, ...]:
    """Returns the spatial sizes of an image tensor."""
    shape = ctx.shape(x)
    return shape[2:] if _channels_first(ctx) else shape[1:-1]


def _pads(ctx: Context, x: Value, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns the explicit pads. SAME needs ``(ceil(n/s) - 1) * s + k - n`` of them, the odd one at the end."""
    padding = ctx.attr("padding")
    if padding == "VALID":
        return ((0, 0),) * len(window)
    if padding == "EXPLICIT":
        flat = ctx.attr("explicit_paddings")
        first = 4 if _channels_first(ctx) else 2
        return tuple((flat[first + 2 * axis], flat[first + 2 * axis + 1]) for axis in range(len(window)))
    pads = []
    for size, extent, stride, dilation in zip(_sizes(ctx, x), window, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def relay_filter(ctx: Context, filters: Value, depthwise: bool) -> Value:
    """Returns convolution weights as ``conv2d`` wants them, OIHW: data where they are known, nodes where they are computed.

    A depthwise filter is [H, W, C, M] and becomes [C*M, 1, H, W]: output channel ``c * M + m`` reads input channel ``c``.
    """
    height, width, inner, outer = ctx.shape(filters)
    perm = (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)
    shape = (inner * outer, 1, height, width) if depthwise else (outer, inner, height, width)
    if isinstance(filters, Known):
        data = np.ascontiguousarray(filters.array.transpose(perm)).reshape(shape)
        layout = "depthwise" if depthwise else "oihw"
        return replace(filters, array=data, layout=f"{filters.layout}.{layout}".strip("."))
    return ctx.reshape(ctx.transpose(filters, perm), shape)


def add_conv(
    ctx: Context,
    x: Value,
    weights: Value,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    data_layout: str,
) -> Value:
    """Returns a 2-D convolution with OIHW weights; it has as many groups as the image has channels for each channel of the weights."""
    groups = ctx.shape(x)[1 if data_layout == "NCHW" else 3] // ctx.shape(weights)[1]
    attrs = {"strides": tuple(strides), "pads": tuple(pads), "dilations": tuple(dilations)}
    return ctx.add("conv2d", x, weights, None, groups=groups, data_layout=data_layout, **attrs)


@TABLE.lowers(*CONVOLUTIONS)
def _conv2d(ctx: Context, x: Value, filters: Value) -> Value:
    weights = relay_filter(ctx, filters, ctx.op.type != "Conv2D")
    strides, dilations = _spatial(ctx, ctx.attr("strides"), "a stride"), _spatial(ctx, ctx.attr("dilations"), "a dilation")
    pads = _pads(ctx, x, ctx.shape(weights)[2:], strides, dilations)
    return add_conv(ctx, x, weights, strides, pads, dilations, _layout(ctx))


@TABLE.lowers("BiasAdd", "BiasAddV1")
def _bias_add(ctx: Context, x: Value, bias: Value) -> Value:
    if ctx.op.type == "BiasAdd" and ctx.attr("data_format") == "NCHW":
        bias = ctx.reshape(bias, (*ctx.shape(bias), *(1,) * (len(ctx.shape(x)) - 2)))
    return ctx.add("add", x, bias)


@TABLE.lowers("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _fused_batch_norm(ctx: Context, x: Value, scale: Value, offset: Value, mean: Value, variance: Value) -> Sequence[Value]:
    """Half-precision images are normalised in f32, as TensorFlow does."""
    if ctx.attr("is_training"):
        raise RefusalError("batch normalisation in training mode: call the model with training=False")
    dtype = ctx.type(x).dtype
    wide = cast_to(ctx, x, ctx.type(scale).dtype)
    axis = 1 if _channels_first(ctx) else len(ctx.shape(x)) - 1
    y = ctx.add("batch_norm", wide, scale, offset, mean, variance, eps=ctx.attr("epsilon"), axis=axis)
    unused = [mean] * (len(ctx.op.outputs) - 3)  # reserved for the gradient
    return [cast_to(ctx, y, dtype), mean, variance, *unused]


@TABLE.lowers("MaxPool", "MaxPoolV2", "MaxPool3D")
def _max_pool(ctx: Context, x: Value, ksize: Value | None = None, strides: Value | None = None) -> Value:
    """NaN loses against any number. (In three dimensions TensorFlow's result depends on where in the window it stands.)"""
    window = _spatial(ctx, ctx.attr("ksize") if ksize is None else ctx.ints(ksize, "the window"), "a window")
    steps = _spatial(ctx, ctx.attr("strides") if strides is None else ctx.ints(strides, "the strides"), "a stride")
    ones = (1,) * len(window)
    attrs = {"window": tuple(window), "strides": tuple(steps), "pads": _pads(ctx, x, window, steps, ones), "dilations": ones}
    return ctx.add("max_pool", x, data_layout=_layout(ctx), nan="skip", **attrs)


@TABLE.lowers("AvgPool", "AvgPool3D")
def _avg_pool(ctx: Context, x: Value) -> Value:
    """Pads are not counted."""
    window, steps = _spatial(ctx, ctx.attr("ksize"), "a window"), _spatial(ctx, ctx.attr("strides"), "a stride")
    attrs = {"window": tuple(window), "strides": tuple(steps), "pads": _pads(ctx, x, window, steps, (1,) * len(window))}
    return ctx.add("avg_pool", x, data_layout=_layout(ctx), divisor="valid", divisor_value=None, **attrs)


@TABLE.lowers("Softmax")
def _softmax(ctx: Context, x: Value) -> Value:
    return ctx.add("softmax", x, axis=len(ctx.shape(x)) - 1, fully_masked="nan")


@TABLE.lowers("LogSoftmax")
def _log_softmax(ctx: Context, x: Value) -> Value:
    return ctx.add("log_softmax", x, axis=len(ctx.shape(x)) - 1)
