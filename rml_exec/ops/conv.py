"""Convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ops.linear import PRODUCT
from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, dtype_in, same_dtype, vector_of, window_counts
from rml_exec.ops.special import half_in_single
from rml_exec.ops.windows import channels_first, channels_last, taps
from rml_exec.types import DType, TensorType

Pads = tuple[tuple[int, int], ...]


def _infer_conv2d(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    *,
    strides: tuple[int, ...],
    pads: Pads,
    dilations: tuple[int, ...],
    groups: int,
    data_layout: str,
) -> TensorType:
    dtype = same_dtype(x, w, bias)
    dtype_in(dtype, FLOATS)
    if x.rank != 4 or w.rank != 4:
        raise Rule("x and w must have 4 axes", f"ranks {x.rank} and {w.rank}")
    batch, channels, *sizes = x.shape if data_layout == "NCHW" else (x.shape[0], x.shape[3], *x.shape[1:3])
    outputs, inputs, *window = w.shape
    if groups < 1:
        raise Rule("groups must be at least 1", groups)
    if inputs * groups != channels:
        raise Rule(f"w's second axis must be the channels of x over groups ({channels}/{groups})", inputs, f"w is OIHW, x is {data_layout}")
    if outputs % groups:
        raise Rule(f"output channels must divide into {groups} groups", outputs)
    vector_of(outputs, bias, "bias")
    counts = window_counts(sizes, window, strides, pads, dilations)
    return TensorType(dtype, (batch, outputs, *counts) if data_layout == "NCHW" else (batch, *counts, outputs))


@half_in_single
def _conv2d(
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
    outputs, inputs, *window = w.shape
    counts = window_counts(sizes, window, strides, pads, dilations)
    weights = w.reshape(groups, outputs // groups, inputs, *window)
    result = np.zeros((batch, groups, outputs // groups, counts[0] * counts[1]), x.dtype)
    # One matrix product per tap, so that memory stays that of the operands however large the window is.
    for (row, column), seen in taps(x, window, strides, pads, dilations, counts, 0):
        result += weights[:, :, :, row, column] @ seen.reshape(batch, groups, inputs, counts[0] * counts[1])
    y = result.reshape(batch, outputs, *counts)
    if bias is not None:
        y += bias[:, None, None]
    return channels_last(y, data_layout)


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    _, inputs, height, width = types[1].shape
    return 2 * outputs[0].size * inputs * height * width


def _attrs(
    strides: tuple[int, int] = (1, 1),
    pads: Pads = ((0, 0), (0, 0)),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
) -> dict[str, Any]:
    return {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "data_layout": data_layout}


_SAME = ((1, 1), (1, 1))

define(
    name="conv2d",
    inputs=("x", "w", "bias?"),
    attrs={
        "strides": Attr("ints"),
        "pads": Attr("pads"),
        "dilations": Attr("ints"),
        "groups": Attr("int"),
        "data_layout": Attr("str", ("NCHW", "NHWC")),
    },
    infer=_infer_conv2d,
    reference=_conv2d,
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
    "padded x gives no output (jax; torch raises).",
)
