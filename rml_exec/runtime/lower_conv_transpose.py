"""Lowering of conv2d_transpose as stride x stride ordinary convolutions, one for each phase of the result.

The elements of the result that lie ``stride`` apart see the same taps of the window, so each such phase is a convolution of stride 1 with a
part of the window: no multiplication with a zero that a dilated input would have (W. Shi et al., "Is the deconvolution layer the same as a
convolutional layer?", arXiv 1609.07009).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np

from rml_exec import _native
from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.epilogue import NO_EPILOGUE
from rml_exec.runtime.lower_composites import moved
from rml_exec.runtime.lowering import LowerContext, NativeStep, Part, copy_step, lowers
from rml_exec.runtime.shared import aligned_floats, shared_data
from rml_exec.types import DType, TensorType

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Phase:
    """Along one axis: the elements ``first``, ``first + stride``... of the result, the taps they see, and what of x lies under each tap."""

    first: int
    count: int
    taps: tuple[int, ...]
    sources: np.ndarray  # [count, taps], -1 outside x


def _phases(size: int, count: int, extent: int, stride: int, low: int, dilation: int) -> list[_Phase]:
    phases = []
    for first in range(min(stride, count)):
        at = np.arange(first, count, stride) + low
        taps = tuple(tap for tap in range(extent) if (first + low - tap * dilation) % stride == 0)
        sources = (at[:, None] - np.array(taps, np.int64)[None, :] * dilation) // stride
        phases.append(_Phase(first, len(at), taps, np.where((sources >= 0) & (sources < size), sources, -1)))
    return phases


def _offsets(rows: _Phase, columns: _Phase, width: int, pixel_floats: int) -> np.ndarray:
    """Returns int32 [pixels, taps]: offset in floats of the pixel of x under each tap, -1 where there is none."""
    row, column = rows.sources[:, None, :, None], columns.sources[None, :, None, :]
    table = np.where((row < 0) | (column < 0), -1, (row * width + column) * pixel_floats)
    return np.ascontiguousarray(table.reshape(rows.count * columns.count, -1), np.int32)


def _panels(weights: np.ndarray, groups: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> np.ndarray:
    """Returns these taps of IOHW weights as packed panels, group after group."""
    inputs, outputs = weights.shape[0] // groups, weights.shape[1]
    chosen = weights[:, :, rows][:, :, :, columns].reshape(groups, inputs, outputs, -1)
    k = inputs * chosen.shape[-1]
    matrices = np.ascontiguousarray(chosen.transpose(0, 3, 1, 2)).reshape(groups, k, outputs)
    panels = aligned_floats(groups, _native.packed_b_floats(k, outputs))
    for panel, matrix in zip(panels, matrices, strict=True):
        _native.pack_b(panel, np.ascontiguousarray(matrix), k, outputs, outputs, 1)
    return panels.reshape(-1)


@lowers("conv2d_transpose")
def lower_conv2d_transpose(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Per phase one convolution into scratch and one copy to its place, in either layout."""
    x, weight, bias = node.inputs
    assert x is not None
    result, weights, attrs = node.outputs[0], ctx.constant(weight), node.attrs
    if result.type.dtype is not DType.F32 or weights is None or result.type.size == 0 or ctx.type(x).size == 0:
        return None
    order = (0, 2, 3, 1) if attrs["data_layout"] == "NCHW" else (0, 1, 2, 3)
    batch, height, width, channels = (ctx.type(x).shape[axis] for axis in order)
    _, out_height, out_width, outputs = (result.type.shape[axis] for axis in order)
    out_strides = tuple(contiguous_strides(result.type.shape)[axis] for axis in order)
    extents, strides, dilations, lows = weights.shape[2:], attrs["strides"], attrs["dilations"], [low for low, _ in attrs["pads"]]
    axes = tuple(zip((height, width), (out_height, out_width), extents, strides, lows, dilations, strict=True))
    rows, columns = (_phases(*axis) for axis in axes)
    if not all(phase.taps for phase in (*rows, *columns)) or height * width * channels > np.iinfo(np.int32).max:
        return None
    source = moved(ctx, x, order)
    bias_operand = None if bias is None else ctx.contiguous(bias)
    groups, zeros = attrs["groups"], shared_data(None, ("zeros", channels), lambda: np.zeros(channels, np.float32))
    part = ctx.scratch(batch * rows[0].count * columns[0].count * outputs * _F32_BYTES)
    steps = []
    for row, column in itertools.product(rows, columns):
        pixels, taps = row.count * column.count, (row.taps, column.taps)
        table_key = ("turned offsets", channels, axes, row.first, column.first)
        table = shared_data(None, table_key, partial(_offsets, row, column, width, channels))
        panels = shared_data(weights, ("turned", groups, taps), partial(_panels, weights, groups, *taps))
        sizes = (channels // groups, outputs // groups, groups, height * width * channels, outputs, pixels * outputs)
        params = (batch, pixels, len(row.taps) * len(column.taps), *sizes, *NO_EPILOGUE.params)
        steps.append(NativeStep("conv", params, (part, source, panels, bias_operand, table, zeros, None)))
        phase = TensorType(DType.F32, (batch, row.count, column.count, outputs))
        target = Part(result.name, (row.first * out_strides[1] + column.first * out_strides[2]) * _F32_BYTES)
        apart = (out_strides[0], out_strides[1] * strides[0], out_strides[2] * strides[1], out_strides[3])
        steps.append(copy_step(target, part, phase, contiguous_strides(phase.shape), apart))
    return steps
