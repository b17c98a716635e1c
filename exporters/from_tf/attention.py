"""Recognises attention: softmax of scaled and masked scores from one product, a second product with the values.

Keras writes it through Einsum, models of one's own through MatMul. Either way every axis of the scores gets a label, and labels are followed
from the products to the operands; the lowering lays these out as the op wants them.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporters.from_tf.matching import Pattern, is_number, known, maker, number, only_read_by, orders, origin, same, sizes
from exporters.from_tf.table import Context, Known, Value

__all__ = ["find_attention"]

_PRODUCTS = ("Einsum", "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_HIDDEN = {"float16": -3e4}
"""A score replaced by this or less has no weight beside one that is not."""


@dataclass(frozen=True)
class _Part:
    """A tensor with a label for each of its axes."""

    tensor: Any
    labels: str


@dataclass
class _Scores:
    """What the scores were found to be.

    Attributes:
        product: the product of queries and keys.
        mask: a bool mask, true where a query may attend (where ``inverted``: may not).
        fill: the score in place of masked ones.
        bias: what is added.
        softcap: what bounds the scaled scores.
        factors: scalars that they are multiplied with (``Mul``) or divided by (``RealDiv``).
        order: the axes of the product in the order in which softmax sees them, None if it is the same.
    """

    product: Any = None
    mask: Any = None
    inverted: bool = False
    fill: float = 0.0
    bias: Any = None
    softcap: float | None = None
    factors: list[tuple[str, Any]] = field(default_factory=list)
    order: list[int] | None = None


def find_attention(op: Any) -> Pattern | None:
    """Matches the product of softmax's result and the values."""
    parts = _product(op)
    if parts is None:
        return None
    first, second, result = parts
    return _match(op, first, second, result) or _match(op, second, first, result)


def _product(op: Any) -> tuple[_Part, _Part, str] | None:
    """Returns the operands of a product of two and the labels of its result, if no label is there twice in one of them."""
    if len(op.inputs) != 2:
        return None
    a, b = op.inputs
    if op.type == "Einsum":
        terms, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
        left, _, right = terms.partition(",")
        if "." in terms or any(len(set(term)) != len(term) for term in (left, right, result)):
            return None
        return _Part(a, left), _Part(b, right), result
    rank = op.outputs[0].shape.rank
    if rank is None or a.shape.rank != rank or b.shape.rank != rank:
        return None
    batch, (row, inner, column) = string.ascii_letters[: rank - 2], "XYZ"
    flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    left = inner + row if op.get_attr(flags[0]) else row + inner
    right = column + inner if op.get_attr(flags[1]) else inner + column
    return _Part(a, batch + left), _Part(b, batch + right), batch + row + column


