"""The process of one cell: pins itself, loads one arm, and does what the supervisor asks, one block of calls at a time.

Run as ``python -m bench.worker JSON READ_FD WRITE_FD``. It sleeps in a read while other arms have their turn.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.adapters.base import Adapter, UnavailableError, make_adapter
from bench.protocol import WorkerGoneError, open_pipe, receive, send

__all__ = ["main"]


class _Worker:
    """Answers the supervisor's commands; each method is one command and returns the fields of its answer."""

    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self._adapter: Adapter = make_adapter(cell["framework"])

    def load(self) -> dict[str, Any]:
        """Loads the model, makes the first call, and checks its outputs against the golden."""
        cell, adapter = self._cell, self._adapter
        adapter.load(cell["model"], cell["graphs"], cell["threads"])
        from rml_exec.graph_run import load_golden

        self._golden = load_golden(Path(cell["graphs"]) / cell["model"])
        adapter.bind(self._golden.inputs)
        start = time.perf_counter_ns()
        result = adapter.call()
        first_call_ms = (time.perf_counter_ns() - start) / 1e6
        return {**adapter.facts(), "first_call_ms": first_call_ms, **self._check(result)}

    def warm_up(self, seconds: float) -> dict[str, Any]:
        """Calls the model for about so long and returns the time of its fastest call, from which the supervisor sizes the blocks."""
        fastest, end = float("inf"), time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            self._adapter.call()
            now = time.perf_counter()
            fastest = min(fastest, now - start)
            if now >= end:
                return {"call_s": fastest}

    def block(self, iterations: int) -> dict[str, Any]:
        """Times each of so many calls and checks what the first and the last of them gave."""
        call = self._adapter.call
        times = []
        first = result = None
        for iteration in range(iterations):
            start = time.perf_counter_ns()
            result = call()
            times.append(time.perf_counter_ns() - start)
            if not iteration:
                first = result
        checks = [self._check(result), self._check(first)]
        return {"times_ns": times, **max(checks, key=lambda found: (found["check"] == "fail", found["max_abs_error"] or 0.0))}

    def _check(self, result: Any) -> dict[str, Any]:
        from rml_exec.graph_run import compare_with_golden

        found = compare_with_golden(self._adapter.outputs(result), self._golden)
        finite = [value if value < float("inf") else None for value in (found.max_abs_error, found.max_rel_error)]
        return {"check": "pass" if found.passed else "fail", "max_abs_error": finite[0], "max_rel_error": finite[1], "check_reason": found.reason}


def main() -> int:
    """Runs the worker until the supervisor says stop or is gone."""
    cell = json.loads(sys.argv[1])
    commands, answers = open_pipe(int(sys.argv[2]), "rb"), open_pipe(int(sys.argv[3]), "wb")
    if cell["cores"]:
        os.sched_setaffinity(0, cell["cores"])  # before the framework is imported: it sizes its thread pools by this mask
    worker = _Worker(cell)
    while True:
        try:
            command = receive(commands)
        except WorkerGoneError:
            return 0
        name = command.pop("do")
        if name == "stop":
            return 0
        try:
            answer = getattr(worker, name)(**command)
        except UnavailableError as error:
            answer = {"error": "unavailable", "reason": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": "failed", "reason": f"{type(error).__name__}: {error}"}
        send(answers, answer)


if __name__ == "__main__":
    sys.exit(main())
