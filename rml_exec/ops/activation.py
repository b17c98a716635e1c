"""Elementwise composites: the activation functions of neural networks, each with its decomposition."""

from __future__ import annotations

import math

import numpy as np

from rml_exec.ops.decompose import Primitives
from rml_exec.ops.registry import Attr, Tolerance, case
from rml_exec.ops.rules import NUMBERS
from rml_exec.ops.special import erfc, half_in_single
from rml_exec.ops.unary import CLOSE, STEEP, sigmoid, unary
from rml_exec.types import DType, TensorType

_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, 30.0, -30.0, 100.0, -100.0, 1e-4], np.float32)


@half_in_single
def _gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return x * (1 + np.tanh(x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x))) / 2
    return x * erfc(np.asarray(x * x.dtype.type(-np.sqrt(0.5)))) / 2


def _expand_gelu(p: Primitives, x: str, *, approximate: str) -> str:
    half = p("mul", x, 0.5)
    if approximate == "none":
        return p("mul", half, p("erfc", p("mul", x, -math.sqrt(0.5))))
    cubic = p("mul", p("mul", p("mul", x, x), x), 0.044715)
    return p("mul", half, p("add", p("tanh", p("mul", p("add", x, cubic), math.sqrt(2 / math.pi))), 1.0))


@half_in_single
def _leaky_relu(x: np.ndarray, *, alpha: float) -> np.ndarray:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def _expand_leaky_relu(p: Primitives, x: str, *, alpha: float) -> str:
    return p("select", p("compare", x, 0.0, dir="lt"), p("mul", x, alpha), x)


@half_in_single
def _elu(x: np.ndarray, *, alpha: float, scale: float, input_scale: float) -> np.ndarray:
    number = x.dtype.type
    return np.where(x > 0, x * number(scale), np.expm1(np.minimum(x, number(0)) * number(input_scale)) * number(alpha * scale))


def _expand_elu(p: Primitives, x: str, *, alpha: float, scale: float, input_scale: float) -> str:
    low = p("mul", p("expm1", p("mul", p("min", x, 0.0), input_scale)), alpha * scale)
    return p("select", p("compare", x, 0.0, dir="gt"), p("mul", x, scale), low)


@half_in_single
def _softplus(x: np.ndarray, *, beta: float, threshold: float | None) -> np.ndarray:
    scaled = x * x.dtype.type(beta)
    y = (np.maximum(scaled, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(scaled)))) / x.dtype.type(beta)
    return y if threshold is None else np.where(scaled > x.dtype.type(threshold), x, y)


def _expand_softplus(p: Primitives, x: str, *, beta: float, threshold: float | None) -> str:
    scaled = p("mul", x, beta)
    tail = p("log1p", p("exp", p("neg", p("abs", scaled))))
    y = p("div", p("add", p("max", scaled, 0.0), tail), beta, rounding="true")
    return y if threshold is None else p("select", p("compare", scaled, threshold, dir="gt"), x, y)


@half_in_single
def _hard_sigmoid(x: np.ndarray, *, alpha: float, beta: float) -> np.ndarray:
    number = x.dtype.type
    return np.minimum(np.maximum(x * number(alpha) + number(beta), number(0)), number(1))


def _expand_hard_sigmoid(p: Primitives, x: str, *, alpha: float, beta: float) -> str:
    return p("clamp", p("add", p("mul", x, alpha), beta), lo=0.0, hi=1.0)


@half_in_single
def _hard_swish(x: np.ndarray) -> np.ndarray:
    number = x.dtype.type
    return x * np.minimum(np.maximum(x + number(3), number(0)), number(6)) / number(6)


def _expand_hard_swish(p: Primitives, x: str) -> str:
    return p("div", p("mul", x, p("clamp", p("add", x, 3.0), lo=0.0, hi=6.0)), 6.0, rounding="true")


