"""Where the time of a model goes, step by step, against what the machine can do: ``bench_frameworks profile MODEL``.

Rounds, each of which measures the peak of the cores, their bandwidth from a working set as large as the model's, and some runs of the model,
profiled and plain in turn. So load on the machine and changes of its clock touch both sides of a fraction of the roofline alike.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench.kernel_limits import LEVELS, Limits
from bench.profile_trace import write_trace
from bench.report import load_renderer
from bench.settings import duration
from bench.statistics import Interval, percentile
from bench.stored import read_results
from reports.model import Column, Report, Table, Value
from rml_exec import _native
from rml_exec.command import CommandParser, run_command
from rml_exec.errors import InputError
from rml_exec.graph_run import RunOptions, load_golden
from rml_exec.graph_run.profiling import ProfileTotal, profile_total, profiled_runs
from rml_exec.graph_run.work import Work, work_of_steps
from rml_exec.ir.format import model_paths
from rml_exec.loading import find_model
from rml_exec.runtime.executor import NUMERICS, Executor
from rml_exec.runtime.profile import Profile

__all__ = ["MIN_ROUNDS", "ModelProfile", "StepRow", "main", "measure", "profile_report"]

MIN_ROUNDS = 8
_ROUND_RUNS, _ROUND_SECONDS = 50, 0.1
"""Most pairs of runs in a round, and about how long it should last."""
_LEAST_SECONDS = 0.01
"""What --seconds may be at least: the rounds that there are anyway take longer."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step.

    Attributes:
        step: its number.
        node: name of the lowered node.
        label: kind of the step.
        kernel: kernels it runs on.
        time_ms: median over the rounds of its median time in a round, with the 95 % interval.
        share: of the sum over all steps.
        flops: operations of one run; None where they depend on data.
        bytes: bytes read and written at least; likewise.
        bound: "compute" or "memory": what limits it at most; None without flops or bytes.
        roofline: least time that peak and bandwidth allow, over the time taken: median over the rounds. Above 1 where the operands were
            nearer than the bandwidth was measured from, or a convolution does with fewer operations than the direct way.
    """

    step: int
    node: str
    label: str
    kernel: str
    time_ms: Interval
    share: float
    flops: int | None
    bytes: int | None
    bound: str | None
    roofline: float | None


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A profiled model.

    Attributes:
        model: its name.
        threads: threads of a run.
        isa: instruction set.
        peak_flops: FLOP/s of that many cores, median over the rounds.
        bandwidth: bytes per second read from a working set of ``level``.
        level: level of the memory that holds weights and arena.
        total: where the time of a run goes.
        rows: one per step.
        profiles: the first profiled run of every round, and when it began, on the clock that all processes of the machine share.
    """

    model: str
    threads: int
    isa: str
    peak_flops: float
    bandwidth: float
    level: str
    total: ProfileTotal
    rows: tuple[StepRow, ...]
    profiles: tuple[tuple[int, Profile], ...]


@dataclass(frozen=True, slots=True)
class _Round:
    start_ns: int
    peak: float
    bandwidth: float
    profiles: Sequence[Profile]
    plain_ns: Sequence[int]

    def step_ns(self, index: int) -> float:
        return median(profile.steps[index].wall_ns for profile in self.profiles)


def measure(model: str, executor: Executor, inputs: Mapping[str, np.ndarray], *, seconds: float) -> ModelProfile:
    """Returns the profile of a model.

    Args:
        model: its name.
        executor: runs it; of a graph with dims the inputs must have the shapes of its hints.
        inputs: by name.
        seconds: measure for about so long, but at least :data:`MIN_ROUNDS` rounds.
    """
    graph = executor.lowered
    resident = executor.memory.arena_bytes + sum(constant.type.nbytes for constant in graph.constants)
    level = next((name for name, nbytes in LEVELS.items() if resident <= nbytes), "DRAM")
    limits = Limits(_native.current_isa())
    limits.bandwidth(LEVELS[level], executor.threads)  # the first pass over fresh memory
    begin = time.perf_counter_ns()
    executor.run(inputs)
    executor.run(inputs)
    call_s = max((time.perf_counter_ns() - begin) / 2e9, 1e-7)
    runs = max(1, min(_ROUND_RUNS, int(_ROUND_SECONDS / (2 * call_s))))
    rounds: list[_Round] = []
    end = time.monotonic() + seconds
    while len(rounds) < MIN_ROUNDS or time.monotonic() < end:
        peak, bandwidth = limits.peak(executor.threads), limits.bandwidth(LEVELS[level], executor.threads)
        start_ns = time.perf_counter_ns()
        rounds.append(_Round(start_ns, peak, bandwidth, *profiled_runs(executor, inputs, runs)))
    profiles = [profile for one in rounds for profile in one.profiles]
    plain_ns = [elapsed for one in rounds for elapsed in one.plain_ns]
    return ModelProfile(
        model,
        executor.threads,
        _native.current_isa(),
        median(one.peak for one in rounds),
        median(one.bandwidth for one in rounds),
        level,
        profile_total(profiles, plain_ns),
        tuple(_rows(executor, rounds)),
        tuple((one.start_ns, one.profiles[0]) for one in rounds),
    )


