"""Convolutions, normalisations and softmax as imported from ONNX, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from tests.exporters.from_onnx.ort_support import matches_ort, node_model


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ops(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize(
    ("image", "attrs"),
    [
        ((9,), {}),
        ((9,), {"auto_pad": "SAME_LOWER", "strides": [2]}),
        ((9, 8), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((9, 8), {"auto_pad": "VALID", "strides": [2, 2]}),
        ((9, 8), {"pads": [0, 2, 1, 0], "strides": [1, 2], "dilations": [2, 1]}),
        ((5, 6, 7), {"pads": [1, 0, 1, 0, 1, 2], "strides": [2, 1, 1]}),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(image: tuple[int, ...], attrs: dict[str, Any], groups: int) -> None:
    weights = normal(6, 4 // groups, *(3,) * len(image), seed=1)
    matches_ort("Conv", normal(2, 4, *image), weights, normal(6, seed=2), known=(1, 2), group=groups, rtol=1e-4, atol=1e-5, **attrs)


def test_a_one_dimensional_convolution_is_one_node_between_reshapes() -> None:
    graph = matches_ort("Conv", normal(1, 2, 9), normal(3, 2, 3, seed=1), known=(1,))
    assert ops(graph) == ["reshape", "conv2d", "reshape"]


@pytest.mark.parametrize(
    ("image", "attrs"),
    [
        ((5,), {"strides": [3], "output_padding": [1]}),
        ((5, 4), {"strides": [3, 2], "output_shape": [16, 9], "auto_pad": "SAME_UPPER"}),
        ((5, 4), {"strides": [3, 2], "output_shape": [14, 8]}),
        ((5, 4), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((5, 4), {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}),
        ((3, 4, 3), {"strides": [2, 1, 3], "pads": [1, 0, 0, 1, 1, 0], "output_padding": [1, 0, 2]}),
        ((3, 4, 3), {"dilations": [2, 1, 1], "pads": [3, 0, 0, 2, 0, 0]}),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(image: tuple[int, ...], attrs: dict[str, Any], groups: int) -> None:
    weights = normal(4, 3, *(3,) * len(image), seed=1)
    inputs = normal(2, 4, *image), weights, normal(3 * groups, seed=2)
    matches_ort("ConvTranspose", *inputs, known=(1, 2), group=groups, rtol=1e-4, atol=1e-5, **attrs)


def test_batch_norm_statistics_may_be_wider() -> None:
    x, stats = normal(2, 3, 4, dtype=np.float16), [np.abs(normal(3, seed=seed)) + 0.5 for seed in range(4)]
    graph = to_graph(node_model("BatchNormalization", [x, *stats]), known={f"x{index + 1}": value for index, value in enumerate(stats)})
    assert ops(graph) == ["cast", "batch_norm", "cast"]
    assert graph.outputs[0].name == "y0"


def test_batch_norm_in_training_mode_is_refused() -> None:
    model = node_model("BatchNormalization", [normal(2, 3, 4), *(normal(3) for _ in range(4))], outputs=3, training_mode=1)
    with pytest.raises(UnsupportedOperatorsError, match="as in training"):
        to_graph(model)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_layer_norm_and_its_statistics(axis: int) -> None:
    shape = (2, 3, 4)[axis:]
    matches_ort("LayerNormalization", normal(2, 3, 4) + 3, normal(*shape, seed=1), normal(*shape, seed=2), outputs=3, axis=axis)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (2, 1, 1)])
def test_layer_norm_scale_that_broadcasts(shape: tuple[int, ...]) -> None:
    graph = matches_ort("LayerNormalization", normal(2, 3, 4), normal(*shape, seed=1), normal(*shape, seed=2), axis=1, at_opset=17)
    assert "layer_norm" in ops(graph)


@pytest.mark.parametrize("order", [1, 2])
def test_lp_norm_of_zeros_is_zero(order: int) -> None:
    x = normal(3, 4, 2)
    x[1] = 0
    matches_ort("LpNormalization", x, axis=1, p=order)


def test_group_norm_scale_is_per_group_before_opset_21() -> None:
    inputs = normal(2, 6, 5), normal(3, seed=1), normal(3, seed=2)
    graph = to_graph(node_model("GroupNormalization", inputs, num_groups=3, at_opset=18), known={"x1": inputs[1], "x2": inputs[2]})
    assert ops(graph) == ["group_norm"]
    scale = next(constant for constant in graph.constants if constant.name == graph.nodes[0].inputs[1])
    np.testing.assert_array_equal(scale.data, np.repeat(inputs[1], 2))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size: int) -> None:
    matches_ort("LRN", normal(2, 5, 3, 4), size=size, alpha=0.5, beta=0.6, bias=1.5)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, 0), (11, 1), (11, 2), (13, 0), (13, -2)])
def test_softmax_before_opset_13_joins_axes(op: str, opset: int, axis: int) -> None:
    matches_ort(op, normal(2, 3, 4), at_opset=opset, axis=axis)


def test_softmax_over_the_last_axis_is_one_node() -> None:
    assert ops(matches_ort("Softmax", normal(2, 3, 4), at_opset=11, axis=2)) == ["softmax"]


def test_dropout_is_nothing_and_its_mask_is_true() -> None:
    graph = matches_ort("Dropout", normal(2, 3), np.array(0.5, np.float32), outputs=2, known=(1,))
    assert "x0" in [output.value for output in graph.outputs]


def test_dropout_in_training_mode_is_refused() -> None:
    model = node_model("Dropout", [normal(2, 3), np.array(0.5, np.float32), np.array(True)])
    known = {"x1": np.array(0.5, np.float32), "x2": np.array(True)}
    with pytest.raises(UnsupportedOperatorsError, match="draws random numbers"):
        to_graph(model, known=known)
    with pytest.raises(UnsupportedOperatorsError, match="training_mode depends on the inputs"):
        to_graph(model)
