"""Who runs the rows of the kernel benchmark: our kernels by instruction set, and other libraries; each in a process of its own.

An instruction set is chosen once per process, and thread pools of two libraries in one process disturb each other. All processes live from
beginning to end and take turns.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

import numpy as np

from bench.kernel_cases import Case, Work, all_cases, work_of
from bench.kernel_limits import LEVELS, Limits, seconds_per_call
from bench.kernel_peers import KERNEL_SOURCES, PREPARE
from rml_exec import KernelError, _native
from rml_exec.passes import lower_graph
from rml_exec.runtime.compilation import compile_graph

__all__ = ["PEERS", "ArmProcess", "Block", "installed_peers"]

PEERS = ("numpy", "torch", "onnxruntime", "hand")
"""Libraries, and a loop in C. They run rows of one thread, on the widest instruction set they know."""

_PAGE, _SKEW = 4096, 1088

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Block:
    """What one block of calls found.

    Attributes:
        seconds: of the median call.
        peak: FLOP/s that the cores reached next to it.
        bandwidth: bytes per second from a working set as large as the call's, next to it.
        native: kernels that a call runs, each once.
        work: what a call costs at least.
    """

    seconds: float
    peak: float
    bandwidth: float
    native: str
    work: Work


class Arm(Protocol):
    """One who runs rows, in the process where it does."""

    def block(self, case: Case, threads: int, seconds: float) -> Block | float | None:
        """Returns a block of about so many seconds, its seconds alone for a peer, or None for a row that it does not run."""


class _Rml:
    """Our kernels, by the graph that the executor would run."""

    def __init__(self) -> None:
        self._limits = Limits(_native.current_isa())
        self._pool = _native.BufferPool()
        self._skew = 0
        self._calls: dict[tuple[str, int], tuple[Callable[[], object], str, Work]] = {}

    def block(self, case: Case, threads: int, seconds: float) -> Block:
        """Returns a block, with the limits measured right before it."""
        key = (case.name, threads)
        if key not in self._calls:
            self._calls[key] = self._prepared(case, threads)
        call, native, work = self._calls[key]
        peak = self._limits.peak(threads)
        bandwidth = self._limits.bandwidth(work.read + work.written, threads, copy=work.copies)
        return Block(seconds_per_call(call, threads, seconds), peak, bandwidth, native, work)

    def levels(self, threads: int) -> dict[str, float]:
        """Returns the peak and the bandwidths of reading, by level of the memory."""
        own = {"L1": threads, "L2": threads}  # caches that every core has for itself
        found = {level: self._limits.bandwidth(nbytes * own.get(level, 1), threads) for level, nbytes in LEVELS.items()}
        return {"peak": self._limits.peak(threads), **found}

    def _prepared(self, case: Case, threads: int) -> tuple[Callable[[], object], str, Work]:
        graph = case.graph()
        types = graph.types()
        compiled = compile_graph(lower_graph(graph), threads=threads, numerics=case.numerics)
        inputs = [self._aligned(data) for data in case.inputs(graph)]
        outputs = [self._aligned(np.zeros(types[o.value].shape, types[o.value].dtype.numpy)) for o in graph.outputs]
        arena, program = self._pool.take(compiled.memory.arena_bytes), compiled.program
        native = dict.fromkeys(kernel for step in compiled.steps for kernel in step.kernel.split(","))
        return lambda: program.run(arena, inputs, outputs, threads), ",".join(native), work_of(graph)

    def _aligned(self, data: np.ndarray) -> np.ndarray:
        """Returns a copy at the start of a cache line, as values lie in the arena of an executor: no two at a distance of whole pages."""
        self._skew = (self._skew + _SKEW) % _PAGE
        block = np.frombuffer(self._pool.take(data.nbytes + _PAGE), np.uint8)  # type: ignore[call-overload]
        array: np.ndarray = block[self._skew : self._skew + data.nbytes].view(data.dtype).reshape(data.shape)
        array[...] = data
        return array


class _Peer:
    """Somebody else: what runs a graph is in :mod:`bench.kernel_peers`."""

    def __init__(self, name: str) -> None:
        self._prepare = PREPARE[name]
        self._calls: dict[str, Callable[[], object] | None] = {}

    def block(self, case: Case, threads: int, seconds: float) -> float | None:
        """Returns the seconds of the median call."""
        if case.name not in self._calls:
            graph = case.graph()
            self._calls[case.name] = self._prepare(graph, case.inputs(graph))
        call = self._calls[case.name]
        return None if call is None else seconds_per_call(call, threads, seconds)


_arm: Arm
_cases: dict[str, Case]


def _start(name: str) -> None:
    global _arm, _cases
    _arm = _Peer(name) if name in PEERS else _Rml()
    _cases = {case.name: case for case in all_cases()}


def _block(case: str, threads: int, seconds: float, cores: Sequence[int]) -> Block | float | None:
    os.sched_setaffinity(0, cores[:threads])
    return _arm.block(_cases[case], threads, seconds)


def _levels(threads: int, cores: Sequence[int]) -> dict[str, float]:
    os.sched_setaffinity(0, cores[:threads])
    assert isinstance(_arm, _Rml)
    return _arm.levels(threads)


class ArmProcess:
    """An arm in its own process, pinned to as many cores as a block has threads.

    Args:
        name: a name of :data:`PEERS`, or an instruction set.
        cores: the cores to choose from.
    """

    def __init__(self, name: str, cores: Sequence[int]) -> None:
        self.name, self._cores = name, tuple(cores)
        changed = _ONE_THREAD if name in PEERS else {"RML_ISA": name}
        before = dict(os.environ)
        os.environ.update(changed)  # a process that is spawned inherits it
        try:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _start, (name,))
            self.pid = self._pool.submit(os.getpid).result()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def block(self, case: Case, threads: int, seconds: float) -> Block | float | None:
        """Returns what :meth:`Arm.block` does.

        Raises:
            KernelError: the process died at this row.
        """
        try:
            return self._pool.submit(_block, case.name, threads, seconds, self._cores).result()
        except BrokenProcessPool:
            raise KernelError.of(f"{self.name}, row '{case.name}'", "must not end its process") from None

    def levels(self, threads: int) -> dict[str, float]:
        """Returns the peak and the bandwidths of an instruction set: "peak" in FLOP/s, the keys of ``LEVELS`` in bytes per second."""
        return self._pool.submit(_levels, threads, self._cores).result()

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()


def installed_peers() -> list[str]:
    """Returns those of :data:`PEERS` that are there. ONNX Runtime needs onnx as well, the loop a compiler and the sources of the kernels."""

    def there(module: str) -> bool:
        return importlib.util.find_spec(module) is not None

    compiles = shutil.which("cc") is not None and (KERNEL_SOURCES / "vmath.h").exists()
    found = {"numpy": True, "torch": there("torch"), "onnxruntime": there("onnxruntime") and there("onnx"), "hand": compiles}
    return [peer for peer in PEERS if found[peer]]
