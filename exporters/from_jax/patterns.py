"""Recognises by formula what JAX writes out and the graph has one op for: softmax, gelu, layer_norm, average pooling and more (``_RULES``).

Each rule looks at one equation and at the producers of its operands; where the whole formula is there, it gives the equation of an op named
``rml.*`` in place of the last one. The others stay for whoever else reads them, and go as dead code when nobody does. A formula that
differs in any way stays as it is written: correct, in more nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from exporters.from_jax.attention import attention
from exporters.from_jax.context import scalar_value
from exporters.from_jax.elementwise import before_broadcast
from exporters.from_jax.indexing import reads_one_axis
from exporters.from_jax.matching import factors, made_by, near, rearranged, reduced, view
from exporters.from_jax.normalisation import batch_norm, layer_norm
from exporters.from_jax.program import Equation, Program, Value, live, replaced

__all__ = ["recognise"]


def recognise(program: Program) -> Program:
    """Returns the program with the formulas it holds as single equations."""
    reads = program.reads()
    equations: list[Equation] = []
    for equation in program.equations:
        equation.bodies = tuple(map(recognise, equation.bodies))
        equations += next((found for rule in _RULES if (found := rule(equation, reads))), [equation])
    return live(Program(program.inputs, program.outputs, equations))


def _plus_one(value: Value) -> Value | None:
    """Returns z of ``1 + z``."""
    a, b = made_by(value, "add") or (value, value)
    return next((other for one, other in ((a, b), (b, a)) if one is not other and scalar_value(one) == 1), None)


def _activation(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Silu is x * logistic(x); gelu is x * (1 + erf(x / sqrt 2)) / 2, also with erfc, or with tanh(sqrt(2 / pi) * (x + 0.044715 x^3))."""
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


