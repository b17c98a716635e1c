"""Linears that read the same value become one: the queries, keys and values of an attention are then one product, its parts views of the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Constant, Graph, Node, Value
from rml_exec.ir.names import Names
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass
from rml_exec.types import TensorType

__all__ = ["MERGE_LINEARS"]


class _Merger:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = {constant.name: constant for constant in graph.constants}
        self._readers, self._results = graph.readers(), graph.output_values()
        self._values, self._node_names = Names(graph.types()), Names(node.name for node in graph.nodes)
        self._added: list[Constant] = []

    def run(self) -> Graph:
        groups: dict[tuple[object, ...], list[Node]] = {}
        for node in self._graph.nodes:
            if node.op == "linear" and self._can_merge(node):
                key = (node.inputs[0], node.attrs["weight_layout"], node.inputs[2] is None)
                groups.setdefault(key, []).append(node)
        first = {group[0].name: group for group in groups.values() if len(group) > 1}
        absorbed = {node.name for group in first.values() for node in group}
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node.name in first:
                nodes += self._merged(first[node.name])
            elif node.name not in absorbed:
                nodes.append(node)
        if not absorbed:
            return self._graph
        read = {name for node in nodes for name in node.reads()} | self._results
        constants = (*self._graph.constants, *self._added)
        return self._graph.with_nodes(tuple(nodes), tuple(c for c in constants if c.name in read or c.name not in self._readers))

    def _can_merge(self, node: Node) -> bool:
        """True for constant weights and a result that only attention reads, through views: it reads where the parts lie."""
        _, weight, bias = node.inputs
        constant = weight in self._constants and (bias is None or bias in self._constants)
        return constant and self._is_attended(node.outputs[0].name)

    def _is_attended(self, value: str) -> bool:
        readers = self._readers.get(value, [])
        if not readers or value in self._results:
            return False
        return all(node.op == "attention" or (get_op(node.op).view and self._is_attended(node.outputs[0].name)) for node in readers)

    def _merged(self, group: list[Node]) -> list[Node]:
        first = group[0]
        x, _, bias = first.inputs
        axis = 0 if first.attrs["weight_layout"] == "oi" else 1
        weights = self._joined([self._constants[node.inputs[1] or ""] for node in group], axis)
        biases = None if bias is None else self._joined([self._constants[node.inputs[2] or ""] for node in group], 0)
        type_ = first.outputs[0].type
        *outer, _ = type_.shape
        widths = [node.outputs[0].type.shape[-1] for node in group]
        whole = Value(self._values.take(f"{first.outputs[0].name}.merged"), TensorType(type_.dtype, (*outer, sum(widths))))
        metadata = {
            **first.metadata,
            "rml.label": "+".join(node.label for node in group),
            "rml.covers": ";".join(name for node in group for name in node.covers),
        }
        nodes = [replace(first, inputs=(x, weights, biases), outputs=(whole,), metadata=metadata)]
        begin = 0
        for node, width in zip(group, widths, strict=True):
            attrs = {"start": (*[0] * len(outer), begin), "limit": (*outer, begin + width), "strides": (1,) * len(type_.shape)}
            name = self._node_names.take(f"{node.name}.part")
            nodes.append(Node("slice", name, (whole.name,), node.outputs, attrs, {"rml.covers": ""}, node.source))
            begin += width
        return nodes

    def _joined(self, parts: list[Constant], axis: int) -> str:
        shape = list(parts[0].type.shape)
        shape[axis] = sum(part.type.shape[axis] for part in parts)
        recipe = Recipe([part.source for part in parts], ("join", axis), lambda: np.concatenate([part.data for part in parts], axis))
        constant = Constant(self._values.take(f"{parts[0].name}.merged"), TensorType(parts[0].type.dtype, tuple(shape)), recipe)
        self._added.append(constant)
        return constant.name


MERGE_LINEARS = Pass("merge_linears", lambda graph: _Merger(graph).run(), fusion=True)
"""Linears of one operand with constant weights of one layout, all with a constant bias or none, whose results only attention reads (through views),
become one linear with the weights side by side; slices of its result, which are views, are the results. Label ``linear+linear+linear``."""
