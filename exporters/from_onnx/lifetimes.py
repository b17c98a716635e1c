"""Metadata of ONNX nodes, and the lifetimes among them: ``onnx_light.release_after`` and its like become the plan's own annotations.

What an annotation says about values that are in the graph stays as its author wrote it, for ``ExecutionPlan`` to judge. Three things cannot
stay: a node or value that was computed at import is gone, and what names it with it; what stood on such a node moves to the one before;
and a reuse in place is dropped where our op does not work in place, or where a value that was a copy is a view here. Where locks are
annotated, values that the author did not know (steps within an operator, computed constants) are released or unlocked after their last use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from rml_exec.ir.graph import Graph
from rml_exec.ops import get_op
from rml_exec.plan.lifetimes import (
    INPLACE_REUSE,
    NOT_USED_AFTER,
    PEAK_MEMORY,
    RELEASE_AFTER,
    RELEASE_AFTER_SHAPE_TAG,
    Storage,
    keep_names,
)

__all__ = ["Made", "annotated"]

_PREFIX = "onnx_light."
_KEYS = {
    _PREFIX + key.removeprefix("rml."): key for key in (INPLACE_REUSE, RELEASE_AFTER, RELEASE_AFTER_SHAPE_TAG, NOT_USED_AFTER, PEAK_MEMORY)
}


@dataclass(frozen=True, slots=True)
class Made:
    """The nodes of the graph that an ONNX node became: those from ``first`` to before ``end``."""

    node: onnx.NodeProto
    first: int
    end: int


def annotated(graph: Graph, proto: onnx.GraphProto, made: Sequence[Made], names: Mapping[str, str]) -> Graph:
    """Returns the graph with the ONNX nodes' metadata on the last node that each became.

    Args:
        graph: the graph.
        proto: the ONNX graph that it was built from.
        made: what the nodes of ``proto`` became, those that were lowered.
        names: ONNX name -> name in the graph, of the values and constants that are in it.
    """
    metadata: dict[int, dict[str, str]] = {}
    lifetimes: list[tuple[Made, dict[str, str]]] = []
    by_output = {name: entry for entry in made for name in entry.node.output if name}
    end = 0
    for node in proto.node:
        entry = next((by_output[name] for name in node.output if name in by_output), Made(node, end, end))
        end = entry.end
        properties = {prop.key: prop.value for prop in node.metadata_props}
        known = {_KEYS[key]: text for key, text in properties.items() if key in _KEYS}
        if known:
            lifetimes.append((entry, known))
        others = {key: text for key, text in properties.items() if key not in _KEYS}
        if others and entry.first < entry.end:
            metadata[entry.end - 1] = others
    if lifetimes:
        graph = _tagged(graph, {names[name] for _, known in lifetimes for name in _listed(known, RELEASE_AFTER_SHAPE_TAG) if name in names})
        for index, own in _Lifetimes(graph, proto, names).translated(lifetimes).items():
            metadata[index] = {**metadata.get(index, {}), **own}
    if not metadata:
        return graph
    return replace(graph, nodes=tuple(replace(node, metadata=metadata.get(index, {})) for index, node in enumerate(graph.nodes)))


def _listed(known: Mapping[str, str], key: str) -> list[str]:
    return [name for name in known.get(key, "").split(";") if name]


def _tagged(graph: Graph, shapes: set[str]) -> Graph:
    """Returns the graph with these values marked as shapes."""
    nodes = [
        replace(node, outputs=tuple(replace(value, tag="shape" if value.name in shapes else value.tag) for value in node.outputs))
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


class _Lifetimes:
    def __init__(self, graph: Graph, proto: onnx.GraphProto, names: Mapping[str, str]) -> None:
        self._graph, self._names = graph, names
        self._keep = keep_names(graph)
        self._storage = Storage(graph, graph.types(), self._keep)
        self._made = {value.name for node in graph.nodes for value in node.outputs}
        self._outside = {value.name for value in graph.inputs} | {constant.name for constant in graph.constants}
        given = {value.name for value in proto.input} | {tensor.name for tensor in proto.initializer}
        self._of_author = {mine for theirs, mine in names.items() if mine in self._made or theirs in given}

    def translated(self, lifetimes: Sequence[tuple[Made, dict[str, str]]]) -> dict[int, dict[str, str]]:
        """Returns the annotations of the nodes, by their index."""
        found: dict[int, dict[str, list[str]]] = {}
        ends: dict[str, int] = {}  # of several names of one value the last release counts
        for entry, known in lifetimes:
            for key in (RELEASE_AFTER, RELEASE_AFTER_SHAPE_TAG, NOT_USED_AFTER):
                for name in _listed(known, key):
                    mine = self._names.get(name)
                    if mine is not None and (mine in self._made - self._keep or (mine in self._outside and mine in self._storage.last)):
                        ends[mine] = max(ends.get(mine, 0), entry.end - 1)
            if PEAK_MEMORY in known and entry.first < entry.end:
                found.setdefault(entry.end - 1, {})[PEAK_MEMORY] = [known[PEAK_MEMORY]]
        if any(NOT_USED_AFTER in known for _, known in lifetimes):
            unknown = (self._made - self._keep | self._outside) - self._of_author
            for name in sorted(unknown.intersection(self._storage.last) - ends.keys()):
                if name in self._outside or self._storage.dies_after(name) is not None:
                    ends[name] = self._storage.last[name]
        for name, index in ends.items():
            key = NOT_USED_AFTER if name in self._outside else RELEASE_AFTER_SHAPE_TAG if name in self._storage.shapes else RELEASE_AFTER
            found.setdefault(max(index, 0), {}).setdefault(key, []).append(name)
        for index, item in self._reuses(lifetimes):
            found.setdefault(index, {}).setdefault(INPLACE_REUSE, []).append(item)
        return {index: {key: ";".join(items) for key, items in keys.items()} for index, keys in found.items()}

    def _reuses(self, lifetimes: Sequence[tuple[Made, dict[str, str]]]) -> Iterator[tuple[int, str]]:
        """Yields (node index, annotation) of the reuses that our nodes can carry out."""
        storage, dropped = self._storage, False
        looked_into = {view.root for name, view in storage.views.items() if view.root != name}
        for entry, known in lifetimes:
            for item in _listed(known, INPLACE_REUSE):
                pair, _, fit = item.rpartition(":")
                result, operand = self._pair(pair)
                place = self._place(entry, result, operand)
                if place is None or operand is None or result is None or operand in looked_into or operand not in storage.bytes:
                    dropped = True
                    continue
                storage.take_over(result, operand)
                index, output = place
                if dropped:  # the buffer may be another one than the author's
                    fit = "equal" if storage.bytes[result] == self._graph.nodes[index].outputs[output].type.nbytes else "greater"
                yield index, f"{result}:{operand}:{fit}"

    def _pair(self, text: str) -> tuple[str | None, str | None]:
        """Returns our names of a result and an operand; the author's may hold colons themselves."""
        for place, character in enumerate(text):
            if character == ":" and text[:place] in self._names and text[place + 1 :] in self._names:
                return self._names[text[:place]], self._names[text[place + 1 :]]
        return None, None

    def _place(self, entry: Made, result: str | None, operand: str | None) -> tuple[int, int] | None:
        """Returns the node, and its output, that can give a result in the place of an operand."""
        for index in range(entry.first, entry.end):
            node = self._graph.nodes[index]
            for output, place in get_op(node.op).inplace:
                if place < len(node.inputs) and node.inputs[place] == operand and node.outputs[output].name == result:
                    return index, output
        return None
