"""Files for other tools, read the way those tools read them; and the report command."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.exports import EXPORTS
from bench.processes import child_environment
from bench.results import blocks_path
from bench.stored import read_results
from tests.bench.stored_runs import RECORDED, write_run

OK = ["torch_mlp/rml/1/latency/tuned", "torch_mlp/rml#2/1/latency/tuned", "torch_mlp/torch/1/latency/tuned", "jax_mlp/rml/1/latency/tuned",
      "jax_mlp/rml#2/1/latency/tuned", "jax_mlp/jax/1/latency/tuned"]  # fmt: skip


@pytest.fixture
def exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns what each tool's file holds."""
    arguments = [word for tool in EXPORTS for word in ("--export", tool, str(tmp_path / tool))]
    assert main(["report", str(RECORDED), *arguments]) == 1  # one cell is a mismatch
    assert capsys.readouterr().out == ""
    return {tool: json.loads((tmp_path / tool).read_text()) for tool in EXPORTS}


def calls(name: str) -> list[int]:
    stored = read_results(RECORDED, blocks=True)
    (blocks,) = (cell.blocks for (_, cell_name), cell in stored.blocks.items() if cell_name == name)
    return [time for block in blocks for time in block.times_ns]


def test_google_benchmark_finds_repetitions_of_every_cell(exported):
    """As ``gbench/report.py`` does: entries of one name with a time unit, real and CPU time are the repetitions it tests."""
    entries = exported["google-benchmark"]["benchmarks"]
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if {"time_unit", "real_time", "cpu_time"} <= set(entry):
            found.setdefault(entry["name"], []).append(entry)
    assert [name for name in found if not name.endswith("_median")] == OK
    for name in OK:
        assert [entry["repetition_index"] for entry in found[name]] == list(range(16))
        assert {(entry["time_unit"], entry["run_type"], entry["iterations"]) for entry in found[name]} == {("ns", "iteration", 5)}
        assert statistics.fmean(entry["real_time"] for entry in found[name]) == pytest.approx(statistics.fmean(calls(name)))
        (median,) = found[f"{name}_median"]
        assert (median["run_type"], median["aggregate_name"], median["run_name"]) == ("aggregate", "median", name)
        assert median["real_time"] == statistics.median(entry["real_time"] for entry in found[name])
    errors = {entry["name"]: entry["error_message"] for entry in entries if entry.get("error_occurred")}
    assert errors["jax_mlp/openvino/1/latency/tuned"] == "mismatch: output 'y': 3 of 10 elements differ"
    assert len(errors) == 3
    context = exported["google-benchmark"]["context"]
    assert (context["num_cpus"], context["json_schema_version"], context["cpu_scaling_enabled"]) == (2, 1, True)


def test_pytest_benchmark_finds_its_statistics(exported):
    found = exported["pytest-benchmark"]
    assert {"machine_info", "commit_info", "benchmarks", "datetime", "version"} == set(found)
    assert [entry["name"] for entry in found["benchmarks"]] == OK
    for entry in found["benchmarks"]:
        times, stats = [time / 1e9 for time in calls(entry["name"])], entry["stats"]
        assert {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"} == set(entry)
        assert set(stats) == {
            "min", "max", "mean", "stddev", "rounds", "median", "iqr", "q1", "q3", "iqr_outliers", "stddev_outliers", "outliers", "ld15iqr",
            "hd15iqr", "ops", "total", "iterations",
        }  # fmt: skip
        assert (stats["min"], stats["max"], stats["median"]) == (min(times), max(times), statistics.median(times))
        assert (stats["mean"], stats["stddev"]) == (pytest.approx(statistics.mean(times)), pytest.approx(statistics.stdev(times)))
        # of an even number of calls, 80, its quartiles are the medians of the halves
        halves = sorted(times)[:40], sorted(times)[40:]
        assert (stats["q1"], stats["q3"]) == tuple(pytest.approx(statistics.median(half)) for half in halves)
        fence = 1.5 * stats["iqr"]
        inside = [time for time in times if stats["q1"] - fence <= time <= stats["q3"] + fence]
        assert (stats["ld15iqr"], stats["hd15iqr"], stats["iqr_outliers"]) == (min(inside), max(inside), 80 - len(inside))
        assert (stats["rounds"], stats["ops"]) == (80, pytest.approx(80 / sum(times)))
    assert found["benchmarks"][2]["extra_info"]["verdict"] == "slower"


def test_github_action_finds_names_units_and_values(exported):
    found = exported["github-action"]
    assert [(entry["name"], entry["unit"]) for entry in found] == [(name, "ms") for name in OK]
    assert all(isinstance(entry["value"], float) and isinstance(entry["range"], str) and isinstance(entry["extra"], str) for entry in found)
    torch = next(record for record in read_results(RECORDED, blocks=False).records if record.framework == "torch")
    assert found[2]["value"] == torch.median_ms
    assert f"ratio to rml: {torch.ratio:.4g}" in found[2]["extra"]
    assert "verdict: slower" in found[2]["extra"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_any_number_of_calls_has_statistics(tmp_path, rounds):
    path = write_run(tmp_path / "r.jsonl", {"rml": [float(number) for number in range(1, rounds + 1)]})
    assert main(["report", str(path), "--export", "pytest-benchmark", str(tmp_path / "out")]) == 0
    (entry,) = json.loads((tmp_path / "out").read_text())["benchmarks"]
    assert entry["stats"]["min"] <= entry["stats"]["q1"] <= entry["stats"]["median"] <= entry["stats"]["q3"] <= entry["stats"]["max"]


def test_what_cannot_be_exported_is_said(tmp_path, capsys):
    path = write_run(tmp_path / "r.jsonl", {"rml": [1.0] * 6})
    assert main(["report", str(path), "--export", "junit", str(tmp_path / "out")]) == 2
    assert "must name one of google-benchmark, pytest-benchmark, github-action; got 'junit'" in capsys.readouterr().err
    assert main(["report", str(path), "--export", "github-action", str(tmp_path / "none" / "out")]) == 2
    assert "must be a file that can be written" in capsys.readouterr().err
    blocks_path(path).unlink()
    assert main(["report", str(path), "--export", "pytest-benchmark", str(tmp_path / "out")]) == 2
    assert "needs the raw block data of every cell" in capsys.readouterr().err
    assert main(["report", str(path), "--export", "github-action", str(tmp_path / "out")]) == 0


def test_a_report_of_several_files_has_all_their_cells(tmp_path, capsys):
    one = write_run(tmp_path / "one.jsonl", {"rml": [1.0] * 8, "torch": [2.0] * 8}, model="a")
    two = write_run(tmp_path / "two.jsonl", {"rml": [1.0] * 8}, model="b")
    assert main(["report", str(one), str(two), "--format", "json"]) == 0
    assert [(cell["model"], cell["framework"]) for cell in json.loads(capsys.readouterr().out)["cells"]] == [
        ("a", "rml"), ("a", "torch"), ("b", "rml"),
    ]  # fmt: skip
    assert main(["report", str(tmp_path / "none")]) == 2


def test_stored_results_are_drawn_where_no_framework_is_installed():
    code = f"""
import sys
from bench.cli import main
for name in ("torch", "jax", "tensorflow", "onnx", "onnxruntime", "openvino"):
    sys.modules[name] = None  # an import of it fails
sys.exit(main(["report", {str(RECORDED)!r}, "--details"]))
"""
    done = subprocess.run([sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")  # one cell is a mismatch
    assert "▼ slower" in done.stdout
