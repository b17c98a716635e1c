"""The canary: a fixed piece of work between blocks, which takes longer than usual when something else has the measured cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

__all__ = ["Canary"]

_STEPS = 50_000
_BYTES = 1 << 20


class Canary:
    """Some arithmetic and a copy of a megabyte, a few milliseconds each core: as long as a turn of another process. NumPy could start threads.

    It runs in the supervisor while every arm is stopped, on one measured core after the other, and nothing that an arm leaves behind in its
    own process can slow it.

    Args:
        cores: the measured cores.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._source, self._target = bytearray(_BYTES), bytearray(_BYTES)
        self.measure()  # the first one is slow by itself: memory is touched, the interpreter specialises the loop

    def measure(self) -> int:
        """Returns the time in nanoseconds on the core that took longest."""
        home = os.sched_getaffinity(0)
        try:
            return max(self._on(core) for core in self._cores)
        finally:
            os.sched_setaffinity(0, home)

    def _on(self, core: int) -> int:
        os.sched_setaffinity(0, {core})
        start = time.perf_counter_ns()
        total = 0
        for step in range(_STEPS):
            total += step * step & 7
        self._target[:] = self._source
        return time.perf_counter_ns() - start
