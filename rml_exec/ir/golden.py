"""Golden files: the inputs of a model and what the source framework made of them. Written last, so one marks a finished export."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rml_exec.errors import GraphFormatError
from rml_exec.ir.format import model_paths
from rml_exec.ir.weights import Tensor, read_tensors, write_tensors
from rml_exec.types import TensorType

__all__ = ["Golden", "graph_hashes", "read_golden", "write_golden"]

_INPUT, _OUTPUT, _UNDECIDED = "in.", "out.", "undecided."


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """One set of inputs and outputs, by interface name; bf16 tensors are carried as uint16.

    ``undecided`` holds, for outputs of integers or bools that come from floats, where True which elements rounding decides, so that they are
    not compared; an output without such elements is not in it.

    ``metadata`` holds ``framework``, ``framework_version``, ``seed``, ``threads``, ``graph_sha256``, ``weights_sha256`` and, per output,
    ``rtol.NAME``, ``atol.NAME`` and ``rms_error.NAME`` as decimal text; ``remark`` where the golden proves little, such as outputs of zeros.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    metadata: Mapping[str, str] = field(default_factory=dict)
    undecided: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_golden(path: str | os.PathLike[str]) -> Golden:
    """Returns the golden file at ``path``, its arrays mapped and read-only.

    Raises:
        GraphFormatError: the file is missing, damaged, or holds a tensor whose key begins with none of ``in.``, ``out.`` and ``undecided.``,
            or one of the last that is not bool of the shape of its output.
    """
    tensors, metadata = read_tensors(path)
    if strange := [key for key in tensors if not key.startswith((_INPUT, _OUTPUT, _UNDECIDED))]:
        raise GraphFormatError.of(os.fspath(path), "keys of a golden file must begin with in., out. or undecided.", ", ".join(strange))
    inputs, outputs, undecided = (
        {key.removeprefix(prefix): tensor.data for key, tensor in tensors.items() if key.startswith(prefix)}
        for prefix in (_INPUT, _OUTPUT, _UNDECIDED)
    )
    for name, mask in undecided.items():
        if name not in outputs or mask.dtype != np.bool_ or mask.shape != outputs[name].shape:
            raise GraphFormatError.of(os.fspath(path), f"undecided.{name} must be bool of the shape of out.{name}", TensorType.of(mask))
    return Golden(inputs, outputs, metadata, undecided)


def write_golden(path: str | os.PathLike[str], golden: Golden, types: Mapping[str, TensorType] | None = None) -> None:
    """Writes a golden file in one step.

    Args:
        path: where to.
        golden: its content.
        types: types by key (``in.x``), needed only for bf16 tensors, whose arrays look like u16.

    Raises:
        GraphFormatError: the file cannot be written; what stood there before is untouched.
    """
    known = types or {}
    tensors = {
        prefix + name: Tensor(known.get(prefix + name) or TensorType.of(array), array)
        for prefix, arrays in ((_INPUT, golden.inputs), (_OUTPUT, golden.outputs), (_UNDECIDED, golden.undecided))
        for name, array in arrays.items()
    }
    write_tensors(path, tensors, golden.metadata)


def graph_hashes(source: str | os.PathLike[str]) -> dict[str, str]:
    """Returns ``graph_sha256`` and ``weights_sha256`` of a model's NAME.json and NAME.safetensors; reads both files whole.

    Raises:
        GraphFormatError: one of them is missing or cannot be read.
    """
    paths = model_paths(source)
    return {"graph_sha256": _sha256(paths.graph), "weights_sha256": _sha256(paths.weights)}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GraphFormatError.of(str(path), "cannot be read", error.strerror) from None
