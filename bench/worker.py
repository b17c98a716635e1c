"""The process of one cell: pins itself, loads one arm, and does what the supervisor asks, one block of calls at a time.

Run as ``python -m bench.worker JSON READ_FD WRITE_FD``. It sleeps in a read, and is stopped, while other arms have their turn.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.adapters.base import Adapter, UnavailableError, make_adapter
from bench.processes import die_with_parent
from bench.protocol import Channel, WorkerGoneError

__all__ = ["Session", "main"]


class Session:
    """Does the supervisor's commands; each public method is one and returns the fields of its answer.

    Args:
        cell: ``model``, ``graphs``, ``threads`` and ``adapter`` (module:class).
    """

    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self._adapter: Adapter = make_adapter(cell["adapter"])

    def load(self) -> dict[str, Any]:
        """Loads the model, makes the first call, and checks its outputs against the golden."""
        cell, adapter = self._cell, self._adapter
        adapter.load(cell["model"], cell["graphs"], cell["threads"])
        from rml_exec.graph_run import load_golden
        from rml_exec.ir.format import model_paths

        prefix = Path(cell["graphs"]) / cell["model"]
        self._golden = load_golden(prefix)
        call_order = [entry["name"] for entry in json.loads(model_paths(prefix).graph.read_bytes())["inputs"]]  # a golden keeps none
        adapter.bind({name: self._golden.inputs[name] for name in call_order})
        start = time.perf_counter_ns()
        result = adapter.call()
        first_call_ms = (time.perf_counter_ns() - start) / 1e6
        return {"facts": {**asdict(adapter.facts()), "first_call_ms": first_call_ms}, **self._check(result)}

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

        outputs = self._adapter.outputs(result)
        found = compare_with_golden(outputs, self._golden)
        unknown = ", ".join(sorted(set(outputs) - set(self._golden.outputs)))
        reason = found.reason or (f"the golden holds no output {unknown} to check against" if unknown else "")
        largest, relative = (value if math.isfinite(value) else None for value in (found.max_abs_error, found.max_rel_error))
        return {"check": "fail" if reason else "pass", "max_abs_error": largest, "max_rel_error": relative, "check_reason": reason}


def main() -> int:
    """Runs the worker until the supervisor is gone."""
    cell = json.loads(sys.argv[1])
    die_with_parent(cell["supervisor"])
    os.sched_setaffinity(0, cell["cores"])  # before the framework is imported: it sizes its thread pools by this mask
    channel = Channel(int(sys.argv[2]), int(sys.argv[3]))
    session = Session(cell)
    commands: dict[str, Callable[..., dict[str, Any]]] = {"load": session.load, "warm_up": session.warm_up, "block": session.block}
    while True:
        try:
            command = channel.receive()
        except WorkerGoneError:
            return 0
        try:
            answer = commands[command["do"]](**command["arguments"])
        except UnavailableError as error:
            answer = {"error": "unavailable", "reason": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": "failed", "reason": f"{type(error).__name__}: {error}"}
        channel.send({"id": command["id"], **answer})


if __name__ == "__main__":
    sys.exit(main())
