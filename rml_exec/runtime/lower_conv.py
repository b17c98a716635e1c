"""Lowering of conv2d: channels last, weights packed or transformed once. NCHW operands are copied to channels last and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import View, contiguous_strides, reads_contiguous
from rml_exec.runtime import winograd
from rml_exec.runtime.epilogue import NO_EPILOGUE, Epilogue
from rml_exec.runtime.lower_linear import gemm_step, packed
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, Scratch, copy_step, lowers
from rml_exec.runtime.shared import aligned_floats, shared_data, unscaled
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


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution over channels-last images; pads are (low, high) per axis, weights OIHW of this shape."""

    batch: int
    size: tuple[int, int]
    output: tuple[int, int]
    channels: int
    weights: np.ndarray | Recipe
    shape: tuple[int, ...]
    strides: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    dilations: tuple[int, int]
    groups: int
    joined: bool = False
    """Whether a row of the kernel is one tap."""

    @property
    def has_few_channels(self) -> bool:
        """Whether a tap is so short that the walk over taps costs more than a copy of the image with its padding."""
        neighbours = self.groups == 1 and self.dilations[1] == 1 and self.kernel[1] > 1
        return neighbours and self.channels <= 8 and min(self.size) > 0 and min(min(pad) for pad in self.pads) >= 0

    @property
    def oc(self) -> int:
        return self.shape[0]

    @property
    def kernel(self) -> tuple[int, int]:
        return self.shape[2], self.shape[3]

    @property
    def pixels(self) -> int:
        return math.prod(self.output)

    @property
    def low_pads(self) -> tuple[int, int]:
        return self.pads[0][0], self.pads[1][0]


def kernel_of(conv: _Conv, numerics: str) -> str:
    """Returns which kernel runs a convolution: the one place that chooses."""
    plain = conv.strides == (1, 1) and conv.groups == 1
    if plain and conv.kernel == (1, 1) and not any(map(any, conv.pads)):
        return "gemm"
    if conv.groups == conv.channels == conv.oc > 1:
        return "conv_depthwise"
    if plain and conv.kernel == (3, 3) and conv.dilations == (1, 1) and numerics == "fast":
        edge = winograd.tile_of(conv.batch, conv.output, conv.channels, conv.oc)
        return f"winograd{edge}" if edge else "conv"
    return "conv"


