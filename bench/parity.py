"""The ledger of a worker: which threads used how much CPU time in a block, and on which cores they may run; observed, not asked for. Linux.

``snapshot`` before and after a block, ``compare`` of the two, and ``judge`` over all blocks of a cell. Standard library alone: the worker
imports it before it imports a framework.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["CORES_TOLERANCE", "OUTSIDE_TOLERANCE", "Watch", "compare", "judge", "snapshot"]

CORES_TOLERANCE = 0.05
"""CPU time / wall time may exceed the threads granted by this part of them."""

_CLOCKS_NS = 100_000
"""And the CPU time of a block by this much besides: the clock of CPU time is read a little before that of wall time, and a little after."""

OUTSIDE_TOLERANCE = 0.01
"""Part of the CPU time that threads not held to the granted cores may use before it counts: a thread that only waits uses some too."""

_SEEN = 0.01
"""A thread is seen if it used at least this part of the block's time."""

_WATCH_S = 0.005
_CGROUP = Path("/sys/fs/cgroup")


def snapshot() -> dict[str, Any]:
    """Returns the CPU time of this process, its threads and its children, and which CPUs these may run on and ran on last.

    The clock of the process is read first (``first_ns``) and last (``last_ns``), so that what looking costs falls into neither side of a
    block: the block is from ``last_ns`` before it to ``first_ns`` after it.
    """
    first = time.process_time_ns()
    children = _descendants()
    return {
        "first_ns": first,
        "threads": {tid: (_clock(tid, thread=True), _places(os.getpid(), tid)) for tid in _tasks(os.getpid())},
        "children": {pid: (_clock(pid, thread=False), set().union(*(_places(pid, tid) for tid in _tasks(pid)))) for pid in children},
        "ended_children_ns": _ended_children_ns(),
        "throttled": _throttled(),
        "last_ns": time.process_time_ns(),
    }


def compare(before: Mapping[str, Any], after: Mapping[str, Any], wall_ns: int, granted: Collection[int]) -> dict[str, Any]:
    """Returns what happened between two snapshots, as JSON values.

    A thread counts as outside with all its CPU time of the block if it may run on a core that was not granted, or ran on one last. The kernel
    keeps no account per core; but a worker pins itself before it imports anything, so a thread of another mask has freed itself.

    Args:
        before: the snapshot before the block.
        after: the one after it.
        wall_ns: length of the block.
        granted: the cores that the worker is held to.

    Returns:
        ``wall_ns``; ``cpu_ns`` of the process and all its children; ``children_ns``, the part of the latter; ``outside_ns``; ``threads_seen``,
        threads and children that used at least 1 % of the block; ``throttled``, how often the control group was throttled.
    """
    used = {
        kind: {key: (cpu - before[kind].get(key, (0, None))[0], places) for key, (cpu, places) in after[kind].items()}
        for kind in ("threads", "children")
    }
    # A child that ended in between is in the account of ended children with all its life; what it had used before is taken off again.
    ended = sum(cpu for pid, (cpu, _) in before["children"].items() if pid not in after["children"])
    children = sum(cpu for cpu, _ in used["children"].values())
    children += max(0, after["ended_children_ns"] - before["ended_children_ns"] - ended)
    everyone = [*used["threads"].values(), *used["children"].values()]
    return {
        "wall_ns": wall_ns,
        "cpu_ns": after["first_ns"] - before["last_ns"] + children,
        "children_ns": children,
        "outside_ns": sum(cpu for cpu, places in everyone if not places <= set(granted)),
        "threads_seen": sum(cpu >= _SEEN * wall_ns for cpu, _ in everyone),
        "throttled": after["throttled"] - before["throttled"],
    }


