"""How long each value's storage is needed, and the pass that writes it on the nodes for the execution plan to read.

Storage lives from the node that makes a value to the last reader of the value *or of any view of it*; a result of the graph, and whatever
a result looks into, lives to the end. An output may take over the storage of an operand that dies at the same node;
:meth:`Storage.refusal` is the one place that says when it may not, for this pass, which chooses, and for the plan, which checks what a
file claims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rml_exec.ir.graph import Body, Function, Node
from rml_exec.ops.registry import get_op
from rml_exec.plan.aliases import reads_contiguous, resolve_views
from rml_exec.types import TensorType

__all__ = [
    "INPLACE_REUSE",
    "NOT_USED_AFTER",
    "PEAK_MEMORY",
    "RELEASE_AFTER",
    "RELEASE_AFTER_SHAPE_TAG",
    "Storage",
    "annotate",
    "keep_names",
]

INPLACE_REUSE = "rml.inplace_reuse"
RELEASE_AFTER = "rml.release_after"
RELEASE_AFTER_SHAPE_TAG = "rml.release_after_shape_tag"
NOT_USED_AFTER = "rml.not_used_after"
PEAK_MEMORY = "rml.peak_memory"
_KEYS = (INPLACE_REUSE, RELEASE_AFTER, RELEASE_AFTER_SHAPE_TAG, NOT_USED_AFTER, PEAK_MEMORY)

AnyBody = TypeVar("AnyBody", bound=Body)


def keep_names(body: Body) -> frozenset[str]:
    """Returns the values that a run must never release: inputs and results, and a graph's constants (a function keeps its own)."""
    names = {value.name for value in body.inputs} | body.output_values()
    if not isinstance(body, Function):
        names.update(constant.name for constant in body.constants)
    return frozenset(names)


class Storage:
    """The buffers behind the values of a list of nodes.

    Attributes:
        views: value -> where its elements lie (:func:`resolve_views`).
        last: value -> index of the last node that needs it: reads it or, if it owns storage, reads any view of it; the node that makes it,
            if none does. A value from outside that nothing reads is absent.
        bytes: value made here that owns storage -> bytes of the buffer it lives in, larger than the value where it took over a larger one.
        shapes: values tagged as holding a shape.
    """

    def __init__(self, body: Body, types: Mapping[str, TensorType], keep: Collection[str]) -> None:
        self.views = resolve_views(body, types)
        self.last: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self.shapes: set[str] = set()
        self._nodes, self._types, self._keep = body.nodes, types, keep
        self._pinned = {self.views[name].root for name in keep if name in self.views}
        self._taken: set[str] = set()
        for index, node in enumerate(body.nodes):
            for name in node.reads():
                self.last[name] = index
                if name in self.views:
                    self.last[self.views[name].root] = index
            for value in node.outputs:
                self.last[value.name] = index
                if self.views[value.name].root == value.name:
                    self.bytes[value.name] = value.type.nbytes
                if value.tag == "shape":
                    self.shapes.add(value.name)

    def dies_after(self, name: str) -> int | None:
        """Returns the index of the node after which a value made here may be released; None if it must stay to the end."""
        return None if name in self._keep or name in self._pinned else self.last[name]

    def refusal(self, index: int, output: int, operand: int) -> str | None:
        """Returns why an output of a node must not overwrite an operand's storage; None if it may.

        Args:
            index: which node.
            output: which of its outputs.
            operand: which of its operands, a present one.
        """
        node = self._nodes[index]
        op, result, name = get_op(node.op), node.outputs[output], node.inputs[operand]
        if (output, operand) not in op.inplace:
            return f"{node.op} does not work in place on this operand"
        if name not in self.views or self.views[name].root not in self.bytes:
            return "its storage is not made by a node"
        view = self.views[name]
        if view.root in self._pinned:
            return f"the storage of '{view.root}' is needed to the end"
        if self.last[view.root] > index:
            return f"the storage of '{view.root}' is still read by node '{self._nodes[self.last[view.root]].name}'"
        if view.root in self._taken:
            return f"the storage of '{view.root}' is already taken over"
        if not self.shapes.isdisjoint((name, result.name, view.root)):
            return "a shape is never reused"
        type = self._types[name]
        if type.size != result.type.size or type.dtype.itemsize != result.type.dtype.itemsize:
            return f"{type} and {result.type} differ in size"
        if view.offset or not reads_contiguous(view, type.shape):
            return "it is a strided view"
        for other, alias in enumerate(node.inputs):
            if other == operand or alias not in self.views or self.views[alias].root != view.root:
                continue
            # An elementwise step reads position i before it writes position i, so a second look is harmless only from the same position.
            if not (op.elementwise and self.views[alias] == view and self._types[alias] == type):
                return f"operand '{alias}' reads the same storage in another order"
        return None

    def take_over(self, result: str, operand: str) -> None:
        """Records that a result lives in an operand's storage from now on."""
        root = self.views[operand].root
        self._taken.add(root)
        self.bytes[result] = self.bytes[root]

    def best_reuse(self, index: int, output: int) -> str | None:
        """Returns the operand whose storage an output had best take over; None for none."""
        node = self._nodes[index]
        result = node.outputs[output]
        found = None
        for pair in get_op(node.op).inplace:
            name = node.inputs[pair[1]] if pair[0] == output and pair[1] < len(node.inputs) else None
            if name is None or self.refusal(index, *pair):
                continue
            size = self.bytes[self.views[name].root]
            # Taking over a larger buffer saves the result's bytes now and wastes the rest as long as the result lives: up to twice its size
            # it pays. A result of the graph must fit the caller's array exactly.
            if size > (1 if result.name in self._pinned else 2) * result.type.nbytes:
                continue
            if found is None or size < self.bytes[self.views[found].root]:
                found = name
        return found


