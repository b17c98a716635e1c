"""Lowerings of the elementwise operators. Operands are cast to the type that torch promotes them to."""

from __future__ import annotations

import math
from collections.abc import Callable

from exporters.from_torch.context import ATEN, Context, RefusedError, Scalar
from rml_exec.types import DType

Operand = str | Scalar


def _unary(packet: str, op: str, *, keeps_integers: bool = False, **attrs: object) -> None:
    """Registers an operator that is one op on its operand in the result's type; ``keeps_integers``: it leaves integers as they are."""

    @ATEN.lowers(f"aten.{packet}")
    def lower(ctx: Context, x: str) -> str:
        dtype = ctx.result().dtype
        return x if keeps_integers and not dtype.is_float else str(ctx.add(op, [ctx.cast(x, dtype)], **attrs))


for _name in (
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
):
    _unary(_name, _name)
for _name in ("neg", "relu", "rsqrt", "sigmoid", "silu", "sin", "sinh", "sqrt", "tan", "tanh"):
    _unary(_name, _name)
_unary("special_erfc", "erfc")
_unary("hardswish", "hard_swish")
_unary("hardsigmoid", "hard_sigmoid", alpha=1 / 6, beta=0.5)
_unary("ceil", "ceil", keeps_integers=True)
_unary("floor", "floor", keeps_integers=True)
_unary("trunc", "round", keeps_integers=True, mode="toward_zero")
_unary("round.default", "round", keeps_integers=True, mode="half_even")


@ATEN.lowers("aten.sign", "aten.sgn")
def _sign(ctx: Context, x: str) -> str:
    if ctx.type(x).dtype is DType.BOOL:
        return x
    return str(ctx.add("sign", [x], nan="zero"))


@ATEN.lowers("aten.round.decimals")
def _round_decimals(ctx: Context, x: str, decimals: int) -> str:
    dtype = ctx.result().dtype
    power = ctx.scalar(10.0 ** abs(decimals), dtype)
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    rounded = ctx.step("round", [_arithmetic(ctx.step, there, x, power)], mode="half_even")
    return _arithmetic(ctx.add, back, rounded, power)


def _arithmetic(add: Callable[..., str], op: str, a: str, b: str) -> str:
    return add(op, [a, b], **({"rounding": "true"} if op == "div" else {}))


@ATEN.lowers("aten.gelu")
def _gelu(ctx: Context, x: str, approximate: str) -> str:
    return str(ctx.add("gelu", [x], approximate=approximate))


@ATEN.lowers("aten.leaky_relu")
def _leaky_relu(ctx: Context, x: str, slope: float) -> str:
    return str(ctx.add("leaky_relu", [x], alpha=float(slope)))


@ATEN.lowers("aten.elu")
def _elu(ctx: Context, x: str, alpha: float, scale: float, input_scale: float) -> str:
    return str(ctx.add("elu", [x], alpha=float(alpha), scale=float(scale), input_scale=float(input_scale)))


@ATEN.lowers("aten.softplus")
def _softplus(ctx: Context, x: str, beta: float, threshold: float) -> str:
    return str(ctx.add("softplus", [x], beta=float(beta), threshold=float(threshold)))


@ATEN.lowers("aten.log10")
def _log10(ctx: Context, x: str) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("mul", [ctx.step("log", [ctx.cast(x, dtype)]), ctx.scalar(1 / math.log(10), dtype)]))


@ATEN.lowers("aten.exp2")
def _exp2(ctx: Context, x: str) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("exp", [ctx.step("mul", [ctx.cast(x, dtype), ctx.scalar(math.log(2), dtype)])]))


@ATEN.lowers("aten.reciprocal")
def _reciprocal(ctx: Context, x: str) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("div", [ctx.scalar(1, dtype), ctx.cast(x, dtype)], rounding="true"))


@ATEN.lowers("aten.isnan", "aten.isinf")
def _is(ctx: Context, x: str) -> str:
    if not ctx.type(x).dtype.is_float:
        return str(ctx.add("broadcast", [ctx.scalar(False, DType.BOOL)], shape=ctx.type(x).shape))
    return str(ctx.add({"isnan": "is_nan", "isinf": "is_inf"}[ctx.packet], [x]))


