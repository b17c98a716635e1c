"""Runs one node through its lowering on a chosen instruction set, with guards around everything it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec import _native
from rml_exec.ir.graph import Constant, Node, Value
from rml_exec.ops import get_op
from rml_exec.plan.aliases import View
from rml_exec.runtime import lower_elementwise, lower_rows  # noqa: F401  (they register their lowerings)
from rml_exec.runtime.lowering import LowerContext, NativeStep, Scratch, contiguous_strides, get_lowering
from rml_exec.types import TensorType

ISAS = _native.isa_names()
_ARENA, _INPUT, _OUTPUT, _CONSTANT, _NOWHERE = 0, 1, 2, 3, -1
_GUARD = 64
_POISON = 0xFD  # as f32 a large negative number, as i32 one too, as bool neither 0 nor 1


class NotLoweredError(Exception):
    """NumPy runs this node."""


def poisoned(type_: TensorType) -> tuple[np.ndarray, np.ndarray]:
    """Returns a buffer filled with poison, and the guarded array of the type in its middle."""
    buffer = np.full(_GUARD + type_.nbytes + _GUARD, _POISON, np.uint8)
    return buffer, buffer[_GUARD : _GUARD + type_.nbytes].view(type_.dtype.numpy).reshape(type_.shape)


def guards_hold(buffer: np.ndarray) -> bool:
    return bool(np.all(buffer[:_GUARD] == _POISON) and np.all(buffer[len(buffer) - _GUARD :] == _POISON))


def _view(name: str, array: np.ndarray) -> tuple[np.ndarray, View]:
    """Returns the memory an operand lies in, and where: a NumPy view becomes a strided view of its base."""
    if array.flags.c_contiguous:
        return array, View(name, 0, contiguous_strides(array.shape))
    base = array.base
    assert isinstance(base, np.ndarray)
    assert base.flags.c_contiguous
    first = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return base, View(name, first // array.itemsize, tuple(stride // array.itemsize for stride in array.strides))


def lower(
    op: str, operands: Sequence[np.ndarray | None], attrs: Mapping[str, Any], constants: Sequence[int], threads: int, numerics: str
) -> tuple[list[NativeStep], Node, dict[str, View], dict[str, np.ndarray], LowerContext]:
    """Returns the steps of a node on operands x0, x1...; ``constants`` says which of them are."""
    names = [None if operand is None else f"x{i}" for i, operand in enumerate(operands)]
    if op == "fused":
        names = list(attrs["params"])
    types = {name: TensorType.of(x) for name, x in zip(names, operands, strict=True) if name is not None and x is not None}
    placed = {name: _view(name, x) for name, x in zip(names, operands, strict=True) if name is not None and x is not None}
    data = {name: memory for name, (memory, _) in placed.items()}
    views = {name: view for name, (_, view) in placed.items()}
    result_types = get_op(op).infer_types(op, [None if name is None else types[name] for name in names], attrs)
    result_names = attrs["results"] if op == "fused" else [f"y{i}" for i in range(len(result_types))]
    results = tuple(Value(name, type_) for name, type_ in zip(result_names, result_types, strict=True))
    for value in results:
        types[value.name] = value.type
        views[value.name] = View(value.name, 0, contiguous_strides(value.type.shape))
    known = {f"x{i}": Constant(f"x{i}", types[f"x{i}"], np.asarray(operand)) for i in constants if (operand := operands[i]) is not None}
    context = LowerContext(types, views, known, threads, numerics)
    node = Node(op, "node", tuple(names), results, attrs)
    lowering = get_lowering(op)
    steps = lowering(node, context) if lowering else None
    if steps is None:
        raise NotLoweredError(op)
    return [*context.prologue, *steps], node, views, data, context


def run(
    op: str,
    operands: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    isa: str = ISAS[-1],
    threads: int = 1,
    constants: Sequence[int] = (),
    in_place: int | None = None,
    numerics: str = "exact",
) -> tuple[np.ndarray, ...]:
    """Returns the results of a node run natively.

    Args:
        op: name of the op.
        operands: arrays; NumPy views of a contiguous base are read in place with their strides.
        attrs: attributes of the op.
        isa: instruction set.
        threads: threads to run on.
        constants: numbers of the operands that the lowering may look into.
        in_place: number of the operand whose memory result 0 takes over.
        numerics: "exact" or "fast".

    Raises:
        NotLoweredError: the op has no native form for these operands.
        AssertionError: the run wrote outside of its results and scratch.
    """
    steps, node, views, data, context = lower(op, operands, attrs or {}, constants, threads, numerics)
    inputs = list(data)
    results = [poisoned(value.type) for value in node.outputs]
    arena = np.full(context.scratch_bytes + _GUARD, _POISON, np.uint8)
    if in_place is not None:
        name = f"x{in_place}"
        results[0][1][...] = data[name]
        data[name] = results[0][1]
    made: list[np.ndarray] = []

    def place(operand: Any) -> tuple[int, int, int]:
        match operand:
            case None:
                return (_NOWHERE, 0, 0)
            case str() if operand in data:
                return (_INPUT, inputs.index(operand), views[operand].offset * data[operand].itemsize)
            case str():
                return (_OUTPUT, [value.name for value in node.outputs].index(operand), 0)
            case Scratch():
                return (_ARENA, 0, operand.offset)
            case _:
                made.append(operand)
                return (_CONSTANT, len(made) - 1, 0)

    kinds = _native.step_kinds()
    program_steps = [
        (kinds[step.kernel], np.array(step.params, np.int64), np.array([place(operand) for operand in step.operands], np.int64), None)
        for step in steps
    ]
    program = _native.Program(program_steps, made, len(inputs), len(results), context.scratch_bytes, isa=isa)
    before = [data[name].copy() for name in inputs]
    program.run(arena[: context.scratch_bytes], [data[name] for name in inputs], [array for _, array in results], threads)
    assert all(guards_hold(buffer) for buffer, _ in results), "wrote outside of a result"
    assert np.all(arena[context.scratch_bytes :] == _POISON), "wrote outside of the scratch"
    for i, (name, old) in enumerate(zip(inputs, before, strict=True)):
        assert i == in_place or data[name].tobytes() == old.tobytes(), "wrote into an operand"
    return tuple(array for _, array in results)
