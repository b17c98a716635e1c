"""Lowerings of ops that read or write where an operand says: take, gathers, scatters and windows."""

from __future__ import annotations

import math

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lowering import ELEMENT_TYPES, LowerContext, NativeStep, copy_step, lowers
from rml_exec.types import TensorType

_OUT_OF_RANGE = ("error", "clamp", "fill")  # as in indices.h
_REDUCTIONS = ("none", "add", "mul", "max", "min")  # as in scatter.c
_COMBINED = ELEMENT_TYPES[: ELEMENT_TYPES.index("f16")]


def _reading(node: Node, ctx: LowerContext) -> tuple[int, int, int, int] | None:
    """Returns how indices are read and what becomes of those out of range: index_bytes, wrap_negative, out of range, fill. None: no elements."""
    x, indices = node.inputs
    assert x is not None and indices is not None
    dtype, attrs = ctx.type(x).dtype, node.attrs
    if node.outputs[0].type.size == 0 or ctx.type(x).size == 0:
        return None
    fill = b"" if attrs["fill_value"] is None else np.asarray(attrs["fill_value"]).astype(dtype.numpy).tobytes()
    bits = int.from_bytes(fill.ljust(8, b"\0"), "little", signed=True)
    return ctx.type(indices).dtype.itemsize, int(attrs["wrap_negative"]), _OUT_OF_RANGE.index(attrs["oob"]), bits


def _read_step(kernel: str, params: tuple[int, ...], node: Node, ctx: LowerContext) -> NativeStep:
    """An index out of range that is an error makes the kernel decline, and NumPy say what is wrong."""
    x, indices = node.inputs
    assert x is not None and indices is not None
    source = x if kernel == "take_along" else ctx.contiguous(x)
    return NativeStep(kernel, params, (node.outputs[0].name, source, ctx.contiguous(indices)), may_decline=node.attrs["oob"] == "error")


