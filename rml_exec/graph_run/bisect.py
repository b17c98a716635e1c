"""The first wrong step of a run: ``rml-graph-run MODEL --bisect``.

Every step of the executor, fused as it is, is looked at in two ways against float64. Its *propagated* error is that of its value in a run of
the whole program: what it made wrong, and all that those before it did. Its *local* error is that of the step alone, run on the reference's
values rounded to their element types: what it makes wrong itself. The culprit is the first step whose local error is more than a few times
what rounding can explain (:mod:`rml_exec.graph_run.rounding`), or where the passes, not a kernel, made something else of the graph, or whose value
in the run has other bits than the step alone makes of the run's own values: something overwrote memory that it reads or writes.

Steps are taken in order, and values forgotten with their last reader, so memory holds a few tensors, not all. The run of the whole program,
its steps and memory plan untouched, is made again and again, each time for as many of its values as fit into ``TAP_BYTES``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rml_exec.graph_run.rounding import Rounded, expected_rounding
from rml_exec.graph_run.single_step import SingleStep, narrow, run_compiled, single_steps, widen
from rml_exec.ir.graph import Function, Node, Output, Value
from rml_exec.passes.choose_layout import LAYOUT_OF, TO_NHWC
from rml_exec.runtime.compilation import compile_graph
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.reference import ReferenceFunction
from rml_exec.types import DType, TensorType

__all__ = ["FACTOR", "TAP_BYTES", "Finding", "StepError", "bisect_steps", "first_wrong"]

FACTOR = 8.0
"""A step is wrong when its local error exceeds so many times the expected one, which is a typical error, not a bound."""

TAP_BYTES = 64 << 20
"""Most bytes of values that one run of the whole program is made for, unless a single step has more."""


@dataclass(frozen=True, slots=True)
class StepError:
    """What was found about one step.

    Attributes:
        step: its number among the steps.
        node: name of the lowered node.
        label: row of the profile that it belongs to.
        kernel: kernels it runs on.
        covers: nodes of the exported graph that it stands for.
        terms: length of its longest sum.
        local_error: largest absolute error of the step alone; inf where one side is NaN or infinite and the other is not.
        expected_error: what rounding explains at the element that is worst in relation to it.
        excess: largest local error of any element divided by the one expected there.
        rewrite_excess: the same for what the passes made of the graph: the lowered node in float64 against the exported graph in float64.
        differs_in_run: whether the step alone, on the values of the run, gives other bits than in the run.
        propagated_error: largest absolute error of the step's value in a run of the whole program.
        propagated_relative: that divided by the rms of the value.
    """

    step: int
    node: str
    label: str
    kernel: str
    covers: tuple[str, ...]
    terms: int
    local_error: float
    expected_error: float
    excess: float
    rewrite_excess: float
    differs_in_run: bool
    propagated_error: float
    propagated_relative: float

    def is_wrong(self, factor: float = FACTOR) -> bool:
        """True if rounding does not explain the step's own error, or if it comes out otherwise in the run."""
        return self.differs_in_run or max(self.excess, self.rewrite_excess) > factor

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields; a number that is not finite becomes null."""
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """A step's errors, and what shows them: the step, its inputs, its wanted and expected results."""

    error: StepError
    step: SingleStep
    inputs: dict[str, np.ndarray]
    wanted: list[Rounded]
    got: list[np.ndarray]


def first_wrong(executor: Executor, inputs: Mapping[str, np.ndarray], factor: float = FACTOR) -> Finding | None:
    """Returns the first step whose own error rounding does not explain; None if there is none."""
    return next((finding for finding in bisect_steps(executor, inputs) if finding.error.is_wrong(factor)), None)


