"""One step of an executor as a graph of its own: the lowered node, and the views that it reads its operands through.

Cut out after the passes, so that the step is the one that runs: fused, in its layout, with folded weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rml_exec import _native
from rml_exec.ir.graph import Function, Graph, Node, Output, Value
from rml_exec.ops import get_op
from rml_exec.runtime.compilation import Compiled, Step, compile_graph
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.reference import ReferenceFunction
from rml_exec.types import DType, TensorType

__all__ = ["SingleStep", "narrow", "run_compiled", "single_steps", "widen"]

_POOL = _native.BufferPool()


@dataclass(frozen=True, slots=True)
class SingleStep:
    """One step of an executor.

    Attributes:
        index: its place among the steps.
        step: what the executor says about it.
        node: the lowered node that it runs.
        graph: the node with the views it reads through. Inputs are values that other steps made, or inputs of the whole graph, under their
            own names; outputs likewise.
    """

    index: int
    step: Step
    node: Node
    graph: Graph

    def reference(self, operands: Sequence[np.ndarray], *, wide: bool) -> tuple[np.ndarray, ...]:
        """Returns the results by the reference interpreter; with ``wide`` in float64, of operands that already are."""
        graph = self.graph
        body = Function(graph.name, graph.inputs, graph.outputs, graph.constants, graph.nodes)
        return ReferenceFunction(body, graph.functions, wide=wide, where=f"{self.node.op} '{self.node.name}'")(*operands)

    def compile(self, *, threads: int, numerics: str) -> Compiled:
        """Returns the program of the step alone."""
        return compile_graph(self.graph, threads=threads, numerics=numerics)

    def in_file(self) -> Graph:
        """Returns the graph as a file can hold it: what passes fused stands as its members, which they fuse again."""
        functions = {name: _in_file(function, f"{name}.") for name, function in self.graph.functions.items()}
        return replace(_in_file(self.graph, ""), functions=functions)


_Plain = TypeVar("_Plain", Graph, Function)


def _in_file(body: _Plain, prefix: str) -> _Plain:
    """Returns a body without what only passes may write; ``prefix`` tells its constants apart from those of other bodies."""
    nodes = (member for node in body.nodes for member in (node.attrs["body"] if get_op(node.op).internal else (node,)))
    constants = (replace(constant, source=constant.data, key=prefix + constant.name) for constant in body.constants)
    return replace(body, nodes=tuple(map(_unmarked, nodes)), constants=tuple(constants))


def _unmarked(node: Node) -> Node:
    """Returns the node without what the passes wrote on it, which is about the graph that it came from."""
    return replace(node, metadata={key: text for key, text in node.metadata.items() if not key.startswith("rml.")})


def single_steps(executor: Executor) -> Iterator[SingleStep]:
    """Yields the steps of a run that compute something, in order; for a graph with dims, those of its hints."""
    lowered = executor.lowered
    types = lowered.types()
    constants = {constant.name: constant for constant in lowered.constants}
    nodes = {node.name: node for node in lowered.nodes}
    steps = [step for step in executor.steps if step.label != "output"]
    stepping = {step.node for step in steps}
    views = {value.name: node for node in lowered.nodes if node.name not in stepping for value in node.outputs}
    for index, step in enumerate(steps):
        node = nodes[step.node]
        chain = _views_before(node, views)
        read = dict.fromkeys(name for member in (*chain, node) for name in member.reads() if name not in views)
        graph = Graph(
            node.name,
            tuple(Value(name, types[name]) for name in read if name not in constants),
            tuple(Output(value.name, value.name) for value in node.outputs),
            tuple(constants[name] for name in read if name in constants),
            (*chain, node),
            producer=executor.graph.producer,
            functions=_called(node, lowered.functions),
        )
        yield SingleStep(index, step, node, graph)


def _views_before(node: Node, views: Mapping[str, Node]) -> list[Node]:
    """Returns the views that a node reads through, in order."""
    found: dict[str, Node] = {}
    for name in node.reads():
        if name in views:
            found.update((view.name, view) for view in (*_views_before(views[name], views), views[name]))
    return list(found.values())


def _called(node: Node, functions: Mapping[str, Function]) -> dict[str, Function]:
    """Returns the functions that a node calls, and those that these call."""
    found: dict[str, Function] = {}
    for name in get_op(node.op).calls(node.attrs):
        found[name] = functions[name]
        for inner in functions[name].nodes:
            found.update(_called(inner, functions))
    return found


def run_compiled(compiled: Compiled, graph: Graph, inputs: Mapping[str, np.ndarray], threads: int) -> list[np.ndarray]:
    """Returns the outputs of one run of a compiled graph, in order."""
    types = graph.types()
    outputs = [np.empty(types[output.value].shape, types[output.value].dtype.numpy) for output in graph.outputs]
    given = [np.ascontiguousarray(inputs[value.name]).reshape(value.type.shape) for value in graph.inputs]
    compiled.program.run(_POOL.take(compiled.memory.arena_bytes), given, outputs, threads)
    return outputs


def widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns a float array in float64, others as they are; bf16 comes as its bits."""
    if dtype is DType.BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64) if dtype.is_float else array


def narrow(array: np.ndarray, type_: TensorType, *, flush: bool) -> np.ndarray:
    """Returns a wide array rounded to a type, C-contiguous; with ``flush`` what would be a denormal f32 becomes 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        if type_.dtype is DType.BF16:
            bits = array.astype(np.float32).view(np.uint32)
            rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            found = np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
        else:
            found = array.astype(type_.dtype.numpy)
            if flush and type_.dtype is DType.F32:
                found = np.where(np.abs(found) < np.finfo(np.float32).tiny, np.float32(0), found)
    return np.ascontiguousarray(found).reshape(type_.shape)
