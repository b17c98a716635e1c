"""The table model: what a comparison table says, free of any output format. Every number in it comes from one record or names its rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import geometric_mean

import pandas as pd

from bench.records import REFERENCE, CellRecord

__all__ = ["Cell", "Row", "Table", "build_table", "to_frame"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One model under one arm; all None where the arm does not run the model."""

    status: str | None = None
    check: str | None = None
    median_ms: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One model and thread count, or the geometric mean of a thread count (``model`` is None)."""

    model: str | None
    threads: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The comparison.

    Attributes:
        arms: column names, ``rml`` first.
        rows: one per model and thread count, then one geometric mean of the ratios per thread count that has
            any, each arm's over its own models.
        notes: one sentence per cell that has a reason: everything that is not ``ok``, and remarks.
        environment: the machine and versions, one line.
    """

    arms: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    environment: str


def to_frame(records: Sequence[CellRecord]) -> pd.DataFrame:
    """Returns the records as a tidy frame: one row per cell; ``options``, ``settings`` and ``environment`` are left to the JSON lines."""
    columns = [entry.name for entry in fields(CellRecord) if entry.name not in ("options", "settings", "environment", "schema_version")]
    whole = [entry.name for entry in fields(CellRecord) if "int" in str(entry.type)]
    rows = [{**asdict(record), "parity_reasons": "; ".join(record.parity_reasons)} for record in records]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({name: "Int64" for name in whole if name in columns})  # whole numbers stay whole beside the missing ones


def build_table(records: Sequence[CellRecord]) -> Table:
    """Returns the comparison of all records; of several records of one cell the last one counts."""
    latest = {(record.model, record.threads, record.framework): record for record in records}
    if not latest:
        return Table((), (), (), "")
    arms = tuple(sorted(dict.fromkeys(record.framework for record in latest.values()), key=lambda arm: arm != REFERENCE))
    keys = list(dict.fromkeys((record.model, record.threads) for record in latest.values()))
    rows = [Row(model, threads, tuple(_cell(latest.get((model, threads, arm))) for arm in arms)) for model, threads in keys]
    means = _geometric_means(latest.values())
    for threads in dict.fromkeys(threads for threads, _ in means):
        rows.append(Row(None, threads, tuple(Cell(ratio=means.get((threads, arm))) for arm in arms)))
    return Table(arms, tuple(rows), _notes(latest.values()), _environment(list(latest.values())))


def _notes(records: Iterable[CellRecord]) -> tuple[str, ...]:
    """Returns one sentence per model and reason, with the arms and thread counts that it holds for."""
    found: dict[tuple[str, str, str], list[CellRecord]] = {}
    for record in records:
        if record.status != "ok" or record.reason:
            found.setdefault((record.model, record.status, record.reason), []).append(record)
    notes = []
    for (model, status, reason), cells in found.items():
        arms = " and ".join(dict.fromkeys(cell.framework for cell in cells))
        threads = " and ".join(str(count) for count in dict.fromkeys(cell.threads for cell in cells))
        notes.append(f"{model} on {arms}, {threads} thread{'' if threads == '1' else 's'}: {status}: {reason}")
    return tuple(notes)


def _cell(record: CellRecord | None) -> Cell:
    return Cell() if record is None else Cell(record.status, record.check, record.median_ms, record.ratio)


def _geometric_means(records: Iterable[CellRecord]) -> dict[tuple[int, str], float]:
    """Returns (threads, arm) -> geometric mean of the ratios of its cells that are ``ok``."""
    ratios: dict[tuple[int, str], list[float]] = {}
    for record in records:
        if record.status == "ok" and record.ratio is not None:
            ratios.setdefault((record.threads, record.framework), []).append(record.ratio)
    return {key: geometric_mean(values) for key, values in ratios.items()}


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _environment(records: Sequence[CellRecord]) -> str:
    facts = records[-1].environment
    versions = {record.framework: record.framework_version for record in records if record.framework_version}
    parts = [
        str(facts.get("cpu", "")),
        _counted(facts["cores"], "core") if "cores" in facts else "",
        f"ISA {facts['isa']}" if "isa" in facts else "",
        str(facts.get("system", "")),
        f"load {facts['load_average_1min']}" if "load_average_1min" in facts else "",
        f"Python {facts['python']}" if "python" in facts else "",
        f"numpy {facts['numpy']}" if "numpy" in facts else "",
        *(f"{arm} {version}" for arm, version in versions.items()),
    ]
    return ", ".join(part for part in parts if part)
