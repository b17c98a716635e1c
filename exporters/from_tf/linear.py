"""Matrix products and Einsum."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from exporters.from_tf.reductions import reduce
from exporters.from_tf.table import TABLE, Context, Known, RefusalError, Value

__all__ = ["lower_linear"]


@TABLE.lowers("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def lower_linear(ctx: Context, a: Value, b: Value, bias: Value | None = None, *, product: Any = None) -> Value:
    """A constant matrix on the right makes it a ``linear``, else it is a ``matmul``.

    Args:
        ctx: the operation, or the BiasAdd after it.
        a: left operand.
        b: right operand.
        bias: added to the last axis.
        product: the operation that multiplies, if ``ctx.op`` is the BiasAdd.
    """
    op = ctx.op if product is None else product
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    transpose_a, transpose_b = (bool(op.get_attr(name)) for name in names)
    if isinstance(b, Known) and len(b.array.shape) == 2:
        if transpose_a:
            rank = len(ctx.shape(a))
            a = ctx.transpose(a, [*range(rank - 2), rank - 1, rank - 2])
        return ctx.add("linear", a, b, bias, weight_layout="oi" if transpose_b else "io")
    y = ctx.add("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return y if bias is None else ctx.add("add", y, bias)


@TABLE.lowers("Einsum")
def _einsum(ctx: Context, *operands: Value) -> Value:
    """One or two operands: sum what only one of them has, then one matrix product over what they share and the result lacks."""
    left, _, result = ctx.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    ranks = [len(ctx.shape(operand)) for operand in operands]
    terms, result = _without_ellipsis(terms, result, ranks)
    if len(set(result)) != len(result):
        raise RefusalError("a repeated index in the result is not supported")
    operands, terms = zip(*(_diagonals(ctx, operand, term) for operand, term in zip(operands, terms, strict=True)), strict=True)
    if len(operands) == 1:
        y, labels = _sum_out(ctx, operands[0], terms[0], result)
        return ctx.transpose(y, [labels.index(label) for label in result])
    (a, a_labels), (b, b_labels) = (
        _sum_out(ctx, operand, term, result + other) for operand, term, other in zip(operands, terms, reversed(terms), strict=True)
    )
    shared = [label for label in a_labels if label in b_labels]
    batch, summed = [label for label in shared if label in result], [label for label in shared if label not in result]
    a_free, b_free = ([label for label in labels if label not in shared] for labels in (a_labels, b_labels))
    sizes = dict(zip(a_labels, ctx.shape(a), strict=True))
    for label, size in zip(b_labels, ctx.shape(b), strict=True):
        sizes[label] = max(size, sizes.get(label, 0))  # an axis of size 1 of an ellipsis stretches
    if isinstance(b, Known) and not batch and list(b_labels) in ([*summed, *b_free], [*b_free, *summed]):
        x = _grouped(ctx, a, a_labels, [*a_free, *summed], [*a_free], [summed])
        inner, outer = (math.prod(sizes[label] for label in labels) for labels in (summed, b_free))
        layout = "io" if list(b_labels) == [*summed, *b_free] else "oi"
        y = ctx.add("linear", x, ctx.reshape(b, (inner, outer) if layout == "io" else (outer, inner)), None, weight_layout=layout)
    else:
        x = _grouped(ctx, a, a_labels, [*batch, *a_free, *summed], batch, [a_free, summed])
        z = _grouped(ctx, b, b_labels, [*batch, *summed, *b_free], batch, [summed, b_free])
        y = ctx.add("matmul", x, z, transpose_a=False, transpose_b=False)
    order = [*batch, *a_free, *b_free]
    y = ctx.reshape(y, [sizes[label] for label in order])
    return ctx.transpose(y, [order.index(label) for label in result])


def _without_ellipsis(terms: Sequence[str], result: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the equation with every ``...`` spelt out in labels that it does not use."""
    free = [label for label in string.ascii_letters if not any(label in term for term in (*terms, result))]
    covered = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    most = max(covered)
    labels = "".join(free[:most])
    spelt = [term.replace("...", labels[most - count :]) for term, count in zip(terms, covered, strict=True)]
    return spelt, result.replace("...", labels)


def _diagonals(ctx: Context, x: Value, labels: str) -> tuple[Value, str]:
    """Returns the operand with every repeated label once: only elements with equal positions along its axes."""
    while repeated := next((label for label in labels if labels.count(label) > 1), None):
        shape = ctx.shape(x)
        first, second = labels.index(repeated), labels.rindex(repeated)
        others = [axis for axis in range(len(shape)) if axis not in (first, second)]
        flat = ctx.reshape(ctx.transpose(x, [*others, first, second]), [*(shape[axis] for axis in others), shape[first] * shape[second]])
        diagonal = ctx.constant(np.arange(shape[first], dtype=np.int32) * (shape[first] + 1))
        x = ctx.add("take", flat, diagonal, axis=len(others), oob="error", wrap_negative=False, fill_value=None)
        labels = "".join(labels[axis] for axis in others) + repeated
    return x, labels


def _sum_out(ctx: Context, x: Value, labels: str, kept: str) -> tuple[Value, str]:
    """Returns the operand summed over the labels that nothing else has, and the labels left."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    return (reduce(ctx, x, "sum", axes, False) if axes else x), "".join(label for label in labels if label in kept)


def _grouped(ctx: Context, x: Value, labels: str, order: Sequence[str], single: Sequence[str], joined: Sequence[Sequence[str]]) -> Value:
    """Returns ``x`` transposed to ``order``, its labels in ``single`` an axis each, each group of ``joined`` one axis."""
    sizes = dict(zip(labels, ctx.shape(x), strict=True))
    moved = ctx.transpose(x, [labels.index(label) for label in order])
    return ctx.reshape(moved, [*(sizes[label] for label in single), *(math.prod(sizes[label] for label in group) for group in joined)])
