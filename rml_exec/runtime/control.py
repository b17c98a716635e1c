"""Control flow at run time: functions compiled to programs of their own, and the steps that drive them.

A function is compiled once per executor. Its arena, and what a loop needs to carry values, is scratch of the node that runs it: one arena
holds a whole run however deep functions nest, the memory plan sees all of it, and a loop takes no memory from anywhere else. A program that
holds control flow is cut there: its parts run one after the other, so that a function's program finds the worker threads free.

A function reads its operands where they lie and writes its results where they belong: a scan hands each step its slices of the scanned and
the stacked values. Carried values alternate between two buffers, of which one is the result. A value that a loop carries unchanged stays in
its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rml_exec.errors import KernelError
from rml_exec.ir.graph import Function, Node
from rml_exec.plan.aliases import View, reads_contiguous
from rml_exec.runtime.lowering import LowerContext, Operand
from rml_exec.runtime.places import ARENA, CONSTANT, INPUT, OUTPUT, StridedValue
from rml_exec.types import DType, TensorType

if TYPE_CHECKING:  # compilation.py imports this module
    from rml_exec.runtime.compilation import Compiled

__all__ = ["Block", "ControlNode", "ControlStep", "Functions", "Program", "lower_control", "segmented"]


class Program(Protocol):
    """What runs a compiled body: a native program, or several with control flow between them. Any number of threads may run it at once."""

    def run(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int) -> None:
        """Runs once, in buffers that no other run uses meanwhile; outputs overlap no input."""

    def run_profiled(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int, times_ns: np.ndarray) -> None:
        """Runs once and writes the nanoseconds of each step."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A compiled function as one node runs it; ``where`` names that node in errors."""

    where: str
    name: str
    compiled: Compiled

    def run(self, arena: np.ndarray, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], threads: int) -> None:
        try:
            self.compiled.program.run(arena, inputs, outputs, threads)
        except KernelError as error:
            raise KernelError(f"{self.where}, in function '{self.name}': {error}") from error


class Functions:
    """The functions of a lowered graph, each compiled when a node first needs it.

    Attributes:
        compiled: function -> what it became; as ``step[h, y]`` if only these of its outputs are needed.
    """

    def __init__(self, functions: Mapping[str, Function], compile_function: Callable[[Function], Compiled]) -> None:
        """Takes the functions by name, and what compiles one (and through this object those that it calls)."""
        self._functions, self._compile = functions, compile_function
        self.compiled: dict[str, Compiled] = {}

    def call(self, node: Node, name: str) -> _Call:
        """Returns a function for a node to call."""
        return self._call(node, name, name, lambda: self._functions[name])

    def loop_body(self, node: Node, first: int, carried: int) -> tuple[_Call, tuple[int, ...]]:
        """Returns the body of a loop without the results that only hand a carried value on, and the indices of those that change.

        Args:
            node: the loop.
            first: index of the first carried value among the inputs of the body.
            carried: how many values it carries.
        """
        name = node.attrs["body"]
        body = self._functions[name]
        changing = tuple(index for index in range(carried) if body.outputs[index].value != body.inputs[first + index].name)
        if len(changing) == carried:
            return self.call(node, name), changing
        outputs = tuple(output for index, output in enumerate(body.outputs) if index >= carried or index in changing)
        key = f"{name}[{', '.join(output.name for output in outputs)}]"
        return self._call(node, name, key, lambda: replace(body, outputs=outputs)), changing

    def _call(self, node: Node, name: str, key: str, function: Callable[[], Function]) -> _Call:
        if key not in self.compiled:
            self.compiled[key] = self._compile(function())
        return _Call(f"{node.op} '{node.name}'", name, self.compiled[key])


Driver = Callable[[Sequence[np.ndarray], int], None]
"""Runs the functions of a node, given the arrays of its blocks and the number of threads."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that a driver works on. Element types matter to the driver only where it reads a value itself; all else is bytes."""

    operand: Operand
    type: TensorType
    byte_strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ControlNode:
    """A lowered control-flow node: what it works on, and how. ``native`` is True if NumPy runs no step of its functions."""

    blocks: tuple[Block, ...]
    drive: Driver
    native: bool


