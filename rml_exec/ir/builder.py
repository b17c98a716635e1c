"""Builds a graph node by node: names are made legal and unique, output types are inferred at once, the result is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rml_exec.errors import InputError, VerifyError
from rml_exec.ir.graph import Constant, Function, Graph, Node, Output, Value
from rml_exec.ir.names import Names
from rml_exec.ir.verify import verify_graph
from rml_exec.types import DType, TensorType

__all__ = ["INLINE_ELEMENTS", "BodyBuilder", "FunctionBuilder", "GraphBuilder", "Infer", "plain_value"]

INLINE_ELEMENTS = 16
"""A constant of at most so many elements may stand inline in the JSON."""

Infer = Callable[[str, str, Sequence[TensorType | None], Mapping[str, Any], Mapping[str, Function]], tuple[TensorType, ...]]
"""``infer(op, where, operand types, attributes, functions)`` -> output types. Injected, because the records here know nothing of ops."""


@dataclass(slots=True)
class _Functions:
    """The functions of a graph under construction: all its builders, nested ones too, share them."""

    names: Names = field(default_factory=Names)
    built: dict[str, Function] = field(default_factory=dict)


class BodyBuilder:
    """What building a graph and building a function have in common.

    Values are strings: every method that defines one returns its name, which may differ from the name asked for.
    """

    def __init__(self, name: str, infer: Infer, functions: _Functions) -> None:
        self._name = name
        self._infer = infer
        self._functions = functions
        self._value_names, self._node_names = Names(), Names()
        self._types: dict[str, TensorType] = {}
        self._inputs: list[Value] = []
        self._outputs: list[Output] = []
        self._constants: list[Constant] = []
        self._nodes: list[Node] = []

    @property
    def node_count(self) -> int:
        """Number of nodes added so far: what the next one's index will be."""
        return len(self._nodes)

    def input(self, name: str, dtype: str | DType, shape: Sequence[int]) -> str:
        """Adds an input and returns its value name, which is its interface name too."""
        value = Value(self._value_names.take(name), TensorType(_dtype(dtype), tuple(int(dim) for dim in shape)))
        self._inputs.append(value)
        self._types[value.name] = value.type
        return value.name

    def constant(self, array: np.ndarray | float, name: str = "c", *, key: str | None = None, dtype: str | DType | None = None) -> str:
        """Adds a constant and returns its value name.

        Args:
            array: its data; a Python number becomes f64, i64 or bool. A C-contiguous array is not copied: do not write into it afterwards.
            name: what to call the value.
            key: its name in the weights file; two constants of one key are tied. None: inline in the JSON up to 16 elements, else ``name``.
            dtype: element type, needed for bf16 carried as uint16 (arrays of ``ml_dtypes.bfloat16`` are recognised).
        """
        value = self._value_names.take(name)
        constant = _constant(value, np.asarray(array), key, None if dtype is None else _dtype(dtype))
        self._constants.append(constant)
        self._types[value] = constant.type
        return value

    def add(
        self,
        op: str,
        inputs: Sequence[str | None],
        *,
        name: str | None = None,
        source: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        outputs: Sequence[str] | None = None,
        **attrs: Any,
    ) -> Any:
        """Adds a node and returns the name of its output value, or a tuple of names if the op has several.

        Args:
            op: name of the op.
            inputs: value names in operand order, None for an absent optional operand.
            name: name of the node; the op's name when not given. Made unique.
            source: ``op`` and ``where`` of the framework's operator.
            metadata: string -> string.
            outputs: names wished for the output values; the node's name when not given.
            **attrs: every attribute of the op. Lists may stand for tuples, NumPy scalars for Python numbers, DType and Function for their
                names.

        Raises:
            VerifyError: an operand that is not defined.
            TypeInferenceError: operands or attributes that the op does not allow.
        """
        node_name = self._node_names.take(name or op)
        where = f"{op} '{node_name}'" + (f" ({source['where']})" if source and source.get("where") else "")
        for operand in inputs:
            if operand is not None and operand not in self._types:
                raise VerifyError.of(where, f"reads value '{operand}', which is not defined")
        plain = {attr: plain_value(value) for attr, value in attrs.items()}
        operands = [None if operand is None else self._types[operand] for operand in inputs]
        types = self._infer(op, where, operands, plain, self._functions.built)
        wished = outputs or ([node_name] if len(types) == 1 else [f"{node_name}.{index}" for index in range(len(types))])
        if len(wished) != len(types):
            raise VerifyError.of(where, f"has {len(types)} outputs", f"{len(wished)} names for them")
        values = tuple(Value(self._value_names.take(wish), type_) for wish, type_ in zip(wished, types, strict=True))
        self._types.update((value.name, value.type) for value in values)
        self._nodes.append(Node(op, node_name, tuple(inputs), values, plain, dict(metadata or {}), dict(source or {})))
        return values[0].name if len(values) == 1 else tuple(value.name for value in values)

    def output(self, name: str, value: str) -> None:
        """Makes ``value`` a result under the interface name ``name``."""
        self._outputs.append(Output(name, value))

    def function(self, name: str) -> FunctionBuilder:
        """Returns the builder of a function for ``call``, ``cond``, ``while`` or ``scan``; nodes may name the function once it is built.

        A function belongs to the whole graph, wherever it is begun: its name is made unique, and every body built later may call it.
        """
        return FunctionBuilder(self._functions.names.take(name), self._infer, self._functions)

    def type(self, value: str) -> TensorType:
        """Returns the type of a value; raises KeyError for a name that no method returned."""
        return self._types[value]


