"""The instructions of the elementwise interpreter, and how each op is written in them.

``native/kernels/elementwise.c`` runs straight-line programs on 32-bit lanes: f32, i32 and truth values. A :class:`Program` is one of them
on *named* values; :mod:`rml_exec.runtime.lower_elementwise` gives them places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.loading import GraphBuilder
from rml_exec.ops import all_ops, get_op
from rml_exec.ops.decompose import decompose
from rml_exec.types import DType, TensorType

__all__ = ["INSTRUCTIONS", "LANES", "LONG", "OPS", "SWAPPED", "VERY_LONG", "Instruction", "Program", "UnsupportedError", "selects"]

LANES = (DType.F32, DType.I32, DType.BOOL)
"""Element types that programs work on."""

_MOVES = ("load", "load_s", "load_bool", "store", "store_bool")
_UNARY = ("neg", "abs", "floor", "ceil", "round_half_even", "round_half_away", "round_toward_zero", "sqrt", "rsqrt", "square")
_TESTS = ("sign", "sign_nan_zero", "is_nan", "is_inf")
LONG = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "silu", "gelu", "gelu_tanh")
"""Unary instructions that cost as much as about eight others."""
_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "rdiv", "div_trunc", "max", "min", "max_number", "min_number", "leaky_relu")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
VERY_LONG = ("pow", "div_floor", "rem_divisor", "rem_dividend")
"""Binary instructions that cost as much as several dozen others."""
_UNARY_I32 = ("neg_i32", "abs_i32")
_BINARY_I32 = ("add_i32", "sub_i32", "mul_i32", "max_i32", "min_i32", "eq_i32", "lt_i32", "gt_i32")
_BITS = ("and", "or", "xor")
_CASTS = ("i32_to_f32", "f32_to_i32_saturate", "f32_to_i32_wrap")
_CHOICE = ("select", "select_true", "select_false")


def _in_order() -> list[str]:
    """Returns every instruction in the order of elementwise.def. A binary one has a second form that takes one value for all lanes."""
    names = [*_MOVES, *_UNARY, *_TESTS, *LONG]
    for name in (*_ARITHMETIC, *_COMPARE, *VERY_LONG):
        names += [name, f"{name}_s"]
    names += _UNARY_I32
    for name in _BINARY_I32:
        names += [name, f"{name}_s"]
    names.append("not")
    for name in _BITS:
        names += [name, f"{name}_s"]
    return [*names, *_CASTS, *_CHOICE]


INSTRUCTIONS: Mapping[str, int] = {name: number for number, name in enumerate(_in_order())}
"""Number of every instruction, as the interpreter knows it."""

_COMMUTATIVE = ("add", "mul", "max", "min", "eq", "ne", "add_i32", "mul_i32", "max_i32", "min_i32", "eq_i32", *_BITS)
SWAPPED: Mapping[str, str] = dict(zip(_COMMUTATIVE, _COMMUTATIVE, strict=True)) | {
    "sub": "rsub",
    "div": "rdiv",
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "lt_i32": "gt_i32",
    "gt_i32": "lt_i32",
}
"""The instruction that computes the same with its operands the other way round."""


class UnsupportedError(Exception):
    """A node that has no instructions: NumPy runs it."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """``result = name(operands)`` on values: names of tensors, of intermediate values, or of constants."""

    name: str
    operands: tuple[str, ...]
    result: str


@dataclass(slots=True)
class Program:
    """What the nodes of a group compute. ``constants`` holds the 32 bits of each constant value."""

    types: dict[str, TensorType]
    scalars: dict[str, float | int | bool]
    instructions: list[Instruction] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    same_as: dict[str, str] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """Returns the value that a name stands for."""
        return self.same_as.get(name, name)

    def constant(self, value: float | int | bool, dtype: DType) -> str:
        """Returns the name of a constant value."""
        if dtype is DType.BOOL:
            bits = 0xFFFFFFFF * bool(value)
        else:
            with np.errstate(over="ignore"):
                bits = int(np.asarray(value, dtype.numpy).view(np.uint32))
        name = f"={bits:08x}"
        self.constants[name] = bits
        return name

    def add(self, name: str, *operands: str, result: str = "") -> str:
        """Appends an instruction; returns its result, a new value unless named."""
        result = result or f"%{len(self.instructions)}"
        self.instructions.append(Instruction(name, tuple(self.resolve(operand) for operand in operands), result))
        return result

    def select(self, node: Node) -> None:
        """Appends the instructions of a node."""
        operands = [self.resolve(name) for name in node.reads()]
        types = [self.types[name] for name in node.reads()]
        dtype, result = types[0].dtype, node.outputs[0]
        if any(type_.dtype not in LANES for type_ in (*types, result.type)):
            raise UnsupportedError
        self.types[result.name] = result.type
        if node.op in _SELECT:
            _SELECT[node.op](self, node, operands, types[-1].dtype)
        elif node.op in _SAME_NAME[dtype]:
            self.add(node.op if dtype is DType.F32 else f"{node.op}_i32", *operands, result=result.name)
        elif dtype is not DType.F32 and node.op in _BITWISE:
            self.add(node.op, *operands, result=result.name)
        elif get_op(node.op).expand is not None:
            self._select_composite(node, operands)
        else:
            raise UnsupportedError

    def _select_composite(self, node: Node, operands: list[str]) -> None:
        """Appends the instructions of the op's decomposition into primitives."""
        builder = GraphBuilder(node.op)
        types = [self.types[name] for name in node.reads()]
        inputs = [builder.input(f"x{i}", type_.dtype, type_.shape) for i, type_ in enumerate(types)]
        builder.output("y", *decompose(builder, node.op, inputs, node.attrs))
        graph = builder.build()

        def inner(name: str) -> str:
            return f"{node.outputs[0].name}/{name}"

        for name, operand, type_ in zip(inputs, operands, types, strict=True):
            self.same_as[inner(name)], self.types[inner(name)] = operand, type_
        for constant in graph.constants:
            value = constant.data.item()
            self.same_as[inner(constant.name)], self.types[inner(constant.name)] = self.constant(value, constant.type.dtype), constant.type
            self.scalars[inner(constant.name)] = value
        for member in graph.nodes:
            outputs = tuple(replace(value, name=inner(value.name)) for value in member.outputs)
            self.select(replace(member, inputs=tuple(inner(name) for name in member.reads()), outputs=outputs))
        self.same_as[node.outputs[0].name] = self.resolve(inner(graph.outputs[0].value))


