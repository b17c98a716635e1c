"""Profiled runs between plain ones, so that what the profiler costs is known, and the times add up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from rml_exec.runtime.executor import Executor
from rml_exec.runtime.profile import Profile

__all__ = ["ProfileTotal", "profile_total", "profiled_runs"]


@dataclass(frozen=True, slots=True)
class ProfileTotal:
    """Where the time of a profiled run goes: ``wall_ms = steps_ms + gap_ms + overhead_ms``.

    Attributes:
        runs: pairs of one profiled and one plain run.
        wall_ms: median of the profiled runs.
        steps_ms: median of the sum over their steps.
        overhead_ms: what profiling costs: median over the pairs of profiled - plain run; below 0 where noise is larger than it.
        gap_ms: the rest: input checks, allocation of outputs, the walk from step to step.
        plain_ms: median of the plain runs.
    """

    runs: int
    wall_ms: float
    steps_ms: float
    gap_ms: float
    overhead_ms: float
    plain_ms: float


def profiled_runs(executor: Executor, inputs: Mapping[str, np.ndarray], runs: int) -> tuple[list[Profile], list[int]]:
    """Returns profiles, and the wall time in nanoseconds of as many plain runs; they take turns, and in every other pair the plain run is first."""
    profiles: list[Profile] = []
    plain: list[int] = []
    for number in range(runs):
        if number % 2 == 0:
            profiles.append(executor.run_profiled(inputs)[1])
        start = time.perf_counter_ns()
        executor.run(inputs)
        plain.append(time.perf_counter_ns() - start)
        if number % 2:
            profiles.append(executor.run_profiled(inputs)[1])
    return profiles, plain


def profile_total(profiles: Sequence[Profile], plain_ns: Sequence[int]) -> ProfileTotal:
    """Returns the sums of runs as :func:`profiled_runs` gives them; at least one."""
    wall = median(profile.wall_ns for profile in profiles) / 1e6
    steps = median(sum(step.wall_ns for step in profile.steps) for profile in profiles) / 1e6
    overhead = median(profile.wall_ns - plain for profile, plain in zip(profiles, plain_ns, strict=True)) / 1e6
    return ProfileTotal(len(profiles), wall, steps, wall - steps - overhead, overhead, median(plain_ns) / 1e6)
