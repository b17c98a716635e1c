"""Two results files: verdicts, exit codes, and what is not comparable."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cli import main
from bench.compare import Change, compare, exit_code, quotient, verdict_between_runs
from bench.comparison_report import geometric_mean
from bench.records import CellRecord
from bench.results import blocks_path
from bench.statistics import Interval
from bench.stored import read_results
from tests.bench.stored_runs import write_run


def noisy(seed: str, median_ms: float, rounds: int = 24, spread: float = 0.01) -> list[float]:
    """Returns block medians that scatter as those of a quiet machine do."""
    source = random.Random(seed)
    return [median_ms * math.exp(source.gauss(0, spread)) for _ in range(rounds)]


def pair(directory: Path, *, factor: float = 1.0, spread: float = 0.01, canary: float = 1.0, seed: str = "") -> tuple[Path, Path]:
    """Returns an old and a new file in which the arm ``rml`` takes ``factor`` times as long and the whole machine ``canary`` times."""
    old, new = directory / "old.jsonl", directory / "new.jsonl"
    write_run(old, {"rml": noisy(f"a{seed}", 1.0, spread=spread), "torch": noisy(f"b{seed}", 3.0, spread=spread)}, run="old")
    arms = {"rml": noisy(f"c{seed}", factor * canary, spread=spread), "torch": noisy(f"d{seed}", 3.0 * canary, spread=spread)}
    write_run(new, arms, run="new", canary_ns=round(500_000 * canary))
    return old, new


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out or err


@pytest.mark.parametrize(("factor", "code", "verdict"), [(1.0, 0, "same"), (1.2, 3, "slower"), (0.8, 0, "faster")])
def test_exit_codes_of_verdicts(tmp_path, capsys, factor, code, verdict):
    found, out = run(capsys, *pair(tmp_path, factor=factor), "--format", "json")
    rows = json.loads(out)["tables"]["changes"]["rows"]
    assert (found, [row["verdict"] for row in rows]) == (code, [verdict, "same"])
    low, high = rows[0]["change_interval"]
    assert low < rows[0]["change"] < high
    assert low < factor < high
    assert (rows[0]["run_old"], rows[0]["run_new"]) == ("old", "new")


@pytest.mark.parametrize(
    ("estimate", "low", "high", "expected"),
    [
        (0.994, 0.81, 0.996, "unresolved"), (1.006, 1.004, 1.2, "unresolved"), (1.006, 1.004, 1.01, "same"), (1.021, 1.004, 1.2, "slower"),
        (0.979, 0.81, 0.996, "faster"), (1.021, 0.99, 1.2, "unresolved"),
    ],
)  # fmt: skip
def test_two_runs_differ_only_where_the_estimate_does(estimate, low, high, expected):
    assert verdict_between_runs(Interval(estimate, low, high)) == expected


@pytest.mark.parametrize("anchor", [(), ("--anchor", "torch")])
def test_a_difference_within_the_band_is_no_regression(tmp_path, capsys, anchor):
    old = write_run(tmp_path / "old.jsonl", {"rml": [1.0] * 24, "torch": [3.0] * 24})
    new = write_run(tmp_path / "new.jsonl", {"rml": [1.004] * 11 + [1.015] * 2 + [1.2] * 11, "torch": [3.0] * 24})
    code, out = run(capsys, old, new, "--arms", "rml", *anchor, "--format", "json")
    row = json.loads(out)["tables"]["changes"]["rows"][0]
    assert row["change_interval"][0] > 1.003
    assert row["change_interval"][1] > 1.1
    assert (code, row["verdict"]) == (4, "unresolved")


def test_noise_is_unresolved(tmp_path, capsys):
    code, out = run(capsys, *pair(tmp_path, factor=1.05, spread=0.3))
    assert code == 4
    assert "? unresolved" in out


def test_a_slower_machine_is_no_regression(tmp_path, capsys):
    old, new = pair(tmp_path, canary=1.2)
    code, out = run(capsys, old, new)
    assert code == 4
    assert "the canaries took 1.20 times as long: allowing for that the cell is same, otherwise slower" in out
    code, out = run(capsys, old, new, "--anchor", "torch")
    assert code == 0
    assert "ratio to torch, new against old" in out


def test_a_regression_on_a_slower_machine_is_one(tmp_path, capsys):
    old, new = pair(tmp_path, factor=1.5, canary=1.2)
    assert run(capsys, old, new, "--arms", "rml")[0] == 3
    assert run(capsys, old, new, "--arms", "rml", "--anchor", "torch")[0] == 3


def test_records_without_blocks_are_unresolved(tmp_path, capsys):
    old, new = pair(tmp_path)
    Path(f"{new}.blocks.jsonl").unlink()
    code, out = run(capsys, old, new)
    assert code == 4
    assert "new.jsonl: no raw block data" in out


def test_a_model_that_the_anchor_does_not_run_is_said_to_be_one(tmp_path, capsys):
    old, new = pair(tmp_path)
    for path, seed in ((old, "e"), (new, "f")):
        write_run(path, {"rml": noisy(seed, 1.0)}, run=seed, model="other")
    asked = (old, new, "--arms", "rml", "--anchor", "torch")
    code, out = run(capsys, *asked)
    assert code == 4
    assert f"other/rml/1/latency/tuned: unresolved: {new}: the anchor torch has no cell there" in out
    with new.open("a") as file:
        rml = read_results(new, blocks=False).records[-1]
        file.write(replace(rml, framework="torch", status="unavailable", reason="no such model", median_ms=None).to_json() + "\n")
    assert f"{new}: the anchor torch is unavailable there" in run(capsys, *asked)[1]


@pytest.mark.parametrize(("arm", "said"), [("rml", "no raw block data"), ("torch", "no raw block data of the anchor torch")])
def test_blocks_that_an_anchored_comparison_lacks_are_named(tmp_path, capsys, arm, said):
    old, new = pair(tmp_path)
    blocks = blocks_path(old)
    blocks.write_text("".join(line for line in blocks.read_text().splitlines(keepends=True) if f"/{arm}/" not in line))
    code, out = run(capsys, old, new, "--arms", "rml", "--anchor", "torch")
    assert code == 4
    assert f"{old}: {said}\n" in out


def test_a_cell_that_failed_or_is_missing_is_no_slowdown(tmp_path, capsys):
    old, new = pair(tmp_path)
    rml, torch = read_results(new, blocks=False).records
    new.write_text(rml.to_json() + "\n")
    code, out = run(capsys, old, new)
    assert code == 4
    assert "m/torch/1/latency/tuned: gone: the new file has no such cell" in out
    failed = CellRecord("m", "torch", 1, "failed", "it crashed", fingerprint=torch.fingerprint, environment=torch.environment)
    new.write_text("".join(record.to_json() + "\n" for record in (rml, torch, failed)))
    code, out = run(capsys, old, new)
    assert code == 4
    assert "gone: failed: it crashed" in out
    new.write_text(
        "".join(record.to_json() + "\n" for record in (rml, replace(failed, status="mismatch", reason="3 of 10 elements differ")))
    )
    code, out = run(capsys, old, new)
    assert code == 1
    assert "mismatch: 3 of 10 elements differ" in out


def test_another_machine_is_refused_and_the_field_named(tmp_path, capsys):
    old = write_run(tmp_path / "old.jsonl", {"rml": noisy("a", 1.0)})
    new = write_run(tmp_path / "new.jsonl", {"rml": noisy("b", 1.0)}, environment={"cpu": "Y"})
    code, said = run(capsys, old, new)
    assert code == 2
    assert f"{new}: must be comparable with {old}; got environment.cpu 'Y' in place of 'X'. Hint: --force compares all the same." in said
    code, out = run(capsys, old, new, "--force")
    assert code == 0
    assert "not comparable: environment.cpu 'Y' in place of 'X'" in out


def edit(path: Path, **fields: Any) -> None:
    """Changes fields of every record, and nothing that follows from them."""
    records = [replace(record, **fields) for record in read_results(path, blocks=False).records]
    path.write_text("".join(record.to_json() + "\n" for record in records))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weights_sha256": "2" * 64}, f"weights_sha256 of m '{'2' * 64}' in place of nothing, fingerprint '"),
        ({"environment": {"cpu": "X", "python": "3.12"}}, "environment.python '3.12' in place of nothing, fingerprint '"),
        ({"environment": {}}, "environment.cpu nothing in place of 'X', fingerprint '"),
    ],
)
def test_facts_count_though_the_fingerprints_are_equal(tmp_path, capsys, fields, said):
    old, new = pair(tmp_path)
    edit(new, **fields)
    code, out = run(capsys, old, new)
    assert code == 2
    assert f"; got {said}" in out
    assert run(capsys, old, new, "--force")[0] == 0


@pytest.mark.parametrize(("which", "stated", "shown"), [(0, "0" * 16, repr("0" * 16)), (1, "0" * 16, repr("0" * 16)), (1, None, "nothing")])
def test_a_fingerprint_must_follow_from_the_facts(tmp_path, capsys, which, stated, shown):
    files = pair(tmp_path)
    follows = read_results(files[which], blocks=False).records[0].fingerprint
    edit(files[which], fingerprint=stated)
    code, out = run(capsys, *files)
    assert code == 2
    assert f"; got fingerprint {shown} of m/torch/1/latency/tuned in {files[which]} where its facts give '{follows}'. Hint" in out
    assert run(capsys, *files, "--force")[0] == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_that_its_blocks_contradict_is_refused(tmp_path, capsys, which):
    files = pair(tmp_path)
    rml, torch = read_results(files[which], blocks=False).records
    files[which].write_text(f"{replace(rml, median_ms=1.5 * rml.median_ms).to_json()}\n{torch.to_json()}\n")
    code, said = run(capsys, *files, "--force")
    assert code == 2
    wrong = f"median_ms {1.5 * rml.median_ms} of m/rml/1/latency/tuned where the blocks give {rml.median_ms}"
    assert f"{files[which]}: must agree with its raw blocks; got {wrong}. Hint" in said
    assert run(capsys, *files, "--arms", "torch")[0] == 0


def test_all_that_differs_is_named(tmp_path, capsys):
    old = write_run(tmp_path / "old.jsonl", {"rml": noisy("a", 1.0)}, environment={"cpu": "AMD EPYC", "cores": 4})
    new = write_run(tmp_path / "new.jsonl", {"rml": noisy("b", 1.0)}, environment={"cpu": "Intel", "cores": 8}, settings={"callers": 2})
    code, said = run(capsys, old, new)
    assert code == 2
    differing = "environment.cpu 'Intel' in place of 'AMD EPYC', environment.cores 8 in place of 4, settings.callers 2 in place of nothing"
    assert f"; got {differing}. Hint" in said


def test_another_model_file_is_refused(tmp_path, capsys):
    old = write_run(tmp_path / "old.jsonl", {"rml": noisy("a", 1.0)}, weights_sha256="1" * 64)
    new = write_run(tmp_path / "new.jsonl", {"rml": noisy("b", 1.0)}, weights_sha256="2" * 64)
    code, said = run(capsys, old, new)
    assert code == 2
    assert "weights_sha256 of m" in said


def test_another_version_of_an_arm_is_what_one_compares(tmp_path, capsys):
    old = write_run(tmp_path / "old.jsonl", {"rml": noisy("a", 1.0)}, framework_version="1.0")
    new = write_run(tmp_path / "new.jsonl", {"rml": noisy("b", 1.0)}, framework_version="1.1")
    code, out = run(capsys, old, new)
    assert code == 0
    assert "1.0" in out
    assert "1.1" in out


@pytest.mark.parametrize("arguments", [["--arms", "tf"], ["--anchor", "tf"]])
def test_unknown_arms_are_bad_usage(tmp_path, capsys, arguments):
    assert run(capsys, *pair(tmp_path), *arguments)[0] == 2


def test_files_without_a_common_cell_are_bad_input(tmp_path, capsys):
    old = write_run(tmp_path / "old.jsonl", {"rml": noisy("a", 1.0)})
    new = write_run(tmp_path / "new.jsonl", {"rml": noisy("a", 1.0)}, model="other")
    assert run(capsys, old, new)[0] == 2
    assert run(capsys, old, tmp_path / "none")[0] == 2


def test_the_last_record_of_a_cell_counts(tmp_path):
    old, new = pair(tmp_path)
    write_run(new, {"rml": noisy("e", 2.0)}, run="later")
    found = {change.old.framework: change for change in compare(read_results(old, blocks=True), read_results(new, blocks=True))}
    assert found["rml"].verdict == "slower"
    assert found["rml"].interval.estimate == pytest.approx(2.0, rel=0.02)


def test_equal_runs_seldom_look_different(tmp_path):
    """The intervals hold the truth in about 95 % of cases: 4 cells in 40 may look slower or faster by chance, 12 would be too many."""
    wrong = 0
    for number in range(40):
        directory = tmp_path / str(number)
        directory.mkdir()
        old, new = pair(directory, spread=0.04, seed=str(number))
        changes = compare(read_results(old, blocks=True), read_results(new, blocks=True))
        wrong += sum(change.verdict in ("faster", "slower") for change in changes)
    assert wrong <= 8  # of 80


positive = st.floats(1e-3, 1e3)
intervals = st.builds(lambda e, a, b: Interval(e, e / (1 + a), e * (1 + b)), positive, st.floats(1e-6, 1), st.floats(1e-6, 1))


@given(intervals, intervals)
def test_a_quotient_turned_over_is_the_other_quotient(new, old):
    one, other = quotient(new, old), quotient(old, new)
    assert one.low <= one.estimate <= one.high
    assert one.estimate == pytest.approx(1 / other.estimate)
    assert one.low == pytest.approx(1 / other.high)
    assert one.high == pytest.approx(1 / other.low)


@given(intervals, intervals, st.floats(0.1, 10))
def test_a_quotient_does_not_care_about_the_unit(new, old, unit):
    scaled = [Interval(one.estimate * unit, one.low * unit, one.high * unit) for one in (new, old)]
    expected, found = quotient(new, old), quotient(*scaled)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    # at least as wide as either, at most as both together
    width, parts = math.log(found.high / found.low), [math.log(one.high / one.low) for one in (new, old)]
    assert max(parts) / math.sqrt(2) - 1e-9 <= width <= sum(parts) + 1e-9


@given(st.lists(intervals, min_size=1, max_size=8))
@settings(max_examples=50)
def test_a_geometric_mean_lies_among_its_parts_and_is_narrower(parts):
    mean = geometric_mean(parts)
    assert min(one.estimate for one in parts) * (1 - 1e-9) <= mean.estimate <= max(one.estimate for one in parts) * (1 + 1e-9)
    assert mean.low <= mean.estimate <= mean.high
    assert math.log(mean.high / mean.low) <= max(math.log(one.high / one.low) for one in parts) * math.sqrt(2) + 1e-9


VERDICTS = ("faster", "slower", "same", "unresolved", "gone", "mismatch")


@given(st.lists(st.sampled_from(VERDICTS), min_size=1))
def test_the_worst_verdict_makes_the_exit_code(verdicts):
    changes = [Change(CellRecord("m", "rml", 1, "ok"), None, None, verdict) for verdict in verdicts]
    worst = {1: {"mismatch"}, 3: {"slower"}, 4: {"unresolved", "gone"}, 0: set(VERDICTS)}
    assert exit_code(changes) == next(code for code, names in worst.items() if names & set(verdicts))
