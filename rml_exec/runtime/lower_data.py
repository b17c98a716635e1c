"""Lowerings of ops that only move data: a reshape that needs a copy, and concat."""

from __future__ import annotations

from rml_exec.ir.graph import Node
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lowering import LowerContext, NativeStep, Part, copy_step, lowers


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