class ControlStep:
    """A control-flow node in a program."""

    def __init__(self, drive: Driver, values: Sequence[StridedValue], constants: Sequence[np.ndarray]) -> None:
        """Takes the driver, where its blocks lie, and the constants of the program."""
        self._drive, self._values, self._constants = drive, tuple(values), constants

    def run(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int) -> None:
        """Runs the node on the memory of one run."""
        buffers = {ARENA: (arena,), INPUT: inputs, OUTPUT: outputs, CONSTANT: self._constants}
        self._drive([value.array(buffers) for value in self._values], threads)

    def run_profiled(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int, times_ns: np.ndarray) -> None:
        """Runs the node and writes its nanoseconds: it is one step, whatever its functions do."""
        begin = time.perf_counter_ns()
        self.run(arena, inputs, outputs, threads)
        times_ns[0] = time.perf_counter_ns() - begin


class _Segments:
    """Programs that run one after the other in the same buffers."""

    def __init__(self, parts: Sequence[tuple[Program, int]]) -> None:
        self._parts = tuple(parts)  # with the number of steps of each

    def run(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int) -> None:
        for part, _ in self._parts:
            part.run(arena, inputs, outputs, threads)

    def run_profiled(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any], threads: int, times_ns: np.ndarray) -> None:
        first = 0
        for part, steps in self._parts:
            part.run_profiled(arena, inputs, outputs, threads, times_ns[first : first + steps])
            first += steps


Instruction = tuple[int, np.ndarray, np.ndarray, Any]
"""A step as ``_native.Program`` takes it; its last member may be a :class:`ControlStep`."""


def segmented(steps: Sequence[Instruction], build: Callable[[list[Instruction]], Program]) -> Program:
    """Returns the program of some steps: the one that ``build`` makes, or several, cut at each control-flow step."""
    parts: list[tuple[Program, int]] = []
    for control, group in groupby(steps, key=lambda step: isinstance(step[3], ControlStep)):
        members = list(group)
        parts += [(step[3], 1) for step in members] if control else [(build(members), len(members))]
    return parts[0][0] if len(parts) == 1 else _Segments(parts) if parts else build([])


def lower_control(node: Node, context: LowerContext, functions: Functions) -> ControlNode | None:
    """Returns a lowered control-flow node, None for any other op. The context collects its scratch, and copies of strided operands."""
    lowering = _LOWERINGS.get(node.op)
    return lowering(node, context, functions) if lowering is not None else None


def _plain(operand: Operand, nbytes: int) -> Block:
    return Block(operand, TensorType(DType.U8, (nbytes,)), (1,))


def _operands(names: Sequence[str | None], context: LowerContext) -> list[Block]:
    return [_plain(context.contiguous(name), context.type(name).nbytes) for name in names if name is not None]


def _scratch(nbytes: int, context: LowerContext) -> Block:
    return _plain(context.scratch(nbytes), nbytes)


def _results(node: Node) -> list[Block]:
    return [_plain(value.name, value.type.nbytes) for value in node.outputs]


def _lower_call(node: Node, context: LowerContext, functions: Functions) -> ControlNode:
    function = functions.call(node, node.attrs["function"])
    blocks = (*_operands(node.inputs, context), *_results(node), _scratch(function.compiled.memory.arena_bytes, context))
    return ControlNode(blocks, _CallDriver(function, len(node.inputs)), function.compiled.native)


@dataclass(frozen=True, slots=True)
class _CallDriver:
    """Blocks: operands, results, arena."""

    function: _Call
    operands: int

    def __call__(self, arrays: Sequence[np.ndarray], threads: int) -> None:
        self.function.run(arrays[-1], arrays[: self.operands], arrays[self.operands : -1], threads)


def _lower_cond(node: Node, context: LowerContext, functions: Functions) -> ControlNode:
    branches = tuple(functions.call(node, name) for name in node.attrs["branches"])
    index = node.inputs[0]
    assert index is not None
    arena = max(branch.compiled.memory.arena_bytes for branch in branches)
    blocks = (Block(index, context.type(index), ()), *_operands(node.inputs[1:], context), *_results(node), _scratch(arena, context))
    return ControlNode(blocks, _CondDriver(branches, len(node.inputs) - 1), all(branch.compiled.native for branch in branches))


@dataclass(frozen=True, slots=True)
class _CondDriver:
    """Blocks: index, operands, results, arena."""

    branches: tuple[_Call, ...]
    operands: int

    def __call__(self, arrays: Sequence[np.ndarray], threads: int) -> None:
        chosen = self.branches[min(max(int(arrays[0]), 0), len(self.branches) - 1)]
        first_result = 1 + self.operands
        chosen.run(arrays[-1], arrays[1:first_result], arrays[first_result:-1], threads)


