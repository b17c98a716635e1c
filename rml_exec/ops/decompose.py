"""Normative decompositions: what a composite op means, written in primitive ops.

A composite's record has ``expand(p, *operands, **attrs)``, which writes the formula through a :class:`Primitives`. Tests compare the two in
float64 for every case. A decomposition has the values of its op, not its accuracy: the NumPy reference may order the arithmetic better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rml_exec.ops.registry import get_op
from rml_exec.types import DType, TensorType

__all__ = ["Builder", "Primitives", "decompose"]


class Builder(Protocol):
    """What a decomposition is written with, such as :class:`rml_exec.GraphBuilder`."""

    def add(self, op: str, inputs: Sequence[str | None], **attrs: Any) -> Any:
        """Adds a node and returns the name of its result, or a tuple of names."""

    def constant(self, array: np.ndarray) -> str:
        """Adds a constant and returns its name."""

    def type(self, value: str) -> TensorType:
        """Returns the type of a value."""


class Primitives:
    """Writes nodes into a graph; a composite op is written as its decomposition, so that only primitives remain.

    ``p("mul", x, 0.5)`` adds a node and returns the name of its result: a Python number becomes a constant of the element type of the
    node's other operands.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def __call__(self, op: str, *operands: str | float | None, **attrs: Any) -> Any:
        """Adds ``op`` and returns the name of its result, or a tuple of names if it has several."""
        names = [operand if operand is None or isinstance(operand, str) else self._number(operand, operands) for operand in operands]
        expand = get_op(op).expand
        return self._builder.add(op, names, **attrs) if expand is None else expand(self, *names, **attrs)

    def type(self, value: str) -> TensorType:
        """Returns the type of a value."""
        return self._builder.type(value)

    def constant(self, array: np.ndarray) -> str:
        """Adds a constant and returns its name."""
        return self._builder.constant(array)

    def full(self, shape: Sequence[int], value: float, like: str) -> str:
        """Returns a value of the shape, of the element type of ``like``, that holds one number."""
        number = self.constant(np.asarray(value, self.type(like).dtype.numpy))
        return self("broadcast", number, shape=tuple(shape))

    def part(self, x: str, axis: int, start: int, limit: int) -> str:
        """Returns the elements of ``x`` from ``start`` to below ``limit`` along one axis."""
        shape = self.type(x).shape
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, limit
        return self("slice", x, start=tuple(starts), limit=tuple(limits), strides=(1,) * len(shape))

    def reduce(self, kind: str, x: str, axes: Sequence[int]) -> str:
        """Returns a reduction that keeps its axes, with identities for empty ones."""
        return self("reduce", x, kind=kind, axes=tuple(axes), keepdims=True, nan="propagate", empty="identity")

    def _number(self, value: float, operands: Sequence[str | float | None]) -> str:
        dtypes = [self.type(operand).dtype for operand in operands if isinstance(operand, str)]
        (dtype,) = {dtype for dtype in dtypes if dtype is not DType.BOOL}
        return self.constant(np.asarray(value, dtype.numpy))


def decompose(builder: Builder, op: str, operands: Sequence[str | None], attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the decomposition of a composite op into a graph under construction and returns the names of its results.

    Args:
        builder: of the graph or function.
        op: name of a composite op.
        operands: value names of the builder, None for an absent optional operand.
        attrs: attributes of the op.

    Raises:
        TypeInferenceError: operands or attributes that the op does not allow.
        ValueError: an op that is primitive.
    """
    record = get_op(op)
    if record.expand is None:
        raise ValueError(f"op {op} is primitive: it has no decomposition")
    record.infer_types(op, [None if name is None else builder.type(name) for name in operands], attrs)
    results = record.expand(Primitives(builder), *operands, **attrs)
    return results if isinstance(results, tuple) else (results,)
