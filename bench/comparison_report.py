"""What ``bench_frameworks compare`` shows: changes as a report, which :mod:`reports.render` writes in any format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.statistics import Interval
from reports.model import Column, Report, Table, Value

if TYPE_CHECKING:
    from bench.compare import Change

__all__ = ["comparison_report", "geometric_mean"]

_CHANCE = 0.025
"""How often an interval lies above 1 by chance when nothing changed."""


def comparison_report(changes: Sequence[Change], differing: Sequence[str], *, anchor: str | None) -> Report:
    """Returns the report.

    Args:
        changes: one per cell.
        differing: in what the two files are not comparable.
        anchor: the arm that times are relative to.
    """
    what = "time" if anchor is None else f"ratio to {anchor}"
    summary = _summary(changes)
    tables = (_cells(changes, what), *([summary] if summary.rows else []))
    warnings = [f"not comparable: {sentence}" for sentence in differing]
    decided = sum(change.interval is not None for change in changes)
    if decided * _CHANCE >= 0.5:
        warnings.append(
            f"of {decided} cells that did not change about {decided * _CHANCE:.1f} look slower by chance: confirm one by a second run"
        )
    notes = [f"{change.old.cell}: {change.verdict}: {change.reason}" for change in changes if change.reason]
    legend = (
        f"new / old: of the {what} per call, the lower quartile of a block, over the clean blocks of both runs; above 1 it became slower",
        "verdict: = same: the 95 % interval lies within 2 % of 1; ▲ faster or ▼ slower: it lies on one side of 1, and new / old is more than 2 %"
        " from 1; ? unresolved: neither, or it depends on whether the machine itself changed",
        "canaries: time of a fixed piece of work beside the blocks, when nothing disturbs it, new / old: what the machine itself changed by",
        "run old, run new: first digits of the field run of the two records",
    )
    return Report((), tuple(table.filled() for table in tables), tuple(warnings), tuple(notes), legend)


def _cells(changes: Sequence[Change], what: str) -> Table:
    columns = (
        Column("model", "model"), Column("threads", "threads", "count"), Column("scenario", "scenario"), Column("setup", "setup"),
        Column("framework", "arm"), Column("version_old", "version, old"), Column("version_new", "new"), Column("old_ms", "median ms, old", "ms"),
        Column("new_ms", "new", "ms"), Column("change", "new / old", "ratio"), Column("change_interval", "95 % interval", "ratio interval"),
        Column("verdict", "verdict", "verdict"), Column("machine", "canaries", "ratio"), Column("run_old", "run, old"), Column("run_new", "new"),
    )  # fmt: skip
    return Table("changes", f"{what}, new against old", columns, tuple(_row(change) for change in changes), group_by=4)


def _row(change: Change) -> tuple[Value, ...]:
    old, new, interval = change.old, change.new, change.interval
    return (
        old.model, old.threads, old.scenario, old.setup, old.framework, old.framework_version, None if new is None else new.framework_version,
        old.median_ms, None if new is None else new.median_ms, None if interval is None else interval.estimate,
        None if interval is None else (interval.low, interval.high), change.verdict, change.machine, (old.run or "")[:8],
        "" if new is None else (new.run or "")[:8],
    )  # fmt: skip


def _summary(changes: Sequence[Change]) -> Table:
    """Returns per arm the geometric mean over its cells, and how many went which way."""
    verdicts = ("faster", "same", "slower", "unresolved", "gone", "mismatch")
    columns = (
        Column("framework", "arm"), Column("change", "geometric mean", "ratio"), Column("change_interval", "95 % interval", "ratio interval"),
        Column("cells", "cells", "count"), *(Column(name, name, "count") for name in verdicts),
    )  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for arm in dict.fromkeys(change.old.framework for change in changes):
        of_arm = [change for change in changes if change.old.framework == arm]
        mean = geometric_mean([change.interval for change in of_arm if change.interval is not None])
        tally = [sum(change.verdict == name for change in of_arm) for name in verdicts]
        ends = (None, None) if mean is None else (mean.estimate, (mean.low, mean.high))
        rows.append((arm, *ends, sum(change.interval is not None for change in of_arm), *tally))
    return Table("means", "over cells", columns, tuple(rows))


def geometric_mean(intervals: Sequence[Interval]) -> Interval | None:
    """Returns the geometric mean of independent ratios; the distances to the ends add up by their squares on the logarithmic scale."""
    if not intervals:
        return None
    n = len(intervals)
    centre = sum(math.log(one.estimate) for one in intervals) / n
    below = math.sqrt(sum(math.log(one.estimate / one.low) ** 2 for one in intervals)) / n
    above = math.sqrt(sum(math.log(one.high / one.estimate) ** 2 for one in intervals)) / n
    return Interval(math.exp(centre), math.exp(centre - below), math.exp(centre + above))
