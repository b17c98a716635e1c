"""Matrix products and attention, with weights laid out as runtimes fuse them."""

from __future__ import annotations

import math

import numpy as np

from exporters.to_onnx.context import ONNX, Context
from exporters.to_onnx.reductions import reduced
from rml_exec.ir.dims import Expr
from rml_exec.types import DType


def _turned(ctx: Context, index: int) -> str:
    """Returns operand ``index`` with its last two axes swapped; a constant is stored so."""
    rank = ctx.rank(index)
    return ctx.input(index, (*range(rank - 2), rank - 1, rank - 2))


@ONNX.lowers("matmul")
def _matmul(ctx: Context, *, transpose_a: bool, transpose_b: bool) -> str:
    if not ctx.held(0).type.size or not ctx.held(1).type.size:  # no inner size
        return ctx.emit("Expand", ctx.number(0), ctx.ints(ctx.result()[1]))
    a = _turned(ctx, 0) if transpose_a else ctx.input(0)
    return ctx.emit("MatMul", a, _turned(ctx, 1) if transpose_b else ctx.input(1))


@ONNX.lowers("linear")
def _linear(ctx: Context, *, weight_layout: str) -> str:
    """Gemm for a matrix and a bias; else MatMul, with a weight [inputs, outputs], and Add."""
    bias = ctx.optional(2)
    _, shape = ctx.result()
    if not ctx.held(1).type.size:
        return ctx.emit("Expand", bias or ctx.number(0), ctx.ints(shape))
    if ctx.rank() == 2:
        return ctx.emit("Gemm", ctx.input(0), ctx.input(1), bias, transB=1 if weight_layout == "oi" else None)
    product = ctx.emit("MatMul", ctx.input(0), _turned(ctx, 1) if weight_layout == "oi" else ctx.input(1))
    return product if bias is None else ctx.emit("Add", product, bias)


@ONNX.lowers("attention")
def _attention(ctx: Context, *, scale: float, softcap: float | None, mask: str, fully_masked: str, kv_groups: int) -> str:
    """Written out as MatMul, Softmax, MatMul: the form that every runtime knows.

    Rows that see no key are dealt with at the mask, which is small, and at the result; nothing is added where there can be none.
    """
    _, shape = ctx.result()
    if not ctx.held(1).type.shape[-2]:  # no keys
        return ctx.emit("Expand", ctx.number(math.nan if fully_masked == "nan" else 0), ctx.ints(shape))
    if not ctx.held(0).type.size or not ctx.held(2).type.size:
        return _without_width(ctx)
    rank = ctx.rank()
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    q = ctx.input(0) if scale == 1 else ctx.emit("Mul", ctx.input(0), ctx.number(scale))
    k = _repeated(ctx, 1, kv_groups, swapped)
    scores = ctx.emit("MatMul", q, k)
    if softcap is not None:
        bounded = ctx.emit("Tanh", ctx.emit("Div", scores, ctx.number(softcap)))
        scores = ctx.emit("Mul", bounded, ctx.number(softcap))
    scores, seen = _masked(ctx, scores, mask, fully_masked)
    weights = ctx.emit("Softmax", scores, axis=rank - 1)
    y = ctx.emit("MatMul", weights, _repeated(ctx, 2, kv_groups, tuple(range(rank))))
    return y if seen is None else ctx.emit("Where", seen, y, ctx.number(0))


def _without_width(ctx: Context) -> str:
    """Emits attention whose scores are sums over nothing: the mean of v, for the cases without a mask."""
    mean = reduced(ctx, "ReduceMean", ctx.input(2), [ctx.rank() - 2], True)
    return ctx.emit("Expand", mean, ctx.ints(ctx.result()[1]))


def _repeated(ctx: Context, index: int, groups: int, order: tuple[int, ...]) -> str:
    """Returns k or v in an order of axes, each head repeated for its group of queries."""
    name = ctx.input(index, order)
    if groups == 1:
        return name
    shape = [ctx.shape(index)[axis] for axis in order]
    heads = ctx.fixed(shape[-3], "the number of heads")
    single = ctx.emit("Unsqueeze", name, ctx.ints([len(shape) - 2]))
    wide = ctx.emit("Expand", single, ctx.ints([*shape[:-2], groups, *shape[-2:]]))
    return ctx.emit("Reshape", wide, ctx.ints([*shape[:-3], heads * groups, *shape[-2:]]))


def _masked(ctx: Context, scores: str, mask: str, fully_masked: str) -> tuple[str, str | None]:
    """Emits the masked scores, and where a row sees any key if others are to be zeros."""
    if mask == "none":
        return scores, None
    if mask == "causal":  # every query sees key 0
        return ctx.emit("Add", scores, _added(ctx, _causal(ctx), -math.inf)), None
    held = ctx.held(3)
    source = held.base if held.base is not None and held.base.type.shape[-1:] == held.type.shape[-1:] else held
    name, known = ctx.scope.tensor(source), source.array
    empty = known is None or not np.all(np.any(known if mask == "bool" else known != -np.inf, -1))
    # Equal scores have equal weights, and beside any other score a huge negative one has none.
    uniform = empty and fully_masked == "uniform"
    lowest = float(np.finfo(ctx.dtype().numpy).min) / 2
    seen = None
    if empty and fully_masked == "zero":
        seen = ctx.scope.once(("seen", name), lambda: _seen(ctx, name, mask))
    if mask == "bool":
        name = _added(ctx, name, lowest if uniform else -math.inf, seen)
    elif uniform:
        name = ctx.scope.once(("finite", name), lambda: ctx.emit("Max", name, ctx.number(lowest)))
    elif seen is not None:
        name = ctx.scope.once(("open", name), lambda: ctx.emit("Where", seen, name, ctx.number(0)))
    return ctx.emit("Add", scores, name), seen


def _seen(ctx: Context, mask: str, kind: str) -> str:
    """Emits which rows of a mask leave any key."""
    if kind == "additive":
        return ctx.emit("Greater", reduced(ctx, "ReduceMax", mask, [-1], True), ctx.number(-math.inf))
    return ctx.cast(reduced(ctx, "ReduceMax", ctx.cast(mask, DType.I32), [-1], True), DType.BOOL)


def _added(ctx: Context, allowed: str, hidden: float, seen: str | None = None) -> str:
    """Emits what a mask adds to the scores: 0 where a key is allowed or, given ``seen``, where the row sees none."""

    def made() -> str:
        shown = allowed if seen is None else ctx.emit("Or", allowed, ctx.emit("Not", seen))
        return ctx.emit("Where", shown, ctx.number(0), ctx.number(hidden))

    return ctx.scope.once(("added", allowed, hidden, seen, ctx.dtype()), made)


def _causal(ctx: Context) -> str:
    """Returns bool [queries, keys]: query i sees keys 0..i."""
    length, keys = ctx.shape(0)[-2], ctx.shape(1)[-2]
    if isinstance(length, int) and isinstance(keys, int):
        return ctx.model.initializer(np.tri(length, keys, dtype=np.bool_), key=("causal", length, keys), name="causal")

    def made() -> str:
        lines = [ctx.emit("Unsqueeze", _line(ctx, length), ctx.ints([1])), _line(ctx, keys)]
        return ctx.emit("GreaterOrEqual", *lines)

    return ctx.scope.once(("causal", length, keys), made)


def _line(ctx: Context, size: int | Expr) -> str:
    zero, one = ctx.constant(np.int64(0)), ctx.constant(np.int64(1))
    return ctx.emit("Range", zero, ctx.emit("Squeeze", ctx.ints([size])), one)
