"""What a lowering to ONNX works with: the model under construction, the values of a scope, and one node of the graph.

Values are lazy in two ways, so that no node moves data without need. A value may be held in another order of axes than the graph says
(``order``: its tensor is the value transposed by that permutation), and is transposed only for a reader that needs it otherwise. A value
that a ``broadcast`` made may be held unstretched, for ONNX's elementwise operators stretch by themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx

from exporters.lowering import LoweringTable
from rml_exec.ir.dims import Expr
from rml_exec.ir.graph import Constant, Function, Node
from rml_exec.ir.names import Names
from rml_exec.types import DType, TensorType

__all__ = ["ELEMENT_TYPES", "ONNX", "Context", "Held", "Laid", "Model", "RefusedError", "Scope", "Shape", "channels_first", "long_axes"]

ONNX = LoweringTable()
"""Op of the graph -> function that emits its ONNX nodes."""

_COPIED_BYTES = 1 << 20
"""A larger constant that the file holds already is transposed by a node (which runtimes fold) and not stored again."""

Shape = tuple["int | Expr", ...]
Order = tuple[int, ...]

ELEMENT_TYPES: Mapping[DType, int] = {
    DType.F32: onnx.TensorProto.FLOAT,
    DType.F64: onnx.TensorProto.DOUBLE,
    DType.F16: onnx.TensorProto.FLOAT16,
    DType.BF16: onnx.TensorProto.BFLOAT16,
    DType.I8: onnx.TensorProto.INT8,
    DType.I16: onnx.TensorProto.INT16,
    DType.I32: onnx.TensorProto.INT32,
    DType.I64: onnx.TensorProto.INT64,
    DType.U8: onnx.TensorProto.UINT8,
    DType.U16: onnx.TensorProto.UINT16,
    DType.U32: onnx.TensorProto.UINT32,
    DType.U64: onnx.TensorProto.UINT64,
    DType.BOOL: onnx.TensorProto.BOOL,
}


class RefusedError(Exception):
    """Raised by a lowering: why this use of the op cannot be written as ONNX."""


class Laid(NamedTuple):
    """A result of a lowering that holds its value in another order of axes: the tensor is the value transposed by ``order``."""

    name: str
    order: Order


@dataclass(slots=True)
class Held:
    """A value of the graph and the ONNX tensors that hold it.

    Attributes:
        type: its type; symbolic dims have the sizes of their hints.
        shape: its shape, with expressions where it depends on dims.
        tensors: order of axes -> ONNX name; ``()`` is the order of the graph.
        array: its elements, where they are known.
        key: what tells an array apart from others: the name of its constant, or None.
        base: the value that stretches to this one, where it is a broadcast.
    """

    type: TensorType
    shape: Shape
    tensors: dict[Order, str] = field(default_factory=dict)
    array: np.ndarray | None = None
    key: str | None = None
    base: Held | None = None

    @property
    def order(self) -> Order:
        """The order of axes that costs nothing: that of the graph where it is there."""
        return () if () in self.tensors or not self.tensors else next(iter(self.tensors))

    def copy(self) -> Held:
        """Returns it for an inner graph: what is made there must not be seen outside."""
        return Held(self.type, self.shape, dict(self.tensors), self.array, self.key, None if self.base is None else self.base.copy())


def _normal(order: Sequence[int]) -> Order:
    return () if list(order) == list(range(len(order))) else tuple(order)


def channels_first(rank: int) -> Order:
    """Returns the order in which a channels-last value of this rank has its channels after the batch axis."""
    return (0, rank - 1, *range(1, rank - 1))


def long_axes(shape: Shape, order: Sequence[int]) -> list[int]:
    """Returns the axes that are not known to have size 1, in an order: two orders with one list of them hold the same bytes."""
    return [axis for axis in order or range(len(shape)) if shape[axis] != 1]


class Model:
    """What all scopes share: names, initializers, the functions of the graph, and the sizes of symbolic dims.

    ``name`` and ``node_name`` hand out tensor and node names that nothing has yet, the wanted one if possible.

    Args:
        opset: version of the ONNX operator set.
        edge_cases: whether NaN and out-of-range indices are followed where it costs nodes in operators that models spend their time in.
        functions: functions of the graph by name, each with its symbolic form.
        dims: symbolic dim -> (graph input, axis) whose size it is.
    """

    def __init__(
        self, opset: int, edge_cases: bool, functions: Mapping[str, tuple[Function, Function]], dims: Mapping[str, tuple[str, int]]
    ):
        self.opset = opset
        self.edge_cases = edge_cases
        self.functions = functions
        self.initializers: list[onnx.TensorProto] = []
        self.top = Scope(self)
        self._dims = dims
        self.name = Names().take
        self.node_name = Names().take
        self._arrays: dict[object, str] = {}
        self._sizes: dict[str, str] = {}

    def initializer(self, array: np.ndarray, dtype: DType | None = None, *, key: object = None, name: str = "constant") -> str:
        """Returns the name of an initializer with these elements; equal small ones, and those of one key, are stored once."""
        dtype = dtype or DType.of(array.dtype)
        small = key is None and array.nbytes <= 4096
        identity = (dtype, array.shape, array.tobytes()) if small else object() if key is None else key
        if identity not in self._arrays:
            tensor = onnx.TensorProto(data_type=ELEMENT_TYPES[dtype], dims=array.shape, name=self.name(name))
            tensor.raw_data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            self.initializers.append(tensor)
            self._arrays[identity] = tensor.name
        return self._arrays[identity]

    def stored(self, key: object) -> str | None:
        """Returns the initializer of this key, if there is one already."""
        return self._arrays.get(key)

    def size(self, expression: Expr) -> str:
        """Returns the name of an i64[1] with the value of an expression over dims, computed from the sizes of the inputs."""
        return self._evaluated(ast.parse(expression.text, mode="eval").body)

    def _evaluated(self, tree: ast.AST) -> str:
        text = ast.unparse(tree)
        if text not in self._sizes:
            self._sizes[text] = self._evaluate(tree)
        return self._sizes[text]

    def _evaluate(self, tree: ast.AST) -> str:
        emit = self.top.emit
        match tree:
            case ast.Constant(value=int(value)):
                return self.initializer(np.array([value], np.int64))
            case ast.Name(id=name):
                if name not in self._dims:
                    raise RefusedError(f"dim '{name}' is the size of no input axis by itself")
                operand, axis = self._dims[name]
                return emit("Shape", operand, start=axis, end=axis + 1, name=f"dims/{name}")
            case ast.UnaryOp(operand=operand_tree):
                return emit("Neg", self._evaluated(operand_tree))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._evaluated(left), self._evaluated(right)
                match op:
                    case ast.FloorDiv():  # Div truncates
                        return emit("Div", emit("Sub", a, emit("Mod", a, b)), b)
                    case ast.Mod():
                        return emit("Mod", a, b)
                return emit({ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}[type(op)], a, b)
            case ast.Call(func=ast.Name(id=function), args=arguments):
                return emit(function.capitalize(), *map(self._evaluated, arguments))
        raise AssertionError(ast.dump(tree))


class Scope:
    """The nodes of one ONNX graph (the model's, or a subgraph's) and the values that a body of ours has in it."""

    def __init__(self, model: Model, nodes: list[onnx.NodeProto] | None = None, prefix: str = "") -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = [] if nodes is None else nodes
        self.values: dict[str, Held] = {}
        self.prefix = prefix
        self.label = ""
        self._made_once: dict[object, str] = {}

    def inlined(self, name: str) -> Scope:
        """Returns a scope for a function's body whose nodes go into the same ONNX graph."""
        return Scope(self.model, self.nodes, f"{self.prefix}{name}/")

    def inner(self, name: str) -> Scope:
        """Returns a scope for a subgraph of an ONNX node, whose name its nodes carry."""
        return Scope(self.model, None, f"{self.prefix}{name}/")

    def emit(self, op: str, *inputs: str | None, outputs: int = 1, name: str | None = None, **attrs: Any) -> Any:
        """Appends an ONNX node and returns the name of its result, or a tuple of names; attributes that are None are left out."""
        base = name or f"{self.prefix}{self.label}/{op}"
        results = [self.model.name(base) for _ in range(outputs)]
        given = [operand or "" for operand in inputs]
        while given and not given[-1]:
            given.pop()
        made = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(op, given, results, name=self.model.node_name(base), **made))
        return results[0] if outputs == 1 else tuple(results)

    def once(self, key: object, make: Callable[[], str]) -> str:
        """Returns what ``make`` emits, the same tensor for every node of this scope that asks for this key."""
        if key not in self._made_once:
            self._made_once[key] = make()
        return self._made_once[key]

    def constant(self, values: Any, dtype: DType | None = None) -> str:
        """Returns the name of an initializer; Python numbers need ``dtype``."""
        array = np.asarray(values, None if dtype is None or dtype is DType.BF16 else dtype.numpy)
        return self.model.initializer(array, dtype)

    def ints(self, values: Sequence[int | Expr]) -> str:
        """Returns the name of an i64 vector, computed at run time where its elements depend on dims."""
        if all(isinstance(value, int) for value in values):
            return self.constant(np.array(values, np.int64))
        parts = [self.model.size(value) if isinstance(value, Expr) else self.constant(np.array([value], np.int64)) for value in values]
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=0)

    def tensor(self, held: Held, order: Sequence[int] = ()) -> str:
        """Returns the ONNX tensor that holds a value, transposed by ``order``."""
        order = _normal(order)
        if order not in held.tensors:
            held.tensors[order] = self._made(held, order)
        return held.tensors[order]

    def _made(self, held: Held, order: Order) -> str:
        if held.array is not None:
            key = None if held.key is None else (held.key, order)
            stored = None if key is None else self.model.stored((held.key, ()))
            if order and stored and held.array.nbytes > _COPIED_BYTES:
                return self.emit("Transpose", stored, perm=order)
            array = np.transpose(held.array, order) if order else held.array
            suffix = "." + "".join(map(str, order)) if order else ""
            return self.model.initializer(array, held.type.dtype, key=key, name=(held.key or "constant") + suffix)
        if held.tensors:
            have, name = next(iter(held.tensors.items()))
            have, want = have or tuple(range(held.type.rank)), order or tuple(range(held.type.rank))
            if long_axes(held.shape, have) == long_axes(held.shape, want) and all(isinstance(size, int) for size in held.shape):
                return self.emit("Reshape", name, self.ints([held.shape[axis] for axis in want]))
            return self.emit("Transpose", name, perm=[have.index(axis) for axis in want])
        assert held.base is not None
        shape = [held.shape[axis] for axis in order] if order else held.shape
        follows = order if held.base.type.rank == held.type.rank else ()
        if order and not follows:
            held.tensors[()] = self._made(held, ())
            return self._made(held, order)
        return self.emit("Expand", self.tensor(held.base, follows), self.ints(shape))

    def loose(self, held: Held, rank: int, order: Order) -> str:
        """Returns a tensor that stretches to the value, for an elementwise operator whose result has ``rank`` axes in ``order``."""
        source = held.base or held
        if not order:
            return self.tensor(source)
        if source.type.rank == rank:
            return self.tensor(source, order)
        if source.type.rank == 0:
            return self.tensor(source)
        ones = (1,) * (rank - source.type.rank)
        if source.array is not None:
            key = None if source.key is None else (source.key, ones, order)
            return self.model.initializer(source.array.reshape(ones + source.array.shape).transpose(order), source.type.dtype, key=key)
        wide = Held(TensorType(source.type.dtype, ones + source.type.shape), ones + source.shape)
        wide.tensors[()] = self.emit("Reshape", self.tensor(source), self.ints(wide.shape))
        return self.tensor(wide, order)

    def column(self, held: Held, behind: int) -> str:
        """Returns a vector with axes of size 1 behind it."""
        if held.array is not None:
            key = None if held.key is None else (held.key, "column", behind)
            return self.model.initializer(held.array.reshape(-1, *(1,) * behind), held.type.dtype, key=key)
        return self.emit("Reshape", self.tensor(held), self.ints([-1] + [1] * behind)) if behind else self.tensor(held)


