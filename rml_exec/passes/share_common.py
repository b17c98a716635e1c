"""What is computed twice from the same operands is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rml_exec.ir.graph import Graph, Node, Output
from rml_exec.passes.base import Pass

__all__ = ["SHARE_COMMON", "with_operands"]


def with_operands(node: Node, stands_for: Mapping[str, str]) -> Node:
    """Returns the node reading other values: those that stand for some of its operands."""
    if not any(name in stands_for for name in node.reads()):
        return node
    return replace(node, inputs=tuple(None if name is None else stands_for.get(name, name) for name in node.inputs))


def _share(graph: Graph) -> Graph:
    stands_for: dict[str, str] = {}  # value -> the equal one that was there before
    first: dict[tuple[object, ...], Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = with_operands(node, stands_for)
        key = (node.op, node.inputs, repr(sorted(node.attrs.items())), tuple(value.type for value in node.outputs))
        before = first.setdefault(key, node)
        if before is node:
            nodes.append(node)
        else:
            stands_for.update((ours.name, theirs.name) for ours, theirs in zip(node.outputs, before.outputs, strict=True))
    if not stands_for:
        return graph
    outputs = tuple(Output(output.name, stands_for.get(output.value, output.value)) for output in graph.outputs)
    return replace(graph.with_nodes(tuple(nodes)), outputs=outputs)


SHARE_COMMON = Pass("share_common", _share, fusion=True)
"""Of nodes with the same op, operands and attributes the first stays, and its results stand for those of the others. Every op is a function of its
operands, so all are shared, loops and branches too."""
