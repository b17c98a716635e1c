"""Lowerings of operators that read or write at indices: embedding, advanced indexing, gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from exporters.from_torch.context import ATEN, Context, RefusedError, Scalar
from rml_exec.types import DType


def _indices(ctx: Context, indices: str) -> str:
    return indices if ctx.type(indices).dtype in (DType.I32, DType.I64) else ctx.cast(indices, DType.I64)


def _take(ctx: Context, x: str, indices: str, axis: int, *, wrap: bool) -> str:
    return str(ctx.add("take", [x, _indices(ctx, indices)], axis=axis, oob="error", wrap_negative=wrap, fill_value=None))


@ATEN.lowers("aten.embedding")
def _embedding(ctx: Context, weight: str, indices: str, *_: object) -> str:
    return _take(ctx, weight, indices, 0, wrap=False)


@ATEN.lowers("aten.index_select")
def _index_select(ctx: Context, x: str, dim: int, indices: str) -> str:
    line = x if ctx.type(x).rank else ctx.reshape(x, [1])
    picked = _take(ctx, line, ctx.reshape(indices, [ctx.type(indices).size]), ctx.axis(x, dim), wrap=False)
    return ctx.reshape(picked, ctx.result().shape)


@ATEN.lowers("aten.index", "aten._unsafe_index")
def _index(ctx: Context, x: str, indices: Sequence[str | None]) -> str:
    """Advanced indexing: one index tensor is a ``take``, several are a ``gather_nd``.

    The indexed axes come first in the result if they are not adjacent, as in NumPy.
    """
    ctx.result()  # refuses a mask that depends on data with a better reason
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(ctx.type(index).dtype is DType.BOOL for index in given):
        raise RefusedError("indexing with a mask is not supported")
    if len(axes) == 1:
        return _take(ctx, x, given[0], axes[0], wrap=True)
    if all(ctx.known(index) is not None for index in given):
        return _known_index(ctx, x, axes, given)
    points = _points(ctx, given)
    picked = ctx.step("gather_nd", [_indexed_first(ctx, x, axes), points], batch_dims=0, oob="error", wrap_negative=True, fill_value=None)
    if axes != list(range(axes[0], axes[-1] + 1)):
        return str(picked)
    count = ctx.type(points).rank - 1
    rank = ctx.type(picked).rank
    first = axes[0]
    return _turned(ctx, picked, (*range(count, count + first), *range(count), *range(count + first, rank)))


def _known_index(ctx: Context, x: str, axes: list[int], given: list[str]) -> str:
    """Several index tensors that are known at export: one ``take`` from their axes merged into one, if every index is in range."""
    shape = ctx.type(x).shape
    merged = np.zeros((), np.int64)
    for axis, name in zip(axes, given, strict=True):
        array = np.asarray(ctx.known(name))
        if array.size and not (-shape[axis] <= array.min() and array.max() < shape[axis]):
            raise RefusedError(f"an index is out of range of axis {axis} with {shape[axis]} elements")
        merged = merged * shape[axis] + np.where(array < 0, array + shape[axis], array)
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    if not adjacent:
        x = _indexed_first(ctx, x, axes)
        shape = ctx.type(x).shape
    first = axes[0] if adjacent else 0
    x = ctx.reshape(x, (*shape[:first], math.prod(shape[first : first + len(axes)]), *shape[first + len(axes) :]))
    return _take(ctx, x, ctx.builder.constant(merged, f"{ctx.node.name}.indices"), first, wrap=False)


def _points(ctx: Context, given: Sequence[str]) -> str:
    """Returns the index tensors, broadcast to one shape, as one tensor with the indices of a point on its last axis."""
    shape = np.broadcast_shapes(*(ctx.type(index).shape for index in given))
    columns = []
    for index in given:
        index = ctx.cast(index, DType.I64)
        wide = index if ctx.type(index).shape == shape else ctx.step("broadcast", [index], shape=shape)
        columns.append(ctx.reshape(wide, [*shape, 1]))
    return columns[0] if len(columns) == 1 else str(ctx.step("concat", columns, axis=len(shape)))


def _indexed_first(ctx: Context, x: str, axes: Sequence[int]) -> str:
    return _turned(ctx, x, (*axes, *(axis for axis in range(ctx.type(x).rank) if axis not in axes)))


def _turned(ctx: Context, x: str, perm: tuple[int, ...]) -> str:
    return x if perm == tuple(range(len(perm))) else str(ctx.step("transpose", [x], perm=perm))


@ATEN.lowers("aten.index_put", "aten._unsafe_index_put")
def _index_put(ctx: Context, x: str, indices: Sequence[str | None], values: str, accumulate: bool) -> str:
    """Writes values at points; a mask is a ``select`` if there is one value for all that it picks."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if len(given) == 1 and ctx.type(given[0]).dtype is DType.BOOL:
        return _masked_put(ctx, x, given[0], axes[0], values, accumulate)
    if any(ctx.type(index).dtype is DType.BOOL for index in given):
        raise RefusedError("indexing with a mask and other indices is not supported")
    points = _points(ctx, given)
    turned = _indexed_first(ctx, x, axes)
    batch, rest = ctx.type(points).shape[:-1], ctx.type(turned).shape[len(axes) :]
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    shape = (*rest[:first], *batch, *rest[first:])  # of the result of reading at these indices
    wide = values if ctx.type(values).shape == shape else ctx.step("broadcast", [values], shape=shape)
    updates = _turned(ctx, wide, (*range(first, first + len(batch)), *range(first), *range(first + len(batch), len(shape))))
    kind = "add" if accumulate else "none"
    written = ctx.step("scatter_nd", [turned, points, updates], reduce=kind, oob="error", wrap_negative=True)
    perm = (*axes, *(axis for axis in range(ctx.type(x).rank) if axis not in axes))
    return _turned(ctx, str(written), tuple(int(axis) for axis in np.argsort(perm)))


