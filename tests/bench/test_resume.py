"""Going on with a run that was killed, at any instant."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.processes import child_environment
from bench.records import CellRecord, read_records
from bench.results import blocks_path
from tests.bench.conftest import process_ends
from tests.bench.fake_cli import ZOO

REAL = "rml=bench.adapters.rml:RmlAdapter,torch=Second"
CELLS = sorted(f"{model}/{arm}/1/{scenario}/tuned" for model in ZOO for arm in ("rml", "torch") for scenario in ("latency", "paced"))


@pytest.fixture
def zoo_graphs(graphs: Path) -> Path:
    """Returns a directory in which the fake zoo's models are exported."""
    for name in ZOO:
        for path in list(graphs.glob("tiny_mlp.*")):
            shutil.copy(path, graphs / path.name.replace("tiny_mlp", name))
    return graphs


def command(graphs: Path, results: Path, *arguments: str, arms: str = "rml=Honest,torch=Second") -> list[str]:
    return [
        sys.executable, "-m", "tests.bench.fake_cli", arms, "--graphs", str(graphs), "--results", str(results), "--resume", "--min-time", "2x",
        "--scenario", "latency,paced", "--gap", "1ms", "--format", "json", *arguments,
    ]  # fmt: skip


def finish(graphs: Path, results: Path, *arguments: str, **options: str) -> list[dict]:
    done = subprocess.run(
        command(graphs, results, *arguments, **options), env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["cells"]


def read(results: Path) -> list[CellRecord]:
    with results.open() as file:
        return read_records(file)


def workers() -> list[int]:
    """Returns the worker processes of this user that live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"bench.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_finished_run_is_not_run_again(zoo_graphs, tmp_path):
    results = tmp_path / "results.jsonl"
    first = finish(zoo_graphs, results)
    calls = (zoo_graphs / "calls").read_text()
    assert finish(zoo_graphs, results) == first  # the table has all cells
    assert sorted(record.cell for record in read(results)) == CELLS
    assert (zoo_graphs / "calls").read_text() == calls


def test_cells_that_are_missing_are_measured_beside_the_reference_alone(zoo_graphs, tmp_path):
    results = tmp_path / "results.jsonl"
    finish(zoo_graphs, results, "--models", "torch_one", "--scenario", "latency")
    lines = results.read_text().splitlines(keepends=True)
    results.write_text(lines[0] + lines[1][:40])  # the kill came while the second of two was written
    found = finish(zoo_graphs, results, "--models", "torch_one", "--scenario", "latency")
    records = read(results)
    assert [record.framework for record in records] == [cell["framework"] for cell in found] == ["rml", "torch"]
    assert results.read_text().startswith(lines[0])
    # The ratio of the second comes from blocks of its own run, the reference's among them.
    blocks = [json.loads(line) for line in blocks_path(results).read_text().splitlines()]
    assert {block["cell"] for block in blocks if block["run"] == records[1].run} == {records[0].cell, records[1].cell}


@pytest.mark.parametrize(("change", "again"), [("--seed=5", False), ("--gap=2ms", True)])
def test_only_cells_that_would_be_measured_the_same_way_stand_for_others(zoo_graphs, tmp_path, change, again):
    results = tmp_path / "results.jsonl"
    arguments = ["--models", "torch_one", "--scenario", "paced"]
    finish(zoo_graphs, results, *arguments)
    finish(zoo_graphs, results, *arguments, change)
    assert len(read(results)) == (4 if again else 2)


def test_another_model_file_is_another_cell(zoo_graphs, tmp_path):
    results = tmp_path / "results.jsonl"
    finish(zoo_graphs, results, "--models", "torch_one", "--scenario", "latency")
    shutil.copy(zoo_graphs / "torch_one.golden.safetensors", zoo_graphs / "torch_one.golden.1.safetensors")
    finish(zoo_graphs, results, "--models", "torch_one", "--scenario", "latency")
    assert len({record.inputs_sha256 for record in read(results)}) == 2


def test_a_second_run_on_the_same_file_is_refused_with_a_sentence(zoo_graphs, tmp_path):
    results = tmp_path / "results.jsonl"
    running = subprocess.Popen(
        command(zoo_graphs, results, arms="rml=Honest,torch=Hangs"), env=child_environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (zoo_graphs / "Hangs.pid").exists():
            time.sleep(0.01)
        second = subprocess.run(command(zoo_graphs, results), env=child_environment(), capture_output=True, text=True, check=False)
    finally:
        running.kill()
        running.wait()
    assert second.returncode == 2
    assert second.stderr == (
        f"bench_frameworks: --results {results}: must be a file that records can be appended to; got a file that another run has open.\n"
    )


def kill_and_resume(graphs: Path, results: Path, delays: list[float]) -> None:
    """Kills a run at random instants, again and again, then lets it finish and checks what is there."""
    for delay in delays:
        running = subprocess.Popen(
            command(graphs, results, arms=REAL), env=child_environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(delay)
        running.send_signal(signal.SIGKILL)
        running.wait()
        pids = [int(path.read_text() or 0) for path in graphs.glob("*.pid")]
        assert all(process_ends(pid) for pid in pids if pid)
    cells = finish(graphs, results, arms=REAL)
    records = read(results)
    assert sorted(record.cell for record in records) == CELLS  # none lost, none doubled; read_records refuses broken ones
    assert {record.status for record in records} == {"ok"}
    assert sorted(cell["model"] for cell in cells) == sorted(record.model for record in records)
    runs = Counter(json.loads(line)["run"] for line in blocks_path(results).read_text().splitlines())
    assert all(runs[record.run] for record in records)


def test_a_run_killed_at_random_instants_is_resumed(zoo_graphs, tmp_path):
    generator = random.Random(os.getpid())
    kill_and_resume(zoo_graphs, tmp_path / "results.jsonl", [generator.uniform(0.3, 4.0) for _ in range(3)])


@pytest.mark.slow
def test_a_run_killed_50_times_is_resumed_each_time(zoo_graphs, tmp_path):
    generator, before = random.Random(1), set(workers())
    for number in range(50):
        kill_and_resume(zoo_graphs, tmp_path / f"results{number}.jsonl", [generator.uniform(0.3, 6.0)])
    assert set(workers()) <= before
