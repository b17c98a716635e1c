"""Lowerings of operators that move, cut, join or pick elements. Memory formats and aliasing mean nothing here: the graph is functional."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from exporters.from_torch.context import ATEN, Context, RefusedError, Scalar
from rml_exec.types import DType


@ATEN.lowers("aten.alias", "aten.clone", "aten.detach")
def _identity(ctx: Context, x: str) -> str:
    return x


@ATEN.lowers("aten.copy")
def _copy(ctx: Context, x: str, source: str) -> str:
    value = ctx.cast(source, ctx.type(x).dtype)
    return value if ctx.type(value).shape == ctx.type(x).shape else str(ctx.add("broadcast", [value], shape=ctx.type(x).shape))


@ATEN.lowers("aten.view.default", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze")
def _reshape(ctx: Context, x: str, *_: object) -> str:
    shape = ctx.result().shape
    return x if ctx.type(x).shape == shape else str(ctx.add("reshape", [x], shape=shape))


@ATEN.lowers("aten.permute")
def _permute(ctx: Context, x: str, dims: Sequence[int]) -> str:
    return str(ctx.add("transpose", [x], perm=tuple(ctx.axis(x, dim) for dim in dims)))


@ATEN.lowers("aten.transpose")
def _transpose(ctx: Context, x: str, first: int, second: int) -> str:
    perm = list(range(ctx.type(x).rank))
    if not perm:
        return x
    a, b = ctx.axis(x, first), ctx.axis(x, second)
    perm[a], perm[b] = perm[b], perm[a]
    return str(ctx.add("transpose", [x], perm=tuple(perm)))


@ATEN.lowers("aten.t")
def _t(ctx: Context, x: str) -> str:
    return x if ctx.type(x).rank < 2 else str(ctx.add("transpose", [x], perm=(1, 0)))


@ATEN.lowers("aten.expand")
def _expand(ctx: Context, x: str, *_: object) -> str:
    shape = ctx.result().shape
    return x if ctx.type(x).shape == shape else str(ctx.add("broadcast", [x], shape=shape))


@ATEN.lowers("aten.full", "aten.scalar_tensor", "aten.empty", "aten.empty_strided")
def _created(ctx: Context, *arguments: object) -> str:
    """A tensor of one number, of a size that is symbolic: others are computed at export. Whatever ``empty`` holds is 0 here."""
    value = {"full": arguments[1], "scalar_tensor": arguments[0]}.get(ctx.packet, 0)
    result = ctx.result()
    made = str(ctx.add("broadcast", [ctx.scalar(value, result.dtype)], shape=result.shape))  # type: ignore[arg-type]
    if value == 0:
        ctx.zeros.add(made)
    return made


@ATEN.lowers("aten.arange.start_step")
def _arange(ctx: Context, start: Scalar, end: Scalar, step: Scalar, dtype: object) -> str:
    """Numbers of a symbolic count, in float64 on the way to floats, as torch computes them."""
    result = ctx.result()
    wide = DType.F64 if result.dtype.is_float else DType.I64
    x = ctx.step("iota", [], dtype=wide.value, shape=result.shape, axis=0)
    if step != 1:
        x = ctx.step("mul", [x, ctx.scalar(step, wide)])
    if start != 0:
        x = ctx.step("add", [x, ctx.scalar(start, wide)])
    return ctx.cast(x, result.dtype)


@ATEN.lowers("aten.full_like", "aten.fill.Scalar", "aten.new_full")
def _full(ctx: Context, x: str, *arguments: object) -> str:
    value = arguments[-2] if ctx.packet == "new_full" else arguments[0]
    result = ctx.result()
    return str(ctx.add("broadcast", [ctx.scalar(value, result.dtype)], shape=result.shape))  # type: ignore[arg-type]


def _cut(ctx: Context, x: str, axis: int, start: int, limit: int, step: int = 1, *, final: bool = False) -> str:
    """Returns elements start to limit of one axis, by Python's rules for slices."""
    shape = ctx.type(x).shape
    start, limit, _ = slice(start, limit).indices(shape[axis])
    bounds = [(0, size, 1) for size in shape]
    bounds[axis] = (start, max(start, limit), step)
    starts, limits, strides = zip(*bounds, strict=True)
    return str((ctx.add if final else ctx.step)("slice", [x], start=starts, limit=limits, strides=strides))


