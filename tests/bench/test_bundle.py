"""Bundles: complete, reproducible, and every change to one is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench.bundle
from bench.cli import main
from bench.records import read_records
from bench.results import blocks_path
from bench.stored import read_results
from tests.bench.stored_runs import RECORDED, write_run


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    assert main(["bundle", str(directory), str(RECORDED)]) == 0
    return directory


def verify(capsys: pytest.CaptureFixture[str], directory: Path) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = main(["verify-bundle", str(directory)])
    return code, capsys.readouterr().out.splitlines()


def reseal(directory: Path) -> None:
    """Makes the hashes fit what is there, as somebody would who forges a number."""
    names = sorted(path for path in directory.iterdir() if path.name != "SHA256SUMS")
    (directory / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in names))


def edit(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))


def test_a_bundle_holds_what_a_reader_needs(bundle):
    assert {path.name for path in bundle.iterdir()} == {
        "README.md", "SHA256SUMS", "environment.json", "record_schema.json", "report.csv", "report.html", "report.json", "report.md", "report.txt",
        "results.jsonl", "results.jsonl.blocks.jsonl",
    }  # fmt: skip
    assert (bundle / "results.jsonl").read_bytes() == RECORDED.read_bytes()
    assert sorted((bundle / "results.jsonl.blocks.jsonl").read_text().splitlines()) == sorted(
        blocks_path(RECORDED).read_text().splitlines()
    )
    about = json.loads((bundle / "environment.json").read_text())
    assert about["machines"][0]["cpu"] == "Example CPU at 3.0 GHz"
    assert {arm["framework"] for arm in about["arms"]} == {"rml", "rml#2", "torch", "jax"}
    assert {model["model"] for model in about["models"]} == {"torch_mlp", "jax_mlp"}
    assert all(len(model["weights_sha256"]) == 64 for model in about["models"])


def test_an_untouched_bundle_verifies(bundle, capsys):
    code, said = verify(capsys, bundle)
    assert (code, len(said)) == (0, 1)
    assert said[0].startswith("9 records, ")
    assert said[0].endswith("from 96 blocks, 5 reports drawn again: all agree")


def test_its_tables_are_drawn_again_without_measuring(bundle, capsys):
    capsys.readouterr()
    assert main(["report", str(bundle / "results.jsonl"), "--details", "--format", "markdown"]) == 1  # one cell is a mismatch
    assert capsys.readouterr().out == (bundle / "report.md").read_text()


FIELDS = (
    "median_ms", "mean_ms", "min_ms", "p10_ms", "p90_ms", "p90_low_ms", "p90_high_ms", "cpu_s_per_call", "effective_cores", "ratio", "ratio_low",
    "ratio_high", "rounds", "blocks_flagged", "noise_floor", "iterations",
)  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_a_forged_number_is_named(bundle, capsys, name):
    path = bundle / "results.jsonl"
    with path.open() as file:
        records = read_records(file)
    number = next(number for number, record in enumerate(records) if record.framework == "torch")
    forged = replace(records[number], **{name: getattr(records[number], name) * 2 + 1})
    path.write_text("".join((forged if index == number else record).to_json() + "\n" for index, record in enumerate(records)))
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0] == "results.jsonl: was changed after the bundle was made"
    assert any(line.startswith(f"results.jsonl: line {number + 1}: torch_mlp/torch/1/latency/tuned: {name}: recorded ") for line in said)
    reseal(bundle)
    assert verify(capsys, bundle)[0] == 1


def test_a_forged_verdict_is_named(bundle, capsys):
    edit(bundle / "results.jsonl", lambda text: text.replace('"verdict": "slower"', '"verdict": "faster"', 1))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("verdict: recorded faster, from the blocks slower" in line for line in said)


@pytest.mark.parametrize("name", ["report.txt", "report.md", "report.html", "report.json", "report.csv"])
def test_a_forged_table_is_named(bundle, capsys, name):
    text = (bundle / name).read_text()
    edit(bundle / name, lambda text: text.replace("2.", "1.", 1))
    assert text != (bundle / name).read_text()
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0].startswith(f"{name}: line ")
    assert len(said) == 2


def test_forged_raw_data_do_not_fit_the_records(bundle, capsys):
    lines = (bundle / "results.jsonl.blocks.jsonl").read_text().splitlines()
    block = json.loads(lines[0])
    block["times_ns"] = [time // 2 for time in block["times_ns"]]
    (bundle / "results.jsonl.blocks.jsonl").write_text("\n".join([json.dumps(block), *lines[1:]]) + "\n")
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("mean_ms" in line for line in said)


def test_a_flag_set_against_the_rule_is_found(tmp_path, capsys):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 8, "torch": [2.0] * 8})
    assert main(["bundle", str(tmp_path / "b"), str(path)]) == 0
    edit(tmp_path / "b" / "results.jsonl.blocks.jsonl", lambda text: text.replace('"flagged": false', '"flagged": true', 1))
    reseal(tmp_path / "b")
    code, said = verify(capsys, tmp_path / "b")
    assert code == 1
    assert "m/rml/1/latency/tuned: 1 of its blocks are flagged otherwise than the canary rule says" in said


def test_missing_and_added_files_are_named(bundle, capsys):
    (bundle / "report.csv").unlink()
    (bundle / "extra").touch()
    assert verify(capsys, bundle) == (
        1,
        ["extra: is not part of the bundle", "report.csv: is missing", verify(capsys, bundle)[1][-1]],
    )
    (bundle / "results.jsonl.blocks.jsonl").unlink()
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("has no raw blocks that its numbers could follow from" in line for line in said)


def test_what_is_no_bundle_is_bad_input(tmp_path, capsys):
    assert verify(capsys, tmp_path)[0] == 2
    shutil.copy(RECORDED, tmp_path / "results.jsonl")
    assert verify(capsys, tmp_path)[0] == 2


def test_nothing_is_written_over(bundle, capsys):
    before = (bundle / "results.jsonl").stat().st_mtime_ns
    assert main(["bundle", str(bundle), str(RECORDED)]) == 2
    assert "must not exist yet" in capsys.readouterr().err
    assert (bundle / "results.jsonl").stat().st_mtime_ns == before


def test_records_without_blocks_make_no_bundle(tmp_path, capsys):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 8})
    blocks_path(path).unlink()
    assert main(["bundle", str(tmp_path / "b"), str(path)]) == 2
    assert "needs the raw block data of every cell; got none for m/rml/1/latency/tuned" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_failure_on_the_way_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.bundle, "_about", full)
    assert main(["bundle", str(tmp_path / "b"), str(RECORDED)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_several_files_make_one_bundle_and_runs_without_a_record_stay_out(tmp_path, capsys):
    one = write_run(tmp_path / "one.jsonl", {"rml": [1.0] * 8, "torch": [2.0] * 8}, run="r1", model="a")
    two = write_run(tmp_path / "two.jsonl", {"rml": [1.0] * 8}, run="r2", model="b")
    killed = write_run(tmp_path / "killed.jsonl", {"rml": [1.0] * 8}, run="r3", model="b")
    with blocks_path(two).open("a") as file:
        file.write(blocks_path(killed).read_text())
    assert main(["bundle", str(tmp_path / "b"), str(one), str(two)]) == 0
    assert {run for run, _ in read_results(tmp_path / "b" / "results.jsonl", blocks=True).blocks} == {"r1", "r2"}
    assert verify(capsys, tmp_path / "b")[0] == 0


def test_a_bundle_of_another_release_differs_and_its_reports_are_checked(bundle, capsys):
    edit(bundle / "environment.json", lambda text: text.replace('"release": "', '"release": "0.0.'))
    edit(bundle / "report.md", lambda text: text.replace("Legend", "Key"))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0].startswith('environment.json: line 2: printed \'"release": "0.0.')
    assert said[1].startswith("report.md: line ")
    assert said[2].endswith("2 differ")


def test_forged_reports_are_found_without_the_environment(bundle, capsys):
    (bundle / "environment.json").unlink()
    edit(bundle / "report.txt", lambda text: text.replace("2.", "1.", 1))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0] == "environment.json: is missing"
    assert said[1].startswith("report.txt: line ")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("environment.json", "Example CPU", "Better CPU"),
        ("README.md", "every timed call", "some timed calls"),
        ("record_schema.json", "raw", "row"),
    ],
)
def test_what_the_other_files_say_follows_from_the_records(bundle, capsys, name, old, new):
    edit(bundle / name, lambda text: text.replace(old, new, 1))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0].startswith(f"{name}: line ")


def edit_lines(path: Path, change: Callable[[dict[str, Any]], None], count: int | None = None) -> None:
    """Changes the first lines of a file, or all of them."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[:count]:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: line.update(median_ms=None), "line 1: torch_mlp/rml/1/latency/tuned: median_ms: recorded None, from the blocks "),
        (lambda line: line.pop("median_ms"), "line 1: torch_mlp/rml/1/latency/tuned: median_ms: recorded None, from the blocks "),
        (lambda line: line.update(noise_floor=None), "noise_floor: recorded None, from the blocks "),
        (lambda line: line.update(p99_ms=0.01), "p99_ms: recorded 0.01, from the blocks None"),
        (lambda line: line.update(weights_sha256="0" * 64), "fingerprint: recorded 55581eff8cd72467, from the record "),
    ],
)
def test_a_record_that_says_less_or_more_than_its_blocks_is_found(bundle, capsys, change, sentence):
    edit_lines(bundle / "results.jsonl", change, 1)
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any(sentence in line for line in said)


