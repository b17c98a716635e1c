"""The supervisor, with fake arms in real worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.processes import child_environment
from bench.records import CellRecord
from bench.settings import Settings
from bench.supervisor import run_cells
from tests.bench.conftest import QUICK, process_ends, wait_for

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def run(graphs: Path, use_arms: Callable[..., list[str]], quiet: None) -> Callable[..., dict[str, CellRecord]]:
    """Returns a function that runs fake arms on tiny_mlp and returns the records by arm."""

    def run(settings: Settings = QUICK, threads: int = 1, **arms: str) -> dict[str, CellRecord]:
        names = use_arms(**arms)
        found = run_cells("tiny_mlp", threads, names, graphs=str(graphs), settings=settings, environment={"cpu": "fake"}).records
        assert [record.framework for record in found] == names
        return {record.framework: record for record in found}

    return run


def calls(graphs: Path) -> list[str]:
    return (graphs / "calls").read_text().split()


def test_arms_load_one_by_one_and_alternate_in_turning_order(run, graphs):
    run(rml="Honest", other="Second")
    loading = ["Honest", "Honest", "Second", "Second"]  # first call and warm-up
    assert calls(graphs) == loading + ["Honest", "Second", "Second", "Honest"] * 2


def test_a_record_says_all_there_is_to_say(run):
    record = run(rml="Honest", other="Second")["other"]
    assert (record.model, record.framework, record.threads, record.status, record.reason) == ("tiny_mlp", "other", 1, "ok", "")
    assert (record.check, record.max_abs_error, record.max_rel_error, record.iterations) == ("pass", 0.0, 0.0, QUICK.min_rounds)
    assert 0 < record.min_ms <= record.p10_ms <= record.median_ms <= record.p90_ms
    assert record.min_ms <= record.mean_ms
    assert (record.framework_version, record.import_ms, record.load_ms) == ("1.2.3", 1.0, 2.0)
    assert record.first_call_ms > 0
    assert record.ratio > 0
    assert record.environment == {"cpu": "fake"}


def test_workers_are_pinned_to_as_many_cores_as_threads(run):
    assert run(rml="Honest")["rml"].options["affinity"] == CORES[:1]


def test_more_threads_than_cores_are_unavailable(run, graphs):
    record = run(threads=len(CORES) + 1, rml="Honest")["rml"]
    assert (record.status, record.check) == ("unavailable", None)
    assert record.reason == f"{len(CORES) + 1} threads need as many cores, and this process may use {len(CORES)}"
    assert not (graphs / "calls").exists()


def test_the_reference_has_ratio_one_and_without_it_there_is_none(run):
    assert run(rml="Honest", other="Second")["rml"].ratio == 1.0
    assert run(other="Second")["other"].ratio is None
    assert run(rml="Raises", other="Second")["other"].ratio is None


def test_a_wrong_output_is_a_mismatch_before_anything_is_timed(run, graphs):
    records = run(rml="Honest", other="Wrong")
    wrong = records["other"]
    assert (wrong.status, wrong.check, wrong.iterations, wrong.median_ms, wrong.ratio) == ("mismatch", "fail", None, None, None)
    assert wrong.max_abs_error == pytest.approx(1.0)
    assert wrong.reason.startswith("output 'y': ")
    assert calls(graphs).count("Wrong") == 1
    assert records["rml"].status == "ok"


def test_a_wrong_output_in_the_timed_loop_alone_is_a_mismatch(run, graphs):
    records = run(rml="Honest", other="WrongAtFour")
    wrong = records["other"]
    assert (wrong.status, wrong.check, wrong.median_ms, wrong.max_abs_error) == ("mismatch", "fail", None, None)
    assert calls(graphs).count("WrongAtFour") == 4
    assert records["rml"].iterations == QUICK.min_rounds


def test_an_output_that_the_golden_lacks_is_a_mismatch(run):
    record = run(rml="ExtraOutput")["rml"]
    assert (record.status, record.reason) == ("mismatch", "the golden holds no output surprise to check against")


@pytest.mark.parametrize(
    ("cls", "status", "words"),
    [
        ("Raises", "failed", ["ValueError: no such layer"]),
        ("Crashes", "failed", ["signal SIGSEGV", "about to crash"]),
        ("CrashesLater", "failed", ["exit code 7"]),
        ("CrashesBesideChild", "failed", ["exit code 9"]),
        ("Garbles", "failed", ["no message", "garbage {"]),
        ("GarblesJson", "failed", ["no answer", "times_ns"]),
        ("Unavailable", "unavailable", ["Fake is not installed; pip install fake"]),
        ("NoSuchClass", "failed", ["exit code 1", "AttributeError"]),
    ],
)
def test_a_bad_arm_is_a_row_with_a_reason_and_the_others_are_measured(run, cls, status, words):
    records = run(rml="Honest", bad=cls)
    bad = records["bad"]
    assert (bad.status, bad.median_ms, bad.ratio) == (status, None, None)
    assert all(word in bad.reason for word in words), bad.reason
    assert "\n" not in bad.reason
    assert (records["rml"].status, records["rml"].iterations) == ("ok", QUICK.min_rounds)


def test_a_hanging_arm_is_a_row_and_its_process_is_ended(run, graphs):
    record = run(replace(QUICK, timeout_s=3.0), bad="Hangs")["bad"]
    assert (record.status, record.reason) == ("failed", "the worker gave no answer within 3 s")
    assert process_ends(int((graphs / "Hangs.pid").read_text()))


def test_what_an_arm_prints_disturbs_nothing(run):
    assert run(rml="Talks")["rml"].status == "ok"


def test_children_of_an_arm_are_ended_and_those_outside_its_group_are_reported(run, graphs):
    record = run(rml="LeavesChildren")["rml"]
    assert record.status == "ok"
    assert record.reason == "processes that left its group ran on beside the other arms and were ended: 1"
    assert all(process_ends(int((graphs / f"{name}.pid").read_text())) for name in ("inside", "outside", "LeavesChildren"))


def test_idle_arms_are_stopped(run, graphs):
    run(rml="Honest", other="Watches")
    assert (graphs / "states").read_text().split() == ["T"] * (2 + QUICK.min_rounds)


def test_an_interrupt_leaves_no_worker(use_arms, graphs):
    def interrupt(text: str) -> None:
        if text.startswith("round 2"):
            raise KeyboardInterrupt

    names = use_arms(rml="Honest", other="Second")
    with pytest.raises(KeyboardInterrupt):
        run_cells("tiny_mlp", 1, names, graphs=str(graphs), settings=QUICK, environment={}, progress=interrupt)
    assert all(process_ends(int((graphs / f"{name}.pid").read_text())) for name in ("Honest", "Second"))


def test_a_killed_supervisor_leaves_no_worker(graphs):
    code = f"""
from bench.adapters.base import ARMS, Arm
from bench.settings import Settings
from bench.supervisor import run_cells
for name, cls in (("rml", "Honest"), ("bad", "Hangs")):
    ARMS[name] = Arm(f"tests.bench.fake_arms:{{cls}}", ("torch",))
run_cells("tiny_mlp", 1, ["rml", "bad"], graphs={str(graphs)!r}, settings=Settings(), environment={{}})
"""
    supervisor = subprocess.Popen([sys.executable, "-c", code], env=child_environment())
    try:
        running, stopped = int(wait_for(graphs / "Hangs.pid")), int((graphs / "Honest.pid").read_text())
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    assert process_ends(running)
    assert process_ends(stopped)
