"""The recorded results, and what each format makes of them. ``python -m tests.reports.snapshots`` writes the expected texts anew: read the diff."""

from __future__ import annotations

import io
from pathlib import Path

from bench.records import CellRecord, read_records
from reports.render import render

DATA = Path(__file__).with_name("data")
RESULTS = DATA / "results.jsonl"
SNAPSHOTS = {"report.txt": "table", "report.md": "markdown", "report.html": "html", "report.json": "json", "report.csv": "csv"}


def recorded() -> list[CellRecord]:
    """Returns the records of a real run, shortened: two models, six arms, one of them failed, one missing, one wrong, one unfair."""
    with RESULTS.open() as file:
        return read_records(file)


def rendered(records: list[CellRecord], form: str, *, details: bool = False, width: int | None = None) -> str:
    file = io.StringIO()
    render(records, form, file, details=details, width=width)
    return file.getvalue()


if __name__ == "__main__":
    for name, form in SNAPSHOTS.items():
        (DATA / name).write_text(rendered(recorded(), form, details=True))
