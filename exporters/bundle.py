"""Writes an export: graph, weights, golden. The golden comes last and carries the hashes of the others, so it marks a finished export."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporters.errors import ExportError
from rml_exec.errors import GraphFormatError, RmlError
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph, save_graph
from rml_exec.runtime.reference import run_reference

__all__ = ["ExportSummary", "Tolerances", "derive_tolerances", "is_finished", "write_export"]

RTOL = 2e-5
ATOL_RMS = 2e-5
ERROR_FACTOR = 4.0
"""How far a golden's tolerance stretches beyond the framework's own error against float64."""

MAX_RMS_ERROR = 1e-4
MAX_ERROR = 1e-3
"""Beyond these, relative to the output's rms, framework and reference compute different things: rounding stays far below."""

F16_FACTOR = 100.0
"""How much more a float16 output may differ."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export wrote.

    Attributes:
        name: the graph's name.
        nodes: number of graph nodes.
        parameters: elements of all weights, tied weights counted once.
        weight_bytes: size of these weights in bytes.
        golden_error: the framework's RMS error against the float64 reference, relative to the output's rms; the largest of all outputs.
    """

    name: str
    nodes: int
    parameters: int
    weight_bytes: int
    golden_error: float

    def __str__(self) -> str:
        size = f"{self.weight_bytes / 1e6:.2f} MB"
        return f"{self.name}: {self.nodes} nodes, {self.parameters:,} parameters, {size}, golden error {self.golden_error:.1e} of rms"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How close an executor must come to a framework's output, and how close the framework itself came to float64."""

    rtol: float
    atol: float
    rms_error: float
    relative_rms_error: float


def derive_tolerances(name: str, got: np.ndarray, reference: np.ndarray) -> Tolerances:
    """Returns the tolerances of one output.

    rtol is 2e-5 and atol is 2e-5 of the output's rms, or four times the framework's largest error where that is more. Integers and bools
    are exact.

    Args:
        name: interface name of the output, for the message.
        got: what the framework computed.
        reference: what the reference interpreter computed in float64, of the same shape.

    Raises:
        ExportError: they differ by more than rounding explains; the message has the figures.
    """
    where, rule = f"output '{name}'", "the graph must give what the framework gives"
    if got.shape != reference.shape:
        raise ExportError.of(where, rule, f"shape {list(reference.shape)} for {list(got.shape)}")
    if got.dtype.kind != "f":
        if got.dtype != reference.dtype:
            raise ExportError.of(where, rule, f"{reference.dtype} for {got.dtype}")
        if different := int(np.count_nonzero(got != reference)):
            raise ExportError.of(where, rule, f"{different} of {got.size} elements that differ")
        return Tolerances(0.0, 0.0, 0.0, 0.0)
    wide = got.astype(np.float64)
    same = (wide == reference) | (np.isnan(wide) & np.isnan(reference))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(wide - reference))
    if not np.isfinite(error).all():
        strange = np.count_nonzero(~np.isfinite(error))
        raise ExportError.of(where, rule, f"{strange} of {got.size} elements that are NaN or infinite on one side only")
    rms, rms_error, largest = _rms(wide[np.isfinite(wide)]), _rms(error), float(error.max(initial=0.0))
    scale = rms * (F16_FACTOR if got.dtype.itemsize < 4 else 1.0)
    if rms_error > MAX_RMS_ERROR * scale or largest > MAX_ERROR * scale:
        figures = f"an rms error of {rms_error:.3g} and a largest error of {largest:.3g} at an rms of {rms:.3g}"
        hint = "a lowering computes something else, or the model is not deterministic"
        raise ExportError.of(where, rule + " up to rounding", figures, hint=hint)
    return Tolerances(RTOL, max(ATOL_RMS * rms, ERROR_FACTOR * largest), rms_error, rms_error / rms if rms else 0.0)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _paths(prefix: Path) -> tuple[Path, Path, Path]:
    """Returns the paths of graph, weights and golden. A prefix may hold dots, so suffixes are appended, not replaced."""
    graph, weights, golden = (prefix.with_name(prefix.name + suffix) for suffix in (".json", ".safetensors", ".golden.safetensors"))
    return graph, weights, golden