def _match(op: Any, weights: _Part, values: _Part, result: str) -> Pattern | None:
    """Returns the attention if ``weights`` come from a softmax of scores, and the axes of both products are those of attention."""
    batch = [label for label in weights.labels if label in values.labels and label in result]
    key = [label for label in weights.labels if label in values.labels and label not in result]
    query, width = (
        [label for label in part.labels if label in result and label not in rest.labels]
        for part, rest in ((weights, values), (values, weights))
    )
    if [len(labels) for labels in (key, query, width)] != [1, 1, 1] or weights.labels[-1] != key[0]:
        return None
    if len(weights.labels) != len(batch) + 2 or len(values.labels) != len(batch) + 2 or len(result) != len(batch) + 2:
        return None
    softmax, cleared = _softmax(op, weights.tensor)
    scores = _peel(softmax) if softmax is not None else None
    inner = _product(scores.product) if scores is not None else None
    if scores is None or inner is None or len(inner[2]) != len(weights.labels) or (cleared is not None and not same(cleared, scores.mask)):
        return None
    renamed = dict(zip(inner[2] if scores.order is None else [inner[2][axis] for axis in scores.order], weights.labels, strict=True))
    depth = [label for label in inner[0].labels if label in inner[1].labels and label not in inner[2]]
    if len(depth) != 1:
        return None
    renamed[depth[0]] = "depth"
    q, k = ([renamed.get(label, "") for label in part.labels] for part in inner[:2])
    tensors = [inner[0].tensor, inner[1].tensor]
    if key[0] in q:
        q, k, tensors = k, q, tensors[::-1]
    if sorted(q) != sorted([*batch, query[0], "depth"]) or sorted(k) != sorted([*batch, key[0], "depth"]):
        return None
    parts = [_through(tensors[0], q, scores), _through(tensors[1], k, scores), _through(values.tensor, list(values.labels), None)]
    parts, batch, groups = _ungrouped(parts, batch)
    operands = dict(zip("qkv", (tensor for tensor, _ in parts), strict=True))
    operands |= {name: tensor for name, tensor in (("mask", scores.mask), ("bias", scores.bias)) if tensor is not None}
    operands |= {f"factor{index}": tensor for index, (_, tensor) in enumerate(scores.factors)}
    empty = "zero" if cleared is not None else "nan" if scores.fill == -np.inf else "uniform"
    layout = _Layout([labels for _, labels in parts], list(weights.labels), list(result), batch, query[0], key[0], width[0])
    kinds = [kind for kind, _ in scores.factors]
    return Pattern(
        _lower_attention,
        operands,
        {"layout": layout, "kinds": kinds, "inverted": scores.inverted, "empty": empty, "softcap": scores.softcap, "groups": groups},
    )


