"""What the tests against ONNX Runtime share: one node, imported and run by the reference interpreter and the executor, and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from exporters.from_onnx import to_graph
from rml_exec import Executor
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

ort = pytest.importorskip("onnxruntime")

OPSETS = {"": 22, "com.microsoft": 1}


def node_model(
    op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, *, domain: str = "", at_opset: int | None = None, **attrs: Any
) -> onnx.ModelProto:
    """Returns a model of one node with inputs x0, x1... and outputs y0, y1... ."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    made = [onnx.ValueInfoProto(name=name) for name in results]
    opsets = {**OPSETS, **({} if at_opset is None else {"": at_opset})}
    return helper.make_model(
        helper.make_graph([node], "test", given, made), opset_imports=[helper.make_opsetid(*each) for each in opsets.items()], ir_version=10
    )


def feeds(inputs: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
    return {f"x{index}": array for index, array in enumerate(inputs) if array is not None}


def run_ort(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def results_of(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    """Returns the outputs by the reference interpreter and by the executor."""
    wanted = {value.name for value in graph.inputs}
    feed = {name: array for name, array in inputs.items() if name in wanted}
    by_reference = run_reference(graph, feed, precision="f32")
    by_executor = Executor.create(graph, threads=1).run(feed)
    return [[by[output.name] for output in graph.outputs] for by in (by_reference, by_executor)]


def matches_ort(
    op: str,
    *inputs: np.ndarray | None,
    outputs: int = 1,
    known: Collection[int] = (),
    rtol: float = 1e-5,
    atol: float = 2e-6,
    steps: int = 0,
    **attrs: Any,
) -> Graph:
    """Asserts that a node gives what ONNX Runtime gives, and returns its graph.

    Args:
        op: name of the operator.
        *inputs: arrays, None for an absent one.
        outputs: how many outputs the node has.
        known: positions of inputs known at import.
        rtol: relative tolerance of floats.
        atol: absolute tolerance of floats.
        steps: how far integers may lie apart.
        **attrs: attributes; ``domain`` and ``at_opset`` of :func:`node_model` too.
    """
    model, given = node_model(op, inputs, outputs, **attrs), feeds(inputs)
    expected = run_ort(model, given)
    graph = to_graph(model, known={f"x{index}": array for index, array in enumerate(inputs) if index in known and array is not None})
    for results in results_of(graph, given):
        for got, wanted in zip(results, expected, strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)
            else:
                assert np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max(initial=0) <= steps
    return graph
