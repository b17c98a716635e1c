"""The comparison: from records to tables. Every number in them is a field of one record, or its rule is in the legend."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from bench.records import CellRecord
from reports.advice import kinds, noise_floors, warnings
from reports.details import detail_tables, is_twin
from reports.model import Column, Report, Table, Value

__all__ = ["build_report", "counts", "latest", "to_frame"]

_LEGEND = (
    "ratio: time of the arm / time of the reference, the median over rounds in which both had a turn, with its 95 % interval;"
    " above 1 the reference is faster; what counts of a turn is the lower quartile of its calls, so it is not the quotient of the medians",
    "verdict on the arm: ▲ faster or ▼ slower than the reference: the interval lies on one side of 1; = same: it lies within 2 % of 1;"
    " ? unresolved: neither, or too few clean rounds; · the reference",
    "check: pass: outputs of timed calls agree with the golden, which holds those of the exporting framework in float32, to a tolerance taken from"
    " a float64 run of the model; a cell that does not pass has no number",
    "fair: the arm was seen to use no more, and nothing else, than it was granted: threads, cores, float32",
    "run: first digits of the field run; with model, threads and arm it names the record that a row is from",
)
_MEANS_LEGEND = (
    "geometric mean: of the ratios of the cells that pass the check and are fair, each arm's over its own models; its interval counts the"
    " measurement's error only, not the choice of models"
)


def to_frame(records: Sequence[CellRecord]) -> pd.DataFrame:
    """Returns the records as a tidy frame: one row per cell; ``options``, ``settings`` and ``environment`` are left to the JSON lines."""
    columns = [entry.name for entry in fields(CellRecord) if entry.name not in ("options", "settings", "environment", "schema_version")]
    whole = [entry.name for entry in fields(CellRecord) if "int" in str(entry.type)]
    rows = [{**asdict(record), "parity_reasons": "; ".join(record.parity_reasons)} for record in records]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({name: "Int64" for name in whole if name in columns})  # whole numbers stay whole beside the missing ones


def latest(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Returns the last record of every cell, the cells in order of their first one."""
    return list({record.cell: record for record in records}.values())


def counts(record: CellRecord) -> bool:
    """Returns whether the ratio of a cell may be averaged with others."""
    return record.status == "ok" and record.check == "pass" and record.parity is not False and record.ratio is not None


def build_report(records: Sequence[CellRecord], *, details: bool = False) -> Report:
    """Returns the comparison of all records; of several records of one cell the last one counts.

    Args:
        records: one or more runs.
        details: percentiles, cost of the start, memory, break-even calls, and how each arm was set up, too.
    """
    cells = latest(records)
    if not cells:
        return Report((), ())
    pairs = list(dict.fromkeys((record.scenario, record.setup) for record in cells))
    tables, means = [], []
    for scenario, setup in pairs:
        of_kind = _grouped([record for record in cells if (record.scenario, record.setup) == (scenario, setup)])
        tables.append(_comparison(of_kind, scenario, setup))
        means += [_means(of_kind, scenario, setup)] if any(counts(record) for record in of_kind) else []
    if details:
        tables += detail_tables(_grouped(cells))
    legend = (*_LEGEND, _MEANS_LEGEND) if means else _LEGEND
    shown = [table for table in (*tables[: len(pairs)], *means, *tables[len(pairs) :]) if table.rows]
    return Report(_environment(cells), tuple(shown), warnings(cells), (*_notes(cells), *_incomparable(cells)), legend)


