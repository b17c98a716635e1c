"""A run's arrays: inputs checked and taken as they are, outputs allocated or checked, and the dims that input shapes stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.errors import InputError
from rml_exec.ir.graph import Graph
from rml_exec.loading import check_graph
from rml_exec.types import TensorType

__all__ = ["DimSolver", "Signature", "bind_inputs", "bind_outputs", "graph_for", "input_arrays"]


class Signature:
    """Names and types on one side of a run, with what the check of a good call needs laid out for speed."""

    def __init__(self, types: Mapping[str, TensorType]) -> None:
        self.types = dict(types)
        self.names = tuple(types)
        self.expected = tuple((name, type_.dtype.numpy, type_.shape) for name, type_ in types.items())

    def __str__(self) -> str:
        return ", ".join(f"{name}: {type_}" for name, type_ in self.types.items()) or "none"


def bind_inputs(signature: Signature, inputs: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray]:
    """Returns the inputs in order, as C-contiguous arrays: the caller's own memory where it already is contiguous.

    Raises:
        InputError: listing every input that is missing, extra, or of the wrong dtype or shape.
    """
    if not isinstance(inputs, Mapping | Sequence):
        raise InputError.of("run", "takes the inputs as a mapping by name or a sequence", type(inputs).__name__)
    if len(inputs) == len(signature.names):
        given = map(inputs.get, signature.names) if isinstance(inputs, Mapping) else inputs
        arrays = []
        for array, (_, dtype, shape) in zip(given, signature.expected, strict=True):
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                break
            arrays.append(array)
        else:
            return arrays
    return _check_inputs(signature, inputs)


def _check_inputs(signature: Signature, inputs: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray]:
    """The careful way: converts what can be, and lists all that is wrong."""
    given, problems = input_arrays(signature.names, inputs)
    arrays = []
    for name, wanted in signature.types.items():
        if name in given:
            array = given[name]
            if array.dtype != wanted.dtype.numpy or array.shape != wanted.shape:
                problems.append(f"'{name}' must be {wanted}, got {_describe(array)}{_hint(array, wanted)}")
            else:
                arrays.append(np.ascontiguousarray(array).reshape(wanted.shape))
    if problems:
        raise InputError.of("run", f"inputs must fit the graph ({signature})", "; ".join(problems))
    return arrays


def input_arrays(names: Sequence[str], inputs: Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the inputs as arrays by name, of whatever type they are, and the problems found: missing and extra names.

    Raises:
        InputError: a sequence of the wrong length, or something that is no array, buffer or DLPack tensor.
    """
    if isinstance(inputs, Mapping):
        problems = [f"'{name}' is missing" for name in names if name not in inputs]
        problems += [f"'{name}' is not an input" for name in inputs if name not in names]
        given = {name: inputs[name] for name in names if name in inputs}
    elif len(inputs) != len(names):
        raise InputError.of("run", f"takes {len(names)} inputs ({', '.join(names)})", f"{len(inputs)}")
    else:
        given, problems = dict(zip(names, inputs, strict=True)), []
    return {name: _as_array(name, value) for name, value in given.items()}, problems


def bind_outputs(signature: Signature, out: Mapping[str, np.ndarray] | None, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns one array per output: the caller's where given, else a new one.

    Raises:
        InputError: an array that is no output, of the wrong type, not writable, not contiguous, or that overlaps an input or another output.
    """
    if not out:
        return {name: np.empty(shape, dtype) for name, dtype, shape in signature.expected}
    if not isinstance(out, Mapping):
        raise InputError.of("run", "out takes a mapping from output names to arrays", type(out).__name__)
    problems = [f"'{name}' is not an output" for name in out if name not in signature.types]
    results: dict[str, np.ndarray] = {}
    for name, wanted in signature.types.items():
        array = out.get(name)
        if array is None:
            results[name] = np.empty(wanted.shape, wanted.dtype.numpy)
            continue
        if not isinstance(array, np.ndarray) or array.dtype != wanted.dtype.numpy or array.shape != wanted.shape:
            problems.append(f"'{name}' must be {wanted}, got {_describe(np.asarray(array))}")
        elif not (array.flags.c_contiguous and array.flags.writeable):
            problems.append(f"'{name}' must be C-contiguous and writable")
        elif any(np.may_share_memory(array, other) for other in (*inputs, *results.values())):
            problems.append(f"'{name}' must not overlap an input or another output")
        results[name] = array
    if problems:
        raise InputError.of("run", f"out must fit the outputs ({signature})", "; ".join(problems))
    return results


class DimSolver:
    """Reads the values of a graph's symbolic dims off the shapes of a run's inputs.

    Raises:
        InputError: a dim that is not, by itself, the length of some input's axis: no shape would tell its value.
    """

    def __init__(self, graph: Graph) -> None:
        template = graph.template or graph
        self._names = tuple(value.name for value in template.inputs)
        self._ranks = {value.name: len(value.type.shape) for value in template.inputs}
        self._found: dict[str, tuple[str, int]] = {}
        for value in template.inputs:
            for axis, length in enumerate(value.type.shape):
                if str(length) in template.dims:
                    self._found.setdefault(str(length), (value.name, axis))
        self.dims = tuple(template.dims)
        if unsolved := [name for name in self.dims if name not in self._found]:
            raise InputError.of(
                f"graph '{graph.name}'",
                "every dim must be the length of some input's axis",
                f"none for {', '.join(unsolved)}",
                hint="bind it: graph.bind(...)",
            )

    def solve(self, inputs: Mapping[str, Any] | Sequence[Any]) -> tuple[int, ...]:
        """Returns the value of each of ``dims``; whether the shapes agree with them everywhere is for :func:`bind_inputs` to check."""
        given, problems = input_arrays(self._names, inputs)
        for name, array in given.items():
            if array.ndim != self._ranks[name]:
                problems.append(f"'{name}' must have {self._ranks[name]} axes, got {_describe(array)}")
        if problems:
            raise InputError.of("run", "inputs must fit the graph", "; ".join(problems))
        return tuple(given[name].shape[axis] for name, axis in (self._found[dim] for dim in self.dims))


def graph_for(graph: Graph, inputs: Mapping[str, Any]) -> Graph:
    """Returns the static graph for inputs of these shapes, checked: the graph itself if it has no dims.

    Raises:
        InputError: the shapes give no legal values for the dims.
    """
    if not graph.dims:
        return graph
    solver = DimSolver(graph)
    bound = graph.bind(**dict(zip(solver.dims, solver.solve(inputs), strict=True)))
    check_graph(bound)
    return bound


def _as_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except Exception as error:
        raise InputError.of(
            "run", f"input '{name}' must be an array, a buffer or a DLPack tensor", f"{type(value).__name__}: {error}"
        ) from error


def _describe(array: np.ndarray) -> str:
    try:
        return str(TensorType.of(array))
    except KeyError:
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _hint(array: np.ndarray, wanted: TensorType) -> str:
    return f" (use .astype(np.{wanted.dtype.numpy.name}))" if array.shape == wanted.shape else ""
