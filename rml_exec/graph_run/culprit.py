"""``rml-graph-run MODEL --bisect``: looks at every step, names the first wrong one, and writes it as a model of its own that shows the fault."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rml_exec
from rml_exec.errors import InputError
from rml_exec.graph_run.bisect import FACTOR, Finding, StepError, bisect_steps, excess_of
from rml_exec.graph_run.compare import compare_with_golden
from rml_exec.graph_run.rounding import Rounded
from rml_exec.graph_run.runner import RunOptions, load_golden, random_inputs
from rml_exec.graph_run.single_step import narrow
from rml_exec.ir.format import model_paths
from rml_exec.ir.golden import Golden, graph_hashes, write_golden
from rml_exec.loading import find_model, load_graph, save_graph
from rml_exec.runtime.binding import graph_for
from rml_exec.runtime.executor import Executor
from rml_exec.types import TensorType

__all__ = ["Bisection", "bisect_model", "write_culprit"]

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Bisection:
    """What was found about a model.

    Attributes:
        model: its name.
        threads: threads that the steps ran on.
        rows: the errors of every step, in order.
        repro: path prefix of the model that shows the culprit; None if there is none, or if the passes are to blame.
        reproduces: whether that model, loaded again, fails its check; None without one.
    """

    model: str
    threads: int
    rows: tuple[StepError, ...]
    repro: str | None = None
    reproduces: bool | None = None

    @property
    def culprit(self) -> StepError | None:
        """The first wrong step."""
        return next((row for row in self.rows if row.is_wrong()), None)

    def to_json(self) -> str:
        """Returns one line of JSON."""
        culprit = self.culprit
        found = {
            "model": self.model,
            "threads": self.threads,
            "factor": FACTOR,
            "culprit": None if culprit is None else culprit.to_dict(),
            "wrong": [row.step for row in self.rows if row.is_wrong()],
            "repro": self.repro,
            "reproduces": self.reproduces,
            "steps": [row.to_dict() for row in self.rows],
        }
        return json.dumps(found, allow_nan=False)

    def to_text(self) -> str:
        """Returns a short table: the culprit and the steps that came nearest to being one, in order, and a sentence."""
        worst = sorted(self.rows, key=lambda row: -max(row.excess, row.rewrite_excess))[:_SHOWN]
        shown = sorted({row.step: row for row in (*worst, *filter(None, [self.culprit]))}.items())
        lines = [
            f"{'step':>5}  {'local error':>11}  {'expected':>9}  {'times':>8}  {'propagated':>10}  {'relative':>9}  terms  label: node"
        ]
        for number, row in shown:
            mark = "*" if row is self.culprit else " "
            lines.append(
                f"{mark}{number:4}  {row.local_error:11.2e}  {row.expected_error:9.2e}  {max(row.excess, row.rewrite_excess):8.2g}  "
                f"{row.propagated_error:10.2e}  {row.propagated_relative:9.2e}  {row.terms:5}  {_short(row.label)}: {row.node}"
            )
        return "\n".join((*lines, self._verdict()))

    def _verdict(self) -> str:
        culprit = self.culprit
        if culprit is None:
            return f"no step of {len(self.rows)} is off by more than {FACTOR:g} times what rounding explains"
        times = max(culprit.excess, culprit.rewrite_excess)
        if max(culprit.excess, culprit.rewrite_excess) <= FACTOR:
            return f"step {culprit.step} '{culprit.node}' comes out otherwise in the run than alone: something overwrites what it reads or writes"
        if culprit.excess <= FACTOR:
            covered = ", ".join(culprit.covers) or "none"
            return f"step {culprit.step} '{culprit.node}' is not what the graph says, by {times:.3g} times: the passes changed {covered}"
        shown = "" if self.repro is None else f"; rml-graph-run {self.repro} --check shows it"
        if self.reproduces is False:
            shown = f"; {self.repro} alone does not show it: the step comes out otherwise there"
        return f"step {culprit.step} '{culprit.node}' ({culprit.kernel}) is off by {times:.3g} times what rounding explains{shown}"


def _short(label: str) -> str:
    return label if len(label) <= 40 else label[:37] + "..."


def bisect_model(model: str | Path, options: RunOptions | None = None, out: str | None = None) -> Bisection:
    """Returns the errors of every step of a model on its golden's inputs (random ones if it has none), and writes the culprit, if there is one.

    Args:
        model: path prefix or ``.json`` of an exported model, or a file that is imported.
        options: inputs, threads, fusion and numerics; the rest is not looked at.
        out: path prefix of the model that is written; ``NAME.culprit`` in the current directory if None.

    Raises:
        RmlError: a bad model, golden or option, or files that cannot be written.
    """
    options = options or RunOptions()
    model = Path(find_model(model))
    name = model_paths(model).name
    out = out if out is not None else f"{name}.culprit"
    _check_target(model, options, out)
    loaded = load_graph(model)
    drawn = options.inputs is None and not model_paths(model).golden.exists()
    golden = Golden(random_inputs(loaded), {}) if drawn else load_golden(model, options.inputs)
    graph = graph_for(loaded, golden.inputs)
    executor = Executor.create(graph, threads=options.threads, fuse=options.fuse, numerics=options.numerics)
    executor.run(golden.inputs)  # says what is wrong with the inputs, if anything is
    rows: list[StepError] = []
    culprit: Finding | None = None
    for finding in bisect_steps(executor, golden.inputs):
        rows.append(finding.error)
        if culprit is None and finding.error.is_wrong():
            culprit = finding
    if culprit is None or culprit.error.excess <= FACTOR:
        return Bisection(name, executor.threads, tuple(rows))
    reproduces = write_culprit(culprit, out, options)
    return Bisection(name, executor.threads, tuple(rows), out, reproduces)


def _check_target(model: Path, options: RunOptions, out: str) -> None:
    read = {os.path.realpath(path) for path in (*model_paths(model), options.inputs) if path is not None}
    if clash := [path for path in model_paths(out) if os.path.realpath(path) in read]:
        raise InputError.of("--out", "must name files of its own", f"{clash[0]}, which is read")


def write_culprit(finding: Finding, prefix: str, options: RunOptions) -> bool:
    """Writes a step as a model with golden: its inputs from the reference, its outputs in float64, rounded; tolerances that the fault breaks.

    Returns:
        Whether the model, loaded and run under the same options, fails its check.
    """
    paths = model_paths(prefix)
    paths.golden.unlink(missing_ok=True)  # the golden marks a finished model: none must stand beside another graph
    save_graph(finding.step.in_file(), prefix)
    types = {output.name: value.type for output, value in zip(finding.step.graph.outputs, finding.step.node.outputs, strict=True)}
    outputs, metadata = {}, {"framework": "rml_exec", "framework_version": rml_exec.__version__, "seed": "0", "threads": "1"}
    for (name, type_), wanted, got in zip(types.items(), finding.wanted, finding.got, strict=True):
        outputs[name] = narrow(wanted.value, type_, flush=False)
        metadata |= {f"rtol.{name}": "0.0", f"atol.{name}": repr(_tolerance(got, wanted, type_)), f"rms_error.{name}": "0.0"}
    golden = Golden(finding.inputs, outputs, {**metadata, **graph_hashes(paths.graph)})
    keyed = {f"in.{value.name}": value.type for value in finding.step.graph.inputs} | {
        f"out.{name}": type_ for name, type_ in types.items()
    }
    write_golden(paths.golden, golden, keyed)
    executor = Executor.create(load_graph(prefix), threads=options.threads, fuse=options.fuse, numerics=options.numerics)
    return not compare_with_golden(executor.run(golden.inputs), golden).passed


def _tolerance(got: np.ndarray, wanted: Rounded, type_: TensorType) -> float:
    """Returns an absolute tolerance: what rounding explains anywhere in the result or, where the fault hides below that, at its worst element."""
    if not type_.dtype.is_float:
        return 0.0
    error, excess, expected = excess_of(got, wanted, type_)
    finite: Any = wanted.error[np.isfinite(wanted.error)]
    anywhere = FACTOR * float(finite.max(initial=0.0))
    return anywhere if error > anywhere or excess <= FACTOR else FACTOR * expected
