"""From a lowered graph to a native program: lower each node, plan the memory, resolve every operand to a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import is_table, roots_of
from rml_exec.ir.graph import Body, Constant, Graph, Node
from rml_exec.ir.weights import release_pages
from rml_exec.ops import get_op
from rml_exec.plan.aliases import View, resolve_views
from rml_exec.plan.execution_plan import ExecutionPlan
from rml_exec.plan.lifetimes import annotate
from rml_exec.plan.memory import MemoryPlan, plan_memory
from rml_exec.runtime import (  # noqa: F401  (they register their lowerings)
    lower_attention,
    lower_composites,
    lower_conv,
    lower_conv_transpose,
    lower_data,
    lower_elementwise,
    lower_epilogue,
    lower_index,
    lower_linear,
    lower_order,
    lower_resize,
    lower_rows,
)
from rml_exec.runtime.control import ControlNode, ControlStep, Functions, Instruction, Program, lower_control, segmented
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, Part, Scratch, copy_step, get_lowering
from rml_exec.runtime.places import ARENA, CONSTANT, INPUT, NOWHERE, OUTPUT, NumpyStep, ObserverStep, Place, StridedValue
from rml_exec.types import TensorType

__all__ = ["Compiled", "Observer", "Step", "compile_graph"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an executor, as a user sees it.

    Attributes:
        label: kind of the step, which is also its row in the profile: ``matmul``, ``fused(add,relu)``, ``conv2d+add``.
        node: name of the lowered node it runs.
        covers: names of the exported graph's nodes it stands for.
        kernel: the native kernels it calls, in order ("pack_b,gemm"), "numpy", or "control" for a node that runs functions.
        native: False if NumPy runs it, or a step of a function that it runs.
    """

    label: str
    node: str
    covers: tuple[str, ...]
    kernel: str
    native: bool


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program and what it was made from.

    ``step_of`` maps each step of the program to its entry in ``steps``: a node may take several native calls. ``plan_bytes`` estimates what
    the program holds of its own: not the constants of the graph, nor what was packed from them. ``functions`` are those that the graph's
    control flow runs, compiled.
    """

    program: Program
    steps: tuple[Step, ...]
    step_of: tuple[int, ...]
    plan: ExecutionPlan
    memory: MemoryPlan
    plan_bytes: int
    functions: Mapping[str, Compiled] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        """True if NumPy runs none of the steps."""
        return all(step.native for step in self.steps)


_LARGE_BYTES = 1 << 16

_BYTES_PER_STEP = 2048
"""What a step takes beside its parameters: its record, its operands, its share of lists; measured with tracemalloc."""


@dataclass(frozen=True, slots=True)
class _LoweredNode:
    node: Node
    native: tuple[NativeStep, ...]  # empty: NumPy runs it
    scratch_bytes: int
    control: ControlNode | None = None  # runs after the native steps


Observer = Callable[[str, list[np.ndarray]], None]
"""Is shown the name of a node that has just run, and its results in the run's own memory, which it must leave as they are."""


def compile_graph(graph: Graph, *, threads: int, numerics: str, observer: Observer | None = None) -> Compiled:
    """Returns the program of a lowered graph.

    Args:
        graph: verified result of the pass pipeline.
        threads: threads the program is meant for; it runs on any number.
        numerics: "fast" or "exact".
        observer: sees the results of every step of a run, in order, functions left out; steps and memory plan are the same with and without.
    """
    functions = Functions(graph.functions, lambda function: _compile_body(function, functions, threads, numerics))
    compiled = _compile_body(graph, functions, threads, numerics, observer)
    plan_bytes = compiled.plan_bytes + sum(function.plan_bytes for function in functions.compiled.values())
    return replace(compiled, plan_bytes=plan_bytes, functions=functions.compiled)


