"""Recognises and lowers group norm and instance norm.

The statistics of a group are means over all axes but the batch and the groups. Keras cuts the channels of x into groups, normalises, and
joins them again; flax spreads the statistics over the channels and normalises x itself; an instance norm needs no cutting.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.matching import made_by, reduced, view
from exporters.from_jax.normalisation import Normalised, normalised, variance_kind
from exporters.from_jax.program import Equation, Value, replaced

__all__ = ["group_norm"]


def group_norm(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches the formula where one axis beside the batch axis keeps its own statistics; a constant scale and bias are joined to it."""
    if (joined := _joined(equation, reads)) is not None:
        return joined
    for found in normalised(equation):
        if (parts := _parts(found)) is None:
            continue
        whole, axis, groups = parts
        split = whole is not found.x and whole.shape != found.x.shape
        target = tuple(size if at == axis or (split and at == axis + 1) else 1 for at, size in enumerate(found.x.shape))
        vectors = {"scale": found.scale, "bias": found.bias}
        if not all(value is None or _fits(value, target) for value in vectors.values()):
            continue
        params = {role: None if value is None else (value, target) for role, value in vectors.items()}
        y = Value(whole.shape, whole.dtype) if split else equation.outputs[0]
        made = replaced(
            Equation("", (), (y,), {}, equation.where), "rml.group_norm", whole, groups=groups, axis=axis, eps=found.eps, **params
        )
        return made + replaced(equation, "reshape", y) if split else made
    return None


def _parts(found: Normalised) -> tuple[Value, int, int] | None:
    """Returns (x before its channels were cut, axis of the channels, number of groups)."""
    x, mean, variance, cut = found.x, found.mean, found.variance, found.x
    axis = None
    statistics = [_per_group(value) for value in (mean, variance)]
    source = made_by(statistics[0], "rml.mean") if statistics[0] is not None else None
    if source and statistics[1] is not None and made_by(source[0], "reshape") == (x,):  # flax: only the statistics know of the groups
        cut, axis = source[0], next((at for at, size in enumerate(mean.shape) if at and size != 1), None)
        spread = tuple(size if at in (0, axis) else 1 for at, size in enumerate(x.shape))
        if axis is None or len(cut.shape) != len(x.shape) + 1 or mean.shape != spread or variance.shape != spread:
            return None
        mean, variance = (_aligned(value, cut, axis) for value in statistics if value is not None)
    axes = reduced(mean, "rml.mean", cut)
    if axes is None or 0 in axes or variance_kind(variance, cut, axes) is None:
        return None
    kept = [at for at, size in enumerate(cut.shape) if at and at not in axes and size != 1]
    whole = made_by(cut, "reshape")
    for at in [axis] if axis is not None else range(1, len(cut.shape) - 1) if whole else ():
        joined = (*cut.shape[:at], cut.shape[at] * cut.shape[at + 1], *cut.shape[at + 2 :])
        if whole and whole[0].shape == joined and kept == ([at] if cut.shape[at] != 1 else []):
            return whole[0], at, cut.shape[at]
    return (cut, kept[0], cut.shape[kept[0]]) if len(kept) == 1 and cut is x else None


def _per_group(value: Value) -> Value | None:
    """Returns the statistics [batch, groups] that a value repeats for each channel of its group."""
    seen = view(value).source
    spread = made_by(seen, "reshape")
    source = made_by(spread[0], "broadcast_in_dim") if spread else None
    if spread and source and spread[0].producer is not None and len(spread[0].shape) == 3:
        repeats = tuple(spread[0].producer.params["broadcast_dimensions"]) == (0, 1) and spread[0].shape[:2] == source[0].shape
        return source[0] if repeats else None
    return seen if len(seen.shape) == 2 else None  # one group, or one channel in each


def _aligned(statistics: Value, cut: Value, axis: int) -> Value:
    """Returns statistics [batch, groups] as they broadcast against x with its channels cut."""
    shape = tuple(statistics.shape[(0, axis).index(at)] if at in (0, axis) else 1 for at in range(len(cut.shape)))
    made = Value(shape, statistics.dtype)
    made.producer = Equation("broadcast_in_dim", (statistics,), (made,), {"shape": shape, "broadcast_dimensions": (0, axis)})
    return made


def _fits(vector: Value, target: tuple[int, ...]) -> bool:
    """True if a constant broadcasts to this shape, that of x with size 1 on all axes but the channels'."""
    aligned = (1,) * (len(target) - len(vector.shape)) + vector.shape
    return len(aligned) == len(target) and all(size in (1, wanted) for size, wanted in zip(aligned, target, strict=True))


def _joined(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Joins a constant scale or bias to the norm it follows."""
    if equation.primitive not in ("mul", "add"):
        return None
    role = "bias" if equation.primitive == "add" else "scale"
    for normed, operand in (equation.inputs, equation.inputs[::-1]):
        value = normed
        while (same := made_by(value, "reshape")) and same[0].shape == value.shape:
            value = same[0]
        norm = value.producer
        if norm is None or norm.primitive != "rml.group_norm" or reads[normed] != 1 or operand.constant is None:
            continue
        x, params = norm.inputs[0], norm.params
        target = tuple(size if at == params["axis"] else 1 for at, size in enumerate(x.shape))
        free = params[role] is None and params["bias"] is None
        if free and equation.outputs[0].shape == x.shape and _fits(operand, target):
            return replaced(equation, "rml.group_norm", x, **{**params, role: (operand, target)})
    return None


@TABLE.lowers("rml.group_norm")
def _group_norm(ctx: Context, eqn: Equation) -> str:
    x, params = eqn.inputs[0], dict(eqn.params)
    vectors: list[str | None] = []
    for role in ("scale", "bias"):
        if (given := params.pop(role)) is None:
            vectors.append(None)
        else:
            value, target = given
            array = np.broadcast_to(value.array(), target).reshape(-1)
            vectors.append(ctx.constant(array, of=value, form=f"channels {array.size}"))
    return str(ctx.add("group_norm", x, *vectors, **params))
