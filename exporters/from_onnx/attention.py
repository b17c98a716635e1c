"""Lowerings of attention and of rotary position embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.neural import broadcast
from rml_exec.types import DType

__all__ = ["Bias", "add_attention", "at_positions", "merge_heads", "rotate", "split_heads", "visible_keys"]


@dataclass(frozen=True, slots=True)
class Bias:
    """What decides which keys a query sees.

    Attributes:
        causal: true if query i sees keys 0..i and nothing else is said.
        allowed: bool, true where the query may attend; broadcasts to [B, H, T, S].
        added: numbers added to the scores; broadcasts likewise.
    """

    causal: bool = False
    allowed: str | None = None
    added: str | None = None


@ONNX.lowers("Attention")
def _attention(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    """A query without any key to attend to gives 0. ``softmax_precision`` asks for no less than what is computed in anyway."""
    q, k, v = (ctx.need(index) for index in range(3))
    flat = ctx.type(q).rank == 3
    if flat:
        q = split_heads(ctx, q, ctx.attr("q_num_heads"))
        k, v = (split_heads(ctx, value, ctx.attr("kv_num_heads")) for value in (k, v))
    past = 0
    if ctx.input(4) is not None and ctx.input(5) is not None:
        past = ctx.type(ctx.need(4)).shape[2]
        k, v = (ctx.step("concat", [ctx.need(index), value], axis=2) for index, value in ((4, k), (5, v)))
    scale = ctx.attr("scale")
    factor = 1 / math.sqrt(ctx.type(q).shape[-1]) if scale is None else scale
    softcap = ctx.attr("softcap", 0.0) or None
    bias = _bias(ctx, q, k, past)
    if ctx.output_wanted(3):
        y, scores = _spelled_out(ctx, q, k, v, bias, factor, softcap)
    else:
        y, scores = add_attention(ctx, q, k, v, bias, factor, softcap), None
    return merge_heads(ctx, y) if flat else y, k, v, scores


def split_heads(ctx: Context, value: str, heads: int | None) -> str:
    """Returns [B, T, H * D] as [B, H, T, D]."""
    batch, length, width = ctx.type(value).shape
    if not heads or width % heads:
        raise RefusedError(f"a width of {width} does not divide into {heads} heads")
    return str(ctx.step("transpose", [ctx.reshape(value, [batch, length, heads, width // heads])], perm=(0, 2, 1, 3)))


def merge_heads(ctx: Context, value: str) -> str:
    """Returns [B, H, T, D] as [B, T, H * D]."""
    batch, heads, length, width = ctx.type(value).shape
    return ctx.reshape(ctx.step("transpose", [value], perm=(0, 2, 1, 3)), [batch, length, heads * width])


def _bias(ctx: Context, q: str, k: str, past: int) -> Bias:
    mask, counts = ctx.input(3), ctx.input(6)
    left, right = ctx.attr("left_window_size", -1), ctx.attr("right_window_size", -1)
    causal = bool(ctx.attr("is_causal", 0))
    queries, keys = ctx.type(q).shape[2], ctx.type(k).shape[2]
    if causal and mask is None and counts is None and past == 0 and left < 0:
        return Bias(causal=True)
    lengths = None if counts is None else ctx.reshape(counts, [ctx.type(counts).size, 1, 1, 1])
    right = min(right, 0) if causal and right >= 0 else 0 if causal else right
    allowed = visible_keys(ctx, queries, keys, past, lengths, left, right)
    if mask is None:
        return Bias(allowed=allowed)
    mask = _widened(ctx, mask, keys)
    if ctx.type(mask).dtype is DType.BOOL:
        return Bias(allowed=mask if allowed is None else ctx.step("and", [mask, allowed]))
    return Bias(allowed=allowed, added=mask)


def _widened(ctx: Context, mask: str, keys: int) -> str:
    """Returns a mask for all keys: those that it leaves out are hidden."""
    shape = ctx.type(mask).shape
    missing = keys - shape[-1]
    if missing <= 0 or shape[-1] == 1:
        return mask
    hidden = ctx.scalar(False if ctx.type(mask).dtype is DType.BOOL else -math.inf, ctx.type(mask).dtype)
    return str(ctx.step("concat", [mask, broadcast(ctx, hidden, [*shape[:-1], missing])], axis=len(shape) - 1))


def visible_keys(ctx: Context, queries: int, keys: int, past: int, lengths: str | None, left: int, right: int) -> str | None:
    """Returns which keys each query may see, by position: bool, broadcasting to [B, H, queries, keys]; None if all.

    Args:
        ctx: the node.
        queries: number of queries.
        keys: number of keys.
        past: keys before the first query's own, where ``lengths`` is None.
        lengths: i32 or i64 [B, 1, 1, 1], the keys that count of each batch element; the last query's own is the last of them.
        left: keys before its own that a query sees at most; -1 for all.
        right: keys after its own that a query sees at most; -1 for all.
    """
    dtype = DType.I64 if lengths is None else ctx.type(lengths).dtype
    key = ctx.step("iota", [], dtype=dtype.value, shape=(1, keys), axis=1)
    allowed = [] if lengths is None else [ctx.step("compare", [key, lengths], dir="lt")]
    if left >= 0 or right >= 0:
        offset = ctx.scalar(past, dtype) if lengths is None else ctx.step("sub", [lengths, ctx.scalar(queries, dtype)])
        query = ctx.step("add", [ctx.step("iota", [], dtype=dtype.value, shape=(queries, 1), axis=0), offset])
        distance = ctx.step("sub", [query, key])
        allowed += [ctx.step("compare", [distance, ctx.scalar(left, dtype)], dir="le")] if left >= 0 else []
        allowed += [ctx.step("compare", [distance, ctx.scalar(-right, dtype)], dir="ge")] if right >= 0 else []
    result = None
    for condition in allowed:
        result = condition if result is None else ctx.step("and", [result, condition])
    return result


def add_attention(ctx: Context, q: str, k: str, v: str, bias: Bias, scale: float, softcap: float | None = None) -> str:
    """Returns the attention of q [B, Hq, T, D] over k [B, Hkv, S, D] and v [B, Hkv, S, E]; 0 where a query sees no key."""
    kind, mask = "causal" if bias.causal else "none", None
    if bias.added is not None:
        kind, mask = "additive", _additive(ctx, bias, ctx.type(q).dtype)
    elif bias.allowed is not None:
        kind, mask = "bool", bias.allowed
    attrs = {"scale": float(scale), "softcap": softcap, "mask": kind, "fully_masked": "zero"}
    return str(ctx.add("attention", [q, k, v, mask], kv_groups=_groups(ctx, q, k), **attrs))


def _groups(ctx: Context, q: str, k: str) -> int:
    queries, keys = ctx.type(q).shape[1], ctx.type(k).shape[1]
    if not keys or queries % keys:
        raise RefusedError(f"{queries} heads of queries cannot share {keys} heads of keys")
    return queries // keys


def _additive(ctx: Context, bias: Bias, dtype: DType) -> str:
    assert bias.added is not None
    added = ctx.cast(bias.added, dtype)
    return added if bias.allowed is None else str(ctx.step("select", [bias.allowed, added, ctx.scalar(-math.inf, dtype)]))


def _spelled_out(ctx: Context, q: str, k: str, v: str, bias: Bias, scale: float, softcap: float | None) -> tuple[str, str]:
    """Returns the attention and what ``qk_matmul_output_mode`` picks of the way there."""
    mode, dtype = ctx.attr("qk_matmul_output_mode", 0), ctx.type(q).dtype
    queries, keys = ctx.type(q).shape[2], ctx.type(k).shape[2]
    groups = _groups(ctx, q, k)
    k, v = (_repeated(ctx, value, groups) for value in (k, v))
    product = ctx.step("matmul", [q, k], transpose_a=False, transpose_b=True)
    raw = ctx.step("mul", [product, ctx.scalar(scale, dtype)])
    capped = raw
    if softcap is not None:
        cap = ctx.scalar(softcap, dtype)
        capped = ctx.step("mul", [ctx.step("tanh", [ctx.step("div", [raw, cap], rounding="true")]), cap])
    allowed = visible_keys(ctx, queries, keys, 0, None, -1, 0) if bias.causal else bias.allowed
    biased = capped if bias.added is None else ctx.step("add", [capped, ctx.cast(bias.added, dtype)])
    if allowed is not None:
        biased = ctx.step("select", [allowed, biased, ctx.scalar(-math.inf, dtype)])
    weights = ctx.step("softmax", [biased], axis=3, fully_masked="zero")
    y = ctx.add("matmul", [weights, v], transpose_a=False, transpose_b=False)
    return y, (raw, capped, biased, weights)[mode]


def _repeated(ctx: Context, value: str, groups: int) -> str:
    if groups == 1:
        return value
    batch, heads, length, width = ctx.type(value).shape
    repeated = broadcast(ctx, ctx.reshape(value, [batch, heads, 1, length, width]), [batch, heads, groups, length, width])
    return ctx.reshape(repeated, [batch, heads * groups, length, width])


@ONNX.lowers("RotaryEmbedding")
def _rotary_embedding(ctx: Context, node: onnx.NodeProto) -> str:
    x, cos, sin, positions = ctx.need(0), ctx.need(1), ctx.need(2), ctx.input(3)
    if positions is not None:
        cos, sin = (at_positions(ctx, table, positions) for table in (cos, sin))
    return rotate(ctx, x, cos, sin, ctx.attr("num_heads", 0), bool(ctx.attr("interleaved", 0)))


def at_positions(ctx: Context, table: str, positions: str) -> str:
    """Returns the rows of a table of cosines or sines at positions [B, T]."""
    return str(ctx.step("take", [table, positions], axis=0, oob="error", wrap_negative=False, fill_value=None))


def rotate(ctx: Context, x: str, cos: str, sin: str, heads: int, neighbours: bool) -> str:
    """Returns x with pairs of elements turned by the angle of their position; what lies behind the width of the tables stays.

    Args:
        ctx: the node.
        x: [B, H, T, D] or [B, T, H * D].
        cos: cosines [B, T, half the turned width] (a batch of 1 serves all).
        sin: sines likewise.
        heads: how many heads a 3-D x has; 0: as many as are turned whole.
        neighbours: true if a pair are neighbours, false if they are half the turned width apart.
    """
    shape = ctx.type(x).shape
    batch, length, half = ctx.type(cos).shape
    if len(shape) == 3:
        heads = heads or shape[2] // (2 * half)
        x = ctx.reshape(x, [*shape[:2], heads, shape[2] // heads])
    table_shape = [batch, length, 1, half] if len(shape) == 3 else [batch, 1, length, half]
    cos, sin = (ctx.reshape(table, table_shape) for table in (cos, sin))
    size, width = ctx.type(x).shape, 2 * half

    def part(start: int, limit: int, step: int = 1) -> str:
        return str(ctx.step("slice", [x], start=(0, 0, 0, start), limit=(*size[:3], limit), strides=(1, 1, 1, step)))

    first, second = (part(0, width - 1, 2), part(1, width, 2)) if neighbours else (part(0, half), part(half, width))
    real = ctx.step("sub", [ctx.step("mul", [cos, first]), ctx.step("mul", [sin, second])])
    imaginary = ctx.step("add", [ctx.step("mul", [sin, first]), ctx.step("mul", [cos, second])])
    if neighbours:
        pairs = [ctx.reshape(value, [*size[:3], half, 1]) for value in (real, imaginary)]
        turned = [ctx.reshape(ctx.step("concat", pairs, axis=4), [*size[:3], width])]
    else:
        turned = [real, imaginary]
    rest = [part(width, size[3])] if width < size[3] else []
    parts = turned + rest
    return ctx.reshape(parts[0] if len(parts) == 1 else ctx.step("concat", parts, axis=3), shape)
