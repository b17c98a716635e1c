"""What the tests of the ONNX importer share: models as text, and the comparison with ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from exporters.from_onnx import to_graph
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.parser")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator


def parsed(text: str, *, opset: int = 22, ir_version: int = 10, local: str = "") -> Any:
    """Returns the model of a graph in ONNX's text form; ``local`` are functions behind it, of domain "local"."""
    domains = f'"" : {opset}, "local" : 1'
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{domains}]> {text} {local}")


def node_count(graph: Graph, op: str) -> int:
    bodies = (graph, *graph.functions.values())
    return sum(node.op == op for body in bodies for node in body.nodes)


def assert_matches(model: Any, inputs: Mapping[str, np.ndarray], **options: Any) -> Graph:
    """Asserts that a model's graph gives what ONNX's reference evaluator gives; returns the graph."""
    graph = to_graph(model, **options)
    expected = ReferenceEvaluator(model).run(None, dict(inputs))
    known = options.get("known", {})
    given = [array for name, array in inputs.items() if name not in known]
    bound = {value.name: array for value, array in zip(graph.inputs, given, strict=True)}
    results = run_reference(graph, bound, precision="f32")
    assert len(results) == len(expected)
    for (name, got), want in zip(results.items(), expected, strict=True):
        want = np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)
    return graph
