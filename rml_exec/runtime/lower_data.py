"""Lowerings of ops that only move data: a reshape that needs a copy, concat and pad."""

from __future__ import annotations

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lowering import LowerContext, NativeStep, Part, copy_step, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType, TensorType


@lowers("reshape")
def lower_reshape(node: Node, ctx: LowerContext) -> list[NativeStep]:
    """One strided copy, for a reshape of a view that its strides cannot express. A reshape that they can is no step at all."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    return [copy_step(result.name, source, ctx.type(source), ctx.strides(source))]


@lowers("concat")
def lower_concat(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One strided copy per operand that holds anything."""
    result, axis = node.outputs[0], node.attrs["axis"]
    if result.type.size == 0:
        return None
    strides = contiguous_strides(result.type.shape)
    steps, start = [], 0
    for name in node.reads():
        type_ = ctx.type(name)
        if type_.size == 0:
            continue
        part = Part(result.name, start * strides[axis] * type_.dtype.itemsize)
        steps.append(copy_step(part, name, type_, ctx.strides(name), strides))
        start += type_.shape[axis]
    return steps


@lowers("pad")
def lower_pad(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """The value everywhere, then x into its place; or x into its place, then its mirror image or edge. Pads that crop are left to NumPy."""
    x, result, attrs = node.inputs[0], node.outputs[0], node.attrs
    assert x is not None
    if result.type.dtype is DType.BF16 or min((*attrs["low"], *attrs["high"]), default=0) < 0 or result.type.size == 0:
        return None
    strides = contiguous_strides(result.type.shape)
    if attrs["mode"] != "constant":
        return _mirrored(node, ctx, x, strides)
    value = shared_data(
        None, ("pad", str(result.type.dtype), repr(attrs["value"])), lambda: np.asarray(attrs["value"], result.type.dtype.numpy)
    )
    steps = [copy_step(result.name, value, result.type, (0,) * result.type.rank)]
    if ctx.type(x).size:
        start = sum(low * stride for low, stride in zip(attrs["low"], strides, strict=True)) * result.type.dtype.itemsize
        apart = [stride * (gap + 1) for stride, gap in zip(strides, attrs["interior"], strict=True)]
        steps.append(copy_step(Part(result.name, start), x, ctx.type(x), ctx.strides(x), apart))
    return steps


def _mirrored(node: Node, ctx: LowerContext, x: str, strides: tuple[int, ...]) -> list[NativeStep] | None:
    """Returns the steps of a reflect or edge pad: x into its place, then, one axis after the other, what lies before and behind it.

    An axis copies from what stands in the result by then, so that corners come out right.
    """
    result, attrs, type_ = node.outputs[0], node.attrs, ctx.type(x)
    if any(attrs["interior"]) or type_.size == 0:
        return None
    lows, shape = attrs["low"], list(type_.shape)
    start = list(lows)

    def at(position: list[int]) -> Part:
        offset = sum(index * stride for index, stride in zip(position, strides, strict=True))
        return Part(result.name, offset * type_.dtype.itemsize)

    steps = [copy_step(at(start), x, type_, ctx.strides(x), strides)]
    for axis, (low, high, size) in enumerate(zip(lows, attrs["high"], type_.shape, strict=True)):
        reflect = attrs["mode"] == "reflect"
        for to, length, edge, first in ((0, low, low, 2 * low), (low + size, high, low + size - 1, low + size - 2)):
            if length:
                target, source = start.copy(), start.copy()
                target[axis], source[axis] = to, first if reflect else edge
                source_strides = list(strides)
                source_strides[axis] = -strides[axis] if reflect else 0
                part = TensorType(type_.dtype, (*shape[:axis], length, *shape[axis + 1 :]))
                steps.append(copy_step(at(target), at(source), part, source_strides, strides))
        start[axis], shape[axis] = 0, low + size + high
    return steps
