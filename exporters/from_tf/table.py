"""The table of lowerings, and what a lowering works with: values, and the context that adds nodes for one TensorFlow operation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exporters.lowering import LoweringTable
from rml_exec.ir.builder import INLINE_ELEMENTS, BodyBuilder
from rml_exec.ir.names import Names
from rml_exec.ir.verify import MAX_RANK
from rml_exec.types import DType, TensorType

__all__ = ["TABLE", "Constants", "Context", "Keys", "Known", "RefusalError", "Sizes", "TensorList", "Value", "Variable", "dtype_of"]

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
        varies: True in a symbolic graph for what the sizes of inputs determine: known at each of them, but no constant.
        recipe: if it varies, adds nodes that compute it from the sizes, and returns the name of their result.
    """

    array: np.ndarray
    name: str
    key: str | None = None
    layout: str = ""
    varies: bool = False
    recipe: Callable[[BodyBuilder, Constants], str] | None = None

    @property
    def type(self) -> TensorType:
        return TensorType(dtype_of(self.array.dtype), self.array.shape)


@dataclass(frozen=True, eq=False)
class Variable:
    """A resource tensor: a variable that has not been read, or (``known`` is None) a lookup table or the like."""

    known: Known | None


@dataclass(frozen=True, eq=False)
class TensorList:
    """What a TensorArray is in the graph: elements of one type, all in one value or each on its own.

    Attributes:
        length: number of elements.
        dtype: their element type.
        shape: their shape, None as long as it is not known.
        stacked: all of them along a new leading axis, or None.
        items: if ``stacked`` is None, each of them; None for one that was not written, which reads as zeros.
    """

    length: int
    dtype: DType
    shape: tuple[int, ...] | None
    stacked: str | Known | None = None
    items: tuple[str | Known | None, ...] = ()


Value = str | Known | Variable | TensorList
"""What an operation's input or output is: the name of a value of the graph being built, or what is known without it."""


def dtype_of(dtype: Any) -> DType:
    """Returns the DType of a NumPy (or ml_dtypes) dtype; raises RefusalError where the graph format has none."""
    if np.dtype(dtype).name == "bfloat16":
        return DType.BF16
    if np.dtype(dtype).kind == "O":
        raise RefusalError("strings are no numbers: look them up before the model, and export what comes after")
    try:
        return DType.of(dtype)
    except KeyError:
        raise RefusalError(f"the graph format has no element type {np.dtype(dtype).name}") from None


@dataclass(frozen=True)
class Sizes:
    """A recipe for numbers that are sizes, or sums and products of sizes: each is the last element of an ``iota`` that is 1 longer."""

    array: np.ndarray
    name: str

    def __call__(self, builder: BodyBuilder, _: Constants) -> str:
        parts, array = [], self.array
        for size in map(int, array.reshape(-1)):
            line = builder.add("iota", [], name=self.name, dtype=DType.of(array.dtype), shape=(size + 1,), axis=0)
            parts.append(builder.add("slice", [line], name=self.name, start=(size,), limit=(size + 1,), strides=(1,)))
        joined = parts[0] if len(parts) == 1 else builder.add("concat", parts, name=self.name, axis=0)
        return str(joined if array.shape == (len(parts),) else builder.add("reshape", [joined], name=self.name, shape=array.shape))


Identity = tuple[str, str, tuple[int, ...]] | int


