"""Elementwise ops. The walk hands them the tensors of their operands, in one order of axes and unstretched."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from exporters.to_onnx.context import ELEMENT_TYPES, ONNX, Context
from rml_exec.types import DType

_SAME = {
    "abs": "Abs",
    "floor": "Floor",
    "ceil": "Ceil",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    "is_nan": "IsNaN",
    "hard_swish": "HardSwish",
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "max": "Max",
    "min": "Min",
    "select": "Where",
}


def _same(operator: str) -> Callable[..., str]:
    return lambda ctx, *operands: ctx.emit(operator, *operands)


for _op, _operator in _SAME.items():
    ONNX.lowers(_op)(_same(_operator))


@ONNX.lowers("neg")
def _neg(ctx: Context, x: str) -> str:
    return ctx.emit("Sub", ctx.number(0), x) if _is_unsigned(ctx.dtype()) else ctx.emit("Neg", x)


@ONNX.lowers("relu")
def _relu(ctx: Context, x: str) -> str:
    return x if _is_unsigned(ctx.dtype()) else ctx.emit("Relu", x)


def _is_unsigned(dtype: DType) -> bool:
    return dtype.value.startswith("u")


@ONNX.lowers("log2")
def _log2(ctx: Context, x: str) -> str:
    return ctx.emit("Div", ctx.emit("Log", x), ctx.number(math.log(2)))


@ONNX.lowers("rsqrt")
def _rsqrt(ctx: Context, x: str) -> str:
    return ctx.emit("Reciprocal", ctx.emit("Sqrt", x))


@ONNX.lowers("expm1")
def _expm1(ctx: Context, x: str) -> str:
    return expm1(ctx, x)


def expm1(ctx: Context, x: str) -> str:
    """Emits e^x - 1 = tanh(x / 2) * (e^x + 1), which does not cancel near 0."""
    return ctx.emit("Mul", ctx.emit("Tanh", ctx.emit("Mul", x, ctx.number(0.5))), ctx.emit("Add", ctx.emit("Exp", x), ctx.number(1)))


@ONNX.lowers("log1p")
def _log1p(ctx: Context, x: str) -> str:
    """ln(1 + x) = 2 atanh(x / (2 + x)), which does not cancel near 0; far from it the plain logarithm loses nothing."""
    near = ctx.emit("Mul", ctx.emit("Atanh", ctx.emit("Div", x, ctx.emit("Add", x, ctx.number(2)))), ctx.number(2))
    far = ctx.emit("Log", ctx.emit("Add", x, ctx.number(1)))
    return ctx.emit("Where", ctx.emit("Less", ctx.emit("Abs", x), ctx.number(0.5)), near, far)


@ONNX.lowers("erfc")
def _erfc(ctx: Context, x: str) -> str:
    return ctx.emit("Sub", ctx.number(1), ctx.emit("Erf", x))


@ONNX.lowers("is_inf")
def _is_inf(ctx: Context, x: str) -> str:
    return is_inf(ctx, x)


def is_inf(ctx: Context, x: str) -> str:
    """Emits where x is infinite; before opset 20 IsInf takes no halves."""
    return ctx.emit("IsInf", ctx.cast(x, DType.F32) if ctx.dtype() is DType.F16 and ctx.opset < 20 else x)


@ONNX.lowers("not")
def _not(ctx: Context, x: str) -> str:
    if ctx.dtype() is DType.BOOL:
        return ctx.emit("Not", x)
    return _flipped(ctx, x, ctx.dtype())


def _flipped(ctx: Context, x: str, dtype: DType) -> str:
    """Emits the integers with all bits flipped."""
    if ctx.opset >= 18:
        return ctx.emit("BitwiseNot", x)
    return ctx.emit("Sub", ctx.constant(-1 if np.iinfo(dtype.numpy).min else np.iinfo(dtype.numpy).max, dtype), x)


@ONNX.lowers("sign")
def _sign(ctx: Context, x: str, *, nan: str) -> str:
    sign = ctx.emit("Sign", x)
    return ctx.emit("Where", ctx.emit("IsNaN", x), ctx.number(0), sign) if nan == "zero" and ctx.dtype().is_float else sign


@ONNX.lowers("round")
def _round(ctx: Context, x: str, *, mode: str) -> str:
    if mode == "half_even":
        return ctx.emit("Round", x)
    whole = _trunc(ctx, x)
    if mode == "toward_zero":
        return whole
    rest = ctx.emit("Sub", x, whole)
    up = ctx.emit("GreaterOrEqual", ctx.emit("Abs", rest), ctx.number(0.5))
    return ctx.emit("Where", up, ctx.emit("Add", whole, ctx.emit("Sign", x)), whole)


def _trunc(ctx: Context, x: str) -> str:
    return ctx.emit("Where", ctx.emit("Less", x, ctx.number(0)), ctx.emit("Ceil", x), ctx.emit("Floor", x))


@ONNX.lowers("clamp")
def _clamp(ctx: Context, x: str, *, lo: float | None, hi: float | None) -> str:
    if lo is None and hi is None:
        return x
    return ctx.emit("Clip", x, *(None if bound is None else ctx.number(bound) for bound in (lo, hi)))


@ONNX.lowers("leaky_relu")
def _leaky_relu(ctx: Context, x: str, *, alpha: float) -> str:
    return ctx.emit("LeakyRelu", x, alpha=float(alpha))


@ONNX.lowers("elu")
def _elu(ctx: Context, x: str, *, alpha: float, scale: float, input_scale: float) -> str:
    if scale == input_scale == 1:
        return ctx.emit("Elu", x, alpha=float(alpha))
    if input_scale == 1:
        return ctx.emit("Selu", x, alpha=float(alpha), gamma=float(scale))
    if scale == 1 and alpha * input_scale == 1 and ctx.dtype() is DType.F32:
        return ctx.emit("Celu", x, alpha=float(alpha))
    scaled = ctx.emit("Mul", ctx.emit("Min", x, ctx.number(0)), ctx.number(input_scale))
    low = ctx.emit("Mul", expm1(ctx, scaled), ctx.number(alpha * scale))
    return ctx.emit("Where", ctx.emit("Greater", x, ctx.number(0)), ctx.emit("Mul", x, ctx.number(scale)), low)


@ONNX.lowers("silu")
def _silu(ctx: Context, x: str) -> str:
    return ctx.emit("Mul", x, ctx.emit("Sigmoid", x))


@ONNX.lowers("gelu")
def _gelu(ctx: Context, x: str, *, approximate: str) -> str:
    """Before opset 20 in the forms that runtimes fuse."""
    if ctx.opset >= 20:
        return ctx.emit("Gelu", x, approximate=approximate)
    if approximate == "none":
        erf = ctx.emit("Erf", ctx.emit("Div", x, ctx.number(math.sqrt(2))))
        return ctx.emit("Mul", ctx.emit("Mul", x, ctx.emit("Add", erf, ctx.number(1))), ctx.number(0.5))
    cubic = ctx.emit("Mul", ctx.emit("Pow", x, ctx.number(3)), ctx.number(0.044715))
    inner = ctx.emit("Mul", ctx.emit("Add", x, cubic), ctx.number(math.sqrt(2 / math.pi)))
    return ctx.emit("Mul", ctx.emit("Mul", x, ctx.number(0.5)), ctx.emit("Add", ctx.emit("Tanh", inner), ctx.number(1)))


@ONNX.lowers("softplus")
def _softplus(ctx: Context, x: str, *, beta: float, threshold: float | None) -> str:
    scaled = x if beta == 1 else ctx.emit("Mul", x, ctx.number(beta))
    y = ctx.emit("Softplus", scaled)
    y = y if beta == 1 else ctx.emit("Div", y, ctx.number(beta))
    if threshold is None or (threshold >= 20 and ctx.dtype() is not DType.F64):  # ln(1 + e^20) rounds to 20
        return y
    return ctx.emit("Where", ctx.emit("Greater", scaled, ctx.number(threshold)), x, y)


@ONNX.lowers("hard_sigmoid")
def _hard_sigmoid(ctx: Context, x: str, *, alpha: float, beta: float) -> str:
    return ctx.emit("HardSigmoid", x, alpha=float(alpha), beta=float(beta))


@ONNX.lowers("cast")
def _cast(ctx: Context, x: str, *, to: str, f2i: str) -> str:
    """ONNX leaves out-of-range floats open, and ONNX Runtime converts as x86 does; ``f2i=error`` gives what the run gives."""
    target = DType(to)
    if f2i != "saturate" or not (ctx.dtype().is_float and target.is_integer):
        if target is DType.U32 and ctx.dtype().is_float and ctx.edge_cases:  # by way of 64 bits
            x = ctx.emit("Mod", ctx.cast(x, DType.I64), ctx.constant(2**32, DType.I64))
            return ctx.cast(x, target)
        return x if target is ctx.dtype() else ctx.cast(x, target)
    dtype = ctx.dtype()
    if dtype is DType.F16:  # no integer type ends within it
        x, dtype = ctx.cast(x, DType.F32), DType.F32
    bounds = np.iinfo(target.numpy)
    x = ctx.emit("Where", ctx.emit("IsNaN", x), ctx.constant(0, dtype), x)
    if target.itemsize < 4 or (target.itemsize == 4 and dtype is DType.F64):
        return ctx.cast(ctx.emit("Clip", x, ctx.constant(bounds.min, dtype), ctx.constant(bounds.max, dtype)), target)
    above = ctx.emit("GreaterOrEqual", x, ctx.constant(float(bounds.max) + 1, dtype))  # the maximum itself may be no float
    below = ctx.emit("Less", x, ctx.constant(float(bounds.min), dtype))
    inside = ctx.cast(x, target)
    at_least = ctx.emit("Where", below, ctx.constant(bounds.min, target), inside)
    return ctx.emit("Where", above, ctx.constant(bounds.max, target), at_least)


@ONNX.lowers("bitcast")
def _bitcast(ctx: Context, x: str, *, to: str) -> str:
    target, dtype = DType(to), ctx.dtype()
    if target is dtype:
        return x
    if target.is_integer and dtype.is_integer:  # of one width: the bits are kept
        return ctx.cast(x, target)
    ctx.needs_opset(26, "bitcast")
    return ctx.emit("BitCast", x, to=ELEMENT_TYPES[target])


@ONNX.lowers("pow")
def _pow(ctx: Context, a: str, b: str) -> str:
    if ctx.dtype().is_float:
        return ctx.emit("Pow", a, b)
    exponents = ctx.known(1)
    if exponents is None or exponents.size != 1 or not 0 <= exponents.flat[0] <= 64:
        return _integer_power(ctx, a, b)
    exponent, result, square = int(exponents.flat[0]), None, a
    while exponent:
        if exponent & 1:
            result = square if result is None else ctx.emit("Mul", result, square)
        exponent >>= 1
        square = ctx.emit("Mul", square, square) if exponent else square
    return result or ctx.emit("Sub", ctx.emit("Add", a, ctx.number(1)), a)


def _integer_power(ctx: Context, a: str, b: str) -> str:
    """Emits square and multiply for every bit of the exponents: Pow of integers does not say what becomes of an overflow."""
    dtype, one, two = ctx.dtype(), ctx.number(1), ctx.number(2)
    result, square, rest = one, a, b
    for bit in range(8 * dtype.itemsize - (not _is_unsigned(dtype))):
        if bit:
            square, rest = ctx.emit("Mul", square, square), ctx.emit("Div", rest, two)
        odd = ctx.emit("Equal", ctx.emit("Mod", rest, two), one)
        result = ctx.emit("Mul", result, ctx.emit("Where", odd, square, one))
    return result


@ONNX.lowers("div")
def _div(ctx: Context, a: str, b: str, *, rounding: str) -> str:
    quotient = ctx.emit("Div", a, b)  # of integers: toward zero
    if not ctx.dtype().is_float:
        if rounding == "trunc" or _is_unsigned(ctx.dtype()):
            return quotient
        return ctx.emit("Sub", quotient, ctx.cast(_signs_differ(ctx, ctx.emit("Mod", a, b, fmod=1), b), ctx.dtype()))
    if rounding == "true":
        return quotient
    if rounding == "trunc":
        return _trunc(ctx, quotient)
    rest = ctx.emit("Mod", a, b, fmod=1)
    below = ctx.cast(_signs_differ(ctx, rest, b), ctx.dtype())
    whole = ctx.emit("Round", ctx.emit("Sub", ctx.emit("Div", ctx.emit("Sub", a, rest), b), below))
    return ctx.emit("Where", ctx.emit("Equal", b, ctx.number(0)), quotient, whole)


def _signs_differ(ctx: Context, rest: str, b: str) -> str:
    """Emits where a remainder with the sign of the dividend is not 0 and has not the sign of the divisor."""
    zero = ctx.number(0)
    signs = ctx.emit("Xor", ctx.emit("Less", rest, zero), ctx.emit("Less", b, zero))
    return ctx.emit("And", signs, ctx.emit("Not", ctx.emit("Equal", rest, zero)))


@ONNX.lowers("rem")
def _rem(ctx: Context, a: str, b: str, *, sign: str) -> str:
    if not ctx.dtype().is_float or sign == "dividend":
        return ctx.emit("Mod", a, b, fmod=int(sign == "dividend"))
    rest = ctx.emit("Mod", a, b, fmod=1)
    return ctx.emit("Where", _signs_differ(ctx, rest, b), ctx.emit("Add", rest, b), rest)


@ONNX.lowers("atan2")
def _atan2(ctx: Context, a: str, b: str) -> str:
    zero, half, pi = (ctx.number(value) for value in (0, math.pi / 4, math.pi))
    up, right = ctx.emit("Abs", a), ctx.emit("Abs", b)
    angle = ctx.emit("Where", ctx.emit("Equal", up, zero), zero, ctx.emit("Atan", ctx.emit("Div", up, right)))
    both = ctx.emit("And", is_inf(ctx, up), is_inf(ctx, right))
    angle = ctx.emit("Where", both, half, angle)
    angle = ctx.emit("Where", _has_sign(ctx, b), ctx.emit("Sub", pi, angle), angle)
    angle = ctx.emit("Where", _has_sign(ctx, a), ctx.emit("Neg", angle), angle)
    unknown = ctx.emit("Or", ctx.emit("IsNaN", a), ctx.emit("IsNaN", b))
    return ctx.emit("Where", unknown, ctx.number(math.nan), angle)


def _has_sign(ctx: Context, x: str) -> str:
    """Emits where a number is negative or -0.0."""
    zero = ctx.number(0)
    return ctx.emit("Or", ctx.emit("Less", x, zero), ctx.emit("Less", ctx.emit("Reciprocal", x), zero))


@ONNX.lowers("and", "or", "xor")
def _logic(ctx: Context, a: str, b: str) -> str:
    operator = ctx.node.op.capitalize()
    if ctx.dtype() is DType.BOOL:
        return ctx.emit(operator, a, b)
    ctx.needs_opset(18, f"{ctx.node.op} of integers")
    return ctx.emit(f"Bitwise{operator}", a, b)


@ONNX.lowers("shift")
def _shift(ctx: Context, a: str, b: str, *, dir: str, arithmetic: bool) -> str:
    """BitShift takes unsigned integers and says nothing of a shift beyond their width."""
    dtype = ctx.dtype()
    signed = not _is_unsigned(dtype)
    bits = DType(f"u{8 * dtype.itemsize}")
    width = 8 * dtype.itemsize
    if signed and arithmetic:  # of a negative number: flip, shift, flip
        negative = ctx.emit("Less", a, ctx.number(0))
        a = ctx.emit("Where", negative, _flipped(ctx, a, dtype), a)
    amount = ctx.cast(b, bits) if signed else b
    inside = ctx.emit("Less", amount, ctx.constant(width, bits))
    shifted = ctx.emit("BitShift", ctx.cast(a, bits) if signed else a, amount, direction=dir.upper())
    shifted = ctx.cast(shifted, dtype) if signed else shifted
    y = ctx.emit("Where", inside, shifted, ctx.number(0))
    return ctx.emit("Where", negative, _flipped(ctx, y, dtype), y) if signed and arithmetic else y


_DIRECTIONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


@ONNX.lowers("compare")
def _compare(ctx: Context, a: str, b: str, *, dir: str) -> str:
    if ctx.dtype() is DType.BOOL and dir not in ("eq", "ne"):  # ordered comparisons take numbers
        a, b = ctx.cast(a, DType.I32), ctx.cast(b, DType.I32)
    if dir == "ne":
        return ctx.emit("Not", ctx.emit("Equal", a, b))
    return ctx.emit(_DIRECTIONS[dir], a, b)