def _grouped(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Returns the records with those that were measured side by side behind each other, the reference first."""
    place: dict[tuple[Any, ...], int] = {}
    for record in records:
        place.setdefault(_group(record), len(place))
    return sorted(records, key=lambda record: (place[_group(record)], record.framework != record.reference))


def _group(record: CellRecord) -> tuple[Any, ...]:
    return record.model, record.threads, record.scenario, record.setup


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


_COMPARISON: tuple[tuple[Column, Callable[[CellRecord], Value]], ...] = (
    (Column("model", "model"), lambda record: record.model),
    (Column("threads", "threads", "count"), lambda record: record.threads),
    (Column("framework", "arm"), lambda record: record.framework),
    (Column("median_ms", "median ms", "ms"), lambda record: record.median_ms),
    (Column("new_shape_ms", "new shape ms", "ms"), lambda record: record.new_shape_ms),
    (Column("ratio", "ratio", "ratio"), lambda record: record.ratio),
    (Column("ratio_interval", "95 % interval", "ratio interval"), lambda record: _ratio_interval(record)),
    (Column("verdict", "verdict", "verdict"), lambda record: record.verdict),
    (Column("check", "check"), lambda record: record.check if record.status == "ok" else record.status),
    (Column("parity", "fair", "flag"), lambda record: record.parity),
    (Column("run", "run"), lambda record: (record.run or "")[:8]),
)


def _ratio_interval(record: CellRecord) -> tuple[float, float] | None:
    return None if record.verdict == "reference" else _interval(record.ratio_low, record.ratio_high)


def _comparison(records: Sequence[CellRecord], scenario: str, setup: str) -> Table:
    rows = tuple(tuple(value(record) for _, value in _COMPARISON) for record in records)
    references = " or ".join(dict.fromkeys(record.reference for record in records if record.reference is not None))
    title = f"{scenario}, {setup}" + (f"; ratio to {references}" if references else "")
    return Table(f"{scenario}/{setup}", title, tuple(column for column, _ in _COMPARISON), rows, group_by=2).filled()


_MEANS = (
    Column("threads", "threads", "count"), Column("framework", "arm"), Column("ratio", "geometric mean", "ratio"),
    Column("ratio_interval", "95 % interval", "ratio interval"), Column("cells", "cells", "count"), Column("faster", "▲", "count"),
    Column("same", "=", "count"), Column("slower", "▼", "count"), Column("unresolved", "?", "count"),
    Column("left_out", "left out", "count"),
)  # fmt: skip


def _means(records: Sequence[CellRecord], scenario: str, setup: str) -> Table:
    """Returns per thread count and arm the geometric mean of its ratios and how often which verdict was reached."""
    rows: list[tuple[Value, ...]] = []
    references = {record.reference for record in records}
    for threads in dict.fromkeys(record.threads for record in records):
        for arm in dict.fromkeys(
            record.framework for record in records if record.threads == threads and record.framework not in references
        ):
            cells = [record for record in records if (record.threads, record.framework) == (threads, arm)]
            used = [record for record in cells if counts(record)]
            verdicts = [sum(record.verdict == name for record in used) for name in ("faster", "same", "slower", "unresolved")]
            mean, interval = _geometric_mean(used)
            rows.append((threads, arm, mean, interval, len(used), *verdicts, len(cells) - len(used)))
    return Table(f"{scenario}/{setup}/means", f"{scenario}, {setup}: over models", _MEANS, tuple(rows), group_by=1)


def _geometric_mean(records: Sequence[CellRecord]) -> tuple[float | None, tuple[float, float] | None]:
    """Returns the geometric mean of the ratios, and its interval where all of them have one.

    The half widths of independent intervals add up by their squares, on the logarithmic scale (Zou and Donner, "Construction of confidence
    limits about effect measures", Statistics in Medicine 27, 2008).
    """
    if not records:
        return None, None
    logs = [math.log(record.ratio) for record in records if record.ratio is not None]
    mean = sum(logs) / len(logs)
    ends = [(math.log(record.ratio_low), math.log(record.ratio_high)) for record in records if record.ratio_low and record.ratio_high]
    if len(ends) < len(logs):
        return math.exp(mean), None
    below = math.sqrt(sum((log - low) ** 2 for log, (low, _) in zip(logs, ends, strict=True))) / len(logs)
    above = math.sqrt(sum((high - log) ** 2 for log, (_, high) in zip(logs, ends, strict=True))) / len(logs)
    return math.exp(mean), (math.exp(mean - below), math.exp(mean + above))


def _incomparable(records: Iterable[CellRecord]) -> tuple[str, ...]:
    """Returns a note per scenario, setup and thread count in which geometric means are over different models."""
    models: dict[tuple[str, str, int], dict[str, frozenset[str]]] = {}
    for record in records:
        if counts(record) and record.framework != record.reference:
            arms = models.setdefault((record.scenario, record.setup, record.threads), {})
            arms[record.framework] = arms.get(record.framework, frozenset()) | {record.model}
    notes = []
    for (scenario, setup, threads), arms in models.items():
        alike: dict[frozenset[str], list[str]] = {}
        for arm, names in arms.items():
            alike.setdefault(names, []).append(arm)
        if len(alike) > 1:
            groups = " | ".join(", ".join(group) for group in alike.values())
            where = f"{scenario}, {setup}, {_counted(threads, 'thread')}"
            notes.append(
                f"geometric means, {where}: not all over the same models, so comparable only within each of these groups: {groups}"
            )
    return tuple(notes)


def _notes(records: Sequence[CellRecord]) -> tuple[str, ...]:
    """Returns one sentence per model and reason, with the arms, thread counts and, where there are several, scenarios that it holds for."""
    several = len(kinds(records)) > 1
    found: dict[tuple[str, str, str], dict[str, list[CellRecord]]] = {}
    for record in records:
        if record.status != "ok" or record.reason:
            of_reason = found.setdefault((record.model, record.status, record.reason), {})
            of_reason.setdefault(kinds([record])[0], []).append(record)
    notes = []
    for (model, status, reason), of_kind in found.items():
        alike: dict[str, list[str]] = {}  # kinds in which the same arms and thread counts are concerned share a sentence
        for kind, cells in of_kind.items():
            arms = " and ".join(dict.fromkeys(cell.framework for cell in cells))
            threads = " and ".join(str(count) for count in dict.fromkeys(cell.threads for cell in cells))
            alike.setdefault(f"{arms}, {threads} thread{'' if threads == '1' else 's'}", []).append(kind)
        for who, where in alike.items():
            place = f" ({'; '.join(where)})" if several else ""
            notes.append(f"{model} on {who}{place}: {status}: {reason}")
    return tuple(notes)


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _environment(records: Sequence[CellRecord]) -> tuple[tuple[str, str], ...]:
    """Returns what the numbers hold for, each with all its values where records differ in it."""

    def values(get: Callable[[CellRecord], Any]) -> str:
        return " | ".join(dict.fromkeys(str(found) for record in records if (found := get(record)) not in (None, "")))

    def fact(name: str) -> str:
        return values(lambda record: record.environment.get(name))

    floors = noise_floors(records)
    several = len(kinds(records)) > 1
    widest = ", ".join(f"±{100 * floor:.1f} %{f' in {kind}' if several else ''}" for kind, floor in floors.items())
    versions = {record.framework: record.framework_version for record in records if record.framework_version and not is_twin(record)}
    machine = [
        fact("cpu"),
        *(f"{name} {fact(key)}" for name, key in (("cores", "cores"), ("ISA", "isa"), ("governor", "governor")) if fact(key)),
    ]
    software = [fact("system"), *(f"{name} {fact(key)}" for name, key in (("Python", "python"), ("NumPy", "numpy")) if fact(key))]
    found = (
        ("machine", ", ".join(part for part in machine if part)),
        ("software", ", ".join(part for part in software if part)),
        ("arms", ", ".join(f"{arm} {version}" for arm, version in versions.items())),
        ("load before", fact("load_average_1min")),
        ("noise floor", f"{widest} (two runs of the same arm, the widest)" if floors else ""),
        ("fingerprint", _fingerprint(records)),
        (
            "measured",
            _span([record.started for record in records if record.started], [record.finished for record in records if record.finished]),
        ),
    )
    return tuple((name, value) for name, value in found if value)


def _fingerprint(records: Sequence[CellRecord]) -> str:
    """Returns a hash over the fingerprints of all cells; that of a single one is its own."""
    found = sorted({record.fingerprint for record in records if record.fingerprint})
    return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if found else ""


def _span(started: Sequence[str], finished: Sequence[str]) -> str:
    return f"{min(started)[:19]} to {max(finished)[:19]} UTC" if started and finished else ""
