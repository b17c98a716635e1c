"""Reports in each output format."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.records import CellRecord
from reports.html import to_html
from reports.model import MARKS, Column, Report, Table, Value, words
from reports.tables import build_report, to_frame

__all__ = ["FORMATS", "render", "render_report"]

FORMATS = ("table", "markdown", "csv", "json", "html")

_UNLIMITED = 1000
_WORD, _PIECE = 16, 6
"""Text up to a word long is folded only where no other column can be spared, and into pieces no shorter than that; arms' names never are."""

_SPARED = ("run", "verdict", "parity", "cells", "threads", "left_out", "ratio_interval")
"""Columns that a narrow terminal has no room for, the first to go first; of a verdict its mark stays, and threads go only if all are equal."""

_STYLES = {
    "fail": "bold red", "mismatch": "bold red", "failed": "red", "unavailable": "yellow", "pass": "dim", "faster": "green", "slower": "red",
    "unresolved": "yellow", "reference": "dim", "differs": "red",
}  # fmt: skip
"""By value; verdicts are on the arm of the row."""


def render(records: Sequence[CellRecord], form: str, file: TextIO, *, width: int | None = None, details: bool = False) -> None:
    """Writes records to a file.

    Args:
        records: one or more runs.
        form: one of :data:`FORMATS`; ``table`` is for a terminal. ``csv`` has the records themselves, all fields; ``json`` those too.
        file: where to; a terminal gets colours.
        width: columns of the ``table``; None means the terminal's, or as many as it takes where ``file`` is none.
        details: more tables; see :func:`reports.tables.build_report`.
    """
    if form == "csv":
        file.write(str(to_frame(records).to_csv(index=False)))
        return
    report = build_report(records, details=details)
    if form == "json":
        file.write(_json(report, {"cells": [asdict(record) for record in records]}))
    elif form == "html":
        file.write(to_html(report, records))
    else:
        render_report(report, form, file, width=width)


def render_report(report: Report, form: str, file: TextIO, *, width: int | None = None) -> None:
    """Writes a report to a file: as ``table``, ``markdown``, ``json``, ``html``, or ``csv``, which has the rows of its first table."""
    if form == "table":
        file.write(_terminal(report, file, width))
    elif form == "markdown":
        file.write(_markdown(report))
    elif form == "json":
        file.write(_json(report, {}))
    elif form == "html":
        file.write(to_html(report))
    else:
        file.write(_csv(report.tables[0]))


def _is_number(column: Column) -> bool:
    return column.kind not in ("text", "verdict")


def _terminal(report: Report, file: TextIO, width: int | None) -> str:
    if not report.tables:
        return "no cells\n"
    target = io.StringIO()
    is_terminal = file.isatty()
    console = Console(file=target, force_terminal=is_terminal, width=width or (None if is_terminal else _UNLIMITED))
    for name, value in report.environment:
        console.print(Text(f"{name}: {value}", style="dim"))
    for table in report.tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        table, brief, spared = _fitted(table, console.width)
        if spared:
            console.print(Text(f"no room for: {', '.join(spared)}", style="dim"))
        wide = Console(file=target, force_terminal=is_terminal, width=max(console.width, _width(table, _PIECE, brief=brief)))
        wide.print(_drawn(table, brief=brief))
    for heading, sentences in (("warnings", report.warnings), ("notes", report.notes), ("legend", report.legend)):
        if sentences:
            console.print()
            console.print(Text(heading, style="bold"))
        for sentence in sentences:
            console.print(Text(f"- {sentence}", style={"warnings": "yellow", "legend": "dim"}.get(heading, "")))
    return "".join(line.rstrip() + "\n" for line in target.getvalue().splitlines())