_SAME_NAME: Mapping[DType, tuple[str, ...]] = {
    DType.F32: (*LONG[:-2], "neg", "abs", "floor", "ceil", "sqrt", "rsqrt", "is_nan", "is_inf", "add", "sub", "mul", "max", "min"),
    DType.I32: ("neg", "abs", "add", "sub", "mul", "max", "min"),
    DType.BOOL: (),
}
"""Ops whose instruction has their name (for i32 with a suffix)."""
_BITWISE = ("not", *_BITS)

_Select = Callable[[Program, Node, list[str], DType], None]
_SELECT: dict[str, _Select] = {}


def selects(*ops: str) -> Callable[[_Select], _Select]:
    """Registers the decorated ``(program, node, operand values, their dtype)`` for ops whose instructions depend on more than the name."""

    def register(function: _Select) -> _Select:
        _SELECT.update(dict.fromkeys(ops, function))
        return function

    return register


@selects("sign", "round", "gelu")
def _by_mode(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    name = {
        ("sign", "propagate"): "sign",
        ("sign", "zero"): "sign_nan_zero",
        ("gelu", "none"): "gelu",
        ("gelu", "tanh"): "gelu_tanh",
    }.get((node.op, *node.attrs.values()), f"round_{node.attrs.get('mode')}")
    if dtype is not DType.F32:
        raise UnsupportedError
    program.add(name, *operands, result=node.outputs[0].name)


@selects("relu", "clamp")
def _bounded(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
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
            raise UnsupportedError
    program.same_as[node.outputs[0].name] = value


@selects("leaky_relu")
def _leaky_relu(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    program.add("leaky_relu", operands[0], program.constant(node.attrs["alpha"], dtype), result=node.outputs[0].name)


@selects("div")
def _div(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    rounding = node.attrs["rounding"]
    divisor = program.scalars.get(node.inputs[1] or "")
    if rounding == "true" and divisor and abs(math.frexp(divisor)[0]) == 0.5 and 2.0**-126 <= abs(1 / divisor) < 2.0**127:
        program.add("mul", operands[0], program.constant(1 / divisor, dtype), result=node.outputs[0].name)  # exact: a power of two
    else:
        program.add("div" if rounding == "true" else f"div_{rounding}", *operands, result=node.outputs[0].name)


@selects("rem")
def _rem(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    program.add(f"rem_{node.attrs['sign']}", *operands, result=node.outputs[0].name)


@selects("pow")
def _pow(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    exponent = program.scalars.get(node.inputs[1] or "")
    if exponent == 2:
        program.add("square", operands[0], result=node.outputs[0].name)
    elif exponent == 3:
        program.add("mul", program.add("square", operands[0]), operands[0], result=node.outputs[0].name)
    else:
        program.add("pow", *operands, result=node.outputs[0].name)


@selects("compare")
def _compare(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
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


@selects("select")
def _choose(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    program.add("select", *operands, result=node.outputs[0].name)


@selects("cast")
def _cast(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
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
        raise UnsupportedError


@selects("bitcast")
def _bitcast(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if {dtype, DType(node.attrs["to"])} - {DType.F32, DType.I32}:
        raise UnsupportedError
    program.same_as[node.outputs[0].name] = operands[0]


@selects("tan")
def _tan(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    program.add("div", program.add("sin", *operands), program.add("cos", *operands), result=node.outputs[0].name)


_COMPOSITES = {op.name for op in all_ops() if op.elementwise and op.expand is not None}
OPS = tuple(sorted({op for ops in _SAME_NAME.values() for op in ops} | set(_BITWISE) | set(_SELECT) | _COMPOSITES))
"""Ops that can have instructions, depending on their operands' element types."""