@ATEN.lowers("aten.logical_not")
def _logical_not(ctx: Context, x: str) -> str:
    dtype = ctx.type(x).dtype
    if dtype is DType.BOOL:
        return str(ctx.add("not", [x]))
    return str(ctx.add("compare", [x, ctx.scalar(0, dtype)], dir="eq"))


@ATEN.lowers("aten.bitwise_not")
def _bitwise_not(ctx: Context, x: str) -> str:
    return str(ctx.add("not", [x]))


@ATEN.lowers("aten._to_copy")
def _to_copy(ctx: Context, x: str, dtype: object) -> str:
    to = ctx.result().dtype
    return x if ctx.type(x).dtype is to else str(ctx.add("cast", [x], to=to.value, f2i="wrap_x86"))


@ATEN.lowers("aten.add", "aten.sub")
def _add(ctx: Context, a: Operand, b: Operand, alpha: Scalar) -> str:
    dtype = ctx.result().dtype
    left, right = ctx.operand(a, dtype), ctx.operand(b, dtype)
    if dtype is DType.BOOL:
        return str(ctx.add("or", [left, right]))  # torch has no sub of bools
    if alpha != 1:
        right = ctx.step("mul", [right, ctx.scalar(alpha, dtype)])
    return str(ctx.add(ctx.packet, [left, right]))


@ATEN.lowers("aten.rsub")
def _rsub(ctx: Context, a: str, b: Operand, alpha: Scalar) -> str:
    dtype = ctx.result().dtype
    right = ctx.cast(a, dtype)
    if alpha != 1:
        right = ctx.step("mul", [right, ctx.scalar(alpha, dtype)])
    return str(ctx.add("sub", [ctx.operand(b, dtype), right]))


@ATEN.lowers("aten.mul")
def _mul(ctx: Context, a: Operand, b: Operand) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("and" if dtype is DType.BOOL else "mul", [ctx.operand(a, dtype), ctx.operand(b, dtype)]))


@ATEN.lowers("aten.div")
def _div(ctx: Context, a: Operand, b: Operand, rounding_mode: str | None = None) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("div", [ctx.operand(a, dtype), ctx.operand(b, dtype)], rounding=rounding_mode or "true"))


@ATEN.lowers("aten.floor_divide")
def _floor_divide(ctx: Context, a: Operand, b: Operand) -> str:
    return _div(ctx, a, b, "floor")


@ATEN.lowers("aten.remainder")
def _remainder(ctx: Context, a: Operand, b: Operand) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("rem", [ctx.operand(a, dtype), ctx.operand(b, dtype)], sign="divisor"))


@ATEN.lowers("aten.fmod")
def _fmod(ctx: Context, a: Operand, b: Operand) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("rem", [ctx.operand(a, dtype), ctx.operand(b, dtype)], sign="dividend"))


@ATEN.lowers("aten.pow")
def _pow(ctx: Context, base: Operand, exponent: Operand) -> str:
    """Exponents that torch computes by a multiplication or a root are computed so here: the same rounding, and faster."""
    dtype = ctx.result().dtype
    x = ctx.operand(base, dtype)
    if not isinstance(exponent, str):
        if exponent == 1:
            return x
        if exponent == 2:
            return str(ctx.add("mul", [x, x]))
        if exponent == 3:
            return str(ctx.add("mul", [ctx.step("mul", [x, x]), x]))
        if dtype.is_float and exponent == 0.5:
            return str(ctx.add("sqrt", [x]))
        if dtype.is_float and exponent == -0.5:
            return str(ctx.add("rsqrt", [x]))
        if dtype.is_float and exponent == -1:
            return str(ctx.add("div", [ctx.scalar(1, dtype), x], rounding="true"))
        if not dtype.is_float and exponent < 0:
            raise RefusedError("integers to a negative power are not supported")
    return str(ctx.add("pow", [x, ctx.operand(exponent, dtype)]))


def _extreme(packet: str, op: str) -> None:
    @ATEN.lowers(f"aten.{packet}")
    def lower(ctx: Context, a: str, b: str) -> str:
        dtype = ctx.result().dtype
        if dtype is DType.BOOL:
            return str(ctx.add("or" if op == "max" else "and", [a, b]))
        return str(ctx.add(op, [ctx.cast(a, dtype), ctx.cast(b, dtype)]))


