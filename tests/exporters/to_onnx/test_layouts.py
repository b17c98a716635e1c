"""Where data is moved: channels-last networks become channels-first throughout, broadcasts stay unstretched, weights lie as runtimes want."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from exporters.to_onnx import to_model  # noqa: E402
from rml_exec import GraphBuilder  # noqa: E402
from rml_exec.ir.graph import Graph  # noqa: E402
from rml_exec.runtime.reference import run_reference  # noqa: E402
from tests.exporters.to_onnx.onnx_runs import operators, run_model  # noqa: E402

SAME = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "data_layout": "NHWC"}
POINT = {**SAME, "pads": ((0, 0), (0, 0))}
MEAN = {"kind": "mean", "keepdims": False, "nan": "propagate", "empty": "error"}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_gives_the_reference(graph: Graph, model: Any) -> None:
    onnx.checker.check_model(model, full_check=True)
    inputs = {value.name: normal(*value.type.shape) for value in graph.inputs}
    wanted = run_reference(graph, inputs, precision="f64")
    for name, got in zip(wanted, run_model(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


def keras_like() -> Graph:
    """A channels-last CNN: pads, convolutions, norm, a gate from pooled features, a residual, a pool, a concatenation, a classifier."""
    b = GraphBuilder("keras")
    x = b.input("x", "f32", (2, 10, 12, 3))
    x = b.add("pad", [x], mode="constant", low=(0, 1, 2, 0), high=(0, 0, 1, 0), interior=(0, 0, 0, 0), value=0.0)
    x = b.add("conv2d", [x, b.constant(normal(8, 3, 3, 3), "w0", key="w0"), None], **SAME)
    x = b.add("add", [x, b.constant(normal(8), "b0", key="b0")])
    statistics = [b.constant(np.abs(normal(8, seed=seed)) + 0.5, f"s{seed}", key=f"s{seed}") for seed in range(4)]
    x = b.add("relu", [b.add("batch_norm", [x, *statistics], eps=1e-3, axis=3)])
    gate = b.add("reshape", [b.add("reduce", [x], axes=(1, 2), **MEAN)], shape=(2, 1, 1, 8))
    gate = b.add("sigmoid", [b.add("conv2d", [gate, b.constant(normal(8, 8, 1, 1), "w1", key="w1"), None], **POINT)])
    y = b.add("conv2d", [b.add("mul", [x, gate]), b.constant(normal(8, 8, 3, 3), "w2", key="w2"), None], **SAME)
    y = b.add("add", [x, y])
    pooled = {"window": (2, 2), "strides": (2, 2), "pads": ((0, 1), (0, 1)), "data_layout": "NHWC"}
    y = b.add("max_pool", [y], dilations=(1, 1), nan="skip", **pooled)
    y = b.add("concat", [y, b.add("silu", [y])], axis=3)
    y = b.add("slice", [y], start=(0, 1, 0, 4), limit=(2, 6, 7, 16), strides=(1, 2, 1, 1))
    features = b.add("reduce", [y], axes=(1, 2), **MEAN)
    b.output("y", b.add("linear", [features, b.constant(normal(12, 5), "w3", key="w3"), None], weight_layout="io"))
    return b.build()


def test_a_channels_last_network_is_transposed_once() -> None:
    graph = keras_like()
    model = to_model(graph)
    assert operators(model).count("Transpose") == 1
    assert_gives_the_reference(graph, model)


def test_a_channels_last_result_is_transposed_at_the_end() -> None:
    b = GraphBuilder("image")
    x = b.input("x", "f32", (1, 6, 5, 3))
    y = b.add("conv2d", [x, b.constant(normal(4, 3, 3, 3), "w", key="w"), None], **SAME)
    b.output("image", b.add("tanh", [y]))
    graph = b.build()
    model = to_model(graph)
    assert operators(model) == ["Transpose", "Conv", "Tanh", "Transpose"]
    assert model.graph.node[-1].output[0] == "image"
    assert_gives_the_reference(graph, model)


def test_transposes_that_undo_each_other_vanish() -> None:
    b = GraphBuilder("undone")
    x = b.input("x", "f32", (2, 3, 4, 5))
    turned = b.add("transpose", [x], perm=(0, 2, 3, 1))
    scaled = b.add("mul", [turned, b.constant(normal(3), "scale", key="scale")])
    b.output("y", b.add("transpose", [scaled], perm=(0, 3, 1, 2)))
    graph = b.build()
    model = to_model(graph)
    assert operators(model) == ["Mul"]
    assert_gives_the_reference(graph, model)


def test_a_convolution_of_a_line_needs_no_transpose_where_axes_of_size_1_move() -> None:
    b = GraphBuilder("line")
    x = b.input("x", "f32", (1, 40, 1))
    for index in range(2):
        wide = b.add("reshape", [x], shape=(1, 1, 40, b.type(x).shape[-1]))
        w = b.constant(normal(4, b.type(x).shape[-1], 1, 3), f"w{index}", key=f"w{index}")
        y = b.add("conv2d", [wide, w, None], **{**SAME, "pads": ((0, 0), (1, 1))})
        x = b.add("neg", [b.add("reshape", [y], shape=(1, 40, 4))])
    b.output("y", b.add("transpose", [x], perm=(0, 2, 1)))
    graph = b.build()
    model = to_model(graph)
    assert "Transpose" not in operators(model)
    assert_gives_the_reference(graph, model)


def test_a_broadcast_is_left_to_the_operator_that_reads_it() -> None:
    b = GraphBuilder("stretched")
    x, row = b.input("x", "f32", (4, 3)), b.input("row", "f32", (3,))
    wide = b.add("broadcast", [b.add("reshape", [row], shape=(1, 3))], shape=(4, 3))
    b.output("sum", b.add("add", [x, wide]))
    b.output("square", b.add("mul", [wide, wide]))
    graph = b.build()
    model = to_model(graph)
    assert sorted(operators(model)) == ["Add", "Expand", "Mul", "Reshape"]
    assert_gives_the_reference(graph, model)


def test_weights_lie_as_runtimes_fuse_them() -> None:
    b = GraphBuilder("weights")
    x = b.input("x", "f32", (2, 4, 3))
    w, bias = b.constant(normal(5, 3), "fc.weight", key="fc.weight"), b.constant(normal(5), "fc.bias", key="fc.bias")
    b.output("y", b.add("linear", [x, w, bias], weight_layout="oi"))
    graph = b.build()
    model = to_model(graph)
    assert operators(model) == ["MatMul", "Add"]
    assert {tensor.name: list(tensor.dims) for tensor in model.graph.initializer} == {"fc.weight.10": [3, 5], "fc.bias": [5]}
    assert_gives_the_reference(graph, model)


def test_a_large_weight_that_two_nodes_read_is_stored_once() -> None:
    b = GraphBuilder("tied")
    tokens = b.input("tokens", "i64", (1, 2))
    table = b.constant(normal(2000, 200), "wte", key="wte")
    taken = {"axis": 0, "oob": "error", "wrap_negative": False, "fill_value": None}
    b.output("logits", b.add("linear", [b.add("take", [table, tokens], **taken), table, None], weight_layout="oi"))
    model = to_model(b.build())
    assert [tensor.name for tensor in model.graph.initializer] == ["wte"]
    assert operators(model) == ["Gather", "Transpose", "MatMul"]


def test_what_depends_on_constants_alone_is_computed_at_once() -> None:
    b = GraphBuilder("folded")
    x = b.input("x", "f32", (2, 3))
    root = b.add("sqrt", [b.constant(np.float32([4, 9, 16]), "square")])
    b.output("y", b.add("mul", [x, b.add("broadcast", [root], shape=(2, 3))]))
    graph = b.build()
    model = to_model(graph)
    assert operators(model) == ["Mul"]
    assert_gives_the_reference(graph, model)


@pytest.mark.parametrize("kind", ["none", "causal", "bool"])
def test_attention_is_written_out_and_its_mask_made_once_for_all_layers(kind: str) -> None:
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, "f32", (1, 2, 4, 8)) for name in "qkv")
    allowed = b.add("compare", [b.input("lengths", "f32", (1, 1, 1, 4)), b.constant(np.float32(0), "zero")], dir="ge")
    for _ in range(2):
        operands = [q, k, v, allowed if kind == "bool" else None]
        q = b.add("attention", operands, scale=0.5, softcap=None, mask=kind, fully_masked="zero", kv_groups=1)
    b.output("y", q)
    b.output("allowed", b.add("cast", [allowed], to="f32", f2i="error"))
    graph = b.build()
    model = to_model(graph)
    layer = [
        "Mul",
        "Transpose",
        "MatMul",
        *(["Add"] if kind != "none" else []),
        "Softmax",
        "MatMul",
        *(["Where"] if kind == "bool" else []),
    ]
    made = {"none": 0, "causal": 1, "bool": 6}[kind]
    assert len(operators(model)) == 2 + 2 * len(layer) - 1 + made  # the keys are transposed once
    assert_gives_the_reference(graph, model)