unary(
    "relu",
    lambda x: np.maximum(x, x.dtype.type(0)),
    "y = max(x, 0). NaN stays NaN; the sign of a zero result is not specified.",
    dtypes=NUMBERS,
    expand=lambda p, x: p("max", x, 0),
)
unary(
    "leaky_relu",
    _leaky_relu,
    "y = x where x >= 0, alpha * x below. Frameworks differ in the default of alpha (0.01 torch, jax, ONNX; 0.2 tf.nn), so "
    "it is always given.",
    attrs={"alpha": Attr("float")},
    example={"alpha": 0.01},
    cases=(case("steep", (17,), alpha=1.5), case("negative", (17,), alpha=-0.5)),
    flops=2,
    tolerance=Tolerance(rtol=2e-7),
    expand=_expand_leaky_relu,
)
unary(
    "elu",
    _elu,
    "y = scale * x where x > 0, scale * alpha * (e^(input_scale * x) - 1) elsewhere. selu is alpha 1.6732632, scale 1.050701; celu "
    "is input_scale 1/alpha.",
    attrs={"alpha": Attr("float"), "scale": Attr("float"), "input_scale": Attr("float")},
    example={"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
    cases=(
        case("selu", (17,), alpha=1.6732632423543772, scale=1.0507009873554805, input_scale=1.0),
        case("celu", (17,), alpha=0.5, scale=1.0, input_scale=2.0),
        case("special", _SPECIAL, alpha=1.5, scale=1.0, input_scale=1.0),
    ),
    flops=14,
    tolerance=CLOSE,
    expand=_expand_elu,
)
unary(
    "silu",
    half_in_single(lambda x: x * sigmoid(x)),
    "y = x * sigmoid(x). NaN at -inf, as in the frameworks.",
    flops=13,
    tolerance=CLOSE,
    domain=(-20.0, 20.0),
    expand=lambda p, x: p("mul", x, p("sigmoid", x)),
)
unary(
    "gelu",
    _gelu,
    "approximate=none: y = x * erfc(-x / sqrt 2) / 2, the exact form (default of torch and Keras); tanh: y = x * (1 + tanh(sqrt(2/pi) * "
    "(x + 0.044715 x^3))) / 2 (default of jax.nn.gelu). The two differ by up to 4.7e-4. NaN at -inf, as in the frameworks.",
    attrs={"approximate": Attr("str", ("none", "tanh"))},
    example={"approximate": "none"},
    cases=(case("tanh", (7, 17), approximate="tanh"), case("tanh-f64", TensorType(DType.F64, (5,)), approximate="tanh")),
    flops=25,
    tolerance=STEEP,
    expand=_expand_gelu,
)
unary(
    "softplus",
    _softplus,
    "y = ln(1 + e^(beta * x)) / beta without overflow; x itself where beta * x > threshold. torch: beta 1, threshold 20; jax and tf: "
    "beta 1, threshold null (none). beta is not 0.",
    attrs={"beta": Attr("float"), "threshold": Attr("float", optional=True)},
    example={"beta": 1.0, "threshold": None},
    cases=(
        case("torch", (7, 17), beta=1.0, threshold=20.0),
        case("low-threshold", (7, 17), beta=2.0, threshold=1.0),
        case("special", _SPECIAL, beta=1.0, threshold=20.0),
        case("special-jax", _SPECIAL, beta=0.5, threshold=None),
    ),
    flops=30,
    tolerance=STEEP,
    expand=_expand_softplus,
)
unary(
    "hard_sigmoid",
    _hard_sigmoid,
    "y = min(max(alpha * x + beta, 0), 1). alpha is 1/6 in torch, jax and Keras 3, 0.2 in ONNX and older Keras; beta is 0.5 in all.",
    attrs={"alpha": Attr("float"), "beta": Attr("float")},
    example={"alpha": 1 / 6, "beta": 0.5},
    cases=(case("onnx", (17,), alpha=0.2, beta=0.5), case("special", _SPECIAL, alpha=0.2, beta=0.5)),
    flops=4,
    tolerance=CLOSE,
    expand=_expand_hard_sigmoid,
)
unary(
    "hard_swish",
    _hard_swish,
    "y = x * min(max(x + 3, 0), 6) / 6. NaN at -inf, as in the frameworks.",
    cases=(case("special", _SPECIAL),),
    flops=5,
    tolerance=CLOSE,
    expand=_expand_hard_swish,
)
