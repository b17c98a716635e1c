"""The table model in each output format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.records import CellRecord
from reports.tables import Cell, Row, Table, build_table, to_frame

__all__ = ["render"]

_LEGEND = (
    "median ms, ratio to rml (above 1: rml is faster), check of the outputs against the golden; "
    "a geometric mean of the ratios is over that arm's own models"
)
_UNLIMITED = 1000


def render(records: Sequence[CellRecord], form: str, file: TextIO, *, width: int | None = None) -> None:
    """Writes records to a file.

    Args:
        records: one or more runs.
        form: ``table`` (for a terminal), ``markdown``, ``csv`` or ``json``.
        file: where to; a terminal gets colours.
        width: columns of the ``table``; None means the terminal's, or as many as it takes where ``file`` is none.
    """
    file.write(_RENDERERS[form](records, file, width))


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _words(cell: Cell) -> list[str]:
    """Returns what a cell shows, left to right."""
    words = []
    if cell.median_ms is not None:
        words.append(_milliseconds(cell.median_ms))
    if cell.ratio is not None:
        words.append(f"{cell.ratio:.2f}x")
    if cell.status == "ok":
        words.append(str(cell.check))
    elif cell.status is not None:
        words.append(cell.status)
    return words


def _title(row: Row) -> str:
    return "geometric mean" if row.model is None else row.model


def _terminal(records: Sequence[CellRecord], file: TextIO, width: int | None) -> str:
    table = build_table(records)
    if not table.rows:
        return "no cells\n"
    drawn = RichTable(header_style="bold")
    drawn.add_column("model", overflow="fold")
    drawn.add_column("threads", justify="right", no_wrap=True)
    for arm in table.arms:
        drawn.add_column(Text(arm), justify="right", overflow="fold")
    for row, following in zip(table.rows, (*table.rows[1:], None), strict=True):
        ends_section = row.model is not None and following is not None and following.model is None
        drawn.add_row(Text(_title(row)), str(row.threads), *(_styled(cell) for cell in row.cells), end_section=ends_section)
    target = io.StringIO()
    is_terminal = file.isatty()
    console = Console(file=target, force_terminal=is_terminal, width=width or (None if is_terminal else _UNLIMITED))
    console.print(drawn)
    for text in (*table.notes, _LEGEND, table.environment):
        console.print(f"- {text}" if text in table.notes else text, markup=False, highlight=False)
    return target.getvalue()


def _styled(cell: Cell) -> Text:
    text = Text()
    for word in _words(cell):
        style = {"fail": "bold red", "mismatch": "bold red", "failed": "red", "unavailable": "yellow", "pass": "dim"}.get(word, "")
        if word.endswith("x") and cell.ratio is not None:
            style = "green" if cell.ratio > 1.02 else "red" if cell.ratio < 0.98 else ""
        text.append(" " if text else "").append(word, style)
    return text


def _markdown(records: Sequence[CellRecord], file: TextIO, width: int | None) -> str:
    table = build_table(records)
    if not table.rows:
        return "no cells\n"
    lines = [f"| model | threads | {' | '.join(table.arms)} |", f"|---|---:|{'---:|' * len(table.arms)}"]
    lines += [f"| {_title(row)} | {row.threads} | {' | '.join(' '.join(_words(cell)) for cell in row.cells)} |" for row in table.rows]
    lines += ["", *(f"- {note}" for note in table.notes), *([""] if table.notes else []), f"Cells: {_LEGEND}.", "", table.environment, ""]
    return "\n".join(lines)


def _csv(records: Sequence[CellRecord], file: TextIO, width: int | None) -> str:
    return str(to_frame(records).to_csv(index=False))


def _json(records: Sequence[CellRecord], file: TextIO, width: int | None) -> str:
    table: Table = build_table(records)
    means = [
        {"threads": row.threads, "framework": arm, "ratio": cell.ratio}
        for row in table.rows
        if row.model is None
        for arm, cell in zip(table.arms, row.cells, strict=True)
    ]
    return json.dumps({"cells": [asdict(record) for record in records], "geometric_means": means}, indent=1, allow_nan=False) + "\n"


_Renderer = Callable[[Sequence[CellRecord], TextIO, int | None], str]
_RENDERERS: dict[str, _Renderer] = {"table": _terminal, "markdown": _markdown, "csv": _csv, "json": _json}
