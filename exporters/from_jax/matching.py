"""What the rules of :mod:`exporters.from_jax.patterns` ask of a value: what computes it, of which factors, along which axes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from exporters.from_jax.elementwise import scalar_value
from exporters.from_jax.program import Value

__all__ = ["factors", "made_by", "near", "reduced", "spread", "squared"]

_MAX_FACTORS = 6


def made_by(value: Value, *primitives: str) -> tuple[Value, ...] | None:
    """Returns the operands of what computes ``value`` at run time, None unless that is one of the primitives."""
    producer = value.producer
    return producer.inputs if producer is not None and value.constant is None and producer.primitive in primitives else None


def near(number: object, wanted: float, dtype: object) -> bool:
    """True if a constant of ``dtype`` is the nearest to ``wanted`` or next to it."""
    eps = 2.0 ** -(8 if np.dtype(dtype).itemsize == 2 else 22)  # type: ignore[call-overload]
    return isinstance(number, int | float) and math.isclose(number, wanted, rel_tol=eps)


def factors(value: Value, reads: Counter[Value]) -> tuple[float, Counter[Value]]:
    """Returns a value as a number times a product of values, each with its power.

    Multiplications, negations, whole powers and divisions by a number are taken apart, but for a value that is read elsewhere too: that one
    is the operand of a formula and not a part of it.
    """
    number, powers, left = 1.0, Counter[Value](), [value]
    while left:
        item = left.pop()
        operands = made_by(item, "mul", "neg", "square", "integer_pow", "div")
        primitive = item.producer.primitive if item.producer else ""
        if (constant := scalar_value(item)) is not None:
            number *= constant
        elif not operands or (item is not value and reads[item] > 1) or len(left) + powers.total() >= _MAX_FACTORS:
            powers[item] += 1
        elif primitive == "mul":
            left += operands
        elif primitive == "neg":
            number, left = -number, [*left, *operands]
        elif primitive == "div" and scalar_value(operands[1]):
            number, left = number / scalar_value(operands[1]), [*left, operands[0]]
        elif (power := _whole_power(item)) is not None:
            left += operands * power
        else:
            powers[item] += 1
    return number, powers


def _whole_power(value: Value) -> int | None:
    if value.producer is None or value.producer.primitive not in ("square", "integer_pow"):
        return None
    power = int(value.producer.params.get("y", 2))
    return power if power in (2, 3) else None


def spread(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """Returns what stands again along its reduced axes, as size 1 or repeated, and which axes these are."""
    if not made_by(value, "broadcast_in_dim"):
        return None
    source, dims = value, tuple(range(len(value.shape)))
    while operands := made_by(source, "broadcast_in_dim"):
        assert source.producer is not None
        dims = tuple(dims[dim] for dim in source.producer.params["broadcast_dimensions"])
        source = operands[0]
    if tuple(value.shape[dim] for dim in dims) != source.shape:
        return None
    return source, tuple(axis for axis in range(len(value.shape)) if axis not in dims)


def reduced(value: Value, primitive: str) -> tuple[Value, tuple[int, ...]] | None:
    """Returns (x, axes) if ``value`` is x reduced over axes and spread along them again, so that it broadcasts against x."""
    source = spread(value)
    operands = made_by(source[0], primitive) if source else None
    if not source or not operands or len(value.shape) != len(operands[0].shape):
        return None
    assert source[0].producer is not None
    axes = tuple(sorted(source[0].producer.params["axes"]))
    return (operands[0], axes) if axes == source[1] else None


def squared(value: Value) -> Value | None:
    """Returns z of z * z."""
    if operands := made_by(value, "square"):
        return operands[0]
    if operands := made_by(value, "integer_pow"):
        return operands[0] if value.producer and value.producer.params["y"] == 2 else None
    operands = made_by(value, "mul")
    return operands[0] if operands and operands[0] is operands[1] else None
