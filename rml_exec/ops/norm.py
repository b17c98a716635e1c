"""Normalisation and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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


_POSITIVE = np.linspace(0.25, 4.0, 5, dtype=np.float32)
define(
    name="batch_norm",
    inputs=("x", "scale", "bias", "mean", "variance"),
    attrs={"eps": Attr("float"), "axis": Attr("int")},
    infer=_infer_batch_norm,
    reference=_batch_norm,
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


def _last(*axes: int, eps: float = 1e-5, variance: str = "two_pass") -> dict[str, Any]:
    return {"axes": axes, "eps": eps, "variance": variance}


define(
    name="layer_norm",
    inputs=("x", "scale?", "bias?"),
    attrs={"axes": Attr("ints"), "eps": Attr("float"), "variance": Attr("str", ("two_pass", "fast"))},
    infer=_infer_layer_norm,
    reference=_layer_norm,
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


_MASKED = np.array([[0, -np.inf, 1], [-np.inf, -np.inf, -np.inf], [np.nan, 0, 1], [np.inf, 0, 1]], np.float32)
_SOFTMAX = Tolerance(rtol=4e-6, atol_rms=1e-6)
define(
    name="softmax",
    inputs=("x",),
    attrs={"axis": Attr("int"), "fully_masked": Attr("str", ("nan", "zero"))},
    infer=_infer_softmax,
    reference=_softmax,
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
