"""Elementwise functions of one operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, OpDef, Tolerance, case, count, define
from rml_exec.ops.rules import BITS, FLOATS, NO_BF16, NUMBERS, dtype_in, representable
from rml_exec.ops.special import erf, erfc, half_in_single
from rml_exec.types import DType, TensorType

CLOSE = Tolerance(rtol=1e-6, atol_rms=1e-6)
STEEP = Tolerance(rtol=4e-6, atol_rms=1e-6)
_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("scalar", ()),
    ("one", (1,)),
    ("empty", (0, 4)),
    ("matrix", (7, 17)),
    ("tail", (1027,)),
)

_EDGES = (
    case(
        "edges",
        np.array(
            [np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, 1.5, -1.5, 0.5, -0.5, 0.75, 1e-30, -1e-20, 3e9, -1e10, 1e30, 88.9, -88.9, 3e38],
            np.float32,
        ),
    ),
)


def _same(allowed: Sequence[DType]) -> Callable[..., TensorType]:
    def infer(x: TensorType, **_: Any) -> TensorType:
        dtype_in(x.dtype, allowed)
        return x

    return infer


def unary(
    name: str,
    reference: Callable[..., np.ndarray],
    doc: str,
    *,
    dtypes: Sequence[DType] = FLOATS,
    attrs: Mapping[str, Attr] | None = None,
    example: Mapping[str, Any] | None = None,
    cases: tuple[Any, ...] = (),
    flops: int = 1,
    **fields: Any,
) -> OpDef:
    """Adds an elementwise op of one operand whose result has the operand's type, unless ``infer`` says otherwise.

    ``dtypes`` it accepts, ``example`` attributes of the cases made here, further ``cases``, ``flops`` per element.
    """
    base = DType.F32 if DType.F32 in dtypes else DType.BOOL
    made = [case(id, TensorType(base, shape), **(example or {})) for id, shape in _SHAPES]
    for dtype in (DType.F64, DType.F16, DType.I32, DType.U8, DType.BOOL):
        if dtype in dtypes:
            made.append(case(str(dtype), TensorType(dtype, (3, 5)), **(example or {})))
    fields.setdefault("infer", _same(dtypes))
    return define(
        name=name,
        inputs=("x",),
        attrs=attrs or {},
        reference=reference,
        elementwise=True,
        inplace=((0, 0),),
        flops=lambda types, outputs, attrs: flops * count(outputs),
        cases=(*made, *cases),
        limits=NO_BF16,
        doc=doc,
        **fields,
    )


def _round(x: np.ndarray, *, mode: str) -> np.ndarray:
    if mode == "half_even":
        return np.rint(x)
    whole = np.trunc(x)
    if mode == "toward_zero":
        return whole
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


def _sign(x: np.ndarray, *, nan: str) -> np.ndarray:
    return np.where(np.isnan(x), x.dtype.type(0), np.sign(x)) if nan == "zero" and x.dtype.kind == "f" else np.sign(x)


@half_in_single
def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows, and keeps the denormal tail
    return np.where(x >= 0, 1, small) / (1 + small)


def _clamp(x: np.ndarray, *, lo: float | None, hi: float | None) -> np.ndarray:
    above = x if lo is None else np.maximum(x, x.dtype.type(lo))
    return above if hi is None else np.minimum(above, x.dtype.type(hi))


def _infer_clamp(x: TensorType, *, lo: float | None, hi: float | None) -> TensorType:
    dtype_in(x.dtype, NUMBERS)
    for name, bound in (("lo", lo), ("hi", hi)):
        if bound is not None:
            representable(bound, x.dtype, name)
    return x


def _infer_test(x: TensorType) -> TensorType:
    dtype_in(x.dtype, FLOATS)
    return TensorType(DType.BOOL, x.shape)


unary("neg", np.negative, "y = -x. Integers wrap, so the lowest one stays itself.", dtypes=NUMBERS)
unary("abs", np.abs, "y = |x|. Integers wrap, so the lowest one stays itself.", dtypes=NUMBERS)
unary("floor", np.floor, "y = the largest whole number not above x.")
unary("ceil", np.ceil, "y = the smallest whole number not below x.")
unary("exp", np.exp, "y = e^x.", flops=10, tolerance=CLOSE)
unary("expm1", np.expm1, "y = e^x - 1 without cancellation near 0.", flops=12, tolerance=CLOSE)
unary(
    "log2", np.log2, "y = the logarithm of x to base 2; -inf at 0, NaN below.", flops=10, tolerance=CLOSE, domain=(1e-3, 8.0), cases=_EDGES
)
unary("log", np.log, "y = ln x; -inf at 0, NaN below.", flops=10, tolerance=CLOSE, domain=(1e-3, 8.0))
unary("log1p", np.log1p, "y = ln(1 + x) without cancellation near 0; -inf at -1, NaN below.", flops=12, tolerance=CLOSE, domain=(-0.9, 8.0))
unary("sqrt", np.sqrt, "y = the square root of x, correctly rounded; -0.0 at -0.0, NaN below 0.", domain=(0.0, 8.0))
unary(
    "rsqrt",
    half_in_single(lambda x: 1 / np.sqrt(x)),
    "y = 1 / sqrt(x); inf at 0.0, -inf at -0.0, NaN below 0.",
    flops=2,
    tolerance=CLOSE,
    domain=(1e-3, 8.0),
)
unary("sin", np.sin, "y = sin x, x in radians; NaN at an infinity.", flops=12, tolerance=CLOSE)
unary("cos", np.cos, "y = cos x, x in radians; NaN at an infinity.", flops=12, tolerance=CLOSE)
unary("tan", np.tan, "y = tan x, x in radians; NaN at an infinity.", flops=25, tolerance=STEEP, domain=(-1.4, 1.4))
unary(
    "asin",
    np.arcsin,
    "y = the angle from -pi/2 to pi/2 whose sine is x; NaN outside -1 to 1.",
    flops=20,
    tolerance=STEEP,
    domain=(-1.0, 1.0),
    cases=_EDGES,
)
unary(
    "acos",
    np.arccos,
    "y = the angle from 0 to pi whose cosine is x; NaN outside -1 to 1.",
    flops=20,
    tolerance=STEEP,
    domain=(-1.0, 1.0),
    cases=_EDGES,
)
unary("atan", np.arctan, "y = the angle from -pi/2 to pi/2 whose tangent is x.", flops=20, tolerance=CLOSE, cases=_EDGES)
unary("sinh", np.sinh, "y = (e^x - e^-x) / 2.", flops=20, tolerance=STEEP, cases=_EDGES)
unary("cosh", np.cosh, "y = (e^x + e^-x) / 2.", flops=20, tolerance=STEEP, cases=_EDGES)
unary("tanh", np.tanh, "y = tanh x.", flops=12, tolerance=CLOSE)
unary("asinh", np.arcsinh, "y = the number whose sinh is x, without cancellation for negative x.", flops=20, tolerance=STEEP, cases=_EDGES)
unary(
    "acosh",
    np.arccosh,
    "y = the one number from 0 on whose cosh is x; NaN below 1.",
    flops=20,
    tolerance=STEEP,
    domain=(1.0, 8.0),
    cases=_EDGES,
)
unary(
    "atanh",
    np.arctanh,
    "y = the number whose tanh is x; an infinity at -1 and 1, NaN beyond.",
    flops=20,
    tolerance=STEEP,
    domain=(-0.95, 0.95),
    cases=_EDGES,
)
unary(
    "sigmoid",
    sigmoid,
    "y = 1 / (1 + e^-x), without overflow and with the denormal tail kept.",
    flops=12,
    tolerance=CLOSE,
    domain=(-20.0, 20.0),
)
unary("erf", erf, "y = the error function of x.", flops=20, tolerance=CLOSE)
unary(
    "erfc",
    erfc,
    "y = 1 - erf(x), accurate relative to itself in the tail, where 1 - erf(x) has lost every digit. What jax.nn.gelu and tf.nn.gelu emit.",
    flops=20,
    tolerance=Tolerance(rtol=4e-6, atol_rms=1e-6),
)
unary("is_nan", np.isnan, "y = whether x is NaN.", infer=_infer_test)
unary("is_inf", np.isinf, "y = whether x is an infinity of either sign.", infer=_infer_test)
unary(
    "not",
    np.invert,
    "y = not x on bool; every bit flipped on integers. A framework's logical_not of a number is ``compare`` eq 0.",
    dtypes=BITS,
)
unary(
    "sign",
    _sign,
    "y = -1, 0 or 1, the sign of x. NaN gives NaN (nan=propagate: jax, tf, ONNX Runtime) or 0 (nan=zero: torch).",
    dtypes=NUMBERS,
    attrs={"nan": Attr("str", ("propagate", "zero"))},
    example={"nan": "propagate"},
    cases=(case("nan-zero", np.array([np.nan, -2, 0, np.inf], np.float32), nan="zero"),),
)
unary(
    "round",
    _round,
    "y = x rounded to a whole number. mode half_even: ties to the even one (torch, jnp, tf, ONNX); half_away: ties away from zero "
    "(lax.round by default); toward_zero: trunc.",
    attrs={"mode": Attr("str", ("half_even", "half_away", "toward_zero"))},
    example={"mode": "half_even"},
    cases=tuple(
        case(f"ties-{mode}", np.array([-2.5, -1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5], np.float32), mode=mode)
        for mode in ("half_even", "half_away", "toward_zero")
    ),
)
unary(
    "clamp",
    _clamp,
    "y = min(max(x, lo), hi); a null bound is absent. NaN stays NaN; lo > hi gives hi. Bounds of an integer x are whole numbers.",
    dtypes=NUMBERS,
    infer=_infer_clamp,
    attrs={"lo": Attr("float", optional=True), "hi": Attr("float", optional=True)},
    example={"lo": 0.0, "hi": 3.0},
    cases=(case("lo", (17,), lo=-0.5, hi=None), case("hi", (17,), lo=None, hi=0.1), case("crossed", (17,), lo=2.0, hi=-1.0)),
    flops=2,
)