def _rows(executor: Executor, rounds: Sequence[_Round]) -> list[StepRow]:
    work = work_of_steps(executor)
    times = [[one.step_ns(index) for one in rounds] for index in range(len(work))]
    intervals = [_interval(of_rounds) for of_rounds in times]
    everything = sum(interval.estimate for interval in intervals) or 1.0
    rows = []
    for index, (step, found, interval) in enumerate(zip(executor.steps, work, intervals, strict=True)):
        bound, roofline = _roofline(found, times[index], rounds)
        share = interval.estimate / everything
        rows.append(StepRow(index, step.node, step.label, step.kernel, interval, share, found.flops, found.bytes, bound, roofline))
    return rows


def _interval(times_ns: Sequence[float]) -> Interval:
    found = percentile(sorted(elapsed / 1e6 for elapsed in times_ns), 50)
    assert found is not None, "there are enough rounds"
    return found


def _roofline(work: Work, times_ns: Sequence[float], rounds: Sequence[_Round]) -> tuple[str | None, float | None]:
    """Returns what bounds a step, and the fraction of the roofline that it reaches."""
    if work.flops is None or work.bytes is None:
        return None, None
    compute, memory = ([part / getattr(one, name) for one in rounds] for part, name in ((work.flops, "peak"), (work.bytes, "bandwidth")))
    least = [max(pair) for pair in zip(compute, memory, strict=True)]
    bound = "compute" if median(compute) > median(memory) else "memory"
    return bound, median(best / max(elapsed * 1e-9, 1e-9) for best, elapsed in zip(least, times_ns, strict=True))


_COLUMNS = (
    Column("step", "step", "count"),
    Column("label", "label"),
    Column("node", "node"),
    Column("kernel", "kernel"),
    Column("median_ms", "median ms", "ms"),
    Column("interval_ms", "95 % interval", "ms interval"),
    Column("percent", "%", "number"),
    Column("flops", "FLOPs", "count"),
    Column("bytes", "bytes", "count"),
    Column("gflops", "GFLOP/s", "number"),
    Column("gbytes", "GB/s", "number"),
    Column("bound", "bound"),
    Column("roofline", "of roofline", "number"),
)
_LEGEND = (
    "A time is the median over rounds of the median in a round; its interval is by order statistics of the rounds.",
    "Bytes are those of every operand and result once; FLOPs those of the direct way, also where Winograd's method does with fewer.",
    "of roofline: the least time that the peak and the bandwidth measured in the same round allow, over the time taken. It exceeds 1 where "
    "operands lay nearer than the memory that the bandwidth was measured from.",
    "wall = steps + gap + overhead: steps of a run, what lies between them, and what it costs to profile (profiled - plain runs, in turns).",
)


