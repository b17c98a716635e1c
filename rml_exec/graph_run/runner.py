"""What ``rml-graph-run`` does, as a library: load, run once, check, time, profile."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rml_exec.errors import GraphFormatError, InputError
from rml_exec.graph_run.compare import Comparison, compare_with_golden
from rml_exec.graph_run.latency import Latency, measure, summarize
from rml_exec.graph_run.profiling import ProfileTotal, profile_total, profiled_runs
from rml_exec.graph_run.single_step import narrow
from rml_exec.graph_run.trace import write_events, write_trace
from rml_exec.graph_run.work import work_of_steps
from rml_exec.ir.format import model_paths
from rml_exec.ir.golden import Golden, graph_hashes, read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import find_model, load_graph
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.profile import ProfileRow, summarize_by_label
from rml_exec.types import DType, TensorType

__all__ = ["Report", "RunOptions", "golden_path", "load_golden", "random_inputs", "run_model"]

_PROFILED_RUNS = 20


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to do with a model; the fields are the command's options.

    Attributes:
        inputs: golden file with inputs (and outputs to check against); None means ``MODEL.golden.safetensors`` or, where that is missing and
            nothing is checked, random ones.
        check: compare one run's outputs with the golden.
        rtol: relative tolerance instead of the golden's own.
        atol: absolute tolerance instead of the golden's own.
        bench: calls to time, 0 for none.
        warmup: calls before them, not timed.
        threads: threads to use, None for all that the process may use.
        profile: report the time per step label.
        fuse: False turns every fusion off.
        numerics: "fast" or "exact".
        events: file for the event log of one profiled run.
        trace: file for the Perfetto trace of one profiled run.
    """

    inputs: Path | None = None
    check: bool = False
    rtol: float | None = None
    atol: float | None = None
    bench: int = 0
    warmup: int = 10
    threads: int | None = None
    profile: bool = False
    fuse: bool = True
    numerics: str = "fast"
    events: Path | None = None
    trace: Path | None = None

    def create(self, model: str | Path) -> Executor:
        """Returns the executor of a model under these options."""
        return Executor.create(load_graph(model), threads=self.threads, fuse=self.fuse, numerics=self.numerics)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. ``to_json`` is the command's one line of output.

    ``remark`` is what the golden that was checked with says about itself: why it proves little. Empty if it proves what it should.
    ``drawn`` is True if there was no golden and the inputs are random.
    """

    model: str
    threads: int
    load_ms: float
    comparison: Comparison | None = None
    latency: Latency | None = None
    profile: tuple[ProfileRow, ...] | None = None
    total: ProfileTotal | None = None
    remark: str = ""
    drawn: bool = False

    @property
    def passed(self) -> bool:
        return self.comparison is None or self.comparison.passed

    def to_dict(self) -> dict[str, object]:
        """Returns the fields in the order in which the command prints them; a number that is not finite becomes null."""
        found: dict[str, object] = {"model": self.model, "threads": self.threads, "load_ms": self.load_ms}
        if self.comparison is not None:
            found["check"] = "pass" if self.comparison.passed else "fail"
            found["max_abs_error"] = _finite(self.comparison.max_abs_error)
            found["max_rel_error"] = _finite(self.comparison.max_rel_error)
        if self.latency is not None:
            found.update(asdict(self.latency))
        if self.profile is not None:
            found["profile"] = [asdict(row) for row in self.profile]
        if self.total is not None:
            found["profile_total"] = asdict(self.total)
        return found

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def golden_path(model: str | Path) -> Path:
    """Returns where the golden of a model lies: ``MODEL.golden.safetensors``."""
    return model_paths(model).golden


def load_golden(model: str | Path, path: Path | None = None) -> Golden:
    """Returns a golden that belongs to the model.

    Raises:
        GraphFormatError: the file is missing or broken.
        InputError: its hashes are those of another graph or other weights.
    """
    source = golden_path(model) if path is None else path
    if path is None and not source.exists():
        hint = "export the model again, which writes it, or name a file with --inputs"
        raise GraphFormatError.of(str(source), "there is no golden, which holds inputs and what to check against", hint=hint)
    golden = read_golden(source)
    for key, found in graph_hashes(model_paths(model).graph).items():
        if key in golden.metadata and golden.metadata[key] != found:
            raise InputError.of(
                str(source),
                f"is the golden of another model: its {key} must be that of {model}",
                f"{golden.metadata[key][:12]}..., the model has {found[:12]}...",
                hint="export the model again",
            )
    return golden


def random_inputs(graph: Graph) -> dict[str, np.ndarray]:
    """Returns inputs for a model without a golden, the same each time: floats are N(0, 1), integers 0 (an index that every table has)."""
    generator = np.random.default_rng(0)
    return {value.name: _random(value.type, generator) for value in graph.inputs}


def _random(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    if type_.dtype is DType.BOOL:
        return np.asarray(generator.random(type_.shape) < 0.5)
    if not type_.dtype.is_float:
        return np.zeros(type_.shape, type_.dtype.numpy)
    return narrow(np.asarray(generator.standard_normal(type_.shape)), type_, flush=False)


def _checked_outputs(executor: Executor, golden: Golden, source: object) -> None:
    missing = [name for name in executor.output_names if name not in golden.outputs]
    if missing:
        raise GraphFormatError.of(str(source), "must hold every output of the model to check against", f"no out.{missing[0]}")


def _check_targets(model: str | Path, options: RunOptions) -> None:
    """Raises InputError if a file to write is one that is read, or two are one."""
    taken = {os.path.realpath(path): f"{path}, which is read" for path in (*model_paths(model), options.inputs) if path is not None}
    for name, path in (("--events", options.events), ("--trace", options.trace)):
        if path is not None and taken.setdefault(os.path.realpath(path), f"the file of {name}") != f"the file of {name}":
            raise InputError.of(name, "must name a file of its own", taken[os.path.realpath(path)])


def run_model(model: str | Path, options: RunOptions | None = None) -> Report:
    """Returns what running the model showed.

    The order is the one that users can reason about: load and create (timed as ``load_ms``), one run, whose outputs are the ones checked and
    which is not timed, then the warm-up and the timed runs, then the profiled ones, each beside a plain one.

    Args:
        model: path prefix or ``.json`` of an exported model, or a file that is imported.
        options: what to do; default nothing but one run.

    Raises:
        RmlError: a bad model, golden, input or option.
    """
    options = options or RunOptions()
    found = find_model(model, golden=options.check and options.inputs is None)
    model = found if isinstance(found, str) else Path(found)
    _check_targets(model, options)
    start = time.perf_counter()
    executor = options.create(model)
    load_ms = (time.perf_counter() - start) * 1e3
    drawn = not options.check and options.inputs is None and not golden_path(model).exists()
    golden = Golden(random_inputs(executor.graph), {}) if drawn else load_golden(model, options.inputs)
    inputs: Mapping[str, np.ndarray] = golden.inputs
    if options.check:
        _checked_outputs(executor, golden, options.inputs or golden_path(model))
    outputs = executor.run(inputs)
    comparison = compare_with_golden(outputs, golden, rtol=options.rtol, atol=options.atol) if options.check else None
    latency = None
    if options.bench:
        latency = summarize(measure(lambda: executor.run(inputs), iterations=options.bench, warmup=options.warmup))
    profile, total = None, None
    if options.profile:
        profiles, plain_ns = profiled_runs(executor, inputs, options.bench or _PROFILED_RUNS)
        profile = tuple(summarize_by_label(profiles, [(work.flops, work.bytes) for work in work_of_steps(executor)]))
        total = profile_total(profiles, plain_ns)
    if options.events or options.trace:
        one_run = executor.run_profiled(inputs)[1]
        if options.events:
            write_events(options.events, executor, one_run)
        if options.trace:
            write_trace(options.trace, executor, one_run)
    remark = golden.metadata.get("remark", "") if options.check else ""
    return Report(model_paths(model).name, executor.threads, load_ms, comparison, latency, profile, total, remark, drawn)
