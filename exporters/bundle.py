"""Writes an export: graph, weights, goldens. The first golden comes last and carries their hashes, so it marks a finished export."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import glob
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporters.errors import ExportError, describe
from exporters.golden_sets import (
    GoldenSet,
    Intermediates,
    Tolerances,
    derive_tolerances,
    first_difference,
    from_floats,
    remarks_on,
    undecided_elements,
)
from exporters.progress import report
from rml_exec.errors import GraphFormatError, RmlError
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.ir.graph import Body, Function, Graph
from rml_exec.loading import load_graph, save_graph
from rml_exec.ops import get_op
from rml_exec.runtime.binding import graph_for
from rml_exec.runtime.reference import run_reference

__all__ = ["ExportSummary", "Tolerances", "check_prefix", "count_flops", "derive_tolerances", "is_finished", "write_export"]


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export wrote.

    Attributes:
        name: the graph's name.
        nodes: number of graph nodes.
        parameters: elements of all weights, tied weights counted once.
        weight_bytes: size of these weights in bytes.
        golden_error: the framework's RMS error against the float64 reference, relative to the output's rms; the largest of all outputs.
        ops: number of different ops among the nodes.
        flops: floating-point operations of one run, at the hints of symbolic dims.
        remarks: why the goldens prove less than they should, as :func:`exporters.golden_sets.remarks_on` says it.
    """

    name: str
    nodes: int
    parameters: int
    weight_bytes: int
    golden_error: float
    ops: int = 0
    flops: int = 0
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.weight_bytes / 1e6:.2f} MB"
        counts = f"{self.nodes} nodes of {self.ops} ops, {self.parameters:,} parameters, {size}, {self.flops / 1e6:,.1f} MFLOP"
        remark = f". Remark: the golden proves little, for {'; '.join(self.remarks)}." if self.remarks else ""
        return f"{self.name}: {counts}, golden error {self.golden_error:.1e} of rms{remark}"


def count_flops(graph: Graph) -> int:
    """Returns the floating-point operations of one run, by the ops' own counts.

    What a node's functions do is counted once, times the length for a ``scan``: how often a ``while`` runs is not known.
    """
    return _flops(graph, graph.functions)


def _flops(body: Body, functions: Mapping[str, Function]) -> int:
    types = body.types()
    total = 0
    for node in body.nodes:
        op = get_op(node.op)
        if op.flops:
            operands = [None if name is None else types[name] for name in node.inputs]
            total += op.flops(operands, tuple(value.type for value in node.outputs), node.attrs)
        total += node.attrs.get("length", 1) * sum(_flops(functions[name], functions) for name in op.calls(node.attrs))
    return total


def check_prefix(prefix: str | os.PathLike[str]) -> Path:
    """Returns where an export goes: the path that suffixes are appended to.

    Raises:
        ExportError: it names a directory, or files that belong to another export: ``z.golden`` would overwrite the golden of ``z``.
    """
    text = os.fspath(prefix)
    path, where = Path(text), f"export to '{text}'"
    if text.endswith(("/", os.sep)) or path.name in ("", "..") or path.is_dir():
        raise ExportError.of(where, "takes a path without suffix, not a directory", hint=f"{os.path.join(text, 'NAME')}")
    if re.search(r"\.(json|safetensors|golden(\.\d+)?)$", path.name):
        rule = "takes a path without suffix: NAME.json, NAME.safetensors and NAME.golden.safetensors are made from it"
        raise ExportError.of(where, rule)
    return path


def _paths(prefix: Path) -> tuple[Path, Path, Path]:
    """Returns the paths of graph, weights and first golden. A prefix may hold dots, so suffixes are appended, not replaced."""
    graph, weights, golden = (prefix.with_name(prefix.name + suffix) for suffix in (".json", ".safetensors", ".golden.safetensors"))
    return graph, weights, golden


def _goldens(prefix: Path) -> list[Path]:
    """Returns the goldens that lie there, the first one first."""
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.golden*.safetensors"), key=lambda path: (len(path.name), path.name))


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
    further: Sequence[GoldenSet] = (),
    intermediates: Intermediates | None = None,
) -> ExportSummary:
    """Writes ``PREFIX.json``, ``PREFIX.safetensors`` and, when they agree with the framework, ``PREFIX.golden.safetensors``.

    What was written is loaded again and run by the reference interpreter in float64; the golden's tolerances come from that. A golden of an
    earlier export is removed first: at any moment :func:`is_finished` tells a finished export from the remains of an interrupted one.

    Args:
        graph: the exported graph; a caller that keeps no reference to it saves its weights' memory during the check.
        prefix: path without suffix; its directory is made if missing.
        inputs: golden inputs by interface name; of a graph with symbolic dims, at their hints.
        outputs: what the framework computed from them, by interface name.
        framework: name of the framework, ``torch``.
        framework_version: its version.
        seed: seed of the golden inputs.
        threads: number of threads the framework ran with.
        further: more sets, written as ``PREFIX.golden.1.safetensors``...; of a graph with symbolic dims, at any values of them.
        intermediates: asked only when outputs differ, to find the first node that does.

    Raises:
        ExportError: a prefix as :func:`check_prefix` refuses it, a graph without outputs, a directory that cannot be written, or the graph
            does not give what the framework gives. No file of the export is left then, nor after an interrupt.
    """
    prefix = check_prefix(prefix)
    if not graph.outputs:
        raise ExportError.of(f"export of '{graph.name}'", "the model must return at least one tensor", "none")
    paths = _paths(prefix)
    sets = [GoldenSet(inputs, outputs, seed), *further]
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for stale in _goldens(prefix):
            stale.unlink()
        report("writing")
        save_graph(graph, prefix)
        del graph  # where the caller gave it away its weights go here: what follows maps those of the file
        _give_memory_back()
        report("comparing with float64")
        written = load_graph(prefix)
        tolerances, masks = zip(*(_check(graph_for(written, golden.inputs), golden, intermediates) for golden in sets), strict=True)
        produced = {"framework": framework, "framework_version": framework_version, "threads": str(threads), **graph_hashes(paths[0])}
        remarks = [[*_undecided(mask), *others] for mask, others in zip(masks, remarks_on(written, sets), strict=True)]
        for number, (golden, figures) in reversed(list(enumerate(zip(sets, tolerances, strict=True)))):
            path = paths[2] if number == 0 else prefix.with_name(f"{prefix.name}.golden.{number}.safetensors")
            metadata = _metadata(produced, golden, figures, remarks[number])
            write_golden(path, Golden(golden.inputs, golden.outputs, metadata, masks[number]))
    except (OSError, GraphFormatError) as error:
        _remove(prefix)
        raise ExportError.of(f"export to '{prefix}'", "its directory must be writable and have room", str(error).rstrip(".")) from error
    except (Exception, KeyboardInterrupt, SystemExit):
        _remove(prefix)
        raise
    bodies = (written, *written.functions.values())
    weights = {constant.key: constant.type for body in bodies for constant in body.constants if constant.key is not None}
    return ExportSummary(
        written.name,
        sum(len(body.nodes) for body in bodies),
        sum(weight.size for weight in weights.values()),
        sum(weight.nbytes for weight in weights.values()),
        max((tolerance.relative_rms_error for figures in tolerances for tolerance in figures.values()), default=0.0),
        len({node.op for body in bodies for node in body.nodes}),
        count_flops(written),
        tuple(dict.fromkeys(itertools.chain.from_iterable(remarks))),
    )


