"""The statistics of a comparison: pure functions of numbers, so that every printed one can be computed again from the stored blocks.

Rounds, not calls, are the unit of resampling: calls of one block share the machine's mood, so treating them as independent would make every
interval far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

import numpy as np

from rml_exec.graph_run.latency import nearest_rank

__all__ = [
    "CANARY_LIMIT",
    "MARGIN",
    "MIN_ROUNDS",
    "Interval",
    "block_value",
    "bootstrap_median",
    "flag_blocks",
    "noise_floor",
    "percentile",
    "round_ratios",
    "usual_canary",
    "verdict",
]

MARGIN = 0.02
"""An interval within so much of 1 says that two arms are the same."""

MIN_ROUNDS = 6
"""With fewer the range of all ratios, the widest interval that resampling can give, holds the median in less than 95 % (1 - 2 / 2**n)."""

CANARY_LIMIT = 1.5
"""A block is flagged if the canary before or after it took more than so many times what is usual."""

_CONFIDENCE = 0.95
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def block_value(times_ns: Sequence[int], scenario: str = "latency", kinds: int = 1) -> float:
    """Returns the one number that stands for a block when it is compared: the lower quartile of its calls.

    On a machine with other work a part of the calls is interrupted for the length of a time slice, and a median jumps with the size of that
    part; three in four calls may be interrupted before the lower quartile does, and unlike the minimum it is no extreme. Calls of several
    kinds count kind by kind, or the cheap ones alone would have a say. Callers that wait for each other are no interruption: there it is
    the mean.

    Args:
        times_ns: time of every call.
        scenario: one of :data:`bench.records.SCENARIOS`.
        kinds: number of golden sets that the calls took in turn.
    """
    if scenario == "concurrent":
        return fmean(times_ns)
    return fmean(nearest_rank(sorted(times_ns[kind::kinds]), 25) for kind in range(kinds))


def round_ratios(
    values: Sequence[float], reference: Sequence[float], flagged: Sequence[bool], reference_flagged: Sequence[bool]
) -> list[float]:
    """Returns, for every round in which neither block is flagged, the block's value / that of the reference.

    The reference may have more rounds than the arm, which are passed over; round k is block k of both.
    """
    pairs = zip(values, flagged, reference, reference_flagged, strict=False)
    return [mine / theirs for mine, bad, theirs, reference_bad in pairs if not bad and not reference_bad]


def usual_canary(canaries_ns: Sequence[int]) -> float:
    """Returns the time that the canary usually takes in a run: the upper quartile; 0 without any.

    While less than a quarter of a run is disturbed, that is what it takes when nothing disturbs it. On a machine that is always busy it is
    what it takes there, so that only what is worse is left out; by the median every second round would be, and nothing decided.
    """
    return nearest_rank(sorted(canaries_ns), 75) if canaries_ns else 0.0


def flag_blocks(canaries: Sequence[tuple[int, int]], usual: float, limit: float = CANARY_LIMIT) -> list[bool]:
    """Returns which blocks are polluted.

    Args:
        canaries: per block the time of the canary before and after it.
        usual: what :func:`usual_canary` says of all canaries of the run.
        limit: a canary that took more than ``limit * usual`` says that something else had the core.
    """
    return [max(pair) > limit * usual for pair in canaries]


def bootstrap_median(values: Sequence[float], seed: int) -> Interval | None:
    """Returns the median of ratios with its 95 % bootstrap interval; None below :data:`MIN_ROUNDS` values.

    The plain percentile interval is too narrow for few values; its levels are widened as those of a t interval are, n / (n - 1) included
    (the expanded percentile interval of Hesterberg, "What Teachers Should Know about the Bootstrap", The American Statistician 69, 2015).

    Args:
        values: one ratio per round.
        seed: seed of the 10,000 resamples; with the same values the same interval comes out.
    """
    n = len(values)
    if n < MIN_ROUNDS:
        return None
    resamples = np.random.default_rng(seed).integers(0, n, (_RESAMPLES, n))
    medians = np.median(np.asarray(values, np.float64)[resamples], axis=1)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _t_quantile(0.5 + _CONFIDENCE / 2, n - 1))
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(median(values), float(low), float(high))


def verdict(interval: Interval | None, margin: float = MARGIN) -> str:
    """Returns ``same``, ``faster``, ``slower`` or ``unresolved`` for the interval of a ratio arm / reference."""
    if interval is None:
        return "unresolved"
    if 1 - margin <= interval.low and interval.high <= 1 + margin:
        return "same"
    return "faster" if interval.high < 1 else "slower" if interval.low > 1 else "unresolved"


def noise_floor(twin: Interval | None) -> float | None:
    """Returns how far two runs of the same thing seem apart: half the width of the interval of the reference's twin."""
    return None if twin is None else twin.half_width


def percentile(ordered: Sequence[float], percent: float) -> Interval | None:
    """Returns a nearest-rank percentile with its 95 % order-statistic interval; None if there are too few values for both its ends.

    The ends are the values whose ranks a binomial count of values below the true percentile lies between: no assumption about the
    distribution, but independent values. Both exist from 36 values on for the 90th percentile, from 368 on for the 99th.

    Args:
        ordered: the values, ascending.
        percent: which percentile, between 0 and 100.
    """
    n, tail = len(ordered), (1 - _CONFIDENCE) / 2
    below = _binomial_cdf(n, percent / 100)  # below[k]: chance that at most k values lie below the percentile
    low = int(np.searchsorted(below, tail, side="right"))  # largest rank with P(count < rank) <= tail
    high = int(np.searchsorted(below, 1 - tail)) + 1  # smallest rank with P(count < rank) >= 1 - tail
    if low < 1 or high > n:
        return None
    return Interval(nearest_rank(ordered, percent), ordered[low - 1], ordered[high - 1])


def _binomial_cdf(n: int, p: float) -> np.ndarray:
    """Returns P(count <= k) for k = 0...n."""
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, n + 1)))))
    k = np.arange(n + 1)
    return np.cumsum(np.exp(logs[n] - logs - logs[::-1] + k * math.log(p) + (n - k) * math.log1p(-p)))


def _t_quantile(p: float, degrees: int) -> float:
    """Returns a quantile of Student's t by its Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5); within 0.5 % from 5 degrees on."""
    z, v = NormalDist().inv_cdf(p), float(degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, 1))
