"""Where things run: affinity, quota, hardware threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import bench.cores
from bench.adapters.base import UnavailableError
from bench.canary import Canary
from bench.cores import Placement, place


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Returns a function that makes a machine: the hardware threads of each core, the CPUs allowed, and those that a quota grants."""

    def make(cores: list[str], allowed: list[int], granted: int | None = None) -> None:
        for cpu in allowed:
            siblings = next(core for core in cores if str(cpu) in core.split(","))
            topology = tmp_path / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(siblings + "\n")
        monkeypatch.setattr(bench.cores, "_CPUS", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
        monkeypatch.setattr(bench.cores, "available_cpus", lambda: len(allowed) if granted is None else granted)

    return make


def test_the_supervisor_keeps_off_the_measured_cores(machine):
    machine(["0", "1", "2", "3"], [0, 1, 2, 3])
    assert place(1) == Placement((0,), (1, 2, 3))
    assert place(3) == Placement((0, 1, 2), (3,))
    assert not place(3).shared


def test_without_another_core_it_shares_the_measured_ones(machine):
    machine(["0"], [0])
    assert place(1) == Placement((0,), (0,))
    assert place(1).shared


def test_hardware_threads_are_measured_on_one_per_core_and_the_others_left_idle(machine):
    machine(["0,1", "2,3", "4,5"], [0, 1, 2, 3, 4, 5])
    assert place(2) == Placement((0, 2), (4, 5))
    assert place(3) == Placement((0, 2, 4), (1, 3, 5))


def test_more_threads_than_cores_share_them_and_the_row_says_so(machine):
    machine(["0,1", "2,3"], [0, 1, 2, 3])
    assert place(3) == Placement((0, 2, 1), (3,), "CPUs 0 and 1 are hardware threads of one core")


def test_what_the_mask_leaves_out_is_not_used(machine):
    machine(["0,1", "2,3"], [1, 2, 3])
    assert place(2) == Placement((1, 2), (3,))


@pytest.mark.parametrize(
    ("threads", "granted", "words"),
    [
        (3, None, "3 threads need as many cores, and this process may use 2"),
        (2, 1, "2 threads would be throttled: the control group grants the time of 1"),
    ],
)
def test_what_is_not_granted_is_unavailable(machine, threads, granted, words):
    machine(["0", "1"], [0, 1], granted)
    with pytest.raises(UnavailableError) as caught:
        place(threads)
    assert str(caught.value) == words


def test_the_canary_runs_on_each_measured_core_and_comes_home(monkeypatch):
    home, visited = os.sched_getaffinity(0), []
    real = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: (visited.append(set(cpus)), real(pid, cpus)))
    canary = Canary(sorted(home))
    visited.clear()
    assert canary.measure() > 0
    assert visited == [*({core} for core in sorted(home)), home]
    assert os.sched_getaffinity(0) == home
