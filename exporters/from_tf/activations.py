"""Activation functions that TensorFlow and Keras spell out: gelu, silu, hard sigmoid and swish, celu, elu, leaky relu, log_softmax."""

from __future__ import annotations

import math
from typing import Any

from exporters.from_tf.matching import Pattern, axes_of, is_number, maker, number, orders, other, same
from exporters.from_tf.table import Context, Value

__all__ = [
    "find_celu",
    "find_elu",
    "find_gelu",
    "find_hard_sigmoid",
    "find_hard_swish",
    "find_leaky_relu",
    "find_log_softmax",
    "find_silu",
]


def _lower(ctx: Context, x: Value, *, op: str, **attrs: Any) -> Value:
    return ctx.add(op, x, **attrs)


def _found(op: str, x: Any, **attrs: Any) -> Pattern:
    return Pattern(_lower, {"x": x}, {"op": op, **attrs})


def find_gelu(op: Any) -> Pattern | None:
    """Finds 0.5 * x * erfc(-x * sqrt(1/2)) and 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), as tf.nn.gelu spells them.

    So are 0.5 * x * (1 + erf(x / sqrt 2)) and x * (0.5 * (1 + ...)), as models spell them themselves.
    """
    for a, b in orders(op):
        for x, gate in ((other(a, "Mul", 0.5), b), (a, other(b, "Mul", 0.5)), *_halved(a, b)):
            if x is not None and gate is not None and _is_erf_gate(gate, x):
                return _found("gelu", x, approximate="none")
            if x is not None and gate is not None and _is_tanh_gate(gate, x):
                return _found("gelu", x, approximate="tanh")
    return None