def _lower_while(node: Node, context: LowerContext, functions: Functions) -> ControlNode:
    cond = functions.call(node, node.attrs["cond"])
    body, changing = functions.loop_body(node, 0, len(node.inputs))
    arena = max(cond.compiled.memory.arena_bytes, body.compiled.memory.arena_bytes)
    spares = [_scratch(node.outputs[index].type.nbytes, context) for index in changing]
    truth = Block(context.scratch(1), TensorType(DType.BOOL, ()), ())
    blocks = (*_operands(node.inputs, context), *_results(node), *spares, truth, _scratch(arena, context))
    return ControlNode(blocks, _WhileDriver(cond, body, len(node.inputs), changing), cond.compiled.native and body.compiled.native)


@dataclass(frozen=True, slots=True)
class _WhileDriver:
    """Blocks: operands, results, a second buffer for each carried value that changes, the truth, arena."""

    cond: _Call
    body: _Call
    count: int
    changing: tuple[int, ...]

    def __call__(self, arrays: Sequence[np.ndarray], threads: int) -> None:
        *values, truth, arena = arrays
        state, results, spares = values[: self.count], values[self.count : 2 * self.count], values[2 * self.count :]
        targets, others = [results[index] for index in self.changing], spares
        while True:
            self.cond.run(arena, state, [truth], threads)
            if not truth:
                break
            self.body.run(arena, state, targets, threads)
            for index, target in zip(self.changing, targets, strict=True):
                state[index] = target
            targets, others = others, targets
        _settle(state, results)


def _lower_scan(node: Node, context: LowerContext, functions: Functions) -> ControlNode:
    length, consts, carry = node.attrs["length"], node.attrs["num_consts"], node.attrs["num_carry"]
    body, changing = functions.loop_body(node, consts, carry)
    scanned = [_rows(name, context) for name in node.inputs[consts + carry :] if name is not None]
    stacked = [_stack(value.name, value.type) for value in node.outputs[carry:]]
    spares = [_scratch(node.outputs[index].type.nbytes if length > 1 else 0, context) for index in changing]
    blocks = (
        *_operands(node.inputs[: consts + carry], context),
        *_results(node)[:carry],
        *spares,
        *scanned,
        *stacked,
        _scratch(body.compiled.memory.arena_bytes, context),
    )
    steps = range(length - 1, -1, -1) if node.attrs["reverse"] else range(length)
    return ControlNode(blocks, _ScanDriver(body, steps, consts, carry, changing, len(scanned)), body.compiled.native)


@dataclass(frozen=True, slots=True)
class _ScanDriver:
    """Blocks: consts, carry, its results, a second buffer for each carried value that changes, scanned values, stacked results, arena.

    Scanned and stacked blocks have one row per step.
    """

    body: _Call
    steps: range
    consts: int
    carry: int
    changing: tuple[int, ...]
    scanned: int

    def __call__(self, arrays: Sequence[np.ndarray], threads: int) -> None:
        pending = iter(arrays)
        consts, state, results, spares, scanned = (
            [next(pending) for _ in range(count)] for count in (self.consts, self.carry, self.carry, len(self.changing), self.scanned)
        )
        *stacked, arena = pending
        targets, others = [results[index] for index in self.changing], spares
        if len(self.steps) % 2 == 0:  # so that the last step writes the results
            targets, others = others, targets
        for step in self.steps:
            self.body.run(arena, [*consts, *state, *(x[step] for x in scanned)], [*targets, *(y[step] for y in stacked)], threads)
            for index, target in zip(self.changing, targets, strict=True):
                state[index] = target
            targets, others = others, targets
        _settle(state, results)


def _settle(state: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Copies each last carried value that is not in its result already."""
    for held, result in zip(state, results, strict=True):
        if held is not result:
            result[...] = held


def _rows(name: str, context: LowerContext) -> Block:
    """Returns a scanned operand by rows: where it lies if its elements are whole there, else a copy."""
    type_, strides = context.type(name), context.strides(name)
    if reads_contiguous(View(name, 0, strides[1:]), type_.shape[1:]):
        return _stack(name, type_, strides[0] * type_.dtype.itemsize)
    return _stack(context.contiguous(name), type_)


def _stack(operand: Operand, type_: TensorType, byte_stride: int | None = None) -> Block:
    """Returns a value as one row of bytes per element of its leading axis."""
    row = type_.nbytes // type_.shape[0] if type_.shape[0] else 0
    return Block(operand, TensorType(DType.U8, (type_.shape[0], row)), (row if byte_stride is None else byte_stride, 1))


_LOWERINGS: dict[str, Callable[[Node, LowerContext, Functions], ControlNode]] = {
    "call": _lower_call,
    "cond": _lower_cond,
    "while": _lower_while,
    "scan": _lower_scan,
}