def bisect_steps(executor: Executor, inputs: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Yields the errors of every step, in order.

    Args:
        executor: of a static graph; a graph with dims must be bound before.
        inputs: of the graph, by name, of exactly their types.

    Raises:
        KernelError: a value that an op refuses.
    """
    steps = list(single_steps(executor))
    truth = _Truth(executor, steps, inputs)
    taps = _Taps(executor, steps, inputs)
    flush = executor.numerics == "fast"
    for step in steps:
        exact = [truth.value(value.name) for value in step.graph.inputs]
        results, rewritten = truth.results(step, exact)
        rounded = {v.name: narrow(array, v.type, flush=flush) for v, array in zip(step.graph.inputs, exact, strict=True)}
        compiled = step.compile(threads=executor.threads, numerics=executor.numerics)
        kernel = compiled.steps[0].kernel
        operands = [widen(rounded[value.name], value.type.dtype) for value in step.graph.inputs]
        wanted = expected_rounding(step, operands, kernel)
        got = run_compiled(compiled, step.graph, rounded, executor.threads)
        tapped = taps.results(step)
        alone = run_compiled(compiled, step.graph, taps.operands(step), executor.threads)
        differs = not all(np.array_equal(_bits(mine), _bits(whole)) for mine, whole in zip(alone, tapped, strict=True))
        yield Finding(_errors(step, kernel, wanted, got, tapped, results, rewritten, differs), step, rounded, wanted, got)
        truth.done(step)
        taps.done(step)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _errors(
    step: SingleStep,
    kernel: str,
    wanted: Sequence[Rounded],
    got: Sequence[np.ndarray],
    tapped: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
    rewritten: Sequence[np.ndarray | None],
    differs: bool,
) -> StepError:
    """Returns the errors of a step; of several results, the worst."""
    local, expected, excess, rewrite, propagated, relative = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    types = [value.type for value in step.node.outputs]
    for type_, want, mine, whole, exact, lowered in zip(types, wanted, got, tapped, results, rewritten, strict=True):
        error, worst, at = excess_of(mine, want, type_)
        local = max(local, error)
        if worst > excess or not expected:
            expected, excess = at, max(excess, worst)
        if lowered is not None:
            rewrite = max(rewrite, _excess(np.asarray(_distance(lowered, exact)), want, type_).max(initial=0.0))
        distance = _distance(widen(whole, type_.dtype), _representable(exact, type_))
        propagated = max(propagated, float(distance.max(initial=0.0)))
        relative = max(relative, _relative(float(distance.max(initial=0.0)), exact))
    return StepError(
        step=step.index,
        node=step.node.name,
        label=step.step.label,
        kernel=kernel,
        covers=step.step.covers,
        terms=max((want.terms for want in wanted), default=1),
        local_error=float(local),
        expected_error=float(expected),
        excess=float(excess),
        rewrite_excess=float(rewrite),
        differs_in_run=differs,
        propagated_error=float(propagated),
        propagated_relative=float(relative),
    )


def excess_of(got: np.ndarray, want: Rounded, type_: TensorType) -> tuple[float, float, float]:
    """Returns the largest error, the largest ratio of error and expected error, and the expected error where that is."""
    distance = _distance(widen(got, type_.dtype), _representable(want.value, type_))
    if not distance.size:
        return 0.0, 0.0, 0.0
    ratio = _excess(distance, want, type_)
    worst = int(np.argmax(ratio))
    return float(distance.max()), float(ratio.ravel()[worst]), float(want.error.ravel()[worst])


def _excess(distance: np.ndarray, want: Rounded, type_: TensorType) -> np.ndarray:
    if not type_.dtype.is_float:
        return np.where((distance == 0) | (want.error != 0), 0.0, np.inf)
    allowed = want.error + _SMALLEST.get(type_.dtype, 2.0**-126) * (1 + want.terms)
    with np.errstate(invalid="ignore"):
        return np.where(distance == 0, 0.0, np.where(np.isinf(allowed), 0.0, distance / allowed))


_SMALLEST = {DType.F16: 2.0**-24, DType.F64: 2.0**-1022}
"""What flushing denormals may cost, each term of a sum; f16 is not flushed but rounded to one. Others have the exponents of f32."""


def _representable(wide: np.ndarray, type_: TensorType) -> np.ndarray:
    """Returns a wide value with infinity where its type overflows."""
    if not type_.dtype.is_float or type_.dtype is DType.F64:
        return wide
    narrowed = widen(narrow(wide, type_, flush=False), type_.dtype)
    return np.where(np.isfinite(narrowed), wide, narrowed)


def _distance(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Returns the absolute differences: 0 between equal infinities and between NaNs, inf where only one side is finite."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        difference = np.where(same, 0.0, np.abs(got - want))
    return np.where(np.isnan(difference), np.inf, difference)


def _relative(error: float, exact: np.ndarray) -> float:
    finite = exact[np.isfinite(exact)].astype(np.float64)
    rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return error / rms if rms else (math.inf if error else 0.0)


class _Truth:
    """The exported graph in float64, node by node, as far as the steps need it.

    A value that only the lowered graph has is what its step makes of exact operands.
    """

    def __init__(self, executor: Executor, steps: Sequence[SingleStep], inputs: Mapping[str, np.ndarray]) -> None:
        self._graph = executor.graph
        self._types = self._graph.types()
        self._constants = {constant.name: constant for constant in self._graph.constants}
        self._exported = {node.name: node for node in self._graph.nodes}
        self._twins = {
            value.name: twin for node in executor.lowered.nodes if (twin := node.metadata.get(LAYOUT_OF)) for value in node.outputs
        }
        self._left = Counter(name for node in self._graph.nodes for name in set(node.reads()))
        for step in steps:
            self._left.update(self._name(value.name) for value in step.graph.inputs)
            self._left.update(self._name(value.name) for value in step.node.outputs)
        self._known = {value.name: widen(np.asarray(inputs[value.name]), value.type.dtype) for value in self._graph.inputs}
        self._nodes = iter(self._graph.nodes)

    def _name(self, name: str) -> str:
        """Returns the exported value that a lowered one is the NHWC form of, or the name itself."""
        return self._twins.get(name, name)

    def value(self, name: str) -> np.ndarray:
        """Returns a value of the lowered graph, wide."""
        source = self._name(name)
        while source not in self._known:
            self._advance()
        found = self._known[source]
        return np.ascontiguousarray(found.transpose(TO_NHWC)) if source != name else found

    def results(self, step: SingleStep, exact: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Returns what a step should make of exact operands, and what its lowered node makes of them in float64; None where the passes left
        the node as it was.
        """
        names = [value.name for value in step.node.outputs]
        if step.node == self._exported.get(step.node.name):
            return [self.value(name) for name in names], [None] * len(names)
        lowered = step.reference(exact, wide=True)
        made: list[np.ndarray] = []
        for name, array in zip(names, lowered, strict=True):
            if self._name(name) not in self._types:
                self._known[name] = array
            made.append(self.value(name))
        return made, list(lowered)

    def done(self, step: SingleStep) -> None:
        """Forgets the values that no later step needs."""
        for name in (*(value.name for value in step.graph.inputs), *(value.name for value in step.node.outputs)):
            self._release(self._name(name))

    def _release(self, name: str) -> None:
        self._left[name] -= 1
        if self._left[name] <= 0:
            self._known.pop(name, None)

    def _advance(self) -> None:
        """Runs the next node of the exported graph."""
        node = next(self._nodes)
        read = dict.fromkeys(node.reads())
        inputs = tuple(Value(name, self._types[name]) for name in read if name not in self._constants)
        outputs = tuple(Output(value.name, value.name) for value in node.outputs)
        body = Function(node.name, inputs, outputs, tuple(self._constants[name] for name in read if name in self._constants), (node,))
        run = ReferenceFunction(body, self._graph.functions, wide=True, where=f"{node.op} '{node.name}'")
        results = run(*(self._known[value.name] for value in inputs))
        self._known.update((out.name, array) for out, array in zip(node.outputs, results, strict=True) if self._left[out.name])
        for name in read:
            self._release(name)


class _Taps:
    """Values of the steps in a run of the whole program, those that are still to be read."""

    def __init__(self, executor: Executor, steps: Sequence[SingleStep], inputs: Mapping[str, np.ndarray]) -> None:
        self._executor, self._steps = executor, steps
        self._inputs = {value.name: np.asarray(inputs[value.name]) for value in executor.graph.inputs}
        self._left = Counter(value.name for step in steps for value in (*step.graph.inputs, *step.node.outputs))
        self._values = dict(self._inputs)
        self._nodes: dict[str, Node] = {}  # those whose results the run is made for
        self._compiled = compile_graph(executor.lowered, threads=executor.threads, numerics=executor.numerics, observer=self._keep)

    def results(self, step: SingleStep) -> list[np.ndarray]:
        """Returns the results of a step; steps must come in order."""
        if any(value.name not in self._values for value in step.node.outputs):
            self._run(self._steps[step.index :])
        return [self._values[value.name] for value in step.node.outputs]

    def operands(self, step: SingleStep) -> dict[str, np.ndarray]:
        """Returns the inputs of a step."""
        return {value.name: self._values[value.name] for value in step.graph.inputs}

    def done(self, step: SingleStep) -> None:
        """Forgets the values that no later step reads."""
        for value in (*step.graph.inputs, *step.node.outputs):
            self._left[value.name] -= 1
            if not self._left[value.name]:
                self._values.pop(value.name, None)

    def _keep(self, node: str, results: Sequence[np.ndarray]) -> None:
        if node in self._nodes:
            self._values.update((value.name, array.copy()) for value, array in zip(self._nodes[node].outputs, results, strict=True))

    def _run(self, steps: Sequence[SingleStep]) -> None:
        """Runs for the results of the first of the steps, as many as fit into :data:`TAP_BYTES`, at least of one."""
        used = 0
        self._nodes = {}
        for step in steps:
            used += sum(value.type.nbytes for value in step.node.outputs)
            if self._nodes and used > TAP_BYTES:
                break
            self._nodes[step.node.name] = step.node
        run_compiled(self._compiled, self._executor.lowered, self._inputs, self._executor.threads)
