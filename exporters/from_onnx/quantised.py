"""Lowerings of quantised arithmetic.

Products of integers are summed in a float type in which every partial sum is a whole number that it holds exactly (f32 up to 2^24, else f64),
so the result is that of integer arithmetic, whatever the order of the sums, at the speed of floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.linear import product
from exporters.from_onnx.neural import add_conv, broadcast, reduce
from exporters.from_onnx.reading import NotATensorError, dtype_of
from exporters.from_onnx.windows import Windows, read_windows
from rml_exec.types import DType

__all__ = ["dequantised", "dynamic_scale", "integer_conv", "integer_matmul", "laid_out", "quantised", "requantised", "single"]

_EXACT_IN_F32 = 1 << 24
_EXACT_IN_I32 = 1 << 31


@ONNX.lowers("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize_linear(ctx: Context, node: onnx.NodeProto) -> str:
    x, scale, zero_point = ctx.need(0), ctx.need(1), ctx.input(2)
    default = ctx.attr("output_dtype", 0) or onnx.TensorProto.UINT8
    dtype = _element_type(default) if zero_point is None else ctx.type(zero_point).dtype
    precision = _element_type(ctx.attr("precision")) if ctx.attr("precision", 0) else ctx.type(scale).dtype
    scale = laid_out(ctx, scale, ctx.type(x).shape)
    zero_point = None if zero_point is None else laid_out(ctx, zero_point, ctx.type(x).shape)
    return quantised(ctx, ctx.cast(x, precision), ctx.cast(scale, precision), zero_point, dtype)


def _element_type(number: int) -> DType:
    try:
        return dtype_of(number)
    except NotATensorError as error:
        raise RefusedError(str(error)) from None


def laid_out(ctx: Context, value: str, shape: Sequence[int], axis: int | None = None) -> str:
    """Returns a scale or zero point such that it broadcasts to x: one for all, one per index of an axis, or one per block along it.

    Args:
        ctx: the node.
        value: the scale or zero point.
        shape: the shape of x.
        axis: that axis; None: the attribute ``axis``, the second one by default.
    """
    own = ctx.type(value).shape
    if math.prod(own) == 1:
        return ctx.reshape(value, [])
    axis = ctx.axis(ctx.attr("axis", 1) if axis is None else axis, len(shape))
    block = ctx.attr("block_size", 0)
    if not block:
        if len(own) != 1 or own[0] != shape[axis]:
            raise RefusedError(f"a scale of shape {list(own)} does not fit axis {axis} of {list(shape)}")
        return ctx.reshape(value, [own[0] if i == axis else 1 for i in range(len(shape))])
    before, after = own[:axis], own[axis + 1 :]
    rows = broadcast(ctx, ctx.reshape(value, [*before, own[axis], 1, *after]), [*before, own[axis], block, *after])
    whole = ctx.reshape(rows, [*before, own[axis] * block, *after])
    if own[axis] * block == shape[axis]:
        return whole
    return str(ctx.step("slice", [whole], start=(0,) * len(shape), limit=tuple(shape), strides=(1,) * len(shape)))


def quantised(ctx: Context, x: str, scale: str, zero_point: str | None, dtype: DType) -> str:
    """Returns x / scale, rounded to the nearest whole number (half to even), plus the zero point, kept within the range of ``dtype``."""
    return _stored(ctx, ctx.step("div", [x, scale], rounding="true"), zero_point, dtype)


def requantised(ctx: Context, sums: str, scale: str, zero_point: str | None, dtype: DType) -> str:
    """Returns sums * scale, rounded and stored as :func:`quantised` does."""
    return _stored(ctx, ctx.step("mul", [ctx.cast(sums, DType.F32), ctx.cast(scale, DType.F32)]), zero_point, dtype)


def _stored(ctx: Context, quotient: str, zero_point: str | None, dtype: DType) -> str:
    whole = ctx.cast(ctx.step("round", [quotient], mode="half_even"), DType.F32)
    if zero_point is not None and _not_zero(ctx, zero_point):
        whole = ctx.step("add", [whole, ctx.cast(zero_point, DType.F32)])
    limits = np.iinfo(dtype.numpy)
    kept = ctx.step("clamp", [whole], lo=float(limits.min), hi=float(limits.max))
    return str(ctx.add("cast", [kept], to=dtype.value, f2i="wrap_x86"))


def _not_zero(ctx: Context, zero_point: str | None) -> bool:
    known = ctx.known(zero_point)
    return zero_point is not None and (known is None or bool(known.any()))


@ONNX.lowers("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize_linear(ctx: Context, node: onnx.NodeProto) -> str:
    x, scale, zero_point = ctx.need(0), ctx.need(1), ctx.input(2)
    shape = ctx.type(x).shape
    dtype = _element_type(ctx.attr("output_dtype")) if ctx.attr("output_dtype", 0) else ctx.type(scale).dtype
    zero_point = None if zero_point is None else laid_out(ctx, zero_point, shape)
    return ctx.cast(dequantised(ctx, x, laid_out(ctx, scale, shape), zero_point), dtype)


def dequantised(ctx: Context, x: str, scale: str, zero_point: str | None) -> str:
    """Returns (x - zero point) * scale in f32; both broadcast to x."""
    if zero_point is not None and _not_zero(ctx, zero_point):
        wide = DType.I32 if ctx.type(x).dtype is DType.I32 else DType.F32
        x = ctx.step("sub", [ctx.cast(x, wide), ctx.cast(zero_point, wide)])
    return str(ctx.step("mul", [ctx.cast(x, DType.F32), ctx.cast(scale, DType.F32)]))


@ONNX.lowers("DynamicQuantizeLinear")
def _dynamic_quantize_linear(ctx: Context, node: onnx.NodeProto) -> tuple[str, ...]:
    x = ctx.need(0)
    scale, zero_point = dynamic_scale(ctx, x)
    return quantised(ctx, x, scale, zero_point, DType.U8), scale, zero_point


def dynamic_scale(ctx: Context, x: str) -> tuple[str, str]:
    """Returns the f32 scale and u8 zero point that let u8 span all of x and 0; the scale is 1 where all of x is 0, as in ONNX Runtime."""
    zero, steps = ctx.scalar(0, DType.F32), ctx.scalar(255, DType.F32)
    axes = range(ctx.type(x).rank)
    high = ctx.step("max", [reduce(ctx, "max", x, axes, keepdims=False), zero])
    low = ctx.step("min", [reduce(ctx, "min", x, axes, keepdims=False), zero])
    spread = ctx.step("div", [ctx.step("sub", [high, low]), steps], rounding="true")
    scale = ctx.step("select", [ctx.step("compare", [high, low], dir="eq"), ctx.scalar(1, DType.F32), spread])
    lowest = ctx.step("div", [ctx.step("sub", [zero, low]), scale], rounding="true")
    kept = ctx.step("clamp", [lowest], lo=0.0, hi=255.0)
    return scale, ctx.cast(ctx.step("round", [kept], mode="half_even"), DType.U8)


def _span(ctx: Context, value: str) -> tuple[int, int]:
    """Returns bounds of a value's elements."""
    known, limits = ctx.known(value), np.iinfo(ctx.type(value).dtype.numpy)
    return (int(limits.min), int(limits.max)) if known is None or not known.size else (int(known.min()), int(known.max()))