def judge(ledgers: Sequence[Mapping[str, Any]], threads: int, precision: str | None = None, escaped: int = 0) -> dict[str, Any]:
    """Returns the fields of a record that say whether the arm used what it was granted; none if nothing is known.

    Args:
        ledgers: what :func:`compare` returned for each block.
        threads: the threads, and cores, granted.
        precision: effective precision of float32 products, if it is known; see :mod:`bench.probe`.
        escaped: threads that :class:`Watch` saw outside the granted cores.
    """
    wrong_precision = [] if precision in (None, "f32") else [f"computes float32 products in {precision}"]
    if not ledgers:
        return {"parity": False, "parity_reasons": wrong_precision} if wrong_precision else {}
    wall, cpu, outside = (sum(ledger[key] for ledger in ledgers) for key in ("wall_ns", "cpu_ns", "outside_ns"))
    throttled = sum(ledger["throttled"] > 0 for ledger in ledgers)
    reasons = []
    if cpu > wall * threads * (1 + CORES_TOLERANCE) + _CLOCKS_NS * len(ledgers):
        reasons.append(f"used {cpu / wall:.2f} cores where {threads} {'was' if threads == 1 else 'were'} granted")
    if outside > cpu * OUTSIDE_TOLERANCE:
        reasons.append(f"used {outside / 1e9:.2f} s of CPU time in threads that are not held to the granted cores")
    elif escaped:
        reasons.append(f"started {escaped} short-lived threads that are not held to the granted cores")
    if throttled:
        reasons.append(f"was throttled by its control group in {throttled} of {len(ledgers)} blocks")
    reasons += wrong_precision
    return {
        "parity": not reasons,
        "parity_reasons": reasons,
        "threads_seen": max(ledger["threads_seen"] for ledger in ledgers),
        "throttled": throttled > 0,
        "cpu_outside_affinity_s": outside / 1e9,
    }


class Watch:
    """A context manager that looks every few milliseconds for threads that may run outside the granted cores, however short they live.

    It takes CPU time itself, so it is for warm-ups, not for blocks.

    Attributes:
        escaped: how many there were.
    """

    def __init__(self, granted: Collection[int]) -> None:
        self._granted, self._found, self._stop = set(granted), set[int](), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def escaped(self) -> int:
        return len(self._found)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for tid in _tasks(os.getpid()):
                with contextlib.suppress(OSError):
                    if not os.sched_getaffinity(tid) <= self._granted:
                        self._found.add(tid)


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _clock(number: int, *, thread: bool) -> int:
    """Returns the CPU time in nanoseconds of a thread of this process, or of any process; 0 if it is gone.

    The kernel makes such clocks from ids as ``pthread_getcpuclockid`` does (``MAKE_THREAD_CPUCLOCK`` in Linux's posix-timers.h).
    """
    try:
        return time.clock_gettime_ns((~number << 3) | 2 | (4 if thread else 0))
    except OSError:
        return 0


def _places(pid: int, tid: int) -> set[int]:
    """Returns the CPUs that a thread may run on, and the one that it ran on last; nothing if it is gone."""
    try:
        last = int(Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[36])
        return {last, *os.sched_getaffinity(tid)}
    except OSError:
        return set()


def _descendants() -> list[int]:
    """Returns the processes that descend from this one and have not ended."""
    found, pending = [], [os.getpid()]
    while pending:
        pid = pending.pop()
        for tid in _tasks(pid):
            with contextlib.suppress(OSError):
                pending += (children := [int(child) for child in Path(f"/proc/{pid}/task/{tid}/children").read_text().split()])
                found += children
    return found


def _ended_children_ns() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def _throttled() -> int:
    """Returns how often this process's control group, or one above it, was throttled so far (version 2, then 1)."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = _CGROUP / ("cpu" if controllers else "") / path.lstrip("/")
            for above in (group, *group.parents):
                if not above.is_relative_to(_CGROUP):
                    break
                total += _nr_throttled(above / "cpu.stat")
    return total


def _nr_throttled(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("nr_throttled "):
                return int(line.split()[1])
    return 0
