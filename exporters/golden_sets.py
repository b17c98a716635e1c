"""Golden inputs and outputs, and the search for the first node that goes wrong when the outputs do not agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from exporters.errors import ExportError, describe
from exporters.lowering import golden_inputs
from rml_exec.errors import RmlError
from rml_exec.ir.graph import Graph
from rml_exec.ops import get_op
from rml_exec.runtime.reference import run_reference
from rml_exec.types import TensorType

__all__ = [
    "GoldenSet",
    "Intermediates",
    "Tolerances",
    "derive_tolerances",
    "draw_inputs",
    "first_difference",
    "from_floats",
    "golden_sets",
    "input_sets",
    "remarks_on",
    "undecided_elements",
]

RTOL = 2e-5
ATOL_RMS = 2e-5
ERROR_FACTOR = 4.0
"""How far a golden's tolerance stretches beyond the framework's own error against float64."""

MAX_RMS_ERROR = 1e-4
MAX_ERROR = 1e-3
"""Beyond these, relative to the output's rms, framework and reference compute different things: rounding stays far below."""

F16_FACTOR = 100.0
"""How much more a float16 output may differ."""

MAX_CONTRADICTED = 0.05
"""Share of the elements of an integer or bool output that may differ from both references."""

Intermediates = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""``intermediates(inputs)`` -> value name in the graph -> what the framework has there. It may know any part of the values."""


@dataclass(frozen=True, slots=True, eq=False)
class GoldenSet:
    """Inputs and what the framework computed from them, by interface name.

    Attributes:
        inputs: input name -> array.
        outputs: output name -> array.
        seed: seed that the inputs were drawn with.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    seed: int


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How close an executor must come to a framework's output, and how close the framework itself came to float64."""

    rtol: float
    atol: float
    rms_error: float
    relative_rms_error: float


def input_sets(
    examples: Mapping[str, np.ndarray], *, goldens: int, seed: int, others: Sequence[Mapping[str, Sequence[int]]] = ()
) -> list[tuple[int, dict[str, np.ndarray]]]:
    """Returns (seed, inputs) of every golden set: first the examples themselves, then sets drawn like them.

    Args:
        examples: the example inputs by interface name.
        goldens: number of sets of the examples' shapes, at least 1.
        seed: seed of the first set; the others have the numbers after it.
        others: shapes by name, each for one set more: those of a symbolic graph at other sizes.

    Raises:
        ExportError: less than one set.
    """
    if goldens < 1:
        raise ExportError.of("export", "there must be at least one golden set", goldens)
    shapes = [*({} for _ in range(goldens - 1)), *others]
    return [(seed, golden_inputs(examples, seed)), *((seed + k, draw_inputs(examples, seed + k, s)) for k, s in enumerate(shapes, 1))]


def golden_sets(
    framework: str, drawn: Iterable[tuple[int, Mapping[str, np.ndarray]]], run: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
) -> list[GoldenSet]:
    """Returns the golden sets of inputs as :func:`input_sets` gives them.

    Args:
        framework: what to call the framework in messages.
        drawn: (seed, inputs) of every set.
        run: what the framework computes.

    Raises:
        ExportError: the model raises on these inputs.
    """
    sets = []
    for seed, inputs in drawn:
        try:
            outputs = run(inputs)
        except RmlError:
            raise
        except Exception as error:  # whatever the model or the framework raises
            types = {name: TensorType.of(array) for name, array in inputs.items()}
            rule = f"the model must run in {framework} on inputs drawn with seed {seed}"
            raise ExportError.of("golden", rule, describe(error), types) from error
        sets.append(GoldenSet(inputs, outputs, seed))
    return sets


def draw_inputs(examples: Mapping[str, np.ndarray], seed: int, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, np.ndarray]:
    """Returns random inputs within the domain of the examples, which a user chose.

    Floats are normal with the example's mean and deviation, within its range (N(0, 1) where all its elements are equal). Integers are
    uniform between its smallest and largest; bools are true as often as in it.

    Args:
        examples: the example inputs by interface name.
        seed: seed of the numbers.
        shapes: shapes by name, where they are not those of the examples.
    """
    generator = np.random.default_rng(seed)
    return {name: _draw(example, (shapes or {}).get(name, example.shape), generator) for name, example in examples.items()}


