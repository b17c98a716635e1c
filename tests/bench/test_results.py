"""The results file: appended to, repaired, locked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bench.results
from bench.processes import child_environment
from bench.records import CellRecord, read_records
from bench.results import ResultsFile, blocks_path
from tests.bench.test_records import FAILED, FULL

BLOCKS = [{"run": "r1", "cell": FULL.cell, "round": number, "times_ns": [1, 2]} for number in range(2)]


def read(path: Path) -> list[CellRecord]:
    with path.open() as file:
        return read_records(file)


def test_records_and_blocks_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as results:
        assert results.records == []
        assert results.blocks_name == "results.jsonl.blocks.jsonl"
        results.append([FULL], BLOCKS)
        results.append([FAILED])
    assert read(path) == [FULL, FAILED]
    assert [json.loads(line) for line in blocks_path(path).read_text().splitlines()] == BLOCKS
    with ResultsFile(path) as results:
        assert results.records == [FULL, FAILED]


def test_half_last_lines_are_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    record, block = FULL.to_json() + "\n", json.dumps(BLOCKS[0]) + "\n"
    for length in (*range(12), *range(12, len(record), 50), len(record) - 1):
        path.write_text(record + record[:length])
        blocks_path(path).write_text(block + block[: min(length, len(block) - 1)])
        with ResultsFile(path) as results:
            assert results.records == [FULL]
        assert path.read_text() == record
        assert blocks_path(path).read_text() == block


def test_a_half_line_longer_than_a_chunk_is_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    line = json.dumps({**BLOCKS[0], "times_ns": list(range(400_000))}) + "\n"
    blocks_path(path).write_text(line + line[:-1])
    with ResultsFile(path):
        pass
    assert blocks_path(path).read_text() == line


@pytest.mark.parametrize(
    "content", ["# my notes\n", "precious", '{"model": "x"}\n', '[1]\n{"model": ', FULL.to_json().replace('n": 2}', 'n": 1}') + "\n"]
)
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(ValueError, match="line"):
        ResultsFile(path)
    assert path.read_text() == content


def test_a_second_run_is_refused_until_the_first_one_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(bench.results, "_LOCK_WAIT_S", 0.0)
    path = tmp_path / "results.jsonl"
    code = f"""
import sys
from pathlib import Path
from bench.results import ResultsFile
held = ResultsFile(Path({str(path)!r}))
print(flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", code], env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        with pytest.raises(ValueError, match="a file that another run has open"):
            ResultsFile(path)
    finally:
        other.kill()
        other.communicate()
    with ResultsFile(path) as results:
        results.append([FULL])


def test_a_write_that_fails_leaves_no_half_line(tmp_path):
    path = tmp_path / "results.jsonl"
    code = f"""
import os, resource, signal
from pathlib import Path
from bench.records import CellRecord
from bench.results import ResultsFile
path = {str(path)!r}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with ResultsFile(Path(path)) as results:
    results.append([CellRecord("tiny", "torch", 1, "failed")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 100,) * 2)
    try:
        results.append([CellRecord("tiny", "jax", 1, "failed")])
    except OSError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert [record.framework for record in read(path)] == ["torch"]
    assert path.read_text().endswith("\n")


def test_a_device_takes_records_without_blocks():
    with ResultsFile(Path("/dev/null")) as results:
        assert results.blocks_name is None
        results.append([FULL], BLOCKS)
