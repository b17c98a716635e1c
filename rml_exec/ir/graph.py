"""The records of a graph: pure SSA, immutable, in topological order. Everything is static: symbolic dims exist in files only.

This module knows nothing of what an op means; :mod:`rml_exec.ops` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rml_exec.ir.derived import Recipe, array_of
from rml_exec.ir.dims import bind_graph
from rml_exec.types import TensorType

__all__ = ["Body", "Constant", "Function", "Graph", "Node", "Output", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor: a graph input or a node's output. ``tag`` is "shape" for a value that holds a shape, not data."""

    name: str
    type: TensorType
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One result of a graph under its interface name; several may name one value, and a value may be an input or a constant."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A named constant.

    Attributes:
        name: its value's name.
        type: its type.
        source: the elements, or for a constant that a pass made how to make them.
        key: its name in the weights file; two constants may share one (tied weights). None means that it stands inline in the JSON.
    """

    name: str
    type: TensorType
    source: np.ndarray | Recipe
    key: str | None = None

    @property
    def data(self) -> np.ndarray:
        """The elements: read-only and, for a loaded graph, mapped from the weights file."""
        return array_of(self.source)


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an op.

    Attributes:
        op: name of the op's record in :mod:`rml_exec.ops`.
        name: unique within its body.
        inputs: value names in operand order; ``None`` for an absent optional operand.
        outputs: the values it defines.
        attrs: attribute name -> plain Python value (int, float, bool, str, tuples of them, None). Every attribute is present.
        metadata: string -> string; the plan's annotations live here.
        source: where it came from: ``op`` (the framework's operator) and ``where`` (file:line).
    """

    op: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Row of the profile that this node belongs to: its op, or what a pass made of several ("conv2d+add")."""
        return self.metadata.get("rml.label", self.op)

    @property
    def covers(self) -> tuple[str, ...]:
        """Names of the nodes of the exported graph that this one stands for: itself, those that a pass fused into it, or none."""
        return tuple(filter(None, self.metadata.get("rml.covers", self.name).split(";")))

    def reads(self) -> Iterator[str]:
        """Yields the names of the values it reads, absent operands left out, repeats kept."""
        return (name for name in self.inputs if name is not None)


@dataclass(frozen=True, slots=True, weakref_slot=True)  # plans are cached for as long as their body lives
class Body:
    """What a graph and a function have in common: a closed list of nodes from named inputs to named outputs."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Output, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]

    def types(self) -> dict[str, TensorType]:
        """Returns the type of every value: inputs, constants, node outputs."""
        found = {value.name: value.type for value in self.inputs}
        found.update((constant.name, constant.type) for constant in self.constants)
        found.update((value.name, value.type) for node in self.nodes for value in node.outputs)
        return found

    def readers(self) -> dict[str, list[Node]]:
        """Returns the nodes that read each value, in order, a node once per operand; unread values are absent."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads():
                found.setdefault(name, []).append(node)
        return found

    def output_values(self) -> set[str]:
        """Returns the names of the values that are results."""
        return {output.value for output in self.outputs}


@dataclass(frozen=True, slots=True)
class Function(Body):
    """A closed subgraph for ``call``, ``cond``, ``while`` and ``scan``. Functions do not recurse and capture nothing."""


@dataclass(frozen=True, slots=True)
class Graph(Body):
    """A whole model.

    Attributes:
        producer: ``framework``, ``framework_version``, ``exporter_version``, ``options``.
        functions: name -> function.
        metadata: string -> string.
        dims: symbolic dims of the file: name -> {"min", "max", "hint"}; empty for a static graph. The records hold one binding of them.
        template: the symbolic graph of the file, when it has dims: these records with expressions for integers. See :meth:`bind`.
        source_path: absolute path of the JSON file, when loaded from one.
        source_stamp: what told the files it was loaded from apart from others at that time (see :func:`rml_exec.ir.format.file_stamps`); None
            where it came from somewhere else, or with weights of another name.
    """

    producer: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    template: Graph | None = field(default=None, repr=False, compare=False)
    source_path: str | None = field(default=None, repr=False, compare=False)
    source_stamp: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False, compare=False)

    def with_nodes(self, nodes: tuple[Node, ...], constants: tuple[Constant, ...] | None = None) -> Graph:
        """Returns the graph with other nodes (and constants, when given): what a pass hands back. It is static and no longer the
        one in the file: dims and path are dropped.
        """
        return replace(
            self,
            nodes=nodes,
            constants=self.constants if constants is None else constants,
            dims={},
            template=None,
            source_path=None,
            source_stamp=None,
        )

    def bind(self, **dims: int) -> Graph:
        """Returns the static graph that values for the symbolic dims give; it holds for types only once ``rml_exec.loading.check_graph`` passes.

        Raises:
            InputError: an unknown or missing dim, a value out of the dim's range, an expression without a legal value.
        """
        return replace(bind_graph(self.template or self, dims), dims={}, template=None, source_path=None, source_stamp=None)