def _softmax(op: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the softmax that gives the weights, and the mask by which Keras' Softmax layer sets some to 0 again."""
    cleared = maker(weights, "SelectV2")
    if not only_read_by(weights, op):
        return None, None
    if cleared is None:
        return maker(weights, "Softmax"), None
    if number(cleared.inputs[2]) != 0 or not only_read_by(cleared.inputs[1], cleared):
        return None, None
    return maker(cleared.inputs[1], "Softmax"), cleared.inputs[0]


def _peel(softmax: Any) -> _Scores | None:
    """Takes mask, bias, cap and scale off the scores, from the outside in; None if what is left is no product, or is read elsewhere."""
    found, reader, scores = _Scores(), softmax, softmax.inputs[0]
    whole = sizes(scores)
    while whole is not None and only_read_by(scores, reader):
        op = origin(scores).op
        if op.type in _PRODUCTS:
            found.product = op
            return found
        inner: Any = None
        if op.type in ("Mul", "RealDiv"):
            op, inner = _factor(op, found)
        elif op.type == "Transpose" and found.order is None and (order := _permutation(op)) is not None:
            inner, found.order, whole = op.inputs[0], order, sizes(op.inputs[0])
        elif found.order is not None or found.softcap is not None or found.factors or found.bias is not None or found.mask is not None:
            return None  # a mask and a bias together are left as they are
        elif op.type == "SelectV2":
            fills = [number(case) for case in op.inputs[1:]]
            hidden = next(
                (index for index, fill in enumerate(fills) if fill is not None and fill <= _HIDDEN.get(scores.dtype.name, -1e9)), None
            )
            if hidden is not None:
                found.mask, found.inverted, found.fill, inner = op.inputs[0], hidden == 0, fills[hidden] or 0.0, op.inputs[2 - hidden]
            if not _broadcasts(found.mask, whole):
                return None
        elif op.type == "AddV2":
            inner, found.bias = next(((a, b) for a, b in orders(op) if _leads_to_product(a) and _broadcasts(b, whole)), (None, None))
        if inner is None or whole is None or inner.shape.rank != len(whole):
            return None
        reader, scores = op, inner
    return None


def _factor(op: Any, found: _Scores) -> tuple[Any, Any]:
    """Notes a scalar factor, or a cap, and returns what applies it and to what; no tensor if there is none."""
    for inner, factor in orders(op):
        tanh, cap = maker(inner, "Tanh"), number(factor)
        if op.type == "Mul" and tanh is not None and cap and not found.factors and found.softcap is None and only_read_by(inner, op):
            quotient = maker(tanh.inputs[0], "RealDiv", "Mul")
            for bounded, divisor in orders(quotient):
                if is_number(divisor, cap if quotient.type == "RealDiv" else 1 / cap) and only_read_by(tanh.inputs[0], tanh):
                    found.softcap = cap
                    return quotient, bounded
        if factor.shape.rank == 0:
            found.factors.append((op.type, factor))
            return op, inner
    return op, None


def _broadcasts(tensor: Any, whole: Sequence[int | None]) -> bool:
    """True if a tensor can be applied to the scores without stretching them."""
    shape = None if tensor is None else sizes(tensor)
    if shape is None or len(shape) > len(whole):
        return False
    return all(size in (1, None, full) or full is None for size, full in zip(reversed(shape), reversed(whole), strict=False))


def _leads_to_product(tensor: Any) -> bool:
    while (op := maker(tensor, "Mul", "RealDiv", *_PRODUCTS)) is not None and op.type not in _PRODUCTS:
        tensor = next((inner for inner, factor in orders(op) if factor.shape.rank == 0), None)
    return op is not None


def _permutation(transpose: Any) -> list[int] | None:
    """Returns the axes of the operand of a Transpose in their new order, None if they are not known."""
    perm = known(transpose.inputs[1])
    return None if perm is None else [int(axis) % len(perm) for axis in perm]


def _through(tensor: Any, labels: list[str], scores: _Scores | None) -> tuple[Any, list[str]]:
    """Looks through what only reorders axes, and moves a factor of queries or keys to ``scores``; returns the tensor and its labels."""
    while True:
        tensor = origin(tensor)
        op = tensor.op
        if op.type == "Transpose" and (order := _permutation(op)) is not None:
            labels, tensor = [labels[order.index(axis)] for axis in range(len(labels))], op.inputs[0]
            continue
        scaled = next(orders(op)) if op.type in ("Mul", "RealDiv") and scores is not None else None
        for inner, factor in orders(op) if scaled is not None else ():
            if factor.shape.rank == 0 and inner.shape.rank == len(labels):
                assert scores is not None
                scores.factors.append((op.type, factor))
                tensor = inner
                break
        else:
            return tensor, labels


def _ungrouped(parts: list[tuple[Any, list[str]]], batch: list[str]) -> tuple[list[tuple[Any, list[str]]], list[str], int]:
    """Takes away the repetition of heads that keys and values share: returns the parts, the batch labels with that of heads last, the count."""
    (k, k_label, k_count), (v, v_label, v_count) = (_unrepeated(*part) for part in parts[1:])
    if k_label is None or k_label != v_label or k_count != v_count or k_label not in batch:
        return parts, batch, 1
    return [parts[0], (k, parts[1][1]), (v, parts[2][1])], [*(label for label in batch if label != k_label), k_label], k_count


def _unrepeated(tensor: Any, labels: list[str]) -> tuple[Any, str | None, int]:
    """Returns (x, label of an axis, count) if a tensor is x with every position of that axis repeated, as tf.repeat spells it."""
    joined = maker(tensor, "Reshape")
    tile = maker(joined.inputs[0], "Tile") if joined is not None else None
    spread = maker(tile.inputs[0], "ExpandDims", "Reshape") if tile is not None else None
    multiples = known(tile.inputs[1]) if tile is not None else None
    if multiples is None or spread is None or spread.inputs[0].shape.rank != len(labels) or len(multiples) != len(labels) + 1:
        return tensor, None, 1
    source, single, whole = (sizes(t) or [] for t in (spread.inputs[0], spread.outputs[0], tensor))
    for axis, label in enumerate(labels):
        count, heads = int(multiples[axis + 1]), source[axis]
        others = [int(m) for index, m in enumerate(multiples) if index != axis + 1]
        if heads is None or count < 2 or set(others) != {1} or single != [*source[: axis + 1], 1, *source[axis + 1 :]]:
            continue
        if whole == [*source[:axis], heads * count, *source[axis + 1 :]]:
            return spread.inputs[0], label, count
    return tensor, None, 1


@dataclass(frozen=True)
class _Layout:
    """Labels of the axes: of q, k and v, of the scores, of the result, and what they stand for."""

    parts: list[list[str]]
    scores: list[str]
    result: list[str]
    batch: list[str]
    query: str
    key: str
    width: str


def _lower_attention(
    ctx: Context,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    bias: Value | None = None,
    *,
    layout: _Layout,
    kinds: Sequence[str],
    inverted: bool,
    empty: str,
    softcap: float | None,
    groups: int,
    **factors: Value,
) -> Value:
    scale = 1.0
    for kind, factor in zip(kinds, factors.values(), strict=True):
        if isinstance(factor, Known) and not factor.varies:
            scale *= float(factor.array) if kind == "Mul" else 1 / float(factor.array)
        else:
            q = ctx.add("mul", q, factor) if kind == "Mul" else ctx.add("div", q, factor, rounding="true")
    batch, ends = layout.batch, ((layout.query, "depth"), (layout.key, "depth"), (layout.key, layout.width))
    arranged = [
        ctx.transpose(value, [labels.index(label) for label in (*batch, *end)])
        for value, labels, end in zip((q, k, v), layout.parts, ends, strict=True)
    ]
    heads = len(batch) - (groups > 1)  # the heads of q are not those of k and v
    common = np.broadcast_shapes(*(ctx.shape(value)[:heads] for value in arranged))
    stretched = [
        value if ctx.shape(value)[:heads] == common else ctx.add("broadcast", value, shape=(*common, *ctx.shape(value)[heads:]))
        for value in arranged
    ]
    order = [layout.scores.index(label) for label in (*batch, layout.query, layout.key)]
    lengths = (ctx.shape(stretched[0])[-2], ctx.shape(stretched[1])[-2])
    attrs: Mapping[str, Any] = {"mask": "none", "fully_masked": "nan"}
    operand: Value | None = None
    if mask is not None:
        attrs, operand = _mask(ctx, _ordered(ctx, mask, order), lengths, inverted, empty)
    elif bias is not None:
        attrs, operand = {"mask": "additive", "fully_masked": "nan"}, _ordered(ctx, bias, order)
    y = ctx.add("attention", *stretched, operand, scale=scale, softcap=softcap, kv_groups=groups, **attrs)
    given = [*batch, layout.query, layout.width]
    return ctx.transpose(y, [given.index(label) for label in layout.result])


def _ordered(ctx: Context, value: Value, order: Sequence[int]) -> Value:
    """Returns what is applied to the scores with its axes as the op has them."""
    shape = ctx.shape(value)
    return ctx.transpose(ctx.reshape(value, (*(1,) * (len(order) - len(shape)), *shape)), order)


def _mask(ctx: Context, mask: Value, lengths: tuple[int, int], inverted: bool, empty: str) -> tuple[Mapping[str, Any], Value | None]:
    """Returns the attributes and the operand of a bool mask. ``empty``: what a query gives that may attend to nothing."""
    if not isinstance(mask, Known):
        return {"mask": "bool", "fully_masked": empty}, ctx.add("not", mask) if inverted else mask
    allowed = mask.array != inverted
    for axis in range(allowed.ndim - 2):  # what is the same for every batch or head stands once
        first = allowed.take([0], axis)
        allowed = first if bool((allowed == first).all()) else allowed
    if allowed.all():
        return {"mask": "none", "fully_masked": "nan"}, None
    if allowed.shape[-2:] == lengths and allowed.size == lengths[0] * lengths[1] and (allowed == np.tri(*lengths, dtype=bool)).all():
        return {"mask": "causal", "fully_masked": "nan"}, None
    if mask.varies:
        return {"mask": "bool", "fully_masked": empty}, ctx.add("not", mask) if inverted else mask
    # Where every query has a key it does not matter, and NaN is what is computed fastest.
    return {"mask": "bool", "fully_masked": "nan" if allowed.any(-1).all() else empty}, ctx.constant(allowed)