def _masked_put(ctx: Context, x: str, mask: str, axis: int, values: str, accumulate: bool) -> str:
    type_, covered = ctx.type(x), ctx.type(mask).rank
    behind = type_.shape[axis + covered :]
    shape = ctx.type(values).shape
    if len(shape) > len(behind) and shape[-len(behind) - 1] != 1:
        raise RefusedError("how many values a mask takes depends on data")
    mask = ctx.reshape(mask, [*ctx.type(mask).shape, *(1 for _ in behind)])
    if len(shape) > len(behind):
        values = ctx.reshape(values, shape[len(shape) - len(behind) :])
    new = ctx.step("add", [x, values]) if accumulate else values
    return str(ctx.add("select", [mask, new, x]))


@ATEN.lowers("aten.masked_scatter")
def _masked_scatter(ctx: Context, x: str, mask: str, source: str) -> str:
    """The n-th place where the mask is true gets the n-th element of the source."""
    shape, size = ctx.type(x).shape, ctx.type(x).size
    wide = mask if ctx.type(mask).shape == shape else ctx.step("broadcast", [mask], shape=shape)
    flat = ctx.reshape(wide, [size])
    count = ctx.step("cumulative", [ctx.cast(flat, DType.I64)], kind="sum", axis=0, exclusive=True, reverse=False)
    line = ctx.reshape(source, [ctx.type(source).size])
    picked = ctx.step("take", [line, count], axis=0, oob="clamp", wrap_negative=False, fill_value=None)
    return str(ctx.add("select", [wide, ctx.reshape(picked, shape), x]))


@ATEN.lowers("aten.gather")
def _gather(ctx: Context, x: str, dim: int, indices: str, sparse_grad: bool) -> str:
    line, index = (value if ctx.type(value).rank else ctx.reshape(value, [1]) for value in (x, _indices(ctx, indices)))
    attrs = {"axis": ctx.axis(line, dim), "oob": "error", "wrap_negative": False, "fill_value": None}
    return ctx.reshape(ctx.step("take_along_axis", [line, index], **attrs), ctx.result().shape)


