"""The reference interpreter: a graph run node by node through the NumPy definitions of its ops.

In float64 it is the oracle that executors, frameworks and golden files are measured against; in float32 it is what a step without a native
kernel computes. It plans nothing and is slow on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rml_exec.errors import InputError, KernelError
from rml_exec.ir.graph import Body, Function, Graph, Node
from rml_exec.ops import Signature, get_op
from rml_exec.types import DType, TensorType

__all__ = ["ReferenceFunction", "run_reference"]


def run_reference(
    graph: Graph, inputs: Mapping[str, np.ndarray], *, precision: str, want: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Runs a graph, also one that passes have fused, on NumPy alone.

    Args:
        graph: a verified graph.
        inputs: input name -> array of exactly the input's element type and shape; bf16 as its bits in uint16.
        precision: "f32" computes every value in the element type it has in the graph. "f64" widens every float: inputs, constants, and
            what ``cast`` and ``iota`` make, so that the whole graph runs in float64; integers and bool stay as they are.
        want: names of further values to return, such as a node's output inside the graph.

    Returns:
        Interface name of each output -> array, and value name -> array for ``want``: C-contiguous arrays that share no memory with the
        inputs or the graph. Floats are float64 under "f64".

    Raises:
        InputError: an input that is missing, unknown, or of another type; a wanted value the graph lacks or whose name an output has.
        KernelError: values that an op refuses, naming the node and, inside a function, the way to it.
    """
    if precision not in ("f32", "f64"):
        raise InputError.of("run_reference", "precision must be f32 or f64", repr(precision))
    wide = precision == "f64"
    _check_inputs(graph, inputs)
    results = _named_results(graph, want or ())
    given = {value.name: _widen(inputs[value.name], value.type.dtype) if wide else inputs[value.name] for value in graph.inputs}
    arrays = _run_body(graph, given, list(results.values()), graph.functions, wide)
    return {name: np.array(array, order="C") for name, array in zip(results, arrays, strict=True)}


class ReferenceFunction:
    """A function that the reference interpreter runs: the :class:`rml_exec.ops.Callee` of control-flow ops."""

    def __init__(self, function: Function, functions: Mapping[str, Function], *, wide: bool, where: str) -> None:
        """Takes the function, those that it may call, whether floats are float64, and the node that calls it, for errors."""
        self._function, self._functions, self._wide, self._where = function, functions, wide, where

    @property
    def signature(self) -> Signature:
        """The types of its arrays; floats are f64 if it runs wide."""
        narrow = Signature.of(self._function)
        return Signature(_wide_types(narrow.inputs), _wide_types(narrow.outputs)) if self._wide else narrow

    def __call__(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the results; they may be views of the operands."""
        given = {value.name: array for value, array in zip(self._function.inputs, operands, strict=True)}
        try:
            return _run_body(self._function, given, [output.value for output in self._function.outputs], self._functions, self._wide)
        except KernelError as error:
            raise KernelError(f"{self._where}, in function '{self._function.name}': {error}") from error


def _run_body(
    body: Body, given: Mapping[str, np.ndarray], results: Sequence[str], functions: Mapping[str, Function], wide: bool
) -> tuple[np.ndarray, ...]:
    """Returns the values named by ``results``; ``given`` holds the inputs, widened if ``wide``."""
    reads_left = Counter(name for node in body.nodes for name in node.reads())
    reads_left.update(results)
    known = {name: array for name, array in given.items() if reads_left[name]}
    constants = {constant.name: constant for constant in body.constants}

    def read(name: str) -> np.ndarray:
        if name not in known:  # a constant is widened when it is first read: all at once they would take twice their size
            constant = constants[name]
            known[name] = _widen(constant.data, constant.type.dtype) if wide else constant.data
        return known[name]

    for node in body.nodes:
        op, where = get_op(node.op), f"{node.op} '{node.name}'"
        attrs = _wide_attrs(node) if wide else node.attrs
        called = {name: ReferenceFunction(functions[name], functions, wide=wide, where=where) for name in op.calls(attrs)}
        outputs = op.run_reference([None if name is None else read(name) for name in node.inputs], attrs, where, called)
        known.update((value.name, array) for value, array in zip(node.outputs, outputs, strict=True) if reads_left[value.name])
        for name in node.reads():
            reads_left[name] -= 1
            if not reads_left[name]:
                del known[name]
    return tuple(read(name) for name in results)


def _check_inputs(graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
    declared = {value.name: value.type for value in graph.inputs}
    where = f"graph '{graph.name}'"
    if missing := [name for name in declared if name not in inputs]:
        raise InputError.of(where, f"input {', '.join(map(repr, missing))} must be given", f"inputs {sorted(inputs)}")
    if unknown := sorted(set(inputs) - set(declared)):
        raise InputError.of(where, f"has no input {', '.join(map(repr, unknown))}", None, None, f"its inputs are {list(declared)}")
    for name, type_ in declared.items():
        array = inputs[name]
        if array.dtype != type_.dtype.numpy or array.shape != type_.shape:
            got = f"{array.dtype}{list(array.shape)}"
            raise InputError.of(f"{where} input '{name}'", f"must be {type_}", got)


def _named_results(graph: Graph, want: Sequence[str]) -> dict[str, str]:
    """Returns result name -> value name: the outputs, then the wanted values."""
    results = {output.name: output.value for output in graph.outputs}
    types: dict[str, TensorType] = graph.types() if want else {}
    for name in want:
        if name not in types:
            raise InputError.of(f"graph '{graph.name}'", f"has no value '{name}' to return")
        if results.setdefault(name, name) != name:
            raise InputError.of(f"graph '{graph.name}'", f"cannot return value '{name}': an output of another value has that name")
    return results


def _widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns a float array in float64, others as they are."""
    if dtype is DType.BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64) if dtype.is_float else array


def _wide_types(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return tuple(TensorType(DType.F64, type_.shape) if type_.dtype.is_float else type_ for type_ in types)


def _wide_attrs(node: Node) -> Mapping[str, Any]:
    """Returns the attributes with float element types replaced by f64, inside a fused body too."""
    changed: dict[str, Any] = {}
    for name, attr in get_op(node.op).attrs.items():
        value = node.attrs[name]
        if attr.kind == "dtype" and DType(value).is_float:
            changed[name] = DType.F64.value
        elif attr.kind == "body":
            changed[name] = tuple(replace(member, attrs=_wide_attrs(member)) for member in value)
    return {**node.attrs, **changed} if changed else node.attrs
