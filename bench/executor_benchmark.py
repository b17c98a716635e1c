"""``executor_benchmark``: steady-state runs of exported graphs, with the options and the JSON of Google Benchmark, so that its tools read it.

One benchmark per ``.json`` in ``$RML_GRAPH_DIR``, else in the folder of test models. Each graph is loaded and compiled once, before anything is
timed; one that fails is skipped with its reason. Inputs are filled with 0.5, integers with 0.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from rml_exec import Executor, InputError, RmlError, __version__, isa_info, load_graph
from rml_exec.command import run_command
from rml_exec.ir.weights import write_file
from rml_exec.runtime.threads import thread_count

__all__ = ["Benchmark", "main", "register", "run_benchmarks"]

GRAPH_DIR = "RML_GRAPH_DIR"
_TEST_MODELS = Path(__file__).parents[1] / "tests" / "data"
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {"mean": mean, "median": median, "stddev": stdev}
_MAX_ITERATIONS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One graph, ready to run; or the reason why it is skipped."""

    name: str
    executor: Executor | None = None
    inputs: tuple[np.ndarray, ...] = ()
    skipped: str = ""

    def time(self, iterations: int) -> tuple[float, float]:
        """Returns wall and process CPU nanoseconds per run over so many runs."""
        assert self.executor is not None
        run, inputs = self.executor.run, self.inputs
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(iterations):
            run(inputs)
        return (time.perf_counter_ns() - wall) / iterations, (time.process_time_ns() - cpu) / iterations


def register(folder: Path, *, threads: int | None = None, fuse: bool = True) -> list[Benchmark]:
    """Returns one benchmark per ``.json`` of a folder, in order of name; ``threads`` and ``fuse`` as for ``Executor.create``."""
    found = []
    for path in sorted(folder.glob("*.json")):
        name = f"executor/{path.stem}"
        try:
            executor = Executor.create(load_graph(path), threads=threads, fuse=fuse)
        except RmlError as error:
            found.append(Benchmark(name, skipped=str(error)))
            continue
        inputs = tuple(
            np.full(type_.shape, 0.5 if type_.dtype.is_float else 0, type_.dtype.numpy) for type_ in executor.input_types.values()
        )
        found.append(Benchmark(name, executor, inputs))
    return found


