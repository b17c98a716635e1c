"""Normalisation and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rml_exec.ops.decompose import Primitives
from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, axis_in_range, dtype_in, same_dtype, vector_of
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType

NORMALISED = Tolerance(rtol=1e-5, atol_rms=2e-6)
_HALF, _DOUBLE = DType.F16, DType.F64


def _infer_batch_norm(
    x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType, *, eps: float, axis: int
) -> TensorType:
    dtype_in(same_dtype(x, scale, bias, mean, variance), FLOATS)
    axis_in_range(axis, x.rank)
    for name, vector in (("scale", scale), ("bias", bias), ("mean", mean), ("variance", variance)):
        vector_of(x.shape[axis], vector, name)
    return x


@half_in_single
def _batch_norm(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, variance: np.ndarray, *, eps: float, axis: int
) -> np.ndarray:
    along = (-1,) + (1,) * (x.ndim - axis - 1)
    factor = scale / np.sqrt(variance + x.dtype.type(eps))
    return (x - mean.reshape(along)) * factor.reshape(along) + bias.reshape(along)


def _expand_batch_norm(p: Primitives, x: str, scale: str, bias: str, mean: str, variance: str, *, eps: float, axis: int) -> str:
    along = (p.type(scale).size,) + (1,) * (p.type(x).rank - axis - 1)
    factor = p("div", scale, p("sqrt", p("add", variance, eps)), rounding="true")
    scaled = p("mul", p("sub", x, p("reshape", mean, shape=along)), p("reshape", factor, shape=along))
    return p("add", scaled, p("reshape", bias, shape=along))


_POSITIVE = np.linspace(0.25, 4.0, 5, dtype=np.float32)
define(
    name="batch_norm",
    inputs=("x", "scale", "bias", "mean", "variance"),
    attrs={"eps": Attr("float"), "axis": Attr("int")},
    infer=_infer_batch_norm,
    reference=_batch_norm,
    expand=_expand_batch_norm,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 2 * outputs[0].size,
    tolerance=NORMALISED,
    limits=NO_BF16,
    cases=(
        case("nchw", (2, 5, 7, 3), (5,), (5,), (5,), _POSITIVE, eps=1e-5, axis=1),
        case("nhwc", (2, 7, 3, 5), (5,), (5,), (5,), _POSITIVE, eps=1e-3, axis=3),
        case("matrix", (1027, 5), (5,), (5,), (5,), _POSITIVE, eps=1e-5, axis=1),
        case("vector", (5,), (5,), (5,), (5,), _POSITIVE, eps=1e-5, axis=0),
        case("zero-variance", (3, 1), (1,), (1,), (1,), np.zeros(1, np.float32), eps=1e-3, axis=1),
        case("no-batch", (0, 5, 2), (5,), (5,), (5,), _POSITIVE, eps=1e-5, axis=1),
        case("f64", TensorType(_DOUBLE, (3, 5)), *[TensorType(_DOUBLE, (5,))] * 3, _POSITIVE.astype(np.float64), eps=1e-5, axis=1),
        case("f16", TensorType(_HALF, (3, 5)), *[TensorType(_HALF, (5,))] * 3, _POSITIVE.astype(np.float16), eps=1e-5, axis=1),
    ),
    doc="y = (x - mean) * scale / sqrt(variance + eps) + bias with one value per index of axis: inference only, the statistics "
    "are operands. eps is 1e-5 in torch, 1e-3 in Keras.",
)


def _infer_layer_norm(
    x: TensorType, scale: TensorType | None, bias: TensorType | None, *, axes: tuple[int, ...], eps: float, variance: str
) -> TensorType:
    dtype_in(same_dtype(x, scale, bias), FLOATS)
    if not axes or list(axes) != list(range(x.rank - len(axes), x.rank)):
        raise Rule(f"axes must be the last axes of x, at least one of {x.rank}", list(axes))
    for name, operand in (("scale", scale), ("bias", bias)):
        if operand is not None and operand.shape != x.shape[axes[0] :]:
            raise Rule(f"{name} must have the shape {list(x.shape[axes[0] :])} of the normalised axes", list(operand.shape))
    return x


@half_in_single
def _layer_norm(
    x: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None, *, axes: tuple[int, ...], eps: float, variance: str
) -> np.ndarray:
    count = x.dtype.type(math.prod(x.shape[axis] for axis in axes))
    mean = np.sum(x, axes, keepdims=True) / count
    if variance == "fast":
        spread = np.maximum(np.sum(x * x, axes, keepdims=True) / count - mean * mean, x.dtype.type(0))
    else:
        spread = np.sum(np.square(x - mean), axes, keepdims=True) / count
    y = (x - mean) / np.sqrt(spread + x.dtype.type(eps))
    if scale is not None:
        y = y * scale
    return y if bias is None else y + bias


def _expand_layer_norm(
    p: Primitives, x: str, scale: str | None, bias: str | None, *, axes: tuple[int, ...], eps: float, variance: str
) -> str:
    mean = p.reduce("mean", x, axes)
    centred = p("sub", x, mean)
    if variance == "fast":
        spread = p("max", p("sub", p.reduce("mean", p("mul", x, x), axes), p("mul", mean, mean)), 0.0)
    else:
        spread = p.reduce("mean", p("mul", centred, centred), axes)
    return _scaled(p, p("div", centred, p("sqrt", p("add", spread, eps)), rounding="true"), scale, bias)


def _scaled(p: Primitives, y: str, scale: str | None, bias: str | None) -> str:
    if scale is not None:
        y = p("mul", y, scale)
    return y if bias is None else p("add", y, bias)


def _last(*axes: int, eps: float = 1e-5, variance: str = "two_pass") -> dict[str, Any]:
    return {"axes": axes, "eps": eps, "variance": variance}


define(
    name="layer_norm",
    inputs=("x", "scale?", "bias?"),
    attrs={"axes": Attr("ints"), "eps": Attr("float"), "variance": Attr("str", ("two_pass", "fast"))},
    infer=_infer_layer_norm,
    reference=_layer_norm,
    expand=_expand_layer_norm,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 8 * outputs[0].size,
    tolerance=NORMALISED,
    limits=NO_BF16,
    cases=(
        case("rows", (7, 17), (17,), (17,), **_last(1)),
        case("tokens", (2, 5, 256), (256,), (256,), **_last(2)),
        case("fast", (2, 5, 65), (65,), (65,), **_last(2, eps=1e-6, variance="fast")),
        case("two-axes", (2, 3, 5, 7), (5, 7), (5, 7), **_last(2, 3)),
        case("no-bias", (7, 17), (17,), None, **_last(1)),
        case("plain", (7, 17), None, None, **_last(1, eps=1e-3)),
        case("only-bias", (7, 17), None, (17,), **_last(1)),
        case("vector", (1027,), (1027,), (1027,), **_last(0)),
        case("one", (3, 1), (1,), (1,), **_last(1)),
        case("no-rows", (0, 17), (17,), (17,), **_last(1)),
        case("no-columns", (3, 0), (0,), (0,), **_last(1)),
        case("f64", TensorType(_DOUBLE, (3, 5)), None, None, **_last(1)),
        case("f16", TensorType(_HALF, (3, 65)), None, None, **_last(1)),
    ),
    doc="y = (x - mean) / sqrt(variance + eps) * scale + bias over the last axes; scale and bias have their shape. variance "
    "two_pass: mean of (x - mean)^2 (torch); fast: mean of x^2 - mean^2, at least 0 (flax), which loses digits where the "
    "mean is large. eps is 1e-5 in torch, 1e-6 in flax, 1e-3 in Keras.",
)


def _infer_rms_norm(x: TensorType, scale: TensorType | None, *, axes: tuple[int, ...], eps: float) -> TensorType:
    return _infer_layer_norm(x, scale, None, axes=axes, eps=eps, variance="two_pass")


@half_in_single
def _rms_norm(x: np.ndarray, scale: np.ndarray | None, *, axes: tuple[int, ...], eps: float) -> np.ndarray:
    count = x.dtype.type(math.prod(x.shape[axis] for axis in axes))
    y = x / np.sqrt(np.sum(x * x, axes, keepdims=True) / count + x.dtype.type(eps))
    return y if scale is None else y * scale


def _expand_rms_norm(p: Primitives, x: str, scale: str | None, *, axes: tuple[int, ...], eps: float) -> str:
    square = p.reduce("mean", p("mul", x, x), axes)
    return _scaled(p, p("div", x, p("sqrt", p("add", square, eps)), rounding="true"), scale, None)


define(
    name="rms_norm",
    inputs=("x", "scale?"),
    attrs={"axes": Attr("ints"), "eps": Attr("float")},
    infer=_infer_rms_norm,
    reference=_rms_norm,
    expand=_expand_rms_norm,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 5 * outputs[0].size,
    tolerance=NORMALISED,
    limits=NO_BF16,
    cases=(
        case("rows", (7, 17), (17,), axes=(1,), eps=1e-6),
        case("tokens", (2, 5, 256), (256,), axes=(2,), eps=1e-5),
        case("two-axes", (2, 3, 5, 7), (5, 7), axes=(2, 3), eps=1e-6),
        case("plain", (7, 17), None, axes=(1,), eps=1e-6),
        case("zeros", np.zeros((1, 5), np.float32), (5,), axes=(1,), eps=1e-6),
        case("vector", (1027,), (1027,), axes=(0,), eps=1e-6),
        case("one", (3, 1), (1,), axes=(1,), eps=1e-6),
        case("no-rows", (0, 17), (17,), axes=(1,), eps=1e-6),
        case("no-columns", (3, 0), (0,), axes=(1,), eps=1e-6),
        case("f64", TensorType(_DOUBLE, (3, 5)), None, axes=(1,), eps=1e-6),
        case("f16", TensorType(_HALF, (3, 65)), None, axes=(1,), eps=1e-6),
    ),
    doc="y = x / sqrt(mean of x^2 + eps) * scale over the last axes; scale has their shape. eps is under the root, as in torch, flax and "
    "the Llama family; torch's default of eps null is the smallest step of the element type at 1. A model that scales by 1 + w adds the 1.",
)


def _infer_group_norm(
    x: TensorType, scale: TensorType | None, bias: TensorType | None, *, groups: int, axis: int, eps: float
) -> TensorType:
    dtype_in(same_dtype(x, scale, bias), FLOATS)
    axis_in_range(axis, x.rank)
    if axis == 0:
        raise Rule("axis must not be 0, which is the batch axis", axis)
    if groups < 1 or x.shape[axis] % groups:
        raise Rule(f"groups must be at least 1 and divide the {x.shape[axis]} channels", groups)
    vector_of(x.shape[axis], scale, "scale")
    vector_of(x.shape[axis], bias, "bias")
    return x


def _grouped(shape: tuple[int, ...], groups: int, axis: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the shape with channels cut into groups, its axes that a group's statistics cover, and the shape of one value per channel."""
    cut = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    along = (-1,) + (1,) * (len(shape) - axis - 1)
    return cut, tuple(i for i in range(1, len(cut)) if i != axis), along


