"""Attention that a file spells out: scores = q k^T, scaled, perhaps bounded by softcap * tanh(scores / softcap), masked, softmax, times v.

A row without any key to attend to keeps what the formula makes of it: zeros where NaN is replaced by 0 behind the softmax, as PyTorch's
exporter writes it; the mean of the values where a finite number hides all scores; else NaN. Only where the operands themselves hold NaN
do the two differ: the op gives NaN, the replacement 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from exporters.from_onnx.matching import Match, Matcher, Product
from rml_exec.ir.graph import Node
from rml_exec.types import TensorType

__all__ = ["attention"]

_ABSORBS = -1e30
"""Scores are lost in what is added to them, if it is this or less."""

_REPLACES = -1e9
"""A score replaced by this or less has no weight beside one that is not."""


_MOST_MASKS = 3
"""More masks than that are not taken off: sums of sums would be searched in vain."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What hides scores.

    Attributes:
        operand: bools, or numbers that are added to the scores.
        kind: what it comes to, as the op's attribute: none, bool, additive or causal.
        is_visible: false for bools that are true where a score is hidden.
        fill: what a score hidden by bools becomes: the name of the number; empty for numbers.
    """

    operand: str
    kind: str
    is_visible: bool = True
    fill: str = ""


@dataclass(frozen=True, slots=True)
class _Scores:
    """What the operand of a softmax was found to be: a product of queries and keys, and what was done to it, the first mask first."""

    product: Node
    scale: float
    softcap: float | None
    masks: tuple[_Mask, ...]


def attention(matcher: Matcher, root: Node) -> Match | None:
    """Finds attention that ends in the product with the values."""
    inside: set[str] = set()
    weights, is_guarded = _unguarded(matcher, root.inputs[0] or "", inside)
    softmax, rank = matcher.node(weights, "softmax"), len(matcher.shape(weights))
    if root.attrs["transpose_a"] or root.attrs["transpose_b"] or softmax is None or rank < 3 or softmax.attrs["axis"] != rank - 1:
        return None
    scores = _peeled(matcher, softmax.inputs[0] or "", inside)
    if scores is None or matcher.shape(scores.product.outputs[0].name) != matcher.shape(weights):
        return None
    (q_scale, q), (k_scale, k) = (_scaled(matcher, name or "", inside) for name in scores.product.inputs)
    v = root.inputs[1] or ""
    before: list[Node] = []
    k = k if scores.product.attrs["transpose_b"] else _turned(matcher, root, k, before)
    if any(matcher.shape(value)[:-2] != matcher.shape(weights)[:-2] for value in (q, k, v)):
        return None
    mask = _joined(matcher, root, [mask for mask in scores.masks if mask.kind != "none"], before)
    if mask is None:
        return None
    k, v, groups = _shared_heads(matcher, root, k, v, before)
    otherwise = "zero" if is_guarded else softmax.attrs["fully_masked"]
    attrs = {
        "scale": scores.scale * q_scale * k_scale,
        "softcap": scores.softcap,
        "mask": mask.kind,
        "fully_masked": "uniform" if mask.kind == "bool" and _fill(matcher, mask) > -math.inf else otherwise,
        "kv_groups": groups,
    }
    return Match("attention", (q, k, v, mask.operand or None), attrs, inside | {weights}, before)


def _joined(matcher: Matcher, root: Node, masks: list[_Mask], before: list[Node]) -> _Mask | None:
    """Returns the one mask that several come to: bools that hide alike, or else numbers; None if there is none that is exact."""
    if len(masks) < 2 and all(mask.kind == "causal" for mask in masks):
        return _Mask("", masks[0].kind if masks else "none")
    whole: _Mask | None = None
    for mask in masks:
        operand = mask.operand
        if not mask.is_visible:
            operand = matcher.new(before, root, "not", [operand], matcher.types[operand], "visible")
        mask = _Mask(operand, "bool" if mask.fill else "additive", fill=mask.fill)
        whole = mask if whole is None else _both(matcher, root, whole, mask, before)
        if whole is None:
            return None
    return whole


def _both(matcher: Matcher, root: Node, a: _Mask, b: _Mask, before: list[Node]) -> _Mask | None:
    shape = np.broadcast_shapes(matcher.shape(a.operand), matcher.shape(b.operand))
    if a.fill and b.fill:
        type_ = TensorType(matcher.types[a.operand].dtype, shape)
        alike = _fill(matcher, a) == _fill(matcher, b)
        return _Mask(matcher.new(before, root, "and", [a.operand, b.operand], type_, "mask"), "bool", fill=a.fill) if alike else None
    bools, numbers = (a, b) if a.fill else (b, a)
    type_ = TensorType(matcher.types[numbers.operand].dtype, shape)
    if not bools.fill:
        return _Mask(matcher.new(before, root, "add", [a.operand, b.operand], type_, "mask"), "additive")
    if _fill(matcher, bools) > _ABSORBS:
        return None
    return _Mask(matcher.new(before, root, "select", [bools.operand, numbers.operand, bools.fill], type_, "mask"), "additive")


def _fill(matcher: Matcher, mask: _Mask) -> float:
    fill = matcher.number(mask.fill)
    return -math.inf if fill is None else fill


def _unguarded(matcher: Matcher, weights: str, inside: set[str]) -> tuple[str, bool]:
    """Returns the softmax, and whether NaN in it is replaced by 0."""
    guard = matcher.node(weights, "select")
    if guard is None:
        return weights, False
    test, zero, inner = (name or "" for name in guard.inputs)
    strange = matcher.node(test, "is_nan")
    if strange is None or strange.inputs[0] != inner or matcher.number(zero) != 0:
        return weights, False
    inside |= {weights, test}
    return inner, True


def _peeled(matcher: Matcher, value: str, inside: set[str], masks: int = _MOST_MASKS) -> _Scores | None:
    """Takes up to ``masks`` masks, softcap and scale off the scores, from the outside in; None if what is left is no product."""
    for mask, inner in _masked(matcher, value) if masks else ():
        on_the_way = {value}
        scores = _peeled(matcher, inner, on_the_way, masks - 1)
        if scores is not None:
            inside |= on_the_way
            return replace(scores, masks=(*scores.masks, mask))
    on_the_way = {value}
    scale, rest = _scaled(matcher, value, on_the_way)
    bounded, softcap = matcher.node(rest, "tanh"), None
    if bounded is not None and scale > 0:
        softcap = scale
        on_the_way |= {rest, bounded.inputs[0] or ""}
        scale, rest = _scaled(matcher, bounded.inputs[0] or "", on_the_way)
        scale *= softcap
    product = matcher.node(rest, "matmul")
    if product is None or product.attrs["transpose_a"]:
        return None
    inside |= on_the_way | {rest}
    return _Scores(product, scale, softcap, ())


def _scaled(matcher: Matcher, value: str, inside: set[str]) -> tuple[float, str]:
    """Returns a number and the value that it is multiplied with; the products become part of what is inside."""
    products: dict[str, Product] = {}
    factor, rest = matcher.product(value, products)
    if len(rest) != 1 or matcher.shape(rest[0]) != matcher.shape(value):
        return 1.0, value
    inside |= set(products)
    return factor, rest[0]


def _masked(matcher: Matcher, value: str) -> Iterator[tuple[_Mask, str]]:
    """Yields what a value can be as masked scores: the mask, and the scores before it."""
    node = matcher.made.get(value)
    if node is not None and node.op == "add":
        a, b = node.reads()
        for inner, mask in ((a, b), (b, a)):
            if matcher.shape(inner) == matcher.shape(value):
                yield _added(matcher, mask, matcher.types[value]), inner
    for test, fill, inner, is_visible in _choices(matcher, value):
        if (matcher.number(fill) or 0) <= _REPLACES and matcher.shape(inner) == matcher.shape(value):
            known = matcher.constants.get(test)
            kind = "bool" if known is None else _kind(~known.data if is_visible else known.data, matcher.types[value], "bool")
            yield _Mask(test, kind, is_visible, fill), inner


def _choices(matcher: Matcher, value: str) -> Iterator[tuple[str, str, str, bool]]:
    """Yields (test, number, other value, whether the other is chosen where the test is true) of a value that a select chooses."""
    node = matcher.node(value, "select")
    if node is not None:
        test, first, second = (name or "" for name in node.inputs)
        yield from ((test, number, other, visible) for number, other, visible in ((second, first, True), (first, second, False)))


def _added(matcher: Matcher, mask: str, scores: TensorType) -> _Mask:
    """Returns the mask that adding a value is: of bools where it chooses between 0 and a number that absorbs any score."""
    for test, fill, other, is_visible in _choices(matcher, mask):
        if (matcher.number(fill) or 0) <= _ABSORBS and matcher.number(other) == 0:
            return _Mask(test, "bool", is_visible, fill)
    known = matcher.constants.get(mask)
    if known is None or not bool(((known.data <= _ABSORBS) | (known.data == 0)).all()):
        return _Mask(mask, "additive")
    return _Mask(mask, _kind(known.data <= _ABSORBS, scores, "additive"))


def _kind(hidden: np.ndarray, scores: TensorType, otherwise: str) -> str:
    """Returns ``none`` for a known mask that hides nothing, ``causal`` for one that hides just what comes later, else ``otherwise``."""
    if not hidden.any():
        return "none"
    later = np.logical_not(np.tri(*scores.shape[-2:], dtype=np.bool_))
    return "causal" if hidden.shape[-2:] == later.shape and bool((hidden == later).all()) else otherwise


def _turned(matcher: Matcher, root: Node, value: str, before: list[Node]) -> str:
    """Returns a value with its last two axes exchanged: what it was a transpose of, or a new transpose."""
    node, type_ = matcher.node(value, "transpose"), matcher.types[value]
    source, perm = (node.inputs[0] or "", list(node.attrs["perm"])) if node is not None else (value, list(range(type_.rank)))
    perm[-2:] = perm[:-3:-1]
    if perm == sorted(perm):
        return source
    *leading, rows, columns = type_.shape
    return matcher.new(before, root, "transpose", [source], TensorType(type_.dtype, (*leading, columns, rows)), "keys", perm=tuple(perm))


def _shared_heads(matcher: Matcher, root: Node, k: str, v: str, before: list[Node]) -> tuple[str, str, int]:
    """Returns keys and values before each head was repeated for several query heads, and how often it was."""
    keys, values = _unrepeated(matcher, k), _unrepeated(matcher, v)
    if keys is None or values is None or keys[1] != values[1]:
        return k, v, 1
    k, v = (_without_axis(matcher, root, single, name, before) for (single, _), name in ((keys, "keys"), (values, "values")))
    return k, v, keys[1]


def _unrepeated(matcher: Matcher, value: str) -> tuple[str, int] | None:
    """Looks through [.., K, 1, S, D] -> [.., K, groups, S, D] -> [.., K * groups, S, D]; returns the first, and how many groups there are."""
    flat = matcher.node(value, "reshape")
    wide = matcher.node(flat.inputs[0], "broadcast") if flat is not None else None
    if wide is None or len(matcher.shape(wide.outputs[0].name)) < 4:
        return None
    single = wide.inputs[0] or ""
    *leading, heads, groups, length, width = matcher.shape(wide.outputs[0].name)
    fits = matcher.shape(value) == (*leading, heads * groups, length, width)
    return (single, groups) if fits and matcher.shape(single) == (*leading, heads, 1, length, width) else None


def _without_axis(matcher: Matcher, root: Node, value: str, name: str, before: list[Node]) -> str:
    *leading, heads, _, length, width = matcher.shape(value)
    shape = (*leading, heads, length, width)
    return matcher.new(before, root, "reshape", [value], TensorType(matcher.types[value].dtype, shape), name, shape=shape)