def _scatter(ctx: Context, x: str, dim: int, indices: str, source: str, kind: str) -> str:
    shape = ctx.type(x).shape
    line, index, updates = (value if ctx.type(value).rank else ctx.reshape(value, [1]) for value in (x, _indices(ctx, indices), source))
    sizes = ctx.type(index).shape
    if ctx.type(updates).shape != sizes:  # torch reads the leading part of the source
        updates = ctx.step("slice", [updates], start=(0,) * len(sizes), limit=sizes, strides=(1,) * len(sizes))
    attrs = {"axis": ctx.axis(line, dim), "reduce": kind, "oob": "error", "wrap_negative": False}
    return ctx.reshape(ctx.step("scatter_along_axis", [line, index, updates], **attrs), shape)


@ATEN.lowers("aten.scatter.src")
def _scatter_source(ctx: Context, x: str, dim: int, indices: str, source: str) -> str:
    return _scatter(ctx, x, dim, indices, source, "none")


@ATEN.lowers("aten.scatter_add")
def _scatter_add(ctx: Context, x: str, dim: int, indices: str, source: str) -> str:
    return _scatter(ctx, x, dim, indices, source, "add")


def _filled(ctx: Context, like: str, value: Scalar, dtype: DType) -> str:
    return str(ctx.step("broadcast", [ctx.scalar(value, dtype)], shape=ctx.type(like).shape))


@ATEN.lowers("aten.scatter.value")
def _scatter_value(ctx: Context, x: str, dim: int, indices: str, value: Scalar) -> str:
    return _scatter(ctx, x, dim, indices, _filled(ctx, indices, value, ctx.type(x).dtype), "none")


@ATEN.lowers("aten.one_hot")
def _one_hot(ctx: Context, indices: str, classes: int = -1) -> str:
    """Ones written into zeros: torch's own decomposition compares with ``arange``, and an index out of range is no error any more."""
    if classes < 0:
        raise RefusedError("the number of classes depends on data: give num_classes")
    column = ctx.reshape(indices, [*ctx.type(indices).shape, 1])
    zeros = ctx.step("broadcast", [ctx.scalar(0, DType.I64)], shape=(*ctx.type(indices).shape, classes))
    return _scatter(ctx, zeros, -1, column, _filled(ctx, column, 1, DType.I64), "none")


_KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}


@ATEN.lowers("aten.scatter.reduce")
def _scatter_reducing(ctx: Context, x: str, dim: int, indices: str, source: str, reduce: str) -> str:
    return _scatter(ctx, x, dim, indices, source, _KINDS[reduce])


@ATEN.lowers("aten.scatter.value_reduce")
def _scatter_value_reducing(ctx: Context, x: str, dim: int, indices: str, value: Scalar, reduce: str) -> str:
    return _scatter(ctx, x, dim, indices, _filled(ctx, indices, value, ctx.type(x).dtype), _KINDS[reduce])


@ATEN.lowers("aten.scatter_reduce.two")
def _scatter_reduce(ctx: Context, x: str, dim: int, indices: str, source: str, reduce: str, include_self: bool) -> str:
    """Without ``include_self`` the elements that get something begin at what changes nothing; a mean counts what came together."""
    dtype, kind = ctx.type(x).dtype, _KINDS[reduce]
    if not include_self:
        none, yes = _filled(ctx, x, False, DType.BOOL), _filled(ctx, indices, True, DType.BOOL)
        start = {"add": 0, "mul": 1}.get(kind, _worst(dtype, kind))
        x = ctx.step("select", [_scatter(ctx, none, dim, indices, yes, "none"), _filled(ctx, x, start, dtype), x])
    total = _scatter(ctx, x, dim, indices, source, kind)
    if reduce != "mean":
        return total
    ones = _filled(ctx, x, 1 if include_self else 0, dtype)
    count = _scatter(ctx, ones, dim, indices, _filled(ctx, indices, 1, dtype), "add")
    if not include_self:
        count = ctx.step("max", [count, ctx.scalar(1, dtype)])
    return str(ctx.add("div", [total, count], rounding="true" if dtype.is_float else "floor"))


def _worst(dtype: DType, kind: str) -> Scalar:
    """Returns the number that every other beats in a ``max`` or ``min``."""
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if kind == "max" else limits.max)
