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

from exporters.from_jax.activations import activation, bounded, elu, hard_sigmoid, leaky_relu, softplus
from exporters.from_jax.attention import attention
from exporters.from_jax.elementwise import before_broadcast
from exporters.from_jax.group_norm import group_norm
from exporters.from_jax.indexing import reads_one_axis
from exporters.from_jax.matching import View, made_by, near, rearranged, reduced, view
from exporters.from_jax.normalisation import batch_norm, layer_norm, rms_norm
from exporters.from_jax.program import Equation, Program, Value, live, replaced, scalar_value
from exporters.from_jax.recurrent import recurrent

__all__ = ["recognise"]


def recognise(program: Program) -> Program:
    """Returns the program with the formulas it holds as single equations."""
    reads = program.reads()
    equations: list[Equation] = []
    for equation in program.equations:
        equation.bodies = tuple(map(recognise, equation.bodies))
        equations += next((found for rule in _RULES if (found := rule(equation, reads))), [equation])
    return live(Program(program.inputs, program.outputs, equations))


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


def _turned_back(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Axes turned round twice."""
    if equation.primitive != "rev":
        return None
    seen = view(equation.inputs[0], repeats=False)
    inner = made_by(seen.source, "rev")
    if not inner or seen.source.producer is None:
        return None
    turned = {seen.axes[axis] for axis in equation.params["dimensions"]}
    return rearranged(equation, View(inner[0], seen.axes)) if turned == {*seen.source.producer.params["dimensions"]} else None


def _one_view(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Transposes, and reshapes that only move axes of size 1, one after the other: einsum leaves chains of them."""
    moving = ("broadcast_in_dim", "reshape", "squeeze", "transpose")
    if equation.primitive not in moving or not made_by(equation.inputs[0], *moving):
        return None
    seen = view(equation.outputs[0], repeats=False)
    if seen.source not in (equation.outputs[0], equation.inputs[0]):
        return rearranged(equation, seen)
    inner = made_by(equation.inputs[0], "reshape")  # an axis cut in parts that are joined again
    cancels = inner and equation.primitive == "reshape" and inner[0].shape == equation.outputs[0].shape
    return replaced(equation, "reshape", inner[0]) if inner and cancels else None


Rule = Callable[[Equation, "Counter[Value]"], "list[Equation] | None"]
_RULES: tuple[Rule, ...] = (
    _one_view,
    _turned_back,
    _mean,
    _average_pool,
    _softmax,
    _log_softmax,
    activation,
    bounded,
    hard_sigmoid,
    leaky_relu,
    elu,
    softplus,
    layer_norm,
    rms_norm,
    group_norm,
    batch_norm,
    attention,
    recurrent,
    _biased_product,
    _wrapping_gather,
)