@half_in_single
def _group_norm(x: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None, *, groups: int, axis: int, eps: float) -> np.ndarray:
    cut, axes, along = _grouped(x.shape, groups, axis)
    y = _layer_norm(x.reshape(cut), None, None, axes=axes, eps=eps, variance="two_pass").reshape(x.shape)
    if scale is not None:
        y = y * scale.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def _expand_group_norm(p: Primitives, x: str, scale: str | None, bias: str | None, *, groups: int, axis: int, eps: float) -> str:
    shape = p.type(x).shape
    cut, axes, _ = _grouped(shape, groups, axis)
    normal = _expand_layer_norm(p, p("reshape", x, shape=cut), None, None, axes=axes, eps=eps, variance="two_pass")
    along = (shape[axis],) + (1,) * (len(shape) - axis - 1)
    scale, bias = (None if vector is None else p("reshape", vector, shape=along) for vector in (scale, bias))
    return _scaled(p, p("reshape", normal, shape=shape), scale, bias)


def _groups(groups: int, axis: int = 1, eps: float = 1e-5) -> dict[str, Any]:
    return {"groups": groups, "axis": axis, "eps": eps}


define(
    name="group_norm",
    inputs=("x", "scale?", "bias?"),
    attrs={"groups": Attr("int"), "axis": Attr("int"), "eps": Attr("float")},
    infer=_infer_group_norm,
    reference=_group_norm,
    expand=_expand_group_norm,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 8 * outputs[0].size,
    tolerance=NORMALISED,
    limits=NO_BF16,
    cases=(
        case("nchw", (2, 6, 5, 7), (6,), (6,), **_groups(3)),
        case("nhwc", (2, 5, 7, 6), (6,), (6,), **_groups(3, 3, 1e-3)),
        case("one-group", (2, 5, 3), (5,), None, **_groups(1)),
        case("instance", (2, 5, 17), None, (5,), **_groups(5)),
        case("matrix", (7, 33), (33,), (33,), **_groups(11)),
        case("plain", (3, 4, 5), None, None, **_groups(2)),
        case("single", (3, 1), (1,), (1,), **_groups(1)),
        case("no-batch", (0, 6, 5), (6,), (6,), **_groups(2)),
        case("no-pixels", (2, 6, 0), (6,), (6,), **_groups(2)),
        case("f64", TensorType(_DOUBLE, (3, 4, 5)), None, None, **_groups(2)),
        case("f16", TensorType(_HALF, (3, 4, 65)), None, None, **_groups(2)),
    ),
    doc="Channels, the axis named by axis, are cut into groups of neighbours; y = (x - mean) / sqrt(variance + eps) * scale + bias with "
    "the statistics of one batch index (axis 0) and one group over all other axes, and one scale and bias per channel. groups = channels "
    "is instance norm, groups = 1 layer norm over everything. eps is 1e-5 in torch, 1e-6 in flax, 1e-3 in Keras.",
)


