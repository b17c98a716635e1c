"""Nodes that do what a cheaper op does: reads at indices known to be a range, pools of one window, joins of one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rml_exec.ir.graph import Constant, Graph, Node, Value
from rml_exec.ir.names import Names
from rml_exec.passes.base import Pass
from rml_exec.types import DType, TensorType

__all__ = ["SIMPLIFY_NODES"]

_FEW = 1 << 16
"""More indices than that are not looked at."""

_KEEP_PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinates by which a resize to the same size reads every pixel where it is."""


class _Simplifier:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = graph.types()
        self._constants = {constant.name: constant for constant in graph.constants}
        self._values, self._node_names = Names(self._types), Names(node.name for node in graph.nodes)

    def run(self) -> Graph:
        nodes: list[Node] = []
        for node in self._graph.nodes:
            rule = _RULES.get(node.op)
            nodes += (rule(self, node) if rule is not None else None) or [node]
        return self._graph.with_nodes(tuple(nodes), tuple(self._constants.values()))

    def _indices(self, node: Node, sizes: tuple[int, ...]) -> np.ndarray | None:
        """Returns the indices that a node reads at, one column per axis of these sizes; None if they are not known, or out of range."""
        constant = self._constants.get(node.inputs[1] or "")
        if constant is None or not 0 < constant.type.size <= _FEW:
            return None
        indices = constant.data.reshape(-1, len(sizes)).astype(np.int64)
        if node.attrs["wrap_negative"]:
            indices = np.where(indices < 0, indices + np.array(sizes), indices)
        return indices if bool(((indices >= 0) & (indices < np.array(sizes))).all()) else None

    def take(self, node: Node) -> list[Node] | None:
        """Of consecutive indices: a slice."""
        x, axis = node.inputs[0] or "", node.attrs["axis"]
        shape = self._types[x].shape
        indices = self._indices(node, shape[axis : axis + 1])
        return None if indices is None else self._range(node, x, shape, axis, indices[:, 0])

    def _range(self, node: Node, x: str, shape: tuple[int, ...], axis: int, indices: np.ndarray) -> list[Node] | None:
        """Returns the nodes in place of one that reads consecutive indices of an axis of x, seen in this shape; None if they are not that."""
        first, count = int(indices[0]), len(indices)
        if not np.array_equal(indices, np.arange(first, first + count)):
            return None
        nodes: list[Node] = []
        if shape != self._types[x].shape:
            x = self._add(nodes, node, "reshape", x, shape, {"shape": shape})
        if count < shape[axis]:
            before, behind = shape[:axis], shape[axis + 1 :]
            attrs = {
                "start": (*(0 for _ in before), first, *(0 for _ in behind)),
                "limit": (*before, first + count, *behind),
                "strides": (1,) * len(shape),
            }
            x = self._add(nodes, node, "slice", x, (*before, count, *behind), attrs)
        return [*nodes, replace(node, op="reshape", inputs=(x,), attrs={"shape": node.outputs[0].type.shape})]

    def _add(self, nodes: list[Node], node: Node, op: str, x: str, shape: Any, attrs: Mapping[str, Any]) -> str:
        value = Value(self._values.take(f"{node.name}.{op}"), TensorType(self._types[x].dtype, tuple(shape)))
        self._types[value.name] = value.type
        nodes.append(Node(op, self._node_names.take(value.name), (x,), (value,), attrs, {"rml.covers": ""}, node.source))
        return value.name

    def gather_nd(self, node: Node) -> list[Node] | None:
        """Of known points: a take from the axes that they address, seen as one; a slice where they follow one another."""
        x, points = node.inputs[0] or "", self._types[node.inputs[1] or ""].shape
        shape, depth = self._types[x].shape, points[-1]
        indices = self._indices(node, shape[:depth]) if depth and not node.attrs["batch_dims"] else None
        if indices is None:
            return None
        rows = np.ravel_multi_index(tuple(indices.T), shape[:depth])
        joined = (math.prod(shape[:depth]), *shape[depth:])
        if found := self._range(node, x, joined, 0, rows):
            return found
        nodes: list[Node] = []
        if joined != shape:
            x = self._add(nodes, node, "reshape", x, joined, {"shape": joined})
        name = self._values.take(f"{node.inputs[1]}.rows")
        data = rows.reshape(points[:-1])
        self._constants[name] = Constant(name, TensorType(DType.I64, data.shape), data)
        attrs = {"axis": 0, "oob": "clamp", "wrap_negative": False, "fill_value": None}
        return [*nodes, replace(node, op="take", inputs=(x, name), attrs=attrs)]

    def avg_pool(self, node: Node) -> list[Node] | None:
        """Of one window that covers the image: a mean over it."""
        attrs, shape = node.attrs, self._types[node.inputs[0] or ""].shape
        axes = tuple(range(2, len(shape)) if attrs["data_layout"] == "NCHW" else range(1, len(shape) - 1))
        image = tuple(shape[axis] for axis in axes)
        covers = all(extent >= size and not low for extent, size, (low, _) in zip(attrs["window"], image, attrs["pads"], strict=True))
        counts = attrs["divisor"] == "valid" or (attrs["divisor"] == "window" and attrs["window"] == image)
        if 0 in shape or not covers or not counts or any(node.outputs[0].type.shape[axis] != 1 for axis in axes):
            return None
        mean = {"kind": "mean", "axes": axes, "keepdims": True, "nan": "propagate", "empty": "identity"}
        return [replace(node, op="reduce", attrs=mean)]

    def concat(self, node: Node) -> list[Node] | None:
        """Of one value and empty ones: that value."""
        full = [name for name in node.reads() if self._types[name].size]
        if len(full) != 1:
            return None
        return [replace(node, op="reshape", inputs=(full[0],), attrs={"shape": node.outputs[0].type.shape})]

    def resize(self, node: Node) -> list[Node] | None:
        """To the size that it has: nothing."""
        x, result = node.inputs[0] or "", node.outputs[0].type
        is_whole = set(node.attrs["scales"] or (1.0,)) == {1.0} and node.attrs["coord"] in _KEEP_PLACES
        if not is_whole or self._types[x] != result:
            return None
        return [replace(node, op="reshape", inputs=(x,), attrs={"shape": result.shape})]


_RULES: Mapping[str, Callable[[_Simplifier, Node], list[Node] | None]] = {
    "take": _Simplifier.take,
    "gather_nd": _Simplifier.gather_nd,
    "avg_pool": _Simplifier.avg_pool,
    "concat": _Simplifier.concat,
    "resize": _Simplifier.resize,
}

SIMPLIFY_NODES = Pass("simplify_nodes", lambda graph: _Simplifier(graph).run(), fusion=True)
"""A take, or a gather_nd over the first axes, at known indices that follow one another becomes a slice, which is a view; another gather_nd at known
indices a take. An average pool of one window that covers the image becomes a reduction. A resize to the size that the image has, and a concat of one
value and empty ones, become reshapes, which ``merge_views`` takes out."""