def _min_time(text: str) -> tuple[str, float]:
    """Parses ``0.5s`` (or ``0.5``) and ``100x``."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|x)?", text)
    if not match or (match[2] == "x" and (not match[1].isdigit() or int(match[1]) < 1)):
        raise argparse.ArgumentTypeError(f"must be seconds (0.5s) or a number of runs (100x); got {text}")
    return match[2] or "s", float(match[1])


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise argparse.ArgumentTypeError(f"must be true or false; got {text}")
    return text.lower() in ("true", "1", "yes")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE; got {text}")
    return key, value


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="executor_benchmark",
        description=f"Times steady-state runs of the graphs in ${GRAPH_DIR}, else of the test models; options and JSON are Google Benchmark's.",
    )

    def switch(name: str, help: str) -> None:
        parser.add_argument(name, type=_flag, nargs="?", const=True, default=False, metavar="BOOL", help=help)

    parser.add_argument("--benchmark_filter", default="", metavar="REGEX", help="run what matches; a leading - runs what does not")
    switch("--benchmark_list_tests", "print the names and stop")
    parser.add_argument("--benchmark_min_time", type=_min_time, default=("s", 0.5), metavar="0.5s|100x", help="length of one repetition")
    parser.add_argument("--benchmark_min_warmup_time", type=float, default=0.1, metavar="SECONDS", help="runs before the first repetition")
    parser.add_argument("--benchmark_repetitions", type=_count, default=1, metavar="N")
    switch("--benchmark_enable_random_interleaving", "repetitions of all benchmarks in random order")
    switch("--benchmark_report_aggregates_only", "of several repetitions give mean, median, stddev and cv only")
    switch("--benchmark_display_aggregates_only", "the same for standard output only")
    parser.add_argument("--benchmark_format", choices=("console", "json", "csv"), default="console")
    parser.add_argument("--benchmark_out", type=Path, metavar="FILE")
    parser.add_argument("--benchmark_out_format", choices=("console", "json", "csv"), default="json")
    parser.add_argument("--benchmark_time_unit", choices=tuple(_UNITS), default="us")
    parser.add_argument(
        "--benchmark_context", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="added to the context block"
    )
    parser.add_argument("--threads", type=_count, metavar="N", help="threads of the executor (default RML_NUM_THREADS, else all)")
    parser.add_argument("--no-fuse", dest="fuse", action="store_false", help="turn every fusion of the executor off")
    return parser


def _calibrate(benchmark: Benchmark, options: argparse.Namespace) -> int:
    """Warms up and returns how many runs one repetition takes."""
    kind, amount = options.benchmark_min_time
    end = time.perf_counter() + options.benchmark_min_warmup_time
    fastest = benchmark.time(1)[0]
    while time.perf_counter() < end:
        fastest = min(fastest, benchmark.time(1)[0])
    return int(amount) if kind == "x" else max(1, min(_MAX_ITERATIONS, round(amount * 1e9 / max(fastest, 1.0))))


def run_benchmarks(benchmarks: Sequence[Benchmark], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the rows of the JSON's ``benchmarks``: repetitions, then aggregates, benchmark by benchmark."""
    scale, repetitions = _UNITS[options.benchmark_time_unit], options.benchmark_repetitions
    ready = [benchmark for benchmark in benchmarks if not benchmark.skipped]
    iterations = {benchmark.name: _calibrate(benchmark, options) for benchmark in ready}
    order = [benchmark for benchmark in ready for _ in range(repetitions)]
    if options.benchmark_enable_random_interleaving:
        random.shuffle(order)
    times: dict[str, list[tuple[float, float]]] = {benchmark.name: [] for benchmark in ready}
    for benchmark in order:
        wall, cpu = benchmark.time(iterations[benchmark.name])
        times[benchmark.name].append((wall / scale, cpu / scale))
    rows: list[dict[str, Any]] = []
    for family, benchmark in enumerate(benchmarks):
        common = {
            "name": benchmark.name,
            "family_index": family,
            "per_family_instance_index": 0,
            "run_name": benchmark.name,
            "run_type": "iteration",
            "repetitions": repetitions,
            "threads": 1,
        }
        if benchmark.skipped:
            nothing = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": options.benchmark_time_unit}  # as Google Benchmark
            rows.append({**common, "repetition_index": 0, "skipped": True, "skip_message": benchmark.skipped, **nothing})
            continue
        measured = {"iterations": iterations[benchmark.name], "time_unit": options.benchmark_time_unit}
        for index, (wall, cpu) in enumerate(times[benchmark.name]):
            rows.append({**common, "repetition_index": index, **measured, "real_time": wall, "cpu_time": cpu})
        if repetitions > 1:
            rows.extend(_aggregates(common, measured, times[benchmark.name]))
    return rows


