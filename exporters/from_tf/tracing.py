"""From what the user has to a concrete function with static input shapes, and back to what TensorFlow computes with it."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from exporters import __version__
from exporters.dims import Dim, axes_of
from exporters.errors import ExportError, describe, import_framework
from exporters.lowering import name_inputs, name_outputs

__all__ = ["Trace", "load_saved_model", "load_tensorflow", "open_saved_model", "trace"]

Example = Sequence[Any] | Mapping[str, Any]

# oneDNN picks other algorithms on other machines; without it a golden is the same everywhere. Where TensorFlow is loaded already the user's
# choice stands. Both are recorded in the graph's producer options.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"}


def load_tensorflow() -> ModuleType:
    """Imports TensorFlow quietly and returns it; set to one thread, on the CPU, where it has not started to compute yet.

    Raises:
        MissingFrameworkError: it is not installed.
    """
    if "tensorflow" not in sys.modules:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    tf = import_framework("tensorflow")
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # it has computed something already: its settings stand
        pass
    return tf


def load_saved_model(directory: str | Path, signature: str | None = None) -> Any:
    """Loads a SavedModel and returns one of its signatures: a concrete function that keeps the loaded object alive.

    Args:
        directory: where ``saved_model.pb`` lies.
        signature: name of the signature; ``serving_default`` or the only one if None.

    Raises:
        MissingFrameworkError: TensorFlow is not installed.
        ExportError: no SavedModel, one that TensorFlow cannot load, or no such signature.
    """
    tf, where = load_tensorflow(), f"SavedModel '{directory}'"
    if not (Path(directory) / "saved_model.pb").is_file():
        raise ExportError.of(where, "must be a directory with a saved_model.pb")
    try:
        with _without_optimizer(Path(directory)) as cleaned:
            loaded = tf.saved_model.load(str(cleaned))
    except Exception as error:  # whatever a broken or foreign model makes TensorFlow raise
        raise ExportError.of(where, "TensorFlow must be able to load it", describe(error)) from error
    signatures = dict(loaded.signatures)
    wanted = signature or ("serving_default" if "serving_default" in signatures or len(signatures) != 1 else next(iter(signatures)))
    if wanted not in signatures:
        raise ExportError.of(where, f"there is no signature '{wanted}'", hint=f"signatures: {', '.join(signatures) or 'none'}")
    function = signatures[wanted]
    function.saved_model = loaded  # variables live as long as what they were loaded with
    return function


def open_saved_model(directory: str | Path, signature: str | None = None) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns a signature of a SavedModel, as :func:`load_saved_model`, and inputs for it: one row of N(0, 1) numbers, of integers zeros.

    Raises:
        ExportError: an input has more unknown sizes than the first one; the others as of :func:`load_saved_model`.
    """
    function = load_saved_model(directory, signature)
    generator, inputs = np.random.default_rng(0), {}
    for name, specification in sorted(function.structured_input_signature[1].items()):
        where = f"SavedModel '{directory}', input '{name}'"
        rest = None if specification.shape.rank is None else specification.shape.as_list()
        if rest is None or None in rest[1:]:
            hint = "export it from Python, or by --entry, with example inputs of your own"
            raise ExportError.of(where, "its sizes must be known", str(specification.shape), hint=hint)
        shape = [1 if size is None else size for size in rest]
        inputs[name] = np.zeros(shape, specification.dtype.as_numpy_dtype)
        if specification.dtype.is_floating:
            inputs[name][...] = generator.standard_normal(shape)
    return function, inputs


