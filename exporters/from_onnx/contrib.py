"""Lowerings of the fused operators that ONNX Runtime's optimizers write into files, domain com.microsoft.

Its attention and quantised operators have modules of their own, which this one loads.
"""

from __future__ import annotations

import onnx

from exporters.from_onnx import contrib_attention, contrib_quantised
from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.linear import product
from exporters.from_onnx.neural import add_conv, last_axes, layer_norm, rms_norm, statistics
from exporters.from_onnx.pooling import add_max_pool
from exporters.from_onnx.windows import read_windows
from rml_exec.types import DType

__all__ = ["contrib_attention", "contrib_quantised"]


@ONNX.lowers("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def _fused_matmul(ctx: Context, node: onnx.NodeProto) -> str:
    a, b = ctx.need(0), ctx.need(1)
    if ctx.attr("transBatchA", 0) or ctx.attr("transBatchB", 0):
        raise RefusedError("batch axes behind the matrices (transBatchA, transBatchB) are not supported")
    left, right = ctx.type(a).shape, ctx.type(b).shape
    if len(left) == 1 or len(right) == 1:
        raise RefusedError("a factor with one axis is not supported")
    y = product(ctx, a, b, transpose_a=bool(ctx.attr("transA", 0)), transpose_b=bool(ctx.attr("transB", 0)))
    return _scaled(ctx, y, ctx.attr("alpha", 1.0))


@ONNX.lowers("com.microsoft.FusedGemm")
def _fused_gemm(ctx: Context, node: onnx.NodeProto) -> str:
    gemm = ONNX.get("Gemm")
    assert gemm is not None
    return _activated(ctx, gemm(ctx, node))


def _scaled(ctx: Context, x: str, factor: float) -> str:
    return x if factor == 1 else str(ctx.step("mul", [x, ctx.scalar(factor, ctx.type(x).dtype)]))


def _activated(ctx: Context, x: str) -> str:
    """Returns the activation of x that the node's attribute ``activation`` names; x itself where it names none."""
    kind = ctx.attr("activation", "")
    numbers = list(ctx.attr("activation_params") or [])
    if not numbers:
        numbers = [value for value in (ctx.attr("activation_alpha"), ctx.attr("activation_beta")) if value is not None]
    if not kind:
        return x
    if kind in ("Relu", "Sigmoid", "Tanh"):
        return str(ctx.add(kind.lower(), [x]))
    if kind == "LeakyRelu":
        return str(ctx.add("leaky_relu", [x], alpha=(numbers or [0.01])[0]))
    if kind == "Clip" and len(numbers) == 2:
        return str(ctx.add("clamp", [x], lo=numbers[0], hi=numbers[1]))
    if kind == "HardSigmoid":
        alpha, beta = numbers if len(numbers) == 2 else (0.2, 0.5)
        return str(ctx.add("hard_sigmoid", [x], alpha=alpha, beta=beta))
    raise RefusedError(f"activation {kind} is not supported")


@ONNX.lowers("com.microsoft.FusedConv")
def _fused_conv(ctx: Context, node: onnx.NodeProto) -> str:
    """A convolution, plus input 3, then the activation."""
    x, weights, more = ctx.need(0), ctx.need(1), ctx.input(3)
    windows = read_windows(ctx, ctx.type(x).shape[2:], ctx.type(weights).shape[2:])
    y = add_conv(ctx, x, weights, ctx.input(2), windows, ctx.attr("group", 1))
    return _activated(ctx, y if more is None else ctx.step("add", [y, more]))


@ONNX.lowers("com.microsoft.NhwcMaxPool")
def _nhwc_max_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    return add_max_pool(ctx, x, read_windows(ctx, ctx.type(x).shape[1:-1]), "NHWC")


def _with_bias(ctx: Context, index: int = 1) -> str:
    x, bias = ctx.need(0), ctx.input(index)
    return x if bias is None else str(ctx.step("add", [x, bias]))


@ONNX.lowers("com.microsoft.Gelu", "com.microsoft.BiasGelu")
def _gelu(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("gelu", [_with_bias(ctx)], approximate="none"))


@ONNX.lowers("com.microsoft.FastGelu")
def _fast_gelu(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("gelu", [_with_bias(ctx)], approximate="tanh"))


@ONNX.lowers("com.microsoft.QuickGelu")
def _quick_gelu(ctx: Context, node: onnx.NodeProto) -> str:
    """Gives x * sigmoid(alpha * x)."""
    x = ctx.need(0)
    if ctx.attr("alpha", 1.702) == 1:
        return str(ctx.add("silu", [x]))
    return str(ctx.add("mul", [x, ctx.step("sigmoid", [_scaled(ctx, x, ctx.attr("alpha", 1.702))])]))


@ONNX.lowers("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def _simplified_layer_norm(ctx: Context, node: onnx.NodeProto) -> str:
    """An RMS norm, before ONNX had one; ONNX Runtime writes it into the domain ai.onnx."""
    if ctx.output_wanted(1):
        raise RefusedError("the inverse standard deviation (output 1) is for training")
    x = ctx.need(0)
    return rms_norm(ctx, x, ctx.input(1), last_axes(ctx, x), ctx.attr("epsilon", 1e-5))


@ONNX.lowers("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip_layer_norm(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    """The norm of x + skip + bias, and that sum as output 3."""
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    scale, shift, bias = (ctx.need(2), None, ctx.input(3)) if simplified else (ctx.need(2), ctx.input(3), ctx.input(4))
    total = ctx.step("add", [ctx.need(0), ctx.need(1)])
    total = total if bias is None else ctx.step("add", [total, bias])
    axes, eps = (ctx.type(total).rank - 1,), ctx.attr("epsilon", 1e-12)
    y = rms_norm(ctx, total, scale, axes, eps) if simplified else layer_norm(ctx, total, scale, shift, axes, eps)
    if ctx.output_wanted(1) or ctx.output_wanted(2):
        if simplified:
            raise RefusedError("the statistics (outputs 1 and 2) are for training")
        return y, *statistics(ctx, ctx.cast(total, DType.F32), axes, eps), total
    return y, None, None, total


@ONNX.lowers("com.microsoft.EmbedLayerNormalization")
def _embed_layer_norm(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    """The norm of the sum of word, position and segment embeddings; output 1 counts the tokens that the mask lets through."""
    ids, segments, words, places, kinds, scale, shift, mask, positions = (ctx.input(index) for index in range(9))
    if ids is None or words is None or places is None:
        raise RefusedError("ids, word and position embeddings must be given")
    batch, length = ctx.type(ids).shape
    total = _rows(ctx, words, ids)
    if positions is None:
        width = ctx.type(places).shape[1]
        of_place = ctx.step("slice", [places], start=(0, 0), limit=(length, width), strides=(1, 1))
    else:
        of_place = _rows(ctx, places, positions)
    total = ctx.step("add", [total, of_place])
    if segments is not None and kinds is not None:
        total = ctx.step("add", [total, _rows(ctx, kinds, segments)])
    y = layer_norm(ctx, total, scale, shift, (2,), ctx.attr("epsilon", 1e-12))
    counts = None
    if ctx.output_wanted(1):
        seen = mask if mask is not None else ctx.step("broadcast", [ctx.scalar(0, DType.I32)], shape=(batch, length))
        counts = ctx.step("reduce", [seen], kind="sum", axes=(1,), keepdims=False, nan="propagate", empty="identity")
    return y, counts, total


def _rows(ctx: Context, table: str, ids: str) -> str:
    return str(ctx.step("take", [table, ids], axis=0, oob="error", wrap_negative=False, fill_value=None))
