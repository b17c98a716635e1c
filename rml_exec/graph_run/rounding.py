"""How far the result of one step may be from float64 by rounding alone, per element.

A product is bounded by its terms: unit roundoff times the root of the length of its sums times the sum of ``|a| * |b|``, which knows about
cancellation. An elementwise op has the tolerance of its record; in a fused group an error made early is carried on by the ops after it, by
as much as the float64 reference of each moves when its operand does. Everything else (softmax, recurrences, control flow) may be as far off
as NumPy's own evaluation in the step's element type is, and as the op's record allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rml_exec.graph_run.single_step import SingleStep, narrow, widen
from rml_exec.ir.graph import Function, Node, Output, Value
from rml_exec.ops import get_op
from rml_exec.runtime.reference import ReferenceFunction
from rml_exec.types import DType, TensorType

__all__ = ["Rounded", "expected_rounding"]

_PRODUCTS = ("linear", "matmul", "conv2d", "conv2d_transpose", "avg_pool")
_SUMS = {"reduce": ("sum", "mean"), "cumulative": ("sum",)}
_BLOCK = 256
"""Kernels sum products in blocks of so many, and then the sums of the blocks."""
_WINOGRAD = {"winograd4": 2.0, "winograd2": 1.0}
"""How much Winograd's transforms add to the rounding error of a convolution (Lavin and Gray, arXiv 1509.09308, section 5, and measured)."""
_UNIT = {DType.F32: 2.0**-24, DType.F64: 2.0**-53, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}


@dataclass(frozen=True, slots=True)
class Rounded:
    """One result of a step: its value in float64 and, of the same shape, how far rounding may take it; True where a bool or integer may differ.

    ``terms`` is the length of the longest sum behind it, 1 where there is none.
    """

    value: np.ndarray
    error: np.ndarray
    terms: int


def expected_rounding(step: SingleStep, operands: Sequence[np.ndarray], kernel: str) -> list[Rounded]:
    """Returns what every result of a step should be and how far it may be off.

    Args:
        step: the step.
        operands: the inputs of its graph, wide; each can be represented in its own element type.
        kernel: the kernels it runs on.
    """
    return _Analysis(step, kernel).run(operands)


