"""Where values lie in memory while a program runs, and the steps that NumPy computes there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rml_exec.errors import KernelError
from rml_exec.ops import OpDef
from rml_exec.types import TensorType

__all__ = ["ABSENT", "ARENA", "CONSTANT", "INPUT", "OUTPUT", "NumpyStep", "ObserverStep", "Place", "StridedValue"]

ABSENT, ARENA, INPUT, OUTPUT, CONSTANT = -1, 0, 1, 2, 3
"""Address spaces of a program: the run's arena, its inputs, its outputs, and the program's constants."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address: space, index of the buffer in it (0 for the arena), and bytes from its start."""

    space: int
    index: int
    byte_offset: int


NOWHERE = Place(ABSENT, 0, 0)


@dataclass(frozen=True, slots=True)
class StridedValue:
    """A value as NumPy sees it: its place, type and strides in bytes."""

    place: Place
    type: TensorType
    byte_strides: tuple[int, ...]

    def array(self, buffers: Mapping[int, Sequence[Any]]) -> np.ndarray:
        """Returns the array over the buffers of a run: space -> buffers of that space."""
        buffer = buffers[self.place.space][self.place.index]
        return np.ndarray(self.type.shape, self.type.dtype.numpy, buffer, self.place.byte_offset, self.byte_strides)


class NumpyStep:
    """A step without native kernel: runs an op's NumPy reference on the run's own memory and copies the results into place."""

    def __init__(
        self,
        where: str,
        op: OpDef,
        attrs: Mapping[str, Any],
        operands: Sequence[StridedValue | None],
        results: Sequence[StridedValue],
        constants: Sequence[np.ndarray],
    ) -> None:
        self._where, self._op, self._attrs = where, op, attrs
        self._operands, self._results, self._constants = tuple(operands), tuple(results), constants

    def __call__(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        buffers = {ARENA: (arena,), INPUT: inputs, OUTPUT: outputs, CONSTANT: self._constants}
        operands = [None if operand is None else operand.array(buffers) for operand in self._operands]
        try:
            computed = self._op.run_reference(operands, self._attrs, self._where)
        except KernelError:
            raise
        except Exception as error:
            names = {self._op.operand_name(i): operand.type for i, operand in enumerate(self._operands) if operand is not None}
            raise KernelError.of(self._where, f"failed while running: {error}", None, names) from error
        for result, array in zip(self._results, computed, strict=True):
            np.copyto(result.array(buffers), array, casting="no")


class ObserverStep:
    """A step that shows values to somebody, over the run's own memory, and changes nothing."""

    def __init__(self, show: Callable[[list[np.ndarray]], None], values: Sequence[StridedValue], constants: Sequence[np.ndarray]) -> None:
        self._show, self._values, self._constants = show, tuple(values), constants

    def __call__(self, arena: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        buffers = {ARENA: (arena,), INPUT: inputs, OUTPUT: outputs, CONSTANT: self._constants}
        self._show([value.array(buffers) for value in self._values])