def _aggregates(common: dict[str, Any], measured: dict[str, Any], times: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    walls, cpus = zip(*times, strict=True)
    values = {name: (rule(walls), rule(cpus)) for name, rule in _AGGREGATES.items()}
    (wall, cpu), (wall_deviation, cpu_deviation) = values["mean"], values["stddev"]
    values["cv"] = (wall_deviation / wall if wall else 0.0, cpu_deviation / cpu if cpu else 0.0)
    return [
        {
            **common,
            "name": f"{common['name']}_{name}",
            "run_type": "aggregate",
            "aggregate_name": name,
            "aggregate_unit": "percentage" if name == "cv" else "time",
            **measured,
            "iterations": len(times),
            "real_time": wall,
            "cpu_time": cpu,
        }
        for name, (wall, cpu) in values.items()
    ]


def _context(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            sharing = len((index / "shared_cpu_list").read_text().replace("-", ",").split(","))
        except OSError:
            continue
        caches.append({"type": kind, "level": int(level), "size": int(size.rstrip("K")) * 1024, "num_sharing": sharing})
    try:
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        governor = "performance"
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_name": socket.gethostname(),
        "executable": sys.argv[0],
        "num_cpus": len(os.sched_getaffinity(0)),
        "mhz_per_cpu": _megahertz(),
        "cpu_scaling_enabled": governor != "performance",
        "caches": caches,
        "load_avg": list(os.getloadavg()),
        "library_version": f"rml_exec {__version__}",
        "library_build_type": "release",
        "json_schema_version": 1,
        "rml_isa": str(isa_info()["name"]),
        **dict(pairs),
    }


def _megahertz() -> int:
    try:
        return round(float(re.search(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1]))  # type: ignore[index]
    except (OSError, TypeError):
        return 0


def _render(form: str, context: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    if form == "json":
        return json.dumps({"context": context, "benchmarks": list(rows)}, indent=2) + "\n"
    if form == "csv":
        columns = ("name", "iterations", "real_time", "cpu_time", "time_unit", "error_occurred", "error_message")
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            skipped = {"error_occurred": True, "error_message": row["skip_message"]} if row.get("skipped") else {}
            writer.writerow([{**row, **skipped}.get(column, "") for column in columns])
        return file.getvalue()
    width = max((len(row["name"]) for row in rows), default=10)
    lines = [f"{'Benchmark':{width}} {'Time':>14} {'CPU':>14} {'Iterations':>12}", "-" * (width + 43)]
    for row in rows:
        if row.get("skipped"):
            lines.append(f"{row['name']:{width}} SKIPPED: {row['skip_message']}")
        elif row.get("aggregate_unit") == "percentage":
            lines.append(
                f"{row['name']:{width}} {100 * row['real_time']:>12.2f} % {100 * row['cpu_time']:>12.2f} % {row['iterations']:>12}"
            )
        else:
            unit = row["time_unit"]
            lines.append(
                f"{row['name']:{width}} {row['real_time']:>11.2f} {unit:>2} {row['cpu_time']:>11.2f} {unit:>2} {row['iterations']:>12}"
            )
    return "\n".join(lines) + "\n"


def _aggregates_only(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["run_type"] == "aggregate" or row["repetitions"] == 1 or row.get("skipped")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit codes 0 ok, 2 bad usage or no graphs, 5 an instruction set that the machine lacks, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        pattern = re.compile(options.benchmark_filter.removeprefix("-"))
    except re.error as error:
        parser.error(f"argument --benchmark_filter: must be a regular expression: {error}")
    return run_command("executor_benchmark", lambda: _run(options, pattern))


def _run(options: argparse.Namespace, pattern: re.Pattern[str]) -> int:
    negated = options.benchmark_filter.startswith("-")
    folder = Path(os.environ.get(GRAPH_DIR) or _TEST_MODELS)
    benchmarks = [one for one in register(folder, threads=options.threads, fuse=options.fuse) if bool(pattern.search(one.name)) != negated]
    if not benchmarks:
        raise InputError.of(f"folder {folder}", "holds no graph that matches", hint=f"set {GRAPH_DIR} to a folder of exported models")
    if options.benchmark_list_tests:
        print("\n".join(benchmark.name for benchmark in benchmarks))
        return 0
    rows = run_benchmarks(benchmarks, options)
    context = _context(
        [("rml_threads", str(thread_count(options.threads))), ("rml_fuse", str(options.fuse).lower()), *options.benchmark_context]
    )
    kept = _aggregates_only(rows) if options.benchmark_report_aggregates_only else rows
    if options.benchmark_out:
        with write_file(options.benchmark_out) as file:
            file.write(_render(options.benchmark_out_format, context, kept).encode())
    shown = _aggregates_only(kept) if options.benchmark_display_aggregates_only else kept
    sys.stdout.write(_render(options.benchmark_format, context, shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
