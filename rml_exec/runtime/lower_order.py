"""Lowerings of ops that compare elements along an axis: argreduce, cumulative, sort, topk and nms."""

from __future__ import annotations

import math

from rml_exec.ir.graph import Node
from rml_exec.runtime.lowering import ELEMENT_TYPES, LowerContext, NativeStep, float_bits, lowers
from rml_exec.types import DType, TensorType

_RUNNING = ("sum", "prod", "max", "min")  # as in cumulative.c
_ENTRY_BYTES = 16  # sorting.h
_MOST_ENTRIES = 2**31 - 1


def _around(type_: TensorType, axis: int) -> tuple[int, int, int]:
    """Returns [outer, n, inner] around an axis."""
    return math.prod(type_.shape[:axis]), type_.shape[axis], math.prod(type_.shape[axis + 1 :])


@lowers("argreduce")
def lower_argreduce(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over [outer, n, inner] around the axis."""
    (x,), result, attrs = node.reads(), node.outputs[0], node.attrs
    type_ = ctx.type(x)
    outer, n, inner = _around(type_, attrs["axis"])
    if type_.dtype in (DType.F16, DType.BF16) or type_.size == 0 or n > _MOST_ENTRIES:
        return None
    rule = (int(attrs["kind"] == "min"), int(attrs["tie"] == "last"), int(attrs["nan"] == "skip"))
    params = (outer, n, inner, ELEMENT_TYPES.index(type_.dtype.value), *rule, result.type.dtype.itemsize)
    return [NativeStep("argreduce", params, (result.name, ctx.contiguous(x)))]


@lowers("cumulative")
def lower_cumulative(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over [outer, n, inner] around the axis; logsumexp is left to NumPy."""
    (x,), result, attrs = node.reads(), node.outputs[0], node.attrs
    if attrs["kind"] not in _RUNNING or result.type.dtype in (DType.F16, DType.BF16) or result.type.size == 0:
        return None
    rule = (_RUNNING.index(attrs["kind"]), int(attrs["exclusive"]), int(attrs["reverse"]))
    params = (*_around(result.type, attrs["axis"]), ELEMENT_TYPES.index(result.type.dtype.value), *rule)
    return [NativeStep("cumulative", params, (result.name, ctx.contiguous(x)))]


@lowers("sort", "topk")
def lower_sort(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """The k first along the axis, in order; sort takes them all."""
    (x,), (values, indices), attrs = node.reads(), node.outputs, node.attrs
    outer, n, inner = _around(ctx.type(x), attrs["axis"])
    if values.type.size == 0 or n > _MOST_ENTRIES:
        return None
    k, descending = attrs.get("k", n), attrs["largest"] if node.op == "topk" else attrs["descending"]
    workers = min(ctx.threads, outer * inner)
    dtype = ELEMENT_TYPES.index(values.type.dtype.value)
    params = (outer, n, inner, k, dtype, int(descending), indices.type.dtype.itemsize, workers)
    workspaces = ctx.scratch(workers * 2 * n * _ENTRY_BYTES)
    return [NativeStep("sort", params, (values.name, indices.name, ctx.contiguous(x), workspaces))]


@lowers("nms")
def lower_nms(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step, on one thread, for f32 boxes."""
    (boxes, scores), (indices, count), attrs = node.reads(), node.outputs, node.attrs
    n, most, threshold = ctx.type(scores).size, attrs["max_outputs"], attrs["score_threshold"]
    if ctx.type(boxes).dtype is not DType.F32 or n > _MOST_ENTRIES or not n or not most:
        return None
    limits = (float_bits(attrs["iou_threshold"]), int(threshold is not None), float_bits(threshold or 0.0))
    workspace = ctx.scratch(2 * n * _ENTRY_BYTES + most * 5 * 8)
    operands = (indices.name, count.name, ctx.contiguous(boxes), ctx.contiguous(scores), workspace)
    return [NativeStep("nms", (n, most, indices.type.dtype.itemsize, *limits), operands)]
