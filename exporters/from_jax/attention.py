"""Recognises and lowers attention: scores from one product, scaled and masked, softmax, a second product with the values.

``jax.nn.dot_product_attention``, flax and Keras write it through einsum, which leaves the axes in orders of its own and puts axes of size 1
between. So every axis gets a label, its position in the scores that softmax sees, and labels are followed through rearranging to the
operands; the lowering lays these out as the op wants them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.matching import View, made_by, rearranged, view
from exporters.from_jax.program import Equation, Value, replaced, scalar_value

__all__ = ["attention"]

_MASKED = -1e9
"""A score replaced by this or less has no weight beside one that is not."""

Labels = tuple[int | str | None, ...]
"""For every axis of a value the axis of the scores that it runs along, ``_DEPTH`` or ``_WIDTH``; None if its size is 1."""

_DEPTH, _WIDTH = "depth", "width"
"""Labels of the axis that queries and keys are multiplied along, and of the values' own axis."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An operand of the attention with the labels of its axes."""

    value: Value
    labels: Labels


@dataclass(slots=True)
class _Scores:
    """What the scores were found to be.

    Attributes:
        product: the dot_general of queries and keys.
        scale: what it is multiplied with; None before a factor was seen.
        softcap: the largest size of a score, which tanh bounds; None if nothing does.
        mask: a bool mask, true where a query may attend (where ``inverted``: may not).
        masked: the score in place of masked ones.
        causal: whether the mask says that keys after the query are hidden; there is no other then.
        bias: what is added.
    """

    product: _Part
    scale: float | None = None
    softcap: float | None = None
    mask: _Part | None = None
    inverted: bool = False
    masked: float = -math.inf
    causal: bool = False
    bias: _Part | None = None