def _give_memory_back() -> None:
    """Frees what exporters left in cycles (operations and values that refer to each other), and hands it to the system.

    The C library keeps freed weights for later, and the check would need as much again for those of the file.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # of another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _metadata(produced: Mapping[str, str], golden: GoldenSet, figures: Mapping[str, Tolerances], remarks: Sequence[str]) -> dict[str, str]:
    metadata = {**produced, "seed": str(golden.seed)}
    if remarks:
        metadata["remark"] = "; ".join(remarks)
    for name, tolerance in figures.items():
        for figure in ("rtol", "atol", "rms_error"):
            metadata[f"{figure}.{name}"] = repr(getattr(tolerance, figure))
    return metadata


def _undecided(masks: Mapping[str, np.ndarray]) -> list[str]:
    return [f"rounding decides {np.count_nonzero(mask)} of {mask.size} elements of output '{name}'" for name, mask in masks.items()]


def _check(graph: Graph, golden: GoldenSet, intermediates: Intermediates | None) -> tuple[dict[str, Tolerances], dict[str, np.ndarray]]:
    """Returns the tolerances of every output, and of those that have any which elements rounding decides.

    Raises:
        ExportError: the graph and the framework disagree, or their output names do.
    """
    names = [output.name for output in graph.outputs]
    outputs = golden.outputs
    if sorted(names) != sorted(outputs):
        raise ExportError.of("export", "graph and framework must have the same outputs", f"{', '.join(names)} and {', '.join(outputs)}")
    types = graph.types()
    reference = run_reference(graph, golden.inputs, precision="f64")
    for output in graph.outputs:
        recorded, given = types[output.value].dtype.numpy, outputs[output.name].dtype
        if recorded != given:
            raise ExportError.of(f"output '{output.name}'", "the graph must have the framework's dtype", f"{recorded} for {given}")
    try:
        undecided = _undecided_outputs(graph, golden, reference)
        decided = {
            name: np.where(undecided[name], outputs[name], reference[name]) if name in undecided else reference[name] for name in names
        }
        return {name: derive_tolerances(name, outputs[name], decided[name]) for name in names}, undecided
    except ExportError as error:
        if intermediates is None:
            raise
        report("looking for the first node that differs")
        try:
            found = first_difference(graph, golden.inputs, intermediates(golden.inputs))
        except Exception as failure:  # whatever a framework raises when it runs a model in pieces
            found = f"The first node that differs could not be found: {describe(failure)}."
        raise ExportError(f"{error} {found}") from error


def _undecided_outputs(graph: Graph, golden: GoldenSet, wide: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns which elements of integer and bool outputs rounding decides, of the outputs that have such elements."""
    types, rounded = graph.types(), from_floats(graph)
    names = [
        output.name
        for output in graph.outputs
        if output.value in rounded
        and not types[output.value].dtype.is_float
        and wide[output.name].shape == golden.outputs[output.name].shape
    ]
    if not names:
        return {}
    narrow = run_reference(graph, golden.inputs, precision="f32")
    masks = {name: undecided_elements(name, golden.outputs[name], narrow[name], wide[name]) for name in names}
    return {name: mask for name, mask in masks.items() if mask.any()}


def _remove(prefix: Path) -> None:
    """Removes the files of a failed export, the first golden first; what cannot be removed stays, unfinished."""
    graph, weights, golden = _paths(prefix)
    with contextlib.suppress(OSError):
        for path in (golden, *_goldens(prefix), weights, graph):
            path.unlink(missing_ok=True)


def is_finished(prefix: str | Path, *, goldens: int = 1) -> bool:
    """True if the export at ``prefix`` is whole: its golden is there and was made of this very graph and these weights.

    ``goldens`` is how many golden sets there must be at least.
    """
    json_path, _, golden_path = _paths(Path(prefix))
    if len(_goldens(Path(prefix))) < goldens:
        return False
    try:
        metadata = read_golden(golden_path).metadata
        return all(metadata.get(key) == value for key, value in graph_hashes(json_path).items())
    except (OSError, RmlError):
        return False
