"""ONNX's own backend tests: a test of every operator each time, all of them with -m slow."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

import onnx

from exporters.from_onnx.backend_exclusions import EXCLUSIONS, LOOSENED, reason_of
from exporters.from_onnx.backend_report import KINDS, MARKS, Outcome, main, one_test_per_operator, run_suite, tables

pytestmark = pytest.mark.onnx

README = Path(__file__).parents[3] / "exporters" / "README.md"


def written_tables() -> str:
    begin, end = MARKS
    return README.read_text().partition(begin)[2].partition(end)[0].strip()


def test_every_operator_once() -> None:
    names = one_test_per_operator()
    outcomes = list(run_suite(lambda kind, name: kind != "Real" and reason_of(name) is None and (kind != "Node" or name in names)))
    assert [f"{outcome.name}: {outcome.problem}" for outcome in outcomes if outcome.problem] == []
    assert {outcome.kind for outcome in outcomes} == set(KINDS) - {"Real"}
    assert len(outcomes) > 250


@pytest.mark.slow
def test_the_whole_suite() -> None:
    outcomes = list(run_suite())
    assert [f"{outcome.name}: {outcome.problem}" for outcome in outcomes if outcome.problem and not outcome.excluded] == []
    assert [outcome.name for outcome in outcomes if outcome.excluded and not outcome.problem] == []
    assert {exclusion.reason for exclusion in EXCLUSIONS} <= {outcome.excluded for outcome in outcomes}
    assert {test.name for test in LOOSENED} <= {outcome.name for outcome in outcomes}
    written = written_tables()
    if f"onnx {onnx.__version__} " in written:
        assert written == tables(outcomes)


def test_the_tables_of_the_readme_have_todays_shape() -> None:
    """The numbers are held against the suite with -m slow."""
    excluded = [Outcome("Node", "test", reason, "it is refused") for reason in dict.fromkeys(each.reason for each in EXCLUSIONS)]

    def words(text: str) -> list[list[str]]:
        cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
        return sorted([cell for cell in line if not cell.isdecimal() and not cell.startswith("onnx ")] for line in cells)

    assert words(written_tables()) == words(tables(excluded))


def test_counts() -> None:
    outcomes = [
        Outcome("Node", "a", None, None),
        Outcome("Node", "b", None, "wrong"),
        Outcome("Node", "c", "strings", "refused"),
        Outcome("Simple", "d", "strings", "refused"),
    ]
    lines = tables(outcomes).splitlines()
    assert "| node | 3 | 1 | 1 | 1 |" in lines
    assert "| simple | 1 | 0 | 0 | 1 |" in lines
    assert "| strings | 2 |" in lines


def test_the_command_says_what_failed_and_what_is_excluded_wrongly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcomes = [Outcome("Node", "a", None, None), Outcome("Node", "b", None, "wrong"), Outcome("Node", "c", "strings", None)]
    monkeypatch.setattr("exporters.from_onnx.backend_report.run_suite", lambda: iter(outcomes))
    begin, end = MARKS
    file = tmp_path / "README.md"
    file.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert main(["--write", str(file)]) == 1
    assert capsys.readouterr().err.splitlines() == ["b failed: wrong", "c passed, but is excluded: strings"]
    assert file.read_text() == f"before\n{begin}\n{tables(outcomes)}\n{end}\nafter\n"
    file.write_text("no marks\n")
    assert main(["--write", str(file)]) == 2
    monkeypatch.setattr("exporters.from_onnx.backend_report.run_suite", lambda: iter(outcomes[:1]))
    assert main([]) == 0
