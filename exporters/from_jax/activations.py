"""Recognises and lowers activation functions by their formulas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.matching import factors, made_by, near
from exporters.from_jax.program import Equation, Value, replaced, scalar_value

__all__ = ["activation", "bounded", "elu", "hard_sigmoid", "leaky_relu", "softplus"]


@TABLE.lowers("rml.silu", "rml.gelu", "rml.leaky_relu", "rml.softplus", "rml.elu", "rml.hard_sigmoid", "rml.hard_swish")
def _activation(ctx: Context, eqn: Equation) -> str:
    return ctx.add(eqn.primitive.removeprefix("rml."), eqn.inputs[0], **eqn.params)


def _plus_one(value: Value) -> Value | None:
    """Returns z of ``1 + z``."""
    a, b = made_by(value, "add") or (value, value)
    return next((other for one, other in ((a, b), (b, a)) if one is not other and scalar_value(one) == 1), None)


def activation(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A product of x and a gate that is computed from x.

    Silu is x * logistic(x), hard_swish x * clamp(x + 3, 0, 6) / 6, gelu x * (1 + erf(x / sqrt 2)) / 2, also with erfc, or with
    tanh(sqrt(2 / pi) * (x + 0.044715 x^3)).
    """
    output = equation.outputs[0] if equation.outputs else None
    if equation.primitive not in ("mul", "div") or output is None or np.dtype(output.dtype).kind != "f":
        return None
    number, powers = factors(output, reads)
    if powers.total() != 2 or len(powers) != 2:
        return None
    for x, gate in (tuple(powers), tuple(powers)[::-1]):
        if x.shape != output.shape:
            continue
        if number == 1 and (operands := made_by(gate, "logistic")) and operands[0] is x:
            return replaced(equation, "rml.silu", x)
        if _is_hard_gate(gate, x, number, reads):
            return replaced(equation, "rml.hard_swish", x)
        if number == 0.5 and (approximate := _gelu_gate(gate, x, reads)):
            return replaced(equation, "rml.gelu", x, approximate=approximate)
    return None


def _gelu_gate(gate: Value, x: Value, reads: Counter[Value]) -> str | None:
    if operands := made_by(gate, "erfc"):
        return "none" if _is_scaled(operands[0], -math.sqrt(0.5), x, reads) else None
    inner = _plus_one(gate)
    if inner is None:
        return None
    if operands := made_by(inner, "erf"):
        return "none" if _is_scaled(operands[0], math.sqrt(0.5), x, reads) else None
    if not (operands := made_by(inner, "tanh")):
        return None
    number, powers = factors(operands[0], reads)
    terms = made_by(next(iter(powers)), "add") if powers.total() == 1 else None
    if terms is None or not near(number, math.sqrt(2 / math.pi), x.dtype):
        return None
    for linear, cubic in (terms, terms[::-1]):
        number, powers = factors(cubic, reads)
        if linear is x and powers == Counter({x: 3}) and near(number, 0.044715, x.dtype):
            return "tanh"
    return None


def _is_scaled(value: Value, number: float, x: Value, reads: Counter[Value]) -> bool:
    found, powers = factors(value, reads)
    return powers == Counter({x: 1}) and near(found, number, x.dtype)


def _is_hard_gate(gate: Value, x: Value, number: float, reads: Counter[Value]) -> bool:
    """True if number * gate is clamp(x + 3, 0, 6) / 6."""
    found = _hard_sigmoid(number, gate, reads)
    return found is not None and found[0] is x and near(found[1], 1 / 6, x.dtype) and near(found[2], 0.5, x.dtype)


