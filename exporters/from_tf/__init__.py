"""TensorFlow to rml-graph: Keras models, tf.functions, concrete functions and plain Python functions of tensors.

TensorFlow is imported when an export starts, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporters.bundle import ExportSummary, write_export
from exporters.dims import Binding, Dim, check_sizes, generalise, hints, shapes_at, share_constants, trial_sizes
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_tf.intermediates import Walked, run_operations
from exporters.from_tf.tracing import Trace, load_saved_model, load_tensorflow, open_saved_model, trace
from exporters.from_tf.walk import build_graph
from exporters.golden_sets import golden_sets, input_sets
from exporters.progress import report
from rml_exec.ir.graph import Graph

__all__ = ["export", "load_saved_model", "open_saved_model", "to_graph"]


def export(
    model_or_function: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path_prefix: str | Path,
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
    goldens: int = 1,
    dims: Sequence[Dim] = (),
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
        goldens: number of golden sets; the second and later ones are drawn like the example inputs.
        dims: dims that stay symbolic. Two more golden sets are made at other sizes of them.

    Raises:
        MissingFrameworkError: TensorFlow is not installed.
        UnsupportedOperatorsError: operators without a lowering, all of them at once.
        ExportError: anything else that keeps the model from being exported.
    """
    report("tracing")
    traced = trace(model_or_function, example_inputs, input_names, dims)
    report("lowering")
    name = name or Path(path_prefix).name
    graphs = [_graph(traced, name, dims)]  # a list, to give the graph away: its weights go once they are written
    report("running TensorFlow")
    shapes = traced.shapes()
    others = [shapes_at(dims, shapes, sizes) for sizes in check_sizes(dims, hints(dims, shapes))] if dims else []
    sets = input_sets(traced.inputs, goldens=goldens, seed=seed, others=others)
    first, *further = golden_sets("TensorFlow", sets, traced.run)
    return write_export(
        graphs.pop(),
        path_prefix,
        inputs=first.inputs,
        outputs=first.outputs,
        framework="tensorflow",
        framework_version=traced.version,
        seed=seed,
        threads=traced.threads,
        further=further,
        intermediates=lambda inputs: _intermediates(traced, name, inputs, symbolic=bool(dims)),
    )


def to_graph(
    model_or_function: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    name: str,
    input_names: Sequence[str] | None = None,
    dims: Sequence[Dim] = (),
) -> Graph:
    """Returns the graph alone, nothing is written; arguments and errors as of :func:`export`."""
    return _graph(trace(model_or_function, example_inputs, input_names, dims), name, dims)


def _intermediates(traced: Trace, name: str, inputs: Mapping[str, np.ndarray], *, symbolic: bool) -> dict[str, np.ndarray]:
    """Returns what TensorFlow has where the graph has a value."""
    shapes, walked = {key: array.shape for key, array in inputs.items()}, list[Walked]()
    build_graph(traced.concrete, traced.outputs(), shapes, name=name, producer=traced.producer(), symbolic=symbolic, walked=walked)
    return run_operations(load_tensorflow(), walked, inputs)


def _graph(traced: Trace, name: str, dims: Sequence[Dim]) -> Graph:
    """Returns the graph for the shapes of the example inputs; with dims the one that stands for all sizes."""

    def at(shapes: Mapping[str, Sequence[int]]) -> Graph:
        return build_graph(traced.concrete, traced.outputs(), shapes, name=name, producer=traced.producer(), symbolic=bool(dims))

    graph = at(traced.shapes())
    if not dims:
        return graph
    hint, trials = hints(dims, traced.shapes()), list[tuple[Binding, Graph]]()
    for sizes in trial_sizes(dims, hint):
        try:
            trials.append((sizes, share_constants(at(shapes_at(dims, traced.shapes(), sizes)), trials)))
        except UnsupportedOperatorsError as error:
            first, given = error.operators[0], ", ".join(f"{dim}={size}" for dim, size in sizes.items())
            rule = f"the model must take other sizes than those of its example inputs, such as {given}"
            found = f"{first.op} '{first.node}' ({first.where}): {first.reason}"
            raise ExportError.of(f"symbolic export of '{name}'", rule, found, hint="give this dim a fixed size") from error
    return generalise(trials, dims, hint)