def write_export(
    graph: Graph,
    prefix: str | Path,
    *,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    framework: str,
    framework_version: str,
    seed: int,
    threads: int,
) -> ExportSummary:
    """Writes ``PREFIX.json``, ``PREFIX.safetensors`` and, when they agree with the framework, ``PREFIX.golden.safetensors``.

    What was written is loaded again and run by the reference interpreter in float64; the golden's tolerances come from that. A golden of an
    earlier export is removed first: at any moment :func:`is_finished` tells a finished export from the remains of an interrupted one.

    Args:
        graph: the exported graph.
        prefix: path without suffix; its directory is made if missing.
        inputs: golden inputs by interface name.
        outputs: what the framework computed from them, by interface name.
        framework: name of the framework, ``torch``.
        framework_version: its version.
        seed: seed of the golden inputs.
        threads: number of threads the framework ran with.

    Raises:
        ExportError: the directory cannot be written, or the graph does not give what the framework gives. No file of the export is left
            then.
    """
    prefix = Path(prefix)
    paths = _paths(prefix)
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for golden in prefix.parent.glob(f"{glob.escape(prefix.name)}.golden*.safetensors"):
            golden.unlink()
        save_graph(graph, prefix)
        written = load_graph(prefix)
        tolerances = _check(written, inputs, outputs)
        metadata = {
            "framework": framework,
            "framework_version": framework_version,
            "seed": str(seed),
            "threads": str(threads),
            **graph_hashes(paths[0]),
        }
        for name, tolerance in tolerances.items():
            for figure in ("rtol", "atol", "rms_error"):
                metadata[f"{figure}.{name}"] = repr(getattr(tolerance, figure))
        write_golden(paths[2], Golden(dict(inputs), dict(outputs), metadata))
    except (OSError, GraphFormatError) as error:
        _remove(paths)
        raise ExportError.of(f"export to '{prefix}'", "its directory must be writable and have room", str(error).rstrip(".")) from error
    except RmlError:
        _remove(paths)
        raise
    weights = {constant.key: constant.type for constant in graph.constants if constant.key is not None}
    return ExportSummary(
        graph.name,
        len(graph.nodes),
        sum(weight.size for weight in weights.values()),
        sum(weight.nbytes for weight in weights.values()),
        max((tolerance.relative_rms_error for tolerance in tolerances.values()), default=0.0),
    )


def _check(graph: Graph, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> dict[str, Tolerances]:
    """Returns the tolerances of every output; raises ExportError where the graph and the framework disagree, or their output names do."""
    names = [output.name for output in graph.outputs]
    if sorted(names) != sorted(outputs):
        raise ExportError.of("export", "graph and framework must have the same outputs", f"{', '.join(names)} and {', '.join(outputs)}")
    types = graph.types()
    reference = run_reference(graph, inputs, precision="f64")
    for output in graph.outputs:
        recorded, given = types[output.value].dtype.numpy, outputs[output.name].dtype
        if recorded != given:
            raise ExportError.of(f"output '{output.name}'", "the graph must have the framework's dtype", f"{recorded} for {given}")
    return {name: derive_tolerances(name, outputs[name], reference[name]) for name in names}


def _remove(paths: tuple[Path, ...]) -> None:
    """Removes the files of a failed export, the golden first; what cannot be removed stays, unfinished."""
    with contextlib.suppress(OSError):
        for path in reversed(paths):
            path.unlink(missing_ok=True)


def is_finished(prefix: str | Path) -> bool:
    """True if the export at ``prefix`` is whole: its golden is there and was made of this very graph and these weights."""
    json_path, _, golden_path = _paths(Path(prefix))
    try:
        metadata = read_golden(golden_path).metadata
        return all(metadata.get(key) == value for key, value in graph_hashes(json_path).items())
    except (OSError, RmlError):
        return False