def _compile_body(body: Body, functions: Functions, threads: int, numerics: str, observer: Observer | None = None) -> Compiled:
    types = body.types()
    views = resolve_views(body, types)
    constants = {constant.name: constant for constant in body.constants}
    nodes = [node for node in body.nodes if not _is_view(node, views)]
    lowered = []
    for node in nodes:
        lowered.append(_lower(node, LowerContext(types, views, constants, threads, numerics), functions))
        _release_operands(node, constants)
    scratch = {item.node.name: item.scratch_bytes for item in lowered}
    plan = ExecutionPlan(annotate(body, scratch=lambda node: scratch.get(node.name, 0)))
    slots = _output_slots(body, views)
    memory = plan_memory(plan, external=set(slots))
    return _Linker(body, types, views, slots, memory, numerics, observer).link(lowered, plan)


def _release_operands(node: Node, constants: Mapping[str, Constant]) -> None:
    """Takes large operands of a lowered node, which are packed by now, out of memory: they are read from the file again if need be."""
    for name in node.reads():
        if name in constants and constants[name].type.nbytes >= _LARGE_BYTES:
            for root in roots_of(constants[name].source):
                release_pages(root)


def _is_view(node: Node, views: dict[str, View]) -> bool:
    return get_op(node.op).view and views[node.outputs[0].name].root != node.outputs[0].name


def _lower(node: Node, context: LowerContext, functions: Functions) -> _LoweredNode:
    control = lower_control(node, context, functions)
    if control is not None:
        return _LoweredNode(node, tuple(context.prologue), context.scratch_bytes, control)
    lowering = get_lowering(node.op)
    native = lowering(node, context) if lowering is not None else None
    if native is None:
        return _LoweredNode(node, (), 0)
    return _LoweredNode(node, (*context.prologue, *native), context.scratch_bytes)


def _output_slots(graph: Body, views: dict[str, View]) -> dict[str, int]:
    """Returns the values that steps write straight into an output buffer: roots made by a node, each for the first output that is all of it."""
    made = {value.name for node in graph.nodes for value in node.outputs}
    slots: dict[str, int] = {}
    for index, output in enumerate(graph.outputs):
        if output.value in made and views[output.value].root == output.value:
            slots.setdefault(output.value, index)
    return slots


