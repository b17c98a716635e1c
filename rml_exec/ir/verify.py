"""Structural rules of a graph. What an op demands of its operands is checked by :func:`rml_exec.loading.check_graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from rml_exec.errors import RmlError, VerifyError, sentence
from rml_exec.ir.graph import Body, Function, Graph, Node
from rml_exec.ir.names import is_legal_name
from rml_exec.ir.text import node_text
from rml_exec.types import TensorType

__all__ = ["MAX_RANK", "Place", "Problems", "verify_graph"]

MAX_RANK = 8
_MAX_BYTES = 2**63 - 1
_SHOWN = 20
_AROUND = 5

Calls = Callable[[Node], Iterable[str]]
"""Gives the names of the functions that a node calls; only the ops know."""

Place = tuple[Body, int]
"""A body and the index of a node in it."""


class Problems:
    """Collects what is wrong with a graph, so that all of it is told at once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: list[tuple[str, Place | None]] = []

    def __len__(self) -> int:
        """Returns how many problems were added."""
        return len(self._found)

    def add(self, where: str, rule: str, got: object = None, *, at: Place | None = None) -> None:
        """Adds one sentence; ``at`` is the node to blame."""
        self.add_text(sentence(where, rule, got), at)

    def add_text(self, text: str, at: Place | None) -> None:
        """Adds the message of an error about the node ``at``."""
        self._found.append((text, at))

    def raise_any(self, error: type[RmlError]) -> None:
        """Raises ``error`` with all that was added, and the nodes around the first culprit; does nothing if nothing was added."""
        if not self._found:
            return
        texts = [text for text, _ in self._found]
        if len(texts) == 1:
            message = f"{self._where}: {texts[0]}"
        else:
            hidden = [f"... and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
            message = "\n  ".join([f"{self._where}: {len(texts)} problems:", *texts[:_SHOWN], *hidden])
        culprit = next((at for _, at in self._found if at is not None), None)
        raise error(message if culprit is None else f"{message}\n{_window(*culprit)}")


def _window(body: Body, index: int) -> str:
    first = max(0, index - _AROUND)
    nodes = enumerate(body.nodes[first : index + _AROUND + 1], first)
    return "\n".join(f"{'>' if number == index else ' '} {number:5} {node_text(node)}" for number, node in nodes)


def verify_graph(graph: Graph, where: str | None = None, calls: Calls | None = None) -> None:
    """Checks names, SSA, topological order, outputs, constants, limits, and that functions are closed and do not recurse.

    Args:
        graph: the graph.
        where: what to call it in errors; its name when not given.
        calls: see :data:`Calls`; without it calls are not followed.

    Raises:
        VerifyError: listing all problems.
    """
    problems = Problems(where or f"graph '{graph.name}'")
    _verify_body(graph, "graph", graph, problems)
    for name, function in graph.functions.items():
        if name != function.name:
            problems.add(f"function '{name}'", "must be listed under its own name", function.name)
        if not is_legal_name(name):
            problems.add(f"function '{name}'", "the name of a function must not be empty or hold ':' ';' or control characters")
        _verify_body(function, f"function '{name}'", graph, problems)
    if calls is not None:
        _verify_calls(graph, calls, problems)
    problems.raise_any(VerifyError)


def _verify_body(body: Body, place: str, graph: Graph, problems: Problems) -> None:
    defined_at: dict[str, int] = {}  # -1: an input or a constant
    for kind, name, type_ in _sources(body):
        _verify_value(f"{kind} '{name}'", name, type_, None, defined_at, problems)
    for constant in body.constants:
        if not isinstance(constant.source, np.ndarray):
            continue  # made by a pass: a recipe, whose array need not exist
        held = (constant.source.dtype, constant.source.shape)
        if held != (constant.type.dtype.numpy, constant.type.shape):
            problems.add(f"constant '{constant.name}'", f"is {constant.type} but its data is {held[0]}{list(held[1])}")
    node_names: set[str] = set()
    for index, node in enumerate(body.nodes):
        who = f"{node.op} '{node.name}'"
        if not is_legal_name(node.name):
            problems.add(who, "the name of a node must not be empty or hold ':' ';' or control characters", at=(body, index))
        if node.name in node_names:
            problems.add(who, "another node has the same name", at=(body, index))
        node_names.add(node.name)
        if not node.outputs:
            problems.add(who, "must have an output", at=(body, index))
        for value in node.outputs:
            _verify_value(f"{who} output '{value.name}'", value.name, value.type, (body, index), defined_at, problems)
    for index, node in enumerate(body.nodes):
        for name in dict.fromkeys(node.reads()):
            if defined_at.get(name, index) >= index:
                fault = _order_fault(body, index, name, defined_at, graph, len(problems) < _SHOWN)
                problems.add(f"{node.op} '{node.name}'", fault, at=(body, index))
    names: set[str] = set()
    for output in body.outputs:
        if not is_legal_name(output.name):
            problems.add(place, f"output name {output.name!r} must not be empty or hold ':' ';' or control characters")
        if output.name in names:
            problems.add(place, f"two outputs are called '{output.name}'")
        names.add(output.name)
        if output.value not in defined_at:
            problems.add(place, f"output '{output.name}' is value '{output.value}', which nothing defines")


def _sources(body: Body) -> Iterator[tuple[str, str, TensorType]]:
    for value in body.inputs:
        yield "input", value.name, value.type
    for constant in body.constants:
        yield "constant", constant.name, constant.type


def _verify_value(who: str, name: str, type_: TensorType, at: Place | None, defined_at: dict[str, int], problems: Problems) -> None:
    if not is_legal_name(name):
        problems.add(who, "the name of a value must not be empty or hold ':' ';' or control characters", at=at)
    if name in defined_at:
        problems.add(who, f"value '{name}' is defined twice", at=at)
    defined_at.setdefault(name, -1 if at is None else at[1])
    if type_.rank > MAX_RANK:
        problems.add(who, f"may have at most {MAX_RANK} axes", type_, at=at)
    elif any(dim < 0 for dim in type_.shape):
        problems.add(who, "must have no negative dim", type_, at=at)
    elif type_.nbytes > _MAX_BYTES:
        problems.add(who, "is larger than any memory", type_, at=at)


def _order_fault(body: Body, index: int, name: str, defined_at: Mapping[str, int], graph: Graph, seek_cycle: bool) -> str:
    if name not in defined_at:
        outside = isinstance(body, Function) and name in graph.types()
        return f"reads value '{name}', which " + ("is the graph's: functions capture nothing" if outside else "nothing defines")
    if seek_cycle and (cycle := _cycle(body, index, name, defined_at)):
        return f"reads its own result: a cycle through {' -> '.join(cycle)}"
    return f"reads value '{name}' before node '{body.nodes[defined_at[name]].name}' defines it: nodes must be in topological order"


def _cycle(body: Body, index: int, name: str, defined_at: Mapping[str, int]) -> list[str] | None:
    """Names of the nodes on a way from node ``index`` through its operand ``name`` back to itself, or None."""
    came_from = {defined_at[name]: index}  # producer -> the node that reads it
    pending = [defined_at[name]]
    while pending:
        current = pending.pop()
        if current == index:
            chain = [index]
            while (reader := came_from[chain[-1]]) != index:
                chain.append(reader)
            return [body.nodes[number].name for number in [*chain, index]]
        for operand in body.nodes[current].reads():
            producer = defined_at.get(operand, -1)
            if producer >= 0 and producer not in came_from:
                came_from[producer] = current
                pending.append(producer)
    return None


def _verify_calls(graph: Graph, calls: Calls, problems: Problems) -> None:
    edges: dict[str, set[str]] = {}
    for body in (graph, *graph.functions.values()):
        called = edges.setdefault(body.name if isinstance(body, Function) else "", set())
        for index, node in enumerate(body.nodes):
            for name in calls(node):
                if name not in graph.functions:
                    problems.add(f"{node.op} '{node.name}'", f"calls function '{name}', which does not exist", at=(body, index))
                called.add(name)
    for start in graph.functions:
        reached: set[str] = set()
        pending = [start]
        while pending:
            new = edges.get(pending.pop(), set()) - reached
            reached |= new
            pending += new
        if start in reached:
            problems.add(f"function '{start}'", "calls itself, directly or through others: functions do not recurse")