def _halved(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Returns x and the gate of 0.5 * (x * gate)."""
    return list(orders(maker(b, "Mul"))) if is_number(a, 0.5) else []


def _over_root_two(tensor: Any) -> Any:
    """Returns x of x / sqrt(2)."""
    if (x := other(tensor, "Mul", math.sqrt(0.5))) is not None:
        return x
    quotient = maker(tensor, "RealDiv")
    return quotient.inputs[0] if quotient is not None and is_number(quotient.inputs[1], math.sqrt(2)) else None


def _is_erf_gate(gate: Any, x: Any) -> bool:
    erfc, erf = maker(gate, "Erfc"), maker(other(gate, "AddV2", 1.0), "Erf")
    if erf is not None:
        return same(_over_root_two(erf.inputs[0]), x)
    negation = maker(_over_root_two(erfc.inputs[0]), "Neg") if erfc is not None else None
    return negation is not None and same(negation.inputs[0], x)


def _is_tanh_gate(gate: Any, x: Any) -> bool:
    tanh = maker(other(gate, "AddV2", 1.0), "Tanh")
    argument = other(tanh.inputs[0], "Mul", math.sqrt(2 / math.pi)) if tanh is not None else None
    return any(same(linear, x) and _is_cube(other(cubic, "Mul", 0.044715), x) for linear, cubic in orders(maker(argument, "AddV2")))


def _is_cube(tensor: Any, x: Any) -> bool:
    power = maker(tensor, "Pow")
    return power is not None and same(power.inputs[0], x) and is_number(power.inputs[1], 3.0)


def find_silu(op: Any) -> Pattern | None:
    """Finds x * sigmoid(x); tf.nn.silu multiplies by a beta of 1 inside."""
    for x, gate in orders(op):
        sigmoid = maker(gate, "Sigmoid")
        if sigmoid is not None and (same(sigmoid.inputs[0], x) or same(other(sigmoid.inputs[0], "Mul", 1.0), x)):
            return _found("silu", x)
    return None


def _relu6_of_more(tensor: Any) -> Any:
    """Returns x of relu6(x + 3)."""
    relu6 = maker(tensor, "Relu6")
    return other(relu6.inputs[0], "AddV2", 3.0) if relu6 is not None else None


def _over_six(op: Any) -> Any:
    """Returns what an operation divides by 6."""
    if op.type == "RealDiv":
        return op.inputs[0] if is_number(op.inputs[1], 6.0) else None
    return next((rest for constant, rest in orders(op) if is_number(constant, 1 / 6)), None)


def find_hard_sigmoid(op: Any) -> Pattern | None:
    """Finds relu6(x + 3) / 6."""
    x = _relu6_of_more(_over_six(op))
    return None if x is None else _found("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


def find_hard_swish(op: Any) -> Pattern | None:
    """Finds x * (relu6(x + 3) / 6) and (x * relu6(x + 3)) / 6."""
    for x, gate in orders(op) if op.type == "Mul" else ():
        inner = maker(gate, "RealDiv", "Mul")
        if inner is not None and same(_relu6_of_more(_over_six(inner)), x):
            return _found("hard_swish", x)
    for x, gate in orders(maker(_over_six(op), "Mul")):
        if same(_relu6_of_more(gate), x):
            return _found("hard_swish", x)
    return None


def find_celu(op: Any) -> Pattern | None:
    """Finds max(x, 0) + alpha * expm1(min(x, 0) / alpha)."""
    for high, low in orders(op):
        x = _bounded(high, "Maximum") if maker(high, "Maximum") is not None else _relu(high)
        for factor, expm1 in orders(maker(low, "Mul")):
            alpha, power = number(factor), maker(expm1, "Expm1")
            quotient = maker(power.inputs[0], "RealDiv") if power is not None else None
            if x is None or not alpha or quotient is None or not is_number(quotient.inputs[1], alpha):
                continue
            if same(_bounded(quotient.inputs[0], "Minimum"), x):
                return _found("elu", x, alpha=alpha, scale=1.0, input_scale=1 / alpha)
    return None


def _bounded(tensor: Any, kind: str) -> Any:
    """Returns x of Maximum(x, 0) or Minimum(x, 0)."""
    return next((x for x, bound in orders(maker(tensor, kind)) if number(bound) == 0), None)


def _relu(tensor: Any) -> Any:
    relu = maker(tensor, "Relu")
    return relu.inputs[0] if relu is not None else None


def find_elu(op: Any) -> Pattern | None:
    """Finds x > 0 ? elu(x) : alpha * elu(x)."""
    test, high, low = maker(op.inputs[0], "Greater", "GreaterEqual"), maker(op.inputs[1], "Elu"), op.inputs[2]
    if test is None or high is None or number(test.inputs[1]) != 0 or not same(test.inputs[0], high.inputs[0]):
        return None
    for factor, elu in orders(maker(low, "Mul")):
        if same(elu, op.inputs[1]) and (alpha := number(factor)) is not None:
            return _found("elu", high.inputs[0], alpha=alpha, scale=1.0, input_scale=1.0)
    return None


def find_leaky_relu(op: Any) -> Pattern | None:
    """Finds max(x, alpha * x) with alpha above 0 and at most 1, and relu(x) - alpha * relu(-x)."""
    if op.type == "Maximum":
        for x, product in orders(op):
            for factor, scaled in orders(maker(product, "Mul")):
                if same(scaled, x) and (alpha := number(factor)) is not None and 0 < alpha <= 1:
                    return _found("leaky_relu", x, alpha=alpha)
        return None
    x = _relu(op.inputs[0])
    for factor, rest in orders(maker(op.inputs[1], "Mul")):
        negation = maker(_relu(rest), "Neg")
        if x is not None and negation is not None and same(negation.inputs[0], x) and (alpha := number(factor)) is not None:
            return _found("leaky_relu", x, alpha=alpha)
    return None


def find_log_softmax(op: Any) -> Pattern | None:
    """Finds d - log(sum(exp(d))) with d = x - max(x), all along one axis."""
    shifted, log = maker(op.inputs[0], "Sub"), maker(op.inputs[1], "Log")
    total = maker(log.inputs[0], "Sum") if log is not None else None
    power = maker(total.inputs[0], "Exp") if total is not None else None
    largest = maker(shifted.inputs[1], "Max") if shifted is not None else None
    if power is None or largest is None or not same(power.inputs[0], op.inputs[0]) or not same(largest.inputs[0], shifted.inputs[0]):
        return None
    axes = axes_of(total)
    if axes is None or len(axes) != 1 or axes_of(largest) != axes:
        return None
    return _found("log_softmax", shifted.inputs[0], axis=axes[0])
