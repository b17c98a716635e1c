"""One arm on its way to a record: its worker, its blocks, its checks, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.adapters.base import Arm, find_arm, interpreter_of
from bench.fingerprint import fingerprint
from bench.parity import judge
from bench.processes import WorkerProcess
from bench.protocol import WorkerGoneError
from bench.records import CellRecord
from bench.settings import Settings
from bench.statistics import Interval, block_value, bootstrap_median, flag_blocks, percentile, round_ratios, verdict
from rml_exec.graph_run.latency import summarize

__all__ = ["TWIN", "Block", "Cell", "arm_of"]

TWIN = "#2"
"""What is appended to the name of the reference for its twin."""


def arm_of(framework: str) -> Arm:
    """Returns the arm of a full name, such as that of a twin, or of an arm under another interpreter."""
    return find_arm(framework.removesuffix(TWIN))


@dataclass(frozen=True, slots=True)
class Block:
    """What was measured in one turn of one arm.

    Attributes:
        round: number of the round.
        position: which turn of the round it was.
        start_ns: when it began, on the clock that all processes of the machine share.
        wall_ns: its length.
        times_ns: time of every call.
        cpu_ns: CPU time of the process and its children.
        inputs: numbers of the golden sets whose inputs were used.
        canary_ns: time of the canary before and after it.
        ledger: what :func:`bench.parity.compare` found out about it; empty in the scenario ``cold``.
    """

    round: int
    position: int
    start_ns: int
    wall_ns: int
    times_ns: list[int]
    cpu_ns: int
    inputs: list[int]
    canary_ns: tuple[int, int]
    ledger: dict[str, Any] = field(default_factory=dict)

    def value(self, scenario: str) -> float:
        """Returns what stands for the block when it is compared; see :func:`bench.statistics.block_value`."""
        return block_value(self.times_ns, scenario, len(self.inputs))


@dataclass(slots=True)
class Cell:
    """One arm. ``worker`` is None before it has started and after it has ended; ``escaped`` counts threads of its warm-up outside its cores."""

    framework: str
    worker: WorkerProcess | None = None
    status: str = "ok"
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    calls_per_block: int = 1
    escaped: int = 0
    blocks: list[Block] = field(default_factory=list)
    started: str | None = None
    finished: str | None = None

    def start(self, common: Mapping[str, Any], timeout_s: float) -> None:
        """Starts the worker; ``common["caches"]`` is a directory in which it finds, and leaves, its framework's compiled code."""
        self.started = self.started or _now()
        caches = {"cache": str(Path(common["caches"], self.framework.replace("/", "_")))}
        own = {"adapter": arm_of(self.framework).adapter, "python": interpreter_of(self.framework.removesuffix(TWIN))}
        self.worker = WorkerProcess({**common, **own, **caches}, timeout_s)

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
            self.finished = _now()
            if strays and not self.reason:
                self.reason = f"processes that left its group ran on beside the other arms and were ended: {strays}"

    def _merge_check(self, answer: dict[str, Any]) -> None:
        """Keeps the worst check of all that were made."""
        self.facts["check"] = answer["check"]
        for key in ("max_abs_error", "max_rel_error"):
            values = [value for value in (self.facts.get(key), answer[key]) if value is not None]
            self.facts[key] = max(values) if values and answer[key] is not None else None

    def flags(self, usual_ns: float, limit: float) -> list[bool]:
        """Returns which of the blocks are polluted; see :func:`bench.statistics.flag_blocks`."""
        return flag_blocks([block.canary_ns for block in self.blocks], usual_ns, limit)

    def _ratios_to(self, reference: Cell, usual_ns: float, settings: Settings) -> list[float]:
        mine, theirs = ([block.value(settings.scenario) for block in cell.blocks] for cell in (self, reference))
        limit = settings.canary_limit
        return round_ratios(mine, theirs, self.flags(usual_ns, limit), reference.flags(usual_ns, limit))

    def ratio_to(self, reference: Cell, usual_ns: float, settings: Settings) -> Interval | None:
        """Returns the paired ratio to the reference; None with too few clean rounds for an interval."""
        return bootstrap_median(self._ratios_to(reference, usual_ns, settings), settings.seed)

    def measured(self) -> dict[str, Any]:
        """Returns the fields that the blocks give by themselves."""
        times = [time for block in self.blocks for time in block.times_ns]
        fields: dict[str, Any] = asdict(summarize(times))
        ordered = sorted(time / 1e6 for time in times)
        for name, found in (("p90", percentile(ordered, 90)), ("p99", percentile(ordered, 99))):
            if found is not None:
                fields |= {f"{name}_ms": found.estimate, f"{name}_low_ms": found.low, f"{name}_high_ms": found.high}
        cpu, wall = (sum(getattr(block, key) for block in self.blocks) for key in ("cpu_ns", "wall_ns"))
        return {**fields, "rounds": len(self.blocks), "cpu_s_per_call": cpu / 1e9 / len(times), "effective_cores": cpu / wall}

    def observed(self, threads: int) -> dict[str, Any]:
        """Returns the fields that say whether the arm used what it was granted."""
        ledgers = [block.ledger for block in self.blocks if block.ledger]
        return judge(ledgers, threads, self.facts.get("precision"), self.escaped)

    def compared(self, reference: Cell | None, usual_ns: float, settings: Settings) -> dict[str, Any]:
        """Returns the fields that say how the arm compares to the reference."""
        fields: dict[str, Any] = {"reference": settings.reference, "blocks_flagged": sum(self.flags(usual_ns, settings.canary_limit))}
        if self is reference:
            return {**fields, "ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0, "verdict": "reference"}
        if reference is None or reference.status != "ok":
            return fields
        if ratios := self._ratios_to(reference, usual_ns, settings):
            fields["ratio"] = median(ratios)
        interval = self.ratio_to(reference, usual_ns, settings)
        fields["verdict"] = verdict(interval)
        if interval is not None:
            fields |= {"ratio_low": interval.low, "ratio_high": interval.high}
        return fields

    def record(self, base: CellRecord, fields: Mapping[str, Any]) -> CellRecord:
        """Returns the record of what happened: what all cells of the measurement have in common, the worker's facts, and these fields."""
        own = {"framework": self.framework, "status": self.status, "started": self.started, "finished": self.finished}
        reason = self.reason or (base.reason if self.status == "ok" else "")
        record = replace(base, **{**self.facts, **fields, **own, "reason": reason})
        return replace(record, fingerprint=fingerprint(record))

    def lines(self, record: CellRecord, flags: Sequence[bool]) -> list[dict[str, Any]]:
        """Returns the raw data of the blocks, one line each for the file of blocks."""
        return [
            {"run": record.run, "cell": record.cell, **asdict(block), "flagged": flagged}
            for block, flagged in zip(self.blocks, flags, strict=True)
        ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
