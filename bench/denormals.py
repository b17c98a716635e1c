"""A twin of a model with denormal numbers in its weights and activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rml_exec import Graph
from rml_exec.types import DType

__all__ = ["PLANTED", "planted_graph", "planted_inputs"]

PLANTED = np.float32(1e-42)
"""A denormal number: so far down that sums of it with ordinary factors are denormal too."""

_EVERY = 8
_WEIGHTS = {"conv2d": (1, 2), "linear": (1, 2), "batch_norm": (2, 3)}
"""Op -> its operands that make an output channel denormal where they are: weight and bias; bias and mean."""


def planted_graph(graph: Graph) -> Graph:
    """Returns the graph with every eighth output channel of each convolution and linear layer denormal: its weights, so its activations.

    Channels differ from layer to layer, so denormal activations meet ordinary weights, and the other way round.
    """
    planted: dict[str, np.ndarray] = {}
    data = {constant.name: constant.data for constant in graph.constants if constant.type.dtype is DType.F32 and constant.type.rank}
    layer = 0
    for node in graph.nodes:
        layer += node.op in ("conv2d", "linear")  # the batch norm behind a convolution is of its layer
        for position in _WEIGHTS.get(node.op, ()):
            name = node.inputs[position] if position < len(node.inputs) else None
            if name is not None and name in data:
                array = data[name].copy()
                channels = array[layer % _EVERY :: _EVERY]
                channels[...] = np.copysign(PLANTED, channels)
                planted[name] = array
    constants = tuple(
        replace(constant, source=planted[constant.name]) if constant.name in planted else constant for constant in graph.constants
    )
    return graph.with_nodes(graph.nodes, constants)


def planted_inputs(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies of the inputs with every eighth float denormal."""
    found = {name: np.array(array) for name, array in inputs.items()}
    for array in found.values():
        if array.dtype == np.float32:
            array.reshape(-1)[::_EVERY] = PLANTED
    return found
