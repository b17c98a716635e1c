"""Chains of reshapes and transposes that come to one reshape, one transpose, or nothing: torch writes them around batched products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rml_exec.ir.graph import Graph, Node, Output
from rml_exec.passes.base import Pass
from rml_exec.passes.share_common import with_operands
from rml_exec.types import TensorType

__all__ = ["MERGE_VIEWS"]

_Group = list[int]
"""One axis as a run of factors, the outermost first; empty for an axis of size 1."""


@dataclass(slots=True)
class _Rearrangement:
    """What reshapes and transposes make of a value: the axes of the value and of the result as runs of common factors."""

    sizes: dict[int, int]
    source: list[_Group]
    axes: list[_Group] = field(default_factory=list)

    @classmethod
    def of(cls, shape: Sequence[int]) -> _Rearrangement:
        sizes = {axis: size for axis, size in enumerate(shape) if size != 1}
        groups = [[axis] if axis in sizes else [] for axis in range(len(shape))]
        return cls(sizes, groups, [list(group) for group in groups])

    def transpose(self, perm: Sequence[int]) -> None:
        self.axes = [self.axes[axis] for axis in perm]

    def reshape(self, shape: Sequence[int]) -> bool:
        """Cuts the factors into other axes; False if an axis ends within one that does not divide."""
        left = [factor for group in self.axes for factor in group]
        axes: list[_Group] = []
        for size in shape:
            group: _Group = []
            while size != 1:
                factor = left.pop(0)
                if self.sizes[factor] > size:
                    if self.sizes[factor] % size:
                        return False
                    left.insert(0, self._cut(factor, size))
                elif size % self.sizes[factor]:
                    return False
                group.append(factor)
                size //= self.sizes[factor]
            axes.append(group)
        self.axes = axes
        return True

    def _cut(self, factor: int, outer: int) -> int:
        """Makes two of a factor, the outer one of size ``outer`` under its old number, and returns the inner one."""
        inner = next(number for number in itertools.count(len(self.source)) if number not in self.sizes)
        self.sizes[inner], self.sizes[factor] = self.sizes[factor] // outer, outer
        group = next(group for group in self.source if factor in group)
        group.insert(group.index(factor) + 1, inner)
        return inner

    def is_reshape(self) -> bool:
        """True if the elements are in the order in which they were."""
        return list(itertools.chain(*self.axes)) == list(itertools.chain(*self.source))

    def perm(self) -> tuple[int, ...] | None:
        """Returns the transpose that it is, None if it is none."""
        ones = [axis for axis, group in enumerate(self.source) if not group]
        places = {tuple(group): axis for axis, group in enumerate(self.source) if group}
        if len(self.axes) != len(self.source) or any(group and tuple(group) not in places for group in self.axes):
            return None
        return tuple(places[tuple(group)] if group else ones.pop(0) for group in self.axes)


def _merged(chain: Sequence[Node], source: str, shape: tuple[int, ...]) -> Node | None:
    """Returns the one node that does what a chain of views of ``source`` does, if there is one; ``source`` in its place if nothing is done."""
    found = _Rearrangement.of(shape)
    for node in chain:
        if node.op == "transpose":
            found.transpose(node.attrs["perm"])
        elif not found.reshape(node.attrs["shape"]):
            return None
    result = chain[-1].outputs[0].type.shape
    if found.is_reshape():
        return replace(chain[-1], op="reshape", inputs=(source,), attrs={"shape": result})
    perm = found.perm()
    return None if perm is None else replace(chain[-1], op="transpose", inputs=(source,), attrs={"perm": perm})


def _does_nothing(node: Node, types: dict[str, TensorType]) -> bool:
    return node.op == "reshape" and types[node.inputs[0] or ""].shape == node.outputs[0].type.shape


def _merge(graph: Graph) -> Graph:
    types = graph.types()
    chains: dict[str, list[Node]] = {}  # value -> the views that lead to it, the first one first
    stands_for: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = with_operands(node, stands_for)
        value = node.outputs[0]
        if node.op in ("reshape", "transpose") and value.type.size:
            chain = [*chains.get(node.inputs[0] or "", []), node]
            for begin in range(len(chain)):
                source = chain[begin].inputs[0] or ""
                if (merged := _merged(chain[begin:], source, types[source].shape)) is not None:
                    node, chain = merged, [*chain[:begin], merged]
                    break
            if _does_nothing(node, types):
                stands_for[value.name] = node.inputs[0] or ""
                continue
            chains[value.name] = chain
        nodes.append(node)
    outputs = tuple(Output(output.name, stands_for.get(output.value, output.value)) for output in graph.outputs)
    return replace(graph.with_nodes(tuple(nodes)), outputs=outputs)


MERGE_VIEWS = Pass("merge_views", _merge, fusion=True)
"""A reshape or transpose that undoes, or comes to one view together with, the reshapes and transposes before it reads what those read; one that
changes nothing is left out. What is then read by nothing is left to the constant folding."""
