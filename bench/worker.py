"""The process of one cell: pins itself, loads one arm, and does what the supervisor asks, one block of calls at a time.

Run as ``python -m bench.worker JSON READ_FD WRITE_FD``. It sleeps in a read, and is stopped, while other arms have their turn.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.adapters.base import Adapter, UnavailableError, make_adapter
from bench.processes import die_with_parent
from bench.protocol import Channel, WorkerGoneError

if TYPE_CHECKING:
    from rml_exec.ir.golden import Golden  # not before the worker has pinned itself

__all__ = ["Session", "main"]


class Session:
    """Does the supervisor's commands; each public method is one and returns the fields of its answer.

    Args:
        cell: ``model``, ``graphs``, ``threads``, ``adapter`` (module:class) and, beyond those of the model, ``goldens`` (paths).
    """

    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self._adapter: Adapter = make_adapter(cell["adapter"])
        self._bound = -1

    def load(self) -> dict[str, Any]:
        """Loads the model, makes the first call with the first golden's inputs, and checks its outputs.

        ``first_output`` is when these were there: on the clock that all processes of a machine share, and in CPU time of this process.
        ``shapes`` tells the golden sets apart by the shapes of their inputs: equal numbers, equal shapes.
        """
        cell, adapter = self._cell, self._adapter
        adapter.load(cell["model"], cell["graphs"], cell["threads"])
        from rml_exec.graph_run import load_golden
        from rml_exec.ir.format import model_paths

        prefix = Path(cell["graphs"]) / cell["model"]
        self._call_order = [entry["name"] for entry in json.loads(model_paths(prefix).graph.read_bytes())["inputs"]]  # a golden keeps none
        self._goldens = [load_golden(prefix, path) for path in (None, *map(Path, cell.get("goldens", ())))]
        self._bind(0)
        start = time.perf_counter_ns()
        result = adapter.call()
        first_call_ms = (time.perf_counter_ns() - start) / 1e6
        adapter.outputs(result)
        first_output = {"clock_ns": time.perf_counter_ns(), "cpu_ns": time.process_time_ns()}
        signatures = [tuple((name, golden.inputs[name].shape) for name in self._call_order) for golden in self._goldens]
        return {
            "facts": {**asdict(adapter.facts()), "first_call_ms": first_call_ms},
            "first_output": first_output,
            "shapes": [signatures.index(signature) for signature in signatures],
            **self._check([(result, self._goldens[0])]),
        }

    def new_shapes(self, inputs: Sequence[int]) -> dict[str, Any]:
        """Makes the first call at the shapes of each of these golden sets, and checks what it gave."""
        times, kept = [], []
        for index in inputs:
            self._bind(index)
            start = time.perf_counter_ns()
            result = self._adapter.call()
            times.append((time.perf_counter_ns() - start) / 1e6)
            kept.append((result, self._goldens[index]))
        return {"facts": {"new_shape_ms": median(times)}, **self._check(kept)}

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

    def block(
        self, iterations: int, inputs: Sequence[int] = (0,), check: Collection[int] = (0, -1), gap_s: float = 0.0, callers: int = 1
    ) -> dict[str, Any]:
        """Times each of so many calls per caller, and then checks what some of them gave.

        Args:
            iterations: calls per caller.
            inputs: golden sets that calls take in turn. Binding is not timed; with one set that is not bound yet, neither is the call that
                follows, which brings the new inputs where the arm wants them.
            check: which calls to check, by number; negative ones count from the end.
            gap_s: pause before every call.
            callers: threads that call at the same time, each the one set of inputs.
        """
        if len(inputs) == 1 and self._bind(inputs[0]):
            self._adapter.call()
        wanted = {number % iterations for number in check}
        if callers > 1:
            times, kept, clock, cpu = self._together(callers, iterations, wanted, gap_s)
        else:
            clock, cpu = time.perf_counter_ns(), time.process_time_ns()
            times, kept = self._calls(iterations, inputs, wanted, gap_s)
            clock, cpu = time.perf_counter_ns() - clock, time.process_time_ns() - cpu
        return {
            "times_ns": times,
            "wall_ns": clock,
            "cpu_ns": cpu,
            **self._check([(result, self._goldens[inputs[number % len(inputs)]]) for number, result in kept]),
        }

    def finish(self, seconds: float) -> dict[str, Any]:
        """Sleeps, and returns how much CPU time the process used meanwhile, per second: threads that wait by spinning."""
        clock, cpu = time.perf_counter_ns(), time.process_time_ns()
        time.sleep(seconds)
        return {"facts": {"idle_cpu_s": (time.process_time_ns() - cpu) / (time.perf_counter_ns() - clock)}}

    def _bind(self, index: int) -> bool:
        """Gives the arm a golden set's inputs; returns whether they are other ones than before."""
        if self._bound == index:
            return False
        inputs = self._goldens[index].inputs
        self._adapter.bind({name: inputs[name] for name in self._call_order})
        self._bound = index
        return True

    def _calls(self, iterations: int, inputs: Sequence[int], wanted: set[int], gap_s: float) -> tuple[list[int], list[tuple[int, Any]]]:
        """Returns the times of calls, and number and result of those wanted."""
        call, rotates = self._adapter.call, len(inputs) > 1
        times, kept = [], []
        for number in range(iterations):
            if rotates:
                self._bind(inputs[number % len(inputs)])
            if gap_s:
                time.sleep(gap_s)
            start = time.perf_counter_ns()
            result = call()
            times.append(time.perf_counter_ns() - start)
            if number in wanted:
                kept.append((number, result))
        return times, kept

    def _together(self, callers: int, iterations: int, wanted: set[int], gap_s: float) -> tuple[list[int], list[tuple[int, Any]], int, int]:
        """Returns what callers that run at the same time measured, and wall and CPU time of all of it."""
        found: list[tuple[list[int], list[tuple[int, Any]]]] = []
        errors: list[Exception] = []
        ready = threading.Barrier(callers + 1)

        def run() -> None:
            ready.wait()
            try:
                found.append(self._calls(iterations, (0,), wanted, gap_s))
            except Exception as error:  # whatever the framework raises; a thread cannot raise it
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(callers)]
        for thread in threads:
            thread.start()
        ready.wait()
        clock, cpu = time.perf_counter_ns(), time.process_time_ns()
        for thread in threads:
            thread.join()
        clock, cpu = time.perf_counter_ns() - clock, time.process_time_ns() - cpu
        if errors:
            raise errors[0]
        return [one for times, _ in found for one in times], [one for _, kept in found for one in kept], clock, cpu

    def _check(self, results: Sequence[tuple[Any, Golden]]) -> dict[str, Any]:
        """Returns the worst of the comparisons of results with the golden sets that they should equal."""
        found = [self._compare(result, golden) for result, golden in results]
        return max(found, key=lambda one: (one["check"] == "fail", math.inf if one["max_abs_error"] is None else one["max_abs_error"]))

    def _compare(self, result: Any, golden: Golden) -> dict[str, Any]:
        from rml_exec.graph_run import compare_with_golden

        outputs = self._adapter.outputs(result)
        found = compare_with_golden(outputs, golden)
        unknown = ", ".join(sorted(set(outputs) - set(golden.outputs)))
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
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        name: getattr(session, name) for name in ("load", "new_shapes", "warm_up", "block", "finish")
    }
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
