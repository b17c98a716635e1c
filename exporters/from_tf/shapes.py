"""Operations that look at shapes or move elements without computing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from exporters.from_tf.table import TABLE, Context, Known, RefusalError, Value

__all__ = ["lower_identity", "lower_reshape", "pad_zeros"]


@TABLE.lowers(
    "Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "CheckNumerics", "PlaceholderWithDefault"
)
def lower_identity(ctx: Context, *operands: Value) -> Sequence[Value]:
    """Vanishes."""
    return operands


@TABLE.lowers("Shape", "ShapeN")
def _shape(ctx: Context, *operands: Value) -> Sequence[Value]:
    dtype = ctx.output_dtype().numpy
    return [ctx.size(np.asarray(ctx.shape(operand), dtype), index) for index, operand in enumerate(operands)]


@TABLE.lowers("Size")
def _size(ctx: Context, x: Value) -> Value:
    return ctx.size(np.asarray(ctx.type(x).size, ctx.output_dtype().numpy))


@TABLE.lowers("Rank")
def _rank(ctx: Context, x: Value) -> Value:
    return ctx.constant(np.asarray(len(ctx.shape(x)), np.int32))


@TABLE.lowers("Reshape", "ExpandDims", "Squeeze")
def lower_reshape(ctx: Context, x: Value, extra: Value | None = None) -> Value:
    """All three are one ``reshape``; they differ in how they say the shape."""
    shape = list(ctx.shape(x))
    if ctx.op.type == "Squeeze":
        axes = [axis % len(shape) for axis in ctx.attr("squeeze_dims")] or [axis for axis, dim in enumerate(shape) if dim == 1]
        return ctx.reshape(x, [dim for axis, dim in enumerate(shape) if axis not in axes])
    assert extra is not None
    if ctx.op.type == "ExpandDims":
        axis = ctx.axis(extra, len(shape) + 1)
        return ctx.reshape(x, [*shape[:axis], 1, *shape[axis:]])
    wanted = ctx.ints(extra, "the shape")
    if -1 in wanted:
        rest = math.prod(dim for dim in wanted if dim != -1)
        wanted[wanted.index(-1)] = math.prod(shape) // rest if rest else 0
    return ctx.reshape(x, wanted)


@TABLE.lowers("Transpose")
def _transpose(ctx: Context, x: Value, perm: Value) -> Value:
    rank = len(ctx.shape(x))
    return ctx.transpose(x, [axis % rank for axis in ctx.ints(perm, "the permutation")])


@TABLE.lowers("ConcatV2", "Concat")
def _concat(ctx: Context, *operands: Value) -> Value:
    *parts, axis = operands if ctx.op.type == "ConcatV2" else (*operands[1:], operands[0])
    return parts[0] if len(parts) == 1 else ctx.add("concat", *parts, axis=ctx.axis(axis, len(ctx.shape(parts[0]))))


@TABLE.lowers("Pack")
def _pack(ctx: Context, *parts: Value) -> Value:
    shape = ctx.shape(parts[0])
    axis = ctx.attr("axis") % (len(shape) + 1)
    rows = [ctx.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return rows[0] if len(rows) == 1 else ctx.add("concat", *rows, axis=axis)


@TABLE.lowers("Unpack")
def _unpack(ctx: Context, x: Value) -> Sequence[Value]:
    shape = ctx.shape(x)
    axis = ctx.attr("axis") % len(shape)
    return [ctx.reshape(part, shape[:axis] + shape[axis + 1 :]) for part in _parts(ctx, x, axis, [1] * shape[axis])]


@TABLE.lowers("Split")
def _split(ctx: Context, axis: Value, x: Value) -> Sequence[Value]:
    along = ctx.axis(axis, len(ctx.shape(x)))
    count = ctx.attr("num_split")
    return _parts(ctx, x, along, [ctx.shape(x)[along] // count] * count)


@TABLE.lowers("SplitV")
def _split_v(ctx: Context, x: Value, sizes: Value, axis: Value) -> Sequence[Value]:
    along = ctx.axis(axis, len(ctx.shape(x)))
    counts = ctx.ints(sizes, "the sizes")
    if -1 in counts:
        counts[counts.index(-1)] = ctx.shape(x)[along] - sum(counts) - 1
    return _parts(ctx, x, along, counts)


def _parts(ctx: Context, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Returns consecutive parts of ``x`` along an axis."""
    shape, parts, first = ctx.shape(x), [], 0
    for size in sizes:
        start = [first if index == axis else 0 for index in range(len(shape))]
        limit = [first + size if index == axis else dim for index, dim in enumerate(shape)]
        parts.append(ctx.slice(x, start, limit))
        first += size
    return parts


