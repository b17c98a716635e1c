"""The execution plan: the ordered actions of a run, derived once from a body and its annotations, valid for every run.

A plan knows names, types and sizes, no data: neither a run's values nor the weights.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rml_exec.errors import PlanError
from rml_exec.ir.graph import Body, Node, Value
from rml_exec.plan.actions import Action, ActionKind
from rml_exec.plan.lifetimes import (
    INPLACE_REUSE,
    NOT_USED_AFTER,
    PEAK_MEMORY,
    RELEASE_AFTER,
    RELEASE_AFTER_SHAPE_TAG,
    Storage,
    keep_names,
)
from rml_exec.plan.memory import MemoryPlan, plan_memory

__all__ = ["Event", "ExecutionPlan", "RunContext", "plan_for"]


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a run's event log: ``action`` ("remove") and the tensor it happened to."""

    action: str
    name: str


@dataclass(slots=True)
class RunContext:
    """The values of one run by name.

    Attributes:
        values: tensors.
        sequences: lists of tensors. The graph format has none, a caller that drives the nodes itself may; they make no events.
        events: the event log; None: it is off.
    """

    values: MutableMapping[str, Any] = field(default_factory=dict)
    sequences: MutableMapping[str, Any] = field(default_factory=dict)
    events: list[Event] | None = None

    def remove(self, name: str) -> None:
        """Forgets the tensor and the sequence of this name; no effect where there is none."""
        if name in self.values:
            del self.values[name]
            if self.events is not None:
                self.events.append(Event("remove", name))
        self.sequences.pop(name, None)


