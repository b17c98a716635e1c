"""``bench_frameworks``: exports what is missing, runs every model on every installed framework, and prints one table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from bench.adapters.base import ADAPTERS
from bench.exporting import export_missing
from bench.machine import describe_machine
from bench.records import CellRecord, append_record
from bench.supervisor import REFERENCE, Budget, run_cells
from exporters.models.zoo import ZooModel, all_models, get_model
from rml_exec.errors import InputError, RmlError

__all__ = ["main"]

_FORMATS = ("table", "markdown", "csv", "json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench_frameworks",
        description="Measures the executor against the frameworks its models come from: exports what is missing, checks every cell against the "
        "golden, times it in a pinned process of its own, and prints one table.",
        epilog="exit codes: 0 ok, 1 a cell does not match the golden, 2 bad usage, 5 unavailable on this machine",
    )
    parser.add_argument("--export-only", action="store_true", help="export what is missing, measure nothing")
    parser.add_argument("--graphs", type=Path, default=Path("models/graphs"), metavar="DIR", help="exported models (default %(default)s)")
    parser.add_argument("--models", metavar="A,B", help="models to run (default: all of the zoo)")
    parser.add_argument("--frameworks", metavar="A,B", help=f"arms to run, of {', '.join(ADAPTERS)} (default: all)")
    parser.add_argument("--threads", default="1", metavar="1,2", help="thread counts (default %(default)s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append one JSON line per cell")
    parser.add_argument("--format", choices=_FORMATS, default="table", help="how to print the results (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the models and stop")
    return parser


def _names(text: str | None, known: Sequence[str], what: str) -> list[str]:
    """Returns the comma-separated names, each one known and none twice; all known ones for None."""
    if text is None:
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise InputError.of(f"--{what}", f"must name some of {', '.join(known)}", ", ".join(map(repr, unknown)))
    return names


def _threads(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InputError.of("--threads", "must be whole numbers of at least 1, with commas", repr(text))
    return list(dict.fromkeys(counts))


def _unexported(model: ZooModel, arms: Sequence[str], threads: int, reason: str, environment: dict[str, object]) -> list[CellRecord]:
    """Returns the records of a model that could not be exported: there is nothing to check against, so nothing is timed."""
    return [CellRecord(model.name, arm, threads, "unavailable", f"not exported: {reason}", environment=environment) for arm in arms]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except RmlError as error:
        print(f"bench_frameworks: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("bench_frameworks: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.list:
        for model in all_models().values():
            print(f"{model.name:20} {model.framework:6} {model.description}")
        return 0
    models = [get_model(name) for name in _names(options.models, list(all_models()), "models")]
    arms = _names(options.frameworks, list(ADAPTERS), "frameworks")
    thread_counts = _threads(options.threads)
    from reports.render import Status, render  # pandas and rich come with the extra that this command needs

    with Status() if sys.stderr.isatty() else nullcontext(_log) as progress:
        failures = export_missing([model.name for model in models], options.graphs, progress)
        if options.export_only:
            for name, reason in failures.items():
                print(f"bench_frameworks: {name}: {reason}", file=sys.stderr)
            return 5 if failures else 0
        environment = describe_machine()
        cores = sorted(os.sched_getaffinity(0))
        records: list[CellRecord] = []
        for model in models:
            able = [arm for arm in arms if arm in (REFERENCE, model.framework)]
            for threads in thread_counts:
                if model.name in failures:
                    found = _unexported(model, able, threads, failures[model.name], environment)
                else:
                    found = run_cells(
                        model.name, threads, able, graphs=str(options.graphs), cores=cores, budget=Budget(), environment=environment, progress=progress
                    )
                for record in found:
                    records.append(record)
                    if options.results is not None:
                        append_record(options.results, record)
    render(records, options.format, sys.stdout)
    return 1 if any(record.status == "mismatch" for record in records) else 0


def _log(text: str) -> None:
    print(f"bench_frameworks: {text}", file=sys.stderr, flush=True)
