"""The executor: everything that does not depend on data is done once, in ``create``; a run checks its inputs and makes one native call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rml_exec import _native
from rml_exec.errors import InputError
from rml_exec.ir.format import file_stamps
from rml_exec.ir.golden import graph_hashes
from rml_exec.ir.graph import Graph
from rml_exec.loading import check_graph, load_graph
from rml_exec.passes import lower_graph
from rml_exec.plan.execution_plan import ExecutionPlan
from rml_exec.plan.memory import MemoryPlan
from rml_exec.runtime.binding import DimSolver, Signature, bind_inputs, bind_outputs
from rml_exec.runtime.compilation import Compiled, Step, compile_graph
from rml_exec.runtime.control import Program
from rml_exec.runtime.intermediates import with_intermediates
from rml_exec.runtime.isa import check_isa
from rml_exec.runtime.plan_cache import PlanCache
from rml_exec.runtime.profile import Profile, StepTime
from rml_exec.runtime.threads import thread_count
from rml_exec.types import TensorType

__all__ = ["NUMERICS", "Executor"]

NUMERICS = ("fast", "exact")

PLAN_CACHE_BYTES = 3 << 20
"""Most bytes that the plans of further input shapes and of ``want`` may take; packed weights are not among them, all plans share those."""

Inputs = Mapping[str, Any] | Sequence[Any]
Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a run at one binding of the dims needs."""

    program: Program
    arena_bytes: int
    inputs: Signature
    outputs: Signature
    steps: tuple[Step, ...]
    step_of: tuple[int, ...]
    plan_bytes: int


