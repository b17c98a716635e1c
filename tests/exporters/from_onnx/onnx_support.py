"""What the ONNX tests share: one operator imported, run by the reference interpreter, compared with an evaluator of ONNX."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from exporters.from_onnx import to_graph
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

OPSET = 23


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def i64(*elements: int) -> np.ndarray:
    return np.array(elements, np.int64)


def model_of(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, *, opset: int = OPSET, **attrs: Any) -> onnx.ModelProto:
    """Returns a model of one node with inputs x0, x1... and outputs y0, y1..., whose types ONNX infers."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{index}" for index in range(outputs)], **attrs)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    graph = helper.make_graph([node], "test", given, [onnx.ValueInfoProto(name=name) for name in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def imported(op: str, inputs: Sequence[np.ndarray | None], *, known: Collection[int] = (), outputs: int = 1, **attrs: Any) -> Graph:
    """Returns the graph of an operator; the inputs of the positions ``known`` are known at import."""
    values = {f"x{index}": inputs[index] for index in known if inputs[index] is not None}
    return to_graph(model_of(op, inputs, outputs, **attrs), known=values)


def run(graph: Graph, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    wanted = {value.name for value in graph.inputs}
    feed = {f"x{index}": array for index, array in enumerate(inputs) if f"x{index}" in wanted}
    return list(run_reference(graph, feed, precision="f32").values())


def check(
    op: str,
    inputs: Sequence[np.ndarray | None],
    *,
    known: Collection[int] = (),
    outputs: int = 1,
    peer: str = "reference",
    rtol: float = 1e-5,
    atol: float = 2e-6,
    **attrs: Any,
) -> Graph:
    """Asserts that an imported operator gives what ``peer`` (reference, or ort) gives, in type, shape and value; returns the graph."""
    feed = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
    model = model_of(op, inputs, outputs, **attrs)
    if peer == "ort":
        onnxruntime = pytest.importorskip("onnxruntime")
        want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    else:
        want = [np.asarray(array) for array in ReferenceEvaluator(model).run(None, feed)]
    graph = imported(op, inputs, known=known, outputs=outputs, **attrs)
    got = run(graph, inputs)
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
    return graph
