"""Batch norm and per-channel scales after a convolution or linear become part of its weights and bias, computed in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rml_exec.ir.derived import Recipe, ScaledWeights
from rml_exec.ir.graph import Constant, Graph, Node
from rml_exec.ir.names import Names
from rml_exec.passes.base import Pass
from rml_exec.passes.fold_bias import varies_along_channels_alone
from rml_exec.types import DType, TensorType

__all__ = ["FOLD_AFFINE"]

_SCALING = ("mul", "div", "batch_norm")
_SHIFTING = ("add", "sub")


@dataclass(frozen=True, slots=True)
class _Affine:
    """y = scale * x + shift, per output channel, float64."""

    scale: np.ndarray
    shift: np.ndarray


def _after(affine: _Affine, node: Node, value: str, data: dict[str, np.ndarray]) -> _Affine:
    """Returns the map of ``affine`` followed by a node that reads ``value``; ``data`` holds the node's other operands."""
    scale, shift = affine.scale, affine.shift
    if node.op == "batch_norm":
        gamma, beta, mean, variance = (data[name] for name in node.inputs[1:] if name is not None)
        factor = gamma / np.sqrt(variance + node.attrs["eps"])
        return _Affine(scale * factor, (shift - mean) * factor + beta)
    first = node.inputs[0] == value
    c = data[node.inputs[1 if first else 0] or ""]
    match node.op:
        case "add":
            return _Affine(scale, shift + c)
        case "sub":
            return _Affine(scale, shift - c) if first else _Affine(-scale, c - shift)
        case "mul":
            return _Affine(scale * c, shift * c)
    return _Affine(scale / c, shift / c)  # div, x first


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = {constant.name: constant for constant in graph.constants}
        self._readers, self._results = graph.readers(), graph.output_values()
        self._names = Names(graph.types())
        self._added: list[Constant] = []

    def run(self) -> Graph:
        absorbed: set[str] = set()
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node.name in absorbed:
                continue
            run = self._run_after(node) if self._has_constant_weights(node) else []
            if run:
                absorbed.update(member.name for member in run)
                node = self._folded(node, run)
            nodes.append(node)
        if not absorbed:
            return self._graph
        read = {name for node in nodes for name in node.reads()} | self._results
        kept = (c for c in (*self._graph.constants, *self._added) if c.name in read or c.name not in self._readers)
        return self._graph.with_nodes(tuple(nodes), tuple(kept))

    def _has_constant_weights(self, node: Node) -> bool:
        if node.op not in ("conv2d", "linear") or node.outputs[0].type.dtype is not DType.F32:
            return False
        return all(name in self._constants for name in node.inputs[1:] if name is not None)

    def _run_after(self, node: Node) -> list[Node]:
        """Returns the per-channel nodes that follow, each the only reader of the one before, up to the last; empty unless one of them scales."""
        run: list[Node] = []
        value = node.outputs[0].name
        while (
            value not in self._results
            and len(readers := self._readers.get(value, [])) == 1
            and self._is_per_channel(readers[0], value, node)
        ):
            run.append(readers[0])
            value = readers[0].outputs[0].name
        return run if any(member.op in _SCALING for member in run) else []

    def _is_per_channel(self, node: Node, value: str, source: Node) -> bool:
        if node.op not in (*_SCALING, *_SHIFTING) or node.outputs[0].type != source.outputs[0].type:
            return False
        others = [name for name in node.reads() if name != value]
        if any(name not in self._constants for name in others):
            return False
        if node.op == "batch_norm":
            return bool(node.attrs["axis"] == _channel_axis(source)) and node.inputs[0] == value
        if node.op == "div" and (node.attrs["rounding"] != "true" or node.inputs[0] != value):
            return False
        return len(others) == 1 and varies_along_channels_alone(
            self._constants[others[0]].type.shape, source.outputs[0].type.shape, _channel_axis(source)
        )

    def _folded(self, node: Node, run: list[Node]) -> Node:
        used = [self._constants[name].source for member in (node, *run) for name in member.reads() if name in self._constants]
        key = (node.op, node.attrs.get("weight_layout"), *(_step_key(member) for member in run))
        affine = self._affine(node, run)
        weight = self._constants[node.inputs[1] or ""]
        axis, vector = 1 if node.attrs.get("weight_layout") == "io" else 0, TensorType(DType.F32, affine.shift.shape)
        weights = ScaledWeights(weight.source, affine.scale, axis, used, (*key, "weights"))
        bias = Recipe(used, (*key, "bias"), lambda: affine.shift.astype(np.float32))
        inputs = (
            node.inputs[0],
            self._constant(f"{weight.name}.folded", weight.type, weights),
            self._constant(f"{weight.name}.folded_bias", vector, bias),
        )
        label = "+".join((node.label, *(member.label for member in run if member.op == "batch_norm")))
        covers = ";".join(name for member in (node, *run) for name in member.covers)
        return replace(node, inputs=inputs, outputs=run[-1].outputs, metadata={**node.metadata, "rml.label": label, "rml.covers": covers})

    def _affine(self, node: Node, run: list[Node]) -> _Affine:
        bias = node.inputs[2]
        channels = node.outputs[0].type.shape[_channel_axis(node)]
        affine = _Affine(np.ones(channels), np.zeros(channels) if bias is None else self._constants[bias].data.astype(np.float64))
        value = node.outputs[0].name
        for member in run:
            data = {name: self._constants[name].data.astype(np.float64).reshape(-1) for name in member.reads() if name != value}
            affine, value = _after(affine, member, value, data), member.outputs[0].name
        return affine

    def _constant(self, name: str, type_: TensorType, recipe: Recipe) -> str:
        constant = Constant(self._names.take(name), type_, recipe)
        self._added.append(constant)
        return constant.name


def _channel_axis(node: Node) -> int:
    return 1 if node.attrs.get("data_layout") == "NCHW" else node.outputs[0].type.rank - 1


def _step_key(node: Node) -> tuple[Any, ...]:
    return (node.op, node.attrs.get("eps"), tuple(name is None for name in node.inputs))


FOLD_AFFINE = Pass("fold_affine", lambda graph: _Folder(graph).run(), fusion=True)
"""A conv2d or linear with constant weights takes in what follows it per channel, each the only reader of the one before: batch norm with constant
statistics, mul and div by constants, and adds and subs among them. Adds alone are left to the bias folding. Label ``conv2d+batch_norm``."""
