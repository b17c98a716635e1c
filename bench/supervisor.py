"""Runs the cells of one model and thread count side by side: a worker process per arm, loaded one after the other, timed in alternating blocks.

Arms measured minutes apart see different machines. Here every round gives each arm one block of calls, in an order that turns round from round
to round, so that a slow moment of the machine falls on all arms alike; a ratio is the median over rounds of the ratios within a round. While
one arm has its turn the others are stopped (SIGSTOP), so that no idle thread pool spins on the measured cores.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.protocol import WorkerGoneError, open_pipe, receive, send
from bench.records import CellRecord
from rml_exec.graph_run.latency import summarize

__all__ = ["REFERENCE", "Budget", "run_cells"]

REFERENCE = "rml"
"""The arm that ratios refer to."""

_MAX_BLOCK_CALLS = 20_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How long things may take.

    Attributes:
        warm_up_s: calls before the first timed one, per arm.
        block_s: length of a block; a block holds at least one call.
        rounds: blocks per arm.
        timeout_s: longest wait for one answer of a worker.
    """

    warm_up_s: float = 0.3
    block_s: float = 0.1
    rounds: int = 10
    timeout_s: float = 120.0


class _Worker:
    """A worker process, seen from the supervisor. It runs while ``ask`` waits for it and is stopped otherwise; ``close`` leaves nothing behind."""

    def __init__(self, cell: Mapping[str, Any], timeout_s: float) -> None:
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self._timeout_s = timeout_s
        self._stderr = tempfile.TemporaryFile()
        threads = str(cell["threads"])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", json.dumps(dict(cell)), str(command_read), str(answer_write)],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            start_new_session=True,
        )
        os.close(command_read)
        os.close(answer_write)
        self._commands, self._answers = open_pipe(command_write, "wb"), open_pipe(answer_read, "rb")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Returns the worker's answer to a command; raises WorkerGoneError, with its last words, if it crashes, hangs or sends garbage."""
        try:
            self._signal(signal.SIGCONT)
            send(self._commands, {"do": do, **arguments})
            answer = receive(self._answers, self._timeout_s)
            self._signal(signal.SIGSTOP)
            return answer
        except WorkerGoneError as error:
            raise WorkerGoneError(f"the worker {error}{self._last_words()}") from None

    def close(self) -> None:
        """Ends the worker and whatever it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for file in (self._commands, self._answers, self._stderr):
            with contextlib.suppress(OSError):
                file.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        """Returns exit code and last line of output of a worker that is gone; nothing of one that still runs."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f" ({how}{': ' + lines[-1] if lines else ''})"


@dataclass(slots=True)
class _Cell:
    """One arm on its way to a record."""

    framework: str
    worker: _Worker | None = None
    status: str = "ok"
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    calls_per_block: int = 1
    blocks: list[list[int]] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.worker is not None

    def ask(self, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Returns the worker's answer; None, with status and reason set and the worker ended, if it could not do it."""
        assert self.worker is not None
        try:
            answer = self.worker.ask(do, **arguments)
        except WorkerGoneError as error:
            answer = {"error": "failed", "reason": str(error)}
        if "error" in answer:
            self.end(answer["error"], answer["reason"])
            return None
        if "check" in answer:
            self._merge_check(answer)
            if answer["check"] == "fail":
                self.end("mismatch", answer["check_reason"])
                return None
        return answer

    def end(self, status: str | None = None, reason: str = "") -> None:
        """Ends the worker; a status other than None is what the record will say."""
        if status is not None:
            self.status, self.reason = status, reason
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _merge_check(self, answer: dict[str, Any]) -> None:
        """Keeps the worst check of all that were made."""
        self.facts["check"] = "fail" if "fail" in (answer["check"], self.facts.get("check")) else "pass"
        for key in ("max_abs_error", "max_rel_error"):
            values = [value for value in (self.facts.get(key), answer[key]) if value is not None]
            self.facts[key] = max(values) if values else None

    def record(self, model: str, threads: int, reference: _Cell | None, environment: Mapping[str, Any]) -> CellRecord:
        """Returns the record of what happened."""
        fields = dict(self.facts)
        if self.status == "ok" and self.blocks:
            fields.update(asdict(summarize([t for block in self.blocks for t in block])))
            if reference is not None and reference.status == "ok":
                pairs = zip(self.blocks, reference.blocks, strict=True)
                fields["ratio"] = median(median(mine) / median(theirs) for mine, theirs in pairs)
        return CellRecord(
            model=model, framework=self.framework, threads=threads, status=self.status, reason=self.reason, environment=dict(environment), **fields
        )


def run_cells(
    model: str,
    threads: int,
    frameworks: Sequence[str],
    *,
    graphs: str,
    cores: Sequence[int],
    budget: Budget,
    environment: Mapping[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> list[CellRecord]:
    """Returns one record per framework, in order.

    Args:
        model: zoo name.
        threads: threads for every arm.
        frameworks: arms that can run the model.
        graphs: directory of exported models.
        cores: CPUs the process may use; each worker is pinned to the first ``threads`` of them.
        budget: how long things may take.
        environment: facts of the machine for the records.
        progress: told what is being done.
    """
    cells = [_Cell(framework) for framework in frameworks]
    try:
        if threads > len(cores):
            for cell in cells:
                cell.end("unavailable", f"{threads} threads need as many cores, this process may use {len(cores)}")
        else:
            _load(cells, {"model": model, "threads": threads, "graphs": graphs, "cores": list(cores[:threads])}, budget, progress)
            _time(cells, budget, progress, model)
    finally:
        for cell in cells:
            cell.end()
    reference = next((cell for cell in cells if cell.framework == REFERENCE), None)
    return [cell.record(model, threads, reference, environment) for cell in cells]


def _load(cells: Sequence[_Cell], common: Mapping[str, Any], budget: Budget, progress: Callable[[str], None]) -> None:
    """Starts the workers one after the other, so that none loads beside another, and sizes their blocks."""
    for cell in cells:
        progress(f"{common['model']}: loading and checking {cell.framework}")
        cell.worker = _Worker({**common, "framework": cell.framework}, budget.timeout_s)
        facts = cell.ask("load")
        if facts is None:
            continue
        cell.facts.update({key: value for key, value in facts.items() if key != "check_reason"})
        warm = cell.ask("warm_up", seconds=budget.warm_up_s)
        if warm is not None:
            cell.calls_per_block = min(max(1, math.ceil(budget.block_s / max(warm["call_s"], 1e-7))), _MAX_BLOCK_CALLS)


def _time(cells: Sequence[_Cell], budget: Budget, progress: Callable[[str], None], model: str) -> None:
    """Gives every arm that runs one block per round, forwards and backwards in turn."""
    for number in range(budget.rounds):
        progress(f"{model}: round {number + 1} of {budget.rounds}")
        for cell in cells if number % 2 == 0 else reversed(cells):
            if cell.is_running and (answer := cell.ask("block", iterations=cell.calls_per_block)) is not None:
                cell.blocks.append(answer["times_ns"])