def _draw(example: np.ndarray, shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    shape = tuple(shape)
    if not example.size:
        return np.zeros(shape, example.dtype)
    low, high = example.min(), example.max()
    if example.dtype.kind in "iu":
        return generator.integers(low, high, shape, example.dtype, endpoint=True)
    if example.dtype.kind == "b":
        return generator.random(shape) < example.mean()
    if not low < high:  # all equal, or with NaN: it says nothing about its domain
        return generator.standard_normal(shape).astype(example.dtype)
    wide = example.astype(np.float64)
    return generator.normal(wide.mean(), wide.std(), shape).clip(low, high).astype(example.dtype)


def derive_tolerances(name: str, got: np.ndarray, reference: np.ndarray) -> Tolerances:
    """Returns the tolerances of one output.

    rtol is 2e-5 and atol is 2e-5 of the output's rms, or four times the framework's largest error where that is more. Integers and bools
    are exact.

    Args:
        name: interface name of the output, for the message.
        got: what the framework computed.
        reference: what the reference interpreter computed in float64, of the same shape.

    Raises:
        ExportError: they differ by more than rounding explains; the message has the figures.
    """
    where, rule = f"output '{name}'", "the graph must give what the framework gives"
    if difference := _difference(got, reference):
        hint = "a lowering computes something else, or the model is not deterministic" if got.dtype.kind == "f" else None
        raise ExportError.of(where, rule + (" up to rounding" if got.dtype.kind == "f" else ""), difference, hint=hint)
    if got.dtype.kind != "f":
        return Tolerances(0.0, 0.0, 0.0, 0.0)
    error, rms = _error(got, reference), _rms(got)
    rms_error, largest = _rms(error), float(error.max(initial=0.0))
    return Tolerances(RTOL, max(ATOL_RMS * rms, ERROR_FACTOR * largest), rms_error, rms_error / rms if rms else 0.0)


def from_floats(graph: Graph) -> set[str]:
    """Returns the names of the values that depend on a float: rounding may change them, integers and bools among them too."""
    found = {value.name for value in graph.inputs if value.type.dtype.is_float}
    found.update(constant.name for constant in graph.constants if constant.type.dtype.is_float)
    within = any(type_.dtype.is_float for function in graph.functions.values() for type_ in function.types().values())
    for node in graph.nodes:
        floats = any(value.type.dtype.is_float for value in node.outputs) or (within and any(get_op(node.op).calls(node.attrs)))
        if floats or found.intersection(node.reads()):
            found.update(value.name for value in node.outputs)
    return found


def undecided_elements(name: str, got: np.ndarray, narrow: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """Returns which elements of an integer or bool output that comes from floats rounding decides: framework, float32 and float64 do not all agree.

    A wrong lowering differs from float32 and float64 where these agree. Rounding in the framework does so too, but no more often than it
    moves float32 away from float64: more than 2 such elements and 4 times as many as those, or than 5 % of all, are refused.

    Args:
        name: interface name of the output, for the message.
        got: what the framework computed.
        narrow: what the reference interpreter computed in the types of the graph, of the same shape.
        wide: what it computed in float64.

    Raises:
        ExportError: the framework differs by more than rounding explains.
    """
    moved = narrow != wide
    moves = int(np.count_nonzero(moved))
    contradicted = int(np.count_nonzero((got != narrow) & (got != wide)))
    if contradicted > min(2 + 4 * moves, MAX_CONTRADICTED * got.size):
        rule = "the graph must give what the framework gives, elements apart that rounding decides"
        found = f"{contradicted} of {got.size} elements that differ, where float32 and float64 differ in {moves}"
        raise ExportError.of(f"output '{name}'", rule, found, hint="a lowering computes something else, or the model is not deterministic")
    undecided: np.ndarray = moved | (got != narrow)
    return undecided


def remarks_on(graph: Graph, sets: Sequence[GoldenSet]) -> list[list[str]]:
    """Returns, for every golden set, why it proves little: a graph that is wrong would pass as well.

    That is so where an input has no elements, and for an output without elements or without finite ones, one that is the same number
    everywhere, and one that does not depend on the inputs: by the graph, or because several sets give the same. Integers and bools may be
    the same everywhere, like an argmax, but not 0 in every one of several elements.
    """
    reached = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if reached.intersection(node.reads()):
            reached.update(value.name for value in node.outputs)
    common = [f"output '{output.name}' does not depend on the inputs" for output in graph.outputs if output.value not in reached]
    for output in graph.outputs:
        results = [golden.outputs[output.name] for golden in sets]
        moves = output.value in reached and results[0].dtype.kind == "f" and results[0].size and len(results) > 1
        if moves and all(result.shape == results[0].shape and np.array_equal(result, results[0], equal_nan=True) for result in results[1:]):
            common.append(f"output '{output.name}' is the same in all {len(sets)} golden sets")
    return [
        [
            *(f"input '{name}' has no elements" for name, array in golden.inputs.items() if not array.size),
            *(f"output '{name}' {said}" for name, array in golden.outputs.items() if (said := _dullness(array))),
            *common,
        ]
        for golden in sets
    ]


def _dullness(array: np.ndarray) -> str:
    """Returns what makes an array a poor result to compare with, empty if nothing does."""
    if not array.size:
        return "has no elements"
    if array.dtype.kind != "f":
        return "is 0 everywhere" if array.size > 1 and not array.any() else ""
    if not np.isfinite(array).any():
        return "has no finite element"
    first = array.flat[0]
    return f"is {first:g} everywhere" if (array == first).all() and (array.size > 1 or first == 0) else ""


def first_difference(graph: Graph, inputs: Mapping[str, np.ndarray], intermediates: Mapping[str, np.ndarray]) -> str:
    """Returns one sentence about the first node of the graph whose value is not what the framework has there, if any is.

    Args:
        graph: the graph, static.
        inputs: inputs by name.
        intermediates: value name -> what the framework computed; values that it does not know are passed over.
    """
    outputs = {output.name for output in graph.outputs}
    nodes = [(node, value.name) for node in graph.nodes for value in node.outputs if value.name in intermediates]
    wanted = [name for _, name in nodes if name not in outputs]
    values = run_reference(graph, inputs, precision="f64", want=wanted)
    for node, name in nodes:
        if name in values and (difference := _difference(intermediates[name], values[name])):
            origin = ", ".join(filter(None, (node.source.get("op"), node.source.get("where"))))
            return f"First node that differs: {node.op} '{node.name}'" + (f" ({origin})" if origin else "") + f": {difference}."
    return f"None of the {len(nodes)} values that could be compared inside the graph differs."


def _difference(got: np.ndarray, reference: np.ndarray) -> str:
    """Returns how a framework's array differs from the reference by more than rounding, empty if it does not."""
    if got.shape != reference.shape:
        return f"shape {list(reference.shape)} for {list(got.shape)}"
    if got.dtype.kind != "f":
        if got.dtype != reference.dtype:
            return f"{reference.dtype} for {got.dtype}"
        different = int(np.count_nonzero(got != reference))
        return f"{different} of {got.size} elements that differ" if different else ""
    error = _error(got, reference)
    if not np.isfinite(error).all():
        strange = np.count_nonzero(~np.isfinite(error))
        return f"{strange} of {got.size} elements that are NaN or infinite on one side only"
    rms, rms_error, largest = _rms(got), _rms(error), float(error.max(initial=0.0))
    scale = rms * (F16_FACTOR if got.dtype.itemsize < 4 else 1.0)
    if rms_error > MAX_RMS_ERROR * scale or largest > MAX_ERROR * scale:
        return f"an rms error of {rms_error:.3g} and a largest error of {largest:.3g} at an rms of {rms:.3g}"
    return ""


def _error(got: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Returns the absolute error; 0 where both are NaN or the same infinity, or differ by less than the smallest normal number."""
    wide = got.astype(np.float64)
    same = (wide == reference) | (np.isnan(wide) & np.isnan(reference))
    with np.errstate(invalid="ignore"):
        error: np.ndarray = np.where(same, 0.0, np.abs(wide - reference))
    error[error < np.finfo(got.dtype).tiny] = 0.0  # activations that vanish are 0 in one precision and not in the other
    return error


def _rms(values: np.ndarray) -> float:
    """Returns the root mean square of the finite elements, 0 if there are none."""
    wide = values.astype(np.float64, copy=False)
    finite = wide[np.isfinite(wide)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
