"""What the TensorFlow tests share: a function exported, run by the reference interpreter, compared with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from exporters.dims import parse_dim
from exporters.from_tf import to_graph
from exporters.from_tf.tracing import load_tensorflow
from rml_exec.ir.graph import Graph
from rml_exec.runtime.binding import graph_for
from rml_exec.runtime.reference import run_reference


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def node_of(graph: Graph, op: str) -> Any:
    (node,) = (node for node in graph.nodes if node.op == op)
    return node


def check(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], *, dims: Sequence[str] = (), rtol: float = 1e-4, at: Sequence[Any] = ()
) -> Graph:
    """Asserts that the exported function gives what TensorFlow gives, in type, shape and value; returns the graph.

    Args:
        function: of tensors; traced once per set of shapes.
        inputs: arrays to export and compare with.
        dims: dims that stay symbolic, as on the command line.
        rtol: largest error, also relative to the rms of the result.
        at: further lists of inputs, of other sizes of the dims.
    """
    tf = load_tensorflow()
    names = [f"x{index}" for index in range(len(inputs))]
    traced = tf.function(function)
    graph = to_graph(traced, inputs, name="test", input_names=names, dims=[parse_dim(dim) for dim in dims])
    for arrays in (inputs, *at):
        given = dict(zip(names, arrays, strict=True))
        got = list(run_reference(graph_for(graph, given), given, precision="f32").values())
        want = [np.asarray(tensor) for tensor in tf.nest.flatten(traced(*map(tf.constant, arrays)))]
        assert [(array.dtype, array.shape) for array in got] == [(array.dtype, array.shape) for array in want]
        for mine, theirs in zip(got, want, strict=True):
            if theirs.dtype.kind != "f":
                np.testing.assert_array_equal(mine, theirs)
                continue
            finite = theirs[np.isfinite(theirs)].astype(np.float64)
            atol = rtol * float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
    return graph
