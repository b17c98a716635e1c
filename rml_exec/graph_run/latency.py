"""Timing calls, and the summary of what was timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Latency", "measure", "nearest_rank", "summarize"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Summary of a series of calls, in milliseconds; percentiles by nearest rank, so each is a value that was measured."""

    iterations: int
    mean_ms: float
    min_ms: float
    p10_ms: float
    median_ms: float
    p90_ms: float


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Returns the smallest value of an ascending series that at least ``percent`` % of it do not exceed (nearest rank; 0 < percent <= 100)."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def summarize(times_ns: Sequence[int]) -> Latency:
    """Returns the summary of a non-empty series of wall times in nanoseconds."""
    ordered = sorted(t / 1e6 for t in times_ns)
    return Latency(
        iterations=len(ordered),
        mean_ms=sum(ordered) / len(ordered),
        min_ms=ordered[0],
        p10_ms=nearest_rank(ordered, 10),
        median_ms=nearest_rank(ordered, 50),
        p90_ms=nearest_rank(ordered, 90),
    )


def measure(call: Callable[[], object], *, iterations: int, warmup: int) -> list[int]:
    """Returns the wall time of each of ``iterations`` calls in nanoseconds, after ``warmup`` calls that are not timed."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return times