class FunctionBuilder(BodyBuilder):
    """Makes a :class:`Function` of a graph under construction; :meth:`BodyBuilder.function` returns one."""

    def build(self) -> Function:
        """Adds the function to the graph and returns it: ``b.add("call", [x], function=step.build())``. It is verified with the graph.

        Raises:
            VerifyError: it was built before.
        """
        if self._name in self._functions.built:
            raise VerifyError.of(f"function '{self._name}'", "is built already")
        function = Function(self._name, tuple(self._inputs), tuple(self._outputs), tuple(self._constants), tuple(self._nodes))
        self._functions.built[self._name] = function
        return function


class GraphBuilder(BodyBuilder):
    """Makes a :class:`Graph`. ``rml_exec.GraphBuilder`` is this class with the inference of :mod:`rml_exec.ops` bound."""

    def __init__(
        self, name: str, *, infer: Infer, producer: Mapping[str, Any] | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, infer, _Functions())
        self._producer = dict(producer or {})
        self._metadata = dict(metadata or {})

    def build(self) -> Graph:
        """Returns the verified graph; raises VerifyError listing all that is wrong with it."""
        graph = Graph(
            name=self._name,
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            constants=tuple(self._constants),
            nodes=tuple(self._nodes),
            producer=self._producer,
            functions=dict(self._functions.built),
            metadata=self._metadata,
        )
        verify_graph(graph)
        return graph


def _constant(name: str, array: np.ndarray, key: str | None, dtype: DType | None) -> Constant:
    if array.dtype.name == "bfloat16":
        array, dtype = array.view(np.uint16), DType.BF16
    try:
        type_ = TensorType(dtype or DType.of(array.dtype), array.shape)
    except KeyError:
        raise VerifyError.of(f"constant '{name}'", "element type must be one of the format's", array.dtype) from None
    if array.dtype != type_.dtype.numpy:
        raise VerifyError.of(f"constant '{name}'", f"data must be {type_.dtype.numpy} to be {type_.dtype}", array.dtype)
    data = np.asarray(array, order="C").view()
    data.flags.writeable = False
    return Constant(name, type_, data, key or (None if type_.size <= INLINE_ELEMENTS else name))


def plain_value(value: Any) -> Any:
    """Returns an attribute as nodes hold it: lists as tuples, element types and functions as their names, NumPy scalars as numbers."""
    if isinstance(value, list | tuple):
        return tuple(plain_value(item) for item in value)
    if isinstance(value, DType):
        return value.value
    if isinstance(value, Function):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _dtype(name: str | DType) -> DType:
    try:
        return DType(name)
    except ValueError:
        raise InputError.of("GraphBuilder", f"a dtype must be one of {', '.join(map(str, DType))}", repr(name)) from None
