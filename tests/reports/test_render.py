"""What the table looks like in each format: text as a reader sees it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from bench.records import CellRecord, read_records
from reports.render import render
from tests.reports.records import RECORDS

LEGEND = (
    "median ms, ratio to rml (above 1: rml is faster), check of the outputs against the golden; "
    "a geometric mean of the ratios is over that arm's own models"
)

TERMINAL = f"""\
┏━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━━┓
┃ model          ┃ threads ┃              rml ┃             torch ┃        jax ┃          tf ┃
┡━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━━┩
│ torch_cnn      │       1 │ 0.500 1.00x pass │  1.500 3.00x pass │            │             │
│ torch_cnn      │       2 │ 12.10 1.00x pass │  12.35 1.02x pass │            │             │
│ torch_gpt      │       1 │ 10.00 1.00x pass │ 123.5 12.00x pass │            │             │
│ jax_mlp        │       1 │         mismatch │                   │ 0.032 pass │             │
│ tf_mlp         │       1 │           failed │                   │            │ unavailable │
├────────────────┼─────────┼──────────────────┼───────────────────┼────────────┼─────────────┤
│ geometric mean │       1 │            1.00x │             6.00x │            │             │
│ geometric mean │       2 │            1.00x │             1.02x │            │             │
└────────────────┴─────────┴──────────────────┴───────────────────┴────────────┴─────────────┘
- torch_cnn on rml, 2 threads: ok: a remark
- jax_mlp on rml, 1 thread: mismatch: output 'y': 3 of 10 elements differ
- tf_mlp on rml, 1 thread: failed: the worker ended before its work was done (signal SIGSEGV)
- tf_mlp on tf, 1 thread: unavailable: TensorFlow is not installed; pip install rml-exec[tensorflow]
{LEGEND}
Fake CPU, 2 cores, ISA avx2, Linux 6.1, load 0.5, Python 3.12.1, numpy 2.2.0, torch 2.9.0, rml 0.1.0, jax 0.8.0
"""

NARROW = """\
┏━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┓
┃ model        ┃ threads ┃          rml ┃        torch ┃
┡━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━┩
│ torch_cnn    │       1 │  0.500 1.00x │  1.500 3.00x │
│              │         │         pass │         pass │
│ torch_cnn    │       2 │  12.10 1.00x │  12.35 1.02x │
│              │         │         pass │         pass │
├──────────────┼─────────┼──────────────┼──────────────┤
│ geometric    │       1 │        1.00x │        3.00x │
│ mean         │         │              │              │
│ geometric    │       2 │        1.00x │        1.02x │
│ mean         │         │              │              │
└──────────────┴─────────┴──────────────┴──────────────┘
- torch_cnn on rml, 2 threads: ok: a remark
median ms, ratio to rml (above 1: rml is faster), check
of the outputs against the golden; a geometric mean of
the ratios is over that arm's own models
Fake CPU, 2 cores, ISA avx2, Linux 6.1, load 0.5, Python
3.12.1, numpy 2.2.0, torch 2.9.0, rml 0.1.0
"""

MARKDOWN = f"""\
| model | threads | rml | torch | jax | tf |
|---|---:|---:|---:|---:|---:|
| torch_cnn | 1 | 0.500 1.00x pass | 1.500 3.00x pass |  |  |
| torch_cnn | 2 | 12.10 1.00x pass | 12.35 1.02x pass |  |  |
| torch_gpt | 1 | 10.00 1.00x pass | 123.5 12.00x pass |  |  |
| jax_mlp | 1 | mismatch |  | 0.032 pass |  |
| tf_mlp | 1 | failed |  |  | unavailable |
| geometric mean | 1 | 1.00x | 6.00x |  |  |
| geometric mean | 2 | 1.00x | 1.02x |  |  |

- torch_cnn on rml, 2 threads: ok: a remark
- jax_mlp on rml, 1 thread: mismatch: output 'y': 3 of 10 elements differ
- tf_mlp on rml, 1 thread: failed: the worker ended before its work was done (signal SIGSEGV)
- tf_mlp on tf, 1 thread: unavailable: TensorFlow is not installed; pip install rml-exec[tensorflow]

Cells: {LEGEND}.

Fake CPU, 2 cores, ISA avx2, Linux 6.1, load 0.5, Python 3.12.1, numpy 2.2.0, torch 2.9.0, rml 0.1.0, jax 0.8.0
"""

CSV_COLUMNS = (
    "model", "framework", "threads", "status", "reason", "check", "max_abs_error", "max_rel_error", "iterations", "median_ms", "ratio",
    "framework_version",
)  # fmt: skip
CSV_ROWS = [
    ("torch_cnn", "rml", "2", "ok", "a remark", "pass", "1e-06", "2e-06", "100", "12.1", "1.0", "0.1.0"),
    ("jax_mlp", "rml", "1", "mismatch", "output 'y': 3 of 10 elements differ", "fail", "0.5", "0.25", "", "", "", ""),
    ("tf_mlp", "tf", "1", "unavailable", "TensorFlow is not installed; pip install rml-exec[tensorflow]", "", "", "", "", "", "", ""),
]


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def rendered(records: Sequence[CellRecord], form: str, width: int | None = None) -> str:
    file = io.StringIO()
    render(records, form, file, width=width)
    return file.getvalue()


def test_terminal_table():
    assert rendered(RECORDS, "table") == TERMINAL


def test_a_narrow_table_folds_its_cells_and_loses_nothing():
    lines = rendered(RECORDS[:4], "table", 56).splitlines()
    assert [line.rstrip() for line in lines] == NARROW.splitlines()


def test_markdown():
    assert rendered(RECORDS, "markdown") == MARKDOWN


def test_csv():
    rows = list(csv.DictReader(io.StringIO(rendered([RECORDS[3], RECORDS[6], RECORDS[9]], "csv"))))
    assert [tuple(row[column] for column in CSV_COLUMNS) for row in rows] == CSV_ROWS


def test_json_carries_every_field_of_every_record_and_the_means():
    found = json.loads(rendered(RECORDS, "json"))
    assert found["cells"] == [asdict(record) for record in RECORDS]
    assert read_records(json.dumps(cell) + "\n" for cell in found["cells"]) == RECORDS
    assert found["geometric_means"][:2] == [
        {"threads": 1, "framework": "rml", "ratio": 1.0},
        {"threads": 1, "framework": "torch", "ratio": pytest.approx(6.0)},
    ]
    assert {"threads": 1, "framework": "jax", "ratio": None} in found["geometric_means"]


def test_without_records_each_format_is_still_valid():
    assert rendered([], "table") == "no cells\n"
    assert rendered([], "markdown") == "no cells\n"
    assert json.loads(rendered([], "json")) == {"cells": [], "geometric_means": []}
    assert rendered([], "csv") == rendered(RECORDS, "csv").splitlines(keepends=True)[0]


def test_a_terminal_gets_colours_and_the_same_words():
    file = Terminal()
    render(RECORDS, "table", file, width=120)
    text = file.getvalue()
    assert "\x1b[32m3.00x" in text  # rml is faster: green
    assert "\x1b[1;31mmismatch" in text
    assert "pass" in text


def test_names_are_never_taken_for_markup():
    record = CellRecord("[bold]model", "[red]arm", 1, "failed", "[link=x]reason")
    text = rendered([record], "table")
    assert all(word in text for word in ("[bold]model", "[red]arm", "[link=x]reason"))
