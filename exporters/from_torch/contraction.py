"""Rewrites ``einsum`` of two operands as one product of matrices: torch's own decomposition reshapes around it what no matching sees through."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from exporters.from_torch.matching import packet_of

__all__ = ["products"]

aten = torch.ops.aten


def products(graph: Graph) -> bool:
    """Rewrites every ``einsum`` that sums over one axis and keeps at most one more of its own of either operand; true if there was any.

    The graph is that of ``torch.export``, before its decompositions.
    """
    found = [node for node in graph.nodes if packet_of(node) == "einsum" and _rewrite(graph, node)]
    return bool(found)


def _rewrite(graph: Graph, node: Node) -> bool:
    equation, operands = node.args[0], node.args[1]
    assert isinstance(equation, str)
    terms, arrow, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    if not arrow or len(labels) != 2 or "." in equation or any(len(set(term)) < len(term) for term in (*labels, result)):
        return False
    left, right = labels
    summed = [label for label in left if label in right and label not in result]
    batch = [label for label in result if label in left and label in right]
    free = [[label for label in term if label in result and label not in batch] for term in labels]
    if len(summed) != 1 or [len(own) for own in free] != [1, 1] or len(left) != len(batch) + 2 or len(right) != len(batch) + 2:
        return False
    with graph.inserting_before(node):
        a = _arranged(graph, operands[0], left, [*batch, *free[0], *summed])
        b = _arranged(graph, operands[1], right, [*batch, *free[1], *summed])
        turned = graph.call_function(aten.transpose.int, (b, -1, -2))
        product = graph.call_function(aten.matmul.default, (a, turned))
        y = _arranged(graph, product, "".join([*batch, *free[0], *free[1]]), list(result))
    for made in (turned, product):
        made.meta = dict(node.meta)
    node.replace_all_uses_with(y)
    graph.erase_node(node)
    return True


def _arranged(graph: Graph, value: Any, labels: str, order: list[str]) -> Any:
    """Returns a value with its axes in another order."""
    if list(labels) == order:
        return value
    return graph.call_function(aten.permute.default, (value, [labels.index(label) for label in order]))
