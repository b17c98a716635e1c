"""Elementwise nodes, alone or fused, become one program for the interpreter in ``native/kernels/elementwise.c``.

Three stages, one after the other: *select* (:mod:`rml_exec.runtime.elementwise_program`) writes each node as instructions on named values,
*layout* decides how the operands are walked, and *emit* gives the values places (accumulator, slot, or the tensor they are in anyway) and
writes the parameters that ``steps.def`` documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rml_exec.ir.graph import Node, Value
from rml_exec.runtime.elementwise_program import INSTRUCTIONS, LANES, LONG, OPS, SWAPPED, VERY_LONG, Instruction, Program, UnsupportedError
from rml_exec.runtime.lower_integers import integer_step
from rml_exec.runtime.lowering import (
    ELEMENT_TYPES,
    LowerContext,
    NativeStep,
    Operand,
    aligned_strides,
    contiguous_strides,
    joined_axes,
    lowers,
)
from rml_exec.types import DType, TensorType

__all__ = ["Tensor", "elementwise_step"]

_COSTS = dict.fromkeys(LONG, 8) | dict.fromkeys(VERY_LONG, 64)  # in cheap instructions
_WORK_PER_THREAD = 16384  # cheap instructions on one element each

# Limits of the interpreter's tables (elementwise.c).
_MAX_TENSORS, _MAX_GATHERED, _MAX_OPERANDS, _MAX_SLOTS, _MAX_INSTRUCTIONS, _MAX_RANK = 32, 16, 128, 32, 1024, 16
_SHORT_ROW = 256  # rows below this length that are not a multiple of 128 are not worth a segment each


# ---- layout ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """How the positions of the result are walked: outer axes ``dims``, then rows of ``columns``.

    ``strides`` holds, per operand, the elements from index to index of each outer axis, then from column to column.
    """

    dims: tuple[int, ...]
    columns: int
    across_rows: bool
    strides: Mapping[str, tuple[int, ...]]
    dense: frozenset[str]
    gathered: frozenset[str]

    def mode(self, name: str) -> int:
        """Returns how the interpreter reads an operand: 0 where it lies along a row, 1 dense, 2 gathered."""
        return 1 if name in self.dense else 2 if name in self.gathered else 0

    def is_scalar(self, name: str) -> bool:
        """True if all elements of a row are one and the same, and are read as such."""
        return self.strides[name][-1] == 0 and name not in self.gathered


def _walk(shape: Sequence[int], strides: Mapping[str, tuple[int, ...]], types: Mapping[str, TensorType]) -> _Walk:
    """Merges axes that every operand steps through evenly, and decides which operands are gathered.

    Args:
        shape: of the result.
        strides: per operand, along the axes of the result.
        types: of the operands.
    """
    dims, joined = joined_axes(shape, list(strides.values()))
    walked = dict(zip(strides, joined, strict=True))
    columns = dims[-1]
    across_rows = len(dims) > 1 and columns < _SHORT_ROW and columns % 128 != 0
    dense = frozenset(name for name in strides if walked[name] == contiguous_strides(dims))

    def is_gathered(name: str) -> bool:
        constant_along_row = walked[name][-1] == 0
        if constant_along_row and types[name].dtype is DType.BOOL:
            return True  # load_bool reads one byte per lane
        return any(walked[name]) and (across_rows or not (constant_along_row or walked[name][-1] == 1))

    gathered = frozenset(name for name in strides if name not in dense and is_gathered(name))
    return _Walk(dims[:-1], columns, across_rows, walked, dense, gathered)


# ---- emit ------------------------------------------------------------------------------------------------------------------------------


class _Emitter:
    """Writes a program in accumulator form.

    A value is in the accumulator from its making to the next result. It is stored in a slot when it is still needed after that, unless it
    stands in an output already. An output is stored as soon as no input of the same layout is loaded any more: they may share their memory.
    """

    def __init__(self, program: Program, inputs: Sequence[str], results: Sequence[str], walk: _Walk) -> None:
        self._program, self._walk = program, walk
        self.inputs, self.results = list(inputs), [program.resolve(name) for name in results]
        self.result_types = [program.types[name].dtype for name in results]
        self._constants = list(program.constants)
        self._first_slot = len(results) + len(inputs) + len(self._constants)
        self._uses = Counter(operand for instruction in program.instructions for operand in instruction.operands)
        self._uses.update(self.results)
        self._memory = {name: len(results) + i for i, name in enumerate([*inputs, *self._constants])}
        self._free_slots: list[int] = []
        self.slots = 0
        self._accumulator = ""
        self._waiting = dict(enumerate(self.results))
        self.code: list[int] = []

    def emit(self) -> list[int]:
        """Returns the instructions as the interpreter takes them."""
        last_load = max((i for i, item in enumerate(self._program.instructions) if any(map(self._may_share, item.operands))), default=-1)
        for index, instruction in enumerate(self._program.instructions):
            self._one(instruction)
            if index >= last_load:
                self._store_results()
        self._store_results()
        return self.code

    def _may_share(self, name: str) -> bool:
        return name in self._walk.dense

    def _write(self, name: str, m: int = 0, n: int = 0) -> None:
        self.code.append(INSTRUCTIONS[name] | m << 16 | n << 32)

    def _is_bool_input(self, name: str) -> bool:
        return name in self.inputs and self._program.types[name].dtype is DType.BOOL

    def _is_scalar(self, name: str) -> bool:
        return name in self._program.constants or (name in self.inputs and self._walk.is_scalar(name))

    def _keep(self) -> None:
        """Stores the accumulator in a slot if its value is still needed and nowhere else."""
        if self._accumulator and self._uses[self._accumulator] and self._accumulator not in self._memory:
            self._spill()

    def _spill(self) -> None:
        slot = self._free_slots.pop() if self._free_slots else self._new_slot()
        self._memory[self._accumulator] = slot
        self._write("store", slot)

    def _new_slot(self) -> int:
        self.slots += 1
        return self._first_slot + self.slots - 1

    def _load(self, name: str) -> None:
        """Brings a value into the accumulator."""
        if self._accumulator == name:
            return
        self._keep()
        in_tensor = self._memory[name] < self._first_slot
        form = "load_bool" if in_tensor and self._is_bool_input(name) else "load_s" if self._is_scalar(name) else "load"
        self._write(form, self._memory[name])
        self._accumulator = name

    def _in_lanes(self, name: str) -> int:
        """Returns the number of an operand that holds the value lane by lane in 32 bits each."""
        if name not in self._memory or self._needs_lanes(name):
            self._load(name)
            self._spill()
        return self._memory[name]

    def _done_with(self, operands: Iterable[str]) -> None:
        """Counts uses down and frees slots that nothing needs."""
        for name in operands:
            self._uses[name] -= 1
            if not self._uses[name] and self._memory.get(name, -1) >= self._first_slot:
                self._free_slots.append(self._memory.pop(name))

    def _one(self, instruction: Instruction) -> None:
        name, operands = instruction.name, instruction.operands
        if len(operands) == 1:
            self._load(operands[0])
            self._write_over(name, operands)
        elif len(operands) == 2:
            self._binary(name, *operands)
        else:
            self._select(operands)
        self._accumulator = instruction.result

    def _write_over(self, name: str, operands: tuple[str, ...], m: int = 0, n: int = 0) -> None:
        """Writes an instruction whose result replaces the accumulator, which is kept first if something later needs it."""
        after = self._uses - Counter(operands)
        if after[self._accumulator] and self._accumulator not in self._memory:
            self._spill()
        self._write(name, m, n)
        self._done_with(operands)

    def _binary(self, name: str, a: str, b: str) -> None:
        swap = self._accumulator == b or (self._accumulator != a and self._is_scalar(a) and not self._is_scalar(b))
        if swap and a != b and name in SWAPPED:
            name, a, b = SWAPPED[name], b, a
        if self._accumulator == b and b not in self._memory:
            self._spill()
        scalar = self._is_scalar(b)
        m = self._memory[b] if scalar else self._in_lanes(b)
        self._load(a)
        self._write_over(f"{name}_s" if scalar else name, (a, b), m)

    def _select(self, operands: tuple[str, ...]) -> None:
        c, a, b = operands
        # The one in the accumulator stays there; the other two are read from memory.
        in_place = self._accumulator if self._accumulator in operands and operands.count(self._accumulator) == 1 else c
        name, others = {c: ("select", (a, b)), a: ("select_true", (c, b)), b: ("select_false", (c, a))}[in_place]
        if any(other not in self._memory or self._needs_lanes(other) for other in others) and in_place not in self._memory:
            self._spill()
        m, n = map(self._in_lanes, others)
        self._load(in_place)
        self._write_over(name, operands, m, n)

    def _needs_lanes(self, name: str) -> bool:
        """True for a value in memory that is not there lane by lane."""
        return self._memory[name] < self._first_slot and (self._is_bool_input(name) or self._is_scalar(name))

    def _store_results(self) -> None:
        """Stores the results that exist and are not stored yet: operands passed on, then the one in the accumulator, then the others."""
        ready = [i for i, name in self._waiting.items() if name == self._accumulator or name in self._memory]
        for output in sorted(ready, key=lambda i: (not self._may_share(self._waiting[i]), self._waiting[i] != self._accumulator)):
            name = self._waiting.pop(output)
            self._load(name)
            is_bool = self.result_types[output] is DType.BOOL
            self._write("store_bool" if is_bool else "store", output)
            if not is_bool:
                self._memory.setdefault(name, output)
            self._done_with((name,))


# ---- the lowering ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand of a group: where it lies, its type, its strides in elements, and its one value where that is known."""

    operand: Operand
    type: TensorType
    strides: tuple[int, ...]
    scalar: float | int | bool | None = None


