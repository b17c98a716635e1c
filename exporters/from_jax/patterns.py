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

from exporters.from_jax.elementwise import before_broadcast, scalar_value
from exporters.from_jax.matching import factors, made_by, near, reduced, spread, squared
from exporters.from_jax.program import Equation, Program, Value, live

__all__ = ["recognise"]


def recognise(program: Program) -> Program:
    """Returns the program with the formulas it holds as single equations."""
    reads = program.reads()
    equations: list[Equation] = []
    for equation in program.equations:
        equation.bodies = tuple(map(recognise, equation.bodies))
        equations += next((found for rule in _RULES if (found := rule(equation, reads))), [equation])
    return live(Program(program.inputs, program.outputs, equations))


def _replace(equation: Equation, op: str, *inputs: Value, **params: object) -> list[Equation]:
    made = Equation(op, inputs, equation.outputs, params, equation.where)
    for output in equation.outputs:
        output.producer = made
    return [made]


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
            return _replace(equation, "rml.silu", x)
        if number == 0.5 and (approximate := _gelu_gate(gate, x, reads)):
            return _replace(equation, "rml.gelu", x, approximate=approximate)
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
    return _replace(equation, "rml.leaky_relu", chosen, alpha=number)


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
        return _replace(equation, "rml.mean", operands[0], axes=axes)
    mean = Value(summed.shape, summed.dtype)
    first = Equation("", (), (mean,), {}, equation.where)
    return _replace(first, "rml.mean", operands[0], axes=axes) + _replace(equation, "broadcast_in_dim", mean, **repeat.params)


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
        return _replace(equation, "rml.avg_pool", operands[0], **params, **divisor_attrs)
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
    return _replace(equation, "rml.avg_pool", operands[0], **params, divisor="valid", divisor_value=None)


def _shifted(value: Value) -> tuple[Value, int] | None:
    """Returns (x, axis) of ``x - max(x)`` along one axis."""
    operands = made_by(value, "sub")
    largest = reduced(operands[1], "reduce_max") if operands else None
    return (largest[0], largest[1][0]) if operands and largest and largest[0] is operands[0] and len(largest[1]) == 1 else None


