"""Attention: torch's own operator, and the formula where a model writes it out. Both become one node.

The formula: scores = q k^T, scaled, perhaps bounded by softcap * tanh(scores / softcap), masked, softmax, times v. Heads of keys and values
that a model repeats for several query heads are used where they are (``kv_groups``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

from exporters.from_torch.context import ATEN, COMPOSITES, Context, RefusedError
from exporters.from_torch.matching import packet_of, shape_of
from rml_exec.types import DType

__all__ = ["recognise"]

_MASKED = -1e9
"""A score replaced by this or less has no weight beside one that is not."""


def attention(q: Any, k: Any, v: Any, mask: Any, scale: float, softcap: float | None, kv_groups: int, fully_masked: str) -> Any:
    """What a written-out attention computes. As the target of a node it stands for the formula; torch can run it.

    Args:
        q: queries [..., H, T, D].
        k: keys [..., H / kv_groups, S, D].
        v: values [..., H / kv_groups, S, E].
        mask: what to add to the scores, or bools, true where a query may attend, or None.
        scale: factor of the scores.
        softcap: bound of the scores, or None.
        kv_groups: query heads that share a head of keys and values.
        fully_masked: what a row gives that may attend to nothing: "nan" or "uniform".
    """
    k, v = (shared.repeat_interleave(kv_groups, -3) if kv_groups > 1 else shared for shared in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf if fully_masked == "nan" else torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v


COMPOSITES[attention] = "rml.attention"


@ATEN.lowers("rml.attention")
def _formula(
    ctx: Context, q: str, k: str, v: str, mask: str | None, scale: float, softcap: float | None, kv_groups: int, fully_masked: str
) -> str:
    return _attention(ctx, q, k, v, mask, False, scale=scale, softcap=softcap, kv_groups=kv_groups, fully_masked=fully_masked)


@ATEN.lowers("aten.scaled_dot_product_attention")
def _operator(
    ctx: Context, q: str, k: str, v: str, mask: str | None, dropout: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> str:
    """Rows without anything to attend to give 0 in torch (measured); a causal mask is aligned at the first query and key."""
    if dropout:
        raise RefusedError("dropout draws random numbers")
    factor = float(scale) if scale is not None else 1 / math.sqrt(ctx.type(q).shape[-1])
    groups = ctx.type(q).shape[-3] // ctx.type(k).shape[-3] if enable_gqa else 1
    return _attention(ctx, q, k, v, mask, is_causal, scale=factor, softcap=None, kv_groups=groups, fully_masked="zero")


def _attention(ctx: Context, q: str, k: str, v: str, mask: str | None, is_causal: bool, *, kv_groups: int, **attrs: Any) -> str:
    mask = _plain_mask(ctx, mask) if mask is not None else None
    is_causal, mask = (True, None) if mask == _CAUSAL else (is_causal, mask)
    if kv_groups > 1:
        batch = np.broadcast_shapes(*(ctx.type(value).shape[:-3] for value in (q, k, v)))
        outer = [(*batch, ctx.type(value).shape[-3]) for value in (q, k, v)]
    else:
        outer = [np.broadcast_shapes(*(ctx.type(value).shape[:-2] for value in (q, k, v)))] * 3
    q, k, v = (_with_batch(ctx, value, shape) for value, shape in zip((q, k, v), outer, strict=True))
    queries, keys = ctx.type(q).shape[-2], ctx.type(k).shape[-2]
    kind = "none"
    if is_causal and queries == keys:
        kind, mask = "causal", None
    elif is_causal:
        mask = ctx.builder.constant(np.tril(np.ones((queries, keys), bool)), f"{ctx.node.name}.mask")
    if mask is not None:
        kind = "bool" if ctx.type(mask).dtype is DType.BOOL else "additive"
        mask = mask if kind == "bool" else ctx.cast(mask, ctx.type(q).dtype)
    return str(ctx.add("attention", [q, k, v, mask], mask=kind, kv_groups=kv_groups, **attrs))


_CAUSAL = "causal mask"


def _plain_mask(ctx: Context, mask: str) -> str | None:
    """Returns the mask; None for one known to hide nothing, _CAUSAL for one known to hide what comes later."""
    known = ctx.known(mask)
    if known is None:
        return mask
    visible = known if known.dtype == np.bool_ else (known == 0) if np.isin(known, (0, -np.inf, np.finfo(known.dtype).min)).all() else None
    if visible is None or visible.ndim < 2 or not visible.size:
        return mask
    squares = visible.reshape(-1, *visible.shape[-2:])
    square = squares[0]
    if (squares != square).any():
        return mask
    if square.all():
        return None
    return _CAUSAL if square.shape[0] == square.shape[1] and (square == np.tril(np.ones_like(square))).all() else mask


def _with_batch(ctx: Context, value: str, batch: tuple[int, ...]) -> str:
    shape = (*batch, *ctx.type(value).shape[-2:])
    return value if ctx.type(value).shape == shape else str(ctx.step("broadcast", [value], shape=shape))


def recognise(graph: Graph) -> None:
    """Rewrites attention that a traced graph writes out, and takes away what repeats heads of keys and values, in place."""
    for node in reversed(graph.nodes):
        if packet_of(node) in _PRODUCTS and node.users:
            _rewrite_formula(node)
        elif packet_of(node) == "scaled_dot_product_attention":
            _share_heads(node)


_PRODUCTS = ("matmul", "bmm")


def _share_heads(node: Node) -> None:
    q, k, v, *rest = node.args
    shared = _shared_heads(k, v)
    if shared is not None and not node.kwargs.get("enable_gqa"):
        node.args = (q, *shared[:2], *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}


def _shared_heads(k: Any, v: Any) -> tuple[Node, Node, int] | None:
    """Returns keys and values before each head was repeated for several query heads, and how often it was; None if it was not."""
    keys, values = _unrepeated(k), _unrepeated(v)
    return None if keys is None or values is None or keys[1] != values[1] else (keys[0], values[0], keys[1])


def _unrepeated(value: Any) -> tuple[Node, int] | None:
    """Looks through [B, K, S, D] -> [B, K, 1, S, D] -> [B, K, groups, S, D] -> [B, K * groups, S, D]."""
    chain = [shape_of(value)]
    while len(chain) < 4 and packet_of(value) in ("view", "_unsafe_view", "clone", "expand", "unsqueeze"):
        value = value.args[0]
        if shape_of(value) != chain[-1]:
            chain.append(shape_of(value))
    if len(chain) < 4 or len(chain[1]) != 5 or len(chain[3]) != 4:
        return None
    (batch, heads, *rest), groups = chain[3], chain[1][2]
    wanted = [(batch, heads * groups, *rest), (batch, heads, groups, *rest), (batch, heads, 1, *rest), (batch, heads, *rest)]
    return (value, groups) if isinstance(groups, int) and chain == wanted else None


@dataclass(slots=True)
class _Scores:
    """What the scores were found to be: a product of queries and keys, and what was done to it."""

    product: Node
    scale: float
    softcap: float | None
    masks: list[_Mask]


@dataclass(frozen=True, slots=True)
class _Mask:
    """One step that masks ``scores``: what is added to them, or bools and what replaces hidden scores."""

    scores: Node
    operand: Node
    is_visible: bool = True
    fill: float | None = None


def _rewrite_formula(root: Node) -> None:
    """Makes the product of softmax's result and the values an attention, if the scores are what they must be."""
    softmax, v = _through(root.args[0]), root.args[1]
    rank = len(shape_of(root))
    if packet_of(softmax) != "_softmax" or len(softmax.users) > 1 or softmax.args[1] % rank != rank - 1 or rank < 3:
        return
    scores = _peel(softmax.args[0])
    if scores is None or shape_of(scores.product) != shape_of(softmax):
        return
    q, k = scores.product.args[0], _untransposed(scores.product.args[1])
    if any(shape_of(part)[:-2] != shape_of(root)[:-2] for part in (q, k, v)):
        return
    dtypes = {part.meta["val"].dtype for part in (q, k, v, scores.product, softmax, root)}  # type: ignore[union-attr]
    if len(dtypes) > 1 or any(mask.fill is None and mask.operand.meta["val"].dtype not in dtypes for mask in scores.masks):
        return
    while packet_of(q) in ("mul", "div") and len(q.users) == 1 and (factor := _factor(q)):
        scores.scale *= factor
        q = q.args[0]
    k, v, groups = _shared_heads(k, v) or (k, v, 1)
    mask = _combined(root, scores.masks)
    fully_masked = "uniform" if any(mask.fill is not None and mask.fill > -math.inf for mask in scores.masks) else "nan"
    root.target = attention
    root.args = (q, k, v, mask, float(scores.scale), scores.softcap, groups, fully_masked)
    root.kwargs = {}


