"""What is observed of an arm beside its times, with fake arms in real worker processes: whoever cheats is found out in its row."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bench
from bench.adapters.base import ARMS, Arm, find_arm, interpreter_of
from bench.bootstrap import Packages
from bench.options import build_groups, parse_options
from bench.records import CellRecord
from bench.settings import Settings
from bench.supervisor import run_cells
from exporters.models.zoo import get_model
from rml_exec.errors import InputError
from tests.bench.conftest import QUICK

LONGER = replace(QUICK, calls=3)
more_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or len(os.sched_getaffinity(0)) < (os.cpu_count() or 1), reason="needs all cores of two or more"
)


@pytest.fixture
def run(graphs: Path, use_arms: Callable[..., list[str]]) -> Callable[..., CellRecord]:
    """Returns a function that runs a fake arm beside an honest one and returns its record."""

    def run(cls: str, settings: Settings = LONGER) -> CellRecord:
        names = use_arms(rml="Works", other=cls)
        honest, found = run_cells("tiny_mlp", 1, names, graphs=str(graphs), settings=settings, environment={}).records
        assert honest.status == "ok"
        assert [reason for reason in honest.parity_reasons if "throttled" not in reason] == []
        return found

    return run


def reasons(record: CellRecord) -> list[str]:
    return [reason for reason in record.parity_reasons if "throttled" not in reason]  # the machine's business


def test_an_honest_arm_is_fair(run):
    record = run("Works")
    assert reasons(record) == []
    assert record.parity is not record.throttled
    assert 0 < record.effective_cores <= 1.05
    assert (record.threads_seen, record.cpu_outside_affinity_s) == (1, 0.0)
    assert (record.precision, record.flush_denormals) == ("f32", False)
    assert record.rss_bytes > 0
    assert record.rss_peak_bytes >= record.rss_after_first_call_bytes > 0


@more_cores
def test_a_second_thread_outside_the_granted_cores_is_flagged(run):
    record = run("Escapes")
    assert record.status == "ok"
    assert record.parity is False
    assert any("not held to the granted cores" in reason for reason in record.parity_reasons)
    assert record.cpu_outside_affinity_s > 0
    assert record.threads_seen == 2


@more_cores
def test_threads_that_come_and_go_are_flagged(run):
    record = run("EscapesBriefly", replace(LONGER, warm_up_s=0.3))
    assert record.parity is False
    assert any("short-lived threads that are not held" in reason for reason in record.parity_reasons)


def test_a_childs_work_is_the_arms(run):
    record = run("LeavesWork")
    assert record.cpu_s_per_call > 0.03
    assert record.threads_seen == 2


def test_a_lower_precision_is_flagged(run):
    record = run("Bfloat16")
    assert (record.status, record.precision, record.parity) == ("ok", "bf16", False)
    assert reasons(record) == ["computes float32 products in bf16"]


def test_a_lower_precision_explains_a_wrong_output(run):
    record = run("WrongInBfloat16")
    assert (record.status, record.precision, record.parity) == ("mismatch", "bf16", False)
    assert record.reason.endswith("the arm computes float32 products in bf16")


def test_a_result_is_checked_before_the_next_call_overwrites_it(run):
    # Load and a warm-up call, then an untimed one: the first timed call is the fourth, and the second of three is the fifth.
    assert run("Reuses", replace(QUICK, calls=2, min_rounds=1, max_rounds=1)).status == "mismatch"


def test_costs_of_compilation_and_its_cache_are_the_cells_own(run):
    record = run("Compiles")
    assert (record.compile_cold_ms, record.compile_warm_ms) == (30.0, 3.0)
    assert Path(record.options["cache"]).name == "other"
    assert not Path(record.options["cache"]).exists()
    assert (record.options["setup"], record.options["threads"]) == ("tuned", "1")


def test_an_arm_as_installed_is_told_no_threads(run, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    record = run("Compiles", replace(LONGER, setup="installed"))
    assert (record.options["setup"], record.options["threads"]) == ("installed", None)


def test_a_name_may_have_an_interpreter():
    assert find_arm("rml@/usr/bin/python") is ARMS["rml"]
    assert (interpreter_of("rml@/usr/bin/python"), interpreter_of("rml")) == ("/usr/bin/python", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [("rml@/no/such/python", "must name an interpreter"), ("rml@", "must name an interpreter"), ("nothing@python3", "must name some of")],
)
def test_an_interpreter_that_cannot_be_run_is_said_before_anything_runs(text, words):
    options = parse_options(["--frameworks", text])
    with pytest.raises(InputError, match=words):
        build_groups([get_model("torch_mlp")], options)


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Returns another interpreter, which has NumPy, and a package ``made_up`` of the same version as everything that is made up."""
    os.makedirs(tmp_path / "other" / "site")
    for entry in Path(np.__file__).parent.parent.iterdir():
        if entry.name.startswith("numpy"):
            (tmp_path / "other" / "site" / entry.name).symlink_to(entry)
    python = tmp_path / "other" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/other/site" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_an_arm_runs_under_another_interpreter(graphs, interpreter):
    name = f"rml@{interpreter}"
    record = run_cells("tiny_mlp", 1, [name], graphs=str(graphs), settings=QUICK, environment={}).records[0]
    assert (record.framework, record.status, record.check, record.reason) == (name, "ok", "pass", "")
    assert record.options["interpreter"] == sys.executable


def test_another_interpreter_sees_nothing_that_is_installed_for_this_one(graphs, interpreter, monkeypatch):
    monkeypatch.setitem(ARMS, "torch", Arm("bench.adapters.torch_eager:TorchAdapter", ("torch",)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    record = run_cells("tiny_mlp", 1, [f"torch@{interpreter}"], graphs=str(graphs), settings=QUICK, environment={}).records[0]
    assert record.status == "unavailable"
    assert "PyTorch is not installed (No module named 'torch')" in record.reason


def test_the_finder_finds_its_packages_and_nothing_else():
    finder = Packages(str(Path(bench.__file__).parent.parent), ["bench"])
    assert finder.find_spec("bench", None).origin == bench.__file__
    assert finder.find_spec("exporters", None) is None
    assert finder.find_spec("bench", ["somewhere"]) is None


def test_a_process_that_is_no_python_is_a_row(graphs, tmp_path):
    python = tmp_path / "python"
    shutil.copy("/bin/false", python)
    record = run_cells("tiny_mlp", 1, [f"rml@{python}"], graphs=str(graphs), settings=QUICK, environment={}).records[0]
    assert (record.status, record.check) == ("failed", None)
    assert "exit code 1" in record.reason