class ExecutionPlan:
    """What a run does, in order: locks, allocations, node runs, releases.

    ``ExecutionPlan(graph)``, ``ExecutionPlan(function)``, ``ExecutionPlan(nodes, keep)`` for nodes that belong to neither,
    ``ExecutionPlan()``.

    With lock annotations (``rml.not_used_after`` on any node) the annotations must be complete. Without, whatever is missing is derived
    from who reads what. An annotated release or unlock is carried out where it stands, or after the last use where it stands too early.
    In-place reuse comes from annotations only, and a reuse that would overwrite something still needed is refused in every case.

    Subclasses may override :meth:`build_actions`.

    Raises:
        PlanError: annotations that are incomplete or contradict the nodes.
    """

    def __init__(self, source: Body | Sequence[Node] = (), keep: Iterable[str] | None = None) -> None:
        if isinstance(source, Body):
            if keep is not None:
                raise PlanError.of(source.name, "a graph or function says itself what is kept; `keep` is for lists of nodes", sorted(keep))
            body, self._keep = source, keep_names(source)
        else:
            body, self._keep = Body("nodes", (), (), (), tuple(source)), frozenset(keep or ())
        self._inputs = tuple(value.name for value in body.inputs)
        self._constants = tuple(constant.name for constant in body.constants)
        self._body = Body(body.name, body.inputs, body.outputs, (), body.nodes)  # no constants: a plan holds no data
        self._types = body.types()
        self._actions = tuple(self.build_actions())
        self._index = {id(node): index for index, node in enumerate(body.nodes)}

    @property
    def keep(self) -> frozenset[str]:
        """Names that are never released."""
        return self._keep

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order; ``Action.node_index`` counts in them."""
        return self._body.nodes

    @property
    def num_nodes(self) -> int:
        return len(self._body.nodes)

    @property
    def actions(self) -> tuple[Action, ...]:
        """All that a run does, in order."""
        return self._actions

    @cached_property
    def memory(self) -> MemoryPlan:
        """The arena of a run that keeps everything but inputs and constants in it."""
        return plan_memory(self)

    @property
    def peak_bytes(self) -> int:
        """Bytes of the largest set of buffers alive together."""
        return self.memory.peak_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The same with each buffer rounded up to the alignment: no arena can be smaller."""
        return self.memory.lower_bound_bytes

    def release_after(self, node: Node, context: RunContext) -> None:
        """Removes from a context what dies after a node; no effect for a node that is not one of :attr:`nodes` (by identity)."""
        for name in self._released.get(self._index.get(id(node), -1), ()):
            context.remove(name)

    @cached_property
    def _released(self) -> Mapping[int, Sequence[str]]:
        found: dict[int, list[str]] = {}
        for action in self._actions:
            if action.kind in (ActionKind.DELETE_BUFFER, ActionKind.DELETE_SHAPE):
                found.setdefault(action.node_index, []).append(action.name)
        return found

    def build_actions(self) -> Sequence[Action]:
        """Returns the actions. The constructor calls it once, when everything but the actions is in place."""
        storage = Storage(self._body, self._types, self._keep)
        enforced = any(NOT_USED_AFTER in node.metadata for node in self.nodes)
        unlocked = self._unlocks(storage, enforced)
        released = self._releases(storage, enforced)
        kinds = dict.fromkeys(self._inputs, (ActionKind.LOCK_INPUT, ActionKind.UNLOCK_INPUT))
        kinds |= dict.fromkeys(self._constants, (ActionKind.LOCK_CONSTANT, ActionKind.UNLOCK_CONSTANT))
        locked: set[str] = set()
        actions = []
        for index, node in enumerate(self.nodes):
            for name in node.reads():
                if name in kinds and name not in locked:
                    locked.add(name)
                    actions.append(Action(kinds[name][0], name, 0, index))
            reused = self._reused(storage, index)
            for value in node.outputs:
                actions.append(_allocation(storage, index, value, reused.get(value.name)))
            scratch = self._scratch(node)
            if scratch:
                actions.append(Action(ActionKind.ALLOCATE_TEMPORARY, node.name, scratch, index))
            actions.append(Action(ActionKind.EXECUTE_NODE, node.name, 0, index))
            if scratch:
                actions.append(Action(ActionKind.DELETE_TEMPORARY, node.name, scratch, index))
            for name in released.get(index, ()):
                kind = ActionKind.DELETE_SHAPE if name in storage.shapes else ActionKind.DELETE_BUFFER
                size = self._types[name].nbytes if name in storage.bytes else 0
                actions.append(Action(kind, name, size, index))
            actions.extend(Action(kinds[name][1], name, 0, index) for name in unlocked.get(index, ()))
        return actions

    def _annotated(self, key: str) -> dict[str, int]:
        """Returns the names listed under a metadata key -> index of the (last) node that lists them."""
        return {name: index for index, node in enumerate(self.nodes) for name in _names(node.metadata.get(key, ""))}

    def _releases(self, storage: Storage, enforced: bool) -> dict[int, list[str]]:
        """Returns node index -> values to release after it."""
        shapes = self._annotated(RELEASE_AFTER_SHAPE_TAG)
        annotated = self._annotated(RELEASE_AFTER) | shapes
        for name, index in shapes.items():
            if enforced and name not in storage.shapes:
                raise PlanError.of(self._where(index), f"shape '{name}' is released but was never created")
        found: dict[int, list[str]] = {}
        for index, node in enumerate(self.nodes):
            for value in node.outputs:
                dies = storage.dies_after(value.name)
                if dies is None:
                    continue
                if enforced and value.name not in annotated:
                    hint = f"its last use is {self._where(dies)}"
                    raise PlanError.of(self._where(index), f"value '{value.name}' is never released", hint=hint)
                found.setdefault(max(dies, annotated.get(value.name, dies)), []).append(value.name)
        return found

    def _unlocks(self, storage: Storage, enforced: bool) -> dict[int, list[str]]:
        """Returns node index -> inputs and constants to unlock after it."""
        annotated = self._annotated(NOT_USED_AFTER)
        found: dict[int, list[str]] = {}
        for kind, names in (("input", self._inputs), ("constant", self._constants)):
            for name in names:
                if name not in storage.last:
                    continue
                last = storage.last[name]
                if enforced and name not in annotated:
                    raise PlanError.of(self._where(last), f"{kind} '{name}' has its last use here and is never unlocked")
                found.setdefault(max(last, annotated.get(name, last)), []).append(name)
        return found

    def _reused(self, storage: Storage, index: int) -> dict[str, str]:
        """Returns the outputs of a node that its annotation lets live in an operand's storage -> that operand."""
        node = self.nodes[index]
        outputs = [value.name for value in node.outputs]
        found: dict[str, str] = {}
        for item in _names(node.metadata.get(INPLACE_REUSE, "")):
            result, _, rest = item.partition(":")
            operand, _, fit = rest.partition(":")
            if result not in outputs or operand not in node.inputs or fit not in ("equal", "greater") or result in found:
                raise PlanError.of(self._where(index), f"{INPLACE_REUSE} must list 'output:operand:equal' or '...:greater'", repr(item))
            output = outputs.index(result)
            reasons = [storage.refusal(index, output, place) for place, name in enumerate(node.inputs) if name == operand]
            if all(reasons):
                raise PlanError.of(self._where(index), f"'{result}' must not reuse '{operand}': {reasons[0]}")
            storage.take_over(result, operand)
            actual = "equal" if storage.bytes[result] == node.outputs[output].type.nbytes else "greater"
            if fit != actual:
                raise PlanError.of(self._where(index), f"the buffer of '{operand}' is {actual} for '{result}'", repr(item))
            found[result] = operand
        return found

    def _scratch(self, node: Node) -> int:
        text = node.metadata.get(PEAK_MEMORY, "0")
        if not (text.isascii() and text.isdigit()):
            raise PlanError.of(f"{node.op} '{node.name}'", f"{PEAK_MEMORY} must be a number of bytes", repr(text))
        return int(text)

    def _where(self, index: int) -> str:
        return f"{self.nodes[index].op} '{self.nodes[index].name}'"


def _allocation(storage: Storage, index: int, value: Value, reuses: str | None) -> Action:
    kind = ActionKind.CREATE_SHAPE if value.tag == "shape" else ActionKind.ALLOCATE_BUFFER
    root = storage.views[value.name].root
    if root != value.name:
        return Action(kind, value.name, 0, index, views=root)
    return Action(kind, value.name, value.type.nbytes, index, reuses)


def _names(text: str) -> list[str]:
    return text.split(";") if text else []


_plans: dict[int, tuple[weakref.ref[Body], ExecutionPlan]] = {}
_plans_lock = threading.Lock()


def plan_for(body: Body) -> ExecutionPlan:
    """Returns the plan of a graph or function: built at the first call, the same object from then on, forgotten with the body."""
    key = id(body)
    with _plans_lock:
        if key not in _plans:
            _plans[key] = (weakref.ref(body, lambda _: _plans.pop(key, None)), ExecutionPlan(body))
        return _plans[key][1]
