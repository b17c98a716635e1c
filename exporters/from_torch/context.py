"""What a lowering sees: the graph being built, the node being lowered, and torch's implicit type promotion made explicit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch

from exporters.lowering import LoweringTable
from rml_exec.ir.builder import BodyBuilder
from rml_exec.types import DType, TensorType

__all__ = ["ATEN", "COMPOSITES", "Context", "Known", "RefusedError", "Scalar", "identity_of", "to_dtype"]

ATEN = LoweringTable()
"""``aten.PACKET`` or ``aten.PACKET.OVERLOAD`` -> lowering.

It is called as ``lowering(ctx, *arguments)`` with all arguments of the operator's schema in order, defaults filled in, those without
meaning here (layout, device, pin_memory, memory_format, non_blocking) left out. A tensor is the name of its value. It returns the name of
the result, or a tuple if the operator has several, with None for one that is not computed.
"""

COMPOSITES: dict[Any, str] = {}
"""Functions that stand for a recognised formula in a traced graph -> their name in ATEN. They are called with positional arguments."""

Scalar = int | float | bool

_DTYPES = {
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float16: DType.F16,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.bool: DType.BOOL,
}


class Size(int):
    """A number that depends on the sizes of symbolic dims."""


class RefusedError(Exception):
    """Raised by a lowering: the reason why this use of the operator cannot be exported."""


def to_dtype(dtype: torch.dtype) -> DType:
    """Returns the graph's element type; raises RefusedError where it has none for torch's."""
    if dtype is torch.bfloat16:
        raise RefusedError("torch.bfloat16 is not supported: call model.float() first, take float32 inputs and no autocast")
    if dtype not in _DTYPES:
        raise RefusedError(f"{dtype} is not supported")
    return _DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor known at export.

    Attributes:
        name: what to call its value.
        tensor: its elements.
        key: its name in the weights file, for a parameter or buffer.
        foldable: true unless it is a parameter: what depends on foldable tensors alone is computed at export.
    """

    name: str
    tensor: torch.Tensor
    key: str | None = None
    foldable: bool = True