def _infer_softmax(x: TensorType, *, axis: int, **_: Any) -> TensorType:
    dtype_in(x.dtype, FLOATS)
    axis_in_range(axis, x.rank)
    return x


def _shifted(x: np.ndarray, axis: int) -> np.ndarray:
    return x - np.max(x, axis, keepdims=True, initial=-np.inf)


@half_in_single
def _softmax(x: np.ndarray, *, axis: int, fully_masked: str) -> np.ndarray:
    powers = np.exp(_shifted(x, axis))
    y = powers / np.sum(powers, axis, keepdims=True)
    if fully_masked == "zero":
        y = np.where(np.all(np.isneginf(x), axis, keepdims=True), x.dtype.type(0), y)
    return y


@half_in_single
def _log_softmax(x: np.ndarray, *, axis: int) -> np.ndarray:
    shifted = _shifted(x, axis)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def _expand_softmax(p: Primitives, x: str, *, axis: int, fully_masked: str) -> str:
    largest = p.reduce("max", x, [axis])
    powers = p("exp", p("sub", x, largest))
    y = p("div", powers, p.reduce("sum", powers, [axis]), rounding="true")
    if fully_masked == "zero":
        y = p("select", p("compare", largest, -math.inf, dir="eq"), 0.0, y)
    return y


