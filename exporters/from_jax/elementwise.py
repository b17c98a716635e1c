"""Lowerings of primitives that compute every element by itself."""

from __future__ import annotations

import numpy as np

from exporters.from_jax.context import TABLE, Context, RefusedError, dtype_name
from exporters.from_jax.program import Equation, Value, scalar_value

__all__ = ["before_broadcast"]

_SAME_NAME = (
    *("abs", "ceil", "cos", "erf", "erfc", "exp", "expm1", "floor", "log", "log1p", "neg", "not", "rsqrt", "sin", "sqrt", "tanh"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)
_BINARY = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "atan2": "atan2"}
_SHIFTS = {
    "shift_left": {"dir": "left", "arithmetic": False},
    "shift_right_logical": {"dir": "right", "arithmetic": False},
    "shift_right_arithmetic": {"dir": "right", "arithmetic": True},
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def before_broadcast(value: Value) -> Value:
    """Returns what was broadcast to give ``value``, where NumPy's broadcasting does the same: a bias keeps its shape."""
    while value.producer is not None and value.producer.primitive in ("broadcast_in_dim", "reshape"):
        source = value.producer.inputs[0]
        lead = len(value.shape) - len(source.shape)
        if value.producer.primitive == "reshape":
            same = value.shape == (1,) * lead + source.shape
        else:
            same = tuple(value.producer.params["broadcast_dimensions"]) == tuple(range(lead, len(value.shape)))
        if not same:
            break
        value = source
    return value


def _operands(equation: Equation) -> tuple[Value, ...]:
    """Returns the operands before broadcasting where they still broadcast to the equation's shape, else as they are."""
    thin = tuple(map(before_broadcast, equation.inputs))
    return thin if np.broadcast_shapes(*(value.shape for value in thin)) == equation.outputs[0].shape else equation.inputs


def _kind(equation: Equation) -> str:
    """Returns NumPy's letter for the kind of the first operand: f, i, u or b (V for bfloat16)."""
    return str(np.dtype(equation.inputs[0].dtype).kind)


@TABLE.lowers(*_SAME_NAME)
def _unary(ctx: Context, eqn: Equation) -> str:
    return ctx.add(eqn.primitive, eqn.inputs[0])


@TABLE.lowers(*_BINARY)
def _binary(ctx: Context, eqn: Equation) -> str:
    return ctx.add(_BINARY[eqn.primitive], *_operands(eqn))


@TABLE.lowers(*_SHIFTS)
def _shift(ctx: Context, eqn: Equation) -> str:
    return ctx.add("shift", *_operands(eqn), **_SHIFTS[eqn.primitive])


@TABLE.lowers("bitcast_convert_type")
def _bitcast(ctx: Context, eqn: Equation) -> str:
    x, output = eqn.inputs[0], eqn.outputs[0]
    if np.dtype(x.dtype).itemsize != np.dtype(output.dtype).itemsize:
        raise RefusedError(f"bits of {x.dtype} read as {output.dtype}, which is of another width")
    return ctx.name(x) if x.dtype == output.dtype else ctx.add("bitcast", x, to=ctx.dtype(output))


@TABLE.lowers("cbrt")
def _cbrt(ctx: Context, eqn: Equation) -> str:
    x = eqn.inputs[0]
    root = ctx.add("pow", ctx.add("abs", x), ctx.scalar(1 / 3, x.dtype))
    return ctx.add("mul", ctx.add("sign", x, nan="propagate"), root)


@TABLE.lowers(*_COMPARISONS)
def _compare(ctx: Context, eqn: Equation) -> str:
    a, b = _operands(eqn)
    if eqn.primitive == "ne" and a is b and _kind(eqn) == "f":  # jnp.isnan
        return ctx.add("is_nan", a)
    return ctx.add("compare", a, b, dir=eqn.primitive)


@TABLE.lowers("eq_to", "le_to", "lt_to")
def _compare_total(ctx: Context, eqn: Equation) -> str:
    """Floats in the total order, -NaN < -inf < -0.0 < 0.0 < inf < NaN: as the integers of their bits, all but the sign of negative ones turned."""
    operands = [_ordered(ctx, value) if _kind(eqn) == "f" else ctx.name(value) for value in _operands(eqn)]
    return ctx.add("compare", *operands, dir=eqn.primitive.removesuffix("_to"))


def _ordered(ctx: Context, value: Value) -> str:
    integer = np.dtype(f"i{np.dtype(value.dtype).itemsize}")
    bits = ctx.add("bitcast", value, to=dtype_name(integer))
    negative = ctx.add("shift", bits, ctx.scalar(8 * integer.itemsize - 1, integer), dir="right", arithmetic=True)
    return ctx.add("xor", bits, ctx.add("and", negative, ctx.scalar(np.iinfo(integer).max, integer)))


@TABLE.lowers("max", "min")
def _extremum(ctx: Context, eqn: Equation) -> str:
    if _kind(eqn) == "b":
        return ctx.add("or" if eqn.primitive == "max" else "and", *_operands(eqn))
    for x, other in (eqn.inputs, eqn.inputs[::-1]):
        bound = scalar_value(other)
        if bound is None or x.shape != eqn.outputs[0].shape or x.dtype != other.dtype or x.constant is not None:
            continue
        if eqn.primitive == "max" and bound == 0:
            return ctx.add("relu", x)
        if bound == bound:
            return ctx.add("clamp", x, **{"lo": None, "hi": None, "lo" if eqn.primitive == "max" else "hi": bound})
    return ctx.add(eqn.primitive, *_operands(eqn))


@TABLE.lowers("clamp")
def _clamp(ctx: Context, eqn: Equation) -> str:
    low, x, high = eqn.inputs
    bounds = scalar_value(low), scalar_value(high)
    if None not in bounds and bounds[0] == bounds[0] and bounds[1] == bounds[1]:
        return ctx.add("clamp", x, lo=bounds[0], hi=bounds[1])
    return ctx.add("min", ctx.add("max", x, low), high)


@TABLE.lowers("sign")
def _sign(ctx: Context, eqn: Equation) -> str:
    return ctx.add("sign", eqn.inputs[0], nan="propagate")


@TABLE.lowers("round")
def _round(ctx: Context, eqn: Equation) -> str:
    return ctx.add("round", eqn.inputs[0], mode="half_even" if int(eqn.params["rounding_method"]) == 1 else "half_away")


@TABLE.lowers("logistic")
def _logistic(ctx: Context, eqn: Equation) -> str:
    return ctx.add("sigmoid", eqn.inputs[0])


@TABLE.lowers("is_finite")
def _is_finite(ctx: Context, eqn: Equation) -> str:
    x = eqn.inputs[0]
    return ctx.add("compare", ctx.add("abs", x), ctx.scalar(np.inf, x.dtype), dir="lt")


@TABLE.lowers("exp2")
def _exp2(ctx: Context, eqn: Equation) -> str:
    x = eqn.inputs[0]
    return ctx.add("exp", ctx.add("mul", x, ctx.scalar(np.log(2), x.dtype)))  # as XLA computes it


@TABLE.lowers("square")
def _square(ctx: Context, eqn: Equation) -> str:
    return ctx.add("mul", eqn.inputs[0], eqn.inputs[0])


@TABLE.lowers("integer_pow")
def _integer_pow(ctx: Context, eqn: Equation) -> str:
    x, exponent = eqn.inputs[0], int(eqn.params["y"])
    if exponent == 0:
        return ctx.broadcast(ctx.scalar(1, x.dtype), x.shape)
    square, result, left = ctx.name(x), None, abs(exponent)
    while left:  # by squaring, as JAX does it
        if left & 1:
            result = square if result is None else ctx.add("mul", result, square)
        if left := left >> 1:
            square = ctx.add("mul", square, square)
    assert result is not None
    return result if exponent > 0 else ctx.add("div", ctx.scalar(1, x.dtype), result, rounding="true")


@TABLE.lowers("pow")
def _pow(ctx: Context, eqn: Equation) -> str:
    x, exponent = _operands(eqn)
    return ctx.add("pow", x, ctx.cast(exponent, x.dtype))


@TABLE.lowers("div")
def _div(ctx: Context, eqn: Equation) -> str:
    a, b = _operands(eqn)
    if _kind(eqn) == "f":
        return ctx.add("div", a, b, rounding="true")
    if _never_zero(b):
        return ctx.add("div", a, b, rounding="trunc")
    zero, divisor = _guarded(ctx, b)
    return ctx.add("select", zero, ctx.constant(np.array(-1).astype(a.dtype)), ctx.add("div", a, divisor, rounding="trunc"))


@TABLE.lowers("rem")
def _rem(ctx: Context, eqn: Equation) -> str:
    a, b = _operands(eqn)
    if _kind(eqn) == "f" or _never_zero(b):
        return ctx.add("rem", a, b, sign="dividend")
    zero, divisor = _guarded(ctx, b)
    return ctx.add("select", zero, a, ctx.add("rem", a, divisor, sign="dividend"))


def _never_zero(divisor: Value) -> bool:
    return divisor.constant is not None and bool(np.all(divisor.array()))


def _guarded(ctx: Context, divisor: Value) -> tuple[str, str]:
    """Returns where an integer divisor is 0, and the divisor with 1 there: XLA defines division by 0, the graph refuses it."""
    zero = ctx.add("compare", divisor, ctx.scalar(0, divisor.dtype), dir="eq")
    return zero, ctx.add("select", zero, ctx.scalar(1, divisor.dtype), divisor)


@TABLE.lowers("select_n")
def _select_n(ctx: Context, eqn: Equation) -> str:
    which, *cases = _operands(eqn)
    if np.dtype(which.dtype).kind == "b":
        return ctx.name(cases[0]) if len(cases) == 1 else ctx.add("select", which, cases[1], cases[0])  # the False case comes first
    result = ctx.name(cases[-1])
    for index in range(len(cases) - 2, -1, -1):  # an index below 0 counts as 0, one too large as the last
        result = ctx.add("select", ctx.add("compare", which, ctx.scalar(index, which.dtype), dir="le"), cases[index], result)
    return result


@TABLE.lowers("convert_element_type")
def _convert(ctx: Context, eqn: Equation) -> str:
    return ctx.cast(eqn.inputs[0], eqn.outputs[0].dtype)


@TABLE.lowers("reduce_precision")
def _reduce_precision(ctx: Context, eqn: Equation) -> str:
    x, bits = eqn.inputs[0], (eqn.params["exponent_bits"], eqn.params["mantissa_bits"])
    if bits != (8, 23) or x.dtype != np.float32:
        raise RefusedError(f"rounding to {bits[0]} exponent bits and {bits[1]} mantissa bits")
    return ctx.name(x)