def profile_report(profile: ModelProfile) -> Report:
    """Returns the profile for :mod:`reports.render`: a table of the steps, slowest first, and one of where the time goes."""
    ordered = sorted(profile.rows, key=lambda row: -row.time_ms.estimate)
    steps = Table("steps", f"steps of {profile.model}", _COLUMNS, tuple(map(_cells, ordered)))
    total = profile.total
    parts = {
        "wall": total.wall_ms,
        "steps": total.steps_ms,
        "gap": total.gap_ms,
        "overhead": total.overhead_ms,
        "plain run": total.plain_ms,
    }
    columns = (Column("part", "part"), Column("ms", "ms", "ms"), Column("percent", "% of wall", "number"))
    whole = Table("total", "where the time goes", columns, tuple((name, ms, 100 * ms / total.wall_ms) for name, ms in parts.items()))
    environment = (
        ("threads", str(profile.threads)),
        ("instruction set", profile.isa),
        ("peak", f"{profile.peak_flops / 1e9:.1f} GFLOP/s"),
        ("bandwidth", f"{profile.bandwidth / 1e9:.1f} GB/s, {profile.level}"),
        ("runs", f"{total.runs} profiled, {total.runs} plain, in {len(profile.profiles)} rounds"),
    )
    return Report(environment, (steps.filled(), whole), legend=_LEGEND)


def _cells(row: StepRow) -> tuple[Value, ...]:
    seconds = max(row.time_ms.estimate, 1e-6) / 1e3
    return (
        row.step,
        _short(row.label),
        row.node,
        _counted(row.kernel),
        row.time_ms.estimate,
        (row.time_ms.low, row.time_ms.high),
        100 * row.share,
        row.flops,
        row.bytes,
        row.flops / seconds / 1e9 if row.flops else None,
        row.bytes / seconds / 1e9 if row.bytes else None,
        row.bound,
        row.roofline,
    )


def _short(label: str) -> str:
    return label if len(label) <= 40 else label[:37] + "..."


def _counted(kernels: str) -> str:
    """Returns kernels with runs of the same one counted: ``copy x4, conv``."""
    grouped = ((kernel, len(list(group))) for kernel, group in itertools.groupby(kernels.split(",")))
    return _short(", ".join(kernel if count == 1 else f"{kernel} x{count}" for kernel, count in grouped))


def _seconds(text: str) -> float:
    value = duration(text)
    if value < _LEAST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a time of at least {_LEAST_SECONDS:g} s; got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``bench_frameworks profile``."""
    parser = CommandParser(
        prog="bench_frameworks profile",
        description="Times the steps of a model and holds each against the peak and the bandwidth of the machine.",
        epilog="exit codes: 0 ok, 2 bad usage, model or input, 5 unavailable",
    )
    parser.add_argument("model", metavar="MODEL", help="name of an exported model in --graphs, or a path prefix")
    parser.add_argument("--graphs", type=Path, default=Path("models/graphs"), metavar="DIR", help="exported models (default %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default RML_NUM_THREADS, else all the process may use)")
    parser.add_argument("--numerics", choices=NUMERICS, default="fast", help="default %(default)s")
    parser.add_argument("--no-fuse", dest="fuse", action="store_false", help="turn every fusion off")
    parser.add_argument("--seconds", type=_seconds, default=5.0, metavar="S", help="measure for about so long (default %(default)s)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace of a run of each round, for Perfetto or chrome://tracing")
    parser.add_argument("--results", type=Path, metavar="FILE", help="with --trace: add the blocks of all arms that this results file has")
    parser.add_argument("--format", choices=("table", "markdown", "csv", "json", "html"), default="table", help="default %(default)s")
    options = parser.parse_args(arguments)
    if options.results is not None and options.trace is None:
        parser.error(f"--results {options.results}: goes with --trace")
    return run_command("bench_frameworks profile", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    render_report = load_renderer().render_report
    stored = None if options.results is None else read_results(options.results, blocks=True)
    given = Path(options.model).is_file() or model_paths(options.model).graph.exists()
    model = Path(find_model(options.model if given else options.graphs / options.model))
    if not model_paths(model).graph.exists():
        hint = f"bench_frameworks --models {options.model} --export-only"
        raise InputError.of(options.model, f"must be a path prefix, or the name of a model in {options.graphs}", "neither", hint=hint)
    executor = RunOptions(threads=options.threads, numerics=options.numerics, fuse=options.fuse).create(model)
    if options.threads is not None and executor.threads < options.threads:
        print(f"bench_frameworks profile: runs on {executor.threads} threads, all that this process may use", file=sys.stderr)
    profile = measure(model_paths(model).name, executor, load_golden(model).inputs, seconds=options.seconds)
    if options.trace is not None:
        write_trace(options.trace, executor, profile.profiles, stored, (options.model, profile.model))
    render_report(profile_report(profile), options.format, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