@TABLE.lowers("StridedSlice")
def _strided_slice(ctx: Context, x: Value, begin: Value, end: Value, strides: Value) -> Value:
    """Python's slicing: ``x[...]`` with ``new_axis``, ``...`` and single indices given as bit masks over the specification."""
    shape = ctx.shape(x)
    if not isinstance(begin, Known):
        return _index_at_run_time(ctx, x, begin)
    specification = list(zip(ctx.ints(begin, "the begin"), ctx.ints(end, "the end"), ctx.ints(strides, "the strides"), strict=True))
    begins, ends, ellipsis, new_axes, shrinks = (
        ctx.attr(f"{mask}_mask") for mask in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )

    def has(mask: int, index: int) -> bool:
        return bool(mask >> index & 1)

    taken = sum(not has(new_axes, index) and not has(ellipsis, index) for index in range(len(specification)))
    if not ellipsis:  # one stands at the end
        specification.append((0, 0, 1))
        ellipsis = 1 << len(specification) - 1
    selections: list[slice] = []
    result: list[int] = []
    for index, (first, last, step) in enumerate(specification):
        axis = len(selections)
        if has(ellipsis, index):
            rest = range(axis, axis + len(shape) - taken)
            selections += [slice(0, shape[covered], 1) for covered in rest]
            result += [shape[covered] for covered in rest]
        elif has(new_axes, index):
            result.append(1)
        elif has(shrinks, index):
            first += shape[axis] if first < 0 else 0
            if not 0 <= first < shape[axis]:
                raise RefusalError(f"index {first} is out of range for axis {axis} of size {shape[axis]}")
            selections.append(slice(first, first + 1, 1))
        else:
            chosen = range(shape[axis])[slice(None if has(begins, index) else first, None if has(ends, index) else last, step)]
            selections.append(slice(chosen.start, chosen.stop, chosen.step) if len(chosen) else slice(0, 0, 1))
            result.append(len(chosen))
    return ctx.reshape(_select_range(ctx, x, selections), result)


def _index_at_run_time(ctx: Context, x: Value, begin: Value) -> Value:
    """``x[i, :, j]``: single indices known at run time only, and whole axes. A negative index counts from the end."""
    entries = range(ctx.shape(begin)[0])
    whole, single = (ctx.attr(name) for name in ("begin_mask", "shrink_axis_mask"))
    if ctx.attr("new_axis_mask") or ctx.attr("ellipsis_mask") or any(not (whole | single) >> entry & 1 for entry in entries):
        raise RefusalError("bounds must be constant, other than single indices")
    if ctx.attr("end_mask") & whole & ~single != whole & ~single:
        raise RefusalError("the end must be constant")
    for entry in reversed(entries):
        if single >> entry & 1:
            index = ctx.reshape(ctx.slice(begin, [entry], [entry + 1]), ())
            x = ctx.add("take", x, index, axis=entry, oob="error", wrap_negative=True, fill_value=None)
    return x


def _select_range(ctx: Context, x: Value, selections: Sequence[slice]) -> Value:
    """Returns ``x`` sliced by normalised Python slices; those with a negative step reverse their axis first."""
    shape = ctx.shape(x)
    backwards = tuple(axis for axis, chosen in enumerate(selections) if chosen.step < 0)
    if backwards:
        x = ctx.add("reverse", x, axes=backwards)
    start, limit, strides = [], [], []
    for axis, chosen in enumerate(selections):
        count = len(range(chosen.start, chosen.stop, chosen.step))
        first = shape[axis] - 1 - chosen.start if axis in backwards else chosen.start
        stride = abs(chosen.step) if count > 1 else 1
        start.append(first)
        limit.append(first + (count - 1) * stride + 1 if count else first)
        strides.append(stride)
    return ctx.slice(x, start, limit, strides)


@TABLE.lowers("Pad", "PadV2")
def _pad(ctx: Context, x: Value, paddings: Value, value: Value | None = None) -> Value:
    pairs = ctx.array(paddings, "the paddings")
    fill = 0.0 if value is None else float(ctx.array(value, "the value"))
    return pad_zeros(ctx, x, [(int(low), int(high)) for low, high in pairs], fill)


