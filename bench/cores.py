"""Which cores are measured on, and which are left to the supervisor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.adapters.base import UnavailableError
from rml_exec.runtime.threads import available_cpus

__all__ = ["Placement", "place"]

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where things run.

    Attributes:
        measured: the workers' cores, as many as threads.
        supervisor: the supervisor's; the measured ones where there are no others.
        remark: what a reader must know about the measured cores; mostly empty.
    """

    measured: tuple[int, ...]
    supervisor: tuple[int, ...]
    remark: str = ""

    @property
    def shared(self) -> bool:
        """Whether the supervisor runs on a measured core."""
        return not set(self.measured).isdisjoint(self.supervisor)


def place(threads: int) -> Placement:
    """Returns the cores for so many threads: as far as they go one hardware thread of each core.

    Raises:
        UnavailableError: this process is granted fewer, by its affinity mask or by the quota of its control group.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise UnavailableError(f"{threads} threads need as many cores, and this process may use {len(allowed)}")
    if threads > (granted := available_cpus()):
        raise UnavailableError(f"{threads} threads would be throttled: the control group grants the time of {granted}")
    cores = _by_core(allowed)
    turns = [core[turn] for turn in range(max(map(len, cores))) for core in cores if turn < len(core)]
    measured = turns[:threads]
    doubled = [core for core in cores if len(set(core) & set(measured)) > 1]
    remark = "; ".join(f"{' and '.join(map(str, sorted(core)))} are hardware threads of one core" for core in doubled)
    siblings = {cpu for core in cores if set(core) & set(measured) for cpu in core}
    others = [cpu for cpu in allowed if cpu not in siblings] or [cpu for cpu in allowed if cpu not in measured] or allowed
    return Placement(tuple(measured), tuple(others), f"CPUs {remark}" if remark else "")


def _by_core(allowed: Sequence[int]) -> list[list[int]]:
    """Returns the CPUs in groups, each the hardware threads of one core."""
    found: dict[str, list[int]] = {}
    for cpu in allowed:
        try:
            core = (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        found.setdefault(core, []).append(cpu)
    return list(found.values())
