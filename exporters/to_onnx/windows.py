"""Convolution, pooling and resampling, channels first as ONNX has them: an NHWC operand is taken, and the result left, in that order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from exporters.to_onnx.context import ONNX, Context, Laid, Order, RefusedError, Shape, channels_first
from rml_exec.ops import get_op
from rml_exec.ops.resize import nearest_elements
from rml_exec.types import DType

Pads = tuple[tuple[int, int], ...]


def _order(ctx: Context, data_layout: str) -> Order:
    """Returns the order of axes in which channels come first."""
    return tuple(range(ctx.rank())) if data_layout == "NCHW" else channels_first(ctx.rank())


def _flat(pads: Pads) -> list[int]:
    return [low for low, _ in pads] + [high for _, high in pads]


def _bias_alone(ctx: Context, order: Order) -> Laid:
    """Emits the result of a convolution without input channels."""
    type_, shape = ctx.result()
    bias = ctx.number(0)
    if ctx.has(2):
        bias = ctx.emit("Reshape", ctx.input(2), ctx.ints([-1] + [1] * (type_.rank - 2)))
    return Laid(ctx.emit("Expand", bias, ctx.ints([shape[axis] for axis in order])), order)


@ONNX.lowers("conv2d", "conv3d")
def _conv(ctx: Context, *, strides: tuple[int, ...], pads: Pads, dilations: tuple[int, ...], groups: int, data_layout: str) -> Laid:
    order = _order(ctx, data_layout)
    if not ctx.held(1).type.size:
        return _bias_alone(ctx, order)
    operands = (ctx.input(0, order), ctx.input(1), ctx.optional(2))
    return Laid(
        ctx.emit(
            "Conv",
            *operands,
            kernel_shape=list(ctx.sizes(1)[2:]),
            strides=list(strides),
            pads=_flat(pads),
            dilations=list(dilations),
            group=groups,
        ),
        order,
    )


@ONNX.lowers("conv2d_transpose")
def _conv_transpose(
    ctx: Context,
    *,
    strides: tuple[int, ...],
    pads: Pads,
    output_padding: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> Laid:
    order = _order(ctx, data_layout)
    if not ctx.held(1).type.size or not ctx.held(0).type.size:
        return _bias_alone(ctx, order)
    far = any(extra >= max(stride, dilation) for extra, stride, dilation in zip(output_padding, strides, dilations, strict=True))
    if far:
        raise RefusedError("its output_padding is not below stride or dilation, which ONNX does not define")
    operands = (ctx.input(0, order), ctx.input(1), ctx.optional(2))
    return Laid(
        ctx.emit(
            "ConvTranspose",
            *operands,
            kernel_shape=list(ctx.sizes(1)[2:]),
            strides=list(strides),
            pads=_flat(pads),
            dilations=list(dilations),
            group=groups,
            output_padding=list(output_padding) if any(output_padding) else None,
        ),
        order,
    )


def _pad_first(ctx: Context, x: str, window: Sequence[int], pads: Pads, value: float) -> tuple[str, Pads]:
    """Emits pads as large as the window by themselves: ONNX Runtime takes smaller ones only."""
    if all(max(pad) < extent for pad, extent in zip(pads, window, strict=True)):
        return x, pads
    return ctx.emit("Pad", x, ctx.ints(_amounts(pads)), ctx.number(value)), ((0, 0),) * len(pads)


def _amounts(pads: Pads) -> list[int]:
    """Returns what Pad takes for all axes."""
    return [0, 0, *[low for low, _ in pads], 0, 0, *[high for _, high in pads]]


@ONNX.lowers("max_pool")
def _max_pool(
    ctx: Context,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Pads,
    dilations: tuple[int, ...],
    data_layout: str,
    nan: str,
) -> Laid:
    order, dtype = _order(ctx, data_layout), ctx.dtype()
    x = ctx.input(0, order)
    lowest = -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)
    known = x
    if ctx.edge_cases and dtype.is_float:
        known = ctx.emit("Where", ctx.emit("IsNaN", x), ctx.number(lowest), x)
    source, far = _pad_first(ctx, known, window, pads, lowest)
    whole = not dtype.is_float and dtype not in (DType.I8, DType.U8)
    if whole and dtype.itemsize > 4:
        raise RefusedError("ONNX has no max pool of wide integers")
    attrs: dict[str, Any] = {"kernel_shape": list(window), "strides": list(strides), "dilations": list(dilations)}
    y = ctx.emit("MaxPool", ctx.cast(source, DType.F64) if whole else source, pads=_flat(far), **attrs)
    y = ctx.cast(y, dtype) if whole else y
    if ctx.edge_cases and dtype.is_float:  # ONNX Runtime begins with the lowest number, not with -inf
        floor = ctx.emit("LessOrEqual", y, ctx.number(float(np.finfo(dtype.numpy).min)))
        y = ctx.emit("Where", floor, ctx.number(-math.inf), y)
    if ctx.edge_cases and dtype.is_float and nan == "propagate":
        unknown = ctx.cast(ctx.emit("IsNaN", x), DType.F32)
        padded = unknown if far == pads else ctx.emit("Pad", unknown, ctx.ints(_amounts(pads)))
        found = ctx.cast(ctx.emit("MaxPool", padded, pads=_flat(far), **attrs), DType.BOOL)
        y = ctx.emit("Where", found, ctx.number(math.nan), y)
    return Laid(y, order)


@ONNX.lowers("avg_pool")
def _avg_pool(
    ctx: Context,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Pads,
    data_layout: str,
    divisor: str,
    divisor_value: int | None,
) -> Laid:
    order = _order(ctx, data_layout)
    x, far = _pad_first(ctx, ctx.input(0, order), window, pads, 0)
    counted = divisor != "valid" or far != pads
    attrs: dict[str, Any] = {"kernel_shape": list(window), "strides": list(strides), "pads": _flat(far)}
    y = ctx.emit("AveragePool", x, count_include_pad=int(counted), **attrs)
    if divisor == "fixed":
        assert divisor_value is not None
        y = ctx.emit("Mul", y, ctx.number(math.prod(window) / divisor_value))
    elif divisor == "valid" and counted:  # how much of each window lies inside
        sizes = [ctx.size(axis) for axis in order[2:]]
        ones = np.ones((1, 1, *sizes), np.float32)
        given = dict(ctx.node.attrs, data_layout="NCHW", divisor="window")
        (share,) = get_op("avg_pool").run_reference([ones], given)
        y = ctx.emit("Div", y, ctx.constant(share.astype(ctx.dtype().numpy)))
    return Laid(y, order)


_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "half_down": "round_prefer_floor", "half_up": "round_prefer_ceil"}


@ONNX.lowers("resize")
def _resize(
    ctx: Context,
    *,
    mode: str,
    coord: str,
    nearest_round: str | None,
    cubic_a: float | None,
    exclude_outside: bool,
    antialias: bool,
    scales: tuple[float, ...] | None,
    sizes: Shape,
    data_layout: str,
) -> Laid:
    order = _order(ctx, data_layout)
    x = ctx.input(0, order)
    if sizes == tuple(ctx.shape()[axis] for axis in order[2:]) and scales is None and coord != "tf_half_pixel_for_nn":
        return Laid(x, order)
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coord}
    if mode == "nearest":
        attrs["nearest_mode"] = _ROUNDINGS[str(nearest_round)]
    if mode == "cubic":
        attrs["cubic_coeff_a"] = float(cubic_a or 0)
    if exclude_outside:
        attrs["exclude_outside"] = 1
    if antialias:
        attrs["antialias"] = 1
    usual = coord != "tf_half_pixel_for_nn" and scales is None and not antialias and ctx.dtype() is DType.F32
    if not usual or (exclude_outside and mode != "cubic") or (mode == "cubic" and ctx.rank() != 4):
        return Laid(_by_weights(ctx, x, order, mode), order)
    _, shape = ctx.result()
    return Laid(ctx.emit("Resize", x, None, None, ctx.ints([shape[axis] for axis in order]), **attrs), order)


def _by_weights(ctx: Context, x: str, order: Order, mode: str) -> str:
    """Emits what ONNX or its runtimes do otherwise: the elements that are taken, or a product with the weights, axis after axis."""
    attrs = ctx.node.attrs
    for place, axis in enumerate(order[2:]):
        size = ctx.size(axis)
        count = ctx.fixed(ctx.symbolic.attrs["sizes"][place], "its size")
        scale = None if attrs["scales"] is None else attrs["scales"][place]
        if mode == "nearest":
            elements = nearest_elements(size, count, scale, attrs["coord"], attrs["nearest_round"]).astype(np.int64)
            x = ctx.emit("Gather", x, ctx.constant(elements), axis=place + 2)
            continue
        line = dict(attrs, sizes=(count,), scales=None if scale is None else (scale,), data_layout="NCHW")
        (weights,) = get_op("resize").run_reference([np.eye(size)[None]], line)  # row j: what element j gives to each of the results
        product = ctx.constant(weights[0].astype(np.float64 if ctx.dtype() is DType.F64 else np.float32), None)
        wide = ctx.cast(x, DType.F32) if ctx.dtype() is DType.F16 else x
        last = ctx.rank() - 1
        swap = [*range(ctx.rank())]
        swap[place + 2], swap[last] = last, place + 2
        turned = wide if place + 2 == last else ctx.emit("Transpose", wide, perm=swap)
        mixed = ctx.emit("MatMul", turned, product)
        mixed = mixed if place + 2 == last else ctx.emit("Transpose", mixed, perm=swap)
        x = ctx.cast(mixed, DType.F16) if ctx.dtype() is DType.F16 else mixed
    return x
