"""Recognises and lowers layer norm, RMS norm and batch norm, in the order of operations of flax and in that of Keras.

flax writes ``(x - mean) * (rsqrt(variance + eps) * scale) + bias``, Keras ``x * f + (bias - mean * f)`` with ``f = rsqrt(variance + eps) *
scale``. For a layer norm mean and variance are computed from x; for a batch norm all but x is constant and was computed at export already,
but constants remember what computed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.elementwise import before_broadcast
from exporters.from_jax.matching import made_by, reduced, squared, view
from exporters.from_jax.program import Equation, Value, replaced, scalar_value

__all__ = ["Normalised", "batch_norm", "layer_norm", "normalised", "rms_norm", "variance_kind"]


@dataclass(frozen=True, slots=True)
class Normalised:
    """What ``(x - mean) / sqrt(variance + eps) * scale + bias`` was found to be made of; scale and bias are constants or None."""

    x: Value
    mean: Value
    variance: Value
    eps: float
    scale: Value | None
    bias: Value | None


def normalised(equation: Equation) -> Iterator[Normalised]:
    """Yields the ways to read an equation as the last one of a normalisation."""
    if equation.primitive not in ("div", "mul", "add") or np.dtype(equation.outputs[0].dtype).kind != "f":
        return
    for a, b in (equation.inputs, equation.inputs[::-1]):
        if equation.primitive == "div" and a is not equation.inputs[0]:
            continue
        found = _rearranged(a, b) if equation.primitive == "add" else _centred(a, b)
        if found is None:
            continue
        x, mean, factor, bias = found
        scale, spread = _scaled_root(factor, "sqrt" if equation.primitive == "div" else "rsqrt")
        if spread is not None and x.shape == equation.outputs[0].shape:
            yield Normalised(x, mean, *spread, scale, bias)


def layer_norm(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches the formula over the last axes; a constant scale and bias are joined to it."""
    if (joined := _joined(equation, "rml.layer_norm", reads)) is not None:
        return joined
    for found in normalised(equation):
        x, axes = found.x, reduced(found.mean, "rml.mean", found.x)
        if axes is None or axes != tuple(range(len(x.shape) - len(axes), len(x.shape))):
            continue
        kind = variance_kind(found.variance, x, axes)
        if kind is not None and all(value is None or _fits(value, x, len(axes)) for value in (found.scale, found.bias)):
            params = {"axes": axes, "eps": found.eps, "variance": kind, "scale": found.scale, "bias": found.bias}
            return replaced(equation, "rml.layer_norm", x, **params)
    return None


