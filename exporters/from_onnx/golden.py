"""Golden inputs and outputs of an ONNX model: drawn or read from files, computed by ONNX Runtime or by ONNX's own reference evaluator."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from exporters.errors import ExportError, MissingFrameworkError, import_framework
from exporters.from_onnx.reading import Model, NotATensorError, dtype_of
from rml_exec.types import DType

__all__ = ["Runner", "Samples", "draw_examples", "make_runner", "read_samples"]

Arrays = Mapping[str, np.ndarray]

_INDEX_RANGE = 2
"""Integers are drawn below that, where nothing in the model says how many rows they may choose among: 0 and 1 suit masks and types."""


class Runner(Protocol):
    """What computes a model.

    Attributes:
        framework: its name in the golden.
        version: its version.
    """

    framework: str
    version: str

    def run(self, inputs: Arrays, extra: Iterable[str] = ()) -> dict[str, np.ndarray]:
        """Returns the outputs by name, and the values named by ``extra`` beside them."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What a file of samples holds: one set of inputs, and outputs where it has them, by their ONNX names."""

    inputs: Arrays
    outputs: Arrays


def make_runner(model: Model, wanted: str | None) -> Runner:
    """Returns what computes the golden: ``onnxruntime``, ``reference``, or None for the first that is installed.

    Raises:
        MissingFrameworkError: ONNX Runtime is asked for and not installed.
        ExportError: another name.
    """
    if wanted not in (None, "onnxruntime", "reference"):
        raise ExportError.of("--golden-from", "must be onnxruntime, reference, or a file or folder that exists", repr(wanted))
    if wanted != "reference":
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            return _OnnxRuntime(model, import_framework("onnxruntime", "peers"))
        except MissingFrameworkError:
            if wanted is not None:
                raise
    return _Reference(model)


def _with_outputs(model: Model, extra: Iterable[str]) -> onnx.ModelProto:
    proto = model.proto
    names = [name for name in extra if name not in {output.name for output in proto.graph.output}]
    if names:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return proto


class _OnnxRuntime:
    framework = "onnxruntime"

    def __init__(self, model: Model, ort: Any) -> None:
        self.version: str = ort.__version__
        self._model, self._ort = model, ort
        self._session: Any = None

    def _open(self, proto: onnx.ModelProto | None) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if proto is not None:
            options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            if self._model.folder is not None:  # external data are looked for beside the model
                options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self._model.folder))
        source = self._model.where if proto is None and self._model.folder is not None else (proto or self._model.proto).SerializeToString()
        return self._ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def run(self, inputs: Arrays, extra: Iterable[str] = ()) -> dict[str, np.ndarray]:
        names = list(extra)
        if names:
            session = self._open(_with_outputs(self._model, names))
        else:
            session = self._session = self._session or self._open(None)
        outputs = [output.name for output in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


class _Reference:
    framework = "onnx"

    def __init__(self, model: Model) -> None:
        self.version: str = onnx.__version__
        self._model = model

    def run(self, inputs: Arrays, extra: Iterable[str] = ()) -> dict[str, np.ndarray]:
        from onnx.external_data_helper import load_external_data_for_model
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto()
        proto.CopyFrom(_with_outputs(self._model, extra))
        if self._model.folder is not None:
            load_external_data_for_model(proto, str(self._model.folder))
        evaluator = ReferenceEvaluator(proto)
        with np.errstate(all="ignore"):
            results = evaluator.run(None, dict(inputs))
        return dict(zip(evaluator.output_names, map(np.asarray, results), strict=True))


def read_samples(path: str | os.PathLike[str], model: Model) -> list[Samples]:
    """Returns the sets of a ``.npz`` file, of a ``test_data_set`` folder with ``input_0.pb``..., or of a folder of such folders.

    An ``.npz`` file has one array per input and, if it has outputs, per output, under their names.

    Raises:
        ExportError: a file that cannot be read, or arrays that are not those of the model's inputs and outputs.
    """
    path = Path(path)
    inputs = [value.name for value in model.proto.graph.input]
    outputs = [value.name for value in model.proto.graph.output]
    weights = {tensor.name for tensor in model.proto.graph.initializer}
    needed = [name for name in inputs if name not in weights]
    try:
        if path.is_dir():
            folders = sorted(path.glob("test_data_set_*"), key=_number) or [path]
            found = [Samples(_read_messages(folder, "input", needed), _read_messages(folder, "output", outputs)) for folder in folders]
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            if strange := sorted(set(arrays) - {*inputs, *outputs}):
                raise ExportError.of(str(path), "must hold arrays named as the model's inputs and outputs", ", ".join(strange))
            of = [{name: arrays[name] for name in names if name in arrays} for names in (needed, outputs)]
            found = [Samples(*of)]
    except (OSError, ValueError, BadZipFile, DecodeError, NotATensorError) as error:
        raise ExportError.of(str(path), "must hold inputs and outputs of the model, as .npz or .pb files", str(error)) from None
    for samples in found:
        if missing := [name for name in needed if name not in samples.inputs]:
            raise ExportError.of(str(path), "must hold all inputs of the model", f"none for {', '.join(missing)}")
        if samples.outputs and (missing := [name for name in outputs if name not in samples.outputs]):
            raise ExportError.of(str(path), "must hold all outputs of the model or none", f"none for {', '.join(missing)}")
    return found


def _number(path: Path) -> int:
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits else 0


def _read_messages(folder: Path, kind: str, names: list[str]) -> dict[str, np.ndarray]:
    arrays = []
    for file in sorted(folder.glob(f"{kind}_*.pb"), key=_number):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        dtype_of(tensor.data_type)
        arrays.append(onnx.numpy_helper.to_array(tensor))
    return dict(zip(names, arrays, strict=False))


def draw_examples(model: Model, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, DType], seed: int) -> dict[str, np.ndarray]:
    """Returns inputs that a model can be expected to take.

    Floats are N(0, 1); bytes are any; wider integers are rows of the tables that the model looks them up in, else 0 or 1; bools are any.
    """
    generator = np.random.default_rng(seed)
    draw: dict[str, Callable[[str, tuple[int, ...], np.dtype], np.ndarray]] = {
        "f": lambda _, shape, dtype: generator.standard_normal(shape).astype(dtype),
        "b": lambda _, shape, dtype: generator.random(shape) < 0.5,
        "i": lambda name, shape, dtype: generator.integers(0, _rows(model, name, dtype), shape, dtype),
        "u": lambda name, shape, dtype: generator.integers(0, _rows(model, name, dtype), shape, dtype),
    }
    return {name: np.asarray(draw[dtypes[name].numpy.kind](name, shape, dtypes[name].numpy)) for name, shape in shapes.items()}


def _rows(model: Model, name: str, dtype: np.dtype) -> int:
    """Returns how many values an integer input may take: the rows of the smallest table that it chooses from."""
    graph, names = model.proto.graph, {name}
    tables = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    rows = []
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and names.intersection(node.input):
            names.update(node.output)
        elif node.op_type == "Gather" and len(node.input) == 2 and node.input[1] in names and tables.get(node.input[0]):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            dims = tables[node.input[0]]
            rows.append(dims[axis] if -len(dims) <= axis < len(dims) else 1)
    if rows:
        return max(1, min(*rows, int(np.iinfo(dtype).max)))
    return int(np.iinfo(dtype).max) if dtype.itemsize == 1 else _INDEX_RANGE