class Context:
    """One node of the graph, as its lowering sees it.

    ``attrs`` and shapes may hold expressions over dims; what needs plain numbers asks for ``sizes``, which refuses expressions.
    """

    def __init__(self, scope: Scope, node: Node, symbolic: Node, walk: Callable[..., list[Held]]) -> None:
        self.scope = scope
        self.node = node
        self.symbolic = symbolic
        self.model = scope.model
        self.opset = scope.model.opset
        self.edge_cases = scope.model.edge_cases
        self.emit = scope.emit
        self.constant = scope.constant
        self.ints = scope.ints
        self.operands = [None if name is None else scope.values[name] for name in node.inputs]
        self._walk = walk

    def held(self, index: int) -> Held:
        """Returns operand ``index``, which is present."""
        held = self.operands[index]
        assert held is not None
        return held

    def has(self, index: int) -> bool:
        """True if an optional operand is there."""
        return self.operands[index] is not None

    def input(self, index: int, order: Sequence[int] = ()) -> str:
        """Returns the tensor of operand ``index``, transposed by ``order``."""
        return self.scope.tensor(self.held(index), order)

    def optional(self, index: int) -> str | None:
        """Returns the tensor of operand ``index``, None where it is absent."""
        return self.input(index) if self.has(index) else None

    def known(self, index: int) -> np.ndarray | None:
        """Returns the elements of operand ``index`` where they are known."""
        held = self.operands[index]
        return None if held is None else held.array

    def dtype(self, index: int = 0) -> DType:
        return self.held(index).type.dtype

    def rank(self, index: int = 0) -> int:
        return self.held(index).type.rank

    def shape(self, index: int = 0) -> Shape:
        return self.held(index).shape

    def sizes(self, index: int = 0) -> tuple[int, ...]:
        """Returns the shape of operand ``index``; refuses one that depends on dims."""
        return tuple(self.fixed(size, "its operand's shape") for size in self.shape(index))

    def size(self, axis: int, index: int = 0) -> int:
        """Returns one size of operand ``index``; refuses one that depends on dims."""
        return self.fixed(self.shape(index)[axis], f"axis {axis} of its operand")

    def fixed(self, size: int | Expr, what: str) -> int:
        """Returns a plain number; refuses an expression."""
        if isinstance(size, Expr):
            raise RefusedError(f"{what} depends on dims ({size}), which ONNX takes as a number only")
        return size

    def number(self, value: float, index: int = 0) -> str:
        """Returns a 0-d constant of the element type of operand ``index``."""
        return self.constant(value, self.dtype(index))

    def cast(self, name: str, dtype: DType) -> str:
        return self.emit("Cast", name, to=ELEMENT_TYPES[dtype])

    def order(self, index: int = 0) -> Order:
        """Returns the order of axes in which operand ``index`` is at hand, as a full permutation."""
        held = self.held(index)
        return held.order or tuple(range(held.type.rank))

    def result(self, index: int = 0) -> tuple[TensorType, Shape]:
        """Returns type and shape of result ``index``."""
        return self.node.outputs[index].type, self.symbolic.outputs[index].type.shape

    def needs_opset(self, version: int, what: str) -> None:
        """Refuses an older operator set than ``version``."""
        if self.opset < version:
            raise RefusedError(f"{what} needs opset {version}, this is {self.opset}")

    def subgraph(self, function: str, label: str, operands: Sequence[Held]) -> tuple[Scope, list[Held]]:
        """Walks a function in a scope for a subgraph; returns the scope and the results, for which the caller names outputs."""
        scope = self.scope.inner(f"{self.node.name}/{label}")
        return scope, self._walk(scope, function, [operand.copy() for operand in operands])

    def inline(self, function: str, operands: Sequence[Held], label: str = "") -> list[Held]:
        """Walks a function into the scope of this node and returns its results."""
        return self._walk(self.scope.inlined(self.node.name + label), function, list(operands))

    def body(self, function: str, scope: Scope, operands: Sequence[Held]) -> list[Held]:
        """Walks a function into a scope of a subgraph and returns its results."""
        return self._walk(scope, function, list(operands))


def constants_of(constants: Sequence[Constant], prefix: str) -> Iterator[tuple[str, Held]]:
    """Yields (name, value) of the constants of a body."""
    for constant in constants:
        yield constant.name, Held(constant.type, constant.type.shape, array=constant.data, key=constant.key or f"{prefix}{constant.name}")