def _largest(ctx: Context, value: str, zero_point: str | None) -> int:
    """Returns a bound of the size of value - zero point."""
    (low, high), zeros = _span(ctx, value), (0, 0) if zero_point is None else _span(ctx, zero_point)
    return max(abs(low - zeros[1]), abs(high - zeros[0]))


def _bound(ctx: Context, value: str, of_value: str | None, factor: str, of_factor: str | None, axes: tuple[int, ...]) -> int:
    """Returns a bound of the sums of products of two values less their zero points, ``axes`` being those of factor that are summed over."""
    known, zeros = ctx.known(factor), ctx.known(of_factor)
    if known is not None and (of_factor is None or zeros is not None):
        centred = np.abs(known.astype(np.int64) - (0 if zeros is None else zeros.astype(np.int64)))
        total = int(centred.sum(axes).max(initial=0))
    else:
        total = _largest(ctx, factor, of_factor) * math.prod(ctx.type(factor).shape[axis] for axis in axes)
    return _largest(ctx, value, of_value) * total


def _centred(ctx: Context, value: str, zero_point: str | None, dtype: DType) -> str:
    wide = ctx.cast(value, dtype)
    return wide if not _not_zero(ctx, zero_point) else str(ctx.step("sub", [wide, ctx.cast(str(zero_point), dtype)]))


def integer_conv(
    ctx: Context,
    x: str,
    weights: str,
    zero_points: tuple[str | None, str | None],
    bias: str | None,
    windows: Windows,
    groups: int,
) -> tuple[str, int]:
    """Returns the convolution of (x - its zero point) with (weights - theirs), plus an i32 bias, as whole floats, and a bound of them.

    A 3x3 convolution of f32 may be computed through fractions, which f64 ones are not.
    """
    of_x, of_w = zero_points
    if of_w is not None and ctx.type(of_w).size > 1:
        of_w = ctx.reshape(of_w, [ctx.type(of_w).size, *(1,) * (ctx.type(weights).rank - 1)])
    of_x = None if of_x is None else ctx.reshape(of_x, [])
    bound = _bound(ctx, x, of_x, weights, of_w, tuple(range(1, ctx.type(weights).rank)))
    if bias is not None:
        known = ctx.known(bias)
        bound += _EXACT_IN_I32 if known is None else int(np.abs(known.astype(np.int64)).max(initial=0))
    dtype = DType.F32 if bound <= _EXACT_IN_F32 and windows.extents != (3, 3) else DType.F64
    x, weights = _centred(ctx, x, of_x, dtype), _centred(ctx, weights, of_w, dtype)
    wide_bias = None if bias is None else ctx.cast(bias, dtype)
    return add_conv(ctx, x, weights, wide_bias, windows, groups, on_the_way=True), bound


