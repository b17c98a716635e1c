"""The options of ``bench_frameworks``: what they are called, what they stand for, and what is wrong with them, said before anything runs."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.adapters.base import ARMS, find_arm, interpreter_of
from bench.cells import TWIN
from bench.commands import COMMANDS
from bench.exports import EXPORTS
from bench.own_models import OwnModel, from_entry, from_onnx, from_path
from bench.records import REFERENCE, SCENARIOS, SETUPS
from bench.settings import ORDERS, PRESETS, Settings, duration, min_time, precision
from exporters.models.zoo import ZooModel, get_model
from rml_exec.command import CommandParser
from rml_exec.errors import InputError
from rml_exec.runtime.threads import available_cpus

__all__ = ["FORMATS", "Group", "build_groups", "chosen_models", "parse_options"]

_GRAPHS = Path("models/graphs")
FORMATS = ("table", "markdown", "csv", "json", "html")


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that are measured side by side: one model, thread count, scenario and setup, and the arms that can run the model."""

    model: ZooModel | OwnModel
    threads: int
    settings: Settings
    arms: tuple[str, ...]

    def __str__(self) -> str:
        parts = [self.model.name, f"{self.threads} thread{'s' if self.threads > 1 else ''}"]
        parts += [self.settings.scenario] if self.settings.scenario != "latency" else []
        parts += [self.settings.setup] if self.settings.setup != "tuned" else []
        return ", ".join(parts)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options; those that a preset stands for are filled in. Exits with 2 on those that no line of help describes."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.models is not None:
        options.models = ",".join(options.models)
    if options.entry is not None:
        if len(options.entry) > 1:
            parser.error(f"--entry: may be given once; got {' and '.join(options.entry)}")
        options.entry = options.entry[0]
    for name, value in PRESETS[options.preset].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    return options


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="bench_frameworks",
        description="Measures the executor against the frameworks its models come from: exports what is missing, checks every cell against "
        "the golden, times all arms of a model in alternating blocks, and prints one table.",
        epilog="exit codes: 0 ok, 1 a cell does not match the golden, 2 bad usage or a failed export, 5 unavailable on this machine, "
        "130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP"
        + (f". Further commands: bench_frameworks {' | '.join(COMMANDS)}" if COMMANDS else ""),
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--models", action="append", metavar="A,B", help="models, by name or path prefix, or all (default: the small ones); may be repeated"
    )
    what.add_argument("--onnx", action="append", default=[], metavar="FILE", help="an ONNX file to run; may be repeated")
    what.add_argument(
        "--entry", action="append", metavar="PACKAGE.MODULE:BUILD", help="a function that returns (model, example inputs), with --from"
    )
    what.add_argument("--from", dest="framework", choices=("torch", "jax", "tf"), help="what --entry is written in")
    what.add_argument(
        "--frameworks",
        metavar="A,B",
        help=f"arms to run, of {', '.join(ARMS)}; ARM@PYTHON runs one under another interpreter (default: all)",
    )
    what.add_argument("--threads", metavar="1,2", help="thread counts, or all for one and as many as there are (default 1)")
    what.add_argument("--scenario", metavar="A,B", help=f"{', '.join(SCENARIOS)}, or all (default latency)")
    what.add_argument("--setup", metavar="A,B", help=f"{', '.join(SETUPS)}, or all (default tuned)")
    what.add_argument("--gap", type=duration, default=0.01, metavar="T", help="pause before every call, scenario paced (default 10ms)")
    what.add_argument("--callers", type=int, default=4, metavar="N", help="callers at once, scenario concurrent (default %(default)s)")
    how = parser.add_argument_group("how to measure")
    preset = how.add_mutually_exclusive_group()
    preset.add_argument(
        "--quick",
        dest="preset",
        action="store_const",
        const="quick",
        default="default",
        help="--min-time 50ms --precision 3%% --budget 10s",
    )
    preset.add_argument(
        "--rigorous", dest="preset", action="store_const", const="rigorous",
        help="all of models, thread counts, scenarios and setups; --aa --min-time 0.5s --precision 0.5%% --budget 3m",
    )  # fmt: skip
    how.add_argument("--reference", default=REFERENCE, metavar="ARM", help="arm that ratios refer to (default %(default)s)")
    how.add_argument("--aa", action="store_true", default=None, help="run the reference twice: how far two equal arms seem apart")
    how.add_argument("--min-time", type=min_time, metavar="T", help="length of a block, 0.2s, or calls per block, 100x (default 0.2s)")
    how.add_argument("--precision", type=precision, metavar="P", help="enough when every ratio is known to ±P (default 1%%)")
    how.add_argument("--budget", type=duration, metavar="T", help="or when a model has taken so long, after 8 rounds (default 30s)")
    how.add_argument("--order", choices=ORDERS, default="random", help="in which order arms take turns (default %(default)s)")
    how.add_argument("--seed", type=int, metavar="N", help="seed of the order and all else that is drawn (default: a new one)")
    how.add_argument("--timeout", type=duration, default=120.0, metavar="T", help="longest wait for a step of a cell (default 120s)")
    where = parser.add_argument_group("files and output")
    where.add_argument("--graphs", type=Path, default=_GRAPHS, metavar="DIR", help="exported models (default %(default)s)")
    where.add_argument("--results", type=Path, metavar="FILE", help="append one JSON line per cell, and raw blocks to FILE.blocks.jsonl")
    where.add_argument("--resume", action="store_true", help="leave out the cells that --results has already, of this machine and versions")
    where.add_argument("--format", choices=FORMATS, default="table", help="how to print the results (default %(default)s)")
    where.add_argument("--details", action="store_true", help="percentiles, whole cost, memory, break-even calls, options of arms, records")
    where.add_argument(
        "--export", nargs=2, action="append", default=[], metavar=("TOOL", "OUT"),
        help=f"also write a file that a public tool reads: {', '.join(EXPORTS)}; may be given several times",
    )  # fmt: skip
    where.add_argument("--export-only", action="store_true", help="export what is missing, measure nothing")
    where.add_argument("--list", action="store_true", help="show the models and stop")
    return parser


