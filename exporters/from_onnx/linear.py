"""Lowerings of matrix products, Einsum and Det."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.shapes import cut, turned
from rml_exec.types import DType

__all__ = ["product"]

_FLOATS = (DType.F16, DType.F32, DType.F64)


def product(ctx: Context, a: str, b: str, *, transpose_a: bool = False, transpose_b: bool = False) -> str:
    """Returns a matrix product over the last two axes: ``linear`` with a known matrix of floats on the right, else ``matmul``."""
    if ctx.known(b) is None or ctx.type(b).rank != 2 or ctx.type(b).dtype not in _FLOATS:
        return str(ctx.add("matmul", [a, b], transpose_a=transpose_a, transpose_b=transpose_b))
    if transpose_a:
        rank = ctx.type(a).rank
        a = turned(ctx, a, [*range(rank - 2), rank - 1, rank - 2])
    return str(ctx.add("linear", [a, b, None], weight_layout="oi" if transpose_b else "io"))


@ONNX.lowers("MatMul")
def _matmul(ctx: Context, node: onnx.NodeProto) -> str:
    """As NumPy's: a vector on the left is a row, one on the right a column, and that axis is dropped again."""
    a, b = ctx.need(0), ctx.need(1)
    left, right = ctx.type(a).shape, ctx.type(b).shape
    if not left or not right:
        raise RefusedError("a scalar has no matrix product")
    if len(right) == 1:
        b = ctx.reshape(b, [*right, 1])
    if len(left) == 1 and (len(right) > 2 or ctx.known(b) is None):
        a = ctx.reshape(a, [1, *left])
    y = product(ctx, a, b)
    batch = ctx.type(y).shape[: max(len(left), len(right), 2) - 2]
    return ctx.reshape(y, [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())])


@ONNX.lowers("Gemm")
def _gemm(ctx: Context, node: onnx.NodeProto) -> str:
    """Alpha * A' B' + beta * C; with a known B and a C that is one row, a ``linear`` with its bias."""
    a, b, c = ctx.need(0), ctx.need(1), ctx.input(2)
    dtype = ctx.type(a).dtype
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    transpose_a, transpose_b = (bool(ctx.attr(name, 0)) for name in ("transA", "transB"))
    outputs = ctx.type(b).shape[0 if transpose_b else 1]
    row = c is not None and ctx.type(c).shape in ((outputs,), (1, outputs))
    if row and alpha == beta == 1 and ctx.known(b) is not None and dtype in _FLOATS:
        x = turned(ctx, a, [1, 0]) if transpose_a else a
        return str(ctx.add("linear", [x, b, ctx.reshape(c or "", [outputs])], weight_layout="oi" if transpose_b else "io"))
    y = _scaled(ctx, product(ctx, a, b, transpose_a=transpose_a, transpose_b=transpose_b), alpha)
    return y if c is None or not beta else str(ctx.step("add", [y, _scaled(ctx, c, beta)]))


def _scaled(ctx: Context, x: str, factor: float) -> str:
    return x if factor == 1 else str(ctx.step("mul", [x, ctx.scalar(factor, ctx.type(x).dtype)]))


@ONNX.lowers("Einsum")
def _einsum(ctx: Context, node: onnx.NodeProto) -> str:
    """From left to right, two operands at a time: what only one of them has is summed, then one product sums what is not needed later."""
    operands = [ctx.need(index) for index in range(len(node.input))]
    terms, result = _terms(ctx.attr("equation"), [ctx.type(operand).rank for operand in operands])
    if len(set(result)) != len(result) or not set(result) <= set("".join(terms)):
        raise RefusedError(f"the result of equation '{ctx.attr('equation')}' repeats an index, or has one that no operand has")
    y, labels = _diagonals(ctx, operands[0], terms[0])
    for position in range(1, len(operands)):
        other, other_labels = _diagonals(ctx, operands[position], terms[position])
        y, labels = _contracted(ctx, (y, labels), (other, other_labels), result + "".join(terms[position + 1 :]))
    y, labels = _sum_out(ctx, y, labels, result)
    return turned(ctx, y, [labels.index(label) for label in result])


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the labels of the operands and of the result, every ``...`` spelt out in labels that the equation does not use.

    Without an arrow the result has the ellipsis, then the labels that occur once in alphabetical order.
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise RefusedError(f"equation '{equation}' is for {len(terms)} operands, not {len(ranks)}")
    if not arrow:
        once = sorted(label for label in set(left) & set(string.ascii_letters) if left.count(label) == 1)
        result = ("..." if "..." in left else "") + "".join(once)
    free = [label for label in map(chr, range(0xE000, 0xE100)) if label not in equation]
    covered = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(count < 0 or (count and "..." not in term) for term, count in zip(terms, covered, strict=True)):
        raise RefusedError(f"equation '{equation}' does not fit operands with {', '.join(map(str, ranks))} axes")
    labels = "".join(free[: max(covered)])
    spelt = [term.replace("...", labels[len(labels) - count :]) for term, count in zip(terms, covered, strict=True)]
    return spelt, result.replace("...", labels)