def test_a_comparison_that_was_taken_out_is_found(bundle, capsys):
    def silence(line: dict[str, Any]) -> None:
        if line["framework"] == "torch":
            line |= dict.fromkeys(("ratio", "ratio_low", "ratio_high", "verdict"))

    edit_lines(bundle / "results.jsonl", silence)
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("torch_mlp/torch/1/latency/tuned: verdict: recorded None, from the blocks slower" in line for line in said)


def test_what_ledgers_said_needs_ledgers(bundle, capsys):
    edit_lines(bundle / "results.jsonl.blocks.jsonl", lambda line: line.pop("ledger"))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("torch_mlp/rml/1/latency/tuned: threads_seen: recorded 1, from the blocks None" in line for line in said)
    assert any("torch_mlp/rml/1/latency/tuned: parity: recorded True, from the blocks None" in line for line in said)


def test_every_block_is_there_once_and_has_a_record(bundle, capsys):
    path = bundle / "results.jsonl.blocks.jsonl"
    first = path.read_text().splitlines()[0]
    edit(path, lambda text: text + first + "\n" + first.replace("/rml/", "/ghost/") + "\n")
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert said[0] == "results.jsonl.blocks.jsonl: torch_mlp/rml/1/latency/tuned: has round 0 2 times"
    assert said[1] == "results.jsonl.blocks.jsonl: torch_mlp/ghost/1/latency/tuned: has blocks but no record of their run"


