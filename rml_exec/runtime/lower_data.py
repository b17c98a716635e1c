"""Lowerings of ops that only move data: a reshape that needs a copy, concat, and pad with a constant."""

from __future__ import annotations

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lowering import LowerContext, NativeStep, Part, copy_step, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType


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
    """The value everywhere, then x into its place; other modes, and pads that crop, are left to NumPy."""
    x, result, attrs = node.inputs[0], node.outputs[0], node.attrs
    assert x is not None
    if (
        attrs["mode"] != "constant"
        or result.type.dtype is DType.BF16
        or min((*attrs["low"], *attrs["high"]), default=0) < 0
        or result.type.size == 0
    ):
        return None
    strides = contiguous_strides(result.type.shape)
    value = shared_data(
        None, ("pad", str(result.type.dtype), repr(attrs["value"])), lambda: np.asarray(attrs["value"], result.type.dtype.numpy)
    )
    steps = [copy_step(result.name, value, result.type, (0,) * result.type.rank)]
    if ctx.type(x).size:
        start = sum(low * stride for low, stride in zip(attrs["low"], strides, strict=True)) * result.type.dtype.itemsize
        apart = [stride * (gap + 1) for stride, gap in zip(strides, attrs["interior"], strict=True)]
        steps.append(copy_step(Part(result.name, start), x, ctx.type(x), ctx.strides(x), apart))
    return steps
