"""Attention and rotary embeddings as imported from ONNX, against ONNX's reference evaluator, and ONNX Runtime for its own operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.ir.graph import Graph
from tests.exporters.from_onnx.ort_support import feeds, matches_ort, node_model, results_of, run_ort


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matches_reference(op: str, *inputs: np.ndarray | None, outputs: int = 1, **attrs: Any) -> Graph:
    """Asserts that the node gives what ONNX's reference evaluator gives; returns its graph."""
    model, given = node_model(op, inputs, outputs, **attrs), feeds(inputs)
    expected = ReferenceEvaluator(model).run(None, given)
    graph = to_graph(model)
    for results in results_of(graph, given):
        for got, wanted in zip(results, expected, strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return graph


def heads(queries: int = 3, keys: int = 5, q_heads: int = 4, kv_heads: int = 2) -> list[np.ndarray]:
    return [normal(2, q_heads, queries, 6), normal(2, kv_heads, keys, 6, seed=1), normal(2, kv_heads, keys, 7, seed=2)]


def the_attention(graph: Graph) -> Any:
    (node,) = [node for node in graph.nodes if node.op == "attention"]
    return node.attrs


def test_causal_alone_needs_no_mask() -> None:
    graph = matches_reference("Attention", *heads(), is_causal=1, softcap=2.0, at_opset=23)
    attrs = the_attention(graph)
    assert (attrs["mask"], attrs["softcap"], attrs["kv_groups"]) == ("causal", 2.0, 2)


@pytest.mark.parametrize("left", [-1, 0, 1])
@pytest.mark.parametrize("right", [-1, 0, 2])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows_with_counts_of_keys(left: int, right: int, causal: int) -> None:
    counts = np.array([5, 2], np.int64)  # the second has more queries than keys: its first query sees nothing
    attrs = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    matches_reference("Attention", *heads(), None, None, None, counts, at_opset=25, **attrs)


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (1, 3, 7), (2, 1, 3, 8)])
@pytest.mark.parametrize("kind", [np.bool_, np.float32])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_with_a_past(shape: tuple[int, ...], kind: type, causal: int) -> None:
    """8 keys in all; a mask of fewer hides those behind it."""
    past = [normal(2, 2, 3, 6, seed=3), normal(2, 2, 3, 7, seed=4)]
    mask = normal(*shape, seed=5)
    inputs = [*heads(), (mask > -0.5) if kind is np.bool_ else mask, *past]
    matches_reference("Attention", *inputs, outputs=3, is_causal=causal, at_opset=23)


@pytest.mark.parametrize("mode", [1, 2, 3])
@pytest.mark.parametrize("causal", [0, 1])
def test_scores_on_the_way(mode: int, causal: int) -> None:
    mask = normal(3, 5, seed=5) > 0
    mask[1] = False
    attrs = {"qk_matmul_output_mode": mode, "softcap": 1.5, "is_causal": causal, "at_opset": 24}
    matches_reference("Attention", *heads(), mask, None, None, outputs=4, **attrs)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_scores_before_everything(softcap: float) -> None:
    """The reference evaluator gives them after the softcap, against the specification."""
    matches_ort("Attention", *heads(), outputs=4, softcap=softcap, at_opset=23, rtol=1e-4, atol=1e-5)


