"""Lowerings of softmax, normalisation, reductions and pooling: kernels that walk rows of a dense tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.runtime.lower_elementwise import Tensor, elementwise_step
from rml_exec.runtime.lower_integers import integer_reduction
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, contiguous_strides, copy_step, float_bits, lowers
from rml_exec.types import DType, TensorType

_REDUCTIONS = {"sum": 0, "mean": 1, "prod": 2, "max": 3, "min": 4}  # as in reduce.c
_MAX_POOL = {"propagate": 0, "skip": 1}  # as in pooling.c
_AVERAGE_POOL = 2
_POOL_AXES = 3
_UNUSED_AXIS = (1, 1, 1, 1, 0, 1)  # size, windows, extent, stride, low pad, dilation


@lowers("softmax", "log_softmax")
def lower_softmax(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over [outer, n, inner] around the axis."""
    x, result, axis = node.inputs[0], node.outputs[0], node.attrs["axis"]
    assert x is not None
    shape = result.type.shape
    if result.type.dtype is not DType.F32:
        return None
    masked_is_zero = node.attrs.get("fully_masked") == "zero"
    params = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), int(node.op == "log_softmax"), int(masked_is_zero))
    return [NativeStep("softmax", params, (result.name, ctx.contiguous(x)))]


@lowers("layer_norm")
def lower_layer_norm(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over rows of the normalised axes. Variance is always taken in two passes, which is at least as accurate as ``fast``."""
    x, scale, bias = node.inputs
    result, first = node.outputs[0], node.attrs["axes"][0]
    assert x is not None
    if result.type.dtype is not DType.F32:
        return None
    params = (math.prod(result.type.shape[:first]), math.prod(result.type.shape[first:]), float_bits(node.attrs["eps"]))
    operands = (None if name is None else ctx.contiguous(name) for name in (x, scale, bias))
    return [NativeStep("layer_norm", params, (result.name, *operands))]


@lowers("batch_norm")
def lower_batch_norm(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """(x - mean) * factor + bias with constant statistics, the factor folded in float64."""
    x, *statistics = node.inputs
    result, axis = node.outputs[0], node.attrs["axis"]
    data = [ctx.constant(name) for name in statistics]
    assert x is not None
    if result.type.dtype is not DType.F32 or any(array is None for array in data):
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in data)
    factor = scale / np.sqrt(variance + node.attrs["eps"])
    trailing = result.type.rank - axis - 1
    tensors = {"x": Tensor(x, ctx.type(x), ctx.strides(x))}
    for name, values in (("mean", mean), ("factor", factor), ("bias", bias)):
        per_channel = TensorType(DType.F32, (*values.shape, *(1,) * trailing))
        tensors[name] = Tensor(values.astype(np.float32), per_channel, (1,) + (0,) * trailing)
    body = [
        Node(op, result_name, (operand, name), (Value(result_name, result.type),))
        for op, operand, name, result_name in (
            ("sub", "x", "mean", "centred"),
            ("mul", "centred", "factor", "scaled"),
            ("add", "scaled", "bias", "y"),
        )
    ]
    step = elementwise_step(tensors, body, ["y"], node.outputs)
    return None if step is None else [step]


@lowers("reduce")
def lower_reduce(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step over [outer, n, inner] where the reduced axes are neighbours in memory; else x is copied with the reduced axes last."""
    x, result, kind = node.inputs[0], node.outputs[0], node.attrs["kind"]
    assert x is not None
    skip = node.attrs["nan"] == "skip"
    dtype = result.type.dtype
    if dtype.is_float and (dtype is not DType.F32 or (kind == "mean" and skip)):
        return None
    shape, strides = ctx.type(x).shape, ctx.strides(x)
    axes = [axis for axis in node.attrs["axes"] if shape[axis] != 1]
    kept = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] != 1]
    order = sorted([*kept, *axes], key=lambda axis: -strides[axis])  # as they lie in memory, outermost first
    operand: Operand = x
    dense = _is_dense([shape[axis] for axis in order], [strides[axis] for axis in order])
    if not dense or [axis for axis in order if axis in kept] != kept or not _side_by_side(axes, order):
        order = [*kept, *axes]
        operand = _permuted(x, order, ctx)
    first = min(map(order.index, axes), default=0)
    outer, n, inner = (math.prod(shape[axis] for axis in part) for part in (order[:first], axes, order[first + len(axes) :]))
    if dtype is DType.F32:
        return [NativeStep("reduce", (outer, n, inner, _REDUCTIONS[kind], int(skip)), (result.name, operand))]
    reduction = integer_reduction(outer, n, inner, kind, dtype)
    return None if reduction is None else [NativeStep(*reduction, (result.name, operand))]


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return tuple(strides) == contiguous_strides(tuple(shape))


def _side_by_side(axes: Sequence[int], order: Sequence[int]) -> bool:
    places = sorted(map(order.index, axes))
    return places == list(range(places[0], places[0] + len(places))) if places else True


def _permuted(name: str, axes: Sequence[int], ctx: LowerContext) -> Operand:
    """Returns a dense copy of a value with its axes in another order; axes of size 1 may be left out."""
    type_, strides = ctx.type(name), ctx.strides(name)
    copied = TensorType(type_.dtype, tuple(type_.shape[axis] for axis in axes))
    part = ctx.scratch(type_.nbytes)
    ctx.prologue.append(copy_step(part, name, copied, [strides[axis] for axis in axes]))
    return part


@lowers("max_pool", "avg_pool")
def lower_pool(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step with channels last; channels first is copied to that layout and back, unless it is a view of it."""
    x, result, attrs = node.inputs[0], node.outputs[0], node.attrs
    assert x is not None
    if result.type.dtype is not DType.F32:
        return None
    rank = result.type.rank
    channels_first = attrs["data_layout"] == "NCHW"
    order = [0, *range(2, rank), 1] if channels_first else list(range(rank))  # axes of x as the kernel walks them
    shape, strides = ctx.type(x).shape, ctx.strides(x)
    seen, made = [shape[axis] for axis in order], [result.type.shape[axis] for axis in order]
    dilations = attrs.get("dilations", (1,) * (rank - 2))
    axes = [
        (size, count, extent, stride, low, dilation)
        for size, count, extent, stride, (low, _), dilation in zip(
            seen[1:-1], made[1:-1], attrs["window"], attrs["strides"], attrs["pads"], dilations, strict=True
        )
    ]
    axes = [_UNUSED_AXIS] * (_POOL_AXES - len(axes)) + axes
    kind, divisor = _MAX_POOL.get(attrs.get("nan", ""), _AVERAGE_POOL), 1
    if kind == _AVERAGE_POOL:
        divisor = {"window": math.prod(attrs["window"]), "valid": 0, "fixed": attrs["divisor_value"]}[attrs["divisor"]]
    params = [shape[0], seen[-1], kind, divisor, *(number for axis in axes for number in axis)]
    source = x if _is_dense(seen, [strides[axis] for axis in order]) else _permuted(x, order, ctx)
    if not channels_first:
        return [NativeStep("pool", params, (result.name, source))]
    target = ctx.scratch(result.type.nbytes)
    steps = contiguous_strides(tuple(made))
    back = [steps[order.index(axis)] for axis in range(rank)]
    return [NativeStep("pool", params, (target, source)), copy_step(result.name, target, result.type, back)]
