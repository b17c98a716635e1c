"""What a lowering gets: the graph being built, the program's values in it, and the table that all lowerings of JAX primitives stand in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporters.errors import Unsupported
from exporters.from_jax.program import Equation, Program, Value, scalar_value
from exporters.from_jax.refusals import reason
from exporters.lowering import LoweringTable
from rml_exec.errors import TypeInferenceError
from rml_exec.ir.builder import INLINE_ELEMENTS, BodyBuilder
from rml_exec.ir.graph import Function
from rml_exec.ir.names import Names
from rml_exec.types import DType

__all__ = ["TABLE", "Context", "RefusedError", "dtype_name"]

TABLE = LoweringTable()
"""Primitive -> ``lower(ctx, equation)``, which returns the graph value of the equation's output, or a list of them if it has several."""

Operand = Value | str | None


class RefusedError(Exception):
    """Raised by a lowering that cannot express an equation; its text is the reason that the user reads."""


def dtype_name(dtype: Any) -> str:
    """Returns the graph format's name of a JAX dtype; raises RefusedError if it has none (complex, float8, random keys)."""
    if getattr(dtype, "name", "") == "bfloat16":
        return DType.BF16.value
    try:
        return DType.of(dtype).value
    except (KeyError, TypeError):
        raise RefusedError(f"the graph format has no element type {dtype}") from None


@dataclass(slots=True)
class _Shared:
    """What the contexts of a graph and of its functions have in common.

    Attributes:
        refused: what could not be lowered so far.
        names: the keys of the weights file.
        keys: (constant, form) -> its key: the weight that a loop's body reads is the one that the graph reads.
    """

    refused: list[Unsupported] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    keys: dict[tuple[Value, str], str] = field(default_factory=dict)


