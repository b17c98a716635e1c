"""Convolution, pooling, normalisation, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

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


def _pads(
    ctx: Context, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Returns the explicit pads of an image of these spatial sizes."""
    padding = ctx.attr("padding")
    if padding == "VALID":
        return ((0, 0),) * len(window)
    if padding == "EXPLICIT":
        flat = ctx.attr("explicit_paddings")
        first = 4 if _channels_first(ctx) else 2
        return tuple((flat[first + 2 * axis], flat[first + 2 * axis + 1]) for axis in range(len(window)))
    return _same_pads(sizes, window, strides, dilations)


def _same_pads(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Returns the pads of SAME: ``(ceil(n/s) - 1) * s + k - n``, the odd one at the end."""
    pads = []
    for size, extent, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def relay_filter(ctx: Context, filters: Value, depthwise: bool) -> Value:
    """Returns convolution weights as ``conv2d`` wants them, OIHW.

    A depthwise filter is [H, W, C, M] and becomes [C*M, 1, H, W]: output channel ``c * M + m`` reads input channel ``c``.
    """
    height, width, inner, outer = ctx.shape(filters)
    if depthwise:
        return _relayed(ctx, filters, (2, 3, 0, 1), (inner * outer, 1, height, width), "depthwise")
    return _relayed(ctx, filters, (3, 2, 0, 1), (outer, inner, height, width), "oihw")


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
    pads = _pads(ctx, _sizes(ctx, x), ctx.shape(weights)[2:], strides, dilations)
    return add_conv(ctx, x, weights, strides, pads, dilations, _layout(ctx))


def _relayed(ctx: Context, weights: Value, perm: Sequence[int], shape: Sequence[int], layout: str) -> Value:
    """Returns convolution weights with their axes reordered: data where they are known, nodes where they are computed."""
    if isinstance(weights, Known) and not weights.varies:
        data = np.ascontiguousarray(weights.array.transpose(perm)).reshape(shape)
        return replace(weights, array=data, layout=f"{weights.layout}.{layout}".strip("."))
    return ctx.reshape(ctx.transpose(weights, perm), shape)


@TABLE.lowers("Conv3D")
def _conv3d(ctx: Context, x: Value, filters: Value) -> Value:
    sizes = ctx.shape(filters)
    weights = _relayed(ctx, filters, (4, 3, 0, 1, 2), (sizes[4], sizes[3], *sizes[:3]), "oidhw")
    strides, dilations = _spatial(ctx, ctx.attr("strides"), "a stride"), _spatial(ctx, ctx.attr("dilations"), "a dilation")
    pads = _pads(ctx, _sizes(ctx, x), sizes[:3], strides, dilations)
    groups = ctx.shape(x)[1 if _channels_first(ctx) else -1] // sizes[3]
    attrs = {"strides": tuple(strides), "pads": pads, "dilations": tuple(dilations), "groups": groups, "data_layout": _layout(ctx)}
    return ctx.add("conv3d", x, weights, None, **attrs)


@TABLE.lowers("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput")
def _conv2d_transpose(ctx: Context, input_sizes: Value, filters: Value, x: Value) -> Value:
    """The gradient of a convolution is its transpose; the pads of that convolution, of an image of ``input_sizes``, crop the result."""
    height, width, outer, inner = ctx.shape(filters)  # the channels of the result come first
    depthwise = ctx.op.type != "Conv2DBackpropInput"
    if depthwise:
        weights = _relayed(ctx, filters, (2, 3, 0, 1), (outer * inner, 1, height, width), "depthwise")
    else:
        weights = _relayed(ctx, filters, (3, 2, 0, 1), (inner, outer, height, width), "iohw")
    strides, dilations = _spatial(ctx, ctx.attr("strides"), "a stride"), _spatial(ctx, ctx.attr("dilations"), "a dilation")
    channels = 1 if _channels_first(ctx) else 3
    wanted = ctx.ints(input_sizes, "the size of the result")
    if len(wanted) == 2:  # the spatial sizes alone
        wanted = [0, 0, *wanted] if channels == 1 else [0, *wanted, 0]
    spatial = wanted[2:] if channels == 1 else wanted[1:3]
    pads = _pads(ctx, spatial, (height, width), strides, dilations)
    whole = [
        (size - 1) * stride + (extent - 1) * dilation + 1 - low - high
        for size, extent, stride, dilation, (low, high) in zip(_sizes(ctx, x), (height, width), strides, dilations, pads, strict=True)
    ]
    behind = tuple(size - got for size, got in zip(spatial, whole, strict=True))
    groups = outer if depthwise else ctx.shape(x)[channels] // inner
    if not depthwise and groups > 1:
        raise RefusalError("a grouped transposed convolution is not supported")
    attrs = {"strides": tuple(strides), "pads": pads, "dilations": tuple(dilations), "groups": groups}
    return ctx.add("conv2d_transpose", x, weights, None, data_layout=_layout(ctx), output_padding=behind, **attrs)


@TABLE.lowers("Conv3DBackpropInputV2")
def _conv3d_transpose(ctx: Context, input_sizes: Value, filters: Value, x: Value) -> Value:
    """A convolution of ``x``, spread out by the strides, with the window turned round."""
    *window, outer, inner = ctx.shape(filters)
    if _channels_first(ctx):
        raise RefusalError("a transposed 3-D convolution takes channels last only")
    if not isinstance(filters, Known):
        raise RefusalError("the weights of a transposed 3-D convolution must be constant")
    flipped = replace(filters, array=filters.array[::-1, ::-1, ::-1], layout=f"{filters.layout}.flipped".strip("."))
    weights = _relayed(ctx, flipped, (3, 4, 0, 1, 2), (outer, inner, *window), "oidhw")
    strides, dilations = _spatial(ctx, ctx.attr("strides"), "a stride"), _spatial(ctx, ctx.attr("dilations"), "a dilation")
    spatial = ctx.ints(input_sizes, "the size of the result")[-4:-1]
    pads = _pads(ctx, spatial, window, strides, dilations)
    low, high = [0], [0]
    for size, given, extent, stride, dilation, (before, _) in zip(spatial, _sizes(ctx, x), window, strides, dilations, pads, strict=True):
        reach = (extent - 1) * dilation
        low.append(reach - before)
        high.append(size + reach - (reach - before) - ((given - 1) * stride + 1))
    interior = (0, *(stride - 1 for stride in strides), 0)
    spread = ctx.add("pad", x, mode="constant", low=(*low, 0), high=(*high, 0), interior=interior, value=0.0)
    attrs = {"strides": (1, 1, 1), "pads": ((0, 0),) * 3, "dilations": tuple(dilations), "groups": 1}
    return ctx.add("conv3d", spread, weights, None, data_layout="NHWC", **attrs)


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
    attrs = {"window": tuple(window), "strides": tuple(steps), "pads": _pads(ctx, _sizes(ctx, x), window, steps, ones), "dilations": ones}
    return ctx.add("max_pool", x, data_layout=_layout(ctx), nan="skip", **attrs)


@TABLE.lowers("AvgPool", "AvgPool3D")
def _avg_pool(ctx: Context, x: Value) -> Value:
    """Pads are not counted."""
    window, steps = _spatial(ctx, ctx.attr("ksize"), "a window"), _spatial(ctx, ctx.attr("strides"), "a stride")
    attrs = {"window": tuple(window), "strides": tuple(steps), "pads": _pads(ctx, _sizes(ctx, x), window, steps, (1,) * len(window))}
    return ctx.add("avg_pool", x, data_layout=_layout(ctx), divisor="valid", divisor_value=None, **attrs)


@TABLE.lowers("Softmax")
def _softmax(ctx: Context, x: Value) -> Value:
    return ctx.add("softmax", x, axis=len(ctx.shape(x)) - 1, fully_masked="nan")


@TABLE.lowers("LogSoftmax")
def _log_softmax(ctx: Context, x: Value) -> Value:
    return ctx.add("log_softmax", x, axis=len(ctx.shape(x)) - 1)


@TABLE.lowers("LRN")
def _lrn(ctx: Context, x: Value) -> Value:
    """Gives x / (bias + alpha * sum of squares over the neighbouring channels) ^ beta."""
    shape, radius = ctx.shape(x), ctx.attr("depth_radius")
    rows = ctx.reshape(ctx.add("mul", x, x), (math.prod(shape[:-1]), shape[-1], 1))
    attrs = {"window": (2 * radius + 1,), "strides": (1,), "pads": ((radius, radius),), "data_layout": "NHWC"}
    squares = ctx.reshape(ctx.add("avg_pool", rows, divisor="fixed", divisor_value=1, **attrs), shape)
    total = ctx.add("add", ctx.add("mul", squares, ctx.scalar(ctx.attr("alpha"), x)), ctx.scalar(ctx.attr("bias"), x))
    return ctx.add("div", x, ctx.add("pow", total, ctx.scalar(ctx.attr("beta"), x)), rounding="true")


@TABLE.lowers("ExtractImagePatches")
def _extract_patches(ctx: Context, x: Value) -> Value:
    """Each window as the channels of one position: rows, then columns, then channels."""
    window, steps, rates = (list(ctx.attr(name))[1:3] for name in ("ksizes", "strides", "rates"))
    pads = _same_pads(ctx.shape(x)[1:3], window, steps, rates) if ctx.attr("padding") == "SAME" else ((0, 0), (0, 0))
    batch, height, width, channels = ctx.shape(x)
    (top, bottom), (left, right) = pads
    padded = ctx.add("pad", x, mode="constant", low=(0, top, left, 0), high=(0, bottom, right, 0), interior=(0,) * 4, value=0.0)
    sizes = [
        (size + sum(pad) - (extent - 1) * rate - 1) // step + 1
        for size, pad, extent, rate, step in zip((height, width), pads, window, rates, steps, strict=True)
    ]
    parts = []
    for row in range(window[0]):
        for column in range(window[1]):
            start = [0, row * rates[0], column * rates[1], 0]
            ends = [first + (size - 1) * step + 1 for first, size, step in zip(start[1:3], sizes, steps, strict=True)]
            parts.append(ctx.slice(padded, start, [batch, *ends, channels], [1, *steps, 1]))
    return parts[0] if len(parts) == 1 else ctx.add("concat", *parts, axis=3)


def _resized(ctx: Context, x: Value, size: Value, **attrs: object) -> Value:
    sizes = tuple(ctx.ints(size, "the size"))
    given = {"nearest_round": None, "cubic_a": None, "exclude_outside": False, "antialias": False, **attrs}
    return ctx.add("resize", x, scales=None, sizes=sizes, data_layout="NHWC", **given)


def _coordinates(ctx: Context) -> str:
    if ctx.attr("half_pixel_centers"):
        return "half_pixel"
    return "align_corners" if ctx.attr("align_corners") else "asymmetric"


@TABLE.lowers("ResizeBilinear")
def _resize_bilinear(ctx: Context, x: Value, size: Value) -> Value:
    return _resized(ctx, cast_to(ctx, x, ctx.output_dtype()), size, mode="linear", coord=_coordinates(ctx))


@TABLE.lowers("ResizeNearestNeighbor")
def _resize_nearest(ctx: Context, x: Value, size: Value) -> Value:
    """With half pixels the one below the centre is taken, with aligned corners the nearest one."""
    coord = _coordinates(ctx)
    rounding = "half_up" if coord == "align_corners" else "floor"
    coord = "tf_half_pixel_for_nn" if coord == "half_pixel" else coord
    return _resized(ctx, x, size, mode="nearest", coord=coord, nearest_round=rounding)


@TABLE.lowers("ResizeBicubic")
def _resize_bicubic(ctx: Context, x: Value, size: Value) -> Value:
    """TensorFlow has a table of weights, so only positions that are multiples of 1/1024 are exact."""
    coord = _coordinates(ctx)
    for given, wanted in zip(_image_sizes(ctx, x), ctx.ints(size, "the size"), strict=True):
        last = max(wanted - 1, 1)
        steps = Fraction(given - 1, last) if coord == "align_corners" and wanted > 1 else Fraction(given, wanted)
        first = steps / 2 - Fraction(1, 2) if coord == "half_pixel" else Fraction(0)
        if (1024 * steps).denominator != 1 or (1024 * first).denominator != 1:
            raise RefusalError(f"from {given} to {wanted} TensorFlow rounds the weights of bicubic resizing to 1/1024")
    keys = coord == "half_pixel"
    attrs = {"mode": "cubic", "coord": coord, "cubic_a": -0.5 if keys else -0.75, "exclude_outside": keys}
    return _resized(ctx, cast_to(ctx, x, ctx.output_dtype()), size, **attrs)


def _image_sizes(ctx: Context, x: Value) -> tuple[int, int]:
    _, height, width, _ = ctx.shape(x)
    return height, width


@TABLE.lowers("ResizeArea")
def _resize_area(ctx: Context, x: Value, size: Value) -> Value:
    given, wanted = _image_sizes(ctx, x), ctx.ints(size, "the size")
    if any(before % after for before, after in zip(given, wanted, strict=True)):
        raise RefusalError("resizing by area is supported for whole factors only")
    window = tuple(before // after for before, after in zip(given, wanted, strict=True))
    attrs = {"window": window, "strides": window, "pads": ((0, 0), (0, 0)), "data_layout": "NHWC"}
    return ctx.add("avg_pool", cast_to(ctx, x, ctx.output_dtype()), divisor="window", divisor_value=None, **attrs)


@TABLE.lowers("ScaleAndTranslate")
def _scale_and_translate(ctx: Context, x: Value, size: Value, scale: Value, translation: Value) -> Value:
    """What tf.image.resize with antialias is made of."""
    kernels: dict[str, dict[str, object]] = {"triangle": {"mode": "linear"}, "keyscubic": {"mode": "cubic", "cubic_a": -0.5}}
    kernel = ctx.attr("kernel_type")
    factors = [after / before for before, after in zip(_image_sizes(ctx, x), ctx.ints(size, "the size"), strict=True)]
    if kernel not in kernels:
        raise RefusalError(f"resizing with the kernel {kernel} is not supported")
    if ctx.array(translation, "the translation").any() or not np.allclose(ctx.array(scale, "the scale"), factors, rtol=1e-6):
        raise RefusalError("moving or cropping an image while resizing it is not supported")
    wide = cast_to(ctx, x, ctx.output_dtype())
    return _resized(ctx, wide, size, coord="half_pixel", exclude_outside=True, antialias=bool(ctx.attr("antialias")), **kernels[kernel])