class _Analysis:
    def __init__(self, step: SingleStep, kernel: str) -> None:
        self._step, self._kernel = step, kernel
        self._types = dict(step.graph.types())
        self._values: dict[str, np.ndarray] = {}
        self._errors: dict[str, np.ndarray] = {}
        self._terms = 1

    def run(self, operands: Sequence[np.ndarray]) -> list[Rounded]:
        graph = self._step.graph
        self._values.update((value.name, array) for value, array in zip(graph.inputs, operands, strict=True))
        for constant in graph.constants:  # by way of a body that only returns it, which widens it
            body = Function("constant", (), (Output("y", constant.name),), (constant,), ())
            (self._values[constant.name],) = ReferenceFunction(body, {}, wide=True, where=constant.name)()
        for node in graph.nodes:
            if get_op(node.op).internal:
                self._bind(node)
            for member in node.attrs["body"] if get_op(node.op).internal else (node,):
                self._add(member)
        names = [output.value for output in graph.outputs]
        return [Rounded(self._values[name], self._errors[name], self._terms) for name in names]

    def _bind(self, group: Node) -> None:
        """Gives the members of a fused group its operands under the names by which they know them."""
        for name, operand in zip(group.attrs["params"], group.inputs, strict=True):
            if operand is not None:
                self._values[name], self._types[name] = self._values[operand], self._types[operand]

    def _add(self, node: Node) -> None:
        self._types.update((value.name, value.type) for value in node.outputs)
        operands = {name: self._values[name] for name in node.reads()}
        results = self._evaluate(node, operands)
        own = self._own_errors(node, operands, results)
        for value, result, error in zip(node.outputs, results, own, strict=True):
            self._values[value.name], self._errors[value.name] = result, error
        if get_op(node.op).elementwise:
            self._carry(node, operands, results)

    def _evaluate(self, node: Node, operands: Mapping[str, np.ndarray], wide: bool = True) -> tuple[np.ndarray, ...]:
        names = tuple(operands)
        inputs = tuple(Value(name, self._types[name]) for name in names)
        outputs = tuple(Output(value.name, value.name) for value in node.outputs)
        body = Function(node.name, inputs, outputs, (), (node,))
        with np.errstate(all="ignore"):
            return ReferenceFunction(body, self._step.graph.functions, wide=wide, where=f"{node.op} '{node.name}'")(*operands.values())

    def _carry(self, node: Node, operands: Mapping[str, np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Adds what the errors of the operands become in an elementwise node."""
        for name in operands:
            error = self._errors.get(name)
            if error is None or not error.any():
                continue
            moved = [operands[name] ^ error] if error.dtype == bool and operands[name].dtype == bool else _both_ways(operands[name], error)
            others = [self._evaluate(node, {**operands, name: operand}) for operand in moved]
            for index, value in enumerate(node.outputs):
                further = [_difference(other[index], results[index]) for other in others]
                self._errors[value.name] = _sum(self._errors[value.name], np.maximum.reduce(further))

    def _own_errors(self, node: Node, operands: Mapping[str, np.ndarray], results: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the errors that the node makes itself, operands being exact."""
        op = get_op(node.op)
        types = [value.type for value in node.outputs]
        if op.view:
            return [_nothing(result) for result in results]
        if node.op in _PRODUCTS or node.attrs.get("kind") in _SUMS.get(node.op, ()):
            return [self._sum_error(node, operands, results[0])]
        if op.elementwise:
            return [_allowed(result, type_, op.tolerance.rtol, op.tolerance.atol_rms) for result, type_ in zip(results, types, strict=True)]
        narrowed = {name: narrow(array, self._types[name], flush=False) for name, array in operands.items()}
        same = [widen(array, type_.dtype) for array, type_ in zip(self._evaluate(node, narrowed, wide=False), types, strict=True)]
        errors = []
        for result, type_, other in zip(results, types, same, strict=True):
            allowed = _allowed(result, type_, op.tolerance.rtol, op.tolerance.atol_rms)
            difference = _difference(other, result)
            errors.append(_sum(allowed, np.maximum(difference, _rms(difference)) if type_.dtype.is_float else difference))
        return errors

    def _sum_error(self, node: Node, operands: Mapping[str, np.ndarray], result: np.ndarray) -> np.ndarray:
        type_ = node.outputs[0].type
        if not type_.dtype.is_float:
            return _nothing(result)
        terms = self._length(node, type_)
        self._terms = max(self._terms, terms)
        (magnitude,) = self._evaluate(node, {name: np.abs(array) for name, array in operands.items()})
        growth = next((factor for name, factor in _WINOGRAD.items() if name in self._kernel), 1.0)
        if growth > 1:  # a tile's outputs share the rounding errors of its transform
            axes = (1, 2) if node.attrs["data_layout"] == "NHWC" else (2, 3)
            magnitude = np.broadcast_to(magnitude.max(axes, keepdims=True), magnitude.shape)
        length = min(terms, _BLOCK) + terms / _BLOCK
        return _finite(_UNIT[type_.dtype] * (growth * np.sqrt(length) * magnitude + np.abs(result)))

    def _length(self, node: Node, result: TensorType) -> int:
        """Returns how many terms the sums of a node have."""
        types = [None if name is None else self._types[name] for name in node.inputs]
        rule = get_op(node.op).flops
        assert types[0] is not None
        if node.op == "cumulative":
            return max(1, result.shape[node.attrs["axis"]])
        flops = rule(types, (result,), node.attrs) if rule else types[0].size
        return max(1, flops // max(1, result.size) // (1 if node.op in ("reduce", "avg_pool") else 2))


def _allowed(result: np.ndarray, type_: TensorType, rtol: float, atol_rms: float) -> np.ndarray:
    """Returns the tolerance of an op's record, which is one for f32, in the precision of the type; at least one rounding."""
    if not type_.dtype.is_float:
        return _nothing(result)
    unit = _UNIT[type_.dtype]
    scale = unit / _UNIT[DType.F32]
    return _finite(max(unit, rtol * scale) * np.abs(result) + atol_rms * scale * _rms(result))


def _rms(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _nothing(result: np.ndarray) -> np.ndarray:
    return np.zeros(result.shape, float if result.dtype.kind == "f" else bool)


def _finite(error: np.ndarray) -> np.ndarray:
    """Returns the error with infinity where it is not a number: what an infinite operand gives is not for rounding to say."""
    return np.where(np.isnan(error), np.inf, error)


def _both_ways(operand: np.ndarray, error: np.ndarray) -> list[np.ndarray]:
    """Returns the operand moved up and down by its error; an integer that may differ has no bound, and moves by one."""
    with np.errstate(invalid="ignore"):
        return [(operand + step * error).astype(operand.dtype) for step in (1, -1)]


def _difference(other: np.ndarray, result: np.ndarray) -> np.ndarray:
    if result.dtype.kind != "f":
        return np.asarray(other != result)
    with np.errstate(invalid="ignore"):
        same = (other == result) | (np.isnan(other) & np.isnan(result))
        return np.where(same, 0.0, _finite(np.abs(other - result)))


def _sum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first | second if first.dtype == bool else first + second