def rms_norm(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches x * rsqrt(mean(x^2) + eps) and x / sqrt(mean(x^2) + eps) over the last axes; a constant scale is joined to it."""
    if equation.primitive not in ("div", "mul") or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    if (joined := _joined(equation, "rml.rms_norm", reads)) is not None:
        return joined
    for x, factor in (equation.inputs, equation.inputs[::-1])[: 1 if equation.primitive == "div" else 2]:
        scale, spread = _scaled_root(factor, "sqrt" if equation.primitive == "div" else "rsqrt")
        mean = made_by(view(spread[0]).source, "rml.mean") if spread is not None else None
        if spread is None or not mean or squared(mean[0]) is not x or x.shape != equation.outputs[0].shape:
            continue
        axes = reduced(spread[0], "rml.mean", mean[0])
        if axes == tuple(range(len(x.shape) - len(axes or ()), len(x.shape))) and (scale is None or _fits(scale, x, len(axes))):
            return replaced(equation, "rml.rms_norm", x, axes=axes, eps=spread[1], scale=scale)
    return None


def _centred(a: Value, b: Value) -> tuple[Value, Value, Value, None] | None:
    """Returns (x, mean, factor, None) of ``(x - mean) * factor``."""
    operands = made_by(a, "sub")
    return (*operands, b, None) if operands else None  # type: ignore[return-value]


def _rearranged(a: Value, b: Value) -> tuple[Value, Value, Value, Value | None] | None:
    """Returns (x, mean, factor, bias) of ``x * factor + (bias - mean * factor)``."""
    product = made_by(a, "mul")
    if not product:
        return None
    for shift, bias in _with_bias(b):
        turned = made_by(shift, "mul")
        for x, factor in (product, product[::-1]):
            if not turned or factor not in turned:
                continue
            mean = made_by(turned[1] if turned[0] is factor else turned[0], "neg")
            if mean and reduced(mean[0], "rml.mean", x):
                return x, mean[0], factor, bias
    return None


def _with_bias(value: Value) -> Iterator[tuple[Value, Value | None]]:
    """Yields (z, bias) of ``z + bias`` and (value, None)."""
    if operands := made_by(value, "add"):
        yield from ((z, bias) for z, bias in (operands, operands[::-1]) if bias.constant is not None)
    yield value, None


def _joined(equation: Equation, op: str, reads: Counter[Value]) -> list[Equation] | None:
    """Joins a constant scale or bias to the norm it follows."""
    if equation.primitive not in ("mul", "add"):
        return None
    role = "bias" if equation.primitive == "add" else "scale"
    for normed, operand in (equation.inputs, equation.inputs[::-1]):
        norm = normed.producer
        if norm is None or norm.primitive != op or reads[normed] != 1 or operand.constant is None:
            continue
        params, x = dict(norm.params), norm.inputs[0]
        free = params.get(role, False) is None and (role == "bias" or params.get("bias") is None)
        if free and equation.outputs[0].shape == x.shape and _fits(operand, x, len(params["axes"])):
            return replaced(equation, op, x, **params | {role: operand})
    return None


def _fits(operand: Value, x: Value, axes: int) -> bool:
    """True if a constant varies along the last ``axes`` axes of x at most."""
    lead = max(len(operand.shape) - axes, 0)
    return operand.size == 1 or (operand.shape[lead:] == x.shape[-axes:] and set(operand.shape[:lead]) <= {1})


def _scaled_root(value: Value, root: str) -> tuple[Value | None, tuple[Value, float] | None]:
    """Returns (scale, (z, eps)) of ``root(z + eps)`` or ``root(z + eps) * scale``, as flax writes it; (None, None) for anything else."""
    for inner, scale in ((value, None), *_with_scale(value)):
        inside = made_by(inner, root)
        total = made_by(inside[0], "add") if inside else None
        for z, number in (total, total[::-1]) if total else ():
            if (eps := scalar_value(number)) is not None:
                return scale, (z, eps)
    return None, None


def _with_scale(value: Value) -> Iterator[tuple[Value, Value]]:
    """Yields (z, scale) of ``z * scale``."""
    if operands := made_by(value, "mul"):
        yield from ((z, scale) for z, scale in (operands, operands[::-1]) if scale.constant is not None)


def variance_kind(value: Value, x: Value, axes: tuple[int, ...]) -> str | None:
    """Returns which formula of x's variance it is: two_pass, mean((x - mean)^2), or fast, max(0, mean(x^2) - mean(x)^2)."""
    if operands := made_by(view(value).source, "rml.mean"):
        centred = squared(operands[0])
        difference = made_by(centred, "sub") if centred is not None else None
        if not difference or difference[0] is not x or reduced(difference[1], "rml.mean", x) != axes:
            return None
        return "two_pass" if reduced(value, "rml.mean", operands[0]) == axes else None
    spread = view(value)
    bounded = [operand for operand in made_by(spread.source, "max") or () if scalar_value(operand) != 0]
    difference = made_by(bounded[0], "sub") if len(bounded) == 1 else None
    base = squared(difference[1]) if difference else None
    if difference is None or base is None:
        return None
    squares = made_by(view(difference[0]).source, "rml.mean")
    if not squares or squared(squares[0]) is not x:
        return None
    if len(spread.source.shape) == len(x.shape):
        means = reduced(base, "rml.mean", x), reduced(difference[0], "rml.mean", squares[0])
        return "fast" if means == (axes, axes) and spread.source.shape == value.shape else None
    if not _is_mean(base, x, axes) or not _is_mean(difference[0], squares[0], axes) or len(value.shape) != len(x.shape):
        return None
    kept = [axis for axis in range(len(x.shape)) if axis not in base.producer.params["axes"]]  # type: ignore[union-attr]
    wanted = tuple(kept.index(axis) if axis in kept and x.shape[axis] != 1 else None for axis in range(len(x.shape)))
    return "fast" if spread.axes == wanted else None


def _is_mean(value: Value, x: Value, axes: tuple[int, ...]) -> bool:
    """True if a value is the mean of x along these axes, and along others of size 1."""
    operands = made_by(value, "rml.mean")
    if not operands or operands[0] is not x or value.producer is None:
        return False
    return tuple(sorted(axis for axis in value.producer.params["axes"] if x.shape[axis] != 1)) == axes


@TABLE.lowers("rml.layer_norm", "rml.rms_norm")
def _norm(ctx: Context, eqn: Equation) -> str:
    x, params = eqn.inputs[0], dict(eqn.params)
    affine = [params.pop(role) for role in ("scale", "bias") if role in params]
    shape = x.shape[params["axes"][0] :]
    operands = [None if value is None else _vector(ctx, value, shape) for value in affine]
    return ctx.add(eqn.primitive.removeprefix("rml."), x, *operands, **params)


def _vector(ctx: Context, value: Value, shape: tuple[int, ...]) -> str:
    """Returns a constant scale or bias in the shape of the normalised axes."""
    array = np.broadcast_to(value.array().reshape(value.shape[-len(shape) :] if value.size > 1 else ()), shape)
    return ctx.constant(array, of=value, form=f"{shape}")


def batch_norm(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches both orders of operations where everything but x is constant and varies along one axis of x."""
    if equation.primitive != "add" or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    for product, shift in (equation.inputs, equation.inputs[::-1]):
        operands = made_by(product, "mul")
        if not operands or shift.constant is None or reads[product] != 1:
            continue
        shift = before_broadcast(shift)
        for centred, factor in (operands, operands[::-1]):
            if centred.constant is not None or factor.constant is None:
                continue
            factor = before_broadcast(factor)
            if (parts := _parts(factor)) is None:
                continue
            scale, variance, eps = parts
            for x, mean, bias in _means(centred, factor, shift, reads):
                axis = _channel_axis(x, (bias, mean, variance, *([] if scale is None else [scale])))
                if axis is not None and x.shape == equation.outputs[0].shape:
                    statistics = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
                    return replaced(equation, "rml.batch_norm", x, axis=axis, eps=eps, **statistics)
    return None


def _means(centred: Value, factor: Value, shift: Value, reads: Counter[Value]) -> Iterator[tuple[Value, Value, Value]]:
    """Yields (x, mean, bias) of ``(x - mean) * factor + bias`` and of ``x * factor + (bias - mean * factor)``."""
    if (operands := made_by(centred, "sub")) and operands[1].constant is not None and reads[centred] == 1:
        yield operands[0], before_broadcast(operands[1]), shift
    for product, bias in (_made_of(shift, "add"), _made_of(shift, "add")[::-1]) if _made_of(shift, "add") else ():
        turned = _made_of(product, "mul")
        if factor in turned:
            mean = _made_of(turned[1] if turned[0] is factor else turned[0], "neg")
            yield from ((centred, value, bias) for value in mean)


def _parts(factor: Value) -> tuple[Value | None, Value, float] | None:
    """Returns (scale, variance, eps) of a constant ``rsqrt(variance + eps) * scale``, the scale None if there is none."""
    pairs: list[tuple[Value, Value | None]] = [(factor, None)]
    if product := _made_of(factor, "mul"):
        pairs = [(product[0], product[1]), (product[1], product[0])]
    for root, scale in pairs:
        total = _made_of(root, "rsqrt")
        sums = _made_of(total[0], "add") if total else ()
        if sums and (eps := scalar_value(sums[1])) is not None:
            return scale, sums[0], eps
    return None


def _made_of(value: Value, primitive: str) -> tuple[Value, ...]:
    """Returns the operands of what computed a constant, empty unless that is ``primitive``."""
    producer = value.producer
    return producer.inputs if producer is not None and producer.primitive == primitive else ()


def _channel_axis(x: Value, values: tuple[Value, ...]) -> int | None:
    """Returns the one axis of x along which all the constants vary."""
    axes = {axis - len(value.shape) for value in values for axis, size in enumerate(value.shape) if size != 1}
    if len(axes) != 1 or any(value.size not in (1, x.shape[axis]) for value in values for axis in axes if -axis <= len(x.shape)):
        return None
    (axis,) = axes
    return len(x.shape) + axis


@TABLE.lowers("rml.batch_norm")
def _batch_norm(ctx: Context, eqn: Equation) -> str:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    vectors = []
    for role in ("scale", "bias", "mean", "variance"):
        value = eqn.params[role]
        if value is None:
            vectors.append(ctx.constant(np.ones(x.shape[axis], x.dtype)))
        else:
            array = np.broadcast_to(value.array().reshape(-1), (x.shape[axis],))
            vectors.append(ctx.constant(array, of=value, form="channels"))
    return ctx.add("batch_norm", x, *vectors, eps=eqn.params["eps"], axis=axis)
