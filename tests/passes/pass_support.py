"""What the tests of the passes share: a graph before and after, and that both compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import Pass, run_passes
from rml_exec.runtime.reference import run_reference

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def passed(build: Callable[[GraphBuilder], object], *passes: Pass, rtol: float = 1e-12) -> Graph:
    """Returns what passes make of the graph that ``build`` writes; asserts that it verifies and gives the same results in float64."""
    builder = GraphBuilder("before")
    build(builder)
    graph = builder.build()
    result = run_passes(graph, passes, check_graph)
    inputs = {value.name: normal(*value.type.shape).astype(value.type.dtype.numpy) for value in graph.inputs}
    before, after = run_reference(graph, inputs, precision="f64"), run_reference(result, inputs, precision="f64")
    assert list(before) == list(after)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=rtol, atol=rtol)
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]
