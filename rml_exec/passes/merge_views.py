"""Chains of reshapes and transposes that come to fewer of them, or to nothing: torch writes such around batched products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rml_exec.ir.graph import Graph, Node, Output, Value
from rml_exec.ir.names import Names
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

    def order(self) -> list[int] | None:
        """Returns the axes of the result in the order in which their factors lie in the value, None if they cross."""
        factors = list(itertools.chain(*self.source))
        order = sorted(range(len(self.axes)), key=lambda axis: factors.index(self.axes[axis][0]) if self.axes[axis] else -1)
        return order if list(itertools.chain(*(self.axes[axis] for axis in order))) == factors else None

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


class _Merger:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = graph.types()
        self._values, self._node_names = Names(self._types), Names(node.name for node in graph.nodes)

    def run(self) -> Graph:
        chains: dict[str, list[Node]] = {}  # value -> the views that lead to it, as they were, the first one first
        stands_for: dict[str, str] = {}
        nodes: list[Node] = []
        for node in self._graph.nodes:
            node = with_operands(node, stands_for)
            value = node.outputs[0]
            merged = [node]
            if node.op in ("reshape", "transpose") and value.type.size:
                chain = chains[value.name] = [*chains.get(node.inputs[0] or "", []), node]
                merged = self._merged(chain)
                if len(merged) == 1 and self._does_nothing(merged[0]):
                    stands_for[value.name] = merged[0].inputs[0] or ""
                    continue
            nodes += merged
        outputs = tuple(Output(output.name, stands_for.get(output.value, output.value)) for output in self._graph.outputs)
        return replace(self._graph.with_nodes(tuple(nodes)), outputs=outputs)

    def _merged(self, chain: Sequence[Node]) -> list[Node]:
        """Returns the fewest nodes that give the result of a chain of views: one, or a reshape and a transpose, or else the last one."""
        last, found = chain[-1], [self._rearrangement(chain[begin:]) for begin in range(len(chain))]
        for node, whole in zip(chain[:-1], found, strict=False):
            if whole is not None and whole.is_reshape():
                return [replace(last, op="reshape", inputs=node.inputs, attrs={"shape": last.outputs[0].type.shape})]
            if whole is not None and (perm := whole.perm()) is not None:
                return [replace(last, op="transpose", inputs=node.inputs, attrs={"perm": perm})]
        for node, whole in zip(chain[:-2], found, strict=False):
            if whole is not None and (order := whole.order()) is not None:
                return self._reshaped_and_transposed(last, node.inputs[0] or "", order)
        if (alone := found[-1]) is not None and alone.is_reshape():  # a transpose that moves axes of size 1 alone is a reshape too
            return [replace(last, op="reshape", attrs={"shape": last.outputs[0].type.shape})]
        return [last]

    def _rearrangement(self, chain: Sequence[Node]) -> _Rearrangement | None:
        found = _Rearrangement.of(self._types[chain[0].inputs[0] or ""].shape)
        for node in chain:
            if node.op == "transpose":
                found.transpose(node.attrs["perm"])
            elif not found.reshape(node.attrs["shape"]):
                return None
        return found

    def _reshaped_and_transposed(self, last: Node, source: str, order: Sequence[int]) -> list[Node]:
        result = last.outputs[0].type
        shape = tuple(result.shape[axis] for axis in order)
        value = Value(self._values.take(f"{last.outputs[0].name}.reshape"), TensorType(result.dtype, shape))
        self._types[value.name] = value.type
        perm = tuple(order.index(axis) for axis in range(len(order)))
        first = Node("reshape", self._node_names.take(value.name), (source,), (value,), {"shape": shape}, {"rml.covers": ""}, last.source)
        return [first, replace(last, op="transpose", inputs=(value.name,), attrs={"perm": perm})]

    def _does_nothing(self, node: Node) -> bool:
        return node.op == "reshape" and self._types[node.inputs[0] or ""].shape == node.outputs[0].type.shape


MERGE_VIEWS = Pass("merge_views", lambda graph: _Merger(graph).run(), fusion=True)
"""A reshape or transpose that comes to one view together with reshapes and transposes before it reads what those read; one that changes nothing is
left out. Three and more of them that come to a reshape and a transpose become these. What nothing reads then is left to ``drop_unread``."""