def _names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Returns the comma-separated names, each one known and none twice; all known ones for ``all`` or None."""
    if text is None or text == "all":
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise InputError.of(option, f"must name some of {', '.join(known)}", ", ".join(map(repr, unknown)))
    return names


def _arm_names(text: str | None) -> list[str]:
    """Returns the names of arms, each one known, its interpreter one that can be run, and none twice; all arms for ``all`` or None."""
    if text is None or text == "all":
        return list(ARMS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    _names("--frameworks", ",".join(name.partition("@")[0] for name in names), list(ARMS))
    for name in names:
        if "@" in name and shutil.which(interpreter_of(name) or "") is None:
            raise InputError.of("--frameworks", "must name an interpreter that can be run behind the @", repr(name))
    return names


def chosen_models(options: argparse.Namespace, zoo: Mapping[str, ZooModel]) -> list[ZooModel | OwnModel]:
    """Returns the models that the options name: of the zoo, by the path of an export, as ONNX files, by an entry; else the default ones.

    A name may be that of a variant: ``torch_resnet50-tiny-b8``.

    Raises:
        InputError: an unknown name, or a path where there is no model.
    """
    if options.framework is not None and options.entry is None:
        raise InputError.of(f"--from {options.framework}", "goes with --entry")
    own: list[ZooModel | OwnModel] = [from_onnx(path) for path in options.onnx]
    if options.entry is not None:
        own.append(from_entry(options.entry, options.framework))
        _check_importable(options.entry)
    if own and options.models is None:
        return own
    if options.models is None:
        return [model for model in zoo.values() if model.default]
    if options.models == "all":
        return [*zoo.values(), *own]
    names = list(dict.fromkeys(name.strip() for name in options.models.split(",")))
    if unknown := [name for name in names if not _is_path(name) and name.partition("-")[0] not in zoo]:
        raise InputError.of("--models", f"must be all, or name some of {', '.join(zoo)}", ", ".join(map(repr, unknown)))
    return [from_path(name) if _is_path(name) else zoo.get(name) or get_model(name) for name in names] + own


def _check_importable(entry: str) -> None:
    """Raises InputError unless the entry's package is there, looked for where the export will look; only importing it would tell more."""
    name = entry.partition(":")[0].partition(".")[0]
    places = [os.getcwd(), *sys.path]
    if not any(finder.find_spec(name, places) for finder in sys.meta_path):
        raise InputError.of(f"--entry {entry}", f"there is no module '{name}' here or among the installed packages")


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".json")