def pad_zeros(ctx: Context, x: Value, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
    """Returns ``x`` with (low, high) positions of ``value`` around each axis."""
    if not any(map(any, pads)):
        return x
    low, high = zip(*pads, strict=True)
    return ctx.add("pad", x, mode="constant", low=low, high=high, interior=(0,) * len(pads), value=value)


@TABLE.lowers("MirrorPad")
def _mirror_pad(ctx: Context, x: Value, paddings: Value) -> Value:
    pairs = [(int(low), int(high)) for low, high in ctx.array(paddings, "the paddings")]
    if ctx.attr("mode") == "REFLECT":
        low, high = zip(*pairs, strict=True)
        return ctx.add("pad", x, mode="reflect", low=low, high=high, interior=(0,) * len(pairs), value=None)
    for axis, (before, after) in enumerate(pairs):  # SYMMETRIC: the edge itself is repeated
        size = ctx.shape(x)[axis]
        parts = [_mirrored(ctx, x, axis, 0, before), x, _mirrored(ctx, x, axis, size - after, size)]
        kept = [part for part in parts if ctx.shape(part)[axis]]
        x = kept[0] if len(kept) == 1 else ctx.add("concat", *kept, axis=axis)
    return x


def _mirrored(ctx: Context, x: Value, axis: int, first: int, last: int) -> Value:
    """Returns positions first to last of an axis in reverse order."""
    shape = ctx.shape(x)
    start = [first if index == axis else 0 for index in range(len(shape))]
    limit = [last if index == axis else dim for index, dim in enumerate(shape)]
    return ctx.add("reverse", ctx.slice(x, start, limit), axes=(axis,))


@TABLE.lowers("Tile")
def _tile(ctx: Context, x: Value, multiples: Value) -> Value:
    """An axis of size 1 is stretched; any other is split in two, three of them at a time, for a tensor has at most eight axes."""
    counts = ctx.ints(multiples, "the multiples")
    repeated = [axis for axis, size in enumerate(ctx.shape(x)) if counts[axis] != 1 and size != 1]
    for first in range(0, len(repeated), 3):
        chosen, shape = repeated[first : first + 3], ctx.shape(x)
        before, after = [1], [1]
        for axis, size in enumerate(shape):
            if axis in chosen:
                before += [1, size]
                after += [counts[axis], size]
            else:
                before[-1] *= size
                after[-1] *= size
        stretched = _broadcast(ctx, ctx.reshape(x, before), after)
        x = ctx.reshape(stretched, [size * counts[axis] if axis in chosen else size for axis, size in enumerate(shape)])
    return _broadcast(ctx, x, [size if axis in repeated else size * counts[axis] for axis, size in enumerate(ctx.shape(x))])


@TABLE.lowers("BroadcastTo")
def _broadcast_to(ctx: Context, x: Value, shape: Value) -> Value:
    return _broadcast(ctx, x, ctx.ints(shape, "the shape"))


@TABLE.lowers("Fill")
def _fill(ctx: Context, dims: Value, value: Value) -> Value:
    return _broadcast(ctx, value, ctx.ints(dims, "the dims"))


@TABLE.lowers("ZerosLike", "OnesLike")
def _constant_like(ctx: Context, x: Value) -> Value:
    return _broadcast(ctx, ctx.scalar(ctx.op.type == "OnesLike", x), ctx.shape(x))


def _broadcast(ctx: Context, x: Value, shape: Sequence[int]) -> Value:
    return x if ctx.shape(x) == tuple(shape) else ctx.add("broadcast", x, shape=tuple(shape))


@TABLE.lowers("ReverseV2")
def _reverse(ctx: Context, x: Value, axes: Value) -> Value:
    rank = len(ctx.shape(x))
    chosen = tuple(sorted(axis % rank for axis in ctx.ints(axes, "the axes")))
    return ctx.add("reverse", x, axes=chosen) if chosen else x


@TABLE.lowers("Roll")
def _roll(ctx: Context, x: Value, shift: Value, axis: Value) -> Value:
    rank = len(ctx.shape(x))
    for amount, along in zip(ctx.ints(shift, "the shift"), ctx.ints(axis, "the axis"), strict=True):
        size = ctx.shape(x)[along % rank]
        if size and (moved := amount % size):
            head, tail = _parts(ctx, x, along % rank, [size - moved, moved])
            x = ctx.add("concat", tail, head, axis=along % rank)
    return x


@TABLE.lowers("Range")
def _range(ctx: Context, start: Value, limit: Value, delta: Value) -> Value:
    """Constant ones were folded, so this one is as long as some size."""
    first, last, step = (ctx.array(value, "its bounds").reshape(()) for value in (start, limit, delta))
    y: Value = ctx.add("iota", dtype=ctx.output_dtype(), shape=(max(0, math.ceil((last - first) / step)),), axis=0)
    y = y if step == 1 else ctx.add("mul", y, delta)
    return ctx.add("add", y, start) if first else y


@TABLE.lowers("DepthToSpace", "SpaceToDepth")
def _depth_space(ctx: Context, x: Value) -> Value:
    """DCR order: the block's rows and columns are the slower part of the depth."""
    block, layout = ctx.attr("block_size"), ctx.attr("data_format")
    if layout not in ("NHWC", "NCHW"):
        raise RefusalError(f"data_format {layout} is not supported")
    shape = ctx.shape(x)
    n, h, w, c = shape if layout == "NHWC" else (shape[0], shape[2], shape[3], shape[1])
    if ctx.op.type == "DepthToSpace":
        c //= block * block
        if layout == "NHWC":
            return _regroup(ctx, x, (n, h, w, block, block, c), (0, 1, 3, 2, 4, 5), (n, h * block, w * block, c))
        return _regroup(ctx, x, (n, block, block, c, h, w), (0, 3, 4, 1, 5, 2), (n, c, h * block, w * block))
    h, w, depth = h // block, w // block, c * block * block
    if layout == "NHWC":
        return _regroup(ctx, x, (n, h, block, w, block, c), (0, 1, 3, 2, 4, 5), (n, h, w, depth))
    return _regroup(ctx, x, (n, c, h, block, w, block), (0, 3, 5, 1, 2, 4), (n, depth, h, w))


def _regroup(ctx: Context, x: Value, split: Sequence[int], perm: Sequence[int], joined: Sequence[int]) -> Value:
    return ctx.reshape(ctx.transpose(ctx.reshape(x, split), perm), joined)


@TABLE.lowers("SpaceToBatchND")
def _space_to_batch(ctx: Context, x: Value, block_shape: Value, paddings: Value) -> Value:
    blocks = ctx.ints(block_shape, "the block shape")
    pads = [(int(low), int(high)) for low, high in ctx.array(paddings, "the paddings")]
    count = len(blocks)
    x = pad_zeros(ctx, x, [(0, 0), *pads, *[(0, 0)] * (len(ctx.shape(x)) - 1 - count)])
    batch, *shape = ctx.shape(x)
    spatial, rest = [size // block for size, block in zip(shape, blocks, strict=False)], shape[count:]
    split = [batch, *(part for pair in zip(spatial, blocks, strict=True) for part in pair), *rest]
    outer = [2 + 2 * index for index in range(count)]
    perm = [*outer, 0, *(axis - 1 for axis in outer), *range(1 + 2 * count, len(split))]
    return _regroup(ctx, x, split, perm, [batch * math.prod(blocks), *spatial, *rest])


@TABLE.lowers("BatchToSpaceND")
def _batch_to_space(ctx: Context, x: Value, block_shape: Value, crops: Value) -> Value:
    blocks = ctx.ints(block_shape, "the block shape")
    count = len(blocks)
    batch, *shape = ctx.shape(x)
    batch //= math.prod(blocks)
    spatial, rest = shape[:count], shape[count:]
    split = [*blocks, batch, *spatial, *rest]
    perm = [count, *(axis for index in range(count) for axis in (count + 1 + index, index)), *range(2 * count + 1, len(split))]
    whole = [size * block for size, block in zip(spatial, blocks, strict=True)]
    y = _regroup(ctx, x, split, perm, [batch, *whole, *rest])
    cut = [(int(low), int(high)) for low, high in ctx.array(crops, "the crops")]
    start = [0, *(low for low, _ in cut), *[0] * len(rest)]
    limit = [batch, *(size - high for size, (_, high) in zip(whole, cut, strict=True)), *rest]
    return ctx.slice(y, start, limit)