def _diagonals(ctx: Context, x: str, labels: str) -> tuple[str, str]:
    """Returns the operand with every repeated label once: only elements with equal positions along its axes."""
    while repeated := next((label for label in labels if labels.count(label) > 1), None):
        shape = ctx.type(x).shape
        first, second = labels.index(repeated), labels.rindex(repeated)
        others = [axis for axis in range(len(shape)) if axis not in (first, second)]
        size = shape[first]
        if shape[second] != size:
            raise RefusedError(f"a repeated index has the sizes {size} and {shape[second]}")
        kept = [shape[axis] for axis in others]
        flat = ctx.reshape(turned(ctx, x, [*others, first, second]), [*kept, size * size])
        # Of size + 1 columns per row, every row but the last filled up, the first column is the diagonal.
        zero = (0,) * (len(kept) + 1)
        padded = ctx.step("pad", [flat], mode="constant", low=zero, high=(*zero[1:], size), interior=zero, value=0.0)
        x = cut(ctx, ctx.reshape(padded, [*kept, size, size + 1]), len(kept) + 1, 0, 1, squeeze=True)
        labels = "".join(labels[axis] for axis in others) + repeated
    return x, labels


def _sum_out(ctx: Context, x: str, labels: str, kept: str) -> tuple[str, str]:
    """Returns the operand summed over the labels that nothing else has, and the labels left."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if axes:
        x = str(ctx.step("reduce", [x], kind="sum", axes=axes, keepdims=False, nan="propagate", empty="identity"))
    return x, "".join(label for label in labels if label in kept)


def _contracted(ctx: Context, left: tuple[str, str], right: tuple[str, str], wanted: str) -> tuple[str, str]:
    """Returns the product of two operands, summed over the labels that are not wanted, and its labels."""
    (a, a_labels), (b, b_labels) = (_sum_out(ctx, *one, wanted + other) for one, other in ((left, right[1]), (right, left[1])))
    a, b = _stretched(ctx, a, a_labels, b, b_labels, wanted), _stretched(ctx, b, b_labels, a, a_labels, wanted)
    shared = [label for label in a_labels if label in b_labels]
    batch, summed = [label for label in shared if label in wanted], [label for label in shared if label not in wanted]
    a_free, b_free = ([label for label in labels if label not in shared] for labels in (a_labels, b_labels))
    order = "".join([*batch, *a_free, *b_free])
    if not summed:
        x = _spread(ctx, a, a_labels, order)
        z = _spread(ctx, b, b_labels, order)
        return str(ctx.step("mul", [x, z])), order
    sizes = dict(zip(a_labels, ctx.type(a).shape, strict=True))
    for label, size in zip(b_labels, ctx.type(b).shape, strict=True):
        sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]  # an axis of size 1 stretches
    joined = b_labels in ("".join([*summed, *b_free]), "".join([*b_free, *summed]))
    if ctx.known(b) is not None and not batch and joined and ctx.type(b).dtype in _FLOATS:
        inner, outer = (math.prod(sizes[label] for label in labels) for labels in (summed, b_free))
        io = b_labels == "".join([*summed, *b_free])
        x = _grouped(ctx, a, a_labels, a_free, [summed])
        weight = ctx.reshape(b, [inner, outer] if io else [outer, inner])
        y = ctx.step("linear", [x, weight, None], weight_layout="io" if io else "oi")
    else:
        x, z = _grouped(ctx, a, a_labels, batch, [a_free, summed]), _grouped(ctx, b, b_labels, batch, [summed, b_free])
        y = ctx.step("matmul", [x, z], transpose_a=False, transpose_b=False)
    return ctx.reshape(y, [sizes[label] for label in order]), order


def _stretched(ctx: Context, x: str, labels: str, other: str, other_labels: str, wanted: str) -> str:
    """Returns ``x`` with an axis of size 1 that is summed over in as large as the other operand's: a product does not stretch it."""
    sizes = dict(zip(other_labels, ctx.type(other).shape, strict=True))
    shape = ctx.type(x).shape
    wide = tuple(sizes[k] if size == 1 and k in sizes and k not in wanted else size for k, size in zip(labels, shape, strict=True))
    return x if wide == shape else str(ctx.step("broadcast", [x], shape=wide))


