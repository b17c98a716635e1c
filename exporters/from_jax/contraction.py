"""Lowerings of dot_general and convolution: every layout becomes matmul, linear or conv2d, with transposes only where it needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exporters.from_jax.context import TABLE, Context, RefusedError
from exporters.from_jax.program import Equation, Value


@TABLE.lowers("dot_general")
def _dot_general(ctx: Context, eqn: Equation) -> str:
    """Contracts ``a`` and ``b`` into [batch, free axes of a, free axes of b]; several free or contracted axes become one.

    Recognised with a bias (:mod:`exporters.from_jax.patterns`), that is the third operand.
    """
    (contract_a, contract_b), (batch_a, batch_b) = (tuple(map(tuple, pair)) for pair in eqn.params["dimension_numbers"])
    a, b = eqn.inputs[:2]
    shape, dtype = eqn.outputs[0].shape, eqn.outputs[0].dtype
    free_a, free_b = _others(a, batch_a + contract_a), _others(b, batch_b + contract_b)
    if contract_a and not batch_a and a.constant is None and b.constant is not None and np.dtype(dtype).kind == "f":
        return _linear(ctx, eqn, free_a, free_b, list(zip(contract_b, contract_a, strict=True)))
    batch = [a.shape[axis] for axis in batch_a]
    rows, columns, depth = _size(a, free_a), _size(b, free_b), _size(a, contract_a)
    left, right = ctx.cast(a, dtype), ctx.cast(b, dtype)
    if not contract_a:
        left = ctx.reshape(ctx.transpose(left, batch_a + free_a), [*batch, rows, 1])
        right = ctx.reshape(ctx.transpose(right, batch_b + free_b), [*batch, 1, columns])
        return ctx.reshape(ctx.add("mul", left, right), shape)
    turned_a, turned_b = _contracts_first(free_a, contract_a), not _contracts_first(free_b, contract_b)
    left = ctx.transpose(left, batch_a + (contract_a + free_a if turned_a else free_a + contract_a))
    left = ctx.reshape(left, [*batch, depth, rows] if turned_a else [*batch, rows, depth])
    right = ctx.transpose(right, batch_b + (free_b + contract_b if turned_b else contract_b + free_b))
    right = ctx.reshape(right, [*batch, columns, depth] if turned_b else [*batch, depth, columns])
    return ctx.reshape(ctx.add("matmul", left, right, transpose_a=turned_a, transpose_b=turned_b), shape)


def _linear(ctx: Context, eqn: Equation, free_x: Sequence[int], free: Sequence[int], pairs: Sequence[tuple[int, int]]) -> str:
    """Contracts data with a constant, which stays as it lies in memory if it can; ``pairs`` are the contracted axes of weight and x."""
    x, weight, *biases = eqn.inputs
    output = eqn.outputs[0]
    bias = ctx.constant(biases[0].array().reshape(-1), of=biases[0], form="bias") if biases else None
    while weight.producer is not None and weight.producer.primitive == "transpose":  # a weight used both ways is stored once
        perm = weight.producer.params["permutation"]
        free, pairs = [perm[axis] for axis in free], [(perm[axis], other) for axis, other in pairs]
        weight = weight.producer.inputs[0]
    contract, contract_x = zip(*sorted(pairs), strict=True)
    inputs_first = (*contract, *free) == tuple(range(len(weight.shape)))
    depth, width = _size(weight, contract), _size(weight, free)
    order, shape = ((*contract, *free), (depth, width)) if inputs_first else ((*free, *contract), (width, depth))
    if order == tuple(range(len(weight.shape))) and shape == weight.shape and weight.dtype == output.dtype:
        matrix = ctx.name(weight)
    else:
        array = weight.array().transpose(order).reshape(shape).astype(output.dtype)
        matrix = ctx.constant(array, of=weight, form=f"{order} {shape} {output.dtype}")
    rows = ctx.transpose(ctx.cast(x, output.dtype), (*free_x, *contract_x))
    rows = ctx.reshape(rows, [*(x.shape[axis] for axis in free_x), depth])
    return ctx.reshape(ctx.add("linear", rows, matrix, bias, weight_layout="io" if inputs_first else "oi"), output.shape)


def _others(value: Value, taken: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(value.shape)) if axis not in taken)


def _size(value: Value, axes: Sequence[int]) -> int:
    return math.prod(value.shape[axis] for axis in axes)


def _contracts_first(free: tuple[int, ...], contract: tuple[int, ...]) -> bool:
    """True if the contracted axes stand before the free ones, so that [depth, free] needs no transposing."""
    return bool(free) and max(contract) < min(free)


@TABLE.lowers("conv_general_dilated")
def _conv(ctx: Context, eqn: Equation) -> str:
    """Convolution with one to three spatial axes; NHWC and NCHW run as they are, other layouts between transposes."""
    params, output = eqn.params, eqn.outputs[0]
    numbers = params["dimension_numbers"]
    spatial = len(params["window_strides"])
    if spatial not in (1, 2, 3):
        raise RefusedError(f"convolution over {spatial} spatial axes")
    layout = "NCHW" if tuple(numbers.lhs_spec) == tuple(range(spatial + 2)) else "NHWC"
    # A spec gives the positions of batch, channels and spatial axes; (N, C, spatial) and (N, spatial, C) are orders of those.
    ordered = [0, 1, *range(2, spatial + 2)] if layout == "NCHW" else [0, *range(2, spatial + 2), 1]
    x = ctx.transpose(ctx.cast(eqn.inputs[0], output.dtype), [numbers.lhs_spec[role] for role in ordered])
    groups = int(params["feature_group_count"])
    if (batches := int(params["batch_group_count"])) != 1:
        x, groups = _grouped_batch(ctx, x, batches, layout), batches
    window = _Window(
        sizes=[eqn.inputs[1].shape[axis] for axis in numbers.rhs_spec[2:]],
        strides=[int(stride) for stride in params["window_strides"]],
        pads=[(int(low), int(high)) for low, high in params["padding"]],
        dilations=[int(dilation) for dilation in params["rhs_dilation"]],
        spread=[int(dilation) for dilation in params["lhs_dilation"]],
    )
    if spatial == 1:  # an axis of size 1 makes it two
        at = 2 if layout == "NCHW" else 1
        x = ctx.reshape(x, [*ctx.shape(x)[:at], 1, *ctx.shape(x)[at:]])
        window = _Window([1, *window.sizes], [1, *window.strides], [(0, 0), *window.pads], [1, *window.dilations], [1, *window.spread])
    if set(window.spread) == {1}:
        y = _plain_conv(ctx, eqn, x, window, groups, layout)
    elif window.transposes() and eqn.inputs[1].constant is not None:
        weight = _transposed_weight(ctx, eqn.inputs[1], numbers.rhs_spec, window, groups, output)
        behind = [max(0, -high) for _, high in window.cut()]
        pads = [(low, max(0, high)) for low, high in window.cut()]
        attrs = {"strides": window.spread, "pads": pads, "dilations": window.dilations, "output_padding": behind}
        y = ctx.add("conv2d_transpose", x, weight, None, groups=groups, data_layout=layout, **attrs)
    else:
        y = _plain_conv(ctx, eqn, _spread(ctx, x, window, layout), window, groups, layout)
    placed = [numbers.out_spec[role] for role in ordered]
    return ctx.transpose(ctx.reshape(y, [output.shape[axis] for axis in placed]), [placed.index(axis) for axis in range(len(placed))])


def _grouped_batch(ctx: Context, x: str, groups: int, layout: str) -> str:
    """Puts the groups of the batch side by side as groups of channels: each has filters of its own."""
    shape = ctx.shape(x)
    batch, at = shape[0] // groups, 1 if layout == "NCHW" else len(shape) - 1
    parted = ctx.reshape(x, (groups, batch, *shape[1:]))
    beside = [axis for axis in range(1, len(shape) + 1) if axis != at + 1]
    turned = ctx.transpose(parted, [1, *beside[1:at], 0, at + 1, *beside[at:]])
    return ctx.reshape(turned, (batch, *shape[1:at], groups * shape[at], *shape[at + 1 :]))


@dataclass(slots=True)
class _Window:
    """How a kernel moves over the spatial axes; ``spread`` is how far apart the elements of x are set, lhs_dilation."""

    sizes: list[int]
    strides: list[int]
    pads: list[tuple[int, int]]
    dilations: list[int]
    spread: list[int]

    def cut(self) -> list[tuple[int, int]]:
        """Returns what a transposed convolution cuts off its full result to give the same; negative: what it adds."""
        reach = [(size - 1) * dilation for size, dilation in zip(self.sizes, self.dilations, strict=True)]
        return [(full - low, full - high) for full, (low, high) in zip(reach, self.pads, strict=True)]

    def transposes(self) -> bool:
        """True if it is a transposed convolution: steps of 1 over a spread x, and no more padding before it than the kernel reaches."""
        return len(self.sizes) == 2 and set(self.strides) == {1} and min(low for low, _ in self.cut()) >= 0


def _plain_conv(ctx: Context, eqn: Equation, x: str, window: _Window, groups: int, layout: str) -> str:
    x, pads = _cropped(ctx, x, window.pads, layout)
    weight = eqn.inputs[1]
    spec = eqn.params["dimension_numbers"].rhs_spec
    shape = [weight.shape[spec[0]], weight.shape[spec[1]], *window.sizes]
    kernel = _conv_weight(ctx, weight, spec, shape, eqn.outputs[0])
    attrs = {"strides": window.strides, "pads": pads, "dilations": window.dilations, "groups": groups, "data_layout": layout}
    return str(ctx.add("conv3d" if len(window.sizes) == 3 else "conv2d", x, kernel, None, **attrs))


def _spread(ctx: Context, x: str, window: _Window, layout: str) -> str:
    """Sets zeros between the elements of x."""
    rank = len(ctx.shape(x))
    none, interior = [0] * rank, [0] * rank
    for axis, spread in enumerate(window.spread, 2 if layout == "NCHW" else 1):
        interior[axis] = spread - 1
    return str(ctx.add("pad", x, mode="constant", low=none, high=none, interior=interior, value=0))


def _transposed_weight(ctx: Context, weight: Value, spec: Sequence[int], window: _Window, groups: int, output: Value) -> str:
    """Returns the kernel in the order IOHW of conv2d_transpose, which does not turn it round as this way of writing it does."""
    array = weight.array().transpose(spec).astype(output.dtype)
    outputs, inputs = array.shape[:2]
    array = array.reshape(groups, outputs // groups, inputs, *window.sizes)[..., ::-1, ::-1].swapaxes(1, 2)
    array = array.reshape(groups * inputs, outputs // groups, *window.sizes)
    return ctx.constant(array, of=weight, form=f"IOHW {tuple(spec)} {groups} {output.dtype}")


def _cropped(ctx: Context, x: str, pads: list[tuple[int, int]], layout: str) -> tuple[str, list[tuple[int, int]]]:
    """Cuts off what negative padding takes away; returns the rest and the padding that is left."""
    if min(min(pad) for pad in pads) >= 0:
        return x, pads
    shape = ctx.shape(x)
    start, limit = [0] * len(shape), list(shape)
    for axis, (low, high) in enumerate(pads, 2 if layout == "NCHW" else 1):
        start[axis], limit[axis] = max(0, -low), shape[axis] + min(0, high)
    return ctx.add("slice", x, start=start, limit=limit, strides=[1] * len(shape)), [(max(0, low), max(0, high)) for low, high in pads]


def _conv_weight(ctx: Context, weight: Value, spec: Sequence[int], shape: Sequence[int], output: Value) -> str:
    """Returns the kernel in the order OIHW."""
    if weight.constant is None:
        return ctx.reshape(ctx.transpose(ctx.cast(weight, output.dtype), spec), shape)
    array = weight.array().transpose(spec).reshape(shape).astype(output.dtype)
    return ctx.constant(array, of=weight, form=f"OIHW {tuple(spec)} {output.dtype}")
