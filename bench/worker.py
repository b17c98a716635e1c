"""The process of one cell: pins itself, loads one arm, and does what the supervisor asks, one block of calls at a time.

Run as ``python -m bench.worker JSON READ_FD WRITE_FD``. It sleeps in a read, and is stopped, while other arms have their turn.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import parity
from bench.adapters.base import Adapter, UnavailableError, make_adapter
from bench.cost import peak_bytes, resident_bytes
from bench.processes import die_with_parent
from bench.protocol import Channel, WorkerGoneError

if TYPE_CHECKING:
    import numpy as np  # not before the worker has pinned itself

    from rml_exec.ir.golden import Golden

__all__ = ["Session", "main"]


class Session:
    """Does the supervisor's commands; each public method is one and returns the fields of its answer.

    Args:
        cell: ``model``, ``graphs``, ``threads``, ``setup``, ``cores``, ``adapter`` (module:class) and, beyond those of the model, ``goldens``
            (paths).
    """

    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self._adapter: Adapter = make_adapter(cell["adapter"])
        self._bound = -1
        self._cores = cell.get("cores") or os.sched_getaffinity(0)

    def load(self) -> dict[str, Any]:
        """Loads the model, makes the first call with the first golden's inputs, and checks its outputs.

        ``first_output`` is when these were there: on the clock that all processes of a machine share, and in CPU time of this process.
        ``shapes`` tells the golden sets apart by the shapes of their inputs: equal numbers, equal shapes.
        """
        cell, adapter = self._cell, self._adapter
        adapter.load(cell["model"], cell["graphs"], cell["threads"], cell.get("setup", "tuned"))
        from rml_exec.graph_run import load_golden
        from rml_exec.ir.format import model_paths

        prefix = Path(cell["graphs"]) / cell["model"]
        self._call_order = [entry["name"] for entry in json.loads(model_paths(prefix).graph.read_bytes())["inputs"]]  # a golden keeps none
        self._goldens = [load_golden(prefix, path) for path in (None, *map(Path, cell.get("goldens", ())))]
        self._bind(0)
        start = time.perf_counter_ns()
        result = adapter.call()
        self._first_call_ms = (time.perf_counter_ns() - start) / 1e6
        outputs = adapter.outputs(result)
        first_output = {"clock_ns": time.perf_counter_ns(), "cpu_ns": time.process_time_ns()}
        first_call = {"first_call_ms": self._first_call_ms, "rss_after_first_call_bytes": resident_bytes()}
        facts = asdict(adapter.facts())
        if cell.get("python"):
            facts["options"] |= {"interpreter": sys.executable, "python": platform.python_version()}
        signatures = [tuple((name, golden.inputs[name].shape) for name in self._call_order) for golden in self._goldens]
        checked = self._check([(outputs, self._goldens[0])])
        if checked["check"] == "fail" and (probed := self._probe())["precision"] != "f32":
            facts |= probed
            checked["check_reason"] += f"; the arm computes float32 products in {probed['precision']}"
        return {
            "facts": facts | first_call,
            "first_output": first_output,
            "shapes": [signatures.index(signature) for signature in signatures],
            **checked,
        }

    def examine(self) -> dict[str, Any]:
        """Finds out what compilation took, and how the arm computes float32 products; belongs to no phase."""
        cold, warm = self._adapter.compile_times(self._first_call_ms)
        return {"facts": {"compile_cold_ms": cold, "compile_warm_ms": warm, **self._probe()}}

    def _probe(self) -> dict[str, Any]:
        from bench.probe import examine, operands

        found = examine(self._adapter.product(*operands()))
        return {"precision": found.precision, "flush_denormals": found.flush_denormals}

    def new_shapes(self, inputs: Sequence[int]) -> dict[str, Any]:
        """Makes the first call at the shapes of each of these golden sets, and checks what it gave."""
        times, kept = [], []
        for index in inputs:
            self._bind(index)
            start = time.perf_counter_ns()
            result = self._adapter.call()
            times.append((time.perf_counter_ns() - start) / 1e6)
            kept.append((self._adapter.outputs(result), self._goldens[index]))
        return {"facts": {"new_shape_ms": median(times)}, **self._check(kept)}

    def warm_up(self, seconds: float) -> dict[str, Any]:
        """Calls the model for about so long and returns the time of its fastest call, from which the supervisor sizes the blocks.

        ``escaped`` is the number of threads that were seen meanwhile and are not held to the granted cores.
        """
        fastest, end = float("inf"), time.perf_counter() + seconds
        with parity.Watch(self._cores) as watch:
            while True:
                start = time.perf_counter()
                self._adapter.call()
                now = time.perf_counter()
                fastest = min(fastest, now - start)
                if now >= end:
                    break
        return {"call_s": fastest, "escaped": watch.escaped}

    def block(
        self, iterations: int, inputs: Sequence[int] = (0,), check: Collection[int] = (0, -1), gap_s: float = 0.0, callers: int = 1
    ) -> dict[str, Any]:
        """Times each of so many calls per caller, and then checks what some of them gave.

        A block of several calls begins with one more that is not timed: another arm had the caches until now, and how much that costs would
        depend on how many calls a block has. So does one with a single set of inputs that is not bound yet.

        Args:
            iterations: calls per caller.
            inputs: golden sets that calls take in turn. Binding is not timed.
            check: which calls to check, by number; negative ones count from the end.
            gap_s: pause before every call.
            callers: threads that call at the same time, each the one set of inputs.
        """
        new = len(inputs) == 1 and self._bind(inputs[0])
        if new or iterations > 1:
            self._adapter.call()
        wanted = {number % iterations for number in check}
        if callers > 1:
            times, kept, ledger = self._together(callers, iterations, wanted, gap_s)
        else:
            before, clock = parity.snapshot(), time.perf_counter_ns()
            times, kept = self._calls(iterations, inputs, wanted, gap_s)
            ledger = self._close(before, clock)
        return {
            "times_ns": times,
            "wall_ns": ledger["wall_ns"],
            "cpu_ns": ledger["cpu_ns"],
            "ledger": ledger,
            **self._check([(outputs, self._goldens[inputs[number % len(inputs)]]) for number, outputs in kept]),
        }

    def _close(self, before: dict[str, Any], clock: int) -> dict[str, Any]:
        """Returns the ledger of a block that began with a snapshot and at a time, and ends now."""
        wall = time.perf_counter_ns() - clock
        return parity.compare(before, parity.snapshot(), wall, self._cores)

    def finish(self, seconds: float) -> dict[str, Any]:
        """Returns the memory of the process, sleeps, and returns how much CPU time it used meanwhile, per second: threads that wait spinning."""
        memory = {"rss_bytes": resident_bytes(), "rss_peak_bytes": peak_bytes()}
        clock, cpu = time.perf_counter_ns(), time.process_time_ns()
        time.sleep(seconds)
        return {"facts": {**memory, "idle_cpu_s": (time.process_time_ns() - cpu) / (time.perf_counter_ns() - clock)}}

    def _bind(self, index: int) -> bool:
        """Gives the arm a golden set's inputs; returns whether they are other ones than before."""
        if self._bound == index:
            return False
        inputs = self._goldens[index].inputs
        self._adapter.bind({name: inputs[name] for name in self._call_order})
        self._bound = index
        return True

    def _calls(self, iterations: int, inputs: Sequence[int], wanted: set[int], gap_s: float) -> tuple[list[int], list[tuple[int, Any]]]:
        """Returns the times of calls, and number and outputs of those wanted: taken at once, for the next call may write where they lie."""
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
                kept.append((number, self._adapter.outputs(result)))
        return times, kept

    def _together(
        self, callers: int, iterations: int, wanted: set[int], gap_s: float
    ) -> tuple[list[int], list[tuple[int, Any]], dict[str, Any]]:
        """Returns what callers that run at the same time measured, and the ledger of all of it."""
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
        before = parity.snapshot()
        ready.wait()
        clock = time.perf_counter_ns()
        for thread in threads:
            thread.join()
        ledger = self._close(before, clock)
        if errors:
            raise errors[0]
        return [one for times, _ in found for one in times], [one for _, kept in found for one in kept], ledger

    def _check(self, results: Sequence[tuple[dict[str, np.ndarray], Golden]]) -> dict[str, Any]:
        """Returns the worst of the comparisons of outputs with the golden sets that they should equal."""
        found = [self._compare(outputs, golden) for outputs, golden in results]
        return max(found, key=lambda one: (one["check"] == "fail", math.inf if one["max_abs_error"] is None else one["max_abs_error"]))

    def _compare(self, outputs: dict[str, np.ndarray], golden: Golden) -> dict[str, Any]:
        from rml_exec.graph_run import compare_with_golden

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
        name: getattr(session, name) for name in ("load", "examine", "new_shapes", "warm_up", "block", "finish")
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
