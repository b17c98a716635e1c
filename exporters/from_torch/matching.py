"""Patterns over the nodes of a traced graph, for formulas that models write out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

__all__ = ["Found", "Op", "Term", "in_any_order", "matches", "packet_of", "shape_of"]

_COMMUTATIVE = frozenset(("add", "mul"))
_NUMBER_TOLERANCE = 1e-6  # models write constants such as sqrt(2 / pi) with 9 digits or more


class Op:
    """A call of one of some operators: ``Op("hardtanh clamp", "x", 0, 6)``.

    Operands are terms, in the order of the operator's arguments; of ``add`` and ``mul`` in any order. Keywords are arguments by keyword.
    """

    __slots__ = ("keywords", "operands", "packets")

    def __init__(self, packets: str, *operands: Term, **keywords: Any) -> None:
        self.packets = frozenset(packets.split())
        self.operands = operands
        self.keywords = keywords


Term = Op | str | float | list["Term"]
"""A call, a name (which stands for the same value wherever it occurs), a number, or a list of alternatives."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the names of a term stand for, and the calls that it consists of."""

    values: dict[str, Any]
    nodes: frozenset[Node]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str) -> Any:
        """Returns what a name stands for, None if the term does not have it."""
        return self.values.get(name)


def packet_of(node: Any) -> str:
    """Returns the name of a node's ATen operator without overload; empty for whatever is no call of one."""
    target = node.target if isinstance(node, Node) else None
    return str(target.overloadpacket).removeprefix("aten.") if isinstance(target, torch._ops.OpOverload) else ""


def shape_of(node: Any) -> tuple[Any, ...]:
    """Returns the sizes of a node's tensor, symbolic ones as expressions: to compare these decides nothing about them. () if it has none."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in value.shape)


def in_any_order(packet: str, *operands: Term) -> Term:
    """Returns the term of a commutative, associative operator over several operands, however they are bracketed."""
    if len(operands) == 1:
        return operands[0]
    first, *rest = range(len(operands))
    ways: list[Term] = []
    for count in range(len(rest)):
        for others in itertools.combinations(rest, count):  # what stands on the side of the first operand
            left = [operands[index] for index in (first, *others)]
            right = [operands[index] for index in rest if index not in others]
            ways.append(Op(packet, in_any_order(packet, *left), in_any_order(packet, *right)))
    return ways


def matches(term: Term, value: Any, found: Found | None = None) -> Iterator[Found]:
    """Yields every way in which a value is what a term says."""
    found = found or Found({}, frozenset())
    if isinstance(term, list):
        for alternative in term:
            yield from matches(alternative, value, found)
    elif isinstance(term, str):
        if term not in found.values:
            yield Found({**found.values, term: value}, found.nodes)
        elif found.values[term] is value or (not isinstance(value, Node) and found.values[term] == value):
            yield found
    elif isinstance(term, Op):
        if isinstance(value, Node) and packet_of(value) in term.packets:
            yield from _calls(term, value, found)
    elif isinstance(value, bool) or isinstance(term, bool):
        if value is term:
            yield found
    elif isinstance(value, int | float) and math.isclose(value, term, rel_tol=_NUMBER_TOLERANCE):
        yield found


def _calls(term: Op, node: Node, found: Found) -> Iterator[Found]:
    given = {name: value for name, value in node.kwargs.items() if not (name == "alpha" and value == 1)}
    if len(node.args) != len(term.operands) or given != term.keywords:
        return
    found = Found(found.values, found.nodes | {node})
    orders: list[Sequence[Any]] = [node.args]
    if packet_of(node) in _COMMUTATIVE:
        orders.append(node.args[::-1])
    for order in orders:
        yield from _all(term.operands, order, found)


def _all(terms: Sequence[Term], values: Sequence[Any], found: Found) -> Iterator[Found]:
    if not terms:
        yield found
        return
    for first in matches(terms[0], values[0], found):
        yield from _all(terms[1:], values[1:], first)