def test_no_records_are_no_bundle(bundle, tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    assert main(["bundle", str(tmp_path / "b"), str(tmp_path / "empty.jsonl")]) == 2
    assert "empty.jsonl: must hold at least one record; got none" in capsys.readouterr().err
    (bundle / "results.jsonl").write_text("")
    reseal(bundle)
    assert main(["verify-bundle", str(bundle)]) == 2
    assert "no record in results.jsonl" in capsys.readouterr().err


def test_a_missing_directory_is_called_no_bundle(tmp_path, capsys):
    assert main(["verify-bundle", str(tmp_path / "nosuch")]) == 2
    assert "nosuch: must be a bundle, as bench_frameworks bundle makes it; got no such directory" in capsys.readouterr().err


def test_inputs_that_do_not_fit_the_calls_are_one_sentence(bundle, capsys):
    edit_lines(bundle / "results.jsonl.blocks.jsonl", lambda line: line.update(inputs=[0] * 100))
    reseal(bundle)
    code, said = verify(capsys, bundle)
    assert code == 1
    assert any("torch_mlp/torch/1/latency/tuned: cannot be computed again from its blocks" in line for line in said)


@pytest.mark.parametrize("content", [b"\xff\x00\x9c\n" * 9, b"[" * 100_000 + b"\n"])
def test_blocks_that_are_none_are_bad_input(bundle, capsys, content):
    (bundle / "results.jsonl.blocks.jsonl").write_bytes(content)
    reseal(bundle)
    assert main(["verify-bundle", str(bundle)]) == 2
    assert "results.jsonl.blocks.jsonl: line 1: must be the data of a block" in capsys.readouterr().err
