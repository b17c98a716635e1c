"""What a lowering works with: the table, and the context that adds nodes for one ONNX node and computes what is known at import.

A value is a string: the name of a value of the graph being built, or of a *known* array (an initializer, a constant, or what follows from
them alone). What an op makes of known operands alone is computed at once, by the op's NumPy definition, and is known again; a known array
enters the graph as a constant when a node that was not computed reads it. So arithmetic on shapes leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from exporters.from_onnx.reading import dense_of
from exporters.lowering import LoweringTable
from rml_exec.ir.builder import INLINE_ELEMENTS, BodyBuilder, plain_value
from rml_exec.ir.names import Names
from rml_exec.ops import OpDef, get_op
from rml_exec.types import DType, TensorType

if TYPE_CHECKING:
    from exporters.from_onnx.importer import Walker

__all__ = ["ONNX", "Body", "Context", "Known", "RefusedError", "Store"]

ONNX = LoweringTable()
"""Operator -> lowering: ``Conv`` for the domain ai.onnx, ``com.microsoft.FusedMatMul`` for others.

It is called as ``lowering(ctx, node)`` and returns the name of the result, or a tuple of names in the order of the node's outputs, with None
for one that is not computed; the tuple may be shorter where the other outputs are not wanted.
"""

_LARGE = 1024
"""Of more elements than that, repeated ones are stored once and repeated by a node, which costs nothing: it is a view."""

_LARGEST = 1 << 24
"""A result of more elements is not computed at import."""


class RefusedError(Exception):
    """Raised by a lowering: the reason why this use of the operator cannot be imported."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """An array known at import.

    Attributes:
        array: its elements; never written to.
        label: what to call it in the graph.
        key: its name in the weights file, for an initializer.
        origin: the op, operands and attributes that it was computed by, if it was.
    """

    array: np.ndarray
    label: str
    key: str | None = None
    origin: tuple[str, tuple[str | None, ...], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class Store:
    """The known arrays of an import, which the graph and its functions share.

    Attributes:
        varying: labels of arrays that depend on the sizes of symbolic dims: no constant may hold them.
    """

    varying: frozenset[str] = frozenset()
    known: dict[str, Known] = field(default_factory=dict)
    _keys: Names = field(default_factory=Names)
    _key_of: dict[str, str] = field(default_factory=dict)

    def add(self, known: Known) -> str:
        """Returns the name of a new known value. It holds a colon, so that no value of the graph has that name."""
        value = f"{known.label}:{len(self.known)}"
        self.known[value] = known
        return value

    def key(self, value: str) -> str:
        """Returns the name that a known value has in the weights file, the same in every body that reads it."""
        if value not in self._key_of:
            known = self.known[value]
            self._key_of[value] = self._keys.take(known.key or known.label)
        return self._key_of[value]


class Body:
    """A graph or function being built, with the constants that its nodes read."""

    def __init__(self, builder: BodyBuilder, store: Store) -> None:
        self.builder = builder
        self.store = store
        self._placed: dict[str, str] = {}
        self._small: dict[tuple[DType, tuple[int, ...], bytes], str] = {}

    def operand(self, value: str) -> str:
        """Returns the name in this body of a value; a known one becomes a constant of it."""
        if value not in self.store.known:
            return value
        if value not in self._placed:
            self._placed[value] = self._place(value)
        return self._placed[value]

    def placed(self, value: str) -> str | None:
        """Returns the name in this body of a value, None for a known one that no node has read."""
        return self._placed.get(value) if value in self.store.known else value

    def type(self, value: str) -> TensorType:
        known = self.store.known.get(value)
        return self.builder.type(value) if known is None else TensorType.of(known.array)

    def _place(self, value: str) -> str:
        known = self.store.known[value]
        array, label = known.array, known.label
        if value in self.store.varying:
            return self._computed(known)
        if known.origin is not None and known.origin[0] == "broadcast" and array.size > _LARGE:
            return self._node(label, *known.origin)
        if known.key is None and array.size > _LARGE and bool((array == array.flat[0]).all()):
            single = self.builder.constant(array.reshape(-1)[:1].reshape(()), label)
            return self._node(label, "broadcast", [single], {"shape": array.shape})
        if array.size > INLINE_ELEMENTS:
            return self.builder.constant(array, label, key=self.store.key(value))
        content = DType.of(array.dtype), array.shape, array.tobytes()
        if content not in self._small:
            self._small[content] = self.builder.constant(array, label)
        return self._small[content]

    def _node(self, label: str, op: str, operands: Sequence[str | None], attrs: Mapping[str, Any]) -> str:
        """Adds a node for a known value."""
        names = [None if operand is None else self.operand(operand) for operand in operands]
        added: str = self.builder.add(op, names, name=label, **attrs)
        return added

    def _computed(self, known: Known) -> str:
        """Returns the value of nodes that compute an array from the sizes of symbolic dims, which only attributes of nodes can hold."""
        if known.origin is not None:
            return self._node(known.label, *known.origin)
        array, label = known.array, known.label
        dtype = DType.of(array.dtype)
        if array.size and bool((array == array.flat[0]).all()):
            return self._node(label, "broadcast", [self._size(label, array.flat[0], dtype)], {"shape": array.shape})
        if array.ndim == 1 and array.dtype.kind in "iu" and array.size > 2 and len(set(np.diff(array.astype(np.int64)))) == 1:
            counted = self._node(label, "iota", [], {"dtype": dtype.value, "shape": array.shape, "axis": 0})
            step, start = (self._size(label, number, dtype) for number in (int(array[1]) - int(array[0]), array[0]))
            return self._node(label, "add", [self._node(label, "mul", [counted, step], {}), start], {})
        if array.size and array.size <= INLINE_ELEMENTS and array.dtype.kind in "iu":
            sizes = [self._size(label, number, dtype) for number in array.flat]
            rows = [self._node(label, "reshape", [size], {"shape": (1,)}) for size in sizes]
            return self._node(label, "reshape", [self._node(label, "concat", rows, {"axis": 0})], {"shape": array.shape})
        return self.builder.constant(array, label)  # what differs is reported when the graphs of all sizes are compared

    def _size(self, label: str, number: Any, dtype: DType) -> str:
        """Returns a 0-d value: the last element of an ``iota``, whose shape may depend on dims."""
        if number != int(number):
            return self.builder.constant(np.asarray(number), label)
        size = abs(int(number))
        counted = self._node(label, "iota", [], {"dtype": "i64", "shape": (size + 1,), "axis": 0})
        last = self._node(label, "slice", [counted], {"start": (size,), "limit": (size + 1,), "strides": (1,)})
        last = self._node(label, "reshape", [last], {"shape": ()})
        last = self._node(label, "neg", [last], {}) if number < 0 else last
        return last if dtype is DType.I64 else self._node(label, "cast", [last], {"to": dtype.value, "f2i": "wrap_x86"})


class Context:
    """One node being lowered.

    Attributes:
        node: the ONNX node.
        opset: version of the operator set of the node's domain.
        inputs: the values of the node's inputs, None for one that is absent.
        source: the node's origin for the graph.
        walker: the walk over the graph or function that the node is in.
        scope: what the names around the node stand for, for its subgraphs.
        name: the node's name in the graph.
    """

    def __init__(
        self,
        walker: Walker,
        node: onnx.NodeProto,
        opset: int,
        inputs: Sequence[str | None],
        source: Mapping[str, str],
        scope: Mapping[str, str | None],
    ) -> None:
        self.walker = walker
        self.scope = scope
        self.node = node
        self.opset = opset
        self.inputs = list(inputs)
        self.source = dict(source)
        self._body: Body = walker.body
        self._attrs = {attribute.name: attribute for attribute in node.attribute}
        self._wishes = [walker.prefix + name for name in node.output if name]
        self.name = walker.prefix + node.name if node.name else (self._wishes or [walker.prefix + node.op_type])[0]

    def input(self, index: int) -> str | None:
        """Returns the value of an input, None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def need(self, index: int) -> str:
        """Returns the value of an input that must be there."""
        value = self.input(index)
        if value is None:
            raise RefusedError(f"input {index} must be given")
        return value

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute: int, float, str, a list of these, an array, or a GraphProto; ``default`` where it is absent."""
        attribute = self._attrs.get(name)
        if attribute is None:
            return default
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return self.walker.shared.model.array(value)
        if isinstance(value, onnx.SparseTensorProto):
            return dense_of(self.walker.shared.model, value)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            return list(value)
        if attribute.type == onnx.AttributeProto.STRINGS:
            return [text.decode("utf-8", "replace") for text in value]
        return value

    def known(self, value: str | None) -> np.ndarray | None:
        """Returns the elements of a value that is known at import, None if it depends on the inputs (or is absent)."""
        known = None if value is None else self._body.store.known.get(value)
        return None if known is None else known.array

    def integers(self, index: int, what: str) -> list[int] | None:
        """Returns the elements of an input, None where it is absent; ``what`` names it in the refusal of one that is not known."""
        value = self.input(index)
        if value is None:
            return None
        array = self.known(value)
        if array is None:
            raise RefusedError(f"its {what} depends on the inputs")
        if array.dtype.kind == "f" and not bool((array == np.floor(array)).all()):
            raise RefusedError(f"its {what} must be whole numbers, not {array.reshape(-1).tolist()}")
        return [int(element) for element in array.reshape(-1)]

    def type(self, value: str) -> TensorType:
        """Returns the type of a value."""
        return self._body.type(value)

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        """Returns a known value."""
        array = np.asarray(array)
        try:
            DType.of(array.dtype)
        except KeyError:
            raise RefusedError(f"{array.dtype} is not supported") from None
        return self._body.store.add(Known(array, name or (self._wishes or [self.name])[0]))

    def add(self, op: str, operands: Sequence[str | None], **attrs: Any) -> Any:
        """Adds a node that gives one of the operator's results, named after the operator, its values after the operator's outputs.

        Returns:
            The name of the op's result, or a tuple if it has several. They are known if all operands are.

        Raises:
            RefusedError: operands or attributes that the op does not allow.
        """
        return self._node(self.name, op, operands, attrs, result=True)

    def step(self, op: str, operands: Sequence[str | None], **attrs: Any) -> Any:
        """Adds a node that the operator needs on the way, named after the operator and the op; otherwise as :meth:`add`."""
        return self._node(f"{self.name}.{op}", op, operands, attrs, result=False)

    def call(self, op: str, operands: Sequence[str | None], results: Sequence[str], **attrs: Any) -> tuple[str, ...]:
        """Adds a node that runs functions of the graph and returns its results.

        Args:
            op: ``cond``, ``while`` or ``scan``.
            operands: values, known ones too.
            results: names wished for the results, empty where there is none.
            **attrs: attributes.
        """
        names = [None if operand is None else self._body.operand(operand) for operand in operands]
        wished = [self.walker.prefix + name if name else f"{self.name}.{index}" for index, name in enumerate(results)]
        added = self._body.builder.add(op, names, name=self.name, source=self.source, outputs=wished, **attrs)
        return (added,) if isinstance(added, str) else tuple(added)

    def _node(self, name: str, op: str, operands: Sequence[str | None], attrs: Mapping[str, Any], *, result: bool) -> Any:
        record = get_op(op)
        if op == "linear":
            operands, attrs = self._with_stored_weight(operands, attrs)
        wish = None
        if result and len(record.outputs) == 1 and not record.outputs[0].endswith("*") and self._wishes:
            wish = self._wishes.pop(0)
        folded = self._folded(record, operands, attrs, wish or name)
        if folded is not None:
            return folded[0] if len(folded) == 1 else folded
        names = [None if operand is None else self._body.operand(operand) for operand in operands]
        return self._body.builder.add(op, names, name=name, source=self.source, outputs=[wish] if wish else None, **attrs)

    def _with_stored_weight(
        self, operands: Sequence[str | None], attrs: Mapping[str, Any]
    ) -> tuple[Sequence[str | None], Mapping[str, Any]]:
        """Returns operands and attributes of a ``linear`` by the weight that a transposed one was made of: it is not stored twice then."""
        x, weight, *bias = operands
        known = self._body.store.known.get(weight or "")
        if known is None or known.origin is None or known.origin[0] != "transpose" or known.array.ndim != 2:
            return operands, attrs
        stored = known.origin[1][0] if known.origin[2]["perm"] == (1, 0) else weight
        layout = attrs["weight_layout"] if stored == weight else {"oi": "io", "io": "oi"}[attrs["weight_layout"]]
        return [x, stored, *bias], {**attrs, "weight_layout": layout}

    def _folded(self, op: OpDef, operands: Sequence[str | None], attrs: Mapping[str, Any], label: str) -> tuple[str, ...] | None:
        """Returns what the op makes of known operands; None if one is not known, or the result is too large to compute it here."""
        store = self._body.store
        if not all(operand is None or operand in store.known for operand in operands):
            return None
        if any(attr.kind in ("function", "functions") for attr in op.attrs.values()):
            return None
        plain = {name: plain_value(value) for name, value in attrs.items()}
        types = op.infer_types(f"{op.name} '{label}'", [None if operand is None else self.type(operand) for operand in operands], plain)
        if sum(type_.size for type_ in types) > _LARGEST:
            copies = op.name == "reshape" and not store.known[str(operands[0])].array.flags.c_contiguous
            if copies or not op.view:
                return None
        arrays = op.run_reference([self.known(operand) for operand in operands], plain, f"{op.name} '{label}'")
        labels = [label] if len(arrays) == 1 else [f"{label}.{index}" for index in range(len(arrays))]
        origin = (op.name, tuple(operands), plain) if len(arrays) == 1 else None
        return tuple(store.add(Known(np.asarray(array), text, origin=origin)) for array, text in zip(arrays, labels, strict=True))

    def cast(self, value: str, dtype: DType) -> str:
        """Returns the value in another element type: itself where it has that type. Floats become integers as on x86."""
        if self.type(value).dtype is dtype:
            return value
        cast: str = self.step("cast", [value], to=dtype.value, f2i="wrap_x86")
        return cast

    def scalar(self, number: float | bool | np.generic, dtype: DType) -> str:
        """Returns a known 0-d value."""
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(number).astype(dtype.numpy), f"{self.name}.scalar")

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Returns the value in another shape: itself where it has that shape."""
        if self.type(value).shape == tuple(shape):
            return value
        reshaped: str = self.step("reshape", [value], shape=tuple(int(dim) for dim in shape))
        return reshaped

    def axis(self, axis: int, rank: int) -> int:
        """Returns an axis counted from the front; refuses one that is out of range."""
        if not -rank <= axis < max(rank, 1):
            raise RefusedError(f"axis {axis} is out of range for {rank} axes")
        return int(axis) % max(rank, 1)

    def output_wanted(self, index: int) -> bool:
        """True if the node's output of this index has a name."""
        return index < len(self.node.output) and bool(self.node.output[index])
