"""How many threads a run gets: never more than the process may use."""

from __future__ import annotations

import os
from pathlib import Path

from rml_exec.errors import InputError

__all__ = ["available_cpus", "thread_count"]

_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_quota() -> float | None:
    """Returns the CPUs' worth of time that the control group grants, or None without a limit (cgroup v2, then v1)."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (_CGROUP / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        share = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None


def available_cpus() -> int:
    """Returns max(1, min(CPUs of the affinity mask, floor(cgroup quota)))."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(affinity, int(quota)) if quota is not None else affinity)


def thread_count(asked: int | None = None) -> int:
    """Returns the threads to use: what is asked for, else ``RML_NUM_THREADS``, else all; never more than :func:`available_cpus`.

    Raises:
        InputError: a number below 1, or an ``RML_NUM_THREADS`` that is no number.
    """
    where = "threads"
    if asked is None and (text := os.environ.get("RML_NUM_THREADS")):
        where = "RML_NUM_THREADS"
        try:
            asked = int(text)
        except ValueError:
            raise InputError.of(where, "must be a whole number of at least 1", repr(text)) from None
    if asked is not None and (isinstance(asked, bool) or not hasattr(asked, "__index__") or asked < 1):
        raise InputError.of(where, "must be a whole number of at least 1", repr(asked))
    limit = available_cpus()
    return limit if asked is None else min(int(asked), limit)
