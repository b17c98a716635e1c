"""Constants that a control-flow node hands to its functions become constants of those functions.

Functions are closed, so an exported loop gets its weights as operands: scan consts, or carried values that the body hands on unchanged.
Bound inside the function, a weight is packed once, a bias can be folded, and a loop carries less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from rml_exec.ir.graph import Body, Constant, Function, Graph, Node, Output
from rml_exec.ir.names import Names
from rml_exec.ops import get_op
from rml_exec.passes.base import Pass

__all__ = ["BIND_CONSTANTS"]

AnyBody = TypeVar("AnyBody", bound=Body)
Bound = Mapping[int, Constant]
"""Index of a function's input -> the constant that takes its place."""


class _Binder:
    """Rewrites bodies from the graph downwards; ``functions`` are those that the rewritten bodies call."""

    def __init__(self, source: Mapping[str, Function]) -> None:
        self.functions: dict[str, Function] = {}
        self._source, self._names = source, Names()
        self._variants: dict[tuple[object, ...], str] = {}

    def rewrite(self, body: AnyBody) -> AnyBody:
        """Returns the body with reduced control-flow nodes; constants that nothing reads any more are left out."""
        constants = {constant.name: constant for constant in body.constants}
        constant_results: dict[str, str] = {}  # result of a loop that always is the constant -> that constant
        nodes = []
        for node in body.nodes:
            node = replace(node, inputs=tuple(constant_results.get(name, name) if name else None for name in node.inputs))
            if any(get_op(node.op).calls(node.attrs)):
                node = self._reduced(node, constants, constant_results)
            nodes.append(node)
        outputs = tuple(Output(output.name, constant_results.get(output.value, output.value)) for output in body.outputs)
        read = {name for node in nodes for name in node.reads()} | {output.value for output in outputs}
        was_read = body.readers()
        kept = tuple(constant for constant in body.constants if constant.name in read or constant.name not in was_read)
        return replace(body, nodes=tuple(nodes), outputs=outputs, constants=kept)

    def _reduced(self, node: Node, constants: Mapping[str, Constant], constant_results: dict[str, str]) -> Node:
        """Returns a control-flow node without the operands and results that are constants."""
        given = {index: constants[name] for index, name in enumerate(node.inputs) if name is not None and name in constants}
        match node.op:
            case "call":
                return replace(node, inputs=_without(node.inputs, given), attrs={"function": self._variant(node.attrs["function"], given)})
            case "cond":
                given.pop(0, None)
                bound = {index - 1: constant for index, constant in given.items()}
                branches = tuple(self._variant(name, bound) for name in node.attrs["branches"])
                return replace(node, inputs=_without(node.inputs, given), attrs={"branches": branches})
        num_consts = node.attrs["num_consts"] if node.op == "scan" else 0
        num_carry = node.attrs["num_carry"] if node.op == "scan" else len(node.inputs)
        body = self._source[node.attrs["body"]]
        bound = {
            index: constant
            for index, constant in given.items()
            if index < num_consts or (index < num_consts + num_carry and body.outputs[index - num_consts].value == body.inputs[index].name)
        }
        dropped = {index - num_consts for index in bound if index >= num_consts}
        if len(dropped) == len(node.outputs):  # a node must have a result
            bound = {index: constant for index, constant in bound.items() if index < num_consts}
            dropped = set()
        for index in dropped:
            constant_results[node.outputs[index].name] = bound[index + num_consts].name
        attrs = {**node.attrs, "body": self._variant(node.attrs["body"], bound, dropped)}
        if node.op == "while":
            attrs["cond"] = self._variant(node.attrs["cond"], bound)
        else:
            attrs |= {"num_consts": num_consts - len(bound) + len(dropped), "num_carry": num_carry - len(dropped)}
        return replace(node, inputs=_without(node.inputs, bound), outputs=_without(node.outputs, dropped), attrs=attrs)

    def _variant(self, name: str, bound: Bound, dropped: Collection[int] = ()) -> str:
        """Returns the name of the function with these inputs bound and these outputs left out: the old name, for the first such variant."""
        given = tuple((index, id(constant.data), constant.type) for index, constant in sorted(bound.items()))
        key = (name, given, tuple(sorted(dropped)))
        if key not in self._variants:
            self._variants[key] = new = self._names.take(name)
            function = self._source[name]
            moved = tuple(replace(constant, name=function.inputs[index].name) for index, constant in bound.items())
            variant = Function(
                new, _without(function.inputs, bound), _without(function.outputs, dropped), (*function.constants, *moved), function.nodes
            )
            self.functions[new] = self.rewrite(variant)
        return self._variants[key]


Item = TypeVar("Item")


def _without(items: tuple[Item, ...], indices: Collection[int]) -> tuple[Item, ...]:
    return tuple(item for index, item in enumerate(items) if index not in indices)


def _bind(graph: Graph) -> Graph:
    if not graph.functions:
        return graph
    binder = _Binder(graph.functions)
    rewritten = binder.rewrite(graph)
    return replace(graph.with_nodes(rewritten.nodes, rewritten.constants), outputs=rewritten.outputs, functions=binder.functions)


BIND_CONSTANTS = Pass("bind_constants", _bind)
"""Operands of call, cond, while and scan that are constants of the caller move into the functions; a carried value that the body hands on
unchanged moves too, and its result is the constant. Functions that are called with different constants become several."""
