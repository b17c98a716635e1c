"""What is computed from constants alone is computed once, when the graph is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rml_exec.errors import KernelError
from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Constant, Graph, Node, Value
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass
from rml_exec.types import DType

__all__ = ["FOLD_CONSTANTS"]

_SMALL = 1 << 20
"""A constant of so many bytes may take the place of what it is computed from, however small that is."""


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, np.ndarray | Recipe] = {constant.name: constant.source for constant in graph.constants}
        self._types = graph.types()
        self._bytes = {constant.name: constant.type.nbytes for constant in graph.constants}  # that a known value is held in
        self._folded: list[Value] = []

    def run(self) -> Graph:
        left = tuple(node for node in self._graph.nodes if not self._folds(node))
        made = [Constant(value.name, value.type, self._known[value.name]) for value in self._folded]
        return self._graph.with_nodes(left, (*self._graph.constants, *made)) if made else self._graph

    def _folds(self, node: Node) -> bool:
        """True if a constant takes the place of the node's result. The result of a broadcast is known too, but stays a view of less."""
        op = get_op(node.op)
        if op.internal or len(node.outputs) != 1 or any(op.calls(node.attrs)) or not all(name in self._known for name in node.reads()):
            return False
        (value,) = node.outputs
        if not op.view and DType.BF16 in {value.type.dtype, *(self._types[name].dtype for name in node.reads())}:
            return False  # NumPy has no such type
        held = max((self._bytes[name] for name in node.reads()), default=0)
        if value.type.nbytes > max(_SMALL, held) and node.op != "broadcast":
            return False
        sources = tuple(self._known[name] for name in node.reads())
        key = ("fold", node.op, tuple(name is None for name in node.inputs), tuple(sorted(node.attrs.items())))
        recipe = Recipe(sources, key, partial(_evaluate, node, sources))
        if "error" in node.attrs.values() and not _succeeds(recipe.array):
            return False
        self._known[value.name] = recipe if value.type.rank else _evaluate(node, sources)  # a recipe makes arrays with axes
        self._bytes[value.name] = held if node.op == "broadcast" else value.type.nbytes
        if node.op == "broadcast":
            return False
        self._folded.append(value)
        return True


def _evaluate(node: Node, sources: tuple[np.ndarray | Recipe, ...]) -> np.ndarray:
    arrays = iter([source if isinstance(source, np.ndarray) else source.array() for source in sources])
    return get_op(node.op).run_reference([None if name is None else next(arrays) for name in node.inputs], node.attrs, node.name)[0]


def _succeeds(make: Callable[[], object]) -> bool:
    try:
        make()
    except KernelError:
        return False
    return True


FOLD_CONSTANTS = Pass("fold_constants", lambda graph: _Folder(graph).run(), fusion=True)
"""A node with one result that reads constants alone becomes a constant, unless that is larger than all it reads and than 1 MiB; a broadcast stays a
view. So does a node whose values are refused (an index out of range under ``oob="error"``): it is refused when it runs."""