def _threads(text: str) -> list[int]:
    if text == "all":
        return sorted({1, available_cpus()})
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InputError.of("--threads", "must be whole numbers of at least 1, with commas between them", repr(text))
    return list(dict.fromkeys(counts))


def _settings(options: argparse.Namespace) -> Settings:
    """Returns how to measure, in the first scenario and setup."""
    min_time_s, calls = options.min_time
    return Settings(
        reference=options.reference, order=options.order, seed=options.seed, min_time_s=min_time_s, calls=calls,
        precision=options.precision, budget_s=options.budget, timeout_s=options.timeout, gap_s=options.gap, callers=options.callers,
    )  # fmt: skip


def _check_files(options: argparse.Namespace) -> None:
    """Raises InputError where files of the run cannot be written."""
    for tool, out in options.export:
        if tool not in EXPORTS:
            raise InputError.of("--export", f"must name one of {', '.join(EXPORTS)}", repr(tool))
        if not _can_write(Path(out)):
            raise InputError.of(f"--export {tool} {out}", "must be a file that can be written, in a folder that exists")
    graphs = options.graphs
    if graphs.exists() and not graphs.is_dir():
        raise InputError.of(f"--graphs {graphs}", "must be a folder; it is a file")
    if graphs != _GRAPHS and not graphs.absolute().parent.is_dir():
        raise InputError.of(f"--graphs {graphs}", "must lie in a folder that exists", f"no folder {graphs.absolute().parent}")


def _can_write(path: Path) -> bool:
    if path.exists():
        return not path.is_dir() and os.access(path, os.W_OK)
    return path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)


def build_groups(models: Sequence[ZooModel | OwnModel], options: argparse.Namespace) -> list[Group]:
    """Returns what is to be measured, in order.

    Raises:
        InputError: options that do not go together, or name what there is not.
    """
    names = _arm_names(options.frameworks)
    threads = _threads(options.threads)
    reference = options.reference
    if reference not in names and reference != REFERENCE:
        raise InputError.of("--reference", f"must be one of the arms that run, {', '.join(names)}", repr(reference))
    if options.callers < 1:
        raise InputError.of("--callers", "must be at least 1", options.callers)
    if options.seed < 0:
        raise InputError.of("--seed", "must be at least 0", options.seed)
    if options.gap >= options.timeout:
        raise InputError.of("--gap", f"must be shorter than --timeout, {options.timeout:g} s", f"{options.gap:g} s")
    _check_files(options)
    if options.resume and options.results is None:
        raise InputError.of("--resume", "needs the results file of the run to go on with", hint="--results FILE")
    if options.aa and reference in names:
        names.insert(names.index(reference) + 1, reference + TWIN)
    base = _settings(options)
    kinds = [
        replace(base, scenario=scenario, setup=setup)
        for scenario in _names("--scenario", options.scenario, SCENARIOS)
        for setup in _names("--setup", options.setup, SETUPS)
    ]
    groups = [
        Group(model, count, kind, able)
        for model in models
        if (able := tuple(name for name in names if model.framework in find_arm(name.removesuffix(TWIN)).runs))
        for count in threads
        for kind in kinds
    ]
    if not groups:
        raise InputError.of("--frameworks", "must name an arm that can run one of the models", ", ".join(names))
    return groups
