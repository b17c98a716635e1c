"""A JAX function as records: values that know the equations that compute them, which is what recognising a formula needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Equation", "Program", "Value", "live", "replaced", "scalar_value"]


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the program.

    Attributes:
        shape: its static shape.
        dtype: JAX's dtype; one that the graph format lacks (complex, a random key) may occur in equations that are dropped or refused.
        name: of an input, of a constant from a parameter tree, or of a constant computed from such; empty for all others.
        constant: its data as an array, None if it depends on an input.
        producer: the equation that computes it, also where that was done already; None for inputs and given constants.
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str = ""
    constant: Any = None
    producer: Equation | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    def array(self) -> np.ndarray:
        """Returns the data of a constant as a NumPy array; bfloat16 is ``ml_dtypes.bfloat16``."""
        return np.asarray(self.constant)


@dataclass(eq=False, slots=True)
class Equation:
    """One application of a primitive, or of an op that was recognised by its formula (``rml.softmax``).

    Attributes:
        primitive: name of the primitive.
        inputs: the operands.
        outputs: the values it defines.
        params: the primitive's parameters; those of ``scan`` are the op's.
        where: source line of the model, ``model.py:12 (layer)``; empty if JAX does not know.
        bodies: what ``scan``, ``while`` (condition, then body) and ``cond`` run. Constants stand in them as such, whatever else they need
            are their inputs.
        origin: JAX's own equation with its operands and results, as they were before this one was changed; None for what was recognised.
    """

    primitive: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    bodies: tuple[Program, ...] = ()
    origin: Any = None


@dataclass(slots=True)
class Program:
    """A closed list of equations in order of definition, from ``inputs`` to ``outputs``."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    equations: list[Equation]

    def reads(self) -> Counter[Value]:
        """Returns how often each value is read; being a result counts too."""
        return Counter(value for group in (self.outputs, *(equation.inputs for equation in self.equations)) for value in group)


def live(program: Program) -> Program:
    """Returns the program without the equations that no output depends on (random keys split and never used, prints)."""
    wanted = set(program.outputs)
    kept = []
    for equation in reversed(program.equations):
        if not wanted.isdisjoint(equation.outputs):
            kept.append(equation)
            wanted.update(equation.inputs)
    return Program(program.inputs, program.outputs, kept[::-1])


def replaced(equation: Equation, op: str, *inputs: Value, **params: object) -> list[Equation]:
    """Returns an equation that defines the outputs of ``equation`` by another op in its place, as a list for :class:`Program`."""
    made = Equation(op, inputs, equation.outputs, params, equation.where)
    for output in equation.outputs:
        output.producer = made
    return [made]


def scalar_value(value: Value) -> Any:
    """Returns the number that a constant holds in all its elements because it was made from one number; None for any other value."""
    while not (value.constant is not None and value.size == 1):
        if value.producer is None or value.producer.primitive not in ("broadcast_in_dim", "reshape"):
            return None
        value = value.producer.inputs[0]
    return value.array().reshape(()).item()