def _fitted(table: Table, width: int) -> tuple[Table, bool, list[str]]:
    """Returns the table without what there is no room for, whether verdicts are said by their marks, and the names of the columns left out.

    Columns are left out until no word has to be broken; that of intervals only if an arm's name would be, whose part is that of another arm.
    """
    brief, spared = False, []
    for key in _SPARED:
        place = next((place for place, column in enumerate(table.columns) if column.key == key), None)
        fold = _PIECE if key == "ratio_interval" else _WORD  # a ratio without its interval is worse than a status in two pieces
        if place is None or _width(table, fold, brief=brief) <= width:
            continue
        values = {row[place] for row in table.rows}
        if key == "verdict":
            brief = True
        elif key != "threads" or len(values) == 1:
            column = table.columns[place]
            spared.append(f"{column.title} ({words(values.pop(), column.kind)} in all rows)" if key == "threads" else column.title)
            table = table.without(key)
    return table, brief, spared


def _width(table: Table, fold: int, *, brief: bool) -> int:
    """Returns the width that a table takes if no number is broken and text is folded at so many characters."""
    total = -1  # each column has a space behind it, and one stands between two columns
    for place, column in enumerate(table.columns):
        longest = max(map(len, (_title(column, brief), *(_shown(row[place], column, brief) for row in table.rows))))
        total += 2 + (longest if _is_number(column) else min(longest, _WORD if column.key == "framework" else fold))
    return total


def _title(column: Column, brief: bool) -> str:
    return "▲=▼" if brief and column.kind == "verdict" else column.title


def _drawn(table: Table, *, brief: bool) -> RichTable:
    """Returns the table for the terminal; a ``brief`` one says verdicts by their marks alone."""
    drawn = RichTable(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), show_edge=False)
    for place, column in enumerate(table.columns):
        number = _is_number(column)
        whole = number or (column.key == "framework" and all(len(str(row[place])) <= _WORD for row in table.rows))
        drawn.add_column(Text(_title(column, brief)), justify="right" if number else "left", no_wrap=whole, overflow="fold")
    before: tuple[Value, ...] | None = None
    for index, row in enumerate(table.rows):
        group = row[: table.group_by]
        after = table.rows[index + 1][: table.group_by] if index + 1 < len(table.rows) else group
        shown = [_shown(value, column, brief) for value, column in zip(row, table.columns, strict=True)]
        if group == before:
            shown[: table.group_by] = [""] * table.group_by
        styles = [_STYLES.get(str(value), "") if isinstance(value, str) else "red" if value is False else "" for value in row]
        cells = [Text(text, style=style) for text, style in zip(shown, styles, strict=True)]
        drawn.add_row(*cells, end_section=after != group and table.group_by > 0)
        before = group
    return drawn


def _shown(value: Value, column: Column, brief: bool) -> str:
    return MARKS[value] if brief and column.kind == "verdict" and value in MARKS else words(value, column.kind)


def _markdown(report: Report) -> str:
    if not report.tables:
        return "no cells\n"
    lines = [f"- {name}: {_escaped(value)}" for name, value in report.environment]
    for table in report.tables:
        lines += ["", f"**{_escaped(table.title)}**", "", f"| {' | '.join(_escaped(column.title) for column in table.columns)} |"]
        lines += ["|" + "".join("---:|" if _is_number(column) else "---|" for column in table.columns)]
        for row in table.rows:
            lines.append(f"| {' | '.join(_escaped(words(v, column.kind)) for v, column in zip(row, table.columns, strict=True))} |")
    for heading, sentences in (("Warnings", report.warnings), ("Notes", report.notes), ("Legend", report.legend)):
        lines += ["", f"{heading}:", "", *(f"- {_escaped(sentence)}" for sentence in sentences)] if sentences else []
    return "\n".join(lines).lstrip("\n") + "\n"


def _escaped(text: str) -> str:
    """Returns text that Markdown takes for nothing but text."""
    for character in "\\|<*`[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _json(report: Report, first: dict[str, object]) -> str:
    tables = {
        table.name: {"title": table.title, "rows": [dict(zip((c.key for c in table.columns), row, strict=True)) for row in table.rows]}
        for table in report.tables
    }
    found = {**first, "environment": dict(report.environment), "tables": tables, "warnings": report.warnings, "notes": report.notes}
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _csv(table: Table) -> str:
    import pandas as pd

    rows = [[list(value) if isinstance(value, tuple) else value for value in row] for row in table.rows]
    return str(pd.DataFrame(rows, columns=[column.key for column in table.columns]).to_csv(index=False))
