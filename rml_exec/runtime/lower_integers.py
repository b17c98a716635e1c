"""Elementwise ops and reductions on integers that the interpreter, whose lanes are 32 bits wide, does not do; and selections of any type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lowering import ELEMENT_TYPES, LowerContext, NativeStep, Operand, aligned_strides, joined_axes
from rml_exec.types import DType

__all__ = ["integer_reduction", "integer_step"]

_OPERATIONS = (
    *("add", "sub", "mul", "max", "min", "and", "or", "xor", "div_floor", "div_trunc", "rem_divisor", "rem_dividend"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)
_REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "any": 2, "all": 3}
"""Both as ``integers.c`` numbers them."""

_WITH_A_NUMBER: dict[str, tuple[str, int | None]] = {"neg": ("mul", -1), "not": ("xor", -1), "relu": ("max", 0)}
_SPELLING = {"div": "rounding", "rem": "sign"}  # attribute that completes the name of the operation


def integer_step(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Returns the steps of an elementwise node on integers of any width, or of a selection of any type; None for what NumPy must do."""
    result, names = node.outputs[0], tuple(node.reads())
    dtype = ctx.type(names[-1]).dtype
    if node.op == "fused" or result.type.size == 0 or not (dtype.is_integer or node.op == "select"):
        return None
    operands = [_Strided(name, aligned_strides(ctx.type(name).shape, ctx.strides(name), result.type.shape)) for name in names]
    if node.op == "select":
        return [_step("select", (dtype.itemsize,), result, operands)]
    operations = _operations(node, ctx)
    steps, first = [], operands[0]
    for operation, number in operations:
        if number is not None:
            operands = [first, _Strided(np.asarray(number, np.int64).astype(dtype.numpy), (0,) * result.type.rank)]
        head = (ELEMENT_TYPES.index(dtype.value), _OPERATIONS.index(operation))
        steps.append(_step("integers", head, result, operands))
        first = _Strided(result.name, contiguous_strides(result.type.shape))
    return steps or None


class _Strided(NamedTuple):
    operand: Operand
    strides: tuple[int, ...]  # along the axes of the result


def _step(kernel: str, head: tuple[int, ...], result: Value, operands: Sequence[_Strided]) -> NativeStep:
    dims, walked = joined_axes(result.type.shape, [strides for _, strides in operands])
    params = (*head, len(dims), *dims, *(step for steps in walked for step in steps))
    return NativeStep(kernel, params, (result.name, *(operand for operand, _ in operands)))


def _operations(node: Node, ctx: LowerContext) -> list[tuple[str, int | None]]:
    """Returns the operations of a node, one after the other, each on two operands, or on the result so far and a number. Empty: NumPy's."""
    attrs, operation = node.attrs, node.op
    if operation == "clamp":
        return [(name, int(attrs[bound])) for name, bound in (("max", "lo"), ("min", "hi")) if attrs[bound] is not None]
    if operation in _WITH_A_NUMBER:
        return [_WITH_A_NUMBER[operation]]
    if operation in _SPELLING:
        operation = f"{operation}_{attrs[_SPELLING[operation]]}"
        divisor = ctx.constant(node.inputs[1])
        if divisor is None or not np.all(divisor):
            return []  # a divisor of 0 is an error
    elif operation == "compare":
        operation = attrs["dir"]
    return [(operation, None)] if operation in _OPERATIONS else []


def integer_reduction(outer: int, n: int, inner: int, kind: str, dtype: DType) -> tuple[str, tuple[int, ...]] | None:
    """Returns kernel and parameters of a reduction over [outer, n, inner] of integers or truth values; None for what NumPy must do."""
    if kind not in _REDUCTIONS or dtype.is_float or (n == 0 and dtype is DType.BOOL):
        return None
    return "reduce_integers", (outer, n, inner, _REDUCTIONS[kind], ELEMENT_TYPES.index(dtype.value))
