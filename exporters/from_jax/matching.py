"""What the rules of :mod:`exporters.from_jax.patterns` ask of a value: what computes it, of which factors, along which axes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from exporters.from_jax.program import Equation, Value, replaced, scalar_value

__all__ = ["View", "factors", "made_by", "near", "rearranged", "reduced", "squared", "view"]

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


@dataclass(frozen=True, slots=True)
class View:
    """A value as a rearrangement of another one.

    Attributes:
        source: that other value.
        axes: for every axis of the value the axis of ``source`` that it runs along; None where its size is 1 or elements repeat.
    """

    source: Value
    axes: tuple[int | None, ...]


def view(value: Value, *, repeats: bool = True) -> View:
    """Looks through transposes, axes of size 1 put in or taken out, and broadcasts (only without repetition, if not ``repeats``)."""
    source = value
    axes: list[int | None] = [None if size == 1 else axis for axis, size in enumerate(value.shape)]
    while operands := made_by(source, "broadcast_in_dim", "transpose", "reshape", "squeeze"):
        inner = operands[0]
        steps = _steps(source, inner)
        if steps is None or (not repeats and source.size != inner.size):
            break
        source, axes = inner, [None if axis is None else steps[axis] for axis in axes]
    return View(source, tuple(axes))


def _steps(value: Value, inner: Value) -> list[int | None] | None:
    """Returns for every axis of ``value`` the axis of ``inner``, which it was made of, that it runs along; None for no such view."""
    assert value.producer is not None
    params = value.producer.params
    match value.producer.primitive:
        case "transpose":
            found: list[int | None] = [int(axis) for axis in params["permutation"]]
        case "broadcast_in_dim":
            found = [None] * len(value.shape)
            for axis, target in enumerate(params["broadcast_dimensions"]):
                found[int(target)] = axis
        case _:
            outer, kept = ([axis for axis, size in enumerate(v.shape) if size != 1] for v in (value, inner))
            if [value.shape[axis] for axis in outer] != [inner.shape[axis] for axis in kept]:
                return None
            found = [None] * len(value.shape)
            for axis, source in zip(outer, kept, strict=True):
                found[axis] = source
    return [None if axis is None or inner.shape[axis] == 1 else axis for axis in found]


def rearranged(equation: Equation, seen: View) -> list[Equation]:
    """Returns the equations, a transpose and a reshape at most, that define the output of ``equation`` as this view, without repetition."""
    (output,), source = equation.outputs, seen.source
    moved = [axis for axis in seen.axes if axis is not None]
    spare = iter(axis for axis in range(len(source.shape)) if axis not in moved)
    if moved == sorted(moved):
        return replaced(equation, "reshape", source)
    if len(seen.axes) == len(source.shape):
        return replaced(equation, "transpose", source, permutation=tuple(next(spare) if axis is None else axis for axis in seen.axes))
    perm = (*moved, *spare)
    turned = Value(tuple(source.shape[axis] for axis in perm), output.dtype)
    first = Equation("", (), (turned,), {}, equation.where)
    return replaced(first, "transpose", source, permutation=perm) + replaced(equation, "reshape", turned)


def reduced(value: Value, primitive: str, x: Value) -> tuple[int, ...] | None:
    """Returns the axes of x along which ``value``, which broadcasts against x, holds x reduced by ``primitive``; None if it does not."""
    outer, mine = view(value), view(x, repeats=False)
    operands = made_by(outer.source, primitive)
    if not operands or len(value.shape) != len(x.shape):
        return None
    assert outer.source.producer is not None
    taken = {int(axis) for axis in outer.source.producer.params["axes"]}
    whole = view(operands[0], repeats=False)
    if whole.source is not mine.source:
        return None
    kept = [root for axis, root in enumerate(whole.axes) if axis not in taken]
    roots = {whole.axes[axis] for axis in taken} - {None}
    axes = []
    for axis, root in enumerate(mine.axes):
        through = outer.axes[axis]
        if root is not None and root in roots and through is None:
            axes.append(axis)
        elif (None if through is None else kept[through]) != root:
            return None
    return tuple(axes) if axes and len(axes) == len(roots) else None


def squared(value: Value) -> Value | None:
    """Returns z of z * z."""
    if operands := made_by(value, "square"):
        return operands[0]
    if operands := made_by(value, "integer_pow"):
        return operands[0] if value.producer and value.producer.params["y"] == 2 else None
    operands = made_by(value, "mul")
    return operands[0] if operands and operands[0] is operands[1] else None