@contextlib.contextmanager
def _without_optimizer(directory: Path) -> Iterator[Path]:
    """Gives a directory with the same SavedModel without what its optimizer knew about variables.

    An optimizer of an older Keras has no class any more, and TensorFlow then fails to give it these variables. A model that has no such
    optimizer is used where it lies.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((directory / "saved_model.pb").read_bytes())
    nodes = [node for graph in saved.meta_graphs for node in graph.object_graph_def.nodes if node.slot_variables]
    if not nodes:
        yield directory
        return
    for node in nodes:
        node.ClearField("slot_variables")
    with tempfile.TemporaryDirectory() as copy:
        for entry in directory.iterdir():
            if entry.name != "saved_model.pb":
                (Path(copy) / entry.name).symlink_to(entry.resolve())
        (Path(copy) / "saved_model.pb").write_bytes(saved.SerializeToString())
        yield Path(copy)


@dataclass(frozen=True)
class Trace:
    """A traced model.

    Attributes:
        concrete: the concrete function; it takes the inputs positionally.
        inputs: example inputs by interface name, in call order.
        version: TensorFlow's version.
        threads: number of threads it computes with.
    """

    concrete: Any
    inputs: dict[str, np.ndarray]
    version: str
    threads: int

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the example inputs by interface name, in call order."""
        return {name: array.shape for name, array in self.inputs.items()}

    def outputs(self) -> list[tuple[str, Any]]:
        """Returns (interface name, symbolic tensor) of every output, in TensorFlow's order: keys of a dict do not always keep theirs."""
        named = name_outputs(self.concrete.structured_outputs)
        if not named:
            raise ExportError.of("export", "the model must return at least one tensor", "None")
        tensors = [tensor.name for tensor in self.concrete.graph.outputs]
        for name, tensor in named:
            if getattr(tensor, "name", None) not in tensors:
                raise ExportError.of(f"output '{name}'", "must be a dense tensor", type(tensor).__name__)
        return sorted(named, key=lambda output: tensors.index(output[1].name))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what TensorFlow computes, by interface name."""
        tf = load_tensorflow()
        results = dict(name_outputs(self.concrete(*(tf.constant(inputs[name]) for name in self.inputs))))
        return {name: np.asarray(results[name]) for name, _ in self.outputs()}

    def producer(self) -> dict[str, Any]:
        """Returns the ``producer`` entry of the graph."""
        options = {"TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default")}
        if "keras" in sys.modules:
            options["keras"] = sys.modules["keras"].__version__
        return {"framework": "tensorflow", "framework_version": self.version, "exporter_version": __version__, "options": options}


def trace(model: Any, example_inputs: Example, input_names: Sequence[str] | None = None, dims: Sequence[Dim] = ()) -> Trace:
    """Traces a model with the shapes of the example inputs, the sizes of ``dims`` left open; Keras models in inference mode.

    Raises:
        ExportError: nothing that can be called with these inputs, or it raised while being traced.
    """
    tf = load_tensorflow()
    named = name_inputs(example_inputs, input_names, _parameters(tf, model))
    tensors = {name: _tensor(tf, name, value) for name, value in named.items()}
    call = _caller(tf, model, list(example_inputs) if isinstance(example_inputs, Mapping) else None)

    @tf.function
    def entry(*arguments: Any) -> Any:
        return call(arguments)

    shapes: dict[str, list[int | None]] = {name: tensor.shape.as_list() for name, tensor in tensors.items()}
    for dim in dims:
        for name, axis in axes_of(dim, {name: tensor.shape.as_list() for name, tensor in tensors.items()}).items():
            shapes[name][axis] = None
    try:
        concrete = entry.get_concrete_function(*(tf.TensorSpec(shapes[name], tensor.dtype) for name, tensor in tensors.items()))
    except Exception as error:
        types = {name: f"{tensor.dtype.name}{list(tensor.shape)}" for name, tensor in tensors.items()}
        raise ExportError.of("export", "TensorFlow must be able to trace the model", describe(error), types) from error
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
    return Trace(concrete, {name: tensor.numpy() for name, tensor in tensors.items()}, tf.__version__, threads)


def _tensor(tf: ModuleType, name: str, value: Any) -> Any:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ExportError.of(f"input '{name}'", "must be a tensor or an array", str(error)) from error


def _caller(tf: ModuleType, model: Any, keywords: list[str] | None) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that calls the model with a list of tensors; ``keywords`` are their argument names if they were given by name."""

    def by_name(tensors: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(keywords or (), tensors, strict=True))

    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.layers.Layer):
        if (backend := keras.backend.backend()) != "tensorflow":
            raise ExportError.of("export", "Keras must run on the TensorFlow backend", backend, hint="set KERAS_BACKEND=tensorflow")
        inputs = getattr(model, "inputs", None)
        if inputs and keywords:
            return lambda tensors: model(by_name(tensors), training=False)
        if inputs and len(inputs) > 1:
            return lambda tensors: model(list(tensors), training=False)
        if keywords:
            return lambda tensors: model(**by_name(tensors), training=False)
        return lambda tensors: model(*tensors, training=False)
    if not callable(model):
        hint = "give a Keras model, a tf.function, a concrete function or a Python function of tensors"
        raise ExportError.of("export", "the model must be callable", type(model).__name__, hint=hint)
    if isinstance(model, tf.types.experimental.ConcreteFunction) and keywords is None:
        positional, named = model.structured_input_signature
        keywords = None if positional else sorted(named)  # the signatures of a SavedModel take no positional arguments
    # A function of its own gets autograph: Python's if and while on tensors become graph operations, or a clear refusal.
    function = model if _is_function(tf, model) else tf.function(model)
    if keywords:
        return lambda tensors: function(**by_name(tensors))
    return lambda tensors: function(*tensors)


def _is_function(tf: ModuleType, model: Any) -> bool:
    return isinstance(model, tf.types.experimental.ConcreteFunction | tf.types.experimental.PolymorphicFunction)


def _parameters(tf: ModuleType, model: Any) -> list[str] | None:
    """Returns the names of the arguments of a function; None for a Keras model, whose input names depend on what was built before it."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.layers.Layer):
        return None
    if isinstance(model, tf.types.experimental.ConcreteFunction):
        return [spec.name or f"x{index}" for index, spec in enumerate(tf.nest.flatten(model.structured_input_signature))]
    try:
        parameters = inspect.signature(getattr(model, "python_function", model)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]