class Executor:
    """Runs one graph. Make it with :meth:`create`; any number of threads may run it at once, each in its own arena, without the GIL.

    Of a graph with symbolic dims it makes one plan per binding, the one of the hints at creation and further ones when inputs of another shape
    come; the packed weights are shared by all of them.

    An executor can be pickled, by the path of its graph and the hashes of its files, or with the graph if that did not come from a file.
    """

    def __init__(self, graph: Graph, threads: int, fuse: bool, numerics: str) -> None:
        """Takes checked arguments; :meth:`create` is the way to make one."""
        self._graph, self._threads, self._fuse, self._numerics = graph, threads, fuse, numerics
        self._pool = _native.BufferPool()
        self._lowered = lower_graph(graph, fuse=fuse)
        self._compiled = compile_graph(self._lowered, threads=threads, numerics=numerics)
        self._primary = _bound(self._lowered, self._compiled)
        self._arena_bytes = self._primary.arena_bytes
        self._solver = DimSolver(graph) if graph.dims else None
        self._cache: PlanCache[_Bound] = PlanCache(PLAN_CACHE_BYTES, lambda bound: bound.plan_bytes)

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
        if not isinstance(graph, Graph):
            raise InputError.of("Executor.create", "takes a Graph", type(graph).__name__, hint="Executor.create(load_graph(path))")
        if numerics not in NUMERICS:
            raise InputError.of("Executor.create", f"numerics must be one of {', '.join(NUMERICS)}", repr(numerics))
        check_isa()
        used = thread_count(threads)
        check_graph(graph)
        return cls(graph, used, fuse, numerics)

    @property
    def graph(self) -> Graph:
        """The graph as it was given."""
        return self._graph

    @property
    def lowered(self) -> Graph:
        """What the passes made of the graph: the nodes that the plan and the steps stand for."""
        return self._lowered

    @property
    def input_types(self) -> Mapping[str, TensorType]:
        """Input name -> type, in order; of the hint binding for a graph with dims."""
        return self._primary.inputs.types

    @property
    def output_types(self) -> Mapping[str, TensorType]:
        """Output name -> type, in order; of the hint binding for a graph with dims."""
        return self._primary.outputs.types

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return self._primary.outputs.names

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
        return self._primary.steps

    @property
    def plan(self) -> ExecutionPlan:
        """The lifetime plan that the arena was computed from; of the hint binding for a graph with dims."""
        return self._compiled.plan

    @property
    def memory(self) -> MemoryPlan:
        """Where every buffer lies in the arena; of the hint binding for a graph with dims."""
        return self._compiled.memory

    @property
    def program(self) -> Program:
        """The program of a run, for tools that bring their own arena; of the hint binding for a graph with dims."""
        return self._primary.program

    @property
    def pool(self) -> _native.BufferPool:
        """The pool that arenas come from, with its counters: ``hits``, ``misses``, ``bytes_held``, ``bytes_in_use``."""
        return self._pool

    def run(self, inputs: Inputs, out: Outputs | None = None, *, want: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Returns the outputs by name, as C-contiguous arrays that the caller owns.

        Args:
            inputs: by name or in order. NumPy arrays, or anything with the buffer protocol or ``__dlpack__``; without a copy when contiguous.
            out: arrays to write the outputs into, by name: all or some of them; they must be writable, C-contiguous and of the output's type.
            want: names of values inside the graph to return as well. Fusions stay as they are.

        Raises:
            InputError: an input or output array that is missing, extra, or of the wrong dtype or shape, all problems listed; a wanted value that
                the graph lacks or that no step produces any more, with the name of the step that swallowed it.
            KernelError: a step failed. The executor stays usable.
        """
        if isinstance(want, str):
            raise InputError.of("run", "want takes a list of names", repr(want))
        bound = self._primary if self._solver is None and not want else self._bound_for(inputs, tuple(want))
        buffers = bind_inputs(bound.inputs, inputs)
        results = bind_outputs(bound.outputs, out, buffers)
        bound.program.run(self._arena(bound), buffers, list(results.values()), self._threads)
        return results

    def run_profiled(self, inputs: Inputs, out: Outputs | None = None) -> tuple[dict[str, np.ndarray], Profile]:
        """Returns the outputs of a run, equal to those of :meth:`run`, and the wall time of each step."""
        start = time.perf_counter_ns()
        bound = self._primary if self._solver is None else self._bound_for(inputs, ())
        buffers = bind_inputs(bound.inputs, inputs)
        results = bind_outputs(bound.outputs, out, buffers)
        times = np.zeros(len(bound.step_of), np.int64)
        bound.program.run_profiled(self._arena(bound), buffers, list(results.values()), self._threads, times)
        wall_ns = time.perf_counter_ns() - start
        per_step = [0] * len(bound.steps)
        for index, elapsed in zip(bound.step_of, times.tolist(), strict=True):
            per_step[index] += elapsed
        timed = (StepTime(step.label, len(step.covers), ns) for step, ns in zip(bound.steps, per_step, strict=True))
        return results, Profile(tuple(timed), wall_ns)

    def trim(self) -> None:
        """Gives the memory of idle arenas back to the system; the next run takes it anew."""
        self._pool.trim()

    def _arena(self, bound: _Bound) -> _native.Buffer:
        """Returns an arena. All bindings take the size of the largest one so far, so that a change of shape neither allocates nor grows the pool."""
        size = max(self._arena_bytes, bound.arena_bytes)  # a local: another thread may set the attribute meanwhile
        if size > self._arena_bytes:
            self._arena_bytes = size
            self._pool.trim()
        return self._pool.take(size)

    def _bound_for(self, inputs: Inputs, want: tuple[str, ...]) -> _Bound:
        """Returns the plan for the shapes of these inputs and these intermediates, made if it is not there."""
        dims = self._solver.solve(inputs) if self._solver is not None else ()
        return self._cache.get((dims, want), lambda: self._bind(dims, want))

    def _bind(self, dims: tuple[int, ...], want: tuple[str, ...]) -> _Bound:
        graph, lowered = self._graph, self._lowered
        if self._solver is not None:
            graph = graph.bind(**dict(zip(self._solver.dims, dims, strict=True)))
            check_graph(graph)
            lowered = lower_graph(graph, fuse=self._fuse)
        if want:
            lowered = with_intermediates(lowered, want, graph)
        return _bound(lowered, compile_graph(lowered, threads=self._threads, numerics=self._numerics))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path and hashes of a graph whose files are still those it was loaded from, else the graph itself; and the options."""
        options = {"threads": self._threads, "fuse": self._fuse, "numerics": self._numerics}
        path, stamp = self._graph.source_path, self._graph.source_stamp
        try:
            unchanged = path is not None and stamp is not None and file_stamps(path) == stamp
        except OSError:
            unchanged = False
        if path is not None and unchanged:
            return _restore, (path, graph_hashes(path), options)
        return _restore, (self._graph, {}, options)


def _bound(graph: Graph, compiled: Compiled) -> _Bound:
    types = graph.types()
    return _Bound(
        compiled.program,
        compiled.memory.arena_bytes,
        Signature({value.name: value.type for value in graph.inputs}),
        Signature({output.name: types[output.value] for output in graph.outputs}),
        compiled.steps,
        compiled.step_of,
        compiled.plan_bytes,
    )


def _restore(source: str | Graph, hashes: Mapping[str, str], options: Mapping[str, Any]) -> Executor:
    """Makes the executor that a pickle describes."""
    if isinstance(source, str):
        for key, found in graph_hashes(source).items():
            if hashes[key] != found:
                raise InputError.of(
                    source, f"must be the model that was pickled: its {key} must be {hashes[key][:12]}...", f"{found[:12]}..."
                )
        source = load_graph(source)
    return Executor.create(source, **options)
