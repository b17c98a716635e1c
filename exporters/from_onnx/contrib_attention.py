"""Lowerings of ONNX Runtime's own attention operators, domain com.microsoft."""

from __future__ import annotations

import math

import onnx

from exporters.from_onnx.attention import Bias, add_attention, at_positions, merge_heads, rotate, split_heads, visible_keys
from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.linear import product
from exporters.from_onnx.neural import broadcast
from exporters.from_onnx.shapes import cut
from rml_exec.types import DType

Heads = tuple[str, str, str]
"""q [B, H, T, D], k [B, H, S, D] and v [B, H, S, E]."""


@ONNX.lowers("com.microsoft.Attention")
def _attention(ctx: Context, node: onnx.NodeProto) -> tuple[str, ...]:
    """Self-attention with its projection: x, weights, bias, mask, past, numbers added to the scores."""
    if ctx.attr("do_rotary", 0) or ctx.input(6) is not None:
        raise RefusedError("rotary embeddings and shared buffers of past and present are not supported")
    x, weights, bias, past = ctx.need(0), ctx.need(1), ctx.input(2), ctx.input(4)
    width = ctx.type(weights).shape[1]
    if bias is not None and ctx.known(weights) is not None:
        projected = str(ctx.step("linear", [x, weights, bias], weight_layout="io"))
    else:
        projected = product(ctx, x, weights)
        projected = projected if bias is None else ctx.step("add", [projected, bias])
    sizes = ctx.attr("qkv_hidden_sizes") or [width // 3] * 3
    q, k, v = _heads_of(ctx, projected, sizes, ctx.attr("num_heads"))
    before = 0
    if past is not None:
        halves = [ctx.reshape(cut(ctx, past, 0, index, index + 1), ctx.type(past).shape[1:]) for index in range(2)]
        before = ctx.type(past).shape[3]
        k, v = (ctx.step("concat", [half, value], axis=2) for half, value in zip(halves, (k, v), strict=True))
    y = _attended(ctx, (q, k, v), ctx.input(3), ctx.input(5), before)
    if not ctx.output_wanted(1):
        return (y,)
    both = [ctx.reshape(value, [1, *ctx.type(value).shape]) for value in (k, v)]
    return y, ctx.step("concat", both, axis=0)


def _heads_of(ctx: Context, projected: str, sizes: list[int], heads: int) -> Heads:
    starts = (0, sizes[0], sizes[0] + sizes[1])
    parts = (cut(ctx, projected, 2, start, start + size) for start, size in zip(starts, sizes, strict=True))
    q, k, v = (split_heads(ctx, part, heads) for part in parts)
    return q, k, v


def _attended(ctx: Context, heads: Heads, mask: str | None, added: str | None, before: int) -> str:
    """Returns the attention, heads merged. ``mask`` is 0 where a key is hidden, by way of a large negative number, as in ONNX Runtime."""
    q, k, v = heads
    queries, keys, dtype = ctx.type(q).shape[2], ctx.type(k).shape[2], ctx.type(q).dtype
    hidden = None if mask is None else _hidden(ctx, mask, ctx.type(q).shape[0], queries, keys, dtype)
    if hidden is not None:
        added = hidden if added is None else ctx.step("add", [added, hidden])
    causal = bool(ctx.attr("unidirectional", 0))
    if causal and added is None and before == 0:
        bias = Bias(causal=True)
    else:
        bias = Bias(allowed=visible_keys(ctx, queries, keys, before, None, -1, 0 if causal else -1), added=added)
    scale = ctx.attr("scale", 0.0) or 1 / math.sqrt(ctx.type(q).shape[3])
    return merge_heads(ctx, add_attention(ctx, q, k, v, bias, scale))


def _hidden(ctx: Context, mask: str, batch: int, queries: int, keys: int, dtype: DType) -> str:
    """Returns what a mask adds to the scores: [B], the lengths of the sequences, [B, S], [B, T, S] or [B, 1, T, S]."""
    shape, number = ctx.type(mask).shape, ctx.type(mask).dtype
    if shape == (batch,):
        key = ctx.step("iota", [], dtype=number.value, shape=(1, keys), axis=1)
        seen = ctx.step("compare", [key, ctx.reshape(mask, [batch, 1])], dir="lt")
    elif len(shape) in (2, 3, 4) and shape[-1] == keys:
        seen = ctx.step("compare", [mask, ctx.scalar(0, number)], dir="gt")
    else:
        raise RefusedError(f"a mask of shape {list(shape)} is not supported")
    seen_shape = ctx.type(seen).shape
    if len(seen_shape) < 4:
        seen = ctx.reshape(seen, [seen_shape[0], 1, *((1,) if len(seen_shape) == 2 else ()), *seen_shape[1:]])
    filler = ctx.scalar(ctx.attr("mask_filter_value", -10000.0), dtype)
    return str(ctx.step("select", [seen, ctx.scalar(0, dtype), filler]))


@ONNX.lowers("com.microsoft.MultiHeadAttention")
def _multi_head_attention(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    """q, k, v (or packed together), bias of the projections, mask of keys, numbers added to the scores, past keys and values."""
    if any(ctx.input(index) is not None for index in (8, 9)) or ctx.output_wanted(3):
        raise RefusedError("shared buffers, beams and the output of the scores are not supported")
    q, k, v = _given_heads(ctx, ctx.attr("num_heads"))
    before = 0
    if ctx.input(6) is not None and ctx.input(7) is not None:
        before = ctx.type(ctx.need(6)).shape[2]
        k, v = (ctx.step("concat", [ctx.need(index), value], axis=2) for index, value in ((6, k), (7, v)))
    return _attended(ctx, (q, k, v), ctx.input(4), ctx.input(5), before), k, v


def _given_heads(ctx: Context, heads: int) -> Heads:
    q, k, v, bias = ctx.need(0), ctx.input(1), ctx.input(2), ctx.input(3)
    if k is None or v is None:
        if bias is not None:
            raise RefusedError("packed queries, keys and values with a bias are not supported")
        if k is not None:
            first, second = _unpacked(ctx, k, 2)
            return split_heads(ctx, q, heads), first, second
        one, two, three = _unpacked(ctx, q, 3)
        return one, two, three
    if bias is not None:
        width = ctx.type(q).shape[2]
        q = ctx.step("add", [q, cut(ctx, bias, 0, 0, width)])
        if ctx.type(k).rank == 3:
            size = ctx.type(k).shape[2]
            k = ctx.step("add", [k, cut(ctx, bias, 0, width, width + size)])
            v = ctx.step("add", [v, cut(ctx, bias, 0, width + size, width + size + ctx.type(v).shape[2])])
    k, v = (value if ctx.type(value).rank == 4 else split_heads(ctx, value, heads) for value in (k, v))
    return split_heads(ctx, q, heads), k, v


def _unpacked(ctx: Context, packed: str, count: int) -> list[str]:
    """Returns [B, S, H, count, D] as that many [B, H, S, D]."""
    batch, length, heads, _, width = ctx.type(packed).shape
    parts = [ctx.reshape(cut(ctx, packed, 3, index, index + 1), [batch, length, heads, width]) for index in range(count)]
    return [ctx.step("transpose", [part], perm=(0, 2, 1, 3)) for part in parts]


@ONNX.lowers("com.microsoft.GroupQueryAttention")
def _group_query_attention(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    """Causal attention with a cache: q, k, v (or packed in q), cache, index of the last key, length, tables of a rotary embedding."""
    refused = [10 + index for index in range(1, 7) if ctx.input(10 + index) is not None]
    if refused or ctx.attr("smooth_softmax", 0) > 0 or ctx.output_wanted(3) or not ctx.attr("causal", 1):
        raise RefusedError("sinks, quantised caches, norms of heads, bidirectional use and the output of the scores are not supported")
    heads, shared = ctx.attr("num_heads"), ctx.attr("kv_num_heads")
    q, k, v = ctx.need(0), ctx.input(1), ctx.input(2)
    if k is None or v is None:
        width = ctx.type(q).shape[2] // (heads + 2 * shared)
        ends = [heads * width, (heads + shared) * width, (heads + 2 * shared) * width]
        q, k, v = (cut(ctx, q, 2, start, end) for start, end in zip([0, *ends], ends, strict=False))
    q, k, v = split_heads(ctx, q, heads), split_heads(ctx, k, shared), split_heads(ctx, v, shared)
    batch, _, queries, width = ctx.type(q).shape
    total = (ctx.integers(6, "total_sequence_length") or [queries])[0]
    lengths = ctx.reshape(ctx.step("add", [ctx.need(5), ctx.scalar(1, DType.I32)]), [batch, 1, 1, 1])
    zero = ctx.scalar(0, DType.I32)
    before = broadcast(ctx, zero, [batch, 1, 1, 1]) if total == queries else ctx.step("sub", [lengths, ctx.scalar(queries, DType.I32)])
    if ctx.attr("do_rotary", 0):
        step = ctx.step("iota", [], dtype="i32", shape=(1, queries), axis=1)
        positions = ctx.input(9) or ctx.step("add", [step, ctx.reshape(before, [batch, 1])])
        cos, sin = (at_positions(ctx, ctx.need(index), positions) for index in (7, 8))
        q, k = (rotate(ctx, value, cos, sin, 0, bool(ctx.attr("rotary_interleaved", 0))) for value in (q, k))
    k, v = (_cached(ctx, ctx.input(index), value, before, total) for index, value in ((3, k), (4, v)))
    window = ctx.attr("local_window_size", -1)  # counts the query's own key
    end = ctx.step("add", [before, ctx.scalar(queries, DType.I32)])
    allowed = visible_keys(ctx, queries, ctx.type(k).shape[2], 0, end, max(window - 1, -1), 0)
    bias = Bias(allowed=allowed, added=ctx.input(10))
    scale = ctx.attr("scale", 0.0) or 1 / math.sqrt(width)
    return merge_heads(ctx, add_attention(ctx, q, k, v, bias, scale, ctx.attr("softcap", 0.0) or None)), k, v


def _cached(ctx: Context, cache: str | None, new: str, before: str, total: int) -> str:
    """Returns the cache, as long as it was or as ``total`` if that is more, with the new elements from position ``before`` on."""
    batch, heads, count, width = ctx.type(new).shape
    held = 0 if cache is None else ctx.type(cache).shape[2]
    length = max(held, total)
    if total == count:
        return new if length == count or cache is None else str(ctx.step("concat", [new, cut(ctx, cache, 2, count, length)], axis=2))
    if cache is None:
        raise RefusedError("keys of earlier steps are wanted, but no cache is given")
    if batch == 1 and held + count == total:
        return str(ctx.step("concat", [cache, new], axis=2))
    if length > held:
        fill = broadcast(ctx, ctx.scalar(0, ctx.type(cache).dtype), [batch, heads, length - held, width])
        cache = ctx.step("concat", [cache, fill], axis=2)
    place = ctx.step("sub", [ctx.step("iota", [], dtype="i32", shape=(1, 1, length, 1), axis=2), before])
    kept = ctx.step("clamp", [place], lo=0.0, hi=float(count - 1))
    indices = broadcast(ctx, kept, [batch, heads, length, width])
    moved = ctx.step("take_along_axis", [new, indices], axis=2, oob="error", wrap_negative=False, fill_value=None)
    return str(ctx.step("select", [ctx.step("compare", [place, kept], dir="eq"), moved, cache]))


@ONNX.lowers("com.microsoft.RotaryEmbedding")
def _rotary_embedding(ctx: Context, node: onnx.NodeProto) -> str:
    """Operands: x, positions [B, T] or one position of the first token, tables of cosines and sines."""
    if ctx.attr("is_packed_batching", 0):
        raise RefusedError("packed batches are not supported")
    x, positions = ctx.need(0), ctx.need(1)
    shape = ctx.type(x).shape
    if ctx.type(positions).rank == 1:
        length = shape[1] if len(shape) == 3 else shape[2]
        step = ctx.step("iota", [], dtype=ctx.type(positions).dtype.value, shape=(1, length), axis=1)
        positions = ctx.step("add", [step, ctx.reshape(positions, [1, 1])])
    cos, sin = (at_positions(ctx, ctx.need(index), positions) for index in (2, 3))
    return rotate(ctx, x, cos, sin, ctx.attr("num_heads", 0), bool(ctx.attr("interleaved", 0)))