class Keys:
    """The names in the weights file, which a graph and its functions share.

    A variable is stored once per layout and shape, so tied weights stay tied; of other arrays, equal ones are stored once.

    Args:
        variables: the names of all variables.
        symbolic: True if the shapes of constants may depend on the sizes of inputs: then equal small arrays are one constant too.
    """

    def __init__(self, variables: Sequence[str], symbolic: bool) -> None:
        self.symbolic = symbolic
        self._names = Names()
        for key in variables:
            self._names.take(key)
        self._first: dict[str, Identity] = {}
        self._arrays: dict[Identity, str] = {}

    def identity(self, known: Known) -> Identity:
        """Returns what two known tensors have in common if they are one constant."""
        if known.varies:
            return id(known)
        if known.key is not None:
            return known.key, known.layout, known.array.shape
        if known.array.size <= INLINE_ELEMENTS and not self.symbolic:
            return id(known)
        digest = hashlib.sha256(np.ascontiguousarray(known.array).tobytes()).hexdigest()
        return digest, known.array.dtype.name, known.array.shape

    def key(self, known: Known, identity: Identity) -> str | None:
        """Returns its name in the weights file, None if it stands inline."""
        if known.key is None:
            if known.array.size <= INLINE_ELEMENTS:
                return None
            if identity not in self._arrays:
                self._arrays[identity] = self._names.take(known.name)
            return self._arrays[identity]
        if self._first.setdefault(known.key, identity) == identity:
            return known.key
        return ".".join(filter(None, (known.key, known.layout, "x".join(map(str, known.array.shape)) or "scalar")))


class Constants:
    """Known values of one body (the graph or a function) that were needed as operands; each is one constant of that body.

    Args:
        builder: of the body.
        keys: the names in the weights file.
    """

    def __init__(self, builder: BodyBuilder, keys: Keys) -> None:
        self._builder = builder
        self._keys = keys
        self._names: dict[Identity, tuple[str, Known]] = {}

    @property
    def symbolic(self) -> bool:
        """True if graphs for other sizes will be laid over this one."""
        return self._keys.symbolic

    def name(self, known: Known) -> str:
        """Returns the name of the body's constant with this data, which is added the first time."""
        identity = self._keys.identity(known)
        if identity not in self._names:
            made = known.recipe(self._builder, self) if known.recipe is not None else None
            if made is None:
                key = self._keys.key(known, identity)
                made = self._builder.constant(known.array, name=key or known.name, key=key)
            self._names[identity] = made, known  # the Known is kept beside its name: an id means nothing once its object is gone
        return self._names[identity][0]


def line_recipe(array: np.ndarray, name: str) -> Callable[[BodyBuilder, Constants], str] | None:
    """Returns a recipe for an array of equal elements, or of integers that are evenly spaced along one axis; None for any other."""
    flat = array.reshape(-1)
    if array.size < 2:
        return None
    if (flat == flat[0]).all():
        return lambda builder, _: str(builder.add("broadcast", [builder.constant(flat[0], name=name)], name=name, shape=array.shape))
    axis = next(axis for axis in range(array.ndim) if (array.take([0], axis) != array).any())
    line = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)[:, 0]
    step = int(line[1]) - int(line[0]) if array.dtype.kind == "i" else 0
    evenly = line[0] + step * np.arange(len(line), dtype=array.dtype).reshape([-1 if k == axis else 1 for k in range(array.ndim)])
    if not step or (evenly != array).any():
        return None

    def recipe(builder: BodyBuilder, _: Constants) -> str:
        result = builder.add("iota", [], name=name, dtype=DType.of(array.dtype), shape=array.shape, axis=axis)
        for op, amount, neutral in (("mul", step, 1), ("add", line[0], 0)):
            if amount != neutral:
                result = builder.add(op, [result, builder.constant(np.asarray(amount, array.dtype), name=name)], name=name)
        return str(result)

    return recipe