def _combined(root: Node, masks: list[_Mask]) -> Node | None:
    """Returns the mask of all steps: of bools true where none of them hides."""
    combined: Node | None = None
    for mask in masks:
        operand = mask.operand if mask.is_visible else _called(root, torch.ops.aten.logical_not.default, mask.operand)
        combined = operand if combined is None else _called(root, torch.ops.aten.logical_and.default, combined, operand)
    return combined


def _called(root: Node, target: Any, *operands: Node) -> Node:
    with root.graph.inserting_before(root):
        node = root.graph.call_function(target, operands)
    node.meta = {**root.meta, "val": target(*(operand.meta["val"] for operand in operands))}
    return node


def _peel(node: Any) -> _Scores | None:
    """Takes masks, softcap and scale off the scores, from the outside in; None if what is left is no product."""
    masks: list[_Mask] = []
    while (mask := _masked(node := _through(node))) is not None and (not masks or mask.fill == masks[0].fill is not None):
        masks.append(mask)
        node = mask.scores
    factor, outer = 1.0, None
    while len(node.users) == 1:
        packet = packet_of(node)
        if packet in _PRODUCTS:
            return _Scores(node, factor if outer is None else factor * outer, outer, masks)
        if packet == "tanh" and outer is None and factor > 0:
            factor, outer = 1.0, factor
        elif packet in ("mul", "div") and (number := _factor(node)):
            factor *= number
        else:
            return None
        node = _through(node.args[0])
    return None


