"""The fused operators of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.ir.graph import Graph
from tests.exporters.from_onnx.ort_support import matches_ort, node_model


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(op: str, *inputs: np.ndarray | None, **attrs: Any) -> Graph:
    return matches_ort(op, *inputs, domain="com.microsoft", rtol=1e-4, atol=1e-5, **attrs)


@pytest.mark.parametrize("known", [(), (1,)])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(known: tuple[int, ...], transposed: tuple[int, int]) -> None:
    a, b = normal(*((5, 3) if transposed[0] else (3, 5))), normal(*((4, 5) if transposed[1] else (5, 4)), seed=1)
    check("FusedMatMul", a, b, transA=transposed[0], transB=transposed[1], alpha=0.5, known=known)


def test_fused_matmul_of_batches() -> None:
    check("FusedMatMul", normal(2, 3, 5), normal(2, 4, 5, seed=1), transB=1)
    with pytest.raises(UnsupportedOperatorsError, match="transBatchA"):
        to_graph(node_model("FusedMatMul", [normal(2, 3, 5), normal(2, 5, 4)], domain="com.microsoft", transBatchA=1))


@pytest.mark.parametrize(("activation", "attrs"), [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Sigmoid", {}), ("Tanh", {})])
def test_fused_gemm(activation: str, attrs: dict[str, float]) -> None:
    inputs = normal(3, 5), normal(5, 4, seed=1), normal(4, seed=2)
    check("FusedGemm", *inputs, alpha=0.7, beta=1.3, activation=activation, known=(1, 2), **attrs)


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [("Relu", None), ("Tanh", None), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 1.5]), ("HardSigmoid", [0.3, 0.4])],
)
def test_fused_conv(activation: str, numbers: list[float] | None) -> None:
    attrs = {"activation": activation, "pads": [1, 1, 1, 1], **({} if numbers is None else {"activation_params": numbers})}
    check("FusedConv", normal(1, 3, 5, 6), normal(4, 3, 3, 3, seed=1), normal(4, seed=2), known=(1, 2), **attrs)


def test_fused_conv_adds_before_the_activation() -> None:
    inputs = normal(1, 3, 5, 6), normal(4, 3, 1, 1, seed=1), normal(4, seed=2), normal(1, 4, 5, 6, seed=3)
    check("FusedConv", *inputs, known=(1, 2), activation="Relu")


@pytest.mark.parametrize(
    ("op", "bias", "attrs"),
    [
        ("Gelu", False, {}),
        ("BiasGelu", True, {}),
        ("FastGelu", False, {}),
        ("FastGelu", True, {}),
        ("QuickGelu", False, {}),
        ("QuickGelu", False, {"alpha": 1.0}),
    ],
)
def test_gelus(op: str, bias: bool, attrs: dict[str, float]) -> None:
    check(op, normal(2, 3, 8), *([normal(8, seed=1)] if bias else []), **attrs)


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_norm(skip: tuple[int, ...], bias: bool) -> None:
    inputs = normal(2, 3, 8), normal(*skip, seed=1), normal(8, seed=2), normal(8, seed=3), normal(8, seed=4) if bias else None
    model = check("SkipLayerNormalization", *inputs, epsilon=1e-5)
    assert [node.op for node in model.nodes].count("layer_norm") == 1
    graph = to_graph(node_model("SkipLayerNormalization", inputs, 4, domain="com.microsoft"))
    assert len(graph.outputs) == 4


def test_skip_simplified_layer_norm() -> None:
    check("SkipSimplifiedLayerNormalization", normal(2, 3, 8), normal(2, 3, 8, seed=1), normal(8, seed=2), normal(8, seed=3))


def test_simplified_layer_norm() -> None:
    matches_ort("SimplifiedLayerNormalization", normal(2, 3, 8), normal(8, seed=1), epsilon=1e-6, axis=-1, stash_type=1)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embed_layer_norm(segments: bool, positions: bool) -> None:
    generator = np.random.default_rng(0)
    ids, kinds = (generator.integers(0, limit, (2, 4)).astype(np.int32) for limit in (9, 2))
    tables = normal(9, 8), normal(6, 8, seed=1), normal(2, 8, seed=2) if segments else None
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    order = np.array([[3, 2, 1, 0], [5, 4, 3, 2]], np.int32) if positions else None
    inputs = ids, kinds if segments else None, *tables, normal(8, seed=3), normal(8, seed=4), mask, order
    check("EmbedLayerNormalization", *inputs, outputs=2, epsilon=1e-5)


def test_operators_unknown_here_are_listed() -> None:
    with pytest.raises(UnsupportedOperatorsError, match=r"com\.microsoft\.Sampling"):
        to_graph(node_model("Sampling", [normal(2)], domain="com.microsoft"))