def elementwise_step(
    tensors: Mapping[str, Tensor], body: Sequence[Node], results: Sequence[str], outputs: Sequence[Value]
) -> NativeStep | None:
    """Returns the step that runs elementwise nodes on f32, i32 and bool; None where NumPy must do it.

    Args:
        tensors: what the nodes read from outside, by name.
        body: the nodes, in order; all results have one shape.
        results: names of the values to store.
        outputs: where to store them.
    """
    types = {name: tensor.type for name, tensor in tensors.items()}
    if any(type_.dtype not in LANES for type_ in types.values()):
        return None
    scalars = {name: tensor.scalar for name, tensor in tensors.items() if tensor.scalar is not None}
    program = Program(types, scalars)
    for name, value in scalars.items():
        program.same_as[name] = program.constant(value, types[name].dtype)
    try:
        for node in body:
            program.select(node)
    except UnsupportedError:
        return None
    read = {program.resolve(name) for name in results}
    read.update(operand for instruction in program.instructions for operand in instruction.operands)
    program.constants = {name: bits for name, bits in program.constants.items() if name in read}
    inputs = {name: tensor for name, tensor in tensors.items() if name in read}
    shape = outputs[0].type.shape
    walk = _walk(shape, {name: aligned_strides(tensor.type.shape, tensor.strides, shape) for name, tensor in inputs.items()}, types)
    emitter = _Emitter(program, list(inputs), results, walk)
    params = _params(program, emitter, walk, math.prod(shape))
    if params is None:
        return None
    return NativeStep("elementwise", params, (*(value.name for value in outputs), *(tensor.operand for tensor in inputs.values())))


