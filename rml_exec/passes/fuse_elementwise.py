"""Runs of consecutive elementwise nodes become one step: one pass over memory instead of one per node."""

from __future__ import annotations

from rml_exec.ir.graph import Graph, Node
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass

__all__ = ["FUSE_ELEMENTWISE"]


def _groups(nodes: tuple[Node, ...]) -> list[list[Node]]:
    """Returns the nodes in order, cut into runs: maximal runs of elementwise nodes with one output shape, every other node alone."""
    runs: list[list[Node]] = []
    shape = None
    for node in nodes:
        op = get_op(node.op)
        fusable = op.elementwise and not op.internal
        if fusable and runs and shape == node.outputs[0].type.shape:
            runs[-1].append(node)
        else:
            runs.append([node])
        shape = node.outputs[0].type.shape if fusable else None
    return runs


def _fused(members: list[Node], read_outside: set[str]) -> Node | None:
    """Returns the node that stands for the members, or None when nothing of the group is ever read."""
    inside = {value.name for member in members for value in member.outputs}
    operands = tuple(dict.fromkeys(name for member in members for name in member.reads() if name not in inside))
    results = tuple(value for member in members for value in member.outputs if value.name in read_outside)
    if not results:
        return None
    return Node(
        "fused",
        f"{members[0].name}..{members[-1].name}",
        operands,
        results,
        {"params": operands, "body": tuple(members), "results": tuple(value.name for value in results)},
        {
            "rml.label": f"fused({','.join(member.label for member in members)})",
            "rml.covers": ";".join(name for member in members for name in member.covers),
        },
        members[0].source,
    )


def _fuse(graph: Graph) -> Graph:
    last_reader = {name: node.name for node in graph.nodes for name in node.reads()}
    results = graph.output_values()
    nodes: list[Node] = []
    for members in _groups(graph.nodes):
        names = {member.name for member in members}
        read_outside = {
            value.name
            for member in members
            for value in member.outputs
            if value.name in results or (value.name in last_reader and last_reader[value.name] not in names)
        }
        group = _fused(members, read_outside) if len(members) > 1 else None
        nodes.extend(members if group is None else [group])
    return graph.with_nodes(tuple(nodes))


FUSE_ELEMENTWISE = Pass("fuse_elementwise", _fuse, fusion=True)
"""Two or more consecutive elementwise nodes with one output shape, connected or not, become one ``fused`` node. Its results are the members
that are read outside the group; its label lists the members: ``fused(add,relu)``."""