def attention(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches the product of softmax's result and the values."""
    if equation.primitive != "dot_general" or len(equation.inputs) != 2 or np.dtype(equation.outputs[0].dtype).kind != "f":
        return None
    for side in (0, 1):
        probabilities = equation.inputs[side]
        softmax = probabilities.producer
        if softmax is None or softmax.primitive != "rml.softmax" or reads[probabilities] != 1 or probabilities.constant is not None:
            continue
        scores = _peel(softmax.inputs[0], reads)
        if scores is not None and (made := _match(equation, side, scores, int(softmax.params["axis"]))):
            return made
    return None


def _peel(value: Value, reads: Counter[Value]) -> _Scores | None:
    """Takes mask, bias and scale off the scores, from the outside in; None if what is left is no product."""
    found = _Scores(_Part(value, _labels(value)))
    while (part := _through(found.product)).value.constant is None and reads[part.value] <= 2:  # softmax's formula reads it twice
        producer, value = part.value.producer, part.value
        primitive, inputs = (producer.primitive, producer.inputs) if producer is not None else ("", ())
        if primitive == "dot_general" and len(inputs) == 2:
            found.product = part
            return found
        inner, number = (
            (inputs[::-1] if primitive == "mul" and scalar_value(inputs[1]) is None else inputs) if len(inputs) == 2 else (value, value)
        )
        if primitive in ("mul", "div") and (factor := scalar_value(number)):
            found.scale = (found.scale or 1.0) * (factor if primitive == "mul" else 1 / factor)
        elif primitive == "tanh" and found.softcap is None and (found.scale or 1.0) > 0:
            inner, found.softcap = inputs[0], found.scale or 1.0
            found.scale = found.softcap  # what tanh is given is divided by it
        elif found.bias is not None or found.scale is not None:
            return None  # only a factor may stand inside of these
        elif primitive == "select_n" and len(inputs) == 3 and found.mask is None:
            fills = [scalar_value(case) for case in inputs[1:]]
            hidden = next((index for index, fill in enumerate(fills) if fill is not None and fill <= _MASKED), None)
            if hidden is None:
                return None
            found.mask, found.inverted, found.masked = _Part(inputs[0], part.labels), hidden == 1, float(fills[hidden])
            inner = inputs[2 - hidden]
        elif primitive == "add":
            inner, bias = inputs if _leads_to_product(inputs[0]) else inputs[::-1]
            found.bias = _Part(bias, _fitting(bias, part.labels))
        else:
            return None
        if inner.shape != value.shape:
            return None
        found.product = _Part(inner, part.labels)
    return None


def _labels(value: Value) -> Labels:
    return tuple(None if size == 1 else axis for axis, size in enumerate(value.shape))


def _fitting(value: Value, labels: Labels) -> Labels:
    """Returns the labels of an operand that broadcasts against a value of the same rank with ``labels``."""
    return tuple(None if size == 1 else label for size, label in zip(value.shape, labels, strict=True)) if value.shape else ()


def _through(part: _Part) -> _Part:
    """Looks through what moves axes or repeats elements."""
    seen = view(part.value)
    source: list[int | str | None] = [None] * len(seen.source.shape)
    for axis, inner in enumerate(seen.axes):
        if inner is not None:
            source[inner] = part.labels[axis]
    return _Part(seen.source, tuple(source))


def _leads_to_product(value: Value) -> bool:
    while operands := made_by(value, "transpose", "reshape", "squeeze", "mul", "div"):
        value = operands[1] if len(operands) == 2 and scalar_value(operands[0]) is not None else operands[0]
    return made_by(value, "dot_general") is not None


def _operands(product: _Part) -> list[_Part]:
    """Returns the operands of a dot_general with the labels that those of its result give them."""
    assert product.value.producer is not None
    contracted, batched = product.value.producer.params["dimension_numbers"]
    inputs = product.value.producer.inputs
    labels: list[list[int | str | None]] = [[None] * len(operand.shape) for operand in inputs]
    given = iter(product.labels)
    for pair in zip(*batched, strict=True):
        labels[0][pair[0]] = labels[1][pair[1]] = next(given)
    for side in (0, 1):
        taken = {*contracted[side], *batched[side]}
        for axis in range(len(inputs[side].shape)):
            if axis not in taken:
                labels[side][axis] = next(given)
        for axis in contracted[side]:
            labels[side][axis] = _DEPTH
    return [_Part(operand, tuple(names)) for operand, names in zip(inputs, labels, strict=True)]


def _numbers(part: _Part) -> set[int]:
    return {label for label in part.labels if isinstance(label, int)}


def _match(equation: Equation, side: int, scores: _Scores, key: int) -> list[Equation] | None:
    """Returns the attention equation if both products have the axes of attention. ``key``: the axis that softmax is taken along."""
    weights, values = equation.inputs[side], equation.inputs[1 - side]
    contracted, batched = equation.params["dimension_numbers"]
    q, k = _operands(scores.product)
    if key in _numbers(q):
        q, k = k, q
    batch = sorted(_numbers(q) & _numbers(k))
    if [*contracted[side]] != [key] or weights.shape[key] == 1 or q.labels.count(_DEPTH) != 1:
        return None
    if _numbers(k) != {*batch, key} or key in _numbers(q):
        return None
    labels: list[int | str | None] = [None if size == 1 else _WIDTH for size in values.shape]
    labels[contracted[1 - side][0]] = key
    for mine, other in zip(batched[side], batched[1 - side], strict=True):
        labels[other] = None if values.shape[other] == 1 else int(mine)
    v = _Part(values, tuple(labels))
    if _numbers(v) != {*batch, key} or labels.count(_WIDTH) > 1:
        return None
    order = [*(int(axis) for axis in batched[side])]
    free = [axis for axis in range(len(weights.shape)) if axis not in (*order, key)]
    own = [labels[axis] for axis in range(len(values.shape)) if axis not in (*batched[1 - side], *contracted[1 - side])]
    result = [*order, *free, *own] if side == 0 else [*order, *own, *free]
    q, scale = _unscaled(_through(q), scores.scale or 1.0)
    scores.mask = scores.mask and _bare(scores.mask)
    scores.bias = scores.bias and _through(scores.bias)
    k, v = _through(k), _through(v)
    rows = sorted(_numbers(q) - set(batch))
    groups = weights.shape[rows[-2]] if len(rows) > 1 else 1
    if len(rows) < 2 and (shared := _shared_heads(k, v, batch, weights.shape)):
        k, v, heads, groups = shared
        batch = [*(label for label in batch if label != heads), heads]
    leading, query = [*batch, *rows[:-1]], rows[-1] if rows else None
    if scores.mask is not None and scores.bias is None and not scores.inverted and _is_causal(scores.mask, query, key):
        scores.mask, scores.causal = None, True
    sizes = {label: size for part in (k, v, q) for label, size in zip(part.labels, part.value.shape, strict=True)}
    wanted = [*leading, query, _WIDTH]
    y = Value(tuple(1 if label is None else sizes.get(label, 1) for label in wanted), equation.outputs[0].dtype)
    made = replaced(
        Equation("", (), (y,), {}, equation.where),
        "rml.attention",
        *(part.value for part in (q, k, v, scores.mask, scores.bias) if part is not None),
        parts=(q, k, v),
        scores=scores,
        scale=scale,
        leading=leading,
        query=query,
        key=key,
        groups=groups,
    )
    axes = tuple(wanted.index(label) if size != 1 else None for label, size in zip(result, equation.outputs[0].shape, strict=True))
    return made + rearranged(equation, View(y, axes))


def _shared_heads(k: _Part, v: _Part, batch: Sequence[int], sizes: Sequence[int]) -> tuple[_Part, _Part, int, int] | None:
    """Returns (keys, values, label of the heads, repetitions) where the heads of both are repeated: head h reads head h // repetitions."""
    single = [_unrepeated(part) for part in (k, v)]
    if single[0] is not None and single[1] is not None and single[0][1:] == single[1][1:]:
        return single[0][0], single[1][0], *single[0][1:]
    everywhere = [label for label in batch if label not in _numbers(k) | _numbers(v)]  # one head for all
    return (k, v, everywhere[-1], sizes[everywhere[-1]]) if everywhere else None


def _unrepeated(part: _Part) -> tuple[_Part, int, int] | None:
    """Returns (value, label, repetitions) of a value whose elements along one axis stand several times one after the other."""
    wide = made_by(part.value, "reshape")
    seen = view(wide[0]) if wide else None
    for axis, label in enumerate(part.labels) if wide and seen else ():
        assert wide is not None and seen is not None
        shape = wide[0].shape
        cut = (*shape[:axis], math.prod(shape[axis : axis + 2]), *shape[axis + 2 :])
        if cut != part.value.shape or len(shape) != len(cut) + 1 or not isinstance(label, int):
            continue
        labels: list[int | str | None] = [None] * len(seen.source.shape)
        for at, source in enumerate(seen.axes):
            if source is not None:
                labels[source] = part.labels[at if at <= axis else at - 1]
        missing = [at for at, source in enumerate(seen.axes) if source is None and shape[at] != 1]
        if missing == [axis + 1]:
            return _Part(seen.source, tuple(labels)), label, shape[axis + 1]
    return None


def _unscaled(part: _Part, scale: float) -> tuple[_Part, float]:
    """Moves a factor of the queries to the scale."""
    while operands := made_by(part.value, "mul", "div"):
        assert part.value.producer is not None
        inner, factor = operands[0], scalar_value(operands[1])
        if not factor or inner.shape != part.value.shape:
            break
        scale *= 1 / factor if part.value.producer.primitive == "div" else factor
        part = _Part(inner, part.labels)
    return part, scale


@TABLE.lowers("rml.attention")
def _attention(ctx: Context, eqn: Equation) -> str:
    params, query, key = eqn.params, eqn.params["query"], eqn.params["key"]
    leading: Labels = (*params["leading"],)
    operands = []
    for part, last in zip(params["parts"], ((query, _DEPTH), (key, _DEPTH), (key, _WIDTH)), strict=True):
        arranged = _arranged(ctx, part, (*leading, *last))
        own = ctx.shape(arranged)[-3:] if params["groups"] > 1 else ctx.shape(arranged)[-2:]  # keys and values have heads of their own
        operands.append(ctx.broadcast(arranged, (*eqn.outputs[0].shape[: -len(own)], *own)))
    mask, operand, fully_masked = _mask(ctx, params["scores"], (*leading, query, key))
    attrs = {"scale": params["scale"], "softcap": params["scores"].softcap, "mask": mask, "fully_masked": fully_masked}
    result: str = ctx.add("attention", *operands, operand, **attrs, kv_groups=params["groups"])
    return result


def _layout(part: _Part, order: Labels) -> tuple[list[int], list[int]]:
    """Returns the permutation and then the shape that bring a value's axes into this order; an axis that it lacks has size 1."""
    found = [label for label in order if label is not None and label in part.labels]
    perm = [part.labels.index(label) for label in found]
    shape = [part.value.shape[part.labels.index(label)] if label in found else 1 for label in order]
    return [*perm, *(axis for axis in range(len(part.labels)) if axis not in perm)], shape


def _arranged(ctx: Context, part: _Part, order: Labels) -> str:
    """Returns an operand with its axes in this order."""
    perm, shape = _layout(part, order)
    if part.value.constant is not None:
        return ctx.constant(part.value.array().transpose(perm).reshape(shape), of=part.value, form=f"{perm} {shape}")
    return ctx.reshape(ctx.transpose(part.value, perm), shape)


def _mask(ctx: Context, scores: _Scores, order: Labels) -> tuple[str, str | None, str]:
    """Returns the kind of mask, its operand, and what a row gives that may attend to nothing."""
    bias = None if scores.bias is None else _arranged(ctx, scores.bias, order)
    if scores.mask is None:
        return ("causal" if scores.causal else "none" if bias is None else "additive"), bias, "nan"
    part = scores.mask
    inverted, empty = scores.inverted, "nan" if scores.masked == -math.inf else "uniform"
    if part.value.constant is None:
        mask = _arranged(ctx, part, order)
    else:
        perm, shape = _layout(part, order)
        allowed, inverted = part.value.array().transpose(perm).reshape(shape) != inverted, False
        for axis in range(len(shape) - 2):  # what is the same for every head or batch stands once
            first = allowed.take([0], axis)
            allowed = first if bool((allowed == first).all()) else allowed
        if (
            bias is None
            and allowed.size == math.prod(shape[-2:])
            and np.array_equal(allowed.reshape(shape[-2:]), np.tri(shape[-2], shape[-1]))
        ):
            return "causal", None, "nan"
        empty = "nan" if allowed.any(-1).all() else empty
        mask = ctx.constant(allowed, of=part.value, form=f"mask {perm} {shape}")
    if bias is not None:
        number = ctx.scalar(scores.masked, scores.product.value.dtype)
        return "additive", ctx.add("select", mask, *((number, bias) if inverted else (bias, number))), "nan"
    return "bool", (ctx.add("not", mask) if inverted else mask), empty


def _is_causal(mask: _Part, query: int | str | None, key: int | str | None) -> bool:
    """True if a mask that is computed at run time says that the key's position is not beyond the query's."""
    operands = made_by(mask.value, "ge", "le")
    if not operands or query is None:
        return False
    assert mask.value.producer is not None
    later, earlier = operands if mask.value.producer.primitive == "ge" else operands[::-1]
    return [_counts(_Part(value, _fitting(value, mask.labels))) for value in (later, earlier)] == [query, key]


def _counts(part: _Part) -> int | str | None:
    """Returns the label of the axis along which a value holds its own position."""
    part = _through(part)
    while operands := made_by(part.value, "add"):
        inner = next((b for a, b in (operands, operands[::-1]) if scalar_value(a) == 0), None)
        if inner is None or inner.shape != part.value.shape:
            return None
        part = _through(_Part(inner, part.labels))
    iota = part.value.producer
    return part.labels[iota.params["dimension"]] if iota is not None and iota.primitive == "iota" else None


def _bare(mask: _Part) -> _Part:
    """Returns a mask without what does not change it: repetition, ``and`` with true, a number made of it and compared with 0 again."""
    while True:
        mask = _through(mask)
        if operands := made_by(mask.value, "and"):
            inner = next((b for a, b in (operands, operands[::-1]) if scalar_value(a) is True), None)
            if inner is None or len(inner.shape) != len(mask.labels):
                return mask
            mask = _Part(inner, _fitting(inner, mask.labels))
        elif (operands := made_by(mask.value, "select_n")) and [scalar_value(case) for case in operands[1:]] == [False, True]:
            mask = _Part(operands[0], mask.labels)  # tril
        elif operands := made_by(mask.value, "ne"):
            number = made_by(operands[0], "convert_element_type")
            if scalar_value(operands[1]) != 0 or not number or np.dtype(number[0].dtype).kind != "b":
                return mask
            mask = _Part(number[0], mask.labels)
        else:
            return mask
