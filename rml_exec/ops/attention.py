"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rml_exec.ops.decompose import Primitives
from rml_exec.ops.linear import PRODUCT
from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, broadcast, dtype_in, same_dtype
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType


def _infer_attention(
    q: TensorType, k: TensorType, v: TensorType, mask_operand: TensorType | None, *, scale: float, mask: str, fully_masked: str
) -> TensorType:
    dtype = same_dtype(q, k, v)
    dtype_in(dtype, FLOATS)
    if not q.rank == k.rank == v.rank or q.rank < 2:
        raise Rule("q, k and v must have one rank of at least 2", f"ranks {q.rank}, {k.rank} and {v.rank}")
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise Rule(
            "q, k and v must agree on all axes but the last two",
            " and ".join(str(list(t.shape[:-2])) for t in (q, k, v)),
            "broadcast first",
        )
    if q.shape[-1] != k.shape[-1]:
        raise Rule("q and k must have one width", f"{q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise Rule("k and v must have one length", f"{k.shape[-2]} and {v.shape[-2]}")
    if (mask_operand is not None) != (mask in ("bool", "additive")):
        raise Rule("operand mask must be present for mask bool and additive, and null for none and causal", mask)
    if mask_operand is not None:
        wanted = DType.BOOL if mask == "bool" else dtype
        if mask_operand.dtype is not wanted:
            raise Rule(f"operand mask must be {wanted} for mask {mask}", mask_operand.dtype)
        scores = (*q.shape[:-1], k.shape[-2])
        if broadcast(mask_operand.shape, scores) != scores:
            raise Rule(f"operand mask must broadcast to {list(scores)}", list(mask_operand.shape))
    return TensorType(dtype, (*q.shape[:-1], v.shape[-1]))


@half_in_single
def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask_operand: np.ndarray | None, *, scale: float, mask: str, fully_masked: str
) -> np.ndarray:
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
    if mask == "additive":
        scores = scores + mask_operand
    elif mask != "none":
        allowed = np.tri(*scores.shape[-2:], dtype=np.bool_) if mask_operand is None else mask_operand
        scores = np.where(allowed, scores, q.dtype.type(-np.inf))
    powers = np.exp(scores - np.max(scores, -1, keepdims=True, initial=-np.inf))
    weights = powers / np.sum(powers, -1, keepdims=True)
    if fully_masked != "nan":
        # Over no keys both give what a sum over nothing gives: 0.
        even = q.dtype.type(1 / max(1, k.shape[-2]) if fully_masked == "uniform" else 0)
        weights = np.where(np.all(np.isneginf(scores), -1, keepdims=True), even, weights)
    return np.matmul(weights, v)


def _expand_attention(
    p: Primitives, q: str, k: str, v: str, mask_operand: str | None, *, scale: float, mask: str, fully_masked: str
) -> str:
    scores = p("mul", p("matmul", q, k, transpose_a=False, transpose_b=True), scale)
    length, keys = p.type(scores).shape[-2:]
    if mask == "additive":
        scores = p("add", scores, mask_operand)
    elif mask != "none":
        if mask == "causal":
            query, key = (p("iota", dtype="i32", shape=(length, keys), axis=axis) for axis in (0, 1))
            mask_operand = p("compare", query, key, dir="ge")
        scores = p("select", mask_operand, scores, -math.inf)
    if fully_masked == "uniform":  # equal scores have equal weights
        masked = p("compare", p.reduce("max", scores, [p.type(scores).rank - 1]), -math.inf, dir="eq")
        scores = p("select", masked, 0.0, scores)
    weights = p("softmax", scores, axis=p.type(scores).rank - 1, fully_masked="zero" if fully_masked == "zero" else "nan")
    return p("matmul", weights, v, transpose_a=False, transpose_b=False)


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    q, k, v = types[:3]
    scores = q.size // q.shape[-1] * k.shape[-2] if q.shape[-1] else 0
    return scores * (2 * q.shape[-1] + 2 * v.shape[-1] + 14)


def _attrs(mask: str = "none", fully_masked: str = "nan", scale: float = 0.25) -> dict[str, Any]:
    return {"scale": scale, "mask": mask, "fully_masked": fully_masked}


_ALLOWED = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0]], np.bool_)
_ADDED = np.where(_ALLOWED, np.float32(0.5), np.float32(-np.inf))
_QKV = ((2, 4, 5, 8), (2, 4, 3, 8), (2, 4, 3, 6))

define(
    name="attention",
    inputs=("q", "k", "v", "mask?"),
    attrs={
        "scale": Attr("float"),
        "mask": Attr("str", ("none", "bool", "additive", "causal")),
        "fully_masked": Attr("str", ("zero", "nan", "uniform")),
    },
    infer=_infer_attention,
    reference=_attention,
    expand=_expand_attention,
    flops=_flops,
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1), (1, 1), (1, 1), None, **_attrs()),
        case("heads", *_QKV, None, **_attrs()),
        case("no-batch-axes", (7, 16), (17, 16), (17, 5), None, **_attrs()),
        case("causal", (2, 7, 16), (2, 7, 16), (2, 7, 16), None, **_attrs("causal")),
        case("causal-wide", (2, 3, 8), (2, 5, 8), (2, 5, 8), None, **_attrs("causal")),
        *(case(f"bool-{masked}", *_QKV, _ALLOWED, **_attrs("bool", masked)) for masked in ("zero", "nan", "uniform")),
        *(case(f"additive-{masked}", *_QKV, _ADDED, **_attrs("additive", masked)) for masked in ("zero", "nan", "uniform")),
        case("padding-mask", *_QKV, np.array([[[[True, True, False]]], [[[True, False, False]]]]), **_attrs("bool", "zero")),
        case("tail", (1, 3, 33), (1, 1027, 33), (1, 1027, 17), None, **_attrs(scale=0.174)),
        case("no-queries", (2, 0, 8), (2, 3, 8), (2, 3, 6), None, **_attrs()),
        case("no-keys", (2, 3, 8), (2, 0, 8), (2, 0, 6), None, **_attrs("none", "zero")),
        case("no-batch", (0, 3, 8), (0, 5, 8), (0, 5, 6), None, **_attrs()),
        case("f64", *[TensorType(DType.F64, (3, 5))] * 3, None, **_attrs()),
        case("f16", *[TensorType(DType.F16, (5, 16))] * 3, None, **_attrs()),
    ),
    doc="y = softmax(scale * q @ k^T + mask) @ v on the last two axes; q [.., T, D], k [.., S, D], v [.., S, E], y [.., T, E], "
    "the axes before them (batch, heads) equal. mask bool: an operand broadcasting to [.., T, S], true where the query may "
    "attend; additive: added to the scores; causal: query i sees keys 0..i, aligned at the top left as in torch. A row "
    "whose scores are all -inf gives zeros (torch), NaN, or the mean of v over all keys (uniform: jax, which masks with a "
    "large finite number).",
)
