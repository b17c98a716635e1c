"""Resampling of images and signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, NUMBERS, dtype_in, per_axis, spatial_axes
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType

_COORDINATES: Mapping[str, Callable[[np.ndarray, float, float, int, int], np.ndarray]] = {
    "half_pixel": lambda i, over, under, size, count: (i + 0.5) * over / under - 0.5,
    "align_corners": lambda i, over, under, size, count: i * (size - 1) / (count - 1) if count > 1 else i * 0.0,
    "asymmetric": lambda i, over, under, size, count: i * over / under,
    "pytorch_half_pixel": lambda i, over, under, size, count: (i + 0.5) * over / under - 0.5 if count > 1 else i * 0.0,
    "tf_half_pixel_for_nn": lambda i, over, under, size, count: (i + 0.5) * over / under,
}
"""Position in x of element i of the result, which is over/under elements of x wide: a fraction, so that whole positions are exact."""

_ROUNDINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "half_down": lambda at: np.ceil(at - 0.5),
    "half_up": lambda at: np.floor(at + 0.5),
}


def _triangle(distance: np.ndarray, cubic_a: float) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _cubic(distance: np.ndarray, cubic_a: float) -> np.ndarray:
    """R. G. Keys, "Cubic convolution interpolation for digital image processing", IEEE Trans. ASSP 29 (1981)."""
    d, a = np.abs(distance), cubic_a
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


_FILTERS: Mapping[str, tuple[int, Callable[[np.ndarray, float], np.ndarray]]] = {"linear": (1, _triangle), "cubic": (2, _cubic)}


def nearest_elements(size: int, count: int, scale: float | None, coord: str, nearest_round: str) -> np.ndarray:
    """Returns, for each of ``count`` positions along an axis of ``size``, the element of x that mode nearest takes."""
    over, under = (size, count) if scale is None else (1.0, scale)
    at = _ROUNDINGS[nearest_round](_COORDINATES[coord](np.arange(count), over, under, size, count))
    return np.clip(at, 0, size - 1).astype(np.intp)


def taps_of(
    size: int,
    count: int,
    scale: float | None,
    *,
    mode: str,
    coord: str,
    nearest_round: str | None,
    cubic_a: float | None,
    exclude_outside: bool,
    antialias: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns, for each of ``count`` positions along an axis of ``size``, the elements [count, taps] it mixes and their weights.

    No weights: one element, taken as it is. All in float64, whatever the operand is.
    """
    if mode == "nearest":
        assert nearest_round is not None
        return nearest_elements(size, count, scale, coord, nearest_round)[:, None], None
    over, under = (size, count) if scale is None else (1.0, scale)
    at = _COORDINATES[coord](np.arange(count), over, under, size, count)
    support, kernel = _FILTERS[mode]
    if coord == "align_corners" and count > 1:
        over, under = size - 1, count - 1
    shrink = under / over if antialias and under < over else 1.0
    reach = support / shrink
    first = np.floor(at - reach).astype(np.intp) + 1
    # As many taps as the widest window has; one that a window does not have gets weight 0.
    elements = first[:, None] + np.arange(math.ceil(2 * reach))
    weights = kernel((elements - at[:, None]) * shrink, cubic_a or 0.0)
    if exclude_outside:
        weights = np.where((elements >= 0) & (elements < size), weights, 0.0)
    if exclude_outside or antialias:
        weights = weights / np.sum(weights, 1, keepdims=True)
    return np.clip(elements, 0, size - 1), weights


@half_in_single
def _resize(x: np.ndarray, *, sizes: tuple[int, ...], scales: tuple[float, ...] | None, data_layout: str, **attrs: Any) -> np.ndarray:
    y = x
    for axis, count, scale in zip(spatial_axes(x.ndim, data_layout), sizes, scales or (None,) * len(sizes), strict=True):
        if count == 0:
            y = np.zeros((*y.shape[:axis], count, *y.shape[axis + 1 :]), x.dtype)
            continue
        elements, weights = taps_of(y.shape[axis], count, scale, **attrs)
        if weights is None:
            y = np.take(y, elements[:, 0], axis)
            continue
        along = (-1,) + (1,) * (x.ndim - axis - 1)
        mixed = np.zeros((*y.shape[:axis], count, *y.shape[axis + 1 :]), x.dtype)
        for tap in range(elements.shape[1]):
            mixed += np.take(y, elements[:, tap], axis) * weights[:, tap].astype(x.dtype).reshape(along)
        y = mixed
    return y.copy() if y is x else y


def _infer_resize(
    x: TensorType,
    *,
    mode: str,
    coord: str,
    nearest_round: str | None,
    cubic_a: float | None,
    exclude_outside: bool,
    antialias: bool,
    scales: tuple[float, ...] | None,
    sizes: tuple[int, ...],
    data_layout: str,
) -> TensorType:
    dtype_in(x.dtype, (*NUMBERS, DType.BOOL) if mode == "nearest" else FLOATS, f"element type for mode {mode}")
    axes = spatial_axes(x.rank, data_layout)
    per_axis(sizes, len(axes), "sizes", 0)
    if (nearest_round is None) == (mode == "nearest"):
        raise Rule("nearest_round must be given for mode nearest and null for the others", nearest_round)
    if (cubic_a is None) == (mode == "cubic"):
        raise Rule("cubic_a must be given for mode cubic and null for the others", cubic_a)
    if mode == "nearest" and (antialias or exclude_outside):
        raise Rule("antialias and exclude_outside need mode linear or cubic", mode)
    if scales is not None:
        per_axis(scales, len(axes), "scales")
        if not all(0 < scale < math.inf for scale in scales):
            raise Rule("scales must be positive", list(scales))
    shape = list(x.shape)
    for axis, count in zip(axes, sizes, strict=True):
        if x.shape[axis] == 0 and count:
            raise Rule(f"axis {axis} is empty, so there is nothing to take", f"size {count}")
        shape[axis] = count
    return TensorType(x.dtype, tuple(shape))