class _Linker:
    """Resolves operands to places and puts the program together."""

    def __init__(
        self,
        graph: Body,
        types: dict[str, TensorType],
        views: dict[str, View],
        slots: dict[str, int],
        memory: MemoryPlan,
        numerics: str,
        observer: Observer | None,
    ) -> None:
        self._numerics, self._observer = numerics, observer
        self._graph, self._types, self._views, self._memory = graph, types, views, memory
        self._constants: list[np.ndarray] = []
        self._sources: list[np.ndarray] = []
        self._constant_index: dict[int, int] = {}
        self._unplaced = {constant.name: constant for constant in graph.constants}
        self._roots: dict[str, Place] = {value.name: Place(INPUT, i, 0) for i, value in enumerate(graph.inputs)}
        for name, offset in memory.offsets.items():
            self._roots[name] = Place(ARENA, 0, offset)
        for name, owner in memory.external.items():
            self._roots[name] = Place(OUTPUT, slots[owner], 0)
        self._slots = slots
        self._program: list[Instruction] = []
        self._step_of: list[int] = []
        self._steps: list[Step] = []

    def link(self, lowered: Sequence[_LoweredNode], plan: ExecutionPlan) -> Compiled:
        """Returns the compiled program."""
        for item in lowered:
            node = item.node
            kernels = ",".join(step.kernel for step in item.native) or "numpy"
            native = bool(item.native)
            if item.control is not None:
                kernels, native = "control", item.control.native
            self._steps.append(Step(node.label, node.name, node.covers, kernels, native))
            scratch = self._memory.scratch.get(node.name, 0)
            for step in item.native:
                self._add_native(step, scratch, self._numpy_step(node) if step.may_decline else None)
            if item.control is not None:
                self._add_control(item.control, scratch)
            elif not item.native:
                self._append(-1, (), (), self._numpy_step(node))
            if self._observer is not None:
                self._add_observer(self._observer, node)
        self._add_output_copies()
        program = segmented(self._program, self._native_program)
        tables = sum(constant.nbytes for constant in self._constants if is_table(constant))
        plan_bytes = tables + sum(_BYTES_PER_STEP + params.nbytes + places.nbytes for _, params, places, _ in self._program)
        return Compiled(program, tuple(self._steps), tuple(self._step_of), plan, self._memory, plan_bytes)

    def _native_program(self, steps: Sequence[Instruction]) -> _native.Program:
        return _native.Program(
            steps,
            self._constants,
            len(self._graph.inputs),
            len(self._graph.outputs),
            self._memory.arena_bytes,
            flush_denormals=self._numerics == "fast",
        )

    def _constant(self, data: np.ndarray) -> Place:
        """Returns the place of constant data, which the program keeps alive; the same array is held once."""
        if id(data) not in self._constant_index:
            self._constant_index[id(data)] = len(self._constants)
            self._constants.append(data if data.flags.c_contiguous else np.ascontiguousarray(data))
            self._sources.append(data)  # keeps its id from being given to another array
        return Place(CONSTANT, self._constant_index[id(data)], 0)

    def _value(self, name: str) -> Place:
        view = self._views[name]
        if view.root not in self._roots:  # a constant that a step reads as it is; most are packed, and only their panels are held
            self._roots[view.root] = self._constant(self._unplaced[view.root].data)
        root = self._roots[view.root]
        return Place(root.space, root.index, root.byte_offset + view.offset * self._types[name].dtype.itemsize)

    def _place(self, operand: Operand, scratch: int) -> Place:
        match operand:
            case None:
                return NOWHERE
            case str():
                return self._value(operand)
            case Part():
                base = self._value(operand.value)
                return Place(base.space, base.index, base.byte_offset + operand.byte_offset)
            case Scratch():
                return Place(ARENA, 0, scratch + operand.offset)
            case _:
                return self._constant(operand)

    def _strided(self, name: str) -> StridedValue:
        type_ = self._types[name]
        return StridedValue(self._value(name), type_, tuple(stride * type_.dtype.itemsize for stride in self._views[name].strides))

    def _append(
        self,
        kind: int,
        params: Sequence[int],
        places: Sequence[Place],
        in_python: NumpyStep | ObserverStep | ControlStep | None = None,
    ) -> None:
        triples = np.array([(place.space, place.index, place.byte_offset) for place in places], np.int64).reshape(-1, 3)
        self._program.append((kind, np.asarray(params, np.int64), triples, in_python))
        self._step_of.append(len(self._steps) - 1)

    def _add_native(self, step: NativeStep, scratch: int, otherwise: NumpyStep | None) -> None:
        self._append(_KINDS[step.kernel], step.params, [self._place(operand, scratch) for operand in step.operands], otherwise)

    def _numpy_step(self, node: Node) -> NumpyStep:
        operands = [None if name is None else self._strided(name) for name in node.inputs]
        results = [self._strided(value.name) for value in node.outputs]
        return NumpyStep(f"{node.op} '{node.name}'", get_op(node.op), node.attrs, operands, results, self._constants)

    def _add_control(self, control: ControlNode, scratch: int) -> None:
        values = [StridedValue(self._place(block.operand, scratch), block.type, block.byte_strides) for block in control.blocks]
        self._append(-1, (), (), ControlStep(control.drive, values, self._constants))

    def _add_observer(self, observer: Observer, node: Node) -> None:
        values = [self._strided(value.name) for value in node.outputs]
        self._append(-1, (), (), ObserverStep(partial(observer, node.name), values, self._constants))

    def _add_output_copies(self) -> None:
        """Copies into place each output that no step writes there: a view, an input, a constant, a value under its second name."""
        for index, output in enumerate(self._graph.outputs):
            if self._slots.get(output.value) != index:
                type_ = self._types[output.value]
                copy = copy_step(None, output.value, type_, self._views[output.value].strides)
                self._steps.append(Step("output", output.name, (), copy.kernel, True))
                self._append(_KINDS[copy.kernel], copy.params, [Place(OUTPUT, index, 0), self._value(output.value)])


_KINDS = _native.step_kinds()
