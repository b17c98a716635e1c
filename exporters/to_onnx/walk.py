"""Walks the bodies of a graph and calls the lowering of every node: folding, layouts, names, refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import numpy as np
import onnx

from exporters.errors import Unsupported
from exporters.to_onnx.context import ONNX, Context, Held, Laid, Model, Order, RefusedError, Scope, Shape, constants_of
from rml_exec.errors import RmlError
from rml_exec.ir.dims import Expr
from rml_exec.ir.graph import Body, Node, Value
from rml_exec.ops import get_op
from rml_exec.types import DType

__all__ = ["Walk", "is_fixed", "rename"]

_SYMBOLIC = {
    "reshape": ("shape",),
    "broadcast": ("shape",),
    "slice": ("start", "limit"),
    "iota": ("shape",),
    "pad": ("low", "high"),
    "dynamic_slice": ("sizes",),
    "resize": ("sizes",),
    "scan": ("length",),
}
"""Attributes that may depend on dims: ONNX takes them as operands."""


def is_fixed(value: object) -> bool:
    """True if no expression over dims is inside an attribute or shape."""
    return all(map(is_fixed, value)) if isinstance(value, tuple) else not isinstance(value, Expr)


class Walk:
    """Converts bodies into scopes.

    Attributes:
        refused: what could not be converted, for one error that lists it all.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.refused: list[Unsupported] = []

    def body(self, scope: Scope, body: Body, symbolic: Body) -> list[Held]:
        """Walks a body whose inputs ``scope.values`` holds, and returns its results."""
        scope.values.update(constants_of(body.constants, scope.prefix))
        for node, template in zip(body.nodes, symbolic.nodes, strict=True):
            for output, held in zip(node.outputs, self._node(scope, node, template), strict=True):
                scope.values[output.name] = held
        return [scope.values[output.value] for output in body.outputs]

    def function(self, scope: Scope, name: str, operands: Sequence[Held]) -> list[Held]:
        """Walks a function of the graph into a scope."""
        function, symbolic = self.model.functions[name]
        scope.values.update(zip((value.name for value in function.inputs), operands, strict=True))
        return self.body(scope, function, symbolic)

    def _node(self, scope: Scope, node: Node, symbolic: Node) -> list[Held]:
        """Returns the results of one node; those of one that is refused are made up, so that all refusals are found."""
        scope.label = node.name
        first = len(scope.nodes)
        context = Context(scope, node, symbolic, self.function)
        try:
            results = _constants(context) or self._lowered(context)
        except RefusedError as refusal:
            self.refused.append(Unsupported(node.op, node.name, node.source.get("where", ""), str(refusal)))
            return [_held(scope, output, template.type.shape) for output, template in zip(node.outputs, symbolic.outputs, strict=True)]
        self._label(context, results, first)
        return results

    def _lowered(self, context: Context) -> list[Held]:
        node = context.node
        lowering = ONNX.get(node.op)
        if lowering is None:
            raise RefusedError("ONNX has no operators for it")
        for name, value in context.symbolic.attrs.items():
            if name not in _SYMBOLIC.get(node.op, ()) and not is_fixed(value):
                raise RefusedError(f"its attribute '{name}' depends on dims, which ONNX takes as a number only")
        if get_op(node.op).elementwise:
            order, names = _elementwise_operands(context)
            made: object = Laid(lowering(context, *names, **context.symbolic.attrs), order)
        else:
            made = lowering(context, **context.symbolic.attrs)
        parts = made if isinstance(made, tuple | list) and not isinstance(made, Laid) else [made]
        results = []
        for part, output, template in zip(parts, node.outputs, context.symbolic.outputs, strict=True):
            if isinstance(part, Held):
                results.append(part)
                continue
            name, order = part if isinstance(part, Laid) else (part, ())
            results.append(Held(output.type, template.type.shape, {() if order == tuple(range(output.type.rank)) else order: name}))
        return results

    def _label(self, context: Context, results: Sequence[Held], first: int) -> None:
        """Gives the node's last ONNX node its name and metadata, its results their names, and the line of source to all."""
        scope, node = context.scope, context.node
        made = scope.nodes[first:]
        if not made:
            return
        fresh = {name for part in made for name in part.output}
        renamed: dict[str, str] = {}
        for held, output in zip(results, node.outputs, strict=True):
            for order, name in held.tensors.items():
                if name in fresh and name not in renamed:
                    suffix = "." + "".join(map(str, order)) if order else ""
                    renamed[name] = self.model.name(f"{scope.prefix}{output.name}{suffix}")
        for operand in (*results, *context.operands):  # a result may be an operand in another order
            while operand is not None:
                operand.tensors = {order: renamed.get(name, name) for order, name in operand.tensors.items()}
                operand = operand.base
        rename(made, renamed)
        for part in made:
            if "where" in node.source and not part.doc_string:
                part.doc_string = node.source["where"]
        if node.op == "call" or (node.op == "cond" and made[-1].op_type != "If"):  # what was inlined keeps its names
            return
        last = next((part for part in reversed(made) if any(name in renamed.values() for name in part.output)), made[-1])
        last.name = self.model.node_name(scope.prefix + node.name)
        for key, value in node.metadata.items():
            last.metadata_props.add(key=key, value=value)