_extreme("maximum", "max")
_extreme("minimum", "min")


@ATEN.lowers("aten.fmax", "aten.fmin")
def _extreme_without_nan(ctx: Context, a: str, b: str) -> str:
    """The larger or smaller operand; the other one where one is NaN."""
    dtype, op = ctx.result().dtype, ctx.packet.removeprefix("f")
    left, right = ctx.cast(a, dtype), ctx.cast(b, dtype)
    if not dtype.is_float:
        return str(ctx.add(op, [left, right]))
    either = ctx.step("select", [ctx.step("is_nan", [right]), left, ctx.step(op, [left, right])])
    return str(ctx.add("select", [ctx.step("is_nan", [left]), right, either]))


@ATEN.lowers("aten.atan2")
def _atan2(ctx: Context, a: str, b: str) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("atan2", [ctx.cast(a, dtype), ctx.cast(b, dtype)]))


def _shift(direction: str, *packets: str) -> None:
    @ATEN.lowers(*packets)
    def lower(ctx: Context, a: Operand, b: Operand) -> str:
        dtype = ctx.result().dtype
        arithmetic = direction == "right" and dtype.value.startswith("i")
        return str(ctx.add("shift", [ctx.operand(a, dtype), ctx.operand(b, dtype)], dir=direction, arithmetic=arithmetic))


_shift("left", "aten.bitwise_left_shift", "aten.__lshift__")
_shift("right", "aten.bitwise_right_shift", "aten.__rshift__")


@ATEN.lowers("aten.clamp", "aten.hardtanh")
def _clamp(ctx: Context, x: str, lo: Operand | None, hi: Operand | None) -> str:
    dtype = ctx.result().dtype
    x = ctx.cast(x, dtype)
    if not isinstance(lo, str) and not isinstance(hi, str):
        bounds = {"lo": None if lo is None else float(lo), "hi": None if hi is None else float(hi)}
        return str(ctx.add("clamp", [x], **bounds))
    if lo is not None:
        x = (ctx.step if hi is not None else ctx.add)("max", [x, ctx.operand(lo, dtype)])
    return x if hi is None else str(ctx.add("min", [x, ctx.operand(hi, dtype)]))


@ATEN.lowers("aten.clamp_min")
def _clamp_min(ctx: Context, x: str, lo: Operand) -> str:
    return _clamp(ctx, x, lo, None)


@ATEN.lowers("aten.clamp_max")
def _clamp_max(ctx: Context, x: str, hi: Operand) -> str:
    return _clamp(ctx, x, None, hi)


def _comparison(direction: str) -> None:
    @ATEN.lowers(f"aten.{direction}")
    def lower(ctx: Context, a: str, b: Operand) -> str:
        dtype = ctx.promoted()
        return str(ctx.add("compare", [ctx.operand(a, dtype), ctx.operand(b, dtype)], dir=direction))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _logic(op: str) -> None:
    @ATEN.lowers(f"aten.logical_{op}")
    def logical(ctx: Context, a: str, b: str) -> str:
        return str(ctx.add(op, [ctx.cast(a, DType.BOOL), ctx.cast(b, DType.BOOL)]))

    @ATEN.lowers(f"aten.bitwise_{op}")
    def bitwise(ctx: Context, a: Operand, b: Operand) -> str:
        dtype = ctx.result().dtype
        return str(ctx.add(op, [ctx.operand(a, dtype), ctx.operand(b, dtype)]))


for _name in ("and", "or", "xor"):
    _logic(_name)


@ATEN.lowers("aten.where")
def _where(ctx: Context, condition: str, a: Operand, b: Operand) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("select", [ctx.cast(condition, DType.BOOL), ctx.operand(a, dtype), ctx.operand(b, dtype)]))


@ATEN.lowers("aten.masked_fill")
def _masked_fill(ctx: Context, x: str, mask: str, value: Operand) -> str:
    dtype = ctx.result().dtype
    return str(ctx.add("select", [mask, ctx.operand(value, dtype), x]))
