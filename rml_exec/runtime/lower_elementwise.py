"""Elementwise nodes, alone or fused, become one program for the interpreter in ``native/kernels/elementwise.c``.

Three stages, one after the other: *select* writes each node as instructions on named values, *layout* decides how the operands are walked, and
*emit* gives the values places (accumulator, slot, or the tensor they are in anyway) and writes the parameters that ``steps.def`` documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, contiguous_strides, lowers
from rml_exec.types import DType, TensorType

__all__ = ["INSTRUCTIONS", "Tensor", "elementwise_step"]

# Names of the instructions in the order of elementwise.def, with how many each name stands for: a binary one has a second form that takes
# one value for all lanes.
_IN_ORDER = (
    ("load load_s load_bool store store_bool", 1),
    ("neg abs floor ceil round_half_even round_half_away round_toward_zero sqrt rsqrt square sign sign_nan_zero is_nan is_inf", 1),
    ("exp expm1 log log1p sin cos tanh sigmoid erf erfc silu gelu gelu_tanh", 1),
    ("add sub rsub mul div rdiv div_trunc max min max_number min_number leaky_relu eq ne lt le gt ge", 2),
    ("pow div_floor rem_divisor rem_dividend", 2),
    ("neg_i32 abs_i32", 1),
    ("add_i32 sub_i32 mul_i32 max_i32 min_i32 eq_i32 lt_i32 gt_i32", 2),
    ("not", 1),
    ("and or xor", 2),
    ("i32_to_f32 f32_to_i32_saturate f32_to_i32_wrap", 1),
    ("select select_true select_false", 1),
)
_FORMS = [form for names, forms in _IN_ORDER for name in names.split() for form in (name, f"{name}_s")[:forms]]
INSTRUCTIONS: Mapping[str, int] = {name: number for number, name in enumerate(_FORMS)}
"""Number of every instruction, as the interpreter knows them."""

_SWAPPED = {name: name for name in "add mul eq ne add_i32 mul_i32 max_i32 min_i32 eq_i32 and or xor max min".split()} | {
    "sub": "rsub",
    "div": "rdiv",
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "lt_i32": "gt_i32",
    "gt_i32": "lt_i32",
}
"""What computes the same with the operands the other way round."""

# Rough cost in cheap instructions, for the choice of threads.
_COSTS = dict.fromkeys("exp expm1 log log1p sin cos tanh sigmoid erf erfc silu gelu gelu_tanh".split(), 8) | dict.fromkeys(
    "pow div_floor rem_divisor rem_dividend".split(), 64
)
_WORK_PER_THREAD = 16384  # cheap instructions on one element each

# Limits of the interpreter's tables (elementwise.c).
_MAX_TENSORS, _MAX_GATHERED, _MAX_OPERANDS, _MAX_SLOTS, _MAX_INSTRUCTIONS, _MAX_RANK = 32, 16, 128, 32, 1024, 16
_SHORT_ROW = 256  # rows below this length that are not a multiple of 128 are not worth a segment each

_LANES = (DType.F32, DType.I32, DType.BOOL)


class _Unsupported(Exception):
    """A node that has no instructions: NumPy runs it."""


# ---- select ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Instruction:
    """``result = name(operands)`` on values: names of tensors, of intermediate values, or of constants."""

    name: str
    operands: tuple[str, ...]
    result: str


@dataclass(slots=True)
class _Program:
    """What the nodes of a group compute. ``constants`` holds the 32 bits of each constant value."""

    types: dict[str, TensorType]
    scalars: dict[str, float | int | bool]
    instructions: list[_Instruction] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    same_as: dict[str, str] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """Returns the value that a name stands for."""
        return self.same_as.get(name, name)

    def constant(self, value: float | int | bool, dtype: DType) -> str:
        """Returns the name of a constant value."""
        lanes = {DType.F32: np.float32, DType.I32: np.int32}.get(dtype)
        with np.errstate(over="ignore"):
            bits = int(lanes(value).view(np.uint32)) if lanes else 0xFFFFFFFF * bool(value)
        name = f"={bits:08x}"
        self.constants[name] = bits
        return name

    def add(self, name: str, *operands: str, result: str = "") -> str:
        """Appends an instruction; returns its result, a new value unless named."""
        result = result or f"%{len(self.instructions)}"
        self.instructions.append(_Instruction(name, tuple(self.resolve(operand) for operand in operands), result))
        return result

    def select(self, node: Node) -> None:
        """Appends the instructions of a node."""
        operands = [self.resolve(name) for name in node.reads()]
        types = [self.types[name] for name in node.reads()]
        dtype, result = types[0].dtype, node.outputs[0]
        if any(type_.dtype not in _LANES for type_ in (*types, result.type)):
            raise _Unsupported
        self.types[result.name] = result.type
        if node.op in _SELECT:
            _SELECT[node.op](self, node, operands, types[-1].dtype)
        elif dtype is DType.F32 and node.op in _PLAIN_F32:
            self.add(node.op, *operands, result=result.name)
        elif dtype is DType.I32 and node.op in _PLAIN_I32:
            self.add(f"{node.op}_i32", *operands, result=result.name)
        elif dtype is not DType.F32 and node.op in _PLAIN_BITS:
            self.add(node.op, *operands, result=result.name)
        else:
            raise _Unsupported


_PLAIN_F32 = frozenset(
    "neg abs floor ceil exp expm1 log log1p sqrt rsqrt sin cos tanh sigmoid erf erfc silu is_nan is_inf add sub mul max min".split()
)
_PLAIN_I32 = frozenset("neg abs add sub mul max min".split())
_PLAIN_BITS = frozenset("not and or xor".split())

_Select = Callable[[_Program, Node, list[str], DType], None]
_SELECT: dict[str, _Select] = {}


def _selects(*ops: str) -> Callable[[_Select], _Select]:
    """Registers the decorated ``(program, node, operand values, their dtype)`` for ops whose instructions depend on attributes or dtypes."""

    def register(function: _Select) -> _Select:
        _SELECT.update(dict.fromkeys(ops, function))
        return function

    return register


@_selects("sign", "round", "gelu")
def _by_mode(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    name = {
        ("sign", "propagate"): "sign",
        ("sign", "zero"): "sign_nan_zero",
        ("gelu", "none"): "gelu",
        ("gelu", "tanh"): "gelu_tanh",
    }.get((node.op, *node.attrs.values()), f"round_{node.attrs.get('mode')}")
    if dtype is not DType.F32:
        raise _Unsupported
    program.add(name, *operands, result=node.outputs[0].name)


@_selects("relu", "clamp")
def _bounded(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    lo, hi = (0, None) if node.op == "relu" else (node.attrs["lo"], node.attrs["hi"])
    value = operands[0]
    for name, bound in (("max", lo), ("min", hi)):
        if bound is None:
            continue
        bound_name = program.constant(bound, dtype)
        if dtype is DType.F32:
            value = program.add(name if math.isnan(bound) else f"{name}_number", value, bound_name)
        elif dtype is DType.I32:
            value = program.add(f"{name}_i32", value, bound_name)
        else:
            raise _Unsupported
    program.same_as[node.outputs[0].name] = value


@_selects("leaky_relu")
def _leaky_relu(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise _Unsupported
    program.add("leaky_relu", operands[0], program.constant(node.attrs["alpha"], dtype), result=node.outputs[0].name)


@_selects("div")
def _div(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise _Unsupported
    rounding = node.attrs["rounding"]
    divisor = program.scalars.get(node.inputs[1] or "")
    if rounding == "true" and divisor and abs(math.frexp(divisor)[0]) == 0.5 and 2.0**-126 <= abs(1 / divisor) < 2.0**127:
        program.add("mul", operands[0], program.constant(1 / divisor, dtype), result=node.outputs[0].name)  # exact: a power of two
    else:
        program.add("div" if rounding == "true" else f"div_{rounding}", *operands, result=node.outputs[0].name)


@_selects("rem")
def _rem(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise _Unsupported
    program.add(f"rem_{node.attrs['sign']}", *operands, result=node.outputs[0].name)


@_selects("pow")
def _pow(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise _Unsupported
    exponent = program.scalars.get(node.inputs[1] or "")
    if exponent == 2:
        program.add("square", operands[0], result=node.outputs[0].name)
    elif exponent == 3:
        program.add("mul", program.add("square", operands[0]), operands[0], result=node.outputs[0].name)
    else:
        program.add("pow", *operands, result=node.outputs[0].name)


@_selects("compare")
def _compare(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    (a, b), direction, result = operands, node.attrs["dir"], node.outputs[0].name
    if dtype is DType.F32:
        program.add(direction, a, b, result=result)
    elif dtype is DType.I32:
        if direction in ("ne", "ge", "le"):
            inverse = {"ne": "eq_i32", "ge": "lt_i32", "le": "gt_i32"}[direction]
            program.add("not", program.add(inverse, a, b), result=result)
        else:
            program.add(f"{direction}_i32", a, b, result=result)
    elif direction in ("eq", "ne"):
        differ = program.add("xor", a, b, result=result if direction == "ne" else "")
        if direction == "eq":
            program.add("not", differ, result=result)
    else:  # false is below true: a < b is (not a) and b, a <= b is (not a) or b
        low, high = (a, b) if direction in ("lt", "le") else (b, a)
        program.add("and" if direction in ("lt", "gt") else "or", program.add("not", low), high, result=result)


@_selects("select")
def _choose(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    program.add("select", *operands, result=node.outputs[0].name)


@_selects("cast")
def _cast(program: _Program, node: Node, operands: list[str], dtype: DType) -> None:
    (x,), to, f2i, result = operands, DType(node.attrs["to"]), node.attrs["f2i"], node.outputs[0].name
    if to is dtype:
        program.same_as[result] = x
    elif to is DType.BOOL:
        equal = "eq" if dtype is DType.F32 else "eq_i32"
        program.add("not", program.add(equal, x, program.constant(0, dtype)), result=result)
    elif dtype is DType.BOOL:
        program.add("and", x, program.constant(1, to), result=result)
    elif to is DType.F32:
        program.add("i32_to_f32", x, result=result)
    elif f2i in ("saturate", "wrap_x86"):
        program.add("f32_to_i32_saturate" if f2i == "saturate" else "f32_to_i32_wrap", x, result=result)
    else:
        raise _Unsupported


# ---- layout ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """How the positions of the result are walked: outer axes, then rows of ``columns``; strides in elements, one per axis and for columns."""

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


def _aligned_strides(shape: Sequence[int], strides: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of an operand along the axes of the result it broadcasts to."""
    kept = tuple(0 if dim == 1 else stride for dim, stride in zip(shape, strides, strict=True))
    return (0,) * (len(result) - len(shape)) + kept


