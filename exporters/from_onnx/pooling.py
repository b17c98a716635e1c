"""Lowerings of pools."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.neural import add_conv, broadcast, reduce
from exporters.from_onnx.windows import Windows, read_windows
from rml_exec.types import DType

__all__ = ["add_max_pool"]


@ONNX.lowers("MaxPool")
def _max_pool(ctx: Context, node: onnx.NodeProto) -> str | tuple[str, ...]:
    x = ctx.need(0)
    windows = _read(ctx, x)
    y = add_max_pool(ctx, x, windows, "NCHW")
    return (y, _places_of_largest(ctx, x, windows)) if ctx.output_wanted(1) else y


def _read(ctx: Context, x: str) -> Windows:
    sizes = ctx.type(x).shape[2:]
    if len(sizes) not in (1, 2, 3):
        raise RefusedError(f"pools over {len(sizes)} axes are not supported")
    return read_windows(ctx, sizes)


def add_max_pool(ctx: Context, x: str, windows: Windows, data_layout: str) -> str:
    """Returns the largest element of each window; a NaN counts as absent, as in ONNX Runtime."""
    attrs = {"window": windows.extents, "strides": windows.strides, "pads": windows.all_pads, "dilations": windows.dilations}
    return str(ctx.add("max_pool", [x], data_layout=data_layout, nan="skip", **attrs))


def _places_of_largest(ctx: Context, x: str, windows: Windows) -> str:
    """Returns where in x, read as one row, the first largest element of each window stands.

    The elements that stand at one place of their windows are a slice of the padded image; of these slices, stacked, the best is chosen, and
    a table says which element of an image that is.
    """
    batch, channels, *sizes = ctx.type(x).shape
    lows, highs = zip(*windows.all_pads, strict=True)
    dtype = ctx.type(x).dtype.numpy
    lowest = -math.inf if dtype.kind == "f" else float(np.iinfo(dtype).min)
    padded = ctx.step("pad", [x], mode="constant", low=(0, 0, *lows), high=(0, 0, *highs), interior=(0,) * (2 + len(sizes)), value=lowest)
    whole = [size + low + high for size, low, high in zip(sizes, lows, highs, strict=True)]
    counts = [(size - reach) // stride + 1 for size, reach, stride in zip(whole, windows.reaches, windows.strides, strict=True)]
    column_major = ctx.attr("storage_order", 0)
    steps = [math.prod(sizes[:axis] if column_major else sizes[axis + 1 :]) for axis in range(len(sizes))]  # from one index to the next
    taps, tables = [], []
    for tap in np.ndindex(*windows.extents):
        starts = [place * dilation for place, dilation in zip(tap, windows.dilations, strict=True)]
        ends = [start + (count - 1) * stride + 1 for start, count, stride in zip(starts, counts, windows.strides, strict=True)]
        cut = ctx.step("slice", [padded], start=(0, 0, *starts), limit=(batch, channels, *ends), strides=(1, 1, *windows.strides))
        taps.append(ctx.reshape(cut, [batch * channels, 1, math.prod(counts)]))
        along = [
            (start - low + np.arange(count) * stride) * step
            for start, low, count, stride, step in zip(starts, lows, counts, windows.strides, steps, strict=True)
        ]
        tables.append(functools.reduce(np.add.outer, along).reshape(-1))
    stacked = taps[0] if len(taps) == 1 else ctx.step("concat", taps, axis=1)
    best = ctx.step("argreduce", [stacked], kind="max", axis=1, keepdims=True, tie="first", nan="skip", index_dtype="i64")
    table = broadcast(ctx, ctx.constant(np.stack(tables).astype(np.int64)), [batch * channels, len(taps), math.prod(counts)])
    within = ctx.step("take_along_axis", [table, best], axis=1, oob="error", wrap_negative=False, fill_value=None)
    image = ctx.step("iota", [], dtype="i64", shape=(batch * channels, 1, 1), axis=0)
    first = ctx.step("mul", [image, ctx.scalar(math.prod(sizes), DType.I64)])
    return ctx.reshape(ctx.step("add", [within, first]), [batch, channels, *counts])


@ONNX.lowers("AveragePool")
def _average_pool(ctx: Context, node: onnx.NodeProto) -> str:
    """The divisor counts padding if asked to, but never the overhang of ``ceil_mode``: then padding becomes part of the image."""
    x, count_padding = ctx.need(0), bool(ctx.attr("count_include_pad", 0))
    windows = _read(ctx, x)
    if any(dilation != 1 for dilation in windows.dilations):
        counted = _window_counts(ctx.type(x).shape[2:], windows, count_padding)
        divisor = ctx.constant(counted.astype(ctx.type(x).dtype.numpy))
        return str(ctx.add("div", [_window_sums(ctx, x, windows), divisor], rounding="true"))
    pads = windows.all_pads
    if count_padding and any(windows.overhang):
        if any(map(any, windows.pads)):
            lows, highs = zip(*windows.pads, strict=True)
            rank = ctx.type(x).rank
            x = ctx.step("pad", [x], mode="constant", low=(0, 0, *lows), high=(0, 0, *highs), interior=(0,) * rank, value=0.0)
        pads, count_padding = tuple((0, more) for more in windows.overhang), False
    attrs = {"window": windows.extents, "strides": windows.strides, "pads": pads, "data_layout": "NCHW"}
    return str(ctx.add("avg_pool", [x], divisor="window" if count_padding else "valid", divisor_value=None, **attrs))


def _window_counts(sizes: tuple[int, ...], windows: Windows, count_padding: bool) -> np.ndarray:
    """Returns how many elements of the image (and of its padding) each window has."""
    per_axis = []
    for axis, size in enumerate(sizes):
        low, high = windows.pads[axis]
        end = size + low + high
        starts = range(0, end + windows.overhang[axis] - windows.reaches[axis] + 1, windows.strides[axis])
        offsets = np.arange(windows.extents[axis]) * windows.dilations[axis]
        first, last = (0, end) if count_padding else (low, low + size)
        per_axis.append(np.array([np.sum((start + offsets >= first) & (start + offsets < last)) for start in starts]))
    return np.asarray(functools.reduce(np.multiply.outer, per_axis))


def _window_sums(ctx: Context, x: str, windows: Windows) -> str:
    """Returns the sum of each window, padding 0; of dilated ones as a convolution with ones."""
    plain = Windows(windows.extents, windows.strides, windows.dilations, windows.all_pads, (0,) * windows.rank)
    if all(dilation == 1 for dilation in windows.dilations):
        attrs = {"window": plain.extents, "strides": plain.strides, "pads": plain.pads, "data_layout": "NCHW"}
        return str(ctx.step("avg_pool", [x], divisor="fixed", divisor_value=1, **attrs))
    batch, channels, *sizes = ctx.type(x).shape
    ones = ctx.constant(np.ones((1, 1, *windows.extents), ctx.type(x).dtype.numpy))
    sums = add_conv(ctx, ctx.reshape(x, [batch * channels, 1, *sizes]), ones, None, plain, 1, on_the_way=True)
    return ctx.reshape(sums, [batch, channels, *ctx.type(sums).shape[2:]])


@ONNX.lowers("LpPool")
def _lp_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x, order = ctx.need(0), ctx.attr("p", 2)
    return _root(ctx, _window_sums(ctx, _powers(ctx, x, order), _read(ctx, x)), order)


def _powers(ctx: Context, x: str, order: int) -> str:
    if order == 2:
        return str(ctx.step("mul", [x, x]))
    size = ctx.step("abs", [x])
    return str(size if order == 1 else ctx.step("pow", [size, ctx.scalar(order, ctx.type(x).dtype)]))


def _root(ctx: Context, total: str, order: int) -> str:
    if order == 1:
        return total
    return str(ctx.add("sqrt", [total]) if order == 2 else ctx.add("pow", [total, ctx.scalar(1 / order, ctx.type(total).dtype)]))


@ONNX.lowers("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    kind, empty, nan = ("mean", "identity", "propagate") if node.op_type == "GlobalAveragePool" else ("max", "error", "skip")
    axes = tuple(range(2, ctx.type(x).rank))
    return str(ctx.add("reduce", [x], kind=kind, axes=axes, keepdims=True, nan=nan, empty=empty))


@ONNX.lowers("GlobalLpPool")
def _global_lp_pool(ctx: Context, node: onnx.NodeProto) -> str:
    x, order = ctx.need(0), ctx.attr("p", 2)
    return _root(ctx, reduce(ctx, "sum", _powers(ctx, x, order), range(2, ctx.type(x).rank)), order)
