"""``bench_frameworks``: exports what is missing, runs every model on every installed framework, and prints one table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.adapters.base import ARMS
from bench.exporting import ExportFailure, export_missing
from bench.machine import describe_machine
from bench.progress import Progress
from bench.records import CellRecord, append_record, prepare_results
from bench.supervisor import Budget, run_cells
from exporters.models.zoo import ZooModel, all_models, get_model
from rml_exec.command import UNAVAILABLE, run_command
from rml_exec.errors import InputError, RmlError
from rml_exec.runtime.threads import available_cpus

__all__ = ["main"]

_FORMATS = ("table", "markdown", "csv", "json")


class _MissingLibraryError(RmlError):
    exit_code = UNAVAILABLE


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0; got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench_frameworks",
        description="Measures the executor against the frameworks its models come from: exports what is missing, checks every cell against "
        "the golden, times it in a pinned process of its own, and prints one table.",
        epilog="exit codes: 0 ok, 1 a cell does not match the golden, 2 bad usage or a failed export, 5 unavailable on this machine, 130 interrupted",
    )
    parser.add_argument("--export-only", action="store_true", help="export what is missing, measure nothing")
    parser.add_argument("--graphs", type=Path, default=Path("models/graphs"), metavar="DIR", help="exported models (default %(default)s)")
    parser.add_argument("--models", metavar="A,B", help="models to run, or all (default: the small ones)")
    parser.add_argument("--frameworks", metavar="A,B", help=f"arms to run, of {', '.join(ARMS)} (default: all)")
    parser.add_argument("--threads", default="1", metavar="1,2", help="thread counts (default %(default)s)")
    parser.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="S", help="longest wait for a step of a cell (default %(default)s)"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="append one JSON line per cell")
    parser.add_argument("--format", choices=_FORMATS, default="table", help="how to print the results (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the models and stop")
    return parser


def _names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Returns the comma-separated names, each one known and none twice; all known ones for None."""
    if text is None:
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise InputError.of(option, f"must name some of {', '.join(known)}", ", ".join(map(repr, unknown)))
    return names


def _models(text: str | None, zoo: Mapping[str, ZooModel]) -> list[ZooModel]:
    """Returns the models named, ``all`` of them, or for None the default ones. A name may be that of a variant: ``torch_resnet50-tiny-b8``."""
    if text is None:
        return [model for model in zoo.values() if model.default]
    if text == "all":
        return list(zoo.values())
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name.partition("-")[0] not in zoo]:
        raise InputError.of("--models", f"must be all, or name some of {', '.join(zoo)}", ", ".join(map(repr, unknown)))
    return [zoo[name] if name in zoo else get_model(name) for name in names]


def _threads(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InputError.of("--threads", "must be whole numbers of at least 1, with commas between them", repr(text))
    return list(dict.fromkeys(counts))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parser().parse_args(argv)
    return run_command("bench_frameworks", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    zoo = all_models()
    if options.list:
        for model in zoo.values():
            print(f"{model.name:20} {model.framework:6} {model.description}")
        return 0
    models = _models(options.models, zoo)
    arms = _names("--frameworks", options.frameworks, list(ARMS))
    threads = _threads(options.threads)
    if options.export_only:
        return _export_only(models, options)
    # Whatever can be known to be wrong is said before anything runs.
    groups = [(model, count, able) for model in models if (able := _able(model, arms)) for count in threads]
    if not groups:
        raise InputError.of("--frameworks", "must name an arm that can run one of the models", ", ".join(arms))
    try:
        from reports.render import render
    except ImportError as error:
        raise _MissingLibraryError(f"the table needs pandas and rich ({error}); pip install rml-exec[bench]") from error
    if options.results is not None:
        _prepare(options.results)
    environment = describe_machine()
    records: list[CellRecord] = []
    stopped: RmlError | KeyboardInterrupt | None = None
    with Progress(sys.stderr) as progress:
        try:
            for record in _measure(groups, options, environment, progress):
                records.append(record)
                if options.results is not None:
                    _append(options.results, record)
        except (RmlError, KeyboardInterrupt) as error:
            stopped = error  # what has been measured so far is not thrown away
    if records or stopped is None:
        render(records, options.format, sys.stdout)
    if stopped is not None:
        raise stopped
    return 1 if any(record.status == "mismatch" for record in records) else 0


def _able(model: ZooModel, arms: Sequence[str]) -> list[str]:
    return [arm for arm in arms if model.framework in ARMS[arm].runs]


def _export_only(models: Sequence[ZooModel], options: argparse.Namespace) -> int:
    with Progress(sys.stderr) as progress:
        failures = export_missing(models, options.graphs, timeout_s=options.timeout, progress=progress.task)
    for name, failure in failures.items():
        print(f"bench_frameworks: {name}: {failure.reason}", file=sys.stderr)
    if any(failure.status == "failed" for failure in failures.values()):
        return 2
    return UNAVAILABLE if failures else 0


def _prepare(results: Path) -> None:
    try:
        prepare_results(results)
    except (OSError, ValueError) as error:
        rule = "must be a file that records can be appended to"
        raise InputError.of(f"--results {results}", rule, error.strerror if isinstance(error, OSError) else error) from error


def _append(results: Path, record: CellRecord) -> None:
    try:
        append_record(results, record)
    except OSError as error:
        raise InputError.of(f"--results {results}", "must stay writable; the run ends here", error.strerror) from error


def _measure(
    groups: Sequence[tuple[ZooModel, int, list[str]]], options: argparse.Namespace, environment: Mapping[str, object], progress: Progress
) -> Iterator[CellRecord]:
    """Yields one record per cell, as soon as the cells of its model and thread count are done."""
    needed = {model.name: model for model, _, _ in groups}
    failures = export_missing(list(needed.values()), options.graphs, timeout_s=options.timeout, progress=progress.task)
    cores = sorted(os.sched_getaffinity(0))[: available_cpus()]  # a quota may grant fewer: more would be throttled
    for number, (model, threads, arms) in enumerate(groups, 1):
        progress.task(f"[{number}/{len(groups)}] {model.name}, {threads} thread{'s' if threads > 1 else ''}")
        if (failure := failures.get(model.name)) is not None:
            yield from _unexported(model, arms, threads, failure, environment)
            continue
        yield from run_cells(
            model.name,
            threads,
            arms,
            graphs=str(options.graphs),
            cores=cores,
            budget=Budget(timeout_s=options.timeout),
            environment=environment,
            progress=progress.step,
        )


def _unexported(
    model: ZooModel, arms: Sequence[str], threads: int, failure: ExportFailure, environment: Mapping[str, object]
) -> Iterator[CellRecord]:
    """Yields the records of a model that could not be exported: there is nothing to check against, so nothing is timed."""
    for arm in arms:
        yield CellRecord(model.name, arm, threads, failure.status, f"not exported: {failure.reason}", environment=dict(environment))
