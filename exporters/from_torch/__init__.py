"""torch -> graph: ``torch.export``, decompositions down to what the table of lowerings knows, one function per ATen operator.

torch itself is imported when something is exported, not when this package is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.bundle import ExportSummary, write_export
from exporters.dims import Dim, check_sizes, generalise, hints, shapes_at, trial_sizes
from exporters.errors import import_framework
from exporters.golden_sets import golden_sets, input_sets
from exporters.progress import report
from rml_exec.ir.graph import Graph

if TYPE_CHECKING:
    from exporters.from_torch.importer import Imported
    from exporters.from_torch.program import Traced

__all__ = ["export", "to_graph"]


def export(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path_prefix: str | Path,
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
    goldens: int = 1,
    dims: Sequence[Dim] = (),
) -> ExportSummary:
    """Exports a torch model and checks it: writes ``PREFIX.json``, ``PREFIX.safetensors`` and ``PREFIX.golden.safetensors``.

    Args:
        model: a module in evaluation mode and on the CPU, or a function of tensors.
        example_inputs: tensors or NumPy arrays, also within lists, tuples and dicts, and other values that become part of the graph; in
            the order of the model's arguments or by their names. They fix shapes and dtypes, and the golden file holds them and what the
            model makes of them; a float input whose elements are all equal would hide errors and is replaced by N(0, 1) numbers there.
        path_prefix: where to write, without suffix.
        name: name of the graph; the last part of ``path_prefix`` if None.
        input_names: interface names of the inputs; the names of the model's arguments if None.
        seed: seed of the numbers drawn for the golden file.
        goldens: number of golden sets; the second and later ones are drawn like the example inputs.
        dims: dims that stay symbolic. Two more golden sets are made at other sizes of them.

    Raises:
        MissingFrameworkError: torch is not installed.
        UnsupportedOperatorsError: operators without a lowering, all of them.
        ExportError: a model in training mode, one that ``torch.export`` cannot trace, results that differ from the reference, an
            unwritable path.
    """
    torch = import_framework("torch")
    from exporters.from_torch.program import run_eagerly, run_nodes, trace

    prefix = Path(path_prefix)
    report("tracing")
    traced = trace(model, example_inputs, input_names, dims)
    report("lowering")
    imported = _imported(traced, name or prefix.name, dims)
    report("running torch")
    examples = traced.examples()
    shapes = {name: array.shape for name, array in examples.items()}
    others = [shapes_at(dims, shapes, sizes) for sizes in check_sizes(dims, hints(dims, shapes))] if dims else []
    sets = input_sets(examples, goldens=goldens, seed=seed, others=others)
    first, *further = golden_sets("torch", sets, lambda inputs: run_eagerly(traced, inputs))
    return write_export(
        imported.graph,
        prefix,
        inputs=first.inputs,
        outputs=first.outputs,
        framework="torch",
        framework_version=torch.__version__,
        seed=seed,
        threads=1,
        further=further,
        intermediates=lambda inputs: run_nodes(traced, imported.values, inputs),
    )


def to_graph(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    name: str,
    input_names: Sequence[str] | None = None,
    dims: Sequence[Dim] = (),
) -> Graph:
    """Returns the graph of a torch model; arguments and errors as of :func:`export`. Weights are shared, not copied."""
    import_framework("torch")
    from exporters.from_torch.program import trace

    return _imported(trace(model, example_inputs, input_names, dims), name, dims).graph


def _imported(traced: Traced, name: str, dims: Sequence[Dim]) -> Imported:
    """Returns the graph of a traced model; with dims the one that stands for all sizes."""
    from exporters.from_torch.importer import import_program
    from exporters.from_torch.program import symbolic_sizes

    if not dims:
        return import_program(traced, name)
    hint = hints(dims, {name: tuple(tensor.shape) for name, tensor in traced.inputs.items()})
    trials = [(sizes, import_program(traced, name, sizes)) for sizes in trial_sizes(dims, hint)]
    graph = generalise([(sizes, imported.graph) for sizes, imported in trials], dims, hint, symbolic_sizes(traced))
    return replace(trials[0][1], graph=graph)
