"""What nothing reads is not computed."""

from __future__ import annotations

from rml_exec.ir.graph import Graph, Node
from rml_exec.passes.base import Pass

__all__ = ["DROP_UNREAD"]


def _drop(graph: Graph) -> Graph:
    read = graph.output_values()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value.name in read for value in node.outputs):
            nodes.append(node)
            read.update(node.reads())
    constants = tuple(constant for constant in graph.constants if constant.name in read)
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return graph.with_nodes(tuple(reversed(nodes)), constants)


DROP_UNREAD = Pass("drop_unread", _drop, fusion=True)
"""A node none of whose results is read, and a constant that nothing reads, are left out."""