def _walk(shape: Sequence[int], strides: Mapping[str, tuple[int, ...]], types: Mapping[str, TensorType]) -> _Walk:
    """Merges axes that every operand steps through evenly, and decides which operands are gathered.

    Args:
        shape: of the result.
        strides: per operand, along the axes of the result.
        types: of the operands.
    """
    dims: list[int] = []
    steps: dict[str, list[int]] = {name: [] for name in strides}
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        if dims and all(steps[name][-1] == strides[name][axis] * dim for name in strides):
            dims[-1] *= dim
            for name in strides:
                steps[name][-1] = strides[name][axis]
        else:
            dims.append(dim)
            for name in strides:
                steps[name].append(strides[name][axis])
    if not dims:
        dims, steps = [1], {name: [0] for name in strides}
    columns = dims[-1]
    across_rows = len(dims) > 1 and columns < _SHORT_ROW and columns % 128 != 0
    walked = {name: tuple(steps[name]) for name in strides}
    dense = frozenset(name for name in strides if walked[name] == contiguous_strides(dims))

    def is_gathered(name: str) -> bool:
        constant_along_row = walked[name][-1] == 0
        if constant_along_row and types[name].dtype is DType.BOOL:
            return True  # load_bool reads one byte per lane
        return any(walked[name]) and (across_rows or not (constant_along_row or walked[name][-1] == 1))

    gathered = frozenset(name for name in strides if name not in dense and is_gathered(name))
    return _Walk(tuple(dims[:-1]), columns, across_rows, walked, dense, gathered)