def test_three_axes_hold_the_heads_side_by_side() -> None:
    inputs = normal(2, 3, 24), normal(2, 5, 12, seed=1), normal(2, 5, 14, seed=2)
    matches_reference("Attention", *inputs, q_num_heads=4, kv_num_heads=2, scale=0.3, at_opset=23)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="3 heads of queries cannot share 2 heads of keys"):
        to_graph(node_model("Attention", heads(q_heads=3), at_opset=23))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary_embedding(interleaved: int, width: int, flat: bool) -> None:
    tables = [normal(9, (width or 8) // 2, seed=seed) for seed in (1, 2)]
    positions = np.array([[0, 3, 8], [2, 1, 0]], np.int64)
    x, attrs = (normal(2, 3, 16), {"num_heads": 2}) if flat else (normal(2, 2, 3, 8), {})
    matches_reference("RotaryEmbedding", x, *tables, positions, interleaved=interleaved, rotary_embedding_dim=width, at_opset=23, **attrs)


def matches_contrib(op: str, *inputs: np.ndarray | None, **attrs: Any) -> Graph:
    return matches_ort(op, *inputs, domain="com.microsoft", rtol=1e-4, atol=2e-5, **attrs)


MASKS = {
    "none": None,
    "lengths": np.array([4, 2], np.int32),
    "keys": np.array([[1, 1, 1, 0], [1, 0, 1, 0]], np.int32),
    "pairs": (normal(2, 4, 4, seed=9) > -0.5).astype(np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("known", [(), (1, 2)])
def test_attention_of_ort(mask: str, causal: int, known: tuple[int, ...]) -> None:
    inputs = normal(2, 4, 10), normal(10, 24, seed=1), normal(24, seed=2), MASKS[mask]
    matches_contrib("Attention", *inputs, num_heads=2, unidirectional=causal, known=known)


def test_attention_of_ort_with_a_past() -> None:
    past = normal(2, 2, 2, 3, 4, seed=3)
    inputs = normal(2, 4, 10), normal(10, 24, seed=1), normal(24, seed=2), None, past
    matches_contrib("Attention", *inputs, num_heads=2, unidirectional=1, outputs=2)


@pytest.mark.parametrize("mask", MASKS)
def test_multi_head_attention(mask: str) -> None:
    inputs = normal(2, 4, 8), normal(2, 4, 8, seed=1), normal(2, 4, 6, seed=2), normal(22, seed=3), MASKS[mask]
    matches_contrib("MultiHeadAttention", *inputs, normal(1, 2, 4, 4, seed=4), num_heads=2, scale=0.4)


def test_multi_head_attention_with_a_past() -> None:
    past = normal(2, 2, 3, 4, seed=4), normal(2, 2, 3, 4, seed=5)
    inputs = normal(2, 2, 8), normal(2, 2, 8, seed=1), normal(2, 2, 8, seed=2), None, None, None
    matches_contrib("MultiHeadAttention", *inputs, *past, num_heads=2, unidirectional=1, outputs=3)


def test_multi_head_attention_over_ready_keys() -> None:
    inputs = normal(2, 3, 8), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 4, seed=2)
    matches_contrib("MultiHeadAttention", *inputs, num_heads=2)


def i32(*elements: int) -> np.ndarray:
    return np.array(elements, np.int32)


@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention_of_a_prompt(window: int, rotary: int, packed: bool) -> None:
    q, k, v = normal(2, 5, 64), normal(2, 5, 32, seed=1), normal(2, 5, 32, seed=2)
    parts = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    tables = [normal(8, 8, seed=seed) for seed in (3, 4)] if rotary else []
    inputs = [*parts, None, None, i32(4, 4), np.array(5, np.int32), *tables]
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": rotary, "local_window_size": window}
    matches_contrib("GroupQueryAttention", *inputs, known=(6,), outputs=3, **attrs)


@pytest.mark.parametrize("last", [i32(6), i32(6, 6), i32(6, 4)])
def test_group_query_attention_with_a_past(last: np.ndarray) -> None:
    """The elements of a batch may have caches of different lengths: here 6 and 4 keys before the new one."""
    batch = last.size
    q, k, v = normal(batch, 1, 64), normal(batch, 1, 32, seed=1), normal(batch, 1, 32, seed=2)
    past = [normal(batch, 2, 6, 16, seed=seed) for seed in (3, 4)]
    tables = [normal(8, 8, seed=seed) for seed in (5, 6)]
    inputs = [q, k, v, *past, last, np.array(7, np.int32), *tables]
    model = node_model("GroupQueryAttention", inputs, 3, domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1)
    expected = run_ort(model, feeds(inputs))
    for y, *cache in results_of(to_graph(model, known={"x6": inputs[6]}), feeds(inputs)):
        np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(cache, expected[1:], strict=True):
            for index, end in enumerate(last):  # what lies behind is not specified
                np.testing.assert_allclose(ours[index, :, : end + 1], theirs[index, :, : end + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", [np.array([2], np.int64), np.array([[0, 3, 8], [2, 1, 0]], np.int64)])
def test_rotary_embedding_of_ort(positions: np.ndarray) -> None:
    matches_contrib("RotaryEmbedding", normal(2, 3, 16), positions, normal(9, 4, seed=1), normal(9, 4, seed=2))