def identity_of(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Returns what tells whether two tensors are the same numbers in the same memory; None for an empty one, which has no memory."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else None


class Context:
    """The state of an import. One object serves all nodes; ``node`` is the one being lowered.

    Attributes:
        builder: the graph being built.
        node: the FX node being lowered.
        source: its origin for the graph.
        zeros: values of a symbolic size that are zeros.
    """

    def __init__(self, builder: BodyBuilder, sizes: Mapping[Any, int] | None = None, prefix: str = "") -> None:
        """Takes what to build, the size of each symbol of the program's shapes, and what names of computed constants begin with."""
        self.builder = builder
        self._prefix = prefix
        self._sizes = sizes or {}
        self.node: torch.fx.Node
        self.source: dict[str, str] = {}
        self.zeros: set[str] = set()
        self._scalars: dict[tuple[DType, str], str] = {}
        self._constants: dict[object, str] = {}
        self._known: dict[str, np.ndarray] = {}

    def within(self, builder: BodyBuilder, prefix: str) -> Context:
        """Returns the context of a function."""
        return Context(builder, self._sizes, self._prefix + prefix)

    def add(self, op: str, operands: Sequence[str | None], **attrs: Any) -> Any:
        """Adds the node that gives the operator's result, under the operator's name."""
        return self.builder.add(op, operands, name=self.node.name, source=self.source, **attrs)

    def step(self, op: str, operands: Sequence[str | None], **attrs: Any) -> Any:
        """Adds a node that the operator needs on the way, named after the operator and the op."""
        return self.builder.add(op, operands, name=f"{self.node.name}.{op}", source=self.source, **attrs)

    def type(self, value: str) -> TensorType:
        """Returns the type of a value."""
        return self.builder.type(value)

    @property
    def packet(self) -> str:
        """Name of the operator without namespace and overload: ``add``."""
        return str(self.node.target.overloadpacket).removeprefix("aten.")

    def result(self) -> TensorType:
        """Returns the type that torch gives the operator's one result."""
        value = self.node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise RefusedError("")
        return TensorType(to_dtype(value.dtype), self.shape_of(value))

    def shape_of(self, value: torch.Tensor) -> tuple[int, ...]:
        """Returns the shape of a traced tensor, with a size for every symbol."""
        shape = [self.number(dim) for dim in value.shape]
        if any(dim is None for dim in shape):
            raise RefusedError("the shape of its result depends on data")
        return tuple(int(dim) for dim in shape if dim is not None)

    def number(self, value: Any) -> Scalar | None:
        """Returns a traced number, with a size for every symbol; None if it depends on data."""
        if isinstance(value, int | float):
            return value
        expression = value.node.expr
        if expression.free_symbols - self._sizes.keys():
            return None
        plain = expression.xreplace({symbol: sympy.Integer(size) for symbol, size in self._sizes.items()})
        if isinstance(value, torch.SymInt):
            return Size(plain) if expression.free_symbols else int(plain)
        return bool(plain) if isinstance(value, torch.SymBool) else float(plain)

    def promoted(self) -> DType:
        """Returns the dtype that torch computes in for the operator's first two arguments."""
        values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in self.node.args[:2]]
        first, second = (value if isinstance(value, torch.Tensor) else self.number(value) for value in values)
        return to_dtype(torch.result_type(first, second))

    def cast(self, value: str, dtype: DType) -> str:
        """Returns the value in another element type: itself where it has that type. Floats become integers as on x86, where torch ran."""
        return value if self.type(value).dtype is dtype else self.step("cast", [value], to=dtype.value, f2i="wrap_x86")

    def scalar(self, value: Scalar, dtype: DType) -> str:
        """Returns a 0-d constant, equal ones are one; of a :class:`Size` the last element of an ``iota``, for no constant may vary."""
        if isinstance(value, Size):
            counted = self.step("iota", [], dtype="i64", shape=(value + 1,), axis=0)
            last = self.step("slice", [counted], start=(int(value),), limit=(value + 1,), strides=(1,))
            return self.cast(self.reshape(last, []), dtype)
        array = np.asarray(value).astype(dtype.numpy)
        key = (dtype, repr(array.item()))
        if key not in self._scalars:
            self._scalars[key] = self.builder.constant(array, "scalar")
        return self._scalars[key]

    def operand(self, value: str | Scalar, dtype: DType) -> str:
        """Returns a tensor or number argument as a value of ``dtype``."""
        return self.cast(value, dtype) if isinstance(value, str) else self.scalar(value, dtype)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Returns the value in another shape: itself where it has that shape."""
        return value if self.type(value).shape == tuple(shape) else self.step("reshape", [value], shape=tuple(shape))

    def axis(self, value: str, dim: int) -> int:
        """Returns a torch dim as a non-negative axis; of a 0-d tensor as of one with one element."""
        return dim % max(self.type(value).rank, 1)

    def value(self, operand: Any) -> Any:
        """Returns an operand of a node: a known tensor as a constant, anything else as it is."""
        return self.constant(operand) if isinstance(operand, Known) else operand

    def constant(self, known: Known) -> str:
        """Returns the value of a known tensor. Tied weights are one constant; what an ``expand`` made big is stored small and broadcast."""
        tensor = known.tensor
        identity = identity_of(tensor) or known.name
        if identity in self._constants:
            return self._constants[identity]
        to_dtype(tensor.dtype)
        stored = tensor.detach()
        if known.key is None:
            for dim, stride in enumerate(tensor.stride()):
                stored = stored.narrow(dim, 0, 1) if stride == 0 and stored.shape[dim] > 1 else stored
            if stored.numel() > 1 and bool((stored == stored.flatten()[0]).all()):
                stored = stored.flatten()[0].reshape([1] * stored.dim())
        array = stored.contiguous().numpy()
        value = self.builder.constant(array, known.name if known.key else self._prefix + known.name, key=known.key)
        if array.shape != tuple(tensor.shape):
            value = self.builder.add("broadcast", [value], name=f"{known.name}.broadcast", shape=tuple(tensor.shape))
        self._constants[identity] = value
        self._known[value] = tensor.detach().numpy()
        return value

    def known(self, value: str) -> np.ndarray | None:
        """Returns the elements of a value that is known at export, None if it depends on the inputs."""
        return self._known.get(value)