@lowers("conv2d")
def lower_conv2d(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over channels-last images, by the kernel that :func:`kernel_of` chooses."""
    return conv2d_steps(node, ctx, NO_EPILOGUE)


def conv2d_steps(node: Node, ctx: LowerContext, epilogue: Epilogue) -> list[NativeStep] | None:
    """Returns the steps of a conv2d node with this epilogue, whose residual lies as the result of the kernel does: channels last."""
    x, weight, bias = node.inputs
    assert x is not None and weight is not None
    result, weights, attrs = node.outputs[0], ctx.weights(weight), node.attrs
    if result.type.dtype is not DType.F32 or weights is None or result.type.size == 0:
        return None
    channels_first = attrs["data_layout"] == "NCHW"
    shape, out_shape = ctx.type(x).shape, result.type.shape
    if channels_first:
        shape, out_shape = tuple(shape[i] for i in _TO_NHWC), tuple(out_shape[i] for i in _TO_NHWC)
    (batch, height, width, channels), (_, *output, _) = shape, out_shape
    if height * width * channels > np.iinfo(np.int32).max:  # offsets within an image are int32
        return None
    conv = _Conv(
        batch,
        (height, width),
        (output[0], output[1]),
        channels,
        weights,
        ctx.type(weight).shape,
        attrs["strides"],
        attrs["pads"],
        attrs["dilations"],
        attrs["groups"],
    )
    image = TensorType(DType.F32, shape)
    strides = tuple(ctx.strides(x)[i] for i in _TO_NHWC) if channels_first else ctx.strides(x)
    source: Operand
    if kernel_of(conv, ctx.numerics) == "conv" and conv.has_few_channels:
        conv, source = _joined_rows(conv, ctx, x, image, strides)
    else:
        source = _channels_last(ctx, x, image, strides)
    target: Operand = ctx.scratch(result.type.nbytes) if channels_first else result.name
    step = _step(conv, ctx, target, source, None if bias is None else ctx.contiguous(bias), epilogue)
    if not channels_first:
        return [step]
    out_strides = contiguous_strides(out_shape)
    return [step, copy_step(result.name, target, result.type, tuple(out_strides[i] for i in _TO_NCHW))]


def _step(conv: _Conv, ctx: LowerContext, target: Operand, source: Operand, bias: Operand, epilogue: Epilogue) -> NativeStep:
    oc, ic = conv.shape[:2]
    kernel = kernel_of(conv, ctx.numerics)
    if kernel == "gemm":
        rows, panels = conv.batch * conv.pixels, packed(conv.weights, ic, oc, 1, ic)
        return gemm_step(target, source, panels, bias, 1, rows, oc, ic, ic, oc, 0, 0, 0, epilogue=epilogue)
    zeros = shared_data(None, ("zeros", conv.channels), lambda: np.zeros(max(conv.channels, 1), np.float32))
    if kernel == "conv_depthwise":
        taps = shared_data(conv.weights, ("taps",), lambda: _taps_first(conv.weights))
        shape = (conv.batch, *conv.output, *conv.kernel, oc, *conv.size)
        window = (*conv.strides, *conv.low_pads, *conv.dilations)
        return NativeStep(kernel, (*shape, *window, *epilogue.params), (target, source, taps, bias, zeros))
    if kernel == "conv":
        return _indirect_step(conv, target, source, bias, zeros, epilogue)
    edge = int(kernel.removeprefix("winograd"))
    tiles = conv.batch * math.ceil(conv.output[0] / edge) * math.ceil(conv.output[1] / edge)
    block = winograd.tiles_at_once(edge, tiles, ic, oc)
    workspaces = ctx.scratch(4 * ctx.threads * winograd.workspace_floats(edge, block, ic, oc))
    params = (conv.batch, *conv.output, ic, oc, *conv.size, *conv.low_pads, block, ctx.threads, *epilogue.params)
    weights = winograd.transformed_weights(conv.weights, edge, ctx.threads)
    return NativeStep(kernel, params, (target, source, weights, bias, zeros, workspaces, epilogue.residual))


def _indirect_step(conv: _Conv, target: Operand, source: Operand, bias: Operand, zeros: Operand, epilogue: Epilogue) -> NativeStep:
    (oc, ic), groups, channels = conv.shape[:2], conv.groups, conv.channels
    kernel = (conv.kernel[0], 1) if conv.joined else conv.kernel
    window = (conv.size, conv.output, kernel, conv.strides, conv.pads, conv.dilations, channels)
    table = shared_data(None, ("offsets", *window), lambda: offset_table(*window))
    panels = shared_data(conv.weights, ("conv", groups), lambda: _packed_groups(conv.weights, groups))
    strides = (math.prod(conv.size) * channels, oc, conv.pixels * oc)
    taps, depth = math.prod(kernel), ic * math.prod(conv.kernel)
    params = (conv.batch, conv.pixels, taps, depth // taps, oc // groups, groups, *strides, *epilogue.params)
    return NativeStep("conv", params, (target, source, panels, bias, table, zeros, epilogue.residual))


def _taps_first(weights: np.ndarray | Recipe) -> np.ndarray:
    """Returns depthwise weights as [kh * kw, channels]."""
    data, scale = unscaled(weights)
    taps = data.reshape(len(data), -1).T
    return taps if scale is None else (taps * scale).astype(np.float32)


def _packed_groups(weights: np.ndarray | Recipe, groups: int) -> np.ndarray:
    """Returns OIHW weights as panels, group after group: rows in the order in which a pixel's window is read, [kh, kw, ic]."""
    data, scale = unscaled(weights)
    oc, ic, kh, kw = data.shape
    taps, n = kh * kw, oc // groups
    k = taps * ic
    panels = aligned_floats(groups, _native.packed_b_floats(k, n))
    for group, panel in enumerate(panels):
        factors = None if scale is None else scale[group * n :]
        _native.pack_b(panel, data.reshape(-1)[group * n * k :], k, n, taps, k, taps=taps, tap_stride=1, scale=factors)
    return panels.reshape(-1)


def _channels_last(ctx: LowerContext, x: str, image: TensorType, strides: tuple[int, ...]) -> Operand:
    """Returns an image with these NHWC strides in C order: itself when it already lies so, else a copy in scratch."""
    if reads_contiguous(View(x, 0, strides), image.shape):
        return x
    part = ctx.scratch(image.nbytes)
    ctx.prologue.append(copy_step(part, x, image, strides))
    return part


def _joined_rows(conv: _Conv, ctx: LowerContext, x: str, image: TensorType, strides: tuple[int, ...]) -> tuple[_Conv, Operand]:
    """Returns the convolution with the columns of its kernel taken as channels, and the padded image that it reads.

    Without padding, the pixels that one row of the kernel covers are neighbours in memory: one tap with width x channels inputs. The sums
    run in the same order as before.
    """
    (top, bottom), (left, right) = conv.pads
    (height, width), channels = conv.size, conv.channels
    size = (height + top + bottom, width + left + right)
    row = size[1] * channels
    if any(map(any, conv.pads)):
        floats = size[0] * row
        padded = ctx.scratch(conv.batch * floats * image.dtype.itemsize)
        zero = shared_data(None, ("zeros", 1), lambda: np.zeros(1, np.float32))

        def put(start: int, operand: Operand, shape: tuple[int, ...], its_strides: tuple[int, ...], to: tuple[int, ...]) -> None:
            at = start * image.dtype.itemsize
            part = Scratch(padded.offset + at, padded.nbytes - at)
            ctx.prologue.append(copy_step(part, operand, TensorType(image.dtype, shape), its_strides, to))

        first, last = top * row + left * channels, (top + height) * row - right * channels
        put(0, zero, (conv.batch, first), (0, 0), (floats, 1))
        put(first + width * channels, zero, (conv.batch, height - 1, (left + right) * channels), (0, 0, 0), (floats, row, 1))
        put(last, zero, (conv.batch, floats - last), (0, 0), (floats, 1))
        put(first, x, image.shape, strides, (floats, row, channels, 1))
        source: Operand = padded
    else:
        source = _channels_last(ctx, x, image, strides)
    return replace(conv, size=size, pads=((0, 0), (0, 0)), joined=True), source
