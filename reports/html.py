"""A report as one HTML page that needs nothing else: tables, and a plot of the ratios with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.records import CellRecord
from reports.model import Report, Table, words

__all__ = ["to_html"]

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em; max-width: 90em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 0 0 1.5em } th, td { padding: .15em .7em; text-align: left; border-bottom: 1px solid #ddd }
.number { text-align: right; font-variant-numeric: tabular-nums } .faster { color: #17692f } .slower, .fail, .mismatch, .failed { color: #b3261e }
.unresolved, .unavailable { color: #8a6100 } svg text { font-size: 12px } h2 { font-size: 1.1em }
"""
_LABELS, _WIDTH, _LINE = 330, 900, 18
"""Of the plot, in pixels: where the axis begins and ends, and the height of a row."""


def to_html(report: Report, records: Sequence[CellRecord] = ()) -> str:
    """Returns the page; a plot comes with the records that have a ratio interval."""
    parts = ['<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>bench_frameworks</title>']
    parts.append(f"<style>{_STYLE}</style></head><body>")
    if not report.tables:
        parts.append("<p>no cells</p>")
    parts += [f"<p>{escape(name)}: {escape(value)}</p>" for name, value in report.environment]
    parts.append(_plot(list({record.cell: record for record in records}.values())))
    parts += [_table(table) for table in report.tables]
    for heading, sentences in (("Warnings", report.warnings), ("Notes", report.notes), ("Legend", report.legend)):
        if sentences:
            items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
            parts.append(f"<h2>{heading}</h2><ul>{items}</ul>")
    return "\n".join(part for part in (*parts, "</body></html>") if part) + "\n"


def _table(table: Table) -> str:
    classes = ["" if column.kind in ("text", "verdict") else "number" for column in table.columns]
    lines = [f"<h2>{escape(table.title)}</h2>", "<table><thead><tr>"]
    lines += [f'<th class="{of}">{escape(column.title)}</th>' for column, of in zip(table.columns, classes, strict=True)]
    lines.append("</tr></thead><tbody>")
    for row in table.rows:
        cells = zip(row, table.columns, classes, strict=True)
        inner = "".join(
            f'<td class="{of or (escape(str(value)) if column.kind == "verdict" or column.key == "check" else "")}">'
            f"{escape(words(value, column.kind))}</td>"
            for value, column, of in cells
        )
        lines.append(f"<tr>{inner}</tr>")
    return "\n".join((*lines, "</tbody></table>"))


def _plot(records: Sequence[CellRecord]) -> str:
    """Returns an SVG with a line per cell: its ratio and interval on a logarithmic axis, 1 marked."""
    shown = [r for r in records if r.ratio and r.ratio_low and r.ratio_high and r.verdict != "reference"]
    if not shown:
        return ""
    ends = [math.log(end) for record in shown for end in (record.ratio_low or 1, record.ratio_high or 1)]
    low, high = min(*ends, -0.05), max(*ends, 0.05)

    def place(value: float) -> float:
        return _LABELS + (_WIDTH - _LABELS) * (math.log(value) - low) / (high - low)

    bottom = _LINE * (len(shown) + 1)
    lines = [
        "<h2>ratio to the reference with 95 % interval; right of the line the reference is faster</h2>",
        f'<svg viewBox="0 0 {_WIDTH + 60} {bottom + _LINE}" width="{_WIDTH + 60}" role="img" aria-label="ratios">',
        f'<line x1="{place(1):.1f}" x2="{place(1):.1f}" y1="0" y2="{bottom}" stroke="#888"/>',
    ]
    for number, record in enumerate(shown, 1):
        y = _LINE * number
        usual = (record.scenario, record.setup) == ("latency", "tuned")
        label = f"{record.model}, {record.framework}, {record.threads}" if usual else record.cell
        colour = {"faster": "#17692f", "slower": "#b3261e"}.get(record.verdict or "", "#8a6100")
        lines += [
            f'<text x="{_LABELS - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>',
            f'<line x1="{place(record.ratio_low or 1):.1f}" x2="{place(record.ratio_high or 1):.1f}" y1="{y}" y2="{y}" stroke="{colour}" '
            'stroke-width="3"/>',
            f'<circle cx="{place(record.ratio or 1):.1f}" cy="{y}" r="4" fill="{colour}"><title>{escape(record.cell)}: '
            f"{words(record.ratio, 'ratio')}</title></circle>",
        ]
    for tick in _ticks(low, high):
        lines.append(f'<text x="{place(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}x</text>')
    return "\n".join((*lines, "</svg>"))


def _ticks(low: float, high: float) -> list[float]:
    """Returns round ratios within a logarithmic range; 1 is among them."""
    steps = [step * 10.0**power for power in range(-3, 5) for step in (1.0, 2.0, 5.0)]
    return [step for step in steps if low <= math.log(step) <= high]
