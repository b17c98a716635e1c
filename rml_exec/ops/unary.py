"""Elementwise ops of one operand, and ``cast``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, OpDef, Rule, Tolerance, case, count, define
from rml_exec.ops.rules import BITS, FLOATS, NO_BF16, NUMBERS, dtype_in, representable
from rml_exec.ops.special import erf, erfc, half_in_single
from rml_exec.types import DType, TensorType

CLOSE = Tolerance(rtol=1e-6, atol_rms=1e-6)
_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("scalar", ()),
    ("one", (1,)),
    ("empty", (0, 4)),
    ("matrix", (7, 17)),
    ("tail", (1027,)),
)


def _same(allowed: Sequence[DType]) -> Callable[..., TensorType]:
    def infer(x: TensorType, **_: Any) -> TensorType:
        dtype_in(x.dtype, allowed)
        return x

    return infer


def _unary(
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
def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows, and keeps the denormal tail
    return np.where(x >= 0, 1, small) / (1 + small)


@half_in_single
def _gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return x * (1 + np.tanh(x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x))) / 2
    return x * erfc(np.asarray(x * x.dtype.type(-np.sqrt(0.5)))) / 2


def _clamp(x: np.ndarray, *, lo: float | None, hi: float | None) -> np.ndarray:
    above = x if lo is None else np.maximum(x, x.dtype.type(lo))
    return above if hi is None else np.minimum(above, x.dtype.type(hi))


def _infer_clamp(x: TensorType, *, lo: float | None, hi: float | None) -> TensorType:
    dtype_in(x.dtype, NUMBERS)
    for name, bound in (("lo", lo), ("hi", hi)):
        if bound is not None:
            representable(bound, x.dtype, name)
    return x


def _leaky_relu(x: np.ndarray, *, alpha: float) -> np.ndarray:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def _infer_test(x: TensorType) -> TensorType:
    dtype_in(x.dtype, FLOATS)
    return TensorType(DType.BOOL, x.shape)


_unary("neg", np.negative, "y = -x. Integers wrap, so the lowest one stays itself.", dtypes=NUMBERS)
_unary("abs", np.abs, "y = |x|. Integers wrap, so the lowest one stays itself.", dtypes=NUMBERS)
_unary("floor", np.floor, "y = the largest whole number not above x.")
_unary("ceil", np.ceil, "y = the smallest whole number not below x.")
_unary("exp", np.exp, "y = e^x.", flops=10, tolerance=CLOSE)
_unary("expm1", np.expm1, "y = e^x - 1 without cancellation near 0.", flops=12, tolerance=CLOSE)
_unary("log", np.log, "y = ln x; -inf at 0, NaN below.", flops=10, tolerance=CLOSE, domain=(1e-3, 8.0))
_unary(
    "log1p", np.log1p, "y = ln(1 + x) without cancellation near 0; -inf at -1, NaN below.", flops=12, tolerance=CLOSE, domain=(-0.9, 8.0)
)
_unary("sqrt", np.sqrt, "y = the square root of x, correctly rounded; -0.0 at -0.0, NaN below 0.", domain=(0.0, 8.0))
_unary(
    "rsqrt",
    half_in_single(lambda x: 1 / np.sqrt(x)),
    "y = 1 / sqrt(x); inf at 0.0, -inf at -0.0, NaN below 0.",
    flops=2,
    tolerance=CLOSE,
    domain=(1e-3, 8.0),
)
_unary("sin", np.sin, "y = sin x, x in radians; NaN at an infinity.", flops=12, tolerance=CLOSE)
_unary("cos", np.cos, "y = cos x, x in radians; NaN at an infinity.", flops=12, tolerance=CLOSE)
_unary("tanh", np.tanh, "y = tanh x.", flops=12, tolerance=CLOSE)
_unary(
    "sigmoid",
    _sigmoid,
    "y = 1 / (1 + e^-x), without overflow and with the denormal tail kept.",
    flops=12,
    tolerance=CLOSE,
    domain=(-20.0, 20.0),
)
_unary("erf", erf, "y = the error function of x.", flops=20, tolerance=CLOSE)
_unary(
    "erfc",
    erfc,
    "y = 1 - erf(x), accurate relative to itself in the tail, where 1 - erf(x) has lost every digit. What jax.nn.gelu and tf.nn.gelu emit.",
    flops=20,
    tolerance=Tolerance(rtol=4e-6, atol_rms=1e-6),
)
_unary(
    "relu",
    lambda x: np.maximum(x, x.dtype.type(0)),
    "y = max(x, 0). NaN stays NaN; the sign of a zero result is not specified.",
    dtypes=NUMBERS,
)
_unary(
    "silu",
    half_in_single(lambda x: x * _sigmoid(x)),
    "y = x * sigmoid(x). NaN at -inf, as in the frameworks.",
    flops=13,
    tolerance=CLOSE,
    domain=(-20.0, 20.0),
)
_unary("is_nan", np.isnan, "y = whether x is NaN.", infer=_infer_test)
_unary("is_inf", np.isinf, "y = whether x is an infinity of either sign.", infer=_infer_test)
_unary(
    "not",
    np.invert,
    "y = not x on bool; every bit flipped on integers. A framework's logical_not of a number is ``compare`` eq 0.",
    dtypes=BITS,
)
_unary(
    "sign",
    _sign,
    "y = -1, 0 or 1, the sign of x. NaN gives NaN (nan=propagate: jax, tf, ONNX Runtime) or 0 (nan=zero: torch).",
    dtypes=NUMBERS,
    attrs={"nan": Attr("str", ("propagate", "zero"))},
    example={"nan": "propagate"},
    cases=(case("nan-zero", np.array([np.nan, -2, 0, np.inf], np.float32), nan="zero"),),
)
_unary(
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
_unary(
    "gelu",
    _gelu,
    "approximate=none: y = x * erfc(-x / sqrt 2) / 2, the exact form (default of torch and Keras); tanh: y = x * (1 + tanh(sqrt(2/pi) * "
    "(x + 0.044715 x^3))) / 2 (default of jax.nn.gelu). The two differ by up to 4.7e-4. NaN at -inf, as in the frameworks.",
    attrs={"approximate": Attr("str", ("none", "tanh"))},
    example={"approximate": "none"},
    cases=(case("tanh", (7, 17), approximate="tanh"), case("tanh-f64", TensorType(DType.F64, (5,)), approximate="tanh")),
    flops=25,
    tolerance=Tolerance(rtol=4e-6, atol_rms=1e-6),
)
_unary(
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
_unary(
    "leaky_relu",
    half_in_single(_leaky_relu),
    "y = x where x >= 0, alpha * x below. Frameworks differ in the default of alpha (0.01 torch, jax, ONNX; 0.2 tf.nn), so "
    "it is always given.",
    attrs={"alpha": Attr("float")},
    example={"alpha": 0.01},
    cases=(case("steep", (17,), alpha=1.5), case("negative", (17,), alpha=-0.5)),
    flops=2,
    tolerance=Tolerance(rtol=2e-7),
)


def _to_integer(x: np.ndarray, target: np.dtype, f2i: str) -> np.ndarray:
    """Float to integer, toward zero; ``f2i`` says what becomes of NaN and of values out of range."""
    info = np.iinfo(target)
    whole = np.trunc(x.astype(np.float64) if x.dtype == np.float16 else x)
    above = float(info.max) + 1.0  # a power of two, exact in every float type; the maximum itself may not be
    fits = (whole >= float(info.min)) & (whole < above)
    if f2i == "error" and not np.all(fits):
        raise Rule(f"value has no {DType.of(target)} (f2i=error)", x[~fits].flat[0])
    if f2i == "wrap_x86":
        return _wrap_like_x86(whole, target)
    result = np.where(fits, whole, 0).astype(target)
    result = np.where(whole < float(info.min), target.type(info.min), result)
    return np.where(whole >= above, target.type(info.max), result)


def _wrap_like_x86(whole: np.ndarray, target: np.dtype) -> np.ndarray:
    """What the SSE conversions and then the low bits give: a value out of range of the register becomes its lowest integer."""
    if target == np.uint64:
        half = 2.0**63
        high = whole >= half
        signed = _wrap_like_x86(np.where(high, whole - half, whole), np.dtype(np.int64)).view(np.uint64)
        return np.where(high, signed ^ np.uint64(1 << 63), signed)
    register = np.int32 if target.itemsize < 4 or target == np.int32 else np.int64
    lowest = np.iinfo(register).min
    fits = (whole >= float(lowest)) & (whole < -float(lowest))
    return np.where(fits, np.where(fits, whole, 0).astype(register), register(lowest)).astype(target)


def _cast(x: np.ndarray, *, to: str, f2i: str) -> np.ndarray:
    target = DType(to).numpy
    if x.dtype.kind == "f" and target.kind in "iu":
        return _to_integer(x, target, f2i)
    return np.not_equal(x, 0) if target.kind == "b" else x.astype(target, copy=False)


def _infer_cast(x: TensorType, *, to: str, f2i: str) -> TensorType:
    if DType(to) is DType.BF16:
        raise Rule("cannot cast to bf16: NumPy has no bfloat16, so the op has no reference")
    return TensorType(DType(to), x.shape)


_AWKWARD = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 300.0, -1.0, -1.9, 0.5, 2.0**63, 2.0**64, -(2.0**63)], np.float32)

define(
    name="cast",
    inputs=("x",),
    attrs={"to": Attr("dtype"), "f2i": Attr("str", ("saturate", "wrap_x86", "error"))},
    infer=_infer_cast,
    reference=_cast,
    elementwise=True,
    inplace=((0, 0),),
    domain=(-100.0, 100.0),
    limits=NO_BF16,
    cases=(
        case("scalar", (), to="f64", f2i="error"),
        case("empty", (0, 4), to="i32", f2i="error"),
        case("same", (17,), to="f32", f2i="error"),
        case("tail", (1027,), to="i32", f2i="saturate"),
        case("narrow", TensorType(DType.F64, (7, 17)), to="f32", f2i="error"),
        case("half", (17,), to="f16", f2i="error"),
        case("from-half", TensorType(DType.F16, (17,)), to="i64", f2i="error"),
        case("to-bool", (17,), to="bool", f2i="error"),
        case("from-bool", TensorType(DType.BOOL, (17,)), to="f32", f2i="error"),
        case("widen", TensorType(DType.I32, (17,)), to="i64", f2i="error"),
        case("integer-wrap", np.array([-1, 300, 70000], np.int32), to="u8", f2i="error"),
        case("integer-float", np.array([2**24 + 1, -5], np.int64), to="f32", f2i="error"),
        *(
            case(f"{f2i}-{to}", _AWKWARD, to=to, f2i=f2i)
            for f2i in ("saturate", "wrap_x86")
            for to in ("i8", "u8", "i32", "u32", "i64", "u64")
        ),
    ),
    doc="y = x as another element type. Float to float rounds half to even; to bool is x != 0, so NaN is true; integer to "
    "integer keeps the low bits. Float to integer rounds toward zero; f2i says what happens to NaN and values out of range:"
    " saturate (jax: NaN is 0, the rest the nearest limit), wrap_x86 (torch, tf and ONNX Runtime on x86: the conversion to "
    "a 32-bit, for u32 and 64-bit types a 64-bit register, gives its lowest integer, then the low bits are kept), error "
    "(the run fails).",
)
