"""What the arms of a model are fed: its golden sets, and for the scenario ``shapes`` further ones at random values of its dims."""

from __future__ import annotations

import glob
import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporters.golden_sets import draw_inputs
from rml_exec.errors import RmlError
from rml_exec.graph_run import load_golden
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.loading import check_graph, load_graph
from rml_exec.runtime.reference import run_reference

__all__ = ["draw_shapes", "further_goldens", "model_hashes"]

_DRAWN = 4
_ATTEMPTS = 20


def further_goldens(prefix: Path) -> list[Path]:
    """Returns the golden sets beside the first one, ``PREFIX.golden.1.safetensors`` and so on."""
    found = prefix.parent.glob(f"{glob.escape(prefix.name)}.golden.*.safetensors")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def model_hashes(prefix: Path) -> dict[str, Any]:
    """Returns the hashes of graph, weights and golden sets by the names of the fields of a record; nothing of a model that is not whole."""
    inputs = hashlib.sha256()
    try:
        hashes = graph_hashes(prefix)
        for path in (prefix.with_name(f"{prefix.name}.golden.safetensors"), *further_goldens(prefix)):
            with path.open("rb") as file:
                inputs.update(hashlib.file_digest(file, "sha256").digest())
    except (OSError, RmlError):
        return {}
    return {**hashes, "inputs_sha256": inputs.hexdigest()}


def draw_shapes(prefix: Path, seed: int, directory: Path) -> list[Path]:
    """Writes golden sets at random values of a graph's dims: inputs drawn like those of its own golden, outputs by the reference interpreter.

    Returns nothing if the graph has no dims, or its golden sets are of several shapes already.

    Args:
        prefix: the exported model.
        seed: seed of dims and inputs.
        directory: where to write them.

    Raises:
        RmlError: the model cannot be read.
    """
    first = load_golden(prefix)
    own = {_shapes(golden.inputs) for golden in (first, *map(read_golden, further_goldens(prefix)))}
    graph = load_graph(prefix)
    if not graph.dims or len(own) > 1:
        return []
    generator = random.Random(seed)
    paths: list[Path] = []
    for attempt in range(_ATTEMPTS):
        if len(paths) == _DRAWN:
            break
        try:
            bound = graph.bind(**{name: _draw_dim(limits, generator) for name, limits in graph.dims.items()})
            check_graph(bound)
        except RmlError:
            continue  # these values do not go together
        types = bound.types()
        shapes: dict[str, Sequence[int]] = {value.name: value.type.shape for value in bound.inputs}
        inputs = draw_inputs(first.inputs, seed + attempt, shapes)
        if _shapes(inputs) in own:
            continue
        own.add(_shapes(inputs))
        wide = run_reference(bound, inputs, precision="f64")
        outputs = {output.name: wide[output.name].astype(types[output.value].dtype.numpy) for output in bound.outputs}
        paths.append(directory / f"shape.{len(paths)}.safetensors")
        write_golden(paths[-1], Golden(inputs, outputs, first.metadata))
    return paths


def _draw_dim(limits: Mapping[str, int | None], generator: random.Random) -> int:
    low, hint = limits["min"] or 1, limits["hint"] or 1
    return generator.randint(low, max(low, limits["max"] or 2 * hint))


def _shapes(inputs: Mapping[str, np.ndarray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, array.shape) for name, array in inputs.items()))
