"""Functions of a graph as subgraphs of If, Loop and Scan, and calls written where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from exporters.to_onnx import to_model  # noqa: E402
from rml_exec import GraphBuilder  # noqa: E402
from rml_exec.ir.graph import Graph  # noqa: E402
from rml_exec.runtime.reference import run_reference  # noqa: E402
from tests.exporters.to_onnx.onnx_runs import OPSETS, operators, run_model  # noqa: E402
from tests.helpers.control_graphs import control_graphs, loop_graph, rnn_graph  # noqa: E402
from tests.helpers.graphs import pattern  # noqa: E402


def assert_gives_the_reference(graph: Graph, inputs: dict[str, np.ndarray], **options: Any) -> Any:
    model = to_model(graph, **options)
    onnx.checker.check_model(model, full_check=True)
    wanted = run_reference(graph, inputs, precision="f32")
    for name, got in zip(wanted, run_model(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)
    return model


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrent_network_is_a_scan_whose_body_sees_the_weights(reverse: bool, opset: int) -> None:
    graph = rnn_graph(reverse=reverse)
    model = assert_gives_the_reference(graph, {"x": pattern(5, 2, 3), "h": pattern(2, 4)}, opset=opset)
    assert operators(model) == ["Scan"]
    assert len(model.graph.node[0].input) == 2  # the state and the sequence
    assert {tensor.name for tensor in model.graph.initializer} >= {"w", "bias"}


@pytest.mark.parametrize("limit", [0, 3, 100])
def test_a_loop_that_data_end(limit: int) -> None:
    inputs = {"n": np.int32(0), "limit": np.int32(limit), "x": np.float32([1, 2, 3]), "factor": np.float32(1.5)}
    model = assert_gives_the_reference(loop_graph(), {name: np.asarray(array) for name, array in inputs.items()})
    assert operators(model).count("Loop") == 1


@settings(max_examples=60, deadline=None)
@given(control_graphs())
def test_random_control_flow(graph: Graph) -> None:
    assert_gives_the_reference(graph, {"x0": np.float32([1, -2, 3]), "x1": np.float32([0.5, 4, -1])})


@pytest.mark.parametrize("length", [0, 3])
def test_a_scan_of_nothing_but_a_number_of_steps(length: int) -> None:
    b = GraphBuilder("counted")
    body = b.function("body")
    x = body.input("x", "f32", (2,))
    y = body.add("add", [x, body.constant(np.float32([1, 2]), name="step")])
    body.output("x", y)
    body.output("seen", x)
    last, seen = b.add("scan", [b.input("x", "f32", (2,))], body=body.build(), length=length, reverse=True, num_consts=0, num_carry=1)
    b.output("last", last)
    b.output("seen", seen)
    assert_gives_the_reference(b.build(), {"x": np.float32([5, 7])})


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 9])
def test_a_switch_clamps_its_index(index: int) -> None:
    b = GraphBuilder("switch")
    names = []
    for number in range(4):
        f = b.function(f"times{number}")
        f.output("y", f.add("mul", [f.input("x", "f32", (3,)), f.constant(np.float32(number), name="factor")]))
        names.append(f.build())
    i, x = b.input("i", "i64", ()), b.input("x", "f32", (3,))
    b.output("y", b.add("cond", [i, x], branches=tuple(names)))
    assert_gives_the_reference(b.build(), {"i": np.asarray(index), "x": np.float32([1, 2, 3])})


def test_a_function_called_twice_stores_its_weights_once() -> None:
    b = GraphBuilder("twice")
    f = b.function("layer")
    w = f.constant(pattern(4, 4), name="w", key="shared.w")
    f.output("y", f.add("relu", [f.add("linear", [f.input("x", "f32", (2, 4)), w, None], weight_layout="oi")]))
    layer = f.build()
    y = b.add("call", [b.input("x", "f32", (2, 4))], function=layer, name="first")
    b.output("y", b.add("call", [y], function=layer, name="second"))
    model = assert_gives_the_reference(b.build(), {"x": pattern(2, 4)})
    assert operators(model) == ["Gemm", "Relu", "Gemm", "Relu"]
    assert [tensor.name for tensor in model.graph.initializer] == ["shared.w"]
    assert [node.name.partition("/")[0] for node in model.graph.node] == ["first", "first", "second", "second"]
