"""Channels last inside the plan: image ops that are declared NCHW run as NHWC, and the transposes that this takes cancel along the way.

A value in NCHW gets an NHWC twin when an op makes one; ops that can work on twins do so, and only a reader that cannot (a reshape, a matmul, a
graph output) brings the NCHW form back, through a transpose, which is a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Constant, Graph, Node, Value
from rml_exec.ir.names import Names
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass
from rml_exec.types import TensorType

__all__ = ["CHOOSE_LAYOUT", "LAYOUT_OF", "TO_NCHW", "TO_NHWC"]

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
LAYOUT_OF = "rml.layout_of"
"""Metadata key of a node whose result is the NHWC form of the value named."""

_IMAGE_OPS = ("conv2d", "conv2d_transpose", "max_pool", "avg_pool", "resize")
_LAST_OF = {0: 0, 1: 3, 2: 1, 3: 2}  # axis of NCHW -> the same axis of NHWC


class _Rewriter:
    """Walks the nodes once; ``twins`` maps a value to its NHWC form, ``present`` holds the values that exist in their own form."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = graph.types()
        self._constants = {constant.name: constant for constant in graph.constants}
        self._added: dict[str, Constant] = {}
        self._names = Names(self._types)
        self._present = {value.name for value in graph.inputs} | set(self._constants)
        self._twins: dict[str, str] = {}
        self._nodes: list[Node] = []

    def run(self) -> Graph:
        for node in self._graph.nodes:
            rewritten = self._rewrite(node)
            if rewritten is None:
                self._ensure_present(node.reads())
                self._nodes.append(node)
                self._present.update(value.name for value in node.outputs)
            else:
                self._nodes.append(rewritten)
        self._ensure_present(output.value for output in self._graph.outputs)
        read = {name for node in self._nodes for name in node.reads()} | self._graph.output_values()
        was_read = set(self._graph.readers())
        constants = (*self._graph.constants, *self._added.values())
        return self._graph.with_nodes(tuple(self._nodes), tuple(c for c in constants if c.name in read or c.name not in was_read))

    def _rewrite(self, node: Node) -> Node | None:
        """Returns the node in NHWC, or None if it stays as it is."""
        x = node.inputs[0] if node.inputs else None
        if node.op in _IMAGE_OPS and node.attrs["data_layout"] == "NCHW" and self._rank(x) == 4:
            assert x is not None
            return self._twin_node(node, (self._twin(x), *node.inputs[1:]), {**node.attrs, "data_layout": "NHWC"})
        if node.op in ("batch_norm", "group_norm") and x in self._twins and node.attrs["axis"] == 1:
            return self._twin_node(node, (self._twins[x], *node.inputs[1:]), {**node.attrs, "axis": 3})
        if node.op == "pad" and x in self._twins:
            widths = {name: tuple(node.attrs[name][axis] for axis in TO_NHWC) for name in ("low", "high", "interior")}
            return self._twin_node(node, (self._twins[x],), {**node.attrs, **widths})
        if node.op == "concat" and all(name in self._twins for name in node.reads()):
            return self._twin_node(
                node, tuple(self._twins[name] for name in node.reads()), {**node.attrs, "axis": _LAST_OF[node.attrs["axis"]]}
            )
        if node.op == "reduce" and x in self._twins and sorted(node.attrs["axes"]) == [2, 3]:
            reduced = {**node.attrs, "axes": (1, 2)}
            if node.attrs["keepdims"]:
                return self._twin_node(node, (self._twins[x],), reduced)
            self._present.update(value.name for value in node.outputs)
            return replace(node, inputs=(self._twins[x],), attrs=reduced)
        if get_op(node.op).elementwise and self._rank(node.outputs[0].name) == 4 and any(name in self._twins for name in node.reads()):
            operands = [self._elementwise_operand(name, node.outputs[0].type) for name in node.reads()]
            if all(operand is not None for operand in operands):
                return self._twin_node(node, tuple(operands), node.attrs)
        return None

    def _rank(self, name: str | None) -> int | None:
        return None if name is None else self._types[name].rank

    def _elementwise_operand(self, name: str, result: TensorType) -> str | None:
        """Returns the operand as an NHWC elementwise node reads it: a twin, a scalar, or a constant transposed here; None if it has no such form."""
        if name in self._twins:
            return self._twins[name] if self._types[name].shape == result.shape else None
        constant = self._constants.get(name)
        if self._types[name].size == 1 and self._types[name].rank < 4:
            return name
        if constant is None:
            return None
        if name not in self._added:
            full = (1,) * (4 - constant.type.rank) + constant.type.shape
            turned = Recipe((constant.source,), ("nhwc", full), lambda: constant.data.reshape(full).transpose(TO_NHWC))
            shape = tuple(full[axis] for axis in TO_NHWC)
            self._added[name] = Constant(self._names.take(f"{name}.nhwc"), TensorType(constant.type.dtype, shape), turned)
        return self._added[name].name

    def _twin_node(self, node: Node, inputs: tuple[str | None, ...], attrs: Mapping[str, Any]) -> Node:
        """Returns the node with these operands, its result being the NHWC twin of what it made."""
        (value,) = node.outputs
        name = self._names.take(f"{value.name}.nhwc")
        self._twins[value.name] = name
        metadata = {**node.metadata, LAYOUT_OF: value.name}
        return replace(node, inputs=inputs, outputs=(Value(name, _permuted(value.type, TO_NHWC)),), attrs=attrs, metadata=metadata)

    def _twin(self, name: str) -> str:
        """Returns the NHWC form of a value, made by a transpose if no node made it."""
        if name not in self._twins:
            twin = self._names.take(f"{name}.nhwc")
            self._nodes.append(self._transpose(name, Value(twin, _permuted(self._types[name], TO_NHWC)), TO_NHWC))
            self._twins[name] = twin
        return self._twins[name]

    def _ensure_present(self, names: Iterable[str]) -> None:
        """Brings back the NCHW form of each value that only has a twin so far."""
        for name in dict.fromkeys(names):
            if name in self._twins and name not in self._present:
                self._nodes.append(self._transpose(self._twins[name], Value(name, self._types[name]), TO_NCHW))
                self._present.add(name)

    def _transpose(self, source: str, result: Value, perm: tuple[int, ...]) -> Node:
        name = self._names.take(f"{result.name}.transpose")
        return Node("transpose", name, (source,), (result,), {"perm": perm}, {"rml.covers": ""})


def _permuted(type_: TensorType, perm: tuple[int, ...]) -> TensorType:
    return TensorType(type_.dtype, tuple(type_.shape[axis] for axis in perm))


def _choose(graph: Graph) -> Graph:
    image = any(node.op in _IMAGE_OPS and node.attrs["data_layout"] == "NCHW" and node.outputs[0].type.rank == 4 for node in graph.nodes)
    return _Rewriter(graph).run() if image else graph


CHOOSE_LAYOUT = Pass("choose_layout", _choose)
"""Convolutions, pools, resize, norms, pad, spatial reductions, concat and elementwise nodes work on channels-last values; a torch graph then has one
transpose at each end, a TensorFlow graph none."""
