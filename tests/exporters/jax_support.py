"""What the JAX tests share: a function exported, run by the reference interpreter, compared with JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from exporters.from_jax import to_graph
from exporters.lowering import name_outputs
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

RTOL = 1e-5
ATOL = 2e-6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def check(function: Callable[..., Any], inputs: Sequence[Any], rtol: float = RTOL, atol: float = ATOL, **options: Any) -> Graph:
    """Asserts that the exported function gives what JAX gives, in type, shape and value; returns the graph."""
    import jax

    graph = to_graph(function, inputs, name="test", **options)
    params = (
        [jax.tree.map(lambda leaf: jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, options["params"])]
        if "params" in options
        else []
    )
    want = dict(name_outputs(jax.jit(lambda *arrays: function(*params, *arrays))(*inputs)))
    fed = {value.name: np.asarray(jax.numpy.asarray(array)) for value, array in zip(graph.inputs, inputs, strict=True)}
    got = run_reference(graph, fed, precision="f32")
    assert list(got) == list(want)
    for name, value in want.items():
        expected = np.asarray(value)
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape), name
        np.testing.assert_allclose(
            got[name], expected, rtol if expected.dtype.kind == "f" else 0, atol if expected.dtype.kind == "f" else 0, err_msg=name
        )
    return graph
