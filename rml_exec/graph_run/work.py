"""How much a step has to do, whatever kernel does it: floating-point operations and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rml_exec.ir.graph import Body, Function, Node
from rml_exec.ops import get_op
from rml_exec.runtime.executor import Executor
from rml_exec.types import TensorType

__all__ = ["Work", "work_of_steps"]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step, None where it depends on data.

    Attributes:
        flops: floating-point operations by the op's record; those of the direct way for a convolution that Winograd's method computes.
        bytes: of every operand once and every result once, weights included: what must move at least if no cache holds any of it.
    """

    flops: int | None
    bytes: int | None

    def __add__(self, other: Work) -> Work:
        return Work(_sum(self.flops, other.flops), _sum(self.bytes, other.bytes))

    def __mul__(self, times: int) -> Work:
        return Work(None if self.flops is None else times * self.flops, None if self.bytes is None else times * self.bytes)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def work_of_steps(executor: Executor) -> list[Work]:
    """Returns the work of each of the executor's steps, in order."""
    lowered = executor.lowered
    types = lowered.types()
    nodes = {node.name: node for node in lowered.nodes}
    outputs = {output.name: output.value for output in lowered.outputs}
    found = []
    for step in executor.steps:
        if step.label == "output":  # a copy into the caller's buffer
            found.append(Work(0, 2 * types[outputs[step.node]].nbytes))
        else:
            found.append(_work(nodes[step.node], types, lowered.functions))
    return found


def _work(node: Node, types: Mapping[str, TensorType], functions: Mapping[str, Function]) -> Work:
    match node.op:
        case "while" | "cond":
            return Work(None, None)
        case "call":
            return _work_of_body(functions[node.attrs["function"]], functions)
        case "scan":
            return _work_of_body(functions[node.attrs["body"]], functions) * node.attrs["length"]
    operands = [None if name is None else types[name] for name in node.inputs]
    results = tuple(value.type for value in node.outputs)
    rule = get_op(node.op).flops
    read = {name: types[name].nbytes for name in node.reads()}
    if node.op == "take":  # of the operand it reads what it takes
        read[next(node.reads())] = results[0].nbytes
    flops = rule(operands, results, node.attrs) if rule is not None else 0
    return Work(flops, sum(read.values()) + sum(type_.nbytes for type_ in results))


def _work_of_body(body: Body, functions: Mapping[str, Function]) -> Work:
    types = body.types()
    total = Work(0, 0)
    for node in body.nodes:
        if not get_op(node.op).view:
            total += _work(node, types, functions)
    return total