def hard_sigmoid(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A clamp of a * x + b to 0 and h, divided by h."""
    output = equation.outputs[0] if len(equation.outputs) == 1 else None
    if equation.primitive not in ("mul", "div") or output is None or np.dtype(output.dtype).kind != "f":
        return None
    number, powers = factors(output, reads)
    gate = next(iter(powers), None)
    if powers.total() != 1 or gate is None or (found := _hard_sigmoid(number, gate, reads)) is None or found[0].shape != output.shape:
        return None
    return replaced(equation, "rml.hard_sigmoid", found[0], alpha=found[1], beta=found[2])


def _hard_sigmoid(number: float, gate: Value, reads: Counter[Value]) -> tuple[Value, float, float] | None:
    """Returns (x, alpha, beta) of number * gate, if that is clamp(alpha * x + beta, 0, 1)."""
    if (operands := made_by(gate, "rml.hard_sigmoid")) and number == 1:
        assert gate.producer is not None
        return operands[0], gate.producer.params["alpha"], gate.producer.params["beta"]
    operands = made_by(gate, "clamp")
    if not operands or scalar_value(operands[0]) != 0 or not (top := scalar_value(operands[2])) or not near(number * top, 1, gate.dtype):
        return None
    return _affine(number, operands[1], reads)


def _affine(number: float, value: Value, reads: Counter[Value]) -> tuple[Value, float, float] | None:
    """Returns (x, a, b) of number * value, if that is a * x + b."""
    for inner, added in (terms, terms[::-1]) if (terms := made_by(value, "add")) else ():
        shift, (factor, powers) = scalar_value(added), factors(inner, reads)
        if shift is not None and powers.total() == 1 and inner.shape == value.shape:
            return next(iter(powers)), number * factor, number * shift
    return None


def bounded(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A lower and an upper bound one after the other, by max and min or by select, are one clamp; a hard_sigmoid if they are 0 and 1."""
    if equation.primitive not in ("min", "max", "select_n", "clamp") or np.dtype(equation.outputs[0].dtype).kind not in "fiu":
        return None
    if equation.primitive == "clamp":
        low, x, high = equation.inputs
    else:
        outer = _bound(equation.outputs[0])
        inner = _bound(outer[1]) if outer else None
        if outer is None or inner is None or outer[0] == inner[0]:
            return None
        x = inner[1]
        low, high = (inner[2], outer[2]) if outer[0] == "high" else (outer[2], inner[2])
    least, most, output = scalar_value(low), scalar_value(high), equation.outputs[0]
    if least is None or most is None or not least <= most or x.shape != output.shape:
        return None
    if (least, most) == (0, 1) and np.dtype(output.dtype).kind == "f" and (found := _affine(1.0, x, reads)) and found[0].shape == x.shape:
        return replaced(equation, "rml.hard_sigmoid", found[0], alpha=found[1], beta=found[2])
    return None if equation.primitive == "clamp" else replaced(equation, "clamp", low, x, high)


def _bound(value: Value) -> tuple[str, Value, Value] | None:
    """Returns (low or high, x, bound) of a value that is x but not below or above a number."""
    if operands := made_by(value, "max", "min"):
        x, number = operands if scalar_value(operands[0]) is None else operands[::-1]
        found = ("low" if value.producer is not None and value.producer.primitive == "max" else "high", x, number)
    elif (operands := made_by(value, "select_n")) and len(operands) == 3:
        test, x, number = operands
        compared = made_by(test, "lt", "le", "gt", "ge")
        within = _bound(x)  # x > 1 says the same of x with another bound
        if not compared or not (compared[0] is x or (within and compared[0] is within[1])):
            return None
        if scalar_value(compared[1]) is None or scalar_value(compared[1]) != scalar_value(number):
            return None
        found = ("low" if test.producer is not None and test.producer.primitive in ("lt", "le") else "high", x, number)
    else:
        return None
    return found if scalar_value(found[2]) is not None and scalar_value(x) is None else None


def _sides(equation: Equation) -> tuple[Value, Value, Value] | None:
    """Returns (x, value where x is positive, value where it is negative) of a select by the sign of x; at 0 either may be taken."""
    if equation.primitive != "select_n" or len(equation.inputs) != 3 or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    test, *cases = equation.inputs
    compared = made_by(test, "gt", "ge", "lt", "le")
    if not compared or scalar_value(compared[1]) != 0 or compared[0].shape != equation.outputs[0].shape:
        return None
    negative, positive = cases if test.producer is not None and test.producer.primitive in ("gt", "ge") else cases[::-1]
    return compared[0], positive, negative


def leaky_relu(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Select(x >= 0, x, alpha * x), where x > 0 and the opposite test are as good."""
    if (sides := _sides(equation)) is None or sides[1] is not sides[0]:
        return None
    alpha = _multiple(sides[2], sides[0], reads)
    return None if alpha is None else replaced(equation, "rml.leaky_relu", sides[0], alpha=alpha)


def elu(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Select(x > 0, x, alpha * expm1(x)), also as a sum of both sides as celu has it; times a number it is selu."""
    if (scaled := _scaled_elu(equation, reads)) is not None:
        return scaled
    for x, positive, negative in _elu_sides(equation):
        scale, (number, powers) = _multiple(positive, x, reads), factors(negative, reads)
        exponent = _minus_one(next(iter(powers))) if powers.total() == 1 else None
        if scale is None or scale <= 0 or exponent is None:
            continue
        rate, argument = (1.0, Counter([exponent])) if exponent is x else factors(exponent, reads)
        if rate > 0 and argument.total() == 1 and _lower(next(iter(argument)), x, exactly=equation.primitive == "add"):
            return replaced(equation, "rml.elu", x, alpha=number / scale, scale=scale, input_scale=rate)
    return None


def _scaled_elu(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A number times an elu."""
    for value, number in (equation.inputs, equation.inputs[::-1]) if equation.primitive == "mul" else ():
        inner, factor = value.producer, scalar_value(number)
        if inner is None or inner.primitive != "rml.elu" or factor is None or reads[value] != 1 or value.shape != equation.outputs[0].shape:
            continue
        return replaced(equation, "rml.elu", *inner.inputs, **{**inner.params, "scale": inner.params["scale"] * factor})
    return None


def _multiple(value: Value, x: Value, reads: Counter[Value]) -> float | None:
    """Returns the number that x is multiplied with to give a value."""
    number, powers = (1.0, Counter([x])) if value is x else factors(value, reads)
    return number if powers == Counter([x]) else None


def _elu_sides(equation: Equation) -> Iterator[tuple[Value, Value, Value]]:
    """Yields (x, positive side, negative side): of a select, and of a sum where max(x, 0) is one side."""
    if sides := _sides(equation):
        yield sides
    if equation.primitive == "add":
        for positive, negative in (equation.inputs, equation.inputs[::-1]):
            if (found := _bound(positive)) and found[0] == "low" and scalar_value(found[2]) == 0:
                yield found[1], found[1], negative


def _minus_one(value: Value) -> Value | None:
    """Returns z of expm1(z), also written exp(z) - 1."""
    if operands := made_by(value, "expm1"):
        return operands[0]
    operands = made_by(value, "sub")
    power = made_by(operands[0], "exp") if operands and scalar_value(operands[1]) == 1 else None
    return power[0] if power else None


def _lower(value: Value, x: Value, *, exactly: bool) -> bool:
    """True if a value is x wherever x is negative; if ``exactly``, it must be 0 elsewhere."""
    if value is x:
        return not exactly
    if operands := made_by(value, "select_n"):
        sides = _sides(value.producer) if value.producer is not None and len(operands) == 3 else None
        return sides is not None and sides[0] is x and scalar_value(sides[1]) == 0 and sides[2] is x
    found = _bound(value)
    return found is not None and found[:2] == ("high", x) and scalar_value(found[2]) == 0


def softplus(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The sum max(x, 0) + log1p(exp(-|x|)), and the same as logaddexp writes it, with a select for what it does at infinities."""
    if equation.primitive == "add" and np.dtype(equation.outputs[0].dtype).kind == "f":
        for positive, rest in (equation.inputs, equation.inputs[::-1]):
            found, size = _bound(positive), _exponent_of_size(rest)
            if not found or size is None or found[0] != "low" or scalar_value(found[2]) != 0:
                continue
            x = found[1]
            if (_multiple(size, x, reads) in (1, -1) or _is_difference(size, x)) and x.shape == size.shape:
                return replaced(equation, "rml.softplus", x, beta=1.0, threshold=None)
    if equation.primitive == "select_n" and len(equation.inputs) == 3:
        test, otherwise, chosen = equation.inputs
        compared, operands, total = made_by(test, "ne"), made_by(otherwise, "rml.softplus"), made_by(chosen, "add")
        if compared and operands and total and compared[0] is compared[1]:
            (x,) = operands
            plain = x in total and any(scalar_value(value) == 0 for value in total)
            if plain and (compared[0] is x or _is_difference(compared[0], x)):
                return replaced(equation, "rml.softplus", x, beta=1.0, threshold=None)
    return None


def _exponent_of_size(value: Value) -> Value | None:
    """Returns z of log1p(exp(-|z|))."""
    for primitive in ("log1p", "exp", "neg", "abs"):
        operands = made_by(value, primitive)
        if not operands:
            return None
        (value,) = operands
    return value


def _is_difference(value: Value, x: Value) -> bool:
    """True for 0 - x."""
    operands = made_by(value, "sub")
    return operands is not None and scalar_value(operands[0]) == 0 and operands[1] is x
