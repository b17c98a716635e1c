"""One profiled run as files for other tools: an event log (JSON lines) and a trace (Trace Event Format, for Perfetto and chrome://tracing)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rml_exec.ir.weights import write_file
from rml_exec.plan.actions import ActionKind
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.profile import Profile

__all__ = ["events_of", "trace_of", "write_events", "write_trace"]


def events_of(executor: Executor, profile: Profile) -> Iterator[dict[str, Any]]:
    """Yields what a run did, in order: the plan's actions, each with the nanoseconds since the first step began; runs of nodes with their length.

    Args:
        executor: of a static graph, or of one with dims run at its hints.
        profile: of one run of it.
    """
    times = {step.node: timed.wall_ns for step, timed in zip(executor.steps, profile.steps, strict=True)}
    offsets = executor.memory.offsets
    now = 0
    for action in executor.plan.actions:
        event: dict[str, Any] = {"at_ns": now, "action": str(action.kind), "name": action.name}
        if action.bytes:
            event["bytes"] = action.bytes
        if action.kind is ActionKind.ALLOCATE_BUFFER and action.name in offsets:
            event["offset"] = offsets[action.name]
        if action.reuses:
            event["reuses"] = action.reuses
        if action.views:
            event["views"] = action.views
        if action.kind is ActionKind.EXECUTE_NODE:
            event["wall_ns"] = times.get(action.name, 0)  # a view takes no step
            now += event["wall_ns"]
        yield event


def trace_of(executor: Executor, profile: Profile) -> dict[str, Any]:
    """Returns the trace: one slice per step on one track, and the bytes alive in the arena as a counter."""
    events: list[dict[str, Any]] = []
    start: dict[str, float] = {}
    now = 0.0
    for step, timed in zip(executor.steps, profile.steps, strict=True):
        start[step.node] = now
        events.append(
            {
                "name": step.label,
                "cat": "step",
                "ph": "X",
                "ts": now,
                "dur": timed.wall_ns / 1e3,
                "pid": 1,
                "tid": 1,
                "args": {"node": step.node, "kernel": step.kernel, "covers": list(step.covers)},
            }
        )
        now += timed.wall_ns / 1e3
    at = 0.0
    live = dict(executor.memory.live)
    for index, action in enumerate(executor.plan.actions):
        if action.kind is ActionKind.EXECUTE_NODE:
            at = start.get(action.name, at)
        if index in live:
            events.append({"name": "arena bytes alive", "ph": "C", "ts": at, "pid": 1, "args": {"bytes": live[index]}})
    names = {"process_name": executor.graph.name, "thread_name": f"steps, {executor.threads} threads"}
    events += [{"name": kind, "ph": "M", "pid": 1, "tid": 1, "args": {"name": text}} for kind, text in names.items()]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_events(path: Path, executor: Executor, profile: Profile) -> None:
    """Writes :func:`events_of` as JSON lines, in one step."""
    with write_file(path) as file:
        file.writelines(json.dumps(event).encode() + b"\n" for event in events_of(executor, profile))


def write_trace(path: Path, executor: Executor, profile: Profile) -> None:
    """Writes :func:`trace_of` as JSON, in one step."""
    with write_file(path) as file:
        file.write(json.dumps(trace_of(executor, profile)).encode() + b"\n")