@ATEN.lowers("aten.slice")
def _slice(ctx: Context, x: str, dim: int, start: int | None, end: int | None, step: int) -> str:
    axis = ctx.axis(x, dim)
    if ctx.result().shape == ctx.type(x).shape:
        return x
    return _cut(ctx, x, axis, start or 0, ctx.type(x).shape[axis] if end is None else end, step, final=True)


@ATEN.lowers("aten.select")
def _select(ctx: Context, x: str, dim: int, index: int) -> str:
    axis = ctx.axis(x, dim)
    start = index % ctx.type(x).shape[axis]
    return str(ctx.add("reshape", [_cut(ctx, x, axis, start, start + 1)], shape=ctx.result().shape))


@ATEN.lowers("aten.split_with_sizes", "aten.split_with_sizes_copy")
def _split_with_sizes(ctx: Context, x: str, sizes: Sequence[int], dim: int) -> tuple[str, ...]:
    axis, parts, start = ctx.axis(x, dim), [], 0
    for size in sizes:
        parts.append(_cut(ctx, x, axis, start, start + size))
        start += size
    return tuple(parts)


@ATEN.lowers("aten.split")
def _split(ctx: Context, x: str, size: int, dim: int) -> tuple[str, ...]:
    total = ctx.type(x).shape[ctx.axis(x, dim)]
    return _split_with_sizes(ctx, x, [min(size, total - start) for start in range(0, total, size)] or [0], dim)


@ATEN.lowers("aten.unbind")
def _unbind(ctx: Context, x: str, dim: int) -> tuple[str, ...]:
    axis = ctx.axis(x, dim)
    shape = ctx.type(x).shape
    rest = shape[:axis] + shape[axis + 1 :]
    return tuple(ctx.reshape(_cut(ctx, x, axis, i, i + 1), rest) for i in range(shape[axis]))


@ATEN.lowers("aten.slice_scatter")
def _slice_scatter(ctx: Context, x: str, source: str, dim: int, start: int | None, end: int | None, step: int) -> str:
    axis = ctx.axis(x, dim)
    size = ctx.type(x).shape[axis]
    first, limit, _ = slice(start, end).indices(size)
    if step != 1:
        raise RefusedError("writing into every second element and the like is not supported")
    parts = [_cut(ctx, x, axis, 0, first), source, _cut(ctx, x, axis, max(first, limit), size)]
    return str(ctx.add("concat", [part for part in parts if ctx.type(part).shape[axis]] or [source], axis=axis))


@ATEN.lowers("aten.select_scatter")
def _select_scatter(ctx: Context, x: str, source: str, dim: int, index: int) -> str:
    axis = ctx.axis(x, dim)
    shape = list(ctx.type(x).shape)
    start = index % shape[axis]
    shape[axis] = 1
    return _slice_scatter(ctx, x, ctx.reshape(source, shape), axis, start, start + 1, 1)


@ATEN.lowers("aten.cat")
def _cat(ctx: Context, parts: Sequence[str], dim: int) -> str:
    """Parts are promoted to one type; an empty 1-D part among others of higher rank is skipped, as torch does."""
    result = ctx.result()
    kept = [ctx.cast(part, result.dtype) for part in parts if ctx.type(part).rank == result.rank] or list(parts)
    return kept[0] if len(kept) == 1 else str(ctx.add("concat", kept, axis=dim % result.rank))


@ATEN.lowers("aten.stack")
def _stack(ctx: Context, parts: Sequence[str], dim: int) -> str:
    result = ctx.result()
    axis = dim % result.rank
    shape = [1 if index == axis else size for index, size in enumerate(result.shape)]
    return str(ctx.add("concat", [ctx.reshape(ctx.cast(part, result.dtype), shape) for part in parts], axis=axis))


@ATEN.lowers("aten.repeat")
def _repeat(ctx: Context, x: str, repeats: Sequence[int]) -> str:
    """Tiles: every axis becomes (repeat, size), the first of them broadcast, and both are merged."""
    result = ctx.result().shape
    shape = (1,) * (len(repeats) - ctx.type(x).rank) + ctx.type(x).shape
    parted = ctx.reshape(x, [entry for size in shape for entry in (1, size)])
    tiled = ctx.step("broadcast", [parted], shape=tuple(entry for pair in zip(repeats, shape, strict=True) for entry in pair))
    return str(ctx.add("reshape", [tiled], shape=result))


@ATEN.lowers("aten.flip")
def _flip(ctx: Context, x: str, dims: Sequence[int]) -> str:
    return str(ctx.add("reverse", [x], axes=tuple(sorted({ctx.axis(x, dim) for dim in dims}))))