def rename(nodes: Iterable[onnx.NodeProto], renamed: Mapping[str, str]) -> None:
    """Renames tensors, in subgraphs too."""
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename(attribute.g.node, renamed)


def _held(scope: Scope, output: Value, shape: Shape) -> Held:
    return Held(output.type, shape, {(): scope.model.name(output.name)})


def _constants(context: Context) -> list[Held] | None:
    """Returns the results of a node that is known now: of constants alone, unless that makes the file larger, or without elements."""
    node, op = context.node, get_op(context.node.op)
    types = [output.type for output in node.outputs]
    shapes = [output.type.shape for output in context.symbolic.outputs]
    if not is_fixed(tuple(shapes)) or not types:
        return None
    if all(type_.size == 0 for type_ in types):
        return [Held(type_, type_.shape, array=np.zeros(type_.shape, type_.dtype.numpy)) for type_ in types]
    arrays = [None if held is None else held.array for held in context.operands]
    known = all(held is None or held.array is not None for held in context.operands)
    if not known or any(op.calls(node.attrs)) or not is_fixed(tuple(context.symbolic.attrs.values())):
        return None
    given = sum(array.nbytes for array in arrays if array is not None)
    if sum(type_.nbytes for type_ in types) > max(given, 4096) or (op.limits and any(type_.dtype is DType.BF16 for type_ in types)):
        return None
    try:
        results = op.run_reference(arrays, node.attrs, node.name)
    except RmlError:  # values that it refuses: left to the run
        return None
    key = next((held.key for held in context.operands if held is not None), None) if op.view else None
    name = None if key is None else f"{key}/{node.name}"
    return [Held(type_, type_.shape, array=np.asarray(array), key=name) for type_, array in zip(types, results, strict=True)]


def _elementwise_operands(context: Context) -> tuple[Order, list[str]]:
    """Returns the order of axes in which an elementwise node is computed, and its operands: where most of their data lies, unstretched."""
    type_, shape = context.result()
    held = [operand for operand in context.operands if operand is not None]
    votes: dict[Order, int] = {}
    for operand in held:
        source = operand.base or operand
        if source.array is None and source.type.rank == type_.rank and 2 * source.type.size > type_.size:
            votes[source.order] = votes.get(source.order, 0) + 1
    order = max(votes, key=lambda order: (votes[order], not order), default=())
    strict = list(held)
    for index, operand in enumerate(held):  # stretch one operand after the other until the result has its shape
        if _stretched([source.base or source for source in strict]) == shape:
            break
        if operand.base is not None:
            strict[index] = Held(operand.type, operand.shape, {(): context.scope.tensor(operand)})
    return order, [context.scope.loose(operand, type_.rank, order) for operand in strict]


def _stretched(held: Sequence[Held]) -> Shape:
    """Returns the shape that values stretch to together."""
    columns = zip_longest(*(reversed(operand.shape) for operand in held), fillvalue=1)
    return tuple(reversed([next((size for size in column if size != 1), 1) for column in columns]))