def _params(program: Program, emitter: _Emitter, walk: _Walk, elements: int) -> list[int] | None:
    """Returns the parameters as steps.def lists them, or None for a group beyond the interpreter's limits."""
    code = emitter.emit()
    tensors = len(emitter.results) + len(emitter.inputs)
    operands = tensors + len(program.constants) + emitter.slots
    if tensors > _MAX_TENSORS or len(walk.gathered) > _MAX_GATHERED or emitter.slots > _MAX_SLOTS or operands > _MAX_OPERANDS:
        return None
    if len(code) > _MAX_INSTRUCTIONS or len(walk.dims) > _MAX_RANK:
        return None
    cost = tensors + sum(_COSTS.get(instruction.name, 1) for instruction in program.instructions)
    params = [elements, walk.columns, int(walk.across_rows), max(1, _WORK_PER_THREAD // cost)]
    params += [len(emitter.results), len(emitter.inputs), len(program.constants), emitter.slots, len(code), len(walk.dims), *walk.dims]
    params += [dtype.itemsize for dtype in emitter.result_types]
    for name in emitter.inputs:
        *row_strides, column_stride = walk.strides[name]
        params += [program.types[name].dtype.itemsize, walk.mode(name), column_stride, *row_strides]
    return [*params, *program.constants.values(), *code]


@lowers("fused", *OPS)
def lower_elementwise(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One ``elementwise`` step for a node or a fused group."""
    operands = tuple(node.reads())
    params, body, results = operands, (node,), tuple(value.name for value in node.outputs)
    if node.op == "fused":
        params, body, results = node.attrs["params"], node.attrs["body"], node.attrs["results"]
    tensors = {}
    for name, operand in zip(params, operands, strict=True):
        type_ = ctx.type(operand)
        data = ctx.constant(operand) if type_.size == 1 else None  # larger ones may have to be made first
        tensors[name] = Tensor(operand, type_, ctx.strides(operand), None if data is None else data.item())
    step = elementwise_step(tensors, body, results, node.outputs)
    if step is None:
        return _conversion(node, ctx) if node.op == "cast" else integer_step(node, ctx)
    return [step]


_F2I = ("saturate", "wrap_x86", "error")  # as in convert.c


def _conversion(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Returns the step of a cast between types that are not 32 bits wide; None for 16-bit floats."""
    (x,), result = node.inputs, node.outputs[0]
    assert x is not None
    source, target = ctx.type(x).dtype, result.type.dtype
    if result.type.size == 0 or not {source, target}.isdisjoint((DType.F16, DType.BF16)):
        return None
    rule = node.attrs["f2i"] if source.is_float and target.is_integer else _F2I[0]
    if rule == "error" and source.itemsize == target.itemsize:
        return None  # in place, x would be overwritten before the kernel declines
    params = (result.type.size, ELEMENT_TYPES.index(target.value), ELEMENT_TYPES.index(source.value), _F2I.index(rule))
    return [NativeStep("convert", params, (result.name, ctx.contiguous(x)), may_decline=rule == "error")]
