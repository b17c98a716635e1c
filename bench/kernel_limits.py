"""What a core can do at most, measured: multiply-adds per second, and bytes per second from a working set of a given size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from rml_exec import _native

__all__ = ["LEVELS", "Limits", "seconds_per_call"]

LEVELS = {"L1": 16 << 10, "L2": 512 << 10, "L3": 8 << 20, "DRAM": 192 << 20}
"""Level of the memory -> bytes of a working set that lies in it on any machine of the last years."""

_PEAK_SECONDS, _PEAKS = 3e-4, 9
_BANDWIDTH_SECONDS = 4e-3
_SMALL, _REPEATS = 128 << 10, 64
"""Small working sets are read many times within one call, or the call would be measured."""
_SAMPLE_NS = 50_000
_LINE = 16
"""Floats of a cache line: stores that cross lines take twice as long."""
_APART = 528
"""Floats between source and target of a copy: at a distance of whole pages a core mistakes what it loads for what it has just stored."""


class Limits:
    """Measures what the kernels are held against, with as many threads as they have.

    The reader is the sum over rows of ``reduce``, the copier the step ``copy``: on machines known so far they move as much as anything does.

    Args:
        isa: the instruction set.
    """

    def __init__(self, isa: str) -> None:
        self._isa = isa
        self._memory = _native.BufferPool().take(LEVELS["DRAM"] + 4 * _APART)
        self._floats = np.asarray(memoryview(self._memory).cast("f"))
        self._floats[:] = 1.0
        self._result = np.empty(256, np.float32)
        self._programs: dict[tuple[int, int, bool], _native.Program] = {}

    def peak(self, threads: int) -> float:
        """Returns FLOP/s of so many cores: those of one, the median of short runs, so that a moment of other load does not count."""
        return threads * statistics.median(_native.peak_flops(_PEAK_SECONDS, isa=self._isa) for _ in range(_PEAKS))

    def bandwidth(self, nbytes: int, threads: int, *, copy: bool = False) -> float:
        """Returns the bytes per second that move when a working set of so many bytes is read again and again.

        Args:
            nbytes: size of the working set; at most that of ``LEVELS["DRAM"]`` is used.
            threads: how many threads share it.
            copy: one half is copied to the other instead, and both count.
        """
        if threads > 1 and nbytes // threads <= LEVELS["L2"]:  # in caches of their own; together they would measure the barrier
            return threads * self.bandwidth(nbytes // threads, 1, copy=copy)
        count = max(min(nbytes, LEVELS["DRAM"]) // 4, 64 * threads)
        share = count // ((2 if copy else 1) * threads) // _LINE * _LINE
        repeats = _REPEATS if 4 * count <= _SMALL else 1
        program = self._program(share, threads, copy, repeats)
        source, target = self._floats[: threads * share], self._floats[threads * share + _APART :][: threads * share]
        results = (target,) if copy else (self._result,)
        seconds = seconds_per_call(lambda: program.run(bytearray(), (source,), results, threads), threads, _BANDWIDTH_SECONDS)
        return repeats * 4 * threads * share * (2 if copy else 1) / seconds

    def _program(self, share: int, threads: int, copy: bool, repeats: int) -> _native.Program:
        key = (share, threads, copy)
        if key not in self._programs:
            params = [4, 2, threads, share, share, 1, share, 1] if copy else [threads, share, 1, 0, 0]
            kind = _native.step_kinds()["copy" if copy else "reduce"]
            step = (kind, np.array(params, np.int64), np.array([2, 0, 0, 1, 0, 0], np.int64), None)
            self._programs[key] = _native.Program([step] * repeats, [], 1, 1, 0, isa=self._isa)
        return self._programs[key]


def seconds_per_call(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Returns the median time of a call, from calls that fill about so many seconds after one that does not count.

    Calls of one thread are timed by the thread's own CPU clock, so the turns of other processes do not count; calls of several threads by the
    wall clock. Short calls are timed several at once: reading the clock takes as long as the shortest ones.
    """
    clock_ns = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    call()
    begin = clock_ns()
    call()
    together = max(1, _SAMPLE_NS // max(clock_ns() - begin, 1))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = clock_ns()
        for _ in range(together):
            call()
        times.append((clock_ns() - begin) / together)
    return statistics.median(times) * 1e-9
