"""The ledger: on planted snapshots, and on threads and children that really run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench import parity

GRANTED = {0, 1}
FOREIGN = 10_000
"""A core that no machine of a test has."""


def taken(first: int, last: int, threads: dict, children: dict | None = None, ended: int = 0, throttled: int = 0) -> dict:
    return {
        "first_ns": first, "last_ns": last, "threads": threads, "children": children or {}, "ended_children_ns": ended, "throttled": throttled,
    }  # fmt: skip


def test_a_block_lies_between_the_last_clock_before_and_the_first_after():
    before = taken(100, 200, {1: (150, {0})})
    after = taken(1200, 9999, {1: (1150, {0}), 2: (50, {1})})
    found = parity.compare(before, after, 2000, GRANTED)
    assert found == {"wall_ns": 2000, "cpu_ns": 1000, "children_ns": 0, "outside_ns": 0, "threads_seen": 2, "throttled": 0}


def test_a_thread_counts_as_outside_with_all_it_used_in_the_block():
    before = taken(0, 0, {1: (10, {0}), 2: (500, {0, 1})})
    after = taken(2000, 2000, {1: (510, {0}), 2: (1700, {0, FOREIGN}), 3: (300, {FOREIGN})})
    assert parity.compare(before, after, 1000, GRANTED)["outside_ns"] == 1200 + 300


def test_children_count_alive_or_ended():
    before = taken(0, 0, {}, {7: (100, {0}), 8: (40, {0})}, ended=1000)
    after = taken(0, 0, {}, {7: (300, {FOREIGN}), 9: (50, {1})}, ended=1140)  # 8 ended after 100 more
    found = parity.compare(before, after, 1000, GRANTED)
    assert (found["children_ns"], found["cpu_ns"], found["outside_ns"]) == (200 + 50 + 100, 350, 200)


def test_a_thread_that_hardly_runs_is_not_seen():
    before, after = taken(0, 0, {}), taken(0, 0, {1: (1000, {0}), 2: (99, {0}), 3: (100, {0})})
    assert parity.compare(before, after, 10_000, GRANTED)["threads_seen"] == 2


def test_throttling_is_a_difference():
    assert parity.compare(taken(0, 0, {}, throttled=3), taken(0, 0, {}, throttled=5), 1, GRANTED)["throttled"] == 2


LEDGER = {"wall_ns": 10**9, "cpu_ns": 10**9, "children_ns": 0, "outside_ns": 0, "threads_seen": 1, "throttled": 0}


def judged(*changes: dict, threads: int = 1, **arguments) -> dict:
    return parity.judge([LEDGER | change for change in changes], threads, **arguments)


def test_an_arm_that_uses_what_it_was_granted_is_fair():
    found = judged({}, {"threads_seen": 2}, precision="f32")
    assert found == {"parity": True, "parity_reasons": [], "threads_seen": 2, "throttled": False, "cpu_outside_affinity_s": 0.0}


@pytest.mark.parametrize(
    ("change", "arguments", "reason"),
    [
        ({"cpu_ns": 1_060_000_000}, {}, "used 1.06 cores where 1 was granted"),
        ({"cpu_ns": 2_200_000_000}, {"threads": 2}, "used 2.20 cores where 2 were granted"),
        ({"outside_ns": 20_000_000}, {}, "used 0.02 s of CPU time in threads that are not held to the granted cores"),
        ({"throttled": 2}, {}, "was throttled by its control group in 1 of 1 blocks"),
        ({}, {"precision": "bf16"}, "computes float32 products in bf16"),
        ({}, {"escaped": 3}, "started 3 short-lived threads that are not held to the granted cores"),
    ],
)
def test_an_arm_that_does_not_is_unfair_with_a_reason(change, arguments, reason):
    found = judged(change, **arguments)
    assert (found["parity"], found["parity_reasons"]) == (False, [reason])


@pytest.mark.parametrize("change", [{"cpu_ns": 1_040_000_000}, {"outside_ns": 9_000_000}])
def test_there_is_a_tolerance(change):
    assert judged(change)["parity"] is True


def test_without_blocks_only_the_precision_can_be_judged():
    assert parity.judge([], 1, "f32") == parity.judge([], 1, None) == {}
    assert parity.judge([], 1, "f16") == {"parity": False, "parity_reasons": ["computes float32 products in f16"]}


class Spinning:
    """A thread that uses CPU time until the block ends."""

    def __enter__(self):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.spin)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()

    def spin(self):
        while not self.stop.is_set():
            sum(range(1000))


def test_a_spinning_thread_is_seen_and_its_time_is_that_of_the_process():
    with Spinning():
        before = parity.snapshot()
        clock = time.process_time_ns()
        while time.process_time_ns() - clock < 50_000_000:
            time.sleep(0.001)
        found = parity.compare(before, parity.snapshot(), 100_000_000, os.sched_getaffinity(0) | _ran_on())
    assert found["cpu_ns"] >= 50_000_000
    assert found["outside_ns"] == 0
    assert found["threads_seen"] >= 1


def _ran_on() -> set[int]:
    """Returns where threads of this process, which some library may have pinned, may run."""
    return set().union(*(os.sched_getaffinity(int(tid)) for tid in os.listdir("/proc/self/task")))


def test_the_time_of_a_spinning_thread_outside_is_counted():
    with Spinning():
        before = parity.snapshot()
        clock = time.process_time_ns()
        while time.process_time_ns() - clock < 50_000_000:
            time.sleep(0.001)
        found = parity.compare(before, parity.snapshot(), 100_000_000, {FOREIGN})
    assert found["outside_ns"] >= 40_000_000


@pytest.mark.parametrize("code", ["pass", "import time; time.sleep(60)"])
def test_a_childs_time_is_counted_whether_it_ended_or_lives(code, tmp_path):
    ready = tmp_path / "ready"
    work = f"import pathlib, time\nwhile time.process_time() < 0.2: pass\npathlib.Path({str(ready)!r}).write_text('x')\n{code}"
    before = parity.snapshot()
    with subprocess.Popen([sys.executable, "-c", work]) as child:
        while not ready.exists():
            time.sleep(0.01)
        if code == "pass":
            child.wait()
        found = parity.compare(before, parity.snapshot(), 10**9, {FOREIGN})
        child.kill()
    assert 0.2e9 <= found["children_ns"] <= found["cpu_ns"]
    assert found["outside_ns"] >= (0 if code == "pass" else 0.2e9)  # where a child ran that has ended nobody can say


def test_a_watch_sees_short_lived_threads():
    with parity.Watch({FOREIGN}) as watch:
        deadline = time.monotonic() + 30
        while watch.escaped < 2 and time.monotonic() < deadline:
            thread = threading.Thread(target=time.sleep, args=(0.02,))
            thread.start()
            thread.join()
    assert watch.escaped >= 2


def test_a_watch_sees_nothing_where_all_are_held():
    with parity.Watch(_ran_on()) as watch:
        time.sleep(0.05)
    assert watch.escaped == 0


@pytest.mark.parametrize(("line", "folder"), [("0::/a/b", ""), ("1:cpu,cpuacct:/a/b", "cpu"), ("2:cpuacct,cpu:/a/b", "cpu")])
def test_throttling_is_read_from_the_group_and_those_above(monkeypatch, tmp_path, line, folder):
    group = tmp_path / folder / "a" / "b"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\n")
    (group.parent / "cpu.stat").write_text("nr_throttled 3\nthrottled_usec 1\n")
    monkeypatch.setattr(parity, "_CGROUP", tmp_path)
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: f"5:memory:/m\n{line}\n" if str(path) == "/proc/self/cgroup" else read(path))
    assert parity._throttled() == 7
