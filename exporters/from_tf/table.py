"""The table of lowerings, and what a lowering works with: values, and the context that adds nodes for one TensorFlow operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exporters.lowering import LoweringTable
from rml_exec.loading import GraphBuilder
from rml_exec.types import DType, TensorType

__all__ = ["TABLE", "Context", "Known", "RefusalError", "Value", "Variable", "dtype_of"]

TABLE = LoweringTable()


class RefusalError(Exception):
    """Raised by a lowering that cannot express its operation; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor whose elements are known at export: a constant, a variable that was read, or what was computed from constants.

    Attributes:
        array: its data.
        name: what to call it.
        key: the variable it comes from; None for anything else.
        layout: how the order of the variable's elements was changed, empty if it was not. The same variable in two layouts, or in two
            shapes, is two constants.
    """

    array: np.ndarray
    name: str
    key: str | None = None
    layout: str = ""

    @property
    def type(self) -> TensorType:
        return TensorType(dtype_of(self.array.dtype), self.array.shape)


@dataclass(frozen=True, eq=False)
class Variable:
    """A resource tensor: a variable that has not been read, or (``known`` is None) a lookup table or the like."""

    known: Known | None


Value = str | Known | Variable
"""What an operation's input or output is: the name of a value of the graph being built, or what is known without it."""


def dtype_of(dtype: Any) -> DType:
    """Returns the DType of a NumPy (or ml_dtypes) dtype; raises RefusalError where the graph format has none."""
    if np.dtype(dtype).name == "bfloat16":
        return DType.BF16
    try:
        return DType.of(dtype)
    except KeyError:
        raise RefusalError(f"the graph format has no element type {np.dtype(dtype).name}") from None


Identity = tuple[str, str, tuple[int, ...]] | int


class Constants:
    """Known values of one graph that were needed as operands: each variable once per layout and shape, so that tied weights stay tied."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._names: dict[Identity, tuple[str, Known]] = {}
        self._keys: dict[str, Identity] = {}

    def name(self, known: Known) -> str:
        """Returns the name of the graph's constant with this data, which is added the first time."""
        shape = known.array.shape
        identity: Identity = id(known) if known.key is None else (known.key, known.layout, shape)
        if identity not in self._names:
            key = known.key
            if key is not None and self._keys.setdefault(key, identity) != identity:
                key = ".".join(filter(None, (key, known.layout, "x".join(map(str, shape)) or "scalar")))
            # The Known is kept beside its name: an id means nothing once its object is gone.
            self._names[identity] = self._builder.constant(known.array, name=key or known.name, key=key), known
        return self._names[identity][0]


class Context:
    """One TensorFlow operation being lowered.

    Attributes:
        op: the operation.
        xla: True inside a function compiled by XLA, where some operations behave differently.
    """

    def __init__(self, builder: GraphBuilder, constants: Constants, op: Any, name: str, where: str, xla: bool) -> None:
        self._builder = builder
        self._constants = constants
        self.op = op
        self.xla = xla
        self._name = name
        self._source: Mapping[str, str] = {"op": op.type, "where": where} if where else {"op": op.type}

    def attr(self, name: str) -> Any:
        """Returns an attribute of the operation, bytes as str; lists stay lists."""
        value = self.op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def output_dtype(self, index: int = 0) -> DType:
        """Returns the element type of one of the operation's outputs."""
        return dtype_of(self.op.outputs[index].dtype.as_numpy_dtype)

    def type(self, value: Value) -> TensorType:
        """Returns the type of an operand."""
        if isinstance(value, Variable):
            raise RefusalError("a variable is used other than by reading it")
        return value.type if isinstance(value, Known) else self._builder.type(value)

    def shape(self, value: Value) -> tuple[int, ...]:
        """Returns the shape of an operand."""
        return self.type(value).shape

    def array(self, value: Value, what: str) -> np.ndarray:
        """Returns the elements of an operand that must be known; ``what`` names it if they are not."""
        if not isinstance(value, Known):
            raise RefusalError(f"{what} must be constant")
        return value.array

    def ints(self, value: Value, what: str) -> list[int]:
        """Returns the elements of a known integer operand, flat."""
        return [int(element) for element in self.array(value, what).reshape(-1)]

    def axis(self, value: Value, rank: int) -> int:
        """Returns a known axis, counted from the front."""
        (axis,) = self.ints(value, "the axis")
        return axis + rank if axis < 0 else axis

    def scalar(self, value: float | bool, like: Value) -> Known:
        """Returns a 0-d constant with the element type of ``like``."""
        dtype = self.type(like).dtype
        if dtype is DType.BF16:
            raise RefusalError("bf16 arithmetic is not supported")
        return Known(np.asarray(value, dtype.numpy), f"{self._name}/constant")

    def constant(self, array: np.ndarray) -> Known:
        """Returns a constant that belongs to this operation."""
        return Known(array, f"{self._name}/constant")

    def add(self, op: str, *operands: Value | None, **attrs: Any) -> str:
        """Adds a node named after the operation and returns the name of its output."""
        result: str = self._builder.add(op, [self._operand(value) for value in operands], name=self._name, source=self._source, **attrs)
        return result

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Returns the operand under another shape; what is known stays known."""
        shape = tuple(shape)
        if self.shape(value) == shape:
            return value
        if isinstance(value, Known):
            return replace(value, array=value.array.reshape(shape))
        return self.add("reshape", value, shape=shape)

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Returns the operand with its axes reordered; an operand already in order is returned as it is."""
        return value if list(perm) == sorted(perm) else self.add("transpose", value, perm=tuple(perm))

    def slice(self, value: Value, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None) -> Value:
        """Returns part of the operand; the operand itself if that is all of it."""
        strides = tuple(strides or (1,) * len(start))
        if not any(start) and tuple(limit) == self.shape(value) and all(stride == 1 for stride in strides):
            return value
        return self.add("slice", value, start=tuple(start), limit=tuple(limit), strides=strides)

    def operand(self, value: Value) -> str:
        """Returns the name of an operand in the graph; a constant is added to it the first time."""
        if isinstance(value, Variable):
            raise RefusalError("a variable is used other than by reading it")
        return self._constants.name(value) if isinstance(value, Known) else value

    def _operand(self, value: Value | None) -> str | None:
        return None if value is None else self.operand(value)
