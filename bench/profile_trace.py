"""One trace for Perfetto and chrome://tracing: the blocks of all arms of a model on one clock, and the steps of profiled runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.stored import Stored
from rml_exec.errors import InputError
from rml_exec.ir.weights import write_file
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.profile import Profile

__all__ = ["block_events", "step_events", "write_trace"]

Runs = Sequence[tuple[int, Profile]]
"""Profiled runs, and when each began."""

_STEPS_PID = 1


def step_events(executor: Executor, runs: Runs) -> Iterator[dict[str, Any]]:
    """Yields the steps of runs, whose first one begins at 0; within a run, step follows step, and the gap is at the end."""
    origin = min(start for start, _ in runs)
    yield _name("process_name", f"steps of rml, {executor.graph.name}, {executor.threads} threads", _STEPS_PID, 0)
    yield _name("thread_name", "profiled runs", _STEPS_PID, 1)
    for number, (start, profile) in enumerate(runs):
        now = start - origin
        yield _slice(f"run {number}", now, profile.wall_ns, _STEPS_PID, 1, {"gap_ns": profile.gap_ns})
        for step, timed in zip(executor.steps, profile.steps, strict=True):
            args = {"node": step.node, "kernel": step.kernel, "covers": list(step.covers)}
            yield _slice(step.label, now, timed.wall_ns, _STEPS_PID, 1, args)
            now += timed.wall_ns


def block_events(stored: Stored, models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the blocks of every arm of a model, each measurement (one thread count, scenario and setup) a process, each arm a thread of it.

    All of them lie on the clock that the processes of a machine share; the first block of a measurement begins at 0.

    Args:
        stored: a results file with its blocks.
        models: names that the model may have in it.

    Raises:
        InputError: there are no blocks of it.
    """
    found: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    cells = [(record, blocks) for record in stored.records if record.model in models and (blocks := stored.of(record)) is not None]
    for index, (record, _) in enumerate(cells):
        found.setdefault((record.run, record.model, record.threads, record.scenario, record.setup), []).append((record.framework, index))
    if not found:
        raise InputError.of(str(stored.path), f"must have block data of {models[0]}", "none")
    for pid, (key, arms) in enumerate(found.items(), _STEPS_PID + 1):
        _, model, threads, scenario, setup = key
        yield _name("process_name", f"blocks of {model}, {threads} threads, {scenario}, {setup}", pid, 0)
        origin = min(block.start_ns for _, index in arms for block in cells[index][1].blocks)
        for tid, (arm, index) in enumerate(arms, 1):
            yield _name("thread_name", arm, pid, tid)
            yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            blocks = cells[index][1]
            for block, flagged in zip(blocks.blocks, blocks.flags, strict=True):
                args = {
                    "arm": arm,
                    "round": block.round,
                    "position": block.position,
                    "calls": len(block.times_ns),
                    "median_ms": median(block.times_ns) / 1e6,
                    "cpu_ms": block.cpu_ns / 1e6,
                    "canary_ms": [elapsed / 1e6 for elapsed in block.canary_ns],
                    "flagged": flagged,
                }
                name = f"{arm}, round {block.round}" + (" (flagged)" if flagged else "")
                yield _slice(name, block.start_ns - origin, block.wall_ns, pid, tid, args)


def write_trace(path: Path, executor: Executor, runs: Runs, stored: Stored | None, models: Sequence[str]) -> None:
    """Writes the trace, in one step: the steps of profiled runs and, with a results file, the blocks of all arms of the model."""
    events = [*step_events(executor, runs), *(block_events(stored, models) if stored is not None else ())]
    with write_file(path) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode() + b"\n")


def _slice(name: str, start_ns: float, wall_ns: float, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": "bench", "ph": "X", "ts": start_ns / 1e3, "dur": wall_ns / 1e3, "pid": pid, "tid": tid, "args": args}


def _name(kind: str, text: str, pid: int, tid: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}}
