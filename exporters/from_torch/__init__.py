"""torch -> graph: ``torch.export``, decompositions down to what the table of lowerings knows, one function per ATen operator.

torch itself is imported when something is exported, not when this package is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exporters.bundle import ExportSummary, write_export
from exporters.errors import import_framework
from rml_exec.ir.graph import Graph

__all__ = ["export", "to_graph"]


def export(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    path_prefix: str | Path,
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
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

    Raises:
        MissingFrameworkError: torch is not installed.
        UnsupportedOperatorsError: operators without a lowering, all of them.
        ExportError: a model in training mode, one that ``torch.export`` cannot trace, results that differ from the reference, an
            unwritable path.
    """
    torch = import_framework("torch")
    from exporters.from_torch.importer import import_program
    from exporters.from_torch.program import run_eagerly, trace

    prefix = Path(path_prefix)
    traced = trace(model, example_inputs, input_names)
    graph = import_program(traced, name or prefix.name)
    inputs, outputs = run_eagerly(traced, seed)
    return write_export(
        graph, prefix, inputs=inputs, outputs=outputs, framework="torch", framework_version=torch.__version__, seed=seed, threads=1
    )


def to_graph(
    model: Any, example_inputs: Sequence[Any] | Mapping[str, Any], *, name: str, input_names: Sequence[str] | None = None
) -> Graph:
    """Returns the graph of a torch model; arguments and errors as of :func:`export`. Weights are shared, not copied."""
    import_framework("torch")
    from exporters.from_torch.importer import import_program
    from exporters.from_torch.program import trace

    return import_program(trace(model, example_inputs, input_names), name)
