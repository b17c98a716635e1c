"""A run's arrays: inputs checked and taken as they are, outputs allocated or checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.errors import InputError
from rml_exec.types import TensorType

__all__ = ["bind_inputs", "bind_outputs"]


def bind_inputs(types: Mapping[str, TensorType], inputs: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray]:
    """Returns the inputs in order, as C-contiguous arrays: the caller's own memory where it already is contiguous.

    Raises:
        InputError: listing every input that is missing, extra, or of the wrong dtype or shape.
    """
    if isinstance(inputs, Mapping):
        given = inputs
        problems = [f"'{name}' is missing" for name in types if name not in inputs]
        problems += [f"'{name}' is not an input" for name in inputs if name not in types]
    elif len(inputs) != len(types):
        raise InputError.of("run", f"takes {len(types)} inputs ({', '.join(types)})", f"{len(inputs)}")
    else:
        given, problems = dict(zip(types, inputs, strict=True)), []
    arrays = []
    for name, wanted in types.items():
        if name in given:
            array = _as_array(name, given[name])
            if array.dtype != wanted.dtype.numpy or array.shape != wanted.shape:
                problems.append(f"'{name}' must be {wanted}, got {_describe(array)}{_hint(array, wanted)}")
            arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    if problems:
        raise InputError.of("run", f"inputs must fit the graph ({_signature(types)})", "; ".join(problems))
    return arrays


def bind_outputs(
    types: Mapping[str, TensorType], out: Mapping[str, np.ndarray] | None, inputs: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns one array per output: the caller's where given, else a new one.

    Raises:
        InputError: an array that is no output, of the wrong type, not writable, not contiguous, or that overlaps an input or another output.
    """
    if not out:
        return {name: np.empty(type_.shape, type_.dtype.numpy) for name, type_ in types.items()}
    problems = [f"'{name}' is not an output" for name in out if name not in types]
    results: dict[str, np.ndarray] = {}
    for name, wanted in types.items():
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
        raise InputError.of("run", f"out must fit the outputs ({_signature(types)})", "; ".join(problems))
    return results


def _as_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except Exception as error:
        raise InputError.of("run", f"input '{name}' must be an array, a buffer or a DLPack tensor", f"{type(value).__name__}: {error}") from error


def _describe(array: np.ndarray) -> str:
    try:
        return str(TensorType.of(array))
    except KeyError:
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _hint(array: np.ndarray, wanted: TensorType) -> str:
    return f" (use .astype(np.{wanted.dtype.numpy.name}))" if array.shape == wanted.shape else ""


def _signature(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in types.items()) or "none"
