"""From a node to native steps. One function per op, found by name; an op without one, or one that returns None, runs its NumPy reference.

A lowering sees operand types, strides and constant data, and answers with :class:`NativeStep` records: a kernel of
``native/kernels/steps.def``, its int64 parameters, and operands by value name. Where the values live is the memory plan's business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Constant, Node
from rml_exec.plan.aliases import View, contiguous_strides, reads_contiguous
from rml_exec.types import TensorType

__all__ = [
    "ELEMENT_TYPES",
    "LowerContext",
    "Lowering",
    "NativeStep",
    "Operand",
    "Part",
    "Scratch",
    "aligned_strides",
    "copy_step",
    "float_bits",
    "get_lowering",
    "joined_axes",
    "lowers",
    "registered_lowerings",
]


ELEMENT_TYPES = ("bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "f16")
"""Element types as ``native/kernels/types.h`` numbers them."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Bytes at ``offset`` of the node's scratch buffer, which lives in the arena while the node runs."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A value's storage from ``byte_offset`` on: what one operand of a concat writes."""

    value: str
    byte_offset: int


Operand = str | Part | np.ndarray | Scratch | None
"""A value by name or a part of it, constant data made by the lowering (packed weights, tables), scratch, or absent."""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """One call of a native kernel. ``params`` and the order of ``operands`` are documented in ``steps.def``."""

    kernel: str
    params: Sequence[int]
    operands: tuple[Operand, ...]
    may_decline: bool = False
    """Whether NumPy runs the node where the kernel finds that an operand holds what it does not do; operands must still be untouched then."""


Lowering = Callable[[Node, "LowerContext"], "list[NativeStep] | None"]
_LOWERINGS: dict[str, Lowering] = {}
_SCRATCH_ALIGNMENT = 64


def lowers(*ops: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function as the lowering of the named ops."""

    def register(function: Lowering) -> Lowering:
        for op in ops:
            if op in _LOWERINGS:
                raise ValueError(f"op {op}: lowered twice")
            _LOWERINGS[op] = function
        return function

    return register


def get_lowering(op: str) -> Lowering | None:
    """Returns the lowering of an op, or None when it has no native form."""
    return _LOWERINGS.get(op)


def registered_lowerings() -> set[str]:
    """Returns the names of the ops that have a native form."""
    return set(_LOWERINGS)


def aligned_strides(shape: Sequence[int], strides: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of an operand along the axes of the result it broadcasts to."""
    kept = tuple(0 if dim == 1 else stride for dim, stride in zip(shape, strides, strict=True))
    return (0,) * (len(result) - len(shape)) + kept


def joined_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Returns the axes that are left, one at least, and each operand's strides along them, when axes that are one in memory are joined.

    Args:
        shape: the axes.
        strides: per operand, along the axes.
    """
    dims: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        if dims and all(kept[-1] == given[axis] * dim for kept, given in zip(joined, strides, strict=True)):
            dims[-1] *= dim
            for kept, given in zip(joined, strides, strict=True):
                kept[-1] = given[axis]
        else:
            dims.append(dim)
            for kept, given in zip(joined, strides, strict=True):
                kept.append(given[axis])
    return (tuple(dims), [tuple(kept) for kept in joined]) if dims else ((1,), [(0,)] * len(strides))


def float_bits(value: float) -> int:
    """Returns the bit pattern of a double as the int64 that a step's parameters carry."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


@dataclass(slots=True)
class LowerContext:
    """What a lowering may know of the graph, and the scratch it asks for. One context per node.

    Attributes:
        types: type of every value.
        views: where every value lies: root value, offset and strides in elements.
        constants: the constants, by name.
        threads: threads the program will run on.
        numerics: "fast" or "exact".
    """

    types: dict[str, TensorType]
    views: dict[str, View]
    constants: Mapping[str, Constant]
    threads: int = 1
    numerics: str = "fast"
    prologue: list[NativeStep] = field(default_factory=list)
    scratch_bytes: int = 0

    def type(self, name: str) -> TensorType:
        """Returns the type of a value."""
        return self.types[name]

    def constant(self, name: str | None) -> np.ndarray | None:
        """Returns the data of a constant, or None if the value is not one."""
        return self.constants[name].data if name is not None and name in self.constants else None

    def weights(self, name: str) -> np.ndarray | Recipe | None:
        """Returns a constant that is to be packed: its data, or how to make it; None if the value is no constant."""
        return self.constants[name].source if name in self.constants else None

    def strides(self, name: str) -> tuple[int, ...]:
        """Returns the strides of a value, in elements."""
        return self.views[name].strides

    def is_contiguous(self, name: str) -> bool:
        """True if the value lies in C order without gaps."""
        return reads_contiguous(self.views[name], self.types[name].shape)

    def scratch(self, nbytes: int) -> Scratch:
        """Returns ``nbytes`` of scratch, 64-byte aligned."""
        part = Scratch(self.scratch_bytes, nbytes)
        self.scratch_bytes += -(-nbytes // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        return part

    def contiguous(self, name: str) -> Operand:
        """Returns the value as a C-contiguous operand: itself, or a copy in scratch that a step before this one makes."""
        if self.is_contiguous(name):
            return name
        type_ = self.types[name]
        part = self.scratch(type_.nbytes)
        self.prologue.append(copy_step(part, name, type_, self.strides(name)))
        return part


def copy_step(
    dst: Operand, src: Operand, type_: TensorType, src_strides: Sequence[int], dst_strides: Sequence[int] | None = None
) -> NativeStep:
    """Returns the step that copies a strided value; ``dst_strides`` default to C order."""
    dst_strides = contiguous_strides(type_.shape) if dst_strides is None else dst_strides
    return NativeStep("copy", (type_.dtype.itemsize, type_.rank, *type_.shape, *dst_strides, *src_strides), (dst, src))