def _factor(node: Node) -> float | None:
    """Returns the number that a node multiplies with; None if it is no number."""
    number = _number(node.args[1])
    return None if not number else number if packet_of(node) == "mul" else 1 / number


def _number(value: Any) -> float | None:
    """Returns an argument that is a number, or a tensor made of one."""
    place = {"full": 1, "full_like": 1, "scalar_tensor": 0}.get(packet_of(value))
    number = value if place is None else value.args[place]
    return float(number) if isinstance(number, int | float) else None


def _masked(node: Node) -> _Mask | None:
    """Returns how a node masks scores; None if it does not."""
    packet, args = packet_of(node), node.args
    if len(node.users) != 1 or (packet == "add" and node.kwargs):
        return None
    found = None
    if packet == "add":
        for scores, mask in (args, args[::-1]):
            if found is None and isinstance(mask, Node) and _leads_to_product(scores):
                found = _Mask(scores, mask)
    elif packet == "masked_fill":
        found = _Mask(args[0], args[1], False, _number(args[2]))
    elif packet == "where":
        is_visible = _number(args[2]) is not None
        scores, fill = args[1:] if is_visible else args[:0:-1]
        found = _Mask(scores, args[0], is_visible, _number(fill))
    if found is None or shape_of(found.scores) != shape_of(node):
        return None
    return found if packet == "add" or (found.fill is not None and found.fill <= _MASKED) else None


def _leads_to_product(node: Any) -> bool:
    while packet_of(node := _through(node)) in ("mul", "div", "tanh"):
        node = node.args[0]
    return packet_of(node) in _PRODUCTS


def _through(node: Any) -> Any:
    """Looks through what changes neither shape nor type, of nodes that nothing else reads."""
    while packet_of(node) in ("expand", "view", "_unsafe_view", "clone", "_to_copy") and len(node.users) == 1:
        inner = node.args[0]
        if shape_of(inner) != shape_of(node) or inner.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = inner
    return node


def _untransposed(node: Any) -> Node | None:
    """Returns what a value was before its last two axes were swapped; None if they were not."""
    node = _through(node)
    rank = len(shape_of(node))
    if packet_of(node) == "transpose" and {axis % rank for axis in node.args[1:]} == {rank - 2, rank - 1}:
        return node.args[0]
    if packet_of(node) == "permute" and [axis % rank for axis in node.args[1]] == [*range(rank - 2), rank - 1, rank - 2]:
        return node.args[0]
    return None
