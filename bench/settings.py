"""How a comparison is made: lengths, precision, budget, order; and the words in which the command line says it."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, dataclass
from typing import Any

from bench.records import REFERENCE
from bench.statistics import CANARY_LIMIT

__all__ = ["ORDERS", "PRESETS", "Settings", "duration", "min_time", "precision"]

ORDERS = ("random", "abba")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the cells of one model, thread count, scenario and setup are measured side by side.

    Attributes:
        scenario: one of :data:`bench.records.SCENARIOS`.
        setup: one of :data:`bench.records.SETUPS`.
        reference: the arm that ratios refer to.
        order: ``random``: a new order every second round and the same one backwards in the round after; ``abba``: forwards, backwards.
        seed: of the order, the calls that are checked, the inputs, and the bootstrap.
        warm_up_s: calls before the first timed one, per arm.
        min_time_s: length of a block; it holds at least one call.
        calls: calls per block, in place of ``min_time_s``.
        min_rounds: rounds there are at least, whatever the budget; twice as many where flagged rounds leave too few clean ones.
        max_rounds: rounds there are at most.
        precision: no more rounds when half the width of every ratio's interval is at most so much of the ratio.
        budget_s: no more rounds when so much time has gone into the model, loading included.
        timeout_s: longest wait for one answer of a worker: loading with the first call, the warm-up, or one block.
        gap_s: pause before every call in the scenario ``paced``.
        callers: threads that call at the same time in the scenario ``concurrent``.
        canary_limit: see :data:`bench.statistics.CANARY_LIMIT`.
        idle_s: how long a worker that nobody calls is watched at the end.
    """

    scenario: str = "latency"
    setup: str = "tuned"
    reference: str = REFERENCE
    order: str = "random"
    seed: int = 0
    warm_up_s: float = 0.3
    min_time_s: float = 0.2
    calls: int | None = None
    min_rounds: int = 8
    max_rounds: int = 400
    precision: float = 0.01
    budget_s: float = 30.0
    timeout_s: float = 120.0
    gap_s: float = 0.01
    callers: int = 4
    canary_limit: float = CANARY_LIMIT
    idle_s: float = 0.2

    def recorded(self) -> dict[str, Any]:
        """Returns what a record keeps of it under ``settings``: all that has no field of its own and plays a part."""
        kept = asdict(self)
        for name in ("scenario", "setup", "reference", "order", "seed", "timeout_s"):
            del kept[name]
        if self.scenario != "paced":
            del kept["gap_s"]
        if self.scenario != "concurrent":
            del kept["callers"]
        return kept


PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "models": None, "threads": "1", "scenario": "latency", "setup": "tuned", "aa": False, "min_time": (0.2, None), "precision": 0.01,
        "budget": 30.0,
    },
    "quick": {
        "models": None, "threads": "1", "scenario": "latency", "setup": "tuned", "aa": False, "min_time": (0.05, None), "precision": 0.03,
        "budget": 10.0,
    },
    "rigorous": {
        "models": "all", "threads": "all", "scenario": "all", "setup": "all", "aa": True, "min_time": (0.5, None), "precision": 0.005,
        "budget": 180.0,
    },
}  # fmt: skip
"""What options stand for that the command line does not name."""

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def duration(text: str) -> float:
    """Returns the seconds that ``0.2s``, ``10ms``, ``2m`` or a plain number of seconds stand for."""
    found = re.fullmatch(r"(\d*\.?\d+(?:e-?\d+)?)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in _UNITS or not 0 < (value := float(found[1]) * _UNITS[found[2]]) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a time above 0 such as 40s, 10ms or 2m; got {text}")
    return value


def min_time(text: str) -> tuple[float, int | None]:
    """Returns the seconds of ``0.2s``, or the calls of ``100x``, the way Google Benchmark takes them."""
    if found := re.fullmatch(r"(\d+)x", text.strip()):
        if int(found[1]) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1x; got {text}")
        return 0.0, int(found[1])
    return duration(text), None


def precision(text: str) -> float:
    """Returns the part of 1 that ``1%`` or ``0.01`` stands for."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a part of 1, such as 1% or 0.01; got {text}")
    return value
