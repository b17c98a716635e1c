"""What a profiled run brings home, and its summary by label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """All steps of one label. ``nodes`` counts graph nodes covered in one run, ``calls`` steps run, ``total_ms`` their time over all runs."""

    label: str
    nodes: int
    calls: int
    total_ms: float
    percent: float


def summarize_by_label(profiles: Iterable[Profile]) -> list[ProfileRow]:
    """Returns one row per label, slowest first; ``percent`` is of the sum over all steps."""
    profiles = list(profiles)
    nodes: dict[str, int] = {}
    calls: dict[str, int] = {}
    total: dict[str, int] = {}
    for step in profiles[0].steps if profiles else ():
        nodes[step.label] = nodes.get(step.label, 0) + step.nodes
    for profile in profiles:
        for step in profile.steps:
            calls[step.label] = calls.get(step.label, 0) + 1
            total[step.label] = total.get(step.label, 0) + step.wall_ns
    everything = sum(total.values()) or 1
    rows = [ProfileRow(label, nodes[label], calls[label], total[label] / 1e6, 100 * total[label] / everything) for label in total]
    return sorted(rows, key=lambda row: (-row.total_ms, row.label))