class Context:
    """Lowers a program into the builder of a graph or of a function.

    Attributes:
        builder: the body being built.
    """

    def __init__(self, builder: BodyBuilder, shared: _Shared | None = None) -> None:
        self.builder = builder
        self._shared = shared or _Shared()
        self._names: dict[Value, str] = {}
        self._derived: dict[tuple[Value, str], str] = {}
        self._untyped: set[Value] = set()
        self._equation = Equation("", ())

    @property
    def refused(self) -> list[Unsupported]:
        """What could not be lowered so far, in functions too. Lowering goes on behind a stand-in input, so that all of it is found."""
        return self._shared.refused

    @property
    def names(self) -> Mapping[Value, str]:
        """What the values of the program that were lowered so far are called in the graph."""
        return self._names

    def function(self, name: str, program: Program) -> Function:
        """Lowers the body of a loop or a branch to a function of the graph, its inputs and outputs in the program's order."""
        builder = self.builder.function(name)
        inner = Context(builder, self._shared)
        for value in program.inputs:
            inner.bind(value, builder.input("x", dtype_name(value.dtype), value.shape))
        inner.lower(program)
        for index, value in enumerate(program.outputs):
            builder.output(f"y{index}", inner.name(value))
        return builder.build()

    def bind(self, value: Value, name: str) -> None:
        """Makes the graph value ``name`` stand for a value of the program."""
        self._names[value] = name

    def lower(self, program: Program) -> None:
        """Lowers every equation; what cannot be lowered is listed in :attr:`refused`."""
        for index, equation in enumerate(program.equations):
            self._equation = equation
            untyped = not self._untyped.isdisjoint(equation.inputs)
            found = len(self.refused)
            try:
                if not untyped or TABLE.get(equation.primitive) is None:
                    self._lower(equation)
            except (RefusedError, TypeInferenceError) as error:
                if len(self.refused) == found:  # else it is a loop, and what it runs was refused
                    self.refused.append(Unsupported(equation.primitive, f"equation {index}", equation.where, str(error).rstrip(".")))
                untyped = untyped or not self.stand_in(equation)
            if untyped:
                self._untyped.update(equation.outputs)

    def _lower(self, equation: Equation) -> None:
        function = TABLE.get(equation.primitive)
        if function is None:
            raise RefusedError(reason(equation.primitive))
        for value in (*equation.inputs, *equation.outputs):
            dtype_name(value.dtype)
        found = len(self.refused)
        results = function(self, equation)
        if len(self.refused) > found:  # in a function that the equation runs
            raise RefusedError("")
        self._names.update(zip(equation.outputs, results if isinstance(results, list) else [results], strict=True))

    def stand_in(self, equation: Equation) -> bool:
        """Lets inputs of their types stand for the equation's outputs, for no graph is made any more; False if one has no type."""
        try:
            for output in equation.outputs:
                self._names[output] = self.builder.input("stand-in", dtype_name(output.dtype), output.shape)
        except RefusedError:
            return False
        return True

    def name(self, operand: Value | str) -> str:
        """Returns the graph value of a value of the program; a constant becomes one of the graph when it is first asked for."""
        if isinstance(operand, str):
            return operand
        if operand not in self._names:
            number = scalar_value(operand)
            if number is None or operand.size == 1:
                self._names[operand] = self.constant(operand.array(), of=operand)
            else:  # one number, repeated
                self._names[operand] = self.broadcast(self.scalar(number, operand.dtype), operand.shape)
        return self._names[operand]

    def constant(self, array: np.ndarray, name: str = "", *, of: Value | None = None, form: str = "") -> str:
        """Adds a constant to the graph and returns its name.

        Args:
            array: its data.
            name: what to call it. A named one stands in the weights file however small it is.
            of: the constant that it was made from by rearranging; asked for again with the same ``form``, no second one is made.
            form: what was done to it.
        """
        if of is not None and (of, form) in self._derived:
            return self._derived[of, form]
        name = name or (of.name if of is not None else "")
        key = None
        if name or array.size > INLINE_ELEMENTS:
            known = self._shared.keys.get((of, form)) if of is not None else None
            key = known or self._shared.names.take(name or "constant")
        added = self.builder.constant(np.ascontiguousarray(array).reshape(array.shape), name or "c", key=key)
        if of is not None:
            self._derived[of, form] = added
            if key is not None:
                self._shared.keys[of, form] = key
        return added

    def dtype(self, value: Value) -> str:
        """Returns the graph's name of a value's element type."""
        return dtype_name(value.dtype)

    def scalar(self, value: float | int | bool, dtype: Any) -> str:
        """Adds a 0-d constant."""
        return self.constant(np.asarray(value, dtype))

    def add(self, op: str, *operands: Operand, **attrs: Any) -> Any:
        """Adds a node whose source is the equation being lowered; returns the name of its output, a tuple of names if it has several."""
        source = {"op": self._equation.primitive.removeprefix("rml.")} | ({"where": self._equation.where} if self._equation.where else {})
        names = [None if operand is None else self.name(operand) for operand in operands]
        return self.builder.add(op, names, source=source, **attrs)

    def shape(self, operand: Value | str) -> tuple[int, ...]:
        """Returns the shape of a value of the program or the graph."""
        return operand.shape if isinstance(operand, Value) else self.builder.type(operand).shape

    def reshape(self, operand: Value | str, shape: Sequence[int]) -> str:
        """Adds a reshape unless the shape is that already."""
        shape = tuple(int(size) for size in shape)
        return self.name(operand) if self.shape(operand) == shape else str(self.add("reshape", operand, shape=shape))

    def transpose(self, operand: Value | str, perm: Sequence[int]) -> str:
        """Adds a transpose unless it moves nothing."""
        perm = tuple(int(axis) for axis in perm)
        return self.name(operand) if perm == tuple(range(len(perm))) else self.add("transpose", operand, perm=perm)

    def broadcast(self, operand: Value | str, shape: Sequence[int]) -> str:
        """Adds a broadcast unless the shape is that already."""
        shape = tuple(int(size) for size in shape)
        return self.name(operand) if self.shape(operand) == shape else self.add("broadcast", operand, shape=shape)

    def cast(self, operand: Value | str, dtype: Any) -> str:
        """Adds a cast, floats to integers as JAX does it, unless the element type is that already."""
        name, to = self.name(operand), dtype_name(dtype)
        return name if self.builder.type(name).dtype.value == to else self.add("cast", name, to=to, f2i="saturate")
