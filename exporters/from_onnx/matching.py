"""What the formulas ask of a value: what makes it, whether it is a number, of which factors it is the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rml_exec.ir.graph import Body, Constant, Node, Value
from rml_exec.ir.names import Names
from rml_exec.types import TensorType

__all__ = ["Match", "Matcher", "Product"]

_MOST_FACTORS = 8

Product = tuple[float, tuple[str, ...]]
"""A number and the values that are multiplied with it, sorted."""


@dataclass(slots=True)
class Match:
    """What a rule found: the node in place of the root, those before it, and the values inside, which nothing else may read."""

    op: str
    inputs: tuple[str | None, ...]
    attrs: Mapping[str, Any]
    inside: set[str]
    before: list[Node] = field(default_factory=list)


class Matcher:
    """The values of a body, as far as a walk over it has come: see :meth:`remember`."""

    def __init__(self, body: Body) -> None:
        self.made: dict[str, Node] = {}
        self.constants: dict[str, Constant] = {constant.name: constant for constant in body.constants}
        self.types = body.types()
        self._products: dict[str, Product] = {}
        self._readers: dict[str, set[str]] = {output.value: {""} for output in body.outputs}
        for node in body.nodes:
            for name in node.reads():
                self._readers.setdefault(name, set()).add(node.outputs[0].name)
        self._value_names = Names(self.types)
        self._node_names = Names(node.name for node in body.nodes)

    def remember(self, node: Node) -> None:
        """Makes a node known to the rules for those behind it."""
        self.made.update((value.name, node) for value in node.outputs)
        if node.op == "mul":
            (a, first), (b, second) = (self._product_of(name) for name in node.reads())
            product = a * b, tuple(sorted(first + second))
        elif node.op == "div" and (divisor := self.number(node.inputs[1])):
            a, first = self._product_of(node.inputs[0] or "")
            product = a / divisor, first
        else:
            return
        if len(product[1]) <= _MOST_FACTORS:
            self._products[node.outputs[0].name] = product

    def is_closed(self, root: Node, match: Match) -> bool:
        """True if nothing else reads what is computed on the way."""
        inside = match.inside | {root.outputs[0].name}
        return all(self._readers.get(value, set()) <= inside for value in match.inside)

    def node(self, value: str | None, op: str) -> Node | None:
        """Returns the node that makes a value, if it is one of this op."""
        node = self.made.get(value or "")
        return node if node is not None and node.op == op else None

    def number(self, value: str | None) -> float | None:
        """Returns a float constant of one element."""
        constant = self.constants.get(value or "")
        if constant is None or constant.type.size != 1 or not constant.type.dtype.is_float:
            return None
        return float(constant.data.reshape(-1)[0])

    def shape(self, value: str | None) -> tuple[int, ...]:
        """Returns the shape of a value that is there."""
        return self.types[value or ""].shape

    def _product_of(self, value: str) -> Product:
        number = self.number(value)
        return (number, ()) if number is not None else self._products.get(value, (1.0, (value,)))

    def product(self, value: str, inside: dict[str, Product]) -> Product:
        """Returns what multiplications a value consists of; ``inside`` gets the values on the way and what they are."""
        pending = [value]
        while pending:
            name = pending.pop()
            if name in self._products and name not in inside:
                inside[name] = self._products[name]
                pending += self.made[name].reads()
        return self._product_of(value)

    def plus(self, value: str, inside: set[str]) -> tuple[str, str] | None:
        """Returns the operands of a sum."""
        node = self.node(value, "add")
        if node is None:
            return None
        inside.add(value)
        a, b = node.reads()
        return a, b

    def new(self, before: list[Node], root: Node, op: str, operands: Sequence[str], type_: TensorType, name: str, **attrs: Any) -> str:
        """Adds a node that a match needs before the root, and returns its value."""
        value = Value(self._value_names.take(f"{root.name}.{name}"), type_)
        self.types[value.name] = type_
        before.append(Node(op, self._node_names.take(value.name), tuple(operands), (value,), attrs, {}, dict(root.source)))
        return value.name
