"""What TensorFlow computes inside a function, operation by operation: the search for the first node that differs compares it with the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exporters.from_tf.evaluation import body_of, evaluate
from exporters.from_tf.table import Known, Value
from exporters.from_tf.walk import CALLS

__all__ = ["Walked", "run_operations"]

Walked = tuple[Any, Mapping[str, Value | None]]
"""A function's graph, and what the values of its tensors became: names in the graph, or constants."""


def run_operations(tf: Any, walked: Sequence[Walked], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what TensorFlow has where the graph has a value; what loops and operations with state give stays unknown.

    Args:
        tf: the module.
        walked: the graphs in the order in which they were walked, the outermost first.
        inputs: arrays by their names in the graph.
    """
    run = _Run(tf, walked)
    graph, bound = walked[0]
    run.graph(graph, bound, {tensor.name: inputs[name] for tensor in graph.inputs if isinstance(name := bound.get(tensor.name), str)})
    return run.found


class _Run:
    def __init__(self, tf: Any, walked: Sequence[Walked]) -> None:
        self.found: dict[str, np.ndarray] = {}
        self._tf = tf
        self._walked = list(walked[1:])

    def graph(self, graph: Any, bound: Mapping[str, Value | None], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a graph's operations; returns the tensors that could be computed, ``arrays`` among them."""
        arrays |= {name: value.array for name, value in bound.items() if isinstance(value, Known)}
        for op in graph.get_operations():
            if all(tensor.name in arrays for tensor in op.outputs):
                continue
            results = self._results(op, bound, arrays)
            arrays.update((tensor.name, result) for tensor, result in zip(op.outputs, results, strict=False) if result is not None)
            for tensor in op.outputs:
                name = bound.get(tensor.name)
                if isinstance(name, str) and tensor.name in arrays:
                    self.found.setdefault(name, arrays[tensor.name])
        return arrays

    def _results(self, op: Any, bound: Mapping[str, Value | None], arrays: Mapping[str, np.ndarray]) -> Sequence[np.ndarray | None]:
        if op.type in CALLS:
            if not any(tensor.name in bound for tensor in op.outputs):
                return []  # nobody asked for it: it was not walked
            body = body_of(op, op.get_attr("f"))
            place = next(index for index, (graph, _) in enumerate(self._walked) if graph is body)
            _, inner = self._walked.pop(place)
            given = {tensor.name: arrays[outer.name] for tensor, outer in zip(body.inputs, op.inputs, strict=True) if outer.name in arrays}
            computed = self.graph(body, inner, given)
            return [computed.get(tensor.name) for tensor in body.outputs]
        if any(tensor.name not in arrays for tensor in op.inputs):
            return []
        try:
            return [np.asarray(result) for result in evaluate(self._tf, op, [arrays[tensor.name] for tensor in op.inputs])]
        except Exception:  # an operation that cannot run by itself: a loop, one with state
            return []