def _attrs(
    mode: str,
    sizes: tuple[int, ...],
    coord: str = "half_pixel",
    nearest_round: str | None = None,
    cubic_a: float | None = None,
    exclude_outside: bool = False,
    antialias: bool = False,
    scales: tuple[float, ...] | None = None,
    data_layout: str = "NCHW",
) -> dict[str, Any]:
    return {
        "mode": mode,
        "coord": coord,
        "nearest_round": nearest_round or ("floor" if mode == "nearest" else None),
        "cubic_a": cubic_a if cubic_a is not None or mode != "cubic" else -0.75,
        "exclude_outside": exclude_outside,
        "antialias": antialias,
        "scales": scales,
        "sizes": sizes,
        "data_layout": data_layout,
    }


_IMAGE = (1, 3, 5, 7)

define(
    name="resize",
    inputs=("x",),
    attrs={
        "mode": Attr("str", ("nearest", *_FILTERS)),
        "coord": Attr("str", tuple(_COORDINATES)),
        "nearest_round": Attr("str", tuple(_ROUNDINGS), optional=True),
        "cubic_a": Attr("float", optional=True),
        "exclude_outside": Attr("bool"),
        "antialias": Attr("bool"),
        "scales": Attr("floats", optional=True),
        "sizes": Attr("ints"),
        "data_layout": Attr("str", ("NCHW", "NHWC")),
    },
    infer=_infer_resize,
    reference=_resize,
    flops=lambda types, outputs, attrs: 8 * outputs[0].size,
    tolerance=Tolerance(rtol=2e-6, atol_rms=2e-6),
    limits=NO_BF16,
    cases=(
        *(
            case(f"{mode}-{coord}-{kind}", _IMAGE, **_attrs(mode, sizes, coord))
            for mode in ("nearest", "linear", "cubic")
            for coord in _COORDINATES
            for kind, sizes in (("up", (11, 13)), ("down", (3, 3)))
        ),
        *(case(f"round-{rounding}", (1, 1, 4, 6), **_attrs("nearest", (7, 3), nearest_round=rounding)) for rounding in _ROUNDINGS),
        *(
            case(f"{mode}-antialias-{kind}", _IMAGE, **_attrs(mode, sizes, antialias=True, exclude_outside=kind != "edge"))
            for mode in ("linear", "cubic")
            for kind, sizes in (("down", (2, 3)), ("edge", (2, 3)), ("up", (7, 11)))
        ),
        case("keys", _IMAGE, **_attrs("cubic", (9, 5), cubic_a=-0.5, exclude_outside=True)),
        case("twofold-nhwc", (2, 5, 7, 3), **_attrs("nearest", (10, 14), "asymmetric", data_layout="NHWC")),
        case("linear-nhwc", (2, 5, 7, 3), **_attrs("linear", (9, 3), data_layout="NHWC")),
        case("scales", _IMAGE, **_attrs("linear", (8, 11), scales=(1.7, 1.6))),
        case("scales-nearest", _IMAGE, **_attrs("nearest", (3, 4), "asymmetric", scales=(0.7, 0.6))),
        case("same", _IMAGE, **_attrs("linear", (5, 7))),
        case("to-one", _IMAGE, **_attrs("linear", (1, 1), "pytorch_half_pixel")),
        case("from-one", (1, 2, 1, 1), **_attrs("cubic", (3, 5), "align_corners", antialias=True)),
        case("signal", (2, 3, 17), **_attrs("linear", (33,))),
        case("volume", (1, 2, 3, 5, 4), **_attrs("linear", (5, 4, 3))),
        case("no-batch", (0, 3, 5, 7), **_attrs("linear", (2, 2))),
        case("to-nothing", _IMAGE, **_attrs("cubic", (0, 3))),
        case("from-nothing", (1, 2, 0, 3), **_attrs("nearest", (0, 3))),
        case("u8", TensorType(DType.U8, _IMAGE), **_attrs("nearest", (7, 3), "asymmetric")),
        case("f64", TensorType(DType.F64, _IMAGE), **_attrs("cubic", (7, 3))),
        case("f16", TensorType(DType.F16, _IMAGE), **_attrs("linear", (7, 3))),
    ),
    doc="x resampled to sizes along its 1 to 3 spatial axes (layouts as max_pool), one axis after the other. Position i of the result "
    "lies at coord in x, s the entry of scales, or where scales is null sizes / size: half_pixel (i+0.5)/s - 0.5; align_corners "
    "i*(size-1)/(sizes-1); asymmetric i/s; pytorch_half_pixel as half_pixel but 0 for a result of 1; tf_half_pixel_for_nn (i+0.5)/s. "
    "nearest takes the element at that position under nearest_round (half_down and half_up round to the nearest, ties as they say); "
    "linear mixes 2 elements per axis; cubic 4, by Keys' kernel with a = cubic_a (-0.75 torch, -0.5 jax and tf). Beyond the edge the edge "
    "element repeats, or with exclude_outside counts nothing and the other weights are scaled to 1. antialias: where the result is "
    "smaller the kernel is as much wider and its weights are scaled to 1 (torch, jax and tf with exclude_outside). torch and tf: linear "
    "half_pixel or align_corners; torch nearest is asymmetric with floor, tf and jax nearest tf_half_pixel_for_nn with floor.",
)