@lowers("take")
def lower_take(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Rows picked by an index each."""
    x, indices = node.reads()
    reading = _reading(node, ctx)
    if reading is None:
        return None
    type_, axis = ctx.type(x), node.attrs["axis"]
    outer, inner = math.prod(type_.shape[:axis]), math.prod(type_.shape[axis + 1 :])
    params = (type_.dtype.itemsize, outer, type_.shape[axis], inner, ctx.type(indices).size, *reading)
    return [_read_step("take", params, node, ctx)]


@lowers("gather_nd")
def lower_gather_nd(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Rows picked by an index per leading axis."""
    x, indices = node.reads()
    reading = _reading(node, ctx)
    if reading is None:
        return None
    type_, batch_dims = ctx.type(x), node.attrs["batch_dims"]
    *points, depth = ctx.type(indices).shape
    addressed = type_.shape[batch_dims : batch_dims + depth]
    inner = math.prod(type_.shape[batch_dims + depth :])
    counts = (math.prod(points[:batch_dims]), math.prod(points[batch_dims:]))
    return [_read_step("gather_nd", (type_.dtype.itemsize, *counts, depth, inner, *reading, *addressed), node, ctx)]


def _off_axis(strides: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*strides[:axis], 0, *strides[axis + 1 :])


@lowers("take_along_axis")
def lower_take_along_axis(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Elements picked by an index each; x is read where it lies."""
    x, indices = node.reads()
    reading = _reading(node, ctx)
    if reading is None:
        return None
    type_, axis, strides, dims = ctx.type(x), node.attrs["axis"], ctx.strides(x), ctx.type(indices).shape
    params = (type_.dtype.itemsize, *reading, type_.shape[axis], strides[axis], len(dims), *dims, *_off_axis(strides, axis))
    return [_read_step("take_along", params, node, ctx)]


def _write_steps(node: Node, ctx: LowerContext, points: int, sizes: tuple[int, ...]) -> list[NativeStep] | None:
    """Returns the steps before a scatter, each index of ``points`` x ``sizes`` looked at where one out of range is an error; None: NumPy."""
    x, indices, _ = node.reads()
    type_, attrs = ctx.type(x), node.attrs
    if type_.size == 0 or (attrs["reduce"] != "none" and type_.dtype.value not in _COMBINED):
        return None
    steps = []
    if attrs["oob"] == "error":
        rule = (ctx.type(indices).dtype.itemsize, int(attrs["wrap_negative"]))
        steps.append(NativeStep("check_indices", (points, len(sizes), *rule, *sizes), (ctx.contiguous(indices),), may_decline=True))
    return [*steps, copy_step(node.outputs[0].name, x, type_, ctx.strides(x))]


def _combination(node: Node, type_: TensorType) -> tuple[int, int, int]:
    known = type_.dtype.value in _COMBINED
    return type_.dtype.itemsize, ELEMENT_TYPES.index(type_.dtype.value) if known else 0, _REDUCTIONS.index(node.attrs["reduce"])


@lowers("scatter_nd")
def lower_scatter_nd(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A copy of x, unless the result has taken its place, then rows written at points."""
    x, indices, updates = node.reads()
    type_, attrs = ctx.type(x), node.attrs
    *points, depth = ctx.type(indices).shape
    sizes, count = type_.shape[:depth], math.prod(points)
    before = _write_steps(node, ctx, count, sizes)
    if before is None:
        return None
    rule = (ctx.type(indices).dtype.itemsize, int(attrs["wrap_negative"]), int(attrs["oob"] == "drop"))
    params = (*_combination(node, type_), count, depth, math.prod(type_.shape[depth:]), *rule, *sizes)
    operands = (node.outputs[0].name, ctx.contiguous(indices), ctx.contiguous(updates))
    return [*before, NativeStep("scatter_nd", params, operands)]


@lowers("scatter_along_axis")
def lower_scatter_along_axis(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A copy of x, unless the result has taken its place, then elements written along an axis."""
    x, indices, updates = node.reads()
    type_, attrs, axis, dims = ctx.type(x), node.attrs, node.attrs["axis"], ctx.type(indices).shape
    before = _write_steps(node, ctx, math.prod(dims), (type_.shape[axis],))
    if before is None:
        return None
    strides = contiguous_strides(type_.shape)
    rule = (ctx.type(indices).dtype.itemsize, int(attrs["wrap_negative"]), int(attrs["oob"] == "drop"))
    along = (type_.shape[axis], strides[axis], type_.size, len(dims), *dims, *_off_axis(strides, axis))
    operands = (node.outputs[0].name, ctx.contiguous(indices), ctx.contiguous(updates))
    return [*before, NativeStep("scatter_along", (*_combination(node, type_), *rule, *along), operands)]


@lowers("dynamic_slice")
def lower_dynamic_slice(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A window of x from where its start says."""
    x, start = node.reads()
    type_, result = ctx.type(x), node.outputs[0]
    if result.type.size == 0:
        return None
    params = (type_.dtype.itemsize, 0, ctx.type(start).dtype.itemsize, type_.rank, *result.type.shape, *type_.shape)
    return [NativeStep("window", params, (result.name, ctx.contiguous(x), ctx.contiguous(start)))]


@lowers("dynamic_update_slice")
def lower_dynamic_update_slice(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A copy of x, unless the result has taken its place, then a window of it overwritten."""
    x, update, start = node.reads()
    type_, result, window = ctx.type(x), node.outputs[0], ctx.type(update)
    if type_.size == 0:
        return None
    steps = [copy_step(result.name, x, type_, ctx.strides(x))]
    if window.size:
        params = (type_.dtype.itemsize, 1, ctx.type(start).dtype.itemsize, type_.rank, *window.shape, *type_.shape)
        steps.append(NativeStep("window", params, (result.name, ctx.contiguous(update), ctx.contiguous(start))))
    return steps
