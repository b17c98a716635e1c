"""Lowering of conv2d: channels last, one offset table per layer, weights packed once. NCHW operands are copied to channels last and back."""

from __future__ import annotations

import math

import numpy as np

from rml_exec import _native
from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import View, contiguous_strides, reads_contiguous
from rml_exec.runtime.lower_linear import gemm_step, packed
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, copy_step, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType, TensorType

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def offset_table(
    size: tuple[int, int],
    output: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[tuple[int, int], tuple[int, int]],
    dilations: tuple[int, int],
    pixel_floats: int,
) -> np.ndarray:
    """Returns int32 [output pixels, taps]: offset in floats of the input pixel under each tap within one image, -1 on padding.

    Strides, dilations and pads of a convolution exist in this table alone (indirect convolution: Dukhan, arXiv 1907.02129).
    """
    along = []
    for axis in range(2):
        at = np.arange(output[axis])[:, None] * strides[axis] + np.arange(kernel[axis])[None, :] * dilations[axis] - pads[axis][0]
        along.append(np.where((at >= 0) & (at < size[axis]), at, -1))
    rows, columns = along[0][:, None, :, None], along[1][None, :, None, :]
    table = np.where((rows < 0) | (columns < 0), -1, (rows * size[1] + columns) * pixel_floats)
    return np.ascontiguousarray(table.reshape(output[0] * output[1], kernel[0] * kernel[1]), dtype=np.int32)


@lowers("conv2d")
def lower_conv2d(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A 1x1 convolution of stride 1 is a GEMM over pixels, a depthwise one has its own kernel, every other one is an indirect GEMM."""
    x, weight, bias = node.inputs
    assert x is not None
    result, weights = node.outputs[0], ctx.constant(weight)
    if result.type.dtype is not DType.F32 or weights is None or result.type.size == 0:
        return None
    channels_first = node.attrs["data_layout"] == "NCHW"
    shape = tuple(ctx.type(x).shape[i] for i in _TO_NHWC) if channels_first else ctx.type(x).shape
    image = TensorType(DType.F32, shape)
    source = _channels_last(ctx, x, image) if channels_first else ctx.contiguous(x)
    n, height, width, channels = shape
    oc, ic, *kernel = weights.shape
    out_shape = tuple(result.type.shape[i] for i in _TO_NHWC) if channels_first else result.type.shape
    out_height, out_width = out_shape[1:3]
    target: Operand = ctx.scratch(result.type.nbytes) if channels_first else result.name
    groups, attrs = node.attrs["groups"], node.attrs
    if height * width * channels > np.iinfo(np.int32).max:  # the table's entries are int32
        return None
    bias_operand = None if bias is None else ctx.contiguous(bias)
    pixels, taps = out_height * out_width, math.prod(kernel)
    whole = (out_height, out_width) == (height, width) and taps == 1 and groups == 1 and attrs["strides"] == (1, 1)
    if whole and not any(map(any, attrs["pads"])):
        step = gemm_step(target, source, packed(weights, ic, oc, 1, ic), bias_operand, 1, n * pixels, oc, ic, ic, oc, 0, 0, 0)
    else:
        window = (
            (height, width),
            (out_height, out_width),
            (kernel[0], kernel[1]),
            attrs["strides"],
            attrs["pads"],
            attrs["dilations"],
            channels,
        )
        table = shared_data(None, ("offsets", *window), lambda: offset_table(*window))
        zeros = shared_data(None, ("zeros", channels), lambda: np.zeros(max(channels, 1), np.float32))
        tail = (bias_operand, table, zeros)
        image_floats, out_floats = height * width * channels, pixels * oc
        if ic == 1 and groups == channels == oc:
            per_tap = shared_data(weights, ("taps",), lambda: weights.reshape(oc, taps).T)
            lows = tuple(low for low, _ in attrs["pads"])
            params = (n, out_height, out_width, *kernel, channels, height, width, *attrs["strides"], *lows, *attrs["dilations"])
            step = NativeStep("conv_depthwise", params, (target, source, per_tap, bias_operand, zeros))
        else:
            per_group = oc // groups
            panels = shared_data(weights, ("conv", groups), lambda: _packed_groups(weights, groups))
            params = (n, pixels, taps, ic, per_group, groups, image_floats, oc, out_floats)
            step = NativeStep("conv", params, (target, source, panels, *tail))
    if not channels_first:
        return [step]
    strides = contiguous_strides(out_shape)
    return [step, copy_step(result.name, target, result.type, tuple(strides[i] for i in _TO_NCHW))]


def _packed_groups(weights: np.ndarray, groups: int) -> np.ndarray:
    """Returns OIHW weights as panels, group after group: rows in the order in which a pixel's window is read, [kh, kw, ic]."""
    oc, ic, kh, kw = weights.shape
    matrix = np.ascontiguousarray(weights.transpose(2, 3, 1, 0)).reshape(kh * kw * ic, oc)
    k, n = kh * kw * ic, oc // groups
    panels = np.empty((groups, _native.packed_b_floats(k, n)), np.float32)
    for group, panel in enumerate(panels):
        _native.pack_b(panel, matrix.reshape(-1)[group * n :], k, n, oc, 1)
    return panels.reshape(-1)


def _channels_last(ctx: LowerContext, x: str, image: TensorType) -> Operand:
    """Returns an NCHW value as NHWC: itself when it is a view that already lies so, else a copy in scratch."""
    strides = tuple(ctx.strides(x)[i] for i in _TO_NHWC)
    if reads_contiguous(View(x, 0, strides), image.shape):
        return x
    part = ctx.scratch(image.nbytes)
    ctx.prologue.append(copy_step(part, x, image, strides))
    return part