def _softmax(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The formula exp(s) / sum(exp(s)) with s = x - max(x)."""
    if equation.primitive != "div":
        return None
    powers, divisor = equation.inputs
    exponent, total = made_by(powers, "exp"), reduced(divisor, "reduce_sum")
    shifted = _shifted(exponent[0]) if exponent else None
    if not shifted or not total or total[0] is not powers or total[1] != shifted[1:]:
        return None
    return _replace(equation, "rml.softmax", shifted[0], axis=shifted[1])


def _log_softmax(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """The formula s - log(sum(exp(s))) with s = x - max(x)."""
    if equation.primitive != "sub" or not (shifted := _shifted(equation.inputs[0])):
        return None
    logarithm = made_by(equation.inputs[1], "log")
    total = reduced(logarithm[0], "reduce_sum") if logarithm else None
    exponent = made_by(total[0], "exp") if total else None
    if not total or not exponent or exponent[0] is not equation.inputs[0] or total[1] != shifted[1:]:
        return None
    return _replace(equation, "rml.log_softmax", shifted[0], axis=shifted[1])


def _layer_norm(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """(x - mean) * rsqrt(variance + eps) over the last axes, or divided by the square root; then a constant scale and bias, joined on."""
    if equation.primitive not in ("div", "mul", "add") or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    for a, b in (equation.inputs, equation.inputs[::-1]):
        if (joined := _affine(equation, a, b, reads)) is not None:
            return joined
        centred = made_by(a, "sub")
        if equation.primitive == "add" or not centred or (equation.primitive == "div" and b is not equation.inputs[1]):
            continue
        mean = reduced(centred[1], "rml.mean")
        if not mean or mean[0] is not centred[0]:
            continue
        x, axes = mean
        scale, root = _scaled_root(b, "sqrt" if equation.primitive == "div" else "rsqrt")
        variance = made_by(root, "add") if root is not None else None
        eps = scalar_value(variance[1]) if variance else None
        kind = _variance(variance[0], x, axes) if variance else None
        if kind is None or eps is None or axes != tuple(range(len(x.shape) - len(axes), len(x.shape))):
            continue
        if scale is not None and not _fits(scale, x, len(axes)):
            continue
        return _replace(equation, "rml.layer_norm", x, axes=axes, eps=eps, variance=kind, scale=scale, bias=None)
    return None


def _affine(equation: Equation, normed: Value, operand: Value, reads: Counter[Value]) -> list[Equation] | None:
    """Joins a scale or a bias to the layer norm it follows."""
    norm = normed.producer
    if norm is None or norm.primitive != "rml.layer_norm" or reads[normed] != 1 or operand.constant is None:
        return None
    params, x = dict(norm.params), norm.inputs[0]
    free = params["bias"] is None and (equation.primitive == "add" or (equation.primitive == "mul" and params["scale"] is None))
    if not free or equation.outputs[0].shape != x.shape or not _fits(operand, x, len(params["axes"])):
        return None
    return _replace(equation, "rml.layer_norm", x, **params | {"bias" if equation.primitive == "add" else "scale": operand})


def _fits(operand: Value, x: Value, axes: int) -> bool:
    """True if a constant varies along the last ``axes`` axes of x at most."""
    lead = max(len(operand.shape) - axes, 0)
    return operand.size == 1 or (operand.shape[lead:] == x.shape[-axes:] and set(operand.shape[:lead]) <= {1})


def _scaled_root(value: Value, root: str) -> tuple[Value | None, Value | None]:
    """Returns (scale, z) of ``root(z)`` or ``root(z) * scale``, as flax writes it; (None, None) for anything else."""
    if operands := made_by(value, root):
        return None, operands[0]
    if operands := made_by(value, "mul"):
        for inner, scale in (operands, operands[::-1]):
            if scale.constant is not None and (inside := made_by(inner, root)):
                return scale, inside[0]
    return None, None


def _variance(value: Value, x: Value, axes: tuple[int, ...]) -> str | None:
    """Returns which formula of x's variance it is: two_pass, mean((x - mean)^2), or fast, max(0, mean(x^2) - mean(x)^2)."""
    source = spread(value)
    kept = source is None
    core = source[0] if source else value
    if source and source[1] != axes:
        return None
    if (operands := made_by(core, "rml.mean")) and not kept:
        assert core.producer is not None
        centred = squared(operands[0])
        difference = made_by(centred, "sub") if centred else None
        mean = reduced(difference[1], "rml.mean") if difference else None
        right = tuple(sorted(core.producer.params["axes"])) == axes and difference and difference[0] is x and mean == (x, axes)
        return "two_pass" if right else None
    bounded = [operand for operand in made_by(core, "max") or () if scalar_value(operand) != 0]
    difference = made_by(bounded[0], "sub") if len(bounded) == 1 else None
    if not difference:
        return None
    base = squared(difference[1])
    if base is None or _mean_of(base, axes, kept) is not x:
        return None
    squares = _mean_of(difference[0], axes, kept)
    return "fast" if squares is not None and squared(squares) is x else None


def _mean_of(value: Value, axes: tuple[int, ...], kept: bool) -> Value | None:
    """Returns x if ``value`` is the mean of x over ``axes``; ``kept``: spread along them again."""
    if kept:
        mean = reduced(value, "rml.mean")
        return mean[0] if mean and mean[1] == axes else None
    operands = made_by(value, "rml.mean")
    return operands[0] if operands and value.producer and tuple(sorted(value.producer.params["axes"])) == axes else None


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
        return _replace(equation, f"reduce_{kind}", x, axes=equation.params["dimensions"])
    return _replace(equation, f"reduce_window_{kind}", x, **equation.params) if kind in ("sum", "max", "min") else None


def _neutral(primitive: str, dtype: np.dtype) -> float | int | None:
    """Returns the number that a reduction by the primitive begins with."""
    if dtype.kind == "b":
        return {"and": True, "or": False}.get(primitive)
    lowest, highest = (-math.inf, math.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return {"add": 0, "mul": 1, "max": lowest, "min": highest}.get(primitive)


def _biased_product(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A product with a constant matrix to which a constant vector is added."""
    if equation.primitive != "add" or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    for product, bias in (equation.inputs, equation.inputs[::-1]):
        operands, vector = made_by(product, "dot_general"), before_broadcast(bias)
        if not operands or len(operands) > 2 or reads[product] != 1 or vector.constant is None:
            continue
        assert product.producer is not None
        (_, contracted), (batch, _) = product.producer.params["dimension_numbers"]
        constant = operands[0].constant is None and operands[1].constant is not None
        matrix = constant and contracted and not batch and len(operands[1].shape) == len(contracted) + 1
        if matrix and product.shape == equation.outputs[0].shape and vector.shape[-1:] == (vector.size,) == product.shape[-1:]:
            return _replace(equation, "dot_general", *operands, vector, **product.producer.params)
    return None


def _wrapping_gather(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """A gather along one axis at ``select(i < 0, i + size, i)``, which is how jnp makes negative indices count from the end."""
    if equation.primitive != "gather" or len(equation.params["dimension_numbers"].start_index_map) != 1:
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
    return _replace(equation, "gather", x, raw, **equation.params, wrap_negative=True)


Rule = Callable[[Equation, "Counter[Value]"], "list[Equation] | None"]
_RULES: tuple[Rule, ...] = (
    _plain_reduction,
    _mean,
    _average_pool,
    _softmax,
    _log_softmax,
    _activation,
    _leaky_relu,
    _layer_norm,
    _biased_product,
    _wrapping_gather,
)