def _expand_log_softmax(p: Primitives, x: str, *, axis: int) -> str:
    shifted = p("sub", x, p.reduce("max", x, [axis]))
    return p("sub", shifted, p("log", p.reduce("sum", p("exp", shifted), [axis])))


_MASKED = np.array([[0, -np.inf, 1], [-np.inf, -np.inf, -np.inf], [np.nan, 0, 1], [np.inf, 0, 1]], np.float32)
_SOFTMAX = Tolerance(rtol=4e-6, atol_rms=1e-6)
define(
    name="softmax",
    inputs=("x",),
    attrs={"axis": Attr("int"), "fully_masked": Attr("str", ("nan", "zero"))},
    infer=_infer_softmax,
    reference=_softmax,
    expand=_expand_softmax,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 14 * outputs[0].size,
    tolerance=_SOFTMAX,
    domain=(-20.0, 20.0),
    limits=NO_BF16,
    cases=(
        case("rows", (7, 17), axis=1, fully_masked="nan"),
        case("columns", (7, 17), axis=0, fully_masked="nan"),
        case("middle", (2, 5, 3), axis=1, fully_masked="zero"),
        case("tail", (3, 1027), axis=1, fully_masked="nan"),
        case("one", (3, 1), axis=1, fully_masked="nan"),
        case("no-rows", (0, 5), axis=1, fully_masked="nan"),
        case("no-columns", (3, 0), axis=1, fully_masked="nan"),
        case("masked-nan", _MASKED, axis=1, fully_masked="nan"),
        case("masked-zero", _MASKED, axis=1, fully_masked="zero"),
        case("f64", TensorType(_DOUBLE, (3, 5)), axis=1, fully_masked="nan"),
        case("f16", TensorType(_HALF, (3, 65)), axis=1, fully_masked="nan"),
    ),
    doc="y = e^(x - max) / sum of e^(x - max) along axis. A row of -inf alone gives NaN (every framework) or zeros (what "
    "attention code often wants); NaN or +inf in a row makes NaN of it.",
)
define(
    name="log_softmax",
    inputs=("x",),
    attrs={"axis": Attr("int")},
    infer=_infer_softmax,
    reference=_log_softmax,
    expand=_expand_log_softmax,
    inplace=((0, 0),),
    flops=lambda types, outputs, attrs: 14 * outputs[0].size,
    tolerance=_SOFTMAX,
    domain=(-20.0, 20.0),
    limits=NO_BF16,
    cases=(
        case("rows", (7, 17), axis=1),
        case("columns", (7, 17), axis=0),
        case("tail", (3, 1027), axis=1),
        case("one", (3, 1), axis=1),
        case("no-rows", (0, 5), axis=1),
        case("no-columns", (3, 0), axis=1),
        case("masked", _MASKED, axis=1),
        case("f64", TensorType(_DOUBLE, (3, 5)), axis=0),
    ),
    doc="y = x - max - ln(sum of e^(x - max)) along axis: the logarithm of softmax without its underflow. -inf stays -inf; a "
    "row of -inf alone gives NaN.",
)
