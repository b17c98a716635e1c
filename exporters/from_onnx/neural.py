"""Lowerings of neural networks: convolutions, normalisations, softmax, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.windows import Windows, per_axis, read_windows, split_pads
from rml_exec.types import DType

__all__ = ["add_conv", "broadcast", "last_axes", "layer_norm", "reduce", "rms_norm", "statistics"]


@ONNX.lowers("Conv")
def _conv(ctx: Context, node: onnx.NodeProto) -> str:
    x, weights = ctx.need(0), ctx.need(1)
    windows = read_windows(ctx, ctx.type(x).shape[2:], ctx.type(weights).shape[2:])
    return add_conv(ctx, x, weights, ctx.input(2), windows, ctx.attr("group", 1))


def add_conv(ctx: Context, x: str, weights: str, bias: str | None, windows: Windows, groups: int, *, on_the_way: bool = False) -> str:
    """Returns the convolution of a channels-first image; a 1-D one is a 2-D one over a height of 1.

    Args:
        ctx: the node.
        x: [N, C, D1..Dn], n from 1 to 3.
        weights: [M, C / groups, K1..Kn], of the element type of x.
        bias: [M] or None.
        windows: the windows, without overhang.
        groups: into how many groups the channels are cut.
        on_the_way: true where the result is not yet the operator's.
    """
    if windows.rank not in (1, 2, 3):
        raise RefusedError(f"convolutions over {windows.rank} axes are not supported")
    flat = windows.rank == 1
    first = (1,) if flat else ()
    result = (ctx.step if flat or on_the_way else ctx.add)(
        "conv3d" if windows.rank == 3 else "conv2d",
        [*(with_height(ctx, value) if flat else value for value in (x, weights)), bias],
        strides=first + windows.strides,
        pads=((0, 0), *windows.pads) if flat else windows.pads,
        dilations=first + windows.dilations,
        groups=groups,
        data_layout="NCHW",
    )
    return without_height(ctx, result) if flat else str(result)


def with_height(ctx: Context, value: str) -> str:
    batch, channels, length = ctx.type(value).shape
    return ctx.reshape(value, [batch, channels, 1, length])


def without_height(ctx: Context, value: str) -> str:
    batch, channels, _, length = ctx.type(value).shape
    return str(ctx.add("reshape", [value], shape=(batch, channels, length)))


@ONNX.lowers("ConvTranspose")
def _conv_transpose(ctx: Context, node: onnx.NodeProto) -> str:
    """Pads crop the result; a wanted size decides how much."""
    x, weights, bias = ctx.need(0), ctx.need(1), ctx.input(2)
    sizes, extents = ctx.type(x).shape[2:], ctx.type(weights).shape[2:]
    rank, groups = len(sizes), ctx.attr("group", 1)
    strides, dilations = per_axis(ctx, "strides", rank, 1), per_axis(ctx, "dilations", rank, 1)
    behind, auto_pad = per_axis(ctx, "output_padding", rank, 0), ctx.attr("auto_pad", "NOTSET")
    wanted = (ctx.attr("output_shape") or [])[-rank:]
    if not wanted and auto_pad.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if wanted:
        whole = [
            (size - 1) * stride + (extent - 1) * dilation + 1 + more
            for size, stride, extent, dilation, more in zip(sizes, strides, extents, dilations, behind, strict=True)
        ]
        missing = [size - got for size, got in zip(wanted, whole, strict=True)]
        behind = tuple(more + max(0, rest) for more, rest in zip(behind, missing, strict=True))
        pads = split_pads([max(0, -rest) for rest in missing], auto_pad)
    else:
        windows = read_windows(ctx, sizes, extents)
        pads = windows.pads
    if rank == 3:
        return _conv_transpose_3d(ctx, x, weights, bias, Windows(extents, strides, dilations, pads, behind), groups)
    if rank not in (1, 2):
        raise RefusedError(f"transposed convolutions over {rank} axes are not supported")
    flat = rank == 1
    result = (ctx.step if flat else ctx.add)(
        "conv2d_transpose",
        [*(with_height(ctx, value) if flat else value for value in (x, weights)), bias],
        strides=(1, *strides) if flat else strides,
        pads=((0, 0), *pads) if flat else pads,
        dilations=(1, *dilations) if flat else dilations,
        output_padding=(0, *behind) if flat else behind,
        groups=groups,
        data_layout="NCHW",
    )
    return without_height(ctx, result) if flat else str(result)


def _conv_transpose_3d(ctx: Context, x: str, weights: str, bias: str | None, windows: Windows, groups: int) -> str:
    """A convolution of ``x``, spread out by the strides, with the window turned round; ``windows.overhang`` is what lies behind."""
    inner, outer, *extents = ctx.type(weights).shape
    turned = ctx.step("reverse", [weights], axes=(2, 3, 4))
    parted = ctx.reshape(turned, [groups, inner // groups, outer, *extents])
    swapped = ctx.step("transpose", [parted], perm=(0, 2, 1, 3, 4, 5))
    relaid = ctx.reshape(swapped, [groups * outer, inner // groups, *extents])
    lows = [reach - 1 - low for reach, (low, _) in zip(windows.reaches, windows.pads, strict=True)]
    highs = [reach - 1 - high + behind for reach, (_, high), behind in zip(windows.reaches, windows.pads, windows.overhang, strict=True)]
    gaps = (0, 0, *(stride - 1 for stride in windows.strides))
    spread = ctx.step("pad", [x], mode="constant", low=(0, 0, *lows), high=(0, 0, *highs), interior=gaps, value=0.0)
    plain = Windows(windows.extents, (1, 1, 1), windows.dilations, ((0, 0),) * 3, (0, 0, 0))
    return add_conv(ctx, spread, relaid, bias, plain, groups)


def reduce(ctx: Context, kind: str, x: str, axes: Sequence[int], *, keepdims: bool = True) -> str:
    """Returns a reduction on the way, NaN going through and empty axes giving the identity."""
    return str(ctx.step("reduce", [x], kind=kind, axes=tuple(axes), keepdims=keepdims, nan="propagate", empty="identity"))


def broadcast(ctx: Context, value: str, shape: Sequence[int]) -> str:
    """Returns the value stretched to a shape: itself where it has that shape."""
    return value if ctx.type(value).shape == tuple(shape) else str(ctx.step("broadcast", [value], shape=tuple(shape)))


@ONNX.lowers("BatchNormalization")
def _batch_norm(ctx: Context, node: onnx.NodeProto) -> str:
    """The statistics may be wider than the image, which is then normalised in their type."""
    if ctx.attr("training_mode", 0) or any(ctx.output_wanted(index) for index in range(1, 5)):
        raise RefusedError("it computes the statistics of a batch, as in training")
    if not ctx.attr("spatial", 1):
        raise RefusedError("statistics per position (spatial=0) are not supported")
    x = ctx.need(0)
    dtype = ctx.type(x).dtype
    wide = max((ctx.type(ctx.need(index)).dtype for index in (0, 3)), key=lambda each: each.numpy.itemsize)
    operands = [ctx.cast(ctx.need(index), wide) for index in range(5)]
    y = (ctx.add if wide is dtype else ctx.step)("batch_norm", operands, eps=ctx.attr("epsilon", 1e-5), axis=1)
    return ctx.cast(y, dtype)


@ONNX.lowers("InstanceNormalization")
def _instance_norm(ctx: Context, node: onnx.NodeProto) -> str:
    channels = ctx.type(ctx.need(1)).size
    operands = [ctx.need(0), ctx.need(1), ctx.need(2)]
    return str(ctx.add("group_norm", operands, groups=channels, axis=1, eps=ctx.attr("epsilon", 1e-5)))


@ONNX.lowers("GroupNormalization")
def _group_norm(ctx: Context, node: onnx.NodeProto) -> str:
    """Before opset 21 scale and bias have one entry per group."""
    x, scale, bias = ctx.need(0), ctx.need(1), ctx.need(2)
    groups, channels = ctx.attr("num_groups"), ctx.type(x).shape[1]
    if ctx.opset < 21:
        scale, bias = (_per_channel(ctx, value, groups, channels) for value in (scale, bias))
    return str(ctx.add("group_norm", [x, scale, bias], groups=groups, axis=1, eps=ctx.attr("epsilon", 1e-5)))


def _per_channel(ctx: Context, value: str, groups: int, channels: int) -> str:
    rows = broadcast(ctx, ctx.reshape(value, [groups, 1]), [groups, channels // groups])
    return ctx.reshape(rows, [channels])


def last_axes(ctx: Context, x: str, default: int = -1) -> tuple[int, ...]:
    """Returns the axes from the attribute ``axis`` to the last."""
    rank = ctx.type(x).rank
    return tuple(range(ctx.axis(ctx.attr("axis", default), rank), rank))


@ONNX.lowers("LayerNormalization")
def _layer_norm(ctx: Context, node: onnx.NodeProto) -> str | tuple[str | None, ...]:
    x = ctx.need(0)
    axes, eps = last_axes(ctx, x), ctx.attr("epsilon", 1e-5)
    y = layer_norm(ctx, x, ctx.input(1), ctx.input(2), axes, eps)
    if not ctx.output_wanted(1) and not ctx.output_wanted(2):
        return y
    wide = ctx.cast(x, DType.F64 if ctx.attr("stash_type", 1) == onnx.TensorProto.DOUBLE else DType.F32)
    return y, *statistics(ctx, wide, axes, eps)


def statistics(ctx: Context, x: str, axes: Sequence[int], eps: float) -> tuple[str, str]:
    """Returns the mean over axes and 1 / the standard deviation."""
    mean = reduce(ctx, "mean", x, axes)
    centred = ctx.step("sub", [x, mean])
    variance = reduce(ctx, "mean", ctx.step("mul", [centred, centred]), axes)
    return mean, ctx.step("rsqrt", [ctx.step("add", [variance, ctx.scalar(eps, ctx.type(x).dtype)])])


def layer_norm(ctx: Context, x: str, scale: str | None, bias: str | None, axes: Sequence[int], eps: float) -> str:
    """Returns a layer norm; a scale or bias that does not have the shape of the normalised axes comes after it."""
    own = [fitted(ctx, value, x, axes) for value in (scale, bias)]
    if (scale is None or own[0] is not None) and (bias is None or own[1] is not None):
        return str(ctx.add("layer_norm", [x, *own], axes=tuple(axes), eps=eps, variance="two_pass"))
    y = ctx.step("layer_norm", [x, None, None], axes=tuple(axes), eps=eps, variance="two_pass")
    y = y if scale is None else ctx.step("mul", [y, scale])
    return y if bias is None else str(ctx.add("add", [y, bias]))


def rms_norm(ctx: Context, x: str, scale: str | None, axes: Sequence[int], eps: float) -> str:
    """Returns an RMS norm; a scale that does not have the shape of the normalised axes comes after it."""
    own = fitted(ctx, scale, x, axes)
    if scale is None or own is not None:
        return str(ctx.add("rms_norm", [x, own], axes=tuple(axes), eps=eps))
    return str(ctx.add("mul", [ctx.step("rms_norm", [x, None], axes=tuple(axes), eps=eps), scale]))


def fitted(ctx: Context, value: str | None, x: str, axes: Sequence[int]) -> str | None:
    """Returns a scale in the shape of the normalised axes; None if it has no more than that shape, or is narrower or wider than x."""
    if value is None or ctx.type(value).dtype is not ctx.type(x).dtype:
        return None
    wanted = [ctx.type(x).shape[axis] for axis in axes]
    shape = ctx.type(value).shape
    if any(size != 1 for size in shape[: max(0, len(shape) - len(wanted))]):
        return None
    return broadcast(ctx, ctx.reshape(value, shape[len(shape) - len(wanted) :]) if len(shape) > len(wanted) else value, wanted)


@ONNX.lowers("RMSNormalization")
def _rms_norm(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    return rms_norm(ctx, x, ctx.input(1), last_axes(ctx, x), ctx.attr("epsilon", 1e-5))


@ONNX.lowers("LpNormalization")
def _lp_norm(ctx: Context, node: onnx.NodeProto) -> str:
    """Where the norm is 0 so is the result."""
    x, order = ctx.need(0), ctx.attr("p", 2)
    axis, zero = ctx.axis(ctx.attr("axis", -1), ctx.type(x).rank), ctx.scalar(0, ctx.type(x).dtype)
    if order not in (1, 2):
        raise RefusedError(f"p={order} is not supported")
    powers = ctx.step("abs", [x]) if order == 1 else ctx.step("mul", [x, x])
    total = reduce(ctx, "sum", powers, [axis])
    norm = total if order == 1 else ctx.step("sqrt", [total])
    quotient = ctx.step("div", [x, norm], rounding="true")
    return str(ctx.add("select", [ctx.step("compare", [norm, zero], dir="eq"), zero, quotient]))


@ONNX.lowers("LRN")
def _lrn(ctx: Context, node: onnx.NodeProto) -> str:
    """Gives x / (bias + alpha * mean of squares over the neighbouring channels, those outside being 0) ^ beta."""
    x, size = ctx.need(0), ctx.attr("size")
    batch, channels, *image = ctx.type(x).shape
    dtype = ctx.type(x).dtype
    squares = ctx.reshape(ctx.step("mul", [x, x]), [batch, 1, channels, math.prod(image)])
    attrs = {"window": (size, 1), "strides": (1, 1), "pads": (((size - 1) // 2, size // 2), (0, 0)), "data_layout": "NCHW"}
    means = ctx.reshape(ctx.step("avg_pool", [squares], divisor="window", divisor_value=None, **attrs), [batch, channels, *image])
    scaled = ctx.step("mul", [means, ctx.scalar(ctx.attr("alpha", 1e-4), dtype)])
    total = ctx.step("add", [scaled, ctx.scalar(ctx.attr("bias", 1.0), dtype)])
    return str(ctx.add("div", [x, ctx.step("pow", [total, ctx.scalar(ctx.attr("beta", 0.75), dtype)])], rounding="true"))


def _flattened(ctx: Context, x: str) -> tuple[str, int]:
    """Returns the value and the axis along which softmax and its like work: before opset 13 all axes from ``axis`` on, as one."""
    shape = ctx.type(x).shape
    if not shape:
        return ctx.reshape(x, [1]), 0
    if ctx.opset >= 13:
        return x, ctx.axis(ctx.attr("axis", -1), len(shape))
    axis = ctx.axis(ctx.attr("axis", 1), len(shape)) if ctx.attr("axis", 1) != len(shape) else len(shape)
    if axis == len(shape) - 1:
        return x, axis
    return ctx.reshape(x, [math.prod(shape[:axis]), math.prod(shape[axis:])]), 1


def _softmax(name: str, op: str, **attrs: str) -> None:
    @ONNX.lowers(name)
    def lower(ctx: Context, node: onnx.NodeProto) -> str:
        x = ctx.need(0)
        rows, axis = _flattened(ctx, x)
        if rows == x:
            return str(ctx.add(op, [x], axis=axis, **attrs))
        return ctx.reshape(ctx.step(op, [rows], axis=axis, **attrs), ctx.type(x).shape)


_softmax("Softmax", "softmax", fully_masked="nan")
_softmax("LogSoftmax", "log_softmax")


@ONNX.lowers("Hardmax")
def _hardmax(ctx: Context, node: onnx.NodeProto) -> str:
    """One at the first largest element, zeros elsewhere."""
    x = ctx.need(0)
    rows, axis = _flattened(ctx, x)
    shape = ctx.type(rows).shape
    best = ctx.step("argreduce", [rows], kind="max", axis=axis, keepdims=True, tie="first", nan="first", index_dtype="i64")
    places = ctx.step("iota", [], dtype="i64", shape=[shape[axis] if i == axis else 1 for i in range(len(shape))], axis=axis)
    chosen = ctx.cast(ctx.step("compare", [places, best], dir="eq"), ctx.type(x).dtype)
    return ctx.reshape(chosen, ctx.type(x).shape)


@ONNX.lowers("Dropout")
def _dropout(ctx: Context, node: onnx.NodeProto) -> tuple[str, ...]:
    x, training = ctx.need(0), ctx.integers(2, "training_mode")
    if training and training[0]:
        ratio = ctx.known(ctx.input(1))
        if ratio is None or ratio.any():
            raise RefusedError("it is in training mode and draws random numbers")
    if not ctx.output_wanted(1):
        return (x,)
    ones = np.ones((), ctx.type(x).dtype.numpy if ctx.opset < 10 else np.bool_)
    return x, broadcast(ctx, ctx.constant(ones), ctx.type(x).shape)
