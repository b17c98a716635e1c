"""Runs the cells of one model and thread count side by side: a worker process per arm, loaded one by one, timed in alternating blocks.

Arms measured minutes apart see different machines. Here every round gives each arm one block of calls, in an order that turns round from
round to round, so that a slow moment of the machine falls on all arms alike; a ratio is the median over rounds of the ratios within a
round. While one arm has its turn the others are stopped (SIGSTOP), so that no idle thread pool spins on the measured cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.adapters.base import ARMS
from bench.processes import WorkerProcess
from bench.protocol import WorkerGoneError
from bench.records import REFERENCE, CellRecord
from rml_exec.graph_run.latency import summarize

__all__ = ["Budget", "paired_ratio", "run_cells"]

_MAX_BLOCK_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How long things may take.

    Attributes:
        warm_up_s: calls before the first timed one, per arm.
        block_s: length of a block; a block holds at least one call.
        rounds: blocks per arm.
        timeout_s: longest wait for one answer of a worker: loading with the first call, the warm-up, or one block.
    """

    warm_up_s: float = 0.3
    block_s: float = 0.1
    rounds: int = 12
    timeout_s: float = 120.0


def paired_ratio(blocks: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    """Returns the median over rounds of block median / the reference's block median; both have one block per round."""
    return median(median(mine) / median(theirs) for mine, theirs in zip(blocks, reference, strict=True))


@dataclass(slots=True)
class _Cell:
    """One arm on its way to a record."""

    framework: str
    worker: WorkerProcess | None = None
    status: str = "ok"
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    calls_per_block: int = 1
    blocks: list[list[int]] = field(default_factory=list)

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
        self.facts.update(answer.get("facts", {}))
        if "check" in answer:
            self._merge_check(answer)
            if answer["check"] == "fail":
                self.end("mismatch", answer["check_reason"])
                return None
        return answer

    def end(self, status: str | None = None, reason: str = "") -> None:
        """Ends the worker; a status other than None is what the record will say, in one line."""
        if status is not None:
            self.status, self.reason = status, " ".join(reason.split())
        if self.worker is not None:
            strays = self.worker.close()
            self.worker = None
            if strays and not self.reason:
                self.reason = f"processes that left its group ran on beside the other arms and were ended: {strays}"

    def _merge_check(self, answer: dict[str, Any]) -> None:
        """Keeps the worst check of all that were made."""
        self.facts["check"] = answer["check"]
        for key in ("max_abs_error", "max_rel_error"):
            values = [value for value in (self.facts.get(key), answer[key]) if value is not None]
            self.facts[key] = max(values) if values and answer[key] is not None else None

    def record(self, model: str, threads: int, reference: _Cell | None, environment: Mapping[str, Any]) -> CellRecord:
        """Returns the record of what happened."""
        fields = dict(self.facts)
        if self.status == "ok":
            fields.update(asdict(summarize([t for block in self.blocks for t in block])))
            if reference is not None and reference.status == "ok":
                fields["ratio"] = paired_ratio(self.blocks, reference.blocks)
        fields.update(status=self.status, reason=self.reason, environment=dict(environment))
        return CellRecord(model, self.framework, threads, **fields)


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
    """Returns one record per framework, in order. Whatever ends this call, none of its workers outlives it.

    Args:
        model: zoo name.
        threads: threads for every arm.
        frameworks: names of arms that can run the model.
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
                cell.end("unavailable", f"{threads} threads need as many cores, and this process may use {len(cores)}")
        else:
            _load(cells, {"model": model, "threads": threads, "graphs": graphs, "cores": list(cores[:threads])}, budget, progress)
            _time(cells, budget, progress)
    finally:
        for cell in cells:
            cell.end()
    reference = next((cell for cell in cells if cell.framework == REFERENCE), None)
    return [cell.record(model, threads, reference, environment) for cell in cells]


def _load(cells: Sequence[_Cell], common: Mapping[str, Any], budget: Budget, progress: Callable[[str], None]) -> None:
    """Starts the workers one after the other, so that none loads beside another, and sizes their blocks."""
    for cell in cells:
        progress(f"loading and checking {cell.framework}")
        cell.worker = WorkerProcess({**common, "adapter": ARMS[cell.framework].adapter}, budget.timeout_s)
        if cell.ask("load") is None:
            continue
        if (warm := cell.ask("warm_up", seconds=budget.warm_up_s)) is not None:
            cell.calls_per_block = min(max(1, math.ceil(budget.block_s / max(warm["call_s"], 1e-9))), _MAX_BLOCK_CALLS)


def _time(cells: Sequence[_Cell], budget: Budget, progress: Callable[[str], None]) -> None:
    """Gives every arm that still runs one block per round, forwards and backwards in turn."""
    for number in range(budget.rounds):
        progress(f"round {number + 1} of {budget.rounds}")
        for cell in cells if number % 2 == 0 else reversed(cells):
            if cell.worker is not None and (answer := cell.ask("block", iterations=cell.calls_per_block)) is not None:
                cell.blocks.append(answer["times_ns"])