def _spread(ctx: Context, x: str, labels: str, order: str) -> str:
    """Returns ``x`` with its axes in ``order``, of size 1 where it has none."""
    sizes = dict(zip(labels, ctx.type(x).shape, strict=True))
    moved = turned(ctx, x, [labels.index(label) for label in order if label in labels])
    return ctx.reshape(moved, [sizes.get(label, 1) for label in order])


def _grouped(ctx: Context, x: str, labels: str, single: Sequence[str], joined: Sequence[Sequence[str]]) -> str:
    """Returns ``x`` with an axis for each label in ``single``, then one for each group of ``joined``."""
    sizes = dict(zip(labels, ctx.type(x).shape, strict=True))
    order = [*single, *(label for group in joined for label in group)]
    moved = turned(ctx, x, [labels.index(label) for label in order])
    return ctx.reshape(moved, [*(sizes[label] for label in single), *(math.prod(sizes[label] for label in group) for group in joined)])


@ONNX.lowers("Det")
def _det(ctx: Context, node: onnx.NodeProto) -> str:
    """Gaussian elimination, one column after the other, with the largest element of the column as pivot."""
    x = ctx.need(0)
    *batch, size, columns = ctx.type(x).shape
    if size != columns:
        raise RefusedError(f"the matrices are not square: {size} by {columns}")
    dtype, count = ctx.type(x).dtype, math.prod(batch)
    rest = ctx.reshape(x, [count, size, size])
    det = ctx.step("broadcast", [ctx.scalar(1, dtype)], shape=(count, 1))
    for left in range(size, 0, -1):
        column = cut(ctx, rest, 2, 0, 1, squeeze=True)
        place = ctx.step(
            "argreduce", [ctx.step("abs", [column])], kind="max", axis=1, keepdims=True, tie="first", nan="first", index_dtype="i64"
        )
        row = ctx.step("gather_nd", [rest, place], batch_dims=1, oob="error", wrap_negative=False, fill_value=None)
        pivot = cut(ctx, row, 1, 0, 1)
        at_front = ctx.step("compare", [place, ctx.scalar(0, DType.I64)], dir="eq")
        det = ctx.step("mul", [det, ctx.step("select", [at_front, pivot, ctx.step("neg", [pivot])])])
        if left == 1:
            break
        # The first row takes the place of the pivot's; a column of zeros leaves the rest as it is, for the determinant is 0 then.
        number = ctx.step("iota", [], dtype="i64", shape=(left - 1, 1), axis=0)
        replaced = ctx.step("compare", [ctx.step("add", [number, ctx.scalar(1, DType.I64)]), ctx.reshape(place, [count, 1, 1])], dir="eq")
        lower = ctx.step("select", [replaced, cut(ctx, rest, 1, 0, 1), cut(ctx, rest, 1, 1, left)])
        zero = ctx.step("compare", [pivot, ctx.scalar(0, dtype)], dir="eq")
        divisor = ctx.reshape(ctx.step("select", [zero, ctx.scalar(1, dtype), pivot]), [count, 1, 1])
        factor = ctx.step("div", [cut(ctx, lower, 2, 0, 1), divisor], rounding="true")
        taken = ctx.step("mul", [factor, ctx.reshape(cut(ctx, row, 1, 1, left), [count, 1, left - 1])])
        rest = ctx.step("sub", [cut(ctx, lower, 2, 1, left), taken])
    return ctx.reshape(det, batch)
