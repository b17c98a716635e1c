"""ONNX to rml-graph: model files of any producer, operator sets 7 to the newest.

The package onnx is imported when a model is, not with this package.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from exporters.bundle import ExportSummary, check_prefix, write_export
from exporters.dims import check_sizes
from exporters.errors import import_framework
from exporters.from_onnx.options import Size, parse_input_shape, parse_size
from exporters.golden_sets import GoldenSet, golden_sets, input_sets
from exporters.progress import report
from rml_exec.ir.graph import Graph

if TYPE_CHECKING:
    from exporters.from_onnx.backend import Backend
    from exporters.from_onnx.dims import InputShapes
    from exporters.from_onnx.golden import Samples
    from exporters.from_onnx.importer import Imported
    from exporters.from_onnx.reading import Model, Source
    from exporters.from_onnx.session import InferenceSession, SessionOptions

__all__ = [
    "Backend",
    "InferenceSession",
    "SessionOptions",
    "Size",
    "export",
    "import_with_inputs",
    "load",
    "parse_input_shape",
    "parse_size",
    "to_graph",
]

T = TypeVar("T")

_HOMES = {"Backend": "backend", "InferenceSession": "session", "SessionOptions": "session"}
"""Public names that need onnx, and the modules that they are in."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import_framework("onnx")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def export(
    model: Source | Model,
    path_prefix: str | Path,
    *,
    golden_from: str | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    name: str | None = None,
    seed: int = 0,
    goldens: int = 1,
    dims: Mapping[str, Size] | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> ExportSummary:
    """Imports a model and checks it: writes ``PREFIX.json``, ``PREFIX.safetensors`` and ``PREFIX.golden.safetensors``.

    Args:
        model: path of the ``.onnx`` file, its content, or a ModelProto.
        path_prefix: where to write, without suffix.
        golden_from: what gives the golden outputs: "onnxruntime"; "reference", ONNX's own evaluator; or the path of a ``.npz`` file or a
            ``test_data_set_0`` folder with inputs and, if no one is to compute them, outputs. None: ONNX Runtime where it is installed, else the
            reference evaluator.
        inputs: golden inputs by name. Drawn where not given: N(0, 1) floats, integers that are rows of the tables that they choose from.
        name: name of the graph; the last part of ``path_prefix`` if None.
        seed: seed of drawn inputs.
        goldens: number of golden sets; the second and later ones are drawn.
        dims: dim name -> its size, or (smallest, largest) of one that stays open. Dims that the file leaves open stay open without that.
        input_shapes: input -> its whole shape; an entry that is a name stays open.

    Raises:
        MissingFrameworkError: onnx, or the runtime that was asked for, is not installed.
        UnsupportedOperatorsError: operators that cannot be imported, all of them at once.
        ExportError: anything else that keeps the model from being imported, or results that differ from the golden's.
    """
    import_framework("onnx")
    from exporters.from_onnx.dims import InputShapes, import_model
    from exporters.from_onnx.golden import make_runner, read_samples
    from exporters.from_onnx.reading import read_model

    prefix = check_prefix(path_prefix)
    report("reading")
    read = read_model(model)
    from_files = golden_from is not None and os.path.exists(golden_from)
    samples = read_samples(golden_from, read) if from_files and golden_from is not None else []
    complete = bool(samples) and all(sample.outputs for sample in samples)
    runner = None if complete else make_runner(read, None if from_files else golden_from)
    given = inputs or (samples[0].inputs if samples else {})
    shapes = InputShapes(read, dims or {}, input_shapes or {}, given)
    report("lowering")
    imported = import_model(read, shapes, name=name or prefix.name, known={})
    names = _Names(read, imported.graph)
    intermediates = None
    if runner is None:
        sets = [GoldenSet(names.inputs(sample.inputs), names.outputs(sample.outputs), seed) for sample in samples]
        framework, version = "onnx", _producer(read)
    else:
        report(f"running {runner.framework}")
        drawn = _input_sets(read, imported, shapes, given, samples, seed, goldens)
        sets = golden_sets(runner.framework, drawn, lambda arrays: names.outputs(runner.run(names.theirs(arrays))))
        framework, version = runner.framework, runner.version
        computed = {name for node in read.proto.graph.node for name in node.output}
        made = {theirs: ours for theirs, ours in imported.names.items() if theirs in computed}

        def intermediates(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            found = runner.run(names.theirs(arrays), made)
            return {ours: found[theirs] for theirs, ours in made.items() if theirs in found}

    first, *further = sets
    return write_export(
        imported.graph,
        prefix,
        inputs=first.inputs,
        outputs=first.outputs,
        framework=framework,
        framework_version=version,
        seed=seed,
        threads=1,
        further=further,
        intermediates=intermediates,
    )


def to_graph(
    model: Source | Model,
    *,
    name: str | None = None,
    known: Mapping[str, np.ndarray] | None = None,
    dims: Mapping[str, Size] | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Graph:
    """Returns the graph of a model, nothing is written; other arguments and errors as of :func:`export`.

    Args:
        model: path of the ``.onnx`` file, its content, or a ModelProto. Weights of external data are mapped, not read.
        name: name of the graph; the file's own name of it if None.
        known: inputs that are constants of the graph, by name: shapes, axes, numbers of elements, on which shapes inside the model depend.
        dims: sizes of dims.
        input_shapes: shapes of inputs.
    """
    import_framework("onnx")
    from exporters.from_onnx.dims import InputShapes, import_model
    from exporters.from_onnx.reading import read_model

    read, given = read_model(model), dict(known or {})
    shapes = InputShapes(read, dims or {}, {**{key: array.shape for key, array in given.items()}, **(input_shapes or {})}, {})
    return import_model(read, shapes, name=name or read.proto.graph.name or "model", known=given).graph


load = to_graph


def import_with_inputs(model: Source | Model, *, name: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """Returns the graph of a model, and inputs drawn for it at the hints of its dims."""
    import_framework("onnx")
    from exporters.from_onnx.dims import InputShapes, import_model
    from exporters.from_onnx.reading import read_model

    read = read_model(model)
    shapes = InputShapes(read, {}, {}, {})
    imported = import_model(read, shapes, name=name, known={})
    return imported.graph, _drawn(read, imported, shapes, shapes.hint, 0)


def _drawn(model: Model, imported: Imported, shapes: InputShapes, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Returns inputs by their names in the graph, at sizes of the dims."""
    from exporters.from_onnx.golden import draw_examples

    names = _Names(model, imported.graph)
    types = {value.name: value.type.dtype for value in imported.graph.inputs}
    return names.inputs(draw_examples(model, shapes.at(sizes), names.theirs(types), seed))


@dataclass(frozen=True, slots=True)
class _Names:
    """What a model's inputs and outputs are called in the graph, where a name had to be changed."""

    model: Model
    graph: Graph

    def _pairs(self) -> list[tuple[str, str]]:
        from exporters.from_onnx.importer import graph_inputs

        return [(theirs.name, ours.name) for theirs, ours in zip(graph_inputs(self.model), self.graph.inputs, strict=True)]

    def inputs(self, arrays: Mapping[str, T]) -> dict[str, T]:
        """Returns what belongs to the model's inputs by their names in the graph."""
        return {ours: arrays[theirs] for theirs, ours in self._pairs()}

    def theirs(self, arrays: Mapping[str, T]) -> dict[str, T]:
        """Returns what belongs to the graph's inputs by their names in the model."""
        return {theirs: arrays[ours] for theirs, ours in self._pairs()}

    def outputs(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the model's outputs by their names in the graph."""
        theirs = [output.name for output in self.model.proto.graph.output]
        return {ours.name: np.asarray(arrays[name]) for ours, name in zip(self.graph.outputs, theirs, strict=True)}


def _input_sets(
    model: Model,
    imported: Imported,
    shapes: InputShapes,
    given: Mapping[str, np.ndarray],
    samples: Sequence[Samples],
    seed: int,
    goldens: int,
) -> list[tuple[int, dict[str, np.ndarray]]]:
    """Returns (seed, inputs) of every golden set that a runtime computes: those of files, else drawn ones, also at other sizes."""
    names = _Names(model, imported.graph)
    if len(samples) > 1:
        return [(seed, names.inputs(sample.inputs)) for sample in samples]
    examples = {**names.theirs(_drawn(model, imported, shapes, shapes.hint, seed)), **given}
    sets = input_sets(names.inputs(examples), goldens=goldens, seed=seed)
    others = check_sizes(shapes.tried, shapes.hint) if shapes.dims and not given else []
    return [*sets, *((seed + 1, _drawn(model, imported, shapes, sizes, seed + 1)) for sizes in others)]


def _producer(model: Model) -> str:
    """Returns who wrote a model, for goldens whose outputs were given."""
    return " ".join(filter(None, (model.proto.producer_name, model.proto.producer_version))) or "unknown"
