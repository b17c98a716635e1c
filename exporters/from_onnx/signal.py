"""Lowerings of Fourier transforms, as products with constant matrices, and of window functions and mel filters, as constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.linear import product
from exporters.from_onnx.reading import NotATensorError, dtype_of
from exporters.from_onnx.shapes import cut, integers_of, turned

_LARGEST = 1 << 26
"""A transform whose matrix has more elements is refused."""


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """Returns 2 pi n k / length for each n below ``rows`` and k below ``columns``, the product reduced before it is rounded."""
    if 4 * rows * columns > _LARGEST:
        raise RefusedError(f"the matrix of a transform of {length} points would be too large")
    return 2 * np.pi / length * (np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % length)


def _forward(length: int, bins: int, parts: int) -> np.ndarray:
    """Returns the matrix from real (parts 1) or complex samples to complex bins: [length * parts, bins * 2]."""
    angles = _angles(length, bins, length)
    of_real = np.stack([np.cos(angles), -np.sin(angles)], -1)
    of_imaginary = np.stack([np.sin(angles), np.cos(angles)], -1)
    return np.stack([of_real, of_imaginary][:parts], 1).reshape(length * parts, bins * 2)


def _backward(length: int, parts: int) -> np.ndarray:
    """Returns the matrix from complex (or real) bins to complex samples: [length * parts, length * 2]."""
    angles = _angles(length, length, length)
    of_real = np.stack([np.cos(angles), np.sin(angles)], -1)
    of_imaginary = np.stack([-np.sin(angles), np.cos(angles)], -1)
    return np.stack([of_real, of_imaginary][:parts], 1).reshape(length * parts, length * 2) / length


def _backward_real(length: int, parts: int) -> np.ndarray:
    """Returns the matrix from the bins up to half the length, whose mirror images count as their conjugates, to real samples."""
    bins = length // 2 + 1
    angles = _angles(bins, length, length)
    twice = np.full((bins, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    return np.stack([twice * np.cos(angles), -twice * np.sin(angles)][:parts], 1).reshape(bins * parts, length) / length


@ONNX.lowers("DFT")
def _dft(ctx: Context, node: onnx.NodeProto) -> str:
    """One product with a constant matrix; the signal is cut or filled up with zeros to its length before."""
    x = ctx.need(0)
    *shape, parts = ctx.type(x).shape
    given = integers_of(ctx, "axis", 2)
    default = 1 if ctx.opset < 20 else -2
    number = default if given is None else given if isinstance(given, int) else given[0]
    axis = ctx.axis(number, len(shape) + 1)
    if axis == len(shape) or parts not in (1, 2):
        raise RefusedError(f"axis {axis} of {[*shape, parts]}: the last axis holds real and imaginary parts")
    inverse, onesided = (bool(ctx.attr(name, 0)) for name in ("inverse", "onesided"))
    lengths = ctx.integers(1, "dft_length")
    length = lengths[0] if lengths else 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if length < 1:
        raise RefusedError(f"a transform of {length} points is not defined")
    if not inverse:
        bins = length // 2 + 1 if onesided else length
        used, matrix, made = length, _forward(length, bins, parts), (bins, 2)
    elif onesided:
        used, matrix, made = length // 2 + 1, _backward_real(length, parts), (length, 1)
    else:
        used, matrix, made = length, _backward(length, parts), (length, 2)
    y = _fitted(ctx, x, axis, used)
    rest = [other for other in range(len(shape)) if other != axis]
    lines = ctx.reshape(turned(ctx, y, [*rest, axis, len(shape)]), [*(shape[other] for other in rest), used * parts])
    weight = ctx.constant(matrix.astype(ctx.type(x).dtype.numpy), f"{ctx.name}.matrix")
    bins_last = ctx.reshape(product(ctx, lines, weight), [*(shape[other] for other in rest), *made])
    return turned(ctx, bins_last, np.argsort([*rest, axis, len(shape)]).tolist())


def _fitted(ctx: Context, x: str, axis: int, size: int) -> str:
    """Returns ``x`` cut, or filled up with zeros, to a size along an axis."""
    shape = ctx.type(x).shape
    if size <= shape[axis]:
        return cut(ctx, x, axis, 0, size)
    zero, high = (0,) * len(shape), [0] * len(shape)
    high[axis] = size - shape[axis]
    return str(ctx.step("pad", [x], mode="constant", low=zero, high=tuple(high), interior=zero, value=0.0))


@ONNX.lowers("STFT")
def _stft(ctx: Context, node: onnx.NodeProto) -> str:
    """A convolution along the signal: each bin of the transform, times the window, is a filter."""
    x, window = ctx.need(0), ctx.input(2)
    shape, dtype = ctx.type(x).shape, ctx.type(x).dtype
    batch, size, parts = shape if len(shape) == 3 else (*shape, 1)
    step = (ctx.integers(1, "frame_step") or [0])[0]
    lengths = ctx.integers(3, "frame_length")
    length = lengths[0] if lengths else size if window is None else ctx.type(window).size
    if step < 1 or not 0 < length <= size or (window is not None and ctx.type(window).size != length):
        raise RefusedError(f"frames of {length} every {step} of {size} samples do not fit the signal or the window")
    bins = length // 2 + 1 if ctx.attr("onesided", 1) else length
    filters = _forward(length, bins, parts).reshape(length, parts, 2 * bins).transpose(2, 1, 0)[:, :, None]
    weight = ctx.constant(filters.astype(dtype.numpy), f"{ctx.name}.filters")
    if window is not None:
        weight = ctx.step("mul", [weight, ctx.reshape(window, [length])])
    signal = ctx.reshape(turned(ctx, ctx.reshape(x, [batch, size, parts]), [0, 2, 1]), [batch, parts, 1, size])
    y = ctx.step(
        "conv2d",
        [signal, weight, None],
        strides=(1, step),
        pads=((0, 0), (0, 0)),
        dilations=(1, 1),
        groups=1,
        data_layout="NCHW",
    )
    frames = (size - length) // step + 1
    return str(ctx.add("reshape", [turned(ctx, ctx.reshape(y, [batch, 2 * bins, frames]), [0, 2, 1])], shape=(batch, frames, bins, 2)))


def _output(ctx: Context, array: np.ndarray) -> str:
    """Returns a constant of the element type that output_datatype names, float32 if it is absent."""
    try:
        return ctx.constant(array.astype(dtype_of(ctx.attr("output_datatype", onnx.TensorProto.FLOAT)).numpy))
    except NotATensorError as error:
        raise RefusedError(str(error)) from None


def _window(name: str, weights: Sequence[float]) -> None:
    @ONNX.lowers(name)
    def lower(ctx: Context, node: onnx.NodeProto) -> str:
        """A sum of cosines over the window; periodic ones leave out the last point, which is the first of the next period."""
        (size,) = ctx.integers(0, "size") or [0]
        period = max(size if ctx.attr("periodic", 1) else size - 1, 1)
        turn = 2 * np.pi * np.arange(size) / period
        return _output(ctx, sum((weight * np.cos(order * turn) for order, weight in enumerate(weights)), np.zeros(size)))


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))


@ONNX.lowers("MelWeightMatrix")
def _mel_weight_matrix(ctx: Context, node: onnx.NodeProto) -> str:
    """Triangles between neighbouring points that are equally far apart on the mel scale, each point moved to a bin of the spectrum."""
    known = [ctx.known(ctx.need(index)) for index in range(5)]
    if any(array is None for array in known):
        raise RefusedError("its sizes and frequencies depend on the inputs")
    count, length, rate, *edges = (np.asarray(array).reshape(-1)[0].item() for array in known)
    low, high = (2595 * math.log10(1 + edge / 700) for edge in edges)
    mels = low + np.arange(count + 2) * (high - low) / (count + 2)
    points = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // rate).astype(int)
    if points.min() < 0 or points.max() > length // 2:
        raise RefusedError(f"the spectrum of {length} points does not reach from {edges[0]} to {edges[1]} Hz")
    matrix = np.zeros((length // 2 + 1, count))
    for column, (left, centre, right) in enumerate(zip(points, points[1:], points[2:], strict=False)):
        matrix[left : centre + 1, column] = np.linspace(0, 1, centre - left + 1) if centre > left else 1
        matrix[centre:right, column] = 1 - np.arange(right - centre) / max(right - centre, 1)
    return _output(ctx, matrix)
