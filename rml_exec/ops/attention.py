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
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask_operand: TensorType | None,
    *,
    scale: float,
    softcap: float | None,
    mask: str,
    fully_masked: str,
    kv_groups: int,
) -> TensorType:
    dtype = same_dtype(q, k, v)
    dtype_in(dtype, FLOATS)
    if not q.rank == k.rank == v.rank or q.rank < 2:
        raise Rule("q, k and v must have one rank of at least 2", f"ranks {q.rank}, {k.rank} and {v.rank}")
    if kv_groups < 1 or (kv_groups > 1 and q.rank < 3):
        raise Rule("kv_groups must be 1, or with an axis of heads at least 1", kv_groups)
    if softcap is not None and not softcap > 0:
        raise Rule("softcap must be above 0", softcap)
    shared = q.shape[:-2] if kv_groups == 1 else (*q.shape[:-3], q.shape[-3] // kv_groups)
    if not shared == k.shape[:-2] == v.shape[:-2] or (kv_groups > 1 and q.shape[-3] % kv_groups):
        times = "" if kv_groups == 1 else f", q with {kv_groups} times the heads of k and v"
        raise Rule(
            f"q, k and v must agree on all axes but the last two{times}",
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
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask_operand: np.ndarray | None,
    *,
    scale: float,
    softcap: float | None,
    mask: str,
    fully_masked: str,
    kv_groups: int,
) -> np.ndarray:
    if kv_groups > 1:
        k, v = (np.repeat(shared, kv_groups, axis=-3) for shared in (k, v))
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
    if softcap is not None:
        scores = np.tanh(scores / q.dtype.type(softcap)) * q.dtype.type(softcap)
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
    p: Primitives,
    q: str,
    k: str,
    v: str,
    mask_operand: str | None,
    *,
    scale: float,
    softcap: float | None,
    mask: str,
    fully_masked: str,
    kv_groups: int,
) -> str:
    if kv_groups > 1:
        k, v = (_repeat_heads(p, shared, kv_groups) for shared in (k, v))
    scores = p("mul", p("matmul", q, k, transpose_a=False, transpose_b=True), scale)
    if softcap is not None:
        scores = p("mul", p("tanh", p("div", scores, softcap, rounding="true")), softcap)
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


def _repeat_heads(p: Primitives, shared: str, groups: int) -> str:
    *batch, heads, length, width = p.type(shared).shape
    single = p("reshape", shared, shape=(*batch, heads, 1, length, width))
    repeated = p("broadcast", single, shape=(*batch, heads, groups, length, width))
    return str(p("reshape", repeated, shape=(*batch, heads * groups, length, width)))


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    q, k, v = types[:3]
    scores = q.size // q.shape[-1] * k.shape[-2] if q.shape[-1] else 0
    return scores * (2 * q.shape[-1] + 2 * v.shape[-1] + 14)


def _attrs(
    mask: str = "none", fully_masked: str = "nan", scale: float = 0.25, softcap: float | None = None, kv_groups: int = 1
) -> dict[str, Any]:
    return {"scale": scale, "softcap": softcap, "mask": mask, "fully_masked": fully_masked, "kv_groups": kv_groups}


_ALLOWED = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0]], np.bool_)
_ADDED = np.where(_ALLOWED, np.float32(0.5), np.float32(-np.inf))
_QKV = ((2, 4, 5, 8), (2, 4, 3, 8), (2, 4, 3, 6))

define(
    name="attention",
    inputs=("q", "k", "v", "mask?"),
    attrs={
        "scale": Attr("float"),
        "softcap": Attr("float", optional=True),
        "mask": Attr("str", ("none", "bool", "additive", "causal")),
        "fully_masked": Attr("str", ("zero", "nan", "uniform")),
        "kv_groups": Attr("int"),
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
        case("softcap", *_QKV, _ALLOWED, **_attrs("bool", "zero", scale=3.0, softcap=2.0)),
        case("grouped", (2, 6, 5, 8), (2, 2, 3, 8), (2, 2, 3, 7), None, **_attrs(kv_groups=3)),
        case("grouped-causal", (4, 7, 16), (1, 7, 16), (1, 7, 16), None, **_attrs("causal", kv_groups=4)),
        case(
            "grouped-one-query",
            (2, 4, 1, 8),
            (2, 2, 3, 8),
            (2, 2, 3, 6),
            _ADDED[1:3, None, None],
            **_attrs("additive", "zero", kv_groups=2),
        ),
        case("grouped-softcap", (3, 4, 5, 8), (3, 2, 3, 8), (3, 2, 3, 6), _ALLOWED, **_attrs("bool", "uniform", softcap=1.5, kv_groups=2)),
        case("no-queries", (2, 0, 8), (2, 3, 8), (2, 3, 6), None, **_attrs()),
        case("no-keys", (2, 3, 8), (2, 0, 8), (2, 0, 6), None, **_attrs("none", "zero")),
        case("no-batch", (0, 3, 8), (0, 5, 8), (0, 5, 6), None, **_attrs()),
        case("f64", *[TensorType(DType.F64, (3, 5))] * 3, None, **_attrs()),
        case("f16", *[TensorType(DType.F16, (5, 16))] * 3, None, **_attrs()),
    ),
    doc="y = softmax(scale * q @ k^T + mask) @ v on the last two axes; q [.., T, D], k [.., S, D], v [.., S, E], y [.., T, E], "
    "the axes before them (batch, heads) equal. With kv_groups above 1, q has that many times the heads of k and v (axis -3), "
    "and its head h reads their head h // kv_groups. softcap bounds the scaled scores before the mask: softcap * "
    "tanh(scores / softcap). mask bool: an operand broadcasting to [.., T, S], true where the query may attend; additive: "
    "added to the scores; causal: query i sees keys 0..i, aligned at the top left as in torch. A row whose scores are all "
    "-inf gives zeros (torch), NaN, or the mean of v over all keys (uniform: jax, which masks with a large finite number).",
)
