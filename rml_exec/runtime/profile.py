"""What a profiled run brings home, and its summary by label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Profile", "ProfileRow", "StepTime", "summarize_by_label"]


@dataclass(frozen=True, slots=True)
class StepTime:
    """Wall time of one step in one run.

    Attributes:
        label: the step's label, such as ``matmul`` or ``fused(add,relu)``.
        nodes: nodes of the exported graph that the step covers.
        wall_ns: nanoseconds from the step's start to the end of the barrier after it.
    """

    label: str
    nodes: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Profile:
    """One profiled run. ``wall_ns`` = sum of the steps' ``wall_ns`` + ``gap_ns``."""

    steps: tuple[StepTime, ...]
    wall_ns: int

    @property
    def gap_ns(self) -> int:
        """Nanoseconds spent between steps: input checks, allocation of outputs, the walk itself."""
        return self.wall_ns - sum(step.wall_ns for step in self.steps)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """All steps of one label.

    Attributes:
        label: the label.
        nodes: graph nodes covered in one run.
        calls: steps run, over all runs.
        total_ms: their time, over all runs.
        percent: of the sum over all steps.
        min_ms: the least that the steps of the label took in one run, all together.
        median_ms: median over the runs of the same.
        flops: floating-point operations of one run; None where they depend on data or were not asked for.
        bytes: bytes read and written at least in one run; likewise.
    """

    label: str
    nodes: int
    calls: int
    total_ms: float
    percent: float
    min_ms: float
    median_ms: float
    flops: int | None = None
    bytes: int | None = None


def summarize_by_label(profiles: Iterable[Profile], work: Sequence[tuple[int | None, int | None]] | None = None) -> list[ProfileRow]:
    """Returns one row per label, slowest first.

    Args:
        profiles: runs of one plan.
        work: floating-point operations and bytes of every step, in order.
    """
    profiles = list(profiles)
    steps = profiles[0].steps if profiles else ()
    of_label: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        of_label.setdefault(step.label, []).append(index)
    everything = sum(step.wall_ns for profile in profiles for step in profile.steps) or 1
    rows = []
    for label, indices in of_label.items():
        times = [sum(profile.steps[index].wall_ns for index in indices) for profile in profiles]
        flops, nbytes = (_total([pair[k] for pair in (work[index] for index in indices)]) if work else None for k in (0, 1))
        rows.append(
            ProfileRow(
                label,
                sum(steps[index].nodes for index in indices),
                len(indices) * len(profiles),
                sum(times) / 1e6,
                100 * sum(times) / everything,
                min(times) / 1e6,
                median(times) / 1e6,
                flops,
                nbytes,
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ms, row.label))


def _total(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