# ---- emit ------------------------------------------------------------------------------------------------------------------------------


class _Emitter:
    """Writes a program in accumulator form.

    A value is in the accumulator from its making to the next result. It is stored in a slot when it is still needed after that, unless it
    stands in an output already. An output is stored as soon as no input of the same layout is loaded any more, since it may share its memory.
    """

    def __init__(self, program: _Program, inputs: Sequence[str], results: Sequence[str], walk: _Walk) -> None:
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
        form = "load_bool" if self._memory[name] < self._first_slot and self._is_bool_input(name) else "load_s" if self._is_scalar(name) else "load"
        self._write(form, self._memory[name])
        self._accumulator = name

    def _in_lanes(self, name: str) -> int:
        """Returns the number of an operand that holds the value lane by lane in 32 bits each."""
        if name not in self._memory or (self._memory[name] < self._first_slot and (self._is_bool_input(name) or self._is_scalar(name))):
            self._load(name)
            self._spill()
        return self._memory[name]

    def _done_with(self, operands: Iterable[str]) -> None:
        """Counts uses down and frees slots that nothing needs."""
        for name in operands:
            self._uses[name] -= 1
            if not self._uses[name] and self._memory.get(name, -1) >= self._first_slot:
                self._free_slots.append(self._memory.pop(name))

    def _one(self, instruction: _Instruction) -> None:
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
        if swap and a != b and name in _SWAPPED:
            name, a, b = _SWAPPED[name], b, a
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
    if any(type_.dtype not in _LANES for type_ in types.values()):
        return None
    scalars = {name: tensor.scalar for name, tensor in tensors.items() if tensor.scalar is not None}
    program = _Program(types, scalars)
    for name, value in scalars.items():
        program.same_as[name] = program.constant(value, types[name].dtype)
    try:
        for node in body:
            program.select(node)
    except _Unsupported:
        return None
    read = {operand for instruction in program.instructions for operand in instruction.operands} | {program.resolve(name) for name in results}
    program.constants = {name: bits for name, bits in program.constants.items() if name in read}
    inputs = {name: tensor for name, tensor in tensors.items() if name in read}
    shape = outputs[0].type.shape
    walk = _walk(shape, {name: _aligned_strides(tensor.type.shape, tensor.strides, shape) for name, tensor in inputs.items()}, types)
    emitter = _Emitter(program, list(inputs), results, walk)
    params = _params(program, emitter, walk, math.prod(shape))
    return None if params is None else NativeStep("elementwise", params, (*(v.name for v in outputs), *(t.operand for t in inputs.values())))


def _params(program: _Program, emitter: _Emitter, walk: _Walk, elements: int) -> list[int] | None:
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


@lowers("fused", *sorted({*_PLAIN_F32, *_PLAIN_BITS, *_SELECT}))
def lower_elementwise(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One ``elementwise`` step for a node or a fused group."""
    operands = tuple(node.reads())
    params, body, results = operands, (node,), tuple(value.name for value in node.outputs)
    if node.op == "fused":
        params, body, results = node.attrs["params"], node.attrs["body"], node.attrs["results"]
    tensors = {}
    for name, operand in zip(params, operands, strict=True):
        data = ctx.constant(operand)
        scalar = data.item() if data is not None and data.size == 1 else None
        tensors[name] = Tensor(operand, ctx.type(operand), ctx.strides(operand), scalar)
    step = elementwise_step(tensors, body, results, node.outputs)
    return None if step is None else [step]
