"""Pooling over 1 to 3 spatial axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, NUMBERS, dtype_in, spatial_axes, window_counts
from rml_exec.ops.special import half_in_single
from rml_exec.ops.windows import channels_first, channels_last, taps
from rml_exec.types import DType, TensorType

Pads = tuple[tuple[int, int], ...]
_LAYOUT = Attr("str", ("NCHW", "NHWC"))


def _pooled(
    x: TensorType, window: tuple[int, ...], strides: tuple[int, ...], pads: Pads, dilations: tuple[int, ...], data_layout: str
) -> TensorType:
    spatial = spatial_axes(x.rank, data_layout)
    counts = window_counts([x.shape[axis] for axis in spatial], window, strides, pads, dilations)
    return TensorType(x.dtype, (*x.shape[: spatial[0]], *counts, *x.shape[spatial[-1] + 1 :]))


def _infer_max_pool(
    x: TensorType,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Pads,
    dilations: tuple[int, ...],
    data_layout: str,
    nan: str,
) -> TensorType:
    dtype_in(x.dtype, NUMBERS)
    return _pooled(x, window, strides, pads, dilations, data_layout)


def _max_pool(
    x: np.ndarray, *, window: tuple[int, ...], strides: tuple[int, ...], pads: Pads, dilations: tuple[int, ...], data_layout: str, nan: str
) -> np.ndarray:
    x = channels_first(x, data_layout)
    counts = window_counts(x.shape[2:], window, strides, pads, dilations)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    larger = np.maximum if nan == "propagate" else np.fmax
    y = np.full((*x.shape[:2], *counts), lowest, x.dtype)
    for _, seen in taps(x, window, strides, pads, dilations, counts, lowest):
        larger(y, seen, out=y)
    return channels_last(y, data_layout)


def _infer_avg_pool(
    x: TensorType,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Pads,
    data_layout: str,
    divisor: str,
    divisor_value: int | None,
) -> TensorType:
    dtype_in(x.dtype, FLOATS)
    if (divisor_value is None) == (divisor == "fixed"):
        raise Rule("divisor_value must be given for divisor fixed and null for the others", divisor_value)
    if divisor_value == 0:
        raise Rule("divisor_value must not be 0", 0)
    return _pooled(x, window, strides, pads, (1,) * len(window), data_layout)


@half_in_single
def _avg_pool(
    x: np.ndarray,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: Pads,
    data_layout: str,
    divisor: str,
    divisor_value: int | None,
) -> np.ndarray:
    x = channels_first(x, data_layout)
    ones = (1,) * len(window)
    counts = window_counts(x.shape[2:], window, strides, pads, ones)
    y = np.zeros((*x.shape[:2], *counts), x.dtype)
    for _, seen in taps(x, window, strides, pads, ones, counts, 0):
        y += seen
    if divisor == "valid":
        inside = np.ones((1, 1, *x.shape[2:]), x.dtype)
        y /= sum(seen for _, seen in taps(inside, window, strides, pads, ones, counts, 0))
    else:
        y /= x.dtype.type(divisor_value or math.prod(window))
    return channels_last(y, data_layout)


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    return outputs[0].size * math.prod(attrs["window"])


def _max_attrs(window: tuple[int, ...], strides: tuple[int, ...], pads: Pads, **others: Any) -> dict[str, Any]:
    return {
        "window": window,
        "strides": strides,
        "pads": pads,
        "dilations": (1,) * len(window),
        "data_layout": "NCHW",
        "nan": "propagate",
        **others,
    }


def _avg_attrs(window: tuple[int, ...], strides: tuple[int, ...], pads: Pads, **others: Any) -> dict[str, Any]:
    return {"window": window, "strides": strides, "pads": pads, "data_layout": "NCHW", "divisor": "window", "divisor_value": None, **others}


_NONE = ((0, 0), (0, 0))
_NANS = np.array([[[1, np.nan, 2, 3, np.nan, np.nan, -np.inf]]], np.float32)

define(
    name="max_pool",
    inputs=("x",),
    attrs={
        "window": Attr("ints"),
        "strides": Attr("ints"),
        "pads": Attr("pads"),
        "dilations": Attr("ints"),
        "data_layout": _LAYOUT,
        "nan": Attr("str", ("propagate", "skip")),
    },
    infer=_infer_max_pool,
    reference=_max_pool,
    flops=_flops,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1, 1, 1), **_max_attrs((1, 1), (1, 1), _NONE)),
        case("halve", (1, 3, 7, 11), **_max_attrs((2, 2), (2, 2), _NONE)),
        case("stem", (1, 5, 15, 17), **_max_attrs((3, 3), (2, 2), ((1, 1), (1, 1)))),
        case("nhwc", (1, 15, 17, 5), **_max_attrs((3, 3), (2, 2), ((0, 1), (0, 1)), data_layout="NHWC")),
        case("dilated", (1, 2, 11, 13), **_max_attrs((3, 2), (1, 2), ((1, 0), (0, 2)), dilations=(2, 3))),
        case("line", (2, 3, 1027), **_max_attrs((5,), (3,), ((2, 1),))),
        case("line-nhwc", (2, 17, 3), **_max_attrs((4,), (4,), ((0, 3),), data_layout="NHWC")),
        case("volume", (1, 2, 5, 4, 3), **_max_attrs((2, 3, 2), (2, 1, 1), ((0, 0), (1, 1), (0, 1)))),
        case("all-padding", (1, 1, 2), **_max_attrs((2,), (1,), ((3, 0),))),
        case("window-too-large", (1, 2, 3), **_max_attrs((5,), (1,), ((0, 0),))),
        case("empty", (0, 3, 7, 7), **_max_attrs((2, 2), (2, 2), _NONE)),
        case("nan-propagate", _NANS, **_max_attrs((2,), (1,), ((0, 0),))),
        case("nan-skip", _NANS, **_max_attrs((2,), (1,), ((0, 0),), nan="skip")),
        case("i8", TensorType(DType.I8, (1, 2, 5, 5)), **_max_attrs((3, 3), (2, 2), ((1, 1), (1, 1)))),
    ),
    doc="y = the largest element of each window; x has 1 to 3 spatial axes, channels after the batch axis (NCHW) or last "
    "(NHWC). Padding is never taken. nan=propagate: one NaN makes NaN (torch, jax); skip: NaN counts as absent (tf, ONNX "
    "Runtime). A window without an element gives -inf or the lowest integer. Sizes as conv2d; ceil_mode is a larger high "
    "pad, written by the exporter.",
)
define(
    name="avg_pool",
    inputs=("x",),
    attrs={
        "window": Attr("ints"),
        "strides": Attr("ints"),
        "pads": Attr("pads"),
        "data_layout": _LAYOUT,
        "divisor": Attr("str", ("window", "valid", "fixed")),
        "divisor_value": Attr("int", optional=True),
    },
    infer=_infer_avg_pool,
    reference=_avg_pool,
    flops=_flops,
    tolerance=Tolerance(rtol=2e-6, atol_rms=2e-6),
    limits=NO_BF16,
    cases=(
        case("one", (1, 1, 1, 1), **_avg_attrs((1, 1), (1, 1), _NONE)),
        case("halve", (2, 3, 7, 17), **_avg_attrs((2, 2), (2, 2), _NONE)),
        case("window", (1, 5, 15, 17), **_avg_attrs((3, 3), (2, 2), ((1, 1), (1, 1)))),
        case("valid", (1, 5, 15, 17), **_avg_attrs((3, 3), (2, 2), ((1, 1), (0, 2)), divisor="valid")),
        case("fixed", (1, 5, 9, 9), **_avg_attrs((3, 3), (2, 2), ((1, 1), (1, 1)), divisor="fixed", divisor_value=5)),
        case("nhwc", (2, 15, 17, 5), **_avg_attrs((3, 2), (2, 3), ((0, 1), (1, 0)), data_layout="NHWC", divisor="valid")),
        case("line", (2, 3, 1027), **_avg_attrs((5,), (3,), ((2, 1),))),
        case("volume", (1, 2, 5, 4, 3), **_avg_attrs((2, 3, 2), (2, 1, 1), ((0, 0), (1, 1), (0, 1)), divisor="valid")),
        case("all-padding", (1, 1, 2), **_avg_attrs((2,), (1,), ((3, 0),), divisor="valid")),
        case("window-too-large", (1, 2, 3), **_avg_attrs((5,), (1,), ((0, 0),))),
        case("empty", (0, 3, 7, 7), **_avg_attrs((2, 2), (2, 2), _NONE)),
        case("f16", TensorType(DType.F16, (1, 2, 7, 7)), **_avg_attrs((3, 3), (2, 2), _NONE)),
    ),
    doc="y = the sum of each window, padding 0, over a divisor: window: the size of the window, padding counted "
    "(count_include_pad); valid: the elements inside x (0/0 is NaN where there are none); fixed: divisor_value. Layouts as "
    "max_pool. A ceil_mode overhang is never counted by the frameworks, padding may be: an exporter pads x with ``pad`` and"
    " then writes the overhang as a high pad with divisor valid.",
)
