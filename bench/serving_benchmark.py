"""What a server sees of an executor, beside the latency of a call: ``python -m bench.serving_benchmark MODEL --callers 1,2,4 --rate 6 --start``.

Prints one line of JSON per model and scenario. Arms of a scenario take turns, and every figure is a median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.denormals import planted_graph, planted_inputs
from bench.kernel_limits import seconds_per_call
from rml_exec import Executor, Graph, InputError, load_graph
from rml_exec.command import run_command
from rml_exec.graph_run import load_golden
from rml_exec.ir.format import model_paths

__all__ = ["callers", "denormals", "main", "rate", "start"]

_OVERHEAD_BYTES = 60_000_000
"""What a process may take beside packed weights and arena: Python, NumPy, the graph."""

Inputs = Mapping[str, np.ndarray]


def callers(executor: Executor, inputs: Inputs, counts: Sequence[int], seconds: float, repeat: int) -> dict[str, Any]:
    """Returns calls per second, of wall time and of CPU time, by number of threads that call one executor; and the worst over the best.

    The worst over the best is that of calls per CPU second as well: on a machine with other load, wall time is not only the executor's.
    """
    rounds: list[dict[int, tuple[float, float]]] = []
    for turn in range(repeat):
        order = counts[::-1] if turn % 2 else counts
        rounds.append({count: _throughput(executor, inputs, count, seconds) for count in order})

    def medians(index: int) -> dict[str, float]:
        return {str(count): round(statistics.median(found[count][index] for found in rounds), 3) for count in counts}

    wall, cpu = medians(0), medians(1)
    return {
        "calls_per_s": wall,
        "calls_per_cpu_s": cpu,
        "worst_over_best": round(min(wall.values()) / max(wall.values()), 3),
        "worst_over_best_cpu": round(min(cpu.values()) / max(cpu.values()), 3),
    }


def _throughput(executor: Executor, inputs: Inputs, count: int, seconds: float) -> tuple[float, float]:
    done = [0] * count
    barrier = threading.Barrier(count + 1)

    def call(caller: int) -> None:
        executor.run(inputs)  # every thread once, so that none starts with a cold arena
        barrier.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            executor.run(inputs)
            done[caller] += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return sum(done) / wall, sum(done) / cpu


def rate(executor: Executor, inputs: Inputs, hertz: float, seconds: float, repeat: int) -> dict[str, Any]:
    """Returns what calls at a fixed rate cost: CPU time of the process over that within the calls, and over that of as many calls in a row."""
    inside, in_a_row, latency = [], [], []
    for _ in range(repeat):
        count = max(1, round(seconds * hertz))
        begin = time.process_time()
        for _ in range(count):
            executor.run(inputs)
        back_to_back = time.process_time() - begin
        own = 0.0
        begin, tick = time.process_time(), time.perf_counter()
        for _ in range(count):
            tick += 1 / hertz
            time.sleep(max(0.0, tick - time.perf_counter()))
            cpu, wall = time.process_time(), time.perf_counter()
            executor.run(inputs)
            own += time.process_time() - cpu
            latency.append(time.perf_counter() - wall)
        time.sleep(1 / hertz)  # what the last call left behind counts too
        whole = time.process_time() - begin
        inside.append(whole / own)
        in_a_row.append(whole / back_to_back)
    return {
        "hertz": hertz,
        "cpu_over_calls_own": round(statistics.median(inside), 3),
        "cpu_over_calls_in_a_row": round(statistics.median(in_a_row), 3),
        "median_ms": round(statistics.median(latency) * 1e3, 3),
    }


def start(model: str, threads: int, repeat: int) -> dict[str, Any]:
    """Returns how long new processes take from their start to the first output, with the weights in the page cache, and their peak memory."""
    paths = model_paths(model)
    for path in (paths.graph, paths.weights):
        path.read_bytes()
    found = []
    for _ in range(repeat):
        begin = time.monotonic()
        child = subprocess.run([sys.executable, "-m", "bench.first_output", model, str(threads)], stdout=subprocess.PIPE, text=True)
        if child.returncode:
            raise InputError.of(model, "must run in a new process", f"exit code {child.returncode}")
        facts = json.loads(child.stdout)
        found.append({**facts, "seconds": facts["first_output"] - begin})

    def median(name: str) -> float:
        return statistics.median(facts[name] for facts in found)

    allowed = found[0]["packed_bytes"] + found[0]["arena_bytes"] + _OVERHEAD_BYTES
    return {
        "seconds": round(median("seconds"), 3),
        "fastest_seconds": round(min(facts["seconds"] for facts in found), 3),
        "cpu_seconds": round(median("cpu_seconds"), 3),
        "phases_s": {name: round(median(f"{name}_s"), 3) for name in ("import", "load", "create", "run")},
        "peak_rss_mb": round(median("peak_rss_bytes") / 1e6, 1),
        "allowed_rss_mb": round(allowed / 1e6, 1),
        "packed_mb": round(found[0]["packed_bytes"] / 1e6, 3),
        "arena_mb": round(found[0]["arena_bytes"] / 1e6, 3),
    }


def denormals(graph: Graph, inputs: Inputs, seconds: float, repeat: int) -> dict[str, Any]:
    """Returns the time of a call with denormal numbers in weights and activations over one without, by numerics, on one thread."""
    planted, fed = planted_graph(graph), planted_inputs(inputs)
    found: dict[str, Any] = {}
    for numerics in ("fast", "exact"):
        plain, other = (Executor.create(which, threads=1, numerics=numerics) for which in (graph, planted))
        arms: list[Callable[[], object]] = [lambda: plain.run(inputs), lambda: other.run(fed)]  # noqa: B023  (called in this turn only)
        ratios = []
        for turn in range(repeat):
            order = (1, 0) if turn % 2 else (0, 1)
            times = {arm: seconds_per_call(arms[arm], 1, seconds) for arm in order}
            ratios.append(times[1] / times[0])
        found[f"{numerics}_ratio"] = round(statistics.median(ratios), 3)
    return found


def _inputs_of(model: str, executor: Executor) -> Inputs:
    """Returns the inputs of the golden, or 0.5 everywhere where there is none."""
    if model_paths(model).golden.exists():
        return load_golden(model).inputs
    return {
        name: np.full(type_.shape, 0.5 if type_.dtype.is_float else 0, type_.dtype.numpy) for name, type_ in executor.input_types.items()
    }


def _counts(text: str) -> list[int]:
    counts = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"must be whole numbers of at least 1; got {text}")
    return counts


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving_benchmark", description="What a server sees of an executor.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="path prefix of an exported model")
    parser.add_argument("--callers", type=_counts, metavar="N,...", help="throughput with so many threads that call one executor")
    parser.add_argument("--rate", type=_above_zero, metavar="HZ", help="CPU time of calls at a fixed rate")
    parser.add_argument("--start", action="store_true", help="a new process: time to the first output, peak memory")
    parser.add_argument("--denormals", action="store_true", help="cost of denormal weights and activations")
    parser.add_argument("--threads", type=_above_zero, default=2.0, metavar="N", help="threads of the executor (default: 2)")
    parser.add_argument("--seconds", type=_above_zero, default=2.0, metavar="S", help="length of one measurement (default: 2)")
    parser.add_argument("--repeat", type=_above_zero, default=5.0, metavar="N", help="rounds (default: 5)")
    options = parser.parse_args(argv)
    if not (options.callers or options.rate or options.start or options.denormals):
        parser.error("one of --callers, --rate, --start and --denormals is needed")
    return run_command("serving_benchmark", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    threads, repeat, seconds = int(options.threads), int(options.repeat), options.seconds
    for model in options.models:

        def say(scenario: str, found: dict[str, Any], model: str = model) -> None:
            record = {"model": Path(model).name, "scenario": scenario, "threads": threads, **found}
            print(json.dumps({**record, "load_average": round(os.getloadavg()[0], 2)}), flush=True)

        if options.start:
            say("start", start(model, threads, repeat))
        if not (options.callers or options.rate or options.denormals):
            continue
        graph = load_graph(model)
        executor = Executor.create(graph, threads=threads)
        inputs = _inputs_of(model, executor)
        executor.run(inputs)
        if options.callers:
            say("callers", callers(executor, inputs, options.callers, seconds, repeat))
        if options.rate:
            say("rate", rate(executor, inputs, options.rate, seconds, repeat))
        if options.denormals:
            say("denormals", {**denormals(graph, inputs, seconds, repeat), "threads": 1})
    return 0


if __name__ == "__main__":
    sys.exit(main())
