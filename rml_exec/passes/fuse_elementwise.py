"""Runs of consecutive elementwise nodes become one step: one pass over memory instead of one per node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from rml_exec.ir.graph import Graph, Node
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass
from rml_exec.types import DType

__all__ = ["FUSE_ELEMENTWISE"]


MAX_TENSORS = 32
"""Most operands and results of a group together: what one call of the elementwise interpreter takes."""

_NATIVE_TYPES = (DType.F32, DType.I32, DType.BOOL)


class _Group:
    """A run of nodes that grows at its end, with its operands and results kept at hand."""

    def __init__(self, reads: Mapping[str, int], kept: Collection[str]) -> None:
        """Takes how often each value of the graph is read, and the values that are read by whoever runs it."""
        self.members: list[Node] = []
        self._reads, self._kept = reads, kept
        self._operands: set[str] = set()
        self._unread: dict[str, int] = {}  # value made inside -> reads not yet seen

    def results(self) -> set[str]:
        """Returns the members' values that are read outside."""
        return {name for name, left in self._unread.items() if left or name in self._kept}

    def takes(self, node: Node) -> bool:
        """True if the group stays within bounds with this node."""
        operands = self._operands | {name for name in node.reads() if name not in self._unread}
        return len(operands) + len(self.results()) + len(node.outputs) <= MAX_TENSORS

    def add(self, node: Node) -> None:
        for name in node.reads():
            if name in self._unread:
                self._unread[name] -= 1
            else:
                self._operands.add(name)
        self._unread.update((value.name, self._reads.get(value.name, 0)) for value in node.outputs)
        self.members.append(node)


def _groups(graph: Graph) -> list[_Group]:
    """Returns the nodes in order, cut into runs: maximal runs of elementwise nodes with one output shape, every other node alone."""
    types, kept = graph.types(), graph.output_values()
    reads = Counter(name for node in graph.nodes for name in node.reads())
    groups: list[_Group] = []
    last = None
    for node in graph.nodes:
        op = get_op(node.op)
        native = all(types[name].dtype in _NATIVE_TYPES for name in (*node.reads(), node.outputs[0].name))
        kind = (node.outputs[0].type.shape, native) if op.elementwise and not op.internal else None
        if kind is None or kind != last or not groups[-1].takes(node):
            groups.append(_Group(reads, kept))
        groups[-1].add(node)
        last = kind
    return groups


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
    nodes: list[Node] = []
    for group in _groups(graph):
        fused = _fused(group.members, group.results()) if len(group.members) > 1 else None
        nodes.extend(group.members if fused is None else [fused])
    return graph.with_nodes(tuple(nodes))


FUSE_ELEMENTWISE = Pass("fuse_elementwise", _fuse, fusion=True)
"""Two or more consecutive elementwise nodes with one output shape, connected or not, become one ``fused`` node. Its results are the members
that are read outside the group; its label lists the members: ``fused(add,relu)``. A group has at most :data:`MAX_TENSORS`
operands and results, and holds f32, i32 and bool values alone or no node of these alone: what the native interpreter runs in one pass stays
apart from what NumPy must run."""