def _leaky_relu(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Select(x >= 0, x, alpha * x), where x > 0 and the opposite test are as good."""
    if equation.primitive != "select_n" or len(equation.inputs) != 3 or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    test, otherwise, chosen = equation.inputs
    if (operands := made_by(test, "ge", "gt")) is None or operands[0] is not chosen or scalar_value(operands[1]) != 0:
        return None
    number, powers = factors(otherwise, reads)
    if powers != Counter({chosen: 1}) or chosen.shape != equation.outputs[0].shape:
        return None
    return replaced(equation, "rml.leaky_relu", chosen, alpha=number)


def _mean(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The sum over n, and the same with the sum spread along its axes before it is divided."""
    if equation.primitive not in ("div", "mul") or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    total, number = equation.inputs if scalar_value(equation.inputs[0]) is None else equation.inputs[::-1]
    divisor = scalar_value(number)
    if not divisor or (equation.primitive == "div" and number is not equation.inputs[1]):
        return None
    repeat = total.producer if made_by(total, "broadcast_in_dim") else None
    summed = repeat.inputs[0] if repeat else total
    if total.shape != equation.outputs[0].shape or not (operands := made_by(summed, "reduce_sum")):
        return None
    assert summed.producer is not None
    axes = summed.producer.params["axes"]
    count = math.prod(operands[0].shape[axis] for axis in axes)
    if not near(divisor if equation.primitive == "div" else 1 / divisor, count, total.dtype):
        return None
    if repeat is None:
        return replaced(equation, "rml.mean", operands[0], axes=axes)
    mean = Value(summed.shape, summed.dtype)
    first = Equation("", (), (mean,), {}, equation.where)
    return replaced(first, "rml.mean", operands[0], axes=axes) + replaced(equation, "broadcast_in_dim", mean, **repeat.params)


def _average_pool(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A sum over windows divided by a whole number, or by how many elements of x each window holds."""
    if equation.primitive != "div" or not (operands := made_by(equation.inputs[0], "reduce_window_sum")):
        return None
    summed, divisor = equation.inputs
    assert summed.producer is not None
    params, number = summed.producer.params, scalar_value(divisor)
    if summed.shape != equation.outputs[0].shape:
        return None
    if isinstance(number, int | float) and number > 0 and number == int(number):
        whole = number == math.prod(params["window_dimensions"])
        divisor_attrs = {"divisor": "window", "divisor_value": None} if whole else {"divisor": "fixed", "divisor_value": int(number)}
        return replaced(equation, "rml.avg_pool", operands[0], **params, **divisor_attrs)
    counted = divisor.producer
    while counted is not None and counted.primitive == "broadcast_in_dim":
        counted = counted.inputs[0].producer
    if counted is None or counted.primitive != "reduce_window_sum" or counted.inputs[0].constant is None:
        return None
    ones, x = counted.inputs[0], operands[0]
    if len(ones.shape) != len(x.shape):
        return None
    pairs = zip(ones.shape, x.shape, params["window_dimensions"], strict=True)
    if (
        any(size not in (wanted, 1) or (size != wanted and window != 1) for size, wanted, window in pairs)
        or not bool(np.all(ones.array() == 1))
        or dict(counted.params) != dict(params)
    ):
        return None
    return replaced(equation, "rml.avg_pool", operands[0], **params, divisor="valid", divisor_value=None)


def _shifted(value: Value) -> tuple[Value, int] | None:
    """Returns (x, axis) of ``x - max(x)`` along one axis."""
    operands = made_by(value, "sub")
    axes = reduced(operands[1], "reduce_max", operands[0]) if operands else None
    return (operands[0], axes[0]) if operands and axes and len(axes) == 1 else None


def _softmax(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The formula exp(s) / sum(exp(s)) with s = x - max(x)."""
    if equation.primitive != "div":
        return None
    powers, divisor = equation.inputs
    exponent = made_by(powers, "exp")
    shifted = _shifted(exponent[0]) if exponent else None
    if not shifted or reduced(divisor, "reduce_sum", powers) != shifted[1:]:
        return None
    return replaced(equation, "rml.softmax", shifted[0], axis=shifted[1])


def _log_softmax(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The formula s - log(sum(exp(s))) with s = x - max(x)."""
    if equation.primitive != "sub" or not (shifted := _shifted(equation.inputs[0])):
        return None
    logarithm = made_by(equation.inputs[1], "log")
    total = view(logarithm[0]).source if logarithm else None
    powers = made_by(total, "reduce_sum") if total is not None else None
    exponent = made_by(powers[0], "exp") if powers else None
    if not logarithm or not powers or not exponent or exponent[0] is not equation.inputs[0]:
        return None
    if reduced(logarithm[0], "reduce_sum", powers[0]) != shifted[1:]:
        return None
    return replaced(equation, "rml.log_softmax", shifted[0], axis=shifted[1])


def _plain_reduction(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A reduction by a function that is one primitive, from its neutral number: JAX names it itself only where the number is no array."""
    if equation.primitive not in ("reduce", "reduce_window") or len(equation.inputs) != 2 or equation.inputs[1].constant is None:
        return None
    x, start = equation.inputs
    jaxpr = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
    if len(jaxpr.eqns) != 1 or list(jaxpr.eqns[0].outvars) != list(jaxpr.outvars):
        return None
    name, operands = jaxpr.eqns[0].primitive.name, list(jaxpr.eqns[0].invars)
    neutral = _neutral(name, np.dtype(x.dtype))
    if neutral is None or start.array().item() != neutral or list(jaxpr.invars) not in (operands, operands[::-1]):
        return None
    kind = {"add": "sum", "mul": "prod"}.get(name, name)
    if equation.primitive == "reduce":
        return replaced(equation, f"reduce_{kind}", x, axes=equation.params["dimensions"])
    return replaced(equation, f"reduce_window_{kind}", x, **equation.params) if kind in ("sum", "max", "min") else None


def _neutral(primitive: str, dtype: np.dtype) -> float | int | None:
    """Returns the number that a reduction by the primitive begins with."""
    if dtype.kind == "b":
        return {"and": True, "or": False}.get(primitive)
    lowest, highest = (-math.inf, math.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return {"add": 0, "mul": 1, "max": lowest, "min": highest}.get(primitive)


def _biased_product(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A product with a constant matrix to which a constant is added that varies along the matrix's own axes only."""
    if equation.primitive != "add" or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    for product, bias in (equation.inputs, equation.inputs[::-1]):
        operands, vector = made_by(product, "dot_general"), before_broadcast(bias)
        if not operands or len(operands) > 2 or reads[product] != 1 or vector.constant is None:
            continue
        assert product.producer is not None
        (_, contracted), (batch, _) = product.producer.params["dimension_numbers"]
        constant = operands[0].constant is None and operands[1].constant is not None
        if not constant or not contracted or batch or product.shape != equation.outputs[0].shape:
            continue
        width = product.shape[len(product.shape) - len(operands[1].shape) + len(contracted) :]
        if width and vector.shape[-len(width) :] == width and vector.size == math.prod(width):
            return replaced(equation, "dot_general", *operands, vector, **product.producer.params)
    return None


def _wrapping_gather(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A gather along one axis at ``select(i < 0, i + size, i)``, which is how jnp makes negative indices count from the end."""
    if equation.primitive != "gather" or not reads_one_axis(equation):
        return None
    x, indices = equation.inputs
    axis = equation.params["dimension_numbers"].start_index_map[0]
    trailing = made_by(indices, "broadcast_in_dim")
    if not trailing or trailing[0].shape != indices.shape[:-1] or not (cases := made_by(trailing[0], "select_n")) or len(cases) != 3:
        return None
    negative, raw, shifted = cases
    below, plus = made_by(negative, "lt"), made_by(shifted, "add")
    if not below or not plus or below[0] is not raw or plus[0] is not raw or np.dtype(raw.dtype).name not in ("int32", "int64"):
        return None  # the sum of narrower integers may wrap
    if scalar_value(below[1]) != 0 or scalar_value(plus[1]) != x.shape[axis]:
        return None
    return replaced(equation, "gather", x, raw, **equation.params, wrap_negative=True)


def _one_view(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Transposes, and reshapes that only move axes of size 1, one after the other: einsum leaves chains of them."""
    moving = ("broadcast_in_dim", "reshape", "squeeze", "transpose")
    if equation.primitive not in moving or not made_by(equation.inputs[0], *moving):
        return None
    seen = view(equation.outputs[0], repeats=False)
    return rearranged(equation, seen) if seen.source not in (equation.outputs[0], equation.inputs[0]) else None


Rule = Callable[[Equation, "Counter[Value]"], "list[Equation] | None"]
_RULES: tuple[Rule, ...] = (
    _one_view,
    _plain_reduction,
    _mean,
    _average_pool,
    _softmax,
    _log_softmax,
    _activation,
    _leaky_relu,
    layer_norm,
    batch_norm,
    attention,
    _biased_product,
    _wrapping_gather,
)
