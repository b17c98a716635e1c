"""Lowerings of the quantised operators that ONNX Runtime's quantizer writes into files, domain com.microsoft."""

from __future__ import annotations

import math

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.linear import product
from exporters.from_onnx.neural import reduce
from exporters.from_onnx.quantised import (
    conv_scale,
    dequantised,
    dynamic_scale,
    integer_conv,
    integer_matmul,
    quantised,
    requantised,
    single,
)
from exporters.from_onnx.windows import read_windows
from rml_exec.types import DType


def _real(ctx: Context, first: int) -> str:
    """Returns the numbers that an operand stands for; its scale and zero point are the inputs behind it."""
    scale, zero_point = ctx.need(first + 1), ctx.input(first + 2)
    return dequantised(ctx, ctx.need(first), single(ctx, scale), None if zero_point is None else single(ctx, zero_point))


def _quantised(ctx: Context, x: str, scale_at: int, dtype: DType) -> str:
    """Returns x by the scale and zero point at these inputs."""
    zero_point = ctx.input(scale_at + 1)
    return quantised(ctx, x, single(ctx, ctx.need(scale_at)), None if zero_point is None else single(ctx, zero_point), dtype)


@ONNX.lowers("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def _binary(ctx: Context, node: onnx.NodeProto) -> str:
    result = ctx.step(node.op_type.removeprefix("QLinear").lower(), [_real(ctx, 0), _real(ctx, 3)])
    return _quantised(ctx, result, 6, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearSigmoid")
def _sigmoid(ctx: Context, node: onnx.NodeProto) -> str:
    return _quantised(ctx, ctx.step("sigmoid", [_real(ctx, 0)]), 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearLeakyRelu")
def _leaky_relu(ctx: Context, node: onnx.NodeProto) -> str:
    alpha = ctx.attr("alpha", 0.01)
    return _quantised(ctx, ctx.step("leaky_relu", [_real(ctx, 0)], alpha=alpha), 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearSoftmax")
def _softmax(ctx: Context, node: onnx.NodeProto) -> str:
    """Before opset 13, which the attribute ``opset`` tells, over all axes from ``axis`` on, as one."""
    x = _real(ctx, 0)
    shape = ctx.type(x).shape
    axis = ctx.axis(ctx.attr("axis", -1), len(shape))
    if ctx.attr("opset", 13) < 13:
        x = ctx.reshape(x, [*shape[:axis], math.prod(shape[axis:])])
    y = ctx.reshape(ctx.step("softmax", [x], axis=axis, fully_masked="nan"), shape)
    return _quantised(ctx, y, 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearGlobalAveragePool")
def _global_average_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x = _real(ctx, 0)
    rank = ctx.type(x).rank
    axes = range(1, rank - 1) if ctx.attr("channels_last", 0) else range(2, rank)
    return _quantised(ctx, reduce(ctx, "mean", x, axes), 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearAveragePool")
def _average_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x, last, count_padding = _real(ctx, 0), bool(ctx.attr("channels_last", 0)), bool(ctx.attr("count_include_pad", 0))
    shape = ctx.type(x).shape
    windows = read_windows(ctx, shape[1:-1] if last else shape[2:])
    if count_padding and any(windows.overhang):
        raise RefusedError("counting padding together with ceil_mode is not supported")
    attrs = {"window": windows.extents, "strides": windows.strides, "pads": windows.all_pads, "data_layout": "NHWC" if last else "NCHW"}
    y = ctx.step("avg_pool", [x], divisor="window" if count_padding else "valid", divisor_value=None, **attrs)
    return _quantised(ctx, y, 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearReduceMean")
def _reduce_mean(ctx: Context, node: onnx.NodeProto) -> str:
    x = _real(ctx, 0)
    rank = ctx.type(x).rank
    axes = [ctx.axis(axis, rank) for axis in ctx.attr("axes") or range(rank)]
    mean = reduce(ctx, "mean", x, axes, keepdims=bool(ctx.attr("keepdims", 1)))
    return _quantised(ctx, mean, 3, ctx.type(ctx.need(0)).dtype)


@ONNX.lowers("com.microsoft.QLinearConcat")
def _concat(ctx: Context, node: onnx.NodeProto) -> str:
    """Inputs: scale and zero point of the result, then each operand with its own."""
    parts = [_real(ctx, first) for first in range(2, len(node.input), 3)]
    axis = ctx.axis(ctx.attr("axis"), ctx.type(parts[0]).rank)
    joined = ctx.step("concat", parts, axis=axis)
    return _quantised(ctx, joined, 0, ctx.type(ctx.need(2)).dtype)


@ONNX.lowers("com.microsoft.QLinearWhere")
def _where(ctx: Context, node: onnx.NodeProto) -> str:
    """Inputs: the condition, two operands, each with scale and zero point, those of the result."""
    chosen = ctx.step("select", [ctx.need(0), _real(ctx, 1), _real(ctx, 4)])
    return _quantised(ctx, chosen, 7, ctx.type(ctx.need(1)).dtype)


def _channels_first(ctx: Context, x: str) -> str:
    """Returns an image with the channels last as one with the channels after the batch."""
    rank = ctx.type(x).rank
    return str(ctx.step("transpose", [x], perm=(0, rank - 1, *range(1, rank - 1))))


def _channels_last(ctx: Context, x: str) -> str:
    """Returns an image with the channels after the batch as one with the channels last."""
    return str(ctx.step("transpose", [x], perm=(0, *range(2, ctx.type(x).rank), 1)))


@ONNX.lowers("com.microsoft.QLinearConv")
def _conv(ctx: Context, node: onnx.NodeProto) -> str:
    """As that of ONNX, but the channels may come last."""
    x, x_scale, x_zero, weights, w_scale, w_zero, y_scale, y_zero = (ctx.need(index) for index in range(8))
    last = bool(ctx.attr("channels_last", 0))
    x = _channels_first(ctx, x) if last else x
    windows = read_windows(ctx, ctx.type(x).shape[2:], ctx.type(weights).shape[2:])
    sums, _ = integer_conv(ctx, x, weights, (x_zero, w_zero), ctx.input(8), windows, ctx.attr("group", 1))
    scale = conv_scale(ctx, x_scale, w_scale, y_scale, ctx.type(x).rank)
    y = requantised(ctx, sums, scale, single(ctx, y_zero), ctx.type(y_zero).dtype)
    return _channels_last(ctx, y) if last else y


@ONNX.lowers("com.microsoft.QGemm")
def _gemm(ctx: Context, node: onnx.NodeProto) -> str:
    """Gives alpha * A' B' + C, the i32 C on the scale of the sums; floats where no scale of the result is given."""
    a, a_scale, a_zero, b, b_scale, b_zero = (ctx.need(index) for index in range(6))
    a = ctx.step("transpose", [a], perm=(1, 0)) if ctx.attr("transA", 0) else a
    b = ctx.step("transpose", [b], perm=(1, 0)) if ctx.attr("transB", 0) else b
    sums, _ = integer_matmul(ctx, a, b, a_zero, b_zero)
    bias = ctx.input(6)
    if bias is not None:
        sums = ctx.step("add", [ctx.cast(sums, DType.F64), ctx.cast(bias, DType.F64)])
    scale = ctx.step("mul", [single(ctx, a_scale), single(ctx, b_scale)])
    alpha = ctx.attr("alpha", 1.0)
    scale = scale if alpha == 1 else ctx.step("mul", [scale, ctx.scalar(alpha, DType.F32)])
    y_scale, y_zero = ctx.input(7), ctx.input(8)
    if y_scale is None:
        return str(ctx.add("mul", [ctx.cast(sums, DType.F32), scale]))
    scale = ctx.step("div", [scale, single(ctx, y_scale)], rounding="true")
    dtype = ctx.type(a).dtype if y_zero is None else ctx.type(y_zero).dtype
    return requantised(ctx, sums, scale, None if y_zero is None else single(ctx, y_zero), dtype)


@ONNX.lowers("com.microsoft.MatMulIntegerToFloat")
def _matmul_integer_to_float(ctx: Context, node: onnx.NodeProto) -> str:
    """Inputs: a, b, their scales, their zero points, a bias."""
    sums, _ = integer_matmul(ctx, ctx.need(0), ctx.need(1), ctx.input(4), ctx.input(5))
    return _scaled_sums(ctx, sums, single(ctx, ctx.need(2)), ctx.need(3), ctx.input(6))


@ONNX.lowers("com.microsoft.DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(ctx: Context, node: onnx.NodeProto) -> str:
    """Inputs: a (floats, quantised to u8 here), b, its scale and zero point, a bias."""
    x = ctx.need(0)
    scale, zero_point = dynamic_scale(ctx, x)
    a = quantised(ctx, x, scale, zero_point, DType.U8)
    sums, _ = integer_matmul(ctx, a, ctx.need(1), zero_point, ctx.input(3))
    return _scaled_sums(ctx, sums, scale, ctx.need(2), ctx.input(4))


def _scaled_sums(ctx: Context, sums: str, a_scale: str, b_scale: str, bias: str | None) -> str:
    scale = ctx.step("mul", [a_scale, single(ctx, b_scale)])
    y = ctx.step("mul", [ctx.cast(sums, DType.F32), scale])
    return str(y if bias is None else ctx.add("add", [y, bias]))


@ONNX.lowers("com.microsoft.MatMulNBits")
def _matmul_n_bits(ctx: Context, node: onnx.NodeProto) -> str:
    """A product with known weights of 2, 4 or 8 bits in blocks, which are spelled out as floats at import."""
    x, scales = ctx.need(0), ctx.known(ctx.need(2))
    packed, zero_points = ctx.known(ctx.need(1)), ctx.known(ctx.input(3))
    if packed is None or scales is None or (ctx.input(3) is not None and zero_points is None):
        raise RefusedError("its weights depend on the inputs")
    if ctx.input(4) is not None or ctx.attr("weight_prepacked", 0):
        raise RefusedError("reordered or prepacked weights are not supported")
    columns, rows, bits = ctx.attr("N"), ctx.attr("K"), ctx.attr("bits", 4)
    size = ctx.attr("block_size")
    blocks = -(-rows // size)
    codes = _unpacked(packed.reshape(columns, -1), bits)[:, : blocks * size].reshape(columns, blocks, size)
    if zero_points is None:
        zeros: np.ndarray = np.full((columns, blocks, 1), 1 << (bits - 1), np.float32)
    elif zero_points.dtype == np.uint8:
        zeros = _unpacked(zero_points.reshape(columns, -1), bits)[:, :blocks].reshape(columns, blocks, 1)
    else:
        zeros = zero_points.astype(np.float32).reshape(columns, blocks, 1)
    weights = (codes - zeros) * scales.astype(np.float32).reshape(columns, blocks, 1)
    matrix = weights.reshape(columns, blocks * size)[:, :rows].astype(ctx.type(x).dtype.numpy)
    y = product(ctx, x, ctx.constant(np.ascontiguousarray(matrix), f"{node.input[1]}.weights"), transpose_b=True)
    return y if ctx.input(5) is None else str(ctx.step("add", [y, ctx.need(5)]))


def _unpacked(rows: np.ndarray, bits: int) -> np.ndarray:
    """Returns the numbers in rows of bytes, the lowest bits first, as f32."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((rows[:, :, None] >> shifts) & ((1 << bits) - 1)).reshape(len(rows), -1).astype(np.float32)
