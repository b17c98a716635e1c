"""``bench_frameworks``: exports what is missing, runs every model on every installed framework, and prints one table."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.adapters.base import UnavailableError
from bench.cells import TWIN
from bench.commands import find_command
from bench.cores import place
from bench.exporting import ExportFailure, export_missing
from bench.exports import write_exports
from bench.fingerprint import fingerprint
from bench.machine import describe_machine
from bench.options import Group, build_groups, chosen_models, parse_options
from bench.own_models import ENTRY_VARIABLE, OwnModel
from bench.progress import Progress
from bench.records import CellRecord
from bench.report import load_renderer
from bench.results import ResultsFile
from bench.stored import group_blocks, stored_lines
from bench.supervisor import Measured, base_record, run_cells
from exporters.models.zoo import ZooModel, all_models
from rml_exec.command import UNAVAILABLE, run_command
from rml_exec.errors import InputError, RmlError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if (command := find_command(arguments)) is not None:
        return command(arguments[1:])
    options = parse_options(arguments)
    return run_command("bench_frameworks", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    zoo = all_models()
    if options.list:
        for model in zoo.values():
            print(f"{model.name:20} {model.framework:6} {model.description}")
        return 0
    models = chosen_models(options, zoo)
    if options.entry is not None:
        os.environ[ENTRY_VARIABLE] = f"{models[-1].name}={options.entry}"
    groups = build_groups(models, options)  # whatever can be known to be wrong is said before anything runs
    if options.export_only:
        return _export_only(models, options)
    render = load_renderer().render
    records: list[CellRecord] = []
    blocks: list[Mapping[str, Any]] = []
    stopped: RmlError | KeyboardInterrupt | None = None
    with _results(options.results) as results, Progress(sys.stderr) as progress:
        _say_where_the_supervisor_runs(groups)
        try:
            _Run(groups, options, results, describe_machine(), progress, records, blocks).measure()
        except (RmlError, KeyboardInterrupt) as error:
            stopped = error  # what has been measured so far is not thrown away
    if records or stopped is None:
        render(records, options.format, sys.stdout, details=options.details)
        write_exports(options.export, records, group_blocks(blocks))
    if stopped is not None:
        raise stopped
    return 1 if any(record.status == "mismatch" for record in records) else 0


def _export_only(models: Sequence[ZooModel | OwnModel], options: argparse.Namespace) -> int:
    with Progress(sys.stderr) as progress:
        failures = export_missing(models, options.graphs, timeout_s=options.timeout, progress=progress.task)
    for name, failure in failures.items():
        print(f"bench_frameworks: {name}: {failure.reason}", file=sys.stderr)
    if any(failure.status == "failed" for failure in failures.values()):
        return 2
    return UNAVAILABLE if failures else 0


def _results(path: Path | None) -> contextlib.AbstractContextManager[ResultsFile | None]:
    if path is None:
        return contextlib.nullcontext()
    try:
        return ResultsFile(path)
    except (OSError, ValueError) as error:
        rule = "must be a file that records can be appended to"
        raise InputError.of(f"--results {path}", rule, error.strerror if isinstance(error, OSError) else error) from error


def _say_where_the_supervisor_runs(groups: Sequence[Group]) -> None:
    shared = []
    for threads in dict.fromkeys(group.threads for group in groups):
        with contextlib.suppress(UnavailableError):  # which will be a row
            shared += [str(threads)] if place(threads).shared else []
    if shared:
        what = "the supervisor has no core of its own; it sleeps while blocks run, but whatever else runs here disturbs them"
        print(f"bench_frameworks: --threads {','.join(shared)}: {what}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything that is measured in one run of the command; ``records``, and ``blocks`` if they are to be exported, fill while it runs."""

    groups: Sequence[Group]
    options: argparse.Namespace
    results: ResultsFile | None
    environment: Mapping[str, Any]
    progress: Progress
    records: list[CellRecord]
    blocks: list[Mapping[str, Any]]

    def measure(self) -> None:
        """Measures one group after the other; the records of cells that a resumed run has already come from the file."""
        options = self.options
        needed = {group.model.name: group.model for group in self.groups}
        failures = export_missing(list(needed.values()), options.graphs, timeout_s=options.timeout, progress=self.progress.task)
        old = self._old()
        if old and options.export:
            self.blocks.extend(stored_lines(options.results))
        for number, group in enumerate(self.groups, 1):
            base = self._base(group)
            done = {arm: old[key] for arm in group.arms if (key := _key(replace(base, framework=arm))) in old}
            left = [arm for arm in group.arms if arm not in done]
            if not left:
                self.records.extend(done.values())
                continue
            self.progress.task(f"[{number}/{len(self.groups)}] {group}")
            failure = failures.get(group.model.name)
            measured = self._measure(group, left) if failure is None else _unexported(base, left, failure)
            new = {record.framework: record for record in measured.records if record.framework in left}
            self.records.extend((done | new)[arm] for arm in group.arms)
            self._append(new.values(), measured.blocks)
            if options.export:
                self.blocks.extend(measured.blocks)

    def _old(self) -> dict[tuple[Any, ...], CellRecord]:
        if self.results is None or not self.options.resume:
            return {}
        return {_key(record): record for record in self.results.records}

    def _base(self, group: Group) -> CellRecord:
        graphs = str(self.options.graphs)
        return base_record(group.model.name, group.threads, graphs=graphs, settings=group.settings, environment=self.environment)

    def _measure(self, group: Group, left: Sequence[str]) -> Measured:
        """Measures the arms that are left, beside those that their records refer to."""
        reference = group.settings.reference
        return run_cells(
            group.model.name,
            group.threads,
            [arm for arm in group.arms if arm in (*left, reference, reference + TWIN)],
            graphs=str(self.options.graphs),
            settings=group.settings,
            environment=self.environment,
            blocks_file=None if self.results is None else self.results.blocks_name,
            progress=self.progress.step,
        )

    def _append(self, records: Iterable[CellRecord], blocks: Sequence[Mapping[str, Any]]) -> None:
        if self.results is None:
            return
        try:
            self.results.append(records, blocks)
        except OSError as error:
            raise InputError.of(f"--results {self.options.results}", "must stay writable; the run ends here", error.strerror) from error


def _key(record: CellRecord) -> tuple[Any, ...]:
    """Returns what a cell's record must agree in with an earlier one for it to stand for that: the machine, the model and all versions."""
    versions = record.environment.get("packages", {}), record.environment.get("rml_exec")
    return record.cell, fingerprint(record), repr(versions)


def _unexported(base: CellRecord, arms: Sequence[str], failure: ExportFailure) -> Measured:
    """Returns the records of a model that could not be exported: there is nothing to check against, so nothing is timed."""
    reason = f"not exported: {failure.reason}"
    records = [replace(base, framework=arm, status=failure.status, reason=reason) for arm in arms]
    return Measured([replace(record, fingerprint=fingerprint(record)) for record in records], [])