@ATEN.lowers("aten.roll")
def _roll(ctx: Context, x: str, shifts: Sequence[int], dims: Sequence[int]) -> str:
    shape = ctx.type(x).shape
    y = x if dims else ctx.reshape(x, [math.prod(shape)])
    for shift, dim in zip(shifts, dims or [0], strict=True):
        axis = ctx.axis(y, dim)
        size = ctx.type(y).shape[axis]
        if size and shift % size:
            cut = size - shift % size
            y = ctx.step("concat", [_cut(ctx, y, axis, cut, size), _cut(ctx, y, axis, 0, cut)], axis=axis)
    return ctx.reshape(y, shape)


@ATEN.lowers("aten.constant_pad_nd")
def _constant_pad(ctx: Context, x: str, pads: Sequence[int], value: Scalar) -> str:
    """Pads as torch lists them: (low, high) from the last axis backwards, negative ones crop."""
    low, high = _pads(ctx, x, pads)
    if not any((*low, *high)):
        return x
    return str(ctx.add("pad", [x], mode="constant", low=low, high=high, interior=(0,) * len(low), value=float(value)))


def _pads(ctx: Context, x: str, pads: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rest = [0] * (ctx.type(x).rank - len(pads) // 2)
    return (*rest, *pads[-2::-2]), (*rest, *pads[::-2])


def _edge_pad(packet: str, mode: str) -> None:
    @ATEN.lowers(*(f"aten.{packet}{rank}d" for rank in (1, 2, 3)))
    def lower(ctx: Context, x: str, pads: Sequence[int]) -> str:
        low, high = _pads(ctx, x, pads)
        return str(ctx.add("pad", [x], mode=mode, low=low, high=high, interior=(0,) * len(low), value=None))


_edge_pad("reflection_pad", "reflect")
_edge_pad("replication_pad", "edge")


@ATEN.lowers("aten.diagonal")
def _diagonal(ctx: Context, x: str, offset: int, first: int, second: int) -> str:
    """The two axes come last and are merged into one, of which every (columns + 1)-th element is taken."""
    rank = ctx.type(x).rank
    a, b = ctx.axis(x, first), ctx.axis(x, second)
    turned = ctx.step("transpose", [x], perm=(*(axis for axis in range(rank) if axis not in (a, b)), a, b))
    *rest, rows, columns = ctx.type(turned).shape
    start = max(-offset, 0) * columns + max(offset, 0)
    return _pick(ctx, ctx.reshape(turned, [*rest, rows * columns]), start + (columns + 1) * np.arange(ctx.result().shape[-1]))


@ATEN.lowers("aten.as_strided")
def _as_strided(ctx: Context, x: str, size: Sequence[int], stride: Sequence[int], offset: int | None) -> str:
    """Elements at given places of the memory of ``x``, which must be laid out in order."""
    source = ctx.node.args[0].meta["val"]
    if not source.is_contiguous() or source.storage_offset() or any(not isinstance(number, int) for number in (*size, *stride)):
        raise RefusedError("it looks into the memory of a tensor that is a view of another")
    places = np.full((), offset or 0)
    for count, step in zip(size, stride, strict=True):
        places = places[..., None] + step * np.arange(count)
    flat = ctx.reshape(x, [math.prod(ctx.type(x).shape)])
    return ctx.reshape(_pick(ctx, flat, places.reshape(-1)), size)


@ATEN.lowers("aten.unfold")
def _unfold(ctx: Context, x: str, dim: int, size: int, step: int) -> str:
    """Windows along an axis, their elements on a new last axis."""
    if not ctx.type(x).rank:
        return ctx.reshape(x, [size])
    axis, rank = ctx.axis(x, dim), ctx.type(x).rank
    count = ctx.result().shape[axis]
    last = ctx.step("transpose", [x], perm=(*(a for a in range(rank) if a != axis), axis))
    places = step * np.arange(count)[:, None] + np.arange(size)
    *rest, _ = ctx.type(last).shape
    windows = ctx.reshape(_pick(ctx, last, places.reshape(-1)), [*rest, count, size])
    return str(ctx.add("transpose", [windows], perm=(*range(axis), rank - 1, *range(axis, rank - 1), rank)))


def _pick(ctx: Context, x: str, places: np.ndarray) -> str:
    """Takes elements known at export along the last axis."""
    indices = ctx.builder.constant(places.astype(np.int64), f"{ctx.node.name}.indices")
    axis = ctx.type(x).rank - 1
    return str(ctx.step("take", [x, indices], axis=axis, oob="error", wrap_negative=False, fill_value=None))
