"""What reports look like in each format: text as a reader sees it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest

from bench.records import CellRecord, read_records
from reports.render import FORMATS, render
from tests.reports.records import RECORDS, ok
from tests.reports.snapshots import DATA, SNAPSHOTS, recorded, rendered


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("name", "form"), SNAPSHOTS.items())
def test_the_recorded_results_look_as_they_did(name, form):
    assert rendered(recorded(), form, details=True) == (DATA / name).read_text()


def test_every_format_has_a_snapshot():
    assert sorted(SNAPSHOTS.values()) == sorted(FORMATS)


@pytest.mark.parametrize("width", [20, 56, 80])
def test_a_narrow_table_folds_its_text_and_breaks_no_number(width):
    wide, narrow = (rendered(recorded(), "table", width=columns, details=True) for columns in (None, width))
    numbers = re.compile(r"(?<= )\d+(?:\.\d+)?x?(?= |$)|\[[\d.]+, [\d.]+\]", re.M)
    missing = set(numbers.findall(wide.partition("warnings")[0])) - set(numbers.findall(narrow))
    assert all(number.startswith("[") for number in missing)  # those of a column that is said to be left out
    assert ("no room for: run, fair, threads (1 in all rows), 95 % interval" in " ".join(narrow.split())) == bool(missing)
    assert max(map(len, rendered(RECORDS, "table", width=80).splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_table_names_every_arm_whole_and_says_which_columns_are_left_out(width):
    comparison, means, _ = rendered(recorded(), "table", width=width).split("latency, tuned")[1:4]
    for table, arms in ((comparison, 9), (means, 6)):
        lines = table.partition("warnings")[0].splitlines()[1:]
        names = re.findall(r"(?:^| )(?:rml|rml#2|torch|torch-compile|jax|onnxruntime|openvino)(?= |$)", "\n".join(lines), re.M)
        assert len(names) == arms
        assert any(line.split()[:3].count("arm") == 1 for line in lines)
        assert width < 60 or max(map(len, lines)) <= width
    assert all(mark in means for mark in "▲=▼?")
    assert ("▲=▼" in comparison) == (width < 113)
    assert "no room for: run" in comparison
    assert ("no room for: cells" in means) == (width < 85)


def test_statuses_fold_before_intervals_are_left_out():
    text = rendered([*recorded(), replace(recorded()[0], threads=2)], "table", width=80)
    comparison = text.split("latency, tuned")[1]
    assert "no room for: run, fair\n" in comparison
    assert "[2.43, 2.81]" in comparison
    assert "torch-compile" in comparison
    assert max(map(len, comparison.splitlines())) <= 80


def test_threads_that_differ_are_never_left_out():
    heads = [line.split() for line in rendered(RECORDS, "table", width=40).splitlines() if "  arm  " in line]
    assert heads
    assert all("threads" in head for head in heads)


def test_json_carries_every_field_of_every_record_and_the_tables():
    found = json.loads(rendered(RECORDS, "json"))
    assert found["cells"] == [asdict(record) for record in RECORDS]
    assert read_records(json.dumps(cell) + "\n" for cell in found["cells"]) == RECORDS
    means = {(row["threads"], row["framework"]): row["ratio"] for row in found["tables"]["latency/tuned/means"]["rows"]}
    assert means[1, "torch"] == pytest.approx(6.0)
    assert means[1, "jax"] is None
    assert found["environment"]["machine"] == "Fake CPU, cores 2, ISA avx2"


def test_csv_has_a_row_per_record():
    rows = list(csv.DictReader(io.StringIO(rendered(RECORDS, "csv"))))
    assert [(row["model"], row["framework"], row["status"], row["iterations"]) for row in rows[6:8]] == [
        ("jax_mlp", "rml", "mismatch", ""), ("jax_mlp", "jax", "ok", "100"),
    ]  # fmt: skip


def test_without_records_each_format_is_still_valid():
    assert rendered([], "table") == "no cells\n"
    assert rendered([], "markdown") == "no cells\n"
    assert json.loads(rendered([], "json"))["cells"] == []
    assert "no cells" in rendered([], "html")
    assert rendered([], "csv") == rendered(RECORDS, "csv").splitlines(keepends=True)[0]


def test_a_terminal_gets_colours_and_the_same_words():
    file = Terminal()
    render(RECORDS, "table", file, width=120)
    text = file.getvalue()
    assert "\x1b[31m▼ slower" in text
    assert "\x1b[1;31mmismatch" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert [line.rstrip() for line in plain.splitlines()] == rendered(RECORDS, "table", width=120).splitlines()


def test_names_are_never_taken_for_markup():
    record = CellRecord("[bold]model|*_<b>", "[red]arm", 1, "failed", "[link=x]reason <script>")
    text = rendered([record], "table")
    assert all(word in text for word in ("[bold]model|*_<b>", "[red]arm", "[link=x]reason <script>"))
    page = rendered([record], "html")
    assert "<script>" not in page
    assert "[link=x]reason &lt;script&gt;" in page
    head, _, line = (line for line in rendered([record], "markdown").splitlines() if line.startswith("|"))
    assert len(re.findall(r"(?<!\\)\|", line)) == head.count("|")


class _Tags(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.circles = 0

    def handle_starttag(self, tag, attrs):
        self.circles += tag == "circle"
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.circles += tag == "circle"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_plots_every_interval():
    records = [*recorded(), ok("m", "torch", 1, 1.0, 0.01), ok("m", "jax", 1, 1.0, 400.0)]
    parser = _Tags()
    parser.feed(rendered(records, "html", details=True))
    assert parser.open == []
    assert parser.circles == sum(record.ratio_low is not None and record.verdict != "reference" for record in records)
