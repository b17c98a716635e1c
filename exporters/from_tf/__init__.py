"""TensorFlow to rml-graph: Keras models, tf.functions, concrete functions and plain Python functions of tensors.

TensorFlow is imported when an export starts, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exporters.bundle import ExportSummary, write_export
from exporters.from_tf.tracing import Trace, load_saved_model, trace
from exporters.from_tf.walk import build_graph
from exporters.lowering import golden_inputs
from rml_exec.ir.graph import Graph

__all__ = ["export", "load_saved_model", "to_graph"]


def export(
    model_or_function: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path_prefix: str | Path,
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
) -> ExportSummary:
    """Exports a TensorFlow model: writes ``PREFIX.json``, ``PREFIX.safetensors`` and ``PREFIX.golden.safetensors``.

    Args:
        model_or_function: a Keras model or layer, a ``tf.function``, a concrete function, or a Python function of tensors.
        example_inputs: one tensor or array per argument, in call order or by argument name (of a functional Keras model: by input name).
            Their shapes become the shapes of the graph. The golden file holds them and what TensorFlow makes of them; a float input whose
            elements are all equal would hide errors and is drawn anew.
        path_prefix: where to write.
        name: name of the graph; the last part of ``path_prefix`` when not given.
        input_names: interface names of the inputs, in call order.
        seed: seed of the numbers drawn for the golden file.

    Raises:
        MissingFrameworkError: TensorFlow is not installed.
        UnsupportedOperatorsError: operators without a lowering, all of them at once.
        ExportError: anything else that keeps the model from being exported.
    """
    traced = trace(model_or_function, example_inputs, input_names)
    graph = _graph(traced, name or Path(path_prefix).name)
    inputs = golden_inputs(traced.inputs, seed)
    return write_export(
        graph,
        path_prefix,
        inputs=inputs,
        outputs=traced.run(inputs),
        framework="tensorflow",
        framework_version=traced.version,
        seed=seed,
        threads=traced.threads,
    )


def to_graph(
    model_or_function: Any, example_inputs: Sequence[Any] | Mapping[str, Any], *, name: str, input_names: Sequence[str] | None = None
) -> Graph:
    """Returns the graph alone, nothing is written; arguments and errors as of :func:`export`."""
    return _graph(trace(model_or_function, example_inputs, input_names), name)


def _graph(traced: Trace, name: str) -> Graph:
    return build_graph(traced.concrete, traced.outputs(), traced.input_names, traced.shapes(), name=name, producer=traced.producer())
