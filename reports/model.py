"""What a report says, free of any output format: tables of plain values, the environment, warnings, notes, a legend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MARKS", "Column", "Report", "Table", "Value", "words"]

Value = str | int | float | bool | tuple[float, float] | None
"""What a table holds; a pair is an interval, None an empty cell."""

MARKS = {"reference": "·", "faster": "▲", "slower": "▼", "same": "=", "unresolved": "?"}
"""The mark before each verdict."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        key: name of its values for programs; that of the field of the record where they come from one.
        title: name for people, the unit included.
        kind: ``text``, ``ms``, ``ratio``, ``ratio interval``, ``ms interval``, ``verdict``, ``count``, ``number``, ``error``, ``mib`` (the
            value is in bytes) or ``flag`` (true: yes).
    """

    key: str
    title: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: for programs.
        title: for people.
        columns: its columns.
        rows: one value per column each.
        group_by: so many columns at the left name the group that a row belongs to; rows of a group follow each other.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    group_by: int = 0

    def filled(self) -> Table:
        """Returns the table without the columns in which no row has a value."""
        return self._with([any(row[index] not in (None, "") for row in self.rows) for index in range(len(self.columns))])

    def without(self, key: str) -> Table:
        """Returns the table without a column."""
        return self._with([column.key != key for column in self.columns])

    def _with(self, kept: Sequence[bool]) -> Table:
        columns = tuple(itertools.compress(self.columns, kept))
        rows = tuple(tuple(itertools.compress(row, kept)) for row in self.rows)
        return Table(self.name, self.title, columns, rows, sum(kept[: self.group_by]))


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown.

    Attributes:
        environment: name and value of what the numbers hold for: machine, versions.
        tables: without the empty ones.
        warnings: one sentence each on what casts doubt on a number, with what to do about it.
        notes: one sentence each: the reasons of cells without a number, and remarks.
        legend: what marks and columns mean, one sentence each.
    """

    environment: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    legend: tuple[str, ...] = ()


def words(value: Value, kind: str) -> str:
    """Returns a value as people read it."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        low, high = (words(end, kind.removesuffix(" interval")).removesuffix("x") for end in value)
        return f"[{low}, {high}]"
    if kind == "verdict":
        return f"{MARKS.get(str(value), '')} {value}".lstrip()
    if kind == "flag":
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return _number(float(value), kind)


def _number(value: float, kind: str) -> str:
    if not math.isfinite(value):
        return str(value)
    if kind == "ratio":
        return f"{value:.3f}x" if 0.9 < value < 1.1 else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"
    if kind == "mib":
        return f"{value / 2**20:.1f}"
    if kind == "count":
        return f"{value:.0f}"
    if kind == "error":
        return f"{value:.1e}"
    return f"{value:.{max(1, min(6, 3 - _magnitude(value)))}f}"


def _magnitude(value: float) -> int:
    """Returns the power of ten below a value; that of 1 for those from 0.1 to 10, which all get three decimals."""
    power = math.floor(math.log10(abs(value))) if value else 0
    return 0 if power in (-1, 0) else power if power > 0 else power + 1