class Context:
    """One TensorFlow operation being lowered.

    Attributes:
        op: the operation.
        xla: True inside a function compiled by XLA, where some operations behave differently.
    """

    def __init__(self, builder: BodyBuilder, constants: Constants, op: Any, name: str, where: str, xla: bool) -> None:
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
        tensor = _tensor(value)
        return tensor.type if isinstance(tensor, Known) else self._builder.type(tensor)

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

    def scalar(self, value: float, like: Value) -> Known:
        """Returns a 0-d constant with the element type of ``like``."""
        dtype = self.type(like).dtype
        if dtype is DType.BF16:
            raise RefusalError("bf16 arithmetic is not supported")
        return Known(np.asarray(value, dtype.numpy), f"{self._name}/constant")

    @property
    def symbolic(self) -> bool:
        """True in a symbolic graph, where a constant must not depend on the size of an axis."""
        return self._constants.symbolic

    def constant(self, array: np.ndarray) -> Known:
        """Returns a constant that belongs to this operation. In a symbolic graph nodes make it where it may depend on a size."""
        name = f"{self._name}/constant"
        recipe = line_recipe(array, name) if self._constants.symbolic else None
        return Known(array, name, varies=recipe is not None, recipe=recipe)

    def size(self, array: np.ndarray, output: int = 0) -> Known:
        """Returns one of the operation's outputs, which holds sizes."""
        import tensorflow as tf

        if not self._constants.symbolic or tf.get_static_value(self.op.outputs[output]) is not None:
            return Known(array, self._name)
        return Known(array, self._name, varies=True, recipe=Sizes(array, self._name))

    def add(self, op: str, *operands: Value | None, **attrs: Any) -> str:
        """Adds a node of one output, named after the operation, and returns the name of its output."""
        (result,) = self.add_all(op, *operands, **attrs)
        return result

    def add_all(self, op: str, *operands: Value | None, **attrs: Any) -> tuple[str, ...]:
        """Adds a node named after the operation and returns the names of all its outputs."""
        names = [self._operand(value) for value in operands]
        results = self._builder.add(op, names, name=self._name, source=self._source, **attrs)
        found = (results,) if isinstance(results, str) else results
        if any(len(self._builder.type(name).shape) > MAX_RANK for name in found):
            raise RefusalError(f"the graph format has at most {MAX_RANK} axes")
        return found

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Returns the operand under another shape; what is known stays known."""
        shape = tuple(shape)
        if self.shape(value) == shape:
            return value
        if isinstance(value, Known):
            return self._moved(value, value.array.reshape(shape), "reshape", shape=shape)
        return self.add("reshape", value, shape=shape)

    def _moved(self, value: Known, array: np.ndarray, op: str, **attrs: Any) -> Known:
        """Returns a known tensor with its elements in another order or shape, which ``op`` gives them where it varies."""
        if not value.varies:
            return replace(value, array=array)

        def recipe(builder: BodyBuilder, constants: Constants) -> str:
            return str(builder.add(op, [constants.name(value)], name=self._name, source=self._source, **attrs))

        return replace(value, array=array, recipe=recipe)

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Returns the operand with its axes reordered. A variable stays as it is stored, other constants are data in the new order."""
        if list(perm) == sorted(perm):
            return value
        if isinstance(value, Known) and value.key is None:
            return self._moved(value, np.ascontiguousarray(value.array.transpose(perm)), "transpose", perm=tuple(perm))
        return self.add("transpose", value, perm=tuple(perm))

    def slice(self, value: Value, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None) -> Value:
        """Returns part of the operand; the operand itself if that is all of it."""
        strides = tuple(strides or (1,) * len(start))
        if not any(start) and tuple(limit) == self.shape(value) and all(stride == 1 for stride in strides):
            return value
        return self.add("slice", value, start=tuple(start), limit=tuple(limit), strides=strides)

    def operand(self, value: Value) -> str:
        """Returns the name of an operand in the graph; a constant is added to it the first time."""
        tensor = _tensor(value)
        return self._constants.name(tensor) if isinstance(tensor, Known) else tensor

    def _operand(self, value: Value | None) -> str | None:
        return None if value is None else self.operand(value)


def _tensor(value: Value) -> str | Known:
    if isinstance(value, Variable):
        raise RefusalError("a variable is used other than by reading it")
    if isinstance(value, TensorList):
        raise RefusalError("a list of tensors is used other than by reading, writing and stacking it")
    return value
