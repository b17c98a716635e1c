"""Lowerings of Resize and Upsample: the op ``resize`` where it can say what is asked for, else a constant matrix per axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.shapes import axes_of, pick, turned
from rml_exec.ops.resize import nearest_elements
from rml_exec.types import DType

_FLOATS = (DType.F16, DType.F32, DType.F64)
_ROUNDINGS = {"round_prefer_floor": "half_down", "round_prefer_ceil": "half_up", "floor": "floor", "ceil": "ceil"}
_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")

_LONG = 4096
"""Elements that scales are tried on."""

_HAIR = 2.0**-40

_WHOLE = 1e-4
"""A number that is as near to a whole one was meant to be it."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized.

    Attributes:
        axis: which one.
        size: elements before.
        count: elements after.
        scale: what the operator was given, or the quotient of the sizes.
        given: whether it was given a scale.
        start: begin of the region of interest, as a fraction of the axis.
        end: its end.
        rounding: of mode nearest, as ``resize`` names it.
    """

    axis: int
    size: int
    count: int
    scale: float
    given: bool
    start: float = 0.0
    end: float = 1.0
    rounding: str = "half_down"

    @property
    def width(self) -> float:
        """Elements after, before they were made whole."""
        width = self.scale * self.size
        return width if self.given and abs(width - self.count) > _WHOLE else self.count

    def positions(self, coord: str, dtype: type = np.float64) -> np.ndarray:
        """Returns the position in x of each element of the result, computed in an element type."""
        reach = self.size - 1
        i: np.ndarray = np.arange(self.count, dtype=dtype)
        if coord == "align_corners":
            return i * reach / (self.width - 1) if self.width > 1 else i * 0
        if coord == "asymmetric":
            return i / self.scale
        if coord == "tf_half_pixel_for_nn":
            return (i + 0.5) / self.scale
        if coord == "tf_crop_and_resize":
            if self.count == 1:
                return i + 0.5 * (self.start + self.end) * reach
            return self.start * reach + i * (self.end - self.start) * reach / (self.count - 1)
        if coord == "pytorch_half_pixel" and self.count == 1:
            return i * 0
        offset = self.size / 2 * (1 - self.count / self.width) if coord == "half_pixel_symmetric" else 0.0
        return offset + (i + 0.5) / self.scale - 0.5


@ONNX.lowers("Resize")
def _resize(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    if ctx.opset < 11:
        return _upsample(ctx, node)
    shape = ctx.type(x).shape
    coord = ctx.attr("coordinate_transformation_mode", "half_pixel")
    if coord not in (*_COORDINATES, "half_pixel_symmetric", "tf_crop_and_resize"):
        raise RefusedError(f"coordinate_transformation_mode {coord} is not supported")
    axes = axes_of(ctx, ctx.attr("axes", range(len(shape))), len(shape))
    roi = _floats(ctx, 1, "roi") if coord == "tf_crop_and_resize" else None
    edges = roi or [0.0] * len(axes) + [1.0] * len(axes)
    rounding = ctx.attr("nearest_mode", "round_prefer_floor")
    scales, sizes = _floats(ctx, 2, "scales"), ctx.integers(3, "sizes")
    if not scales and not sizes:
        raise RefusedError("it has neither scales nor sizes")
    if rounding not in _ROUNDINGS or len(scales or sizes or ()) != len(axes) or len(edges) != 2 * len(axes):
        raise RefusedError(f"nearest_mode {rounding}, scales {scales}, sizes {sizes} or roi {roi} do not fit {len(axes)} axes")
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    if not scales and policy != "stretch":
        pick_one = min if policy == "not_larger" else max
        scales = [pick_one(size / shape[axis] for axis, size in zip(axes, sizes or (), strict=True))] * len(axes)
        sizes = [math.floor(scales[0] * shape[axis] + 0.5) for axis in axes]
    resized = []
    for number, axis in enumerate(axes):
        start, end = edges[number], edges[len(axes) + number]
        if scales:
            scale = scales[number]
            count = sizes[number] if sizes else _count(shape[axis], scale * (end - start))
        else:
            count = (sizes or ())[number]
            scale = count / max(shape[axis], 1)
        resized.append(_Axis(axis, shape[axis], count, scale, bool(scales), start, end, _ROUNDINGS[rounding]))
    return _resized(ctx, x, resized, coord)


@ONNX.lowers("Upsample")
def _upsample(ctx: Context, node: onnx.NodeProto) -> str:
    """Also Resize before opset 11: asymmetric, and nearest takes the element before, or, making an axis smaller, the one behind."""
    x = ctx.need(0)
    scales = ctx.attr("scales") or _floats(ctx, 1, "scales") or []
    shape = ctx.type(x).shape
    if len(scales) != len(shape):
        raise RefusedError(f"scales {scales} do not fit {len(shape)} axes")
    resized = [
        _Axis(axis, size, _count(size, scale), scale, True, rounding="ceil" if scale < 1 else "floor")
        for axis, (size, scale) in enumerate(zip(shape, scales, strict=True))
    ]
    return _resized(ctx, x, resized, "asymmetric")


def _count(size: int, scale: float) -> int:
    """Returns the elements of an axis after, by float32 as ONNX, ONNX Runtime and torch have it: 10 elements at scale 0.7 become 7, not 6."""
    return math.floor(np.float32(size) * np.float32(scale))


def _floats(ctx: Context, index: int, what: str) -> list[float] | None:
    value = ctx.input(index)
    if value is None:
        return None
    array = ctx.known(value)
    if array is None:
        raise RefusedError(f"its {what} depends on the inputs")
    if array.dtype.kind != "f":
        raise RefusedError(f"its {what} must be floats, not {array.dtype}")
    return [float(number) for number in array.reshape(-1)]


def _resized(ctx: Context, x: str, axes: Sequence[_Axis], coord: str) -> str:
    mode, dtype = ctx.attr("mode", "nearest"), ctx.type(x).dtype
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic"):
        raise RefusedError(f"mode {mode} is not supported")
    axes = [one for one in axes if coord == "tf_crop_and_resize" or one.count != one.size or one.scale != 1]
    if not axes:
        return x
    if any(one.count and (one.size == 0 or not 0 < one.scale < math.inf) for one in axes):
        raise RefusedError("an axis is empty, or a scale is not positive")
    y = x if mode == "nearest" or dtype in _FLOATS else ctx.cast(x, DType.F32)
    y = _by_op(ctx, y, axes, coord, mode) or _by_axis(ctx, y, axes, coord, mode)
    if coord == "tf_crop_and_resize":
        y = _extrapolated(ctx, y, axes)
    return y if ctx.type(y).dtype is dtype else str(ctx.add("cast", [y], to=dtype.value, f2i="saturate"))


def _by_op(ctx: Context, x: str, axes: Sequence[_Axis], coord: str, mode: str) -> str | None:
    """Returns a ``resize``; None where it has no way to say what is asked for."""
    shape = ctx.type(x).shape
    rank, touched = len(shape), {one.axis for one in axes}
    layout = "NCHW" if not touched & {0, 1} else "NHWC"
    spatial = range(2, rank) if layout == "NCHW" else range(1, rank - 1)
    antialias = bool(ctx.attr("antialias", 0)) and mode != "nearest"
    fractional = any(one.width != one.count for one in axes)
    if coord == "half_pixel_symmetric" and not fractional:
        coord = "half_pixel"
    if coord not in _COORDINATES or (coord == "align_corners" and (fractional or antialias)):
        return None
    if not 3 <= rank <= 5 or not touched <= set(spatial) or (mode == "nearest" and len({one.rounding for one in axes}) > 1):
        return None
    of = {one.axis: one for one in axes}
    scales = {one.axis: one.scale for one in axes} if axes[0].given else None
    if mode == "nearest" and scales is not None:
        scales = {one.axis: _double_for(one, coord) for one in axes}
        if not all(_takes(one, coord, scales[one.axis]) for one in axes):
            return None
    return str(
        ctx.add(
            "resize",
            [x],
            mode=mode,
            coord=coord,
            nearest_round=axes[0].rounding if mode == "nearest" else None,
            cubic_a=ctx.attr("cubic_coeff_a", -0.75) if mode == "cubic" else None,
            exclude_outside=bool(ctx.attr("exclude_outside", 0)) and mode != "nearest",
            antialias=antialias,
            scales=None if scales is None else tuple(scales.get(axis, 1.0) for axis in spatial),
            sizes=tuple(of[axis].count if axis in of else shape[axis] for axis in spatial),
            data_layout=layout,
        )
    )


def _double_for(one: _Axis, coord: str) -> float:
    """Returns the number whose positions in float64 round most often as those of a float32 scale do in float32.

    That is itself, or the simplest fraction that it may stand for (0.6, 4/3), or one a hair beside that. It is the same at every size of the
    axis, so that sizes may stay open.
    """
    scale = one.scale
    fraction = next(
        float(found) for digits in range(1, 50) if np.float32(found := Fraction(scale).limit_denominator(2**digits)) == np.float32(scale)
    )
    long = replace(one, size=max(math.ceil(_LONG / scale), 2), count=_LONG)
    wanted = _nearest(long.positions(coord, np.float32), long)
    candidates = [fraction, fraction * (1 + _HAIR), fraction * (1 - _HAIR), scale]
    return min(candidates, key=lambda each: int((nearest_elements(long.size, _LONG, each, coord, one.rounding) != wanted).sum()))


def _takes(one: _Axis, coord: str, scale: float) -> bool:
    """True if a ``resize`` by that scale, whose positions are float64, takes the elements that positions in float32 give."""
    wanted = _nearest(one.positions(coord, np.float32), one)
    return np.array_equal(nearest_elements(one.size, one.count, scale, coord, one.rounding), wanted)


def _by_axis(ctx: Context, x: str, axes: Sequence[_Axis], coord: str, mode: str) -> str:
    """Returns ``x`` resized one axis after the other: by the elements that are taken, or by a product with their weights."""
    a, flags = ctx.attr("cubic_coeff_a", -0.75), [bool(ctx.attr(name, 0)) for name in ("antialias", "exclude_outside")]
    for one in axes:
        if mode == "nearest":
            x = pick(ctx, x, _nearest(one.positions(coord, np.float32), one), one.axis)
            continue
        at = one.positions(coord)
        rank = ctx.type(x).rank
        order = [*(axis for axis in range(rank) if axis != one.axis), one.axis]
        weight = ctx.constant(_matrix(at, one, mode, a, *flags).astype(ctx.type(x).dtype.numpy), f"{ctx.name}.weights")
        mixed = ctx.step("linear", [turned(ctx, x, order), weight, None], weight_layout="oi")
        x = turned(ctx, mixed, np.argsort(order).tolist())
    return x


def _nearest(at: np.ndarray, one: _Axis) -> np.ndarray:
    rounded = {"floor": np.floor(at), "ceil": np.ceil(at), "half_down": np.ceil(at - 0.5), "half_up": np.floor(at + 0.5)}[one.rounding]
    return np.clip(rounded, 0, max(one.size - 1, 0)).astype(np.int64)


def _matrix(at: np.ndarray, one: _Axis, mode: str, a: float, antialias: bool, exclude_outside: bool) -> np.ndarray:
    """Returns the weights [count, size] of the elements of x: a triangle, or Keys' cubic kernel, around each position."""
    shrink = min(one.scale, 1.0) if antialias else 1.0
    support = (1 if mode == "linear" else 2) / shrink
    taps = np.floor(at - support).astype(np.int64)[:, None] + 1 + np.arange(math.ceil(2 * support))
    d = np.abs(taps - at[:, None]) * shrink
    if mode == "linear":
        weights = np.maximum(1 - d, 0)
    else:
        weights = np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, np.where(d < 2, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, 0))
    if exclude_outside:
        weights = np.where((taps >= 0) & (taps < one.size), weights, 0)
    if exclude_outside or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((one.count, one.size))
    np.add.at(matrix, (np.arange(one.count)[:, None], np.clip(taps, 0, one.size - 1)), weights)
    return matrix


def _extrapolated(ctx: Context, y: str, axes: Sequence[_Axis]) -> str:
    """Returns ``y`` with extrapolation_value where a position along any axis is outside x."""
    shape = ctx.type(y).shape
    outside = np.zeros([1] * len(shape), np.bool_)
    for one in axes:
        at = one.positions("tf_crop_and_resize")
        outside = outside | ((at < 0) | (at > one.size - 1)).reshape([-1 if axis == one.axis else 1 for axis in range(len(shape))])
    if not outside.any():
        return y
    value = ctx.scalar(ctx.attr("extrapolation_value", 0.0), ctx.type(y).dtype)
    return str(ctx.step("select", [ctx.constant(outside, f"{ctx.name}.outside"), value, y]))
