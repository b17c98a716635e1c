"""Convolution and its transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rml_exec.ops.linear import PRODUCT
from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, dtype_in, per_axis, same_dtype, vector_of, window_counts
from rml_exec.ops.special import half_in_single
from rml_exec.ops.windows import channels_first, channels_last, taps
from rml_exec.types import DType, TensorType

Pads = tuple[tuple[int, int], ...]


def _check_weights(x: TensorType, w: TensorType, rank: int, groups: int) -> None:
    if x.rank != rank + 2 or w.rank != rank + 2:
        raise Rule(f"x and w must have {rank + 2} axes", f"ranks {x.rank} and {w.rank}")
    if groups < 1:
        raise Rule("groups must be at least 1", groups)


def _sizes(x: TensorType, data_layout: str) -> tuple[int, int, tuple[int, ...]]:
    """Returns batch, channels and the spatial sizes."""
    if data_layout == "NCHW":
        return x.shape[0], x.shape[1], x.shape[2:]
    return x.shape[0], x.shape[-1], x.shape[1:-1]


def _result(dtype: DType, batch: int, channels: int, sizes: tuple[int, ...], data_layout: str) -> TensorType:
    return TensorType(dtype, (batch, channels, *sizes) if data_layout == "NCHW" else (batch, *sizes, channels))


def _infer_conv(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    *,
    rank: int,
    strides: tuple[int, ...],
    pads: Pads,
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> TensorType:
    dtype = same_dtype(x, w, bias)
    dtype_in(dtype, FLOATS)
    _check_weights(x, w, rank, groups)
    batch, channels, sizes = _sizes(x, data_layout)
    outputs, inputs, *extents = w.shape
    if inputs * groups != channels:
        raise Rule(f"w's second axis must be the channels of x over groups ({channels}/{groups})", inputs, f"w is OIHW, x is {data_layout}")
    if outputs % groups:
        raise Rule(f"output channels must divide into {groups} groups", outputs)
    vector_of(outputs, bias, "bias")
    return _result(dtype, batch, outputs, window_counts(sizes, extents, strides, pads, dilations), data_layout)


@half_in_single
def _conv(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    *,
    strides: tuple[int, ...],
    pads: Pads,
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> np.ndarray:
    x = channels_first(x, data_layout)
    batch, _, *sizes = x.shape
    outputs, inputs, *extents = w.shape
    counts = window_counts(sizes, extents, strides, pads, dilations)
    weights = w.reshape(groups, outputs // groups, inputs, math.prod(extents))
    result = np.zeros((batch, groups, outputs // groups, math.prod(counts)), x.dtype)
    # One matrix product per tap, so that memory stays that of the operands however large the window is.
    for tap, (_, seen) in enumerate(taps(x, extents, strides, pads, dilations, counts, 0)):
        result += weights[..., tap] @ seen.reshape(batch, groups, inputs, math.prod(counts))
    return _with_bias(result.reshape(batch, outputs, *counts), bias, data_layout)


def _with_bias(y: np.ndarray, bias: np.ndarray | None, data_layout: str) -> np.ndarray:
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return channels_last(y, data_layout)


def _transpose_counts(
    sizes: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    output_padding: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    per_axis(extents, len(sizes), "window", 1)
    per_axis(strides, len(sizes), "strides", 1)
    per_axis(pads, len(sizes), "pads", 0)
    per_axis(output_padding, len(sizes), "output_padding", 0)
    per_axis(dilations, len(sizes), "dilations", 1)
    return tuple(
        max(0, (size - 1) * stride + dilation * (extent - 1) + 1 + extra - low - high)
        for size, extent, stride, (low, high), extra, dilation in zip(sizes, extents, strides, pads, output_padding, dilations, strict=True)
    )


def _infer_conv_transpose(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    *,
    strides: tuple[int, ...],
    pads: Pads,
    output_padding: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> TensorType:
    dtype = same_dtype(x, w, bias)
    dtype_in(dtype, FLOATS)
    _check_weights(x, w, 2, groups)
    batch, channels, sizes = _sizes(x, data_layout)
    inputs, outputs, *extents = w.shape
    if inputs != channels:
        raise Rule(f"w's first axis must be the {channels} channels of x", inputs, f"w is IOHW, x is {data_layout}")
    if inputs % groups:
        raise Rule(f"input channels must divide into {groups} groups", inputs)
    vector_of(outputs * groups, bias, "bias")
    counts = _transpose_counts(sizes, extents, strides, pads, output_padding, dilations)
    return _result(dtype, batch, outputs * groups, counts, data_layout)


@half_in_single
def _conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    *,
    strides: tuple[int, ...],
    pads: Pads,
    output_padding: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> np.ndarray:
    x = channels_first(x, data_layout)
    batch, inputs, *sizes = x.shape
    _, outputs, *extents = w.shape
    counts = _transpose_counts(sizes, extents, strides, pads, output_padding, dilations)
    lows = [low for low, _ in pads]
    # What every element of x adds to its window, before the crop; each tap of the window lands on a grid of its own.
    reach = [
        max((size - 1) * stride + dilation * (extent - 1) + 1, low + count)
        for size, extent, stride, dilation, low, count in zip(sizes, extents, strides, dilations, lows, counts, strict=True)
    ]
    weights = w.reshape(groups, inputs // groups, outputs, math.prod(extents)).swapaxes(1, 2)
    seen = x.reshape(batch, groups, inputs // groups, math.prod(sizes))
    full = np.zeros((batch, groups * outputs, *reach), x.dtype)
    for tap, position in enumerate(np.ndindex(*extents)):
        grid = tuple(
            slice(offset * dilation, offset * dilation + (size - 1) * stride + 1 if size else 0, stride)
            for offset, dilation, size, stride in zip(position, dilations, sizes, strides, strict=True)
        )
        full[:, :, *grid] += (weights[..., tap] @ seen).reshape(batch, groups * outputs, *sizes)
    y = full[:, :, *(slice(low, low + count) for low, count in zip(lows, counts, strict=True))]
    return _with_bias(y, bias, data_layout)


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    return 2 * outputs[0].size * math.prod(types[1].shape[1:])


def _transpose_flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    return 2 * types[0].size * math.prod(types[1].shape[1:])


def _attrs(
    strides: tuple[int, ...] = (1, 1),
    pads: Pads = ((0, 0), (0, 0)),
    dilations: tuple[int, ...] = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
) -> dict[str, Any]:
    return {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "data_layout": data_layout}


_SAME = ((1, 1), (1, 1))
_CONV = {
    "strides": Attr("ints"),
    "pads": Attr("pads"),
    "dilations": Attr("ints"),
    "groups": Attr("int"),
    "data_layout": Attr("str", ("NCHW", "NHWC")),
}

define(
    name="conv2d",
    inputs=("x", "w", "bias?"),
    attrs=_CONV,
    infer=partial(_infer_conv, rank=2),
    reference=_conv,
    flops=_flops,
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1, 1, 1), (1, 1, 1, 1), (1,), **_attrs()),
        case("same", (1, 3, 7, 17), (5, 3, 3, 3), (5,), **_attrs(pads=_SAME)),
        case("same-nhwc", (2, 7, 17, 3), (5, 3, 3, 3), (5,), **_attrs(pads=_SAME, data_layout="NHWC")),
        case("pointwise", (2, 17, 5, 7), (33, 17, 1, 1), None, **_attrs()),
        case("pointwise-stride", (1, 8, 7, 7), (4, 8, 1, 1), None, **_attrs(strides=(2, 2))),
        case("stem", (1, 3, 31, 31), (8, 3, 7, 7), (8,), **_attrs((2, 2), ((3, 3), (3, 3)))),
        case("asymmetric", (1, 3, 8, 9), (4, 3, 3, 2), (4,), **_attrs((2, 1), ((0, 1), (2, 0)))),
        case("asymmetric-nhwc", (1, 8, 8, 3), (4, 3, 3, 3), (4,), **_attrs((2, 2), ((0, 1), (0, 1)), data_layout="NHWC")),
        case("dilated", (1, 3, 11, 13), (4, 3, 3, 3), None, **_attrs(pads=((2, 2), (4, 4)), dilations=(2, 4))),
        case("groups", (2, 6, 5, 7), (9, 2, 3, 3), (9,), **_attrs(pads=_SAME, groups=3)),
        case("depthwise", (1, 7, 9, 9), (7, 1, 3, 3), (7,), **_attrs((2, 2), _SAME, groups=7)),
        case("depthwise-twofold-nhwc", (1, 9, 9, 5), (10, 1, 3, 3), None, **_attrs(pads=_SAME, groups=5, data_layout="NHWC")),
        case("window-too-large", (1, 2, 3, 5), (3, 2, 5, 3), (3,), **_attrs()),
        case("no-batch", (0, 3, 7, 7), (5, 3, 3, 3), (5,), **_attrs(pads=_SAME)),
        case("no-channels", (1, 0, 5, 5), (3, 0, 3, 3), (3,), **_attrs()),
        case("no-outputs", (1, 2, 5, 5), (0, 2, 3, 3), None, **_attrs()),
        case("deep", (1, 128, 5, 5), (16, 128, 3, 3), (16,), **_attrs(pads=_SAME)),
        case("f64", TensorType(DType.F64, (1, 2, 5, 5)), TensorType(DType.F64, (3, 2, 3, 3)), None, **_attrs()),
        case("f16", TensorType(DType.F16, (1, 2, 5, 5)), TensorType(DType.F16, (3, 2, 3, 3)), None, **_attrs()),
    ),
    doc="2-D cross-correlation (the kernel is not flipped): y[n, o, h, w] = sum over i, r, s of x[n, g*I+i, "
    "h*stride+r*dilation-low, ..] * w[o, i, r, s] + bias[o], g the group of o, x 0 outside. x is NCHW or NHWC, w always "
    "OIHW with I the channels of one group. Pads are (low, high) per spatial axis and may differ (SAME of tf and jax at "
    "stride 2). Size: (size + low + high - dilation*(window-1) - 1) // stride + 1, at least 0: a window larger than the "
    "padded x gives no output (jax; torch raises). A 1-D convolution is this one on x with an axis of size 1.",
)


def _cube(
    strides: tuple[int, ...] = (1, 1, 1), pads: Pads = ((0, 0),) * 3, dilations: tuple[int, ...] = (1, 1, 1), **attrs: Any
) -> dict[str, Any]:
    return _attrs(strides, pads, dilations, **attrs)


define(
    name="conv3d",
    inputs=("x", "w", "bias?"),
    attrs=_CONV,
    infer=partial(_infer_conv, rank=3),
    reference=_conv,
    flops=_flops,
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1, 1, 1, 1), (1, 1, 1, 1, 1), (1,), **_cube()),
        case("same", (1, 3, 3, 5, 7), (5, 3, 3, 3, 3), (5,), **_cube(pads=((1, 1),) * 3)),
        case(
            "stride-nhwc",
            (2, 5, 7, 5, 4),
            (6, 2, 3, 1, 2),
            None,
            **_cube((2, 1, 3), ((0, 1), (0, 0), (2, 0)), groups=2, data_layout="NHWC"),
        ),
        case("dilated", (1, 2, 5, 7, 5), (3, 2, 2, 3, 2), (3,), **_cube(dilations=(2, 3, 1))),
        case("no-batch", (0, 3, 5, 5, 5), (5, 3, 3, 3, 3), (5,), **_cube()),
        case("f64", TensorType(DType.F64, (1, 2, 3, 3, 3)), TensorType(DType.F64, (3, 2, 3, 3, 3)), None, **_cube()),
    ),
    doc="conv2d with three spatial axes: x is [N, C, D, H, W] (NCHW) or [N, D, H, W, C] (NHWC), w is [O, I, D, H, W].",
)


def _turned(output_padding: tuple[int, int] = (0, 0), **attrs: Any) -> dict[str, Any]:
    return {**_attrs(**attrs), "output_padding": output_padding}


define(
    name="conv2d_transpose",
    inputs=("x", "w", "bias?"),
    attrs={**_CONV, "output_padding": Attr("ints")},
    infer=_infer_conv_transpose,
    reference=_conv_transpose,
    flops=_transpose_flops,
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1, 1, 1), (1, 1, 1, 1), (1,), **_turned()),
        case("unet", (1, 3, 5, 7), (3, 5, 2, 2), (5,), **_turned(strides=(2, 2))),
        case("dcgan-nhwc", (2, 5, 7, 3), (3, 5, 4, 4), (5,), **_turned(strides=(2, 2), pads=_SAME, data_layout="NHWC")),
        case("output-padding", (1, 3, 5, 7), (3, 5, 3, 3), None, **_turned((1, 1), strides=(2, 2), pads=_SAME)),
        case("far-padding", (1, 2, 3, 3), (2, 3, 1, 1), (3,), **_turned((2, 0), strides=(3, 1))),
        case("asymmetric", (1, 3, 4, 5), (3, 2, 3, 2), (2,), **_turned(strides=(2, 3), pads=((0, 1), (2, 0)))),
        case("dilated", (1, 3, 5, 4), (3, 2, 3, 3), None, **_turned(strides=(1, 2), pads=((2, 1), (0, 0)), dilations=(2, 3))),
        case("groups", (2, 6, 5, 3), (6, 3, 3, 3), (9,), **_turned(strides=(2, 1), pads=_SAME, groups=3)),
        case("cropped-away", (1, 1, 1, 1), (1, 1, 1, 1), None, **_turned(pads=((1, 0), (0, 0)))),
        case("no-batch", (0, 3, 5, 5), (3, 5, 3, 3), (5,), **_turned()),
        case("no-channels", (1, 0, 3, 3), (0, 5, 3, 3), (5,), **_turned()),
        case("no-rows", (1, 2, 0, 3), (2, 3, 3, 3), (3,), **_turned()),
        case("f64", TensorType(DType.F64, (1, 2, 3, 3)), TensorType(DType.F64, (2, 3, 3, 3)), None, **_turned(strides=(2, 2))),
        case("f16", TensorType(DType.F16, (1, 2, 3, 3)), TensorType(DType.F16, (2, 3, 3, 3)), None, **_turned(strides=(2, 2))),
    ),
    doc="The transpose of conv2d: each element of x adds its value times the window w to y, at distance stride: full[n, g*O+o, h*stride+r*"
    "dilation, ..] += x[n, i, h, ..] * w[i, o, r, s], g the group of i; y is full, with output_padding zeros behind it, cropped by pads, "
    "plus bias. w is IOHW (as torch: I all input channels, O the output channels of one group), not flipped; tf's HWOI and the HWIO of "
    "jax (which does not flip by default) are transposed, and jax's flipped, by the exporter. Size: (size - 1) * stride + dilation * "
    "(window - 1) + 1 + output_padding - low - high, at least 0.",
)