def integer_matmul(ctx: Context, a: str, b: str, of_a: str | None, of_b: str | None) -> tuple[str, int]:
    """Returns (a - its zero point) @ (b - its zero point) as whole floats, and a bound of them. Zero points are per tensor, row or column."""
    of_a, of_b = per_row(ctx, of_a, a), None if of_b is None else single(ctx, of_b)
    bound = _bound(ctx, a, of_a, b, of_b, (max(0, ctx.type(b).rank - 2),))
    dtype = DType.F32 if bound <= _EXACT_IN_F32 else DType.F64
    left, right = _centred(ctx, a, of_a, dtype), _centred(ctx, b, of_b, dtype)
    shapes = ctx.type(left).shape, ctx.type(right).shape
    left = ctx.reshape(left, [1, *shapes[0]]) if len(shapes[0]) == 1 else left
    right = ctx.reshape(right, [*shapes[1], 1]) if len(shapes[1]) == 1 else right
    sums = product(ctx, left, right)
    batch = ctx.type(sums).shape[:-2]
    return ctx.reshape(sums, [*batch, *shapes[0][-2:-1], *(shapes[1][-1:] if len(shapes[1]) > 1 else ())]), bound


def per_row(ctx: Context, value: str | None, a: str) -> str | None:
    """Returns a scale or zero point of the first factor of a product: a vector is one entry per row."""
    if value is None:
        return None
    rows = ctx.type(value).shape
    return ctx.reshape(value, [*rows, 1]) if len(rows) == 1 and rows[0] > 1 and ctx.type(a).rank > 1 else single(ctx, value)


def single(ctx: Context, value: str) -> str:
    """Returns a scale or zero point of one element as 0-d, any other itself."""
    return ctx.reshape(value, []) if ctx.type(value).size == 1 else value


def _as_i32(ctx: Context, sums: str, bound: int) -> str:
    """Returns whole floats as i32; beyond its range they wrap."""
    wide = ctx.cast(sums, DType.I64) if bound >= _EXACT_IN_I32 else sums
    return str(ctx.add("cast", [wide], to="i32", f2i="wrap_x86"))


@ONNX.lowers("MatMulInteger")
def _matmul_integer(ctx: Context, node: onnx.NodeProto) -> str:
    return _as_i32(ctx, *integer_matmul(ctx, ctx.need(0), ctx.need(1), ctx.input(2), ctx.input(3)))


@ONNX.lowers("ConvInteger")
def _conv_integer(ctx: Context, node: onnx.NodeProto) -> str:
    x, weights = ctx.need(0), ctx.need(1)
    windows = read_windows(ctx, ctx.type(x).shape[2:], ctx.type(weights).shape[2:])
    zero_points = ctx.input(2), ctx.input(3)
    return _as_i32(ctx, *integer_conv(ctx, x, weights, zero_points, None, windows, ctx.attr("group", 1)))


@ONNX.lowers("QLinearMatMul")
def _qlinear_matmul(ctx: Context, node: onnx.NodeProto) -> str:
    """Operands: a, its scale and zero point, b, its scale and zero point, scale and zero point of the result."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (ctx.need(index) for index in range(8))
    sums, _ = integer_matmul(ctx, a, b, a_zero, b_zero)
    row_scale, result_scale, result_zero = (per_row(ctx, value, a) for value in (a_scale, y_scale, y_zero))
    scale = ctx.step("div", [ctx.step("mul", [row_scale, single(ctx, b_scale)]), result_scale], rounding="true")
    return requantised(ctx, sums, scale, result_zero, ctx.type(y_zero).dtype)


@ONNX.lowers("QLinearConv")
def _qlinear_conv(ctx: Context, node: onnx.NodeProto) -> str:
    """Operands: x, its scale and zero point, the weights', those of the result, and a bias of the scale of the sums."""
    x, x_scale, x_zero, weights, w_scale, w_zero, y_scale, y_zero = (ctx.need(index) for index in range(8))
    windows = read_windows(ctx, ctx.type(x).shape[2:], ctx.type(weights).shape[2:])
    sums, _ = integer_conv(ctx, x, weights, (x_zero, w_zero), ctx.input(8), windows, ctx.attr("group", 1))
    return requantised(ctx, sums, conv_scale(ctx, x_scale, w_scale, y_scale, ctx.type(x).rank), single(ctx, y_zero), ctx.type(y_zero).dtype)


def conv_scale(ctx: Context, x_scale: str, w_scale: str, y_scale: str, rank: int) -> str:
    """Returns what sums are multiplied with, one number or one per channel."""
    own = ctx.type(w_scale).size
    per_channel = ctx.reshape(w_scale, [] if own == 1 else [own, *(1,) * (rank - 2)])
    product = ctx.step("mul", [single(ctx, x_scale), per_channel])
    return str(ctx.step("div", [product, single(ctx, y_scale)], rounding="true"))
