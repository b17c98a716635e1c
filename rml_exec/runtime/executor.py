"""The executor: everything that does not depend on data is done once, in ``create``; a run checks its inputs and makes one native call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec import _native
from rml_exec.errors import InputError
from rml_exec.ir.graph import Graph
from rml_exec.loading import check_graph
from rml_exec.passes import lower_graph
from rml_exec.plan.execution_plan import ExecutionPlan
from rml_exec.plan.memory import MemoryPlan
from rml_exec.runtime.binding import bind_inputs, bind_outputs
from rml_exec.runtime.compilation import Compiled, Step, compile_graph
from rml_exec.runtime.isa import check_isa
from rml_exec.runtime.profile import Profile, StepTime
from rml_exec.runtime.threads import thread_count
from rml_exec.types import TensorType

__all__ = ["Executor"]

NUMERICS = ("fast", "exact")


class Executor:
    """Runs one graph. Make it with :meth:`create`; any number of threads may run it at once, each in its own arena, without the GIL."""

    def __init__(self, graph: Graph, compiled: Compiled, threads: int, numerics: str) -> None:
        """Takes what :meth:`create` made; not meant to be called directly."""
        self._graph, self._compiled, self._threads, self._numerics = graph, compiled, threads, numerics
        self._program = compiled.program
        self._arena_bytes = compiled.memory.arena_bytes
        self._inputs = {value.name: value.type for value in graph.inputs}
        types = graph.types()
        self._outputs = {output.name: types[output.value] for output in graph.outputs}
        self._pool = _native.BufferPool()

    @classmethod
    def create(cls, graph: Graph, *, threads: int | None = None, fuse: bool = True, numerics: str = "fast") -> Executor:
        """Returns an executor: verifies the graph, fuses, lowers, packs constant weights, plans memory.

        Args:
            graph: the model.
            threads: how many to use; None means ``RML_NUM_THREADS``, else all that the process may use. Never more than those.
            fuse: False turns every fusion off, for finding out what one does.
            numerics: "fast", or "exact": IEEE arithmetic with one order of summation on every machine with FMA.

        Raises:
            RmlError: a graph that does not verify (VerifyError, TypeInferenceError), options out of range (InputError), an ``RML_ISA`` that this
                machine lacks (IsaError).
        """
        if numerics not in NUMERICS:
            raise InputError.of("Executor.create", f"numerics must be one of {', '.join(NUMERICS)}", repr(numerics))
        check_isa()
        used = thread_count(threads)
        check_graph(graph)
        lowered = lower_graph(graph, fuse=fuse)
        return cls(graph, compile_graph(lowered, threads=used, numerics=numerics), used, numerics)

    @property
    def graph(self) -> Graph:
        """The graph as it was given."""
        return self._graph

    @property
    def input_types(self) -> Mapping[str, TensorType]:
        """Input name -> type, in order."""
        return self._inputs

    @property
    def output_types(self) -> Mapping[str, TensorType]:
        """Output name -> type, in order."""
        return self._outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(self._outputs)

    @property
    def threads(self) -> int:
        """Threads that a run uses when no other run has them."""
        return self._threads

    @property
    def numerics(self) -> str:
        """The numerics it was created with: "fast" or "exact"."""
        return self._numerics

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of a run, in order; ``step.native`` is False for those that NumPy computes."""
        return self._compiled.steps

    @property
    def plan(self) -> ExecutionPlan:
        """The lifetime plan that the arena was computed from."""
        return self._compiled.plan

    @property
    def memory(self) -> MemoryPlan:
        """Where every buffer lies in the arena."""
        return self._compiled.memory

    @property
    def pool(self) -> _native.BufferPool:
        """The pool that arenas come from, with its counters: ``hits``, ``misses``, ``bytes_held``, ``bytes_in_use``."""
        return self._pool

    def run(self, inputs: Mapping[str, Any] | Sequence[Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs by name, as C-contiguous arrays that the caller owns.

        Args:
            inputs: by name or in order. NumPy arrays, or anything with the buffer protocol or ``__dlpack__``; without a copy when contiguous.
            out: arrays to write the outputs into, by name: all or some of them; they must be writable, C-contiguous and of the output's type.

        Raises:
            InputError: an input or output array that is missing, extra, or of the wrong dtype or shape; all problems are listed.
            KernelError: a step failed. The executor stays usable.
        """
        buffers = bind_inputs(self._inputs, inputs)
        results = bind_outputs(self._outputs, out, buffers)
        self._program.run(self._pool.take(self._arena_bytes), buffers, list(results.values()), self._threads)
        return results

    def run_profiled(
        self, inputs: Mapping[str, Any] | Sequence[Any], out: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, np.ndarray], Profile]:
        """Returns the outputs of a run, equal to those of :meth:`run`, and the wall time of each step."""
        start = time.perf_counter_ns()
        buffers = bind_inputs(self._inputs, inputs)
        results = bind_outputs(self._outputs, out, buffers)
        times = np.zeros(len(self._compiled.step_of), np.int64)
        self._program.run_profiled(self._pool.take(self._arena_bytes), buffers, list(results.values()), self._threads, times)
        wall_ns = time.perf_counter_ns() - start
        per_step = [0] * len(self.steps)
        for index, elapsed in zip(self._compiled.step_of, times.tolist(), strict=True):
            per_step[index] += elapsed
        timed = (StepTime(step.label, len(step.covers), ns) for step, ns in zip(self.steps, per_step, strict=True))
        return results, Profile(tuple(timed), wall_ns)
