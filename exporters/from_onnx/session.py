"""``InferenceSession``: a model file opened and run as users of ONNX Runtime write it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError

from exporters.from_onnx.importer import graph_inputs
from exporters.from_onnx.reading import Model, dtype_of, read_model
from exporters.from_onnx.specialising import Specialiser
from rml_exec.errors import InputError
from rml_exec.loading import enough_memory

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg", "SessionOptions"]

_PROVIDER = "CPUExecutionProvider"


@dataclass
class SessionOptions:
    """Options of a session. ONNX Runtime's own object may be given too; what is not listed here can be set and means nothing.

    Attributes:
        intra_op_num_threads: threads that a run uses, 0 for as many as the process may use.
    """

    intra_op_num_threads: int = 0


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: its name in the model.
        type: such as ``tensor(float)``.
        shape: sizes; the name of one that is open, None where it has no name.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model file says about itself; the attributes are named as in ONNX Runtime."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """Runs an ONNX model on the CPU; any number of threads may call :meth:`run` at once.

    Inputs may have any shape that the model allows. Where one graph serves all of them it is made at once; else, and where results have shapes that
    depend on the elements of an input (the k of TopK, a target shape), the first run with new ones imports the model for them and takes longer.

    Example:
        session = InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        (scores,) = session.run(None, {session.get_inputs()[0].name: image})
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        """Opens a model.

        Args:
            path_or_bytes: path of the model file, its content, or the model itself.
            sess_options: :class:`SessionOptions`, or ONNX Runtime's.
            providers: taken for compatibility; a provider other than the CPU's gives a warning, and the CPU is used.
            provider_options: taken for compatibility, not used.

        Raises:
            UnsupportedOperatorsError: operators that cannot be imported, all of them at once.
            ExportError: a file that is no ONNX model, or one that cannot be imported for another reason.
        """
        names = [name if isinstance(name, str) else name[0] for name in providers or ()]
        if others := [name for name in names if name != _PROVIDER]:
            warnings.warn(f"{', '.join(others)}: not available, the model runs on the CPU", UserWarning, stacklevel=2)
        self._model = read_model(path_or_bytes)
        with enough_memory(self._model.where):
            self._specialiser = Specialiser(self._model, getattr(sess_options, "intra_op_num_threads", 0) or None)
        inputs = {value.name: value for value in graph_inputs(self._model)}
        self._inputs = {name: _node_arg(value) for name, value in inputs.items()}
        self._dtypes = {name: dtype_of(value.type.tensor_type.elem_type).numpy for name, value in inputs.items()}
        self._ranked = {name for name, value in inputs.items() if value.type.tensor_type.HasField("shape")}
        outputs = _outputs(self._model)
        self._outputs = [_node_arg(value) for value in outputs]
        self._unranked = {index for index, value in enumerate(outputs) if not value.type.tensor_type.HasField("shape")}
        if self._specialiser.output_ranks is not None:
            self._learn(self._specialiser.output_ranks)

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that a run must be given, in order."""
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs, in order. Where nothing says how many axes one has, its shape is empty until the first run."""
        return list(self._outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """Returns what the file says about itself."""
        proto = self._model.proto
        custom = {entry.key: entry.value for entry in proto.metadata_props}
        texts = (proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string)
        return ModelMetadata(*texts, proto.model_version, custom)

    def get_providers(self) -> list[str]:
        """Returns ``["CPUExecutionProvider"]``."""
        return [_PROVIDER]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> list[np.ndarray]:
        """Returns outputs.

        Args:
            output_names: which ones, in which order; None for all.
            input_feed: input name -> array, one for every input.
            run_options: taken for compatibility, not used.

        Raises:
            InputError: inputs that are missing, unknown, or of another element type or shape than the model says, all of them listed; an
                output that the model has not.
            RmlError: a model that cannot be imported for inputs of this shape, or a step that failed.
        """
        positions = {output.name: index for index, output in enumerate(self._outputs)}
        wanted = list(output_names or ())
        if unknown := [name for name in wanted if name not in positions]:
            raise InputError.of("run", f"the outputs are {', '.join(positions)}", ", ".join(map(repr, unknown)))
        with enough_memory(self._model.where):
            results = self._specialiser.run(self._checked(input_feed))
        if self._unranked:
            self._learn([result.ndim for result in results])
        return [results[positions[name]] for name in wanted] if wanted else results

    def _learn(self, ranks: Sequence[int]) -> None:
        """Takes the number of axes of outputs of which neither the file nor ONNX knew it."""
        for index in self._unranked:
            self._outputs[index] = replace(self._outputs[index], shape=[None] * ranks[index])
        self._unranked = set()

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the inputs as arrays; raises InputError for those that the model does not allow."""
        problems = [f"'{name}' is not an input" for name in feed if name not in self._inputs]
        arrays = {}
        for name, arg in self._inputs.items():
            if name not in feed:
                problems.append(f"'{name}' is missing")
                continue
            array = arrays[name] = np.asarray(feed[name])
            if array.dtype != self._dtypes[name]:
                problems.append(f"'{name}' must be {arg.type}, not {array.dtype}")
            elif name in self._ranked and not _fits(array.shape, arg.shape):
                problems.append(f"'{name}' must have the shape {arg.shape}, not {list(array.shape)}")
        if problems:
            signature = ", ".join(f"{arg.name}: {arg.type}{arg.shape}" for arg in self._inputs.values())
            raise InputError.of("run", f"inputs must fit the model ({signature or 'it takes none'})", "; ".join(problems))
        return arrays


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    return len(shape) == len(declared) and all(size == dim for size, dim in zip(shape, declared, strict=True) if isinstance(dim, int))


def _node_arg(value: onnx.ValueInfoProto) -> NodeArg:
    type_ = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None for dim in type_.shape.dim]
    return NodeArg(value.name, f"tensor({onnx.TensorProto.DataType.Name(type_.elem_type).lower()})", dims)


def _outputs(model: Model) -> list[onnx.ValueInfoProto]:
    """Returns the outputs with their types and shapes; ONNX infers what the file leaves out."""
    stated = list(model.proto.graph.output)
    if all(output.type.tensor_type.elem_type and output.type.tensor_type.HasField("shape") for output in stated):
        return stated
    bare = onnx.ModelProto()
    bare.CopyFrom(model.proto)
    for output, plain in zip(stated, bare.graph.output, strict=True):
        if not output.type.tensor_type.HasField("shape"):
            plain.ClearField("type")  # else it infers nothing
    try:
        inferred = onnx.shape_inference.infer_shapes(bare).graph.output
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, EncodeError):  # it is too large, or has what onnx does not know
        return stated
    found = {
        value.name: value for value in inferred if value.type.tensor_type.HasField("shape")
    }  # of one that is listed twice it fills one
    by_name = {value.name: value for value in inferred if value.type.tensor_type.elem_type}
    return [found.get(output.name) or by_name.get(output.name, output) for output in stated]