def annotate(body: AnyBody, *, scratch: Callable[[Node], int] | None = None) -> AnyBody:
    """Returns the body with the lifetime annotations written on its nodes, in place of any it had.

    Per node: ``rml.inplace_reuse`` ("out:in:equal|greater;...": whether the buffer behind the operand has the output's size or is
    larger), ``rml.release_after`` and ``rml.release_after_shape_tag`` (values that die here), ``rml.not_used_after`` (inputs and constants
    whose last use is here) and ``rml.peak_memory`` (bytes of scratch). A key that would hold nothing is left out.

    Args:
        body: a verified graph or function; the functions of a graph are left as they are.
        scratch: bytes of scratch memory that a node's kernel needs; None: none does.
    """
    storage = Storage(body, body.types(), keep_names(body))
    outside = [value.name for value in body.inputs] + [constant.name for constant in body.constants]
    unlocked = _by_index(outside, [storage.last.get(name) for name in outside])
    made = [value.name for node in body.nodes for value in node.outputs]
    released = _by_index(made, [storage.dies_after(name) for name in made])
    nodes = []
    for index, node in enumerate(body.nodes):
        reuse = []
        for output, value in enumerate(node.outputs):
            if operand := storage.best_reuse(index, output):
                storage.take_over(value.name, operand)
                reuse.append(f"{value.name}:{operand}:{'equal' if storage.bytes[value.name] == value.type.nbytes else 'greater'}")
        here = released.get(index, [])
        scratch_bytes = scratch(node) if scratch else 0
        written = {
            INPLACE_REUSE: ";".join(reuse),
            RELEASE_AFTER: ";".join(name for name in here if name not in storage.shapes),
            RELEASE_AFTER_SHAPE_TAG: ";".join(name for name in here if name in storage.shapes),
            NOT_USED_AFTER: ";".join(unlocked.get(index, [])),
            PEAK_MEMORY: str(scratch_bytes) if scratch_bytes else "",
        }
        others = {key: text for key, text in node.metadata.items() if key not in _KEYS}
        nodes.append(replace(node, metadata=others | {key: text for key, text in written.items() if text}))
    return replace(body, nodes=tuple(nodes))


def _by_index(names: Sequence[str], indices: Sequence[int | None]) -> dict[int, list[str]]:
    """Groups names by node index, None left out, order kept."""
    found: dict[int, list[str]] = {}
    for name, index in zip(names, indices, strict=True):
        if index is not None:
            found.setdefault(index, []).append(name)
    return found
