"""Element types: ``cast`` converts values, ``bitcast`` reads the same bits as another type."""

from __future__ import annotations

import numpy as np

from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, INTEGERS, NO_BF16, dtype_in
from rml_exec.types import DType, TensorType


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


def _bitcast(x: np.ndarray, *, to: str) -> np.ndarray:
    target = DType(to).numpy
    # The float64 run of the reference interpreter widens floats: the bits are those of the float that is as wide as the integer.
    if x.dtype.kind == "f" and target.kind in "iu":
        return x.astype(f"f{target.itemsize}", copy=False).view(target)
    if x.dtype.kind in "iu" and target.kind == "f":
        return x.view(f"f{x.dtype.itemsize}").astype(target, copy=False)
    return x.view(target) if x.dtype.itemsize == target.itemsize else x


def _infer_bitcast(x: TensorType, *, to: str) -> TensorType:
    target = DType(to)
    dtype_in(x.dtype, (*FLOATS, *INTEGERS))
    dtype_in(target, (*FLOATS, *INTEGERS), "to")
    if target.itemsize != x.dtype.itemsize:
        raise Rule("both types must have one width", f"{x.dtype} and {target}", "shift and cast the parts of an integer")
    return TensorType(target, x.shape)


_BITS = np.array([np.nan, np.inf, -0.0, 1.0, -1.5, 1e-45, 3.4e38], np.float32)

define(
    name="bitcast",
    inputs=("x",),
    attrs={"to": Attr("dtype")},
    infer=_infer_bitcast,
    reference=_bitcast,
    elementwise=True,
    inplace=((0, 0),),
    limits=NO_BF16,
    cases=(
        case("scalar", (), to="i32"),
        case("empty", (0, 4), to="i32"),
        case("tail", (1027,), to="u32"),
        case("special", _BITS, to="i32"),
        case("same", (17,), to="f32"),
        case("to-float", _BITS.view(np.int32), to="f32"),
        case("signed", np.array([-1, 0, 127], np.int8), to="u8"),
        case("i64", TensorType(DType.I64, (3, 5)), to="f64"),
        case("f64", TensorType(DType.F64, (3, 5)), to="u64"),
        case("u16", np.array([0x3C00, 0xFC00, 1], np.uint16), to="f16"),
    ),
    doc="y = the bits of x read as another element type of the same width. The float64 run of the reference interpreter takes the bits of "
    "the float that is as wide as the integer.",
)
