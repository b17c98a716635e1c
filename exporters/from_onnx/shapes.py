"""Lowerings of operators that move, cut, join or create elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.reading import NotATensorError, dtype_of
from rml_exec.types import DType

__all__ = ["cut", "integers_of", "pick", "turned"]


def integers_of(ctx: Context, name: str, index: int) -> list[int] | None:
    """Returns integers that are an attribute in old operator sets and an input in new ones; None where they are absent."""
    given: list[int] | None = ctx.attr(name)
    return ctx.integers(index, name) if given is None else given


def axes_of(ctx: Context, axes: Sequence[int], rank: int) -> list[int]:
    """Returns axes counted from the front; refuses repeated ones."""
    found = [ctx.axis(axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise RefusedError(f"an axis is named twice in {list(axes)}")
    return found


def turned(ctx: Context, x: str, perm: Sequence[int]) -> str:
    """Returns ``x`` with its axes in another order: itself where the order is its own."""
    return x if list(perm) == list(range(len(perm))) else str(ctx.step("transpose", [x], perm=tuple(perm)))


def cut(ctx: Context, x: str, axis: int, start: int, limit: int, *, squeeze: bool = False) -> str:
    """Returns elements ``start`` to ``limit`` of an axis, ``x`` itself where these are all; ``squeeze`` drops the axis, of one element."""
    shape = list(ctx.type(x).shape)
    if (start, limit) != (0, shape[axis]):
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, limit
        x = str(ctx.step("slice", [x], start=tuple(starts), limit=tuple(limits), strides=(1,) * len(shape)))
    return ctx.reshape(x, [*shape[:axis], *shape[axis + 1 :]]) if squeeze else x


def pick(ctx: Context, x: str, places: np.ndarray, axis: int) -> str:
    """Returns the elements of ``x`` at places along an axis that are known at import and in range."""
    indices = ctx.constant(places.astype(np.int64), f"{ctx.name}.indices")
    return str(ctx.step("take", [x, indices], axis=axis, oob="error", wrap_negative=False, fill_value=None))


@ONNX.lowers("Identity")
def _identity(ctx: Context, node: onnx.NodeProto) -> str:
    return ctx.need(0)


@ONNX.lowers("Reshape")
def _reshape(ctx: Context, node: onnx.NodeProto) -> str:
    """0 is the size of x on the same axis, unless allowzero says that it is 0; one -1 is what is left."""
    x = ctx.need(0)
    old, new = ctx.type(x).shape, integers_of(ctx, "shape", 1)
    if new is None:
        raise RefusedError("it has no shape")
    if not ctx.attr("allowzero", 0):
        if any(dim == 0 and axis >= len(old) for axis, dim in enumerate(new)):
            raise RefusedError(f"the shape {new} copies the size of an axis that x, {list(old)}, does not have")
        new = [old[axis] if dim == 0 else dim for axis, dim in enumerate(new)]
    if -1 in new:
        rest = math.prod(dim for dim in new if dim != -1)
        if new.count(-1) > 1 or rest == 0 or math.prod(old) % rest:
            raise RefusedError(f"the shape {new} leaves open how to arrange x, {list(old)}")
        new[new.index(-1)] = math.prod(old) // rest
    return x if tuple(new) == old else str(ctx.add("reshape", [x], shape=tuple(new)))


@ONNX.lowers("Flatten")
def _flatten(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    shape = ctx.type(x).shape
    axis = ctx.attr("axis", 1)
    axis = axis if axis == len(shape) else ctx.axis(axis, len(shape))
    return str(ctx.add("reshape", [x], shape=(math.prod(shape[:axis]), math.prod(shape[axis:]))))


@ONNX.lowers("Squeeze")
def _squeeze(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    shape, given = ctx.type(x).shape, integers_of(ctx, "axes", 1)
    axes = [axis for axis, size in enumerate(shape) if size == 1] if given is None else axes_of(ctx, given, len(shape))
    if any(shape[axis] != 1 for axis in axes):
        raise RefusedError(f"axes {axes} of {list(shape)} do not all have size 1")
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return x if kept == shape else str(ctx.add("reshape", [x], shape=kept))


@ONNX.lowers("Unsqueeze")
def _unsqueeze(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    shape, given = ctx.type(x).shape, integers_of(ctx, "axes", 1) or []
    rank = len(shape) + len(given)
    axes, sizes = axes_of(ctx, given, rank), iter(shape)
    return str(ctx.add("reshape", [x], shape=tuple(1 if axis in axes else next(sizes) for axis in range(rank))))


@ONNX.lowers("Shape")
def _shape(ctx: Context, node: onnx.NodeProto) -> str:
    shape = ctx.type(ctx.need(0)).shape
    start, end = ctx.attr("start", 0), ctx.attr("end", len(shape))
    return ctx.constant(np.array(shape[start:end], np.int64))


@ONNX.lowers("Size")
def _size(ctx: Context, node: onnx.NodeProto) -> str:
    return ctx.constant(np.array(ctx.type(ctx.need(0)).size, np.int64))


@ONNX.lowers("Transpose")
def _transpose(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    rank = ctx.type(x).rank
    perm = [ctx.axis(axis, rank) for axis in ctx.attr("perm", range(rank - 1, -1, -1))]
    return x if perm == list(range(rank)) else str(ctx.add("transpose", [x], perm=tuple(perm)))


@ONNX.lowers("Expand")
def _expand(ctx: Context, node: onnx.NodeProto) -> str:
    """Broadcasts both ways: a size of 1 in the wanted shape keeps that of x."""
    x = ctx.need(0)
    old, wanted = ctx.type(x).shape, ctx.integers(1, "shape") or []
    try:
        shape = np.broadcast_shapes(old, tuple(wanted))
    except ValueError:
        raise RefusedError(f"{list(old)} does not broadcast with {wanted}") from None
    return x if shape == old else str(ctx.add("broadcast", [x], shape=shape))


@ONNX.lowers("Tile")
def _tile(ctx: Context, node: onnx.NodeProto) -> str:
    """Every axis becomes (repeat, size), the first of them broadcast, and both are merged."""
    x = ctx.need(0)
    shape, repeats = ctx.type(x).shape, ctx.integers(1, "repeats") or []
    if len(repeats) != len(shape):
        raise RefusedError(f"{len(repeats)} repeats for {len(shape)} axes")
    parted = ctx.reshape(x, [entry for size in shape for entry in (1, size)])
    tiled = ctx.step("broadcast", [parted], shape=tuple(entry for pair in zip(repeats, shape, strict=True) for entry in pair))
    return str(ctx.add("reshape", [tiled], shape=tuple(repeat * size for repeat, size in zip(repeats, shape, strict=True))))


@ONNX.lowers("Concat")
def _concat(ctx: Context, node: onnx.NodeProto) -> str:
    parts = [ctx.need(index) for index in range(len(node.input))]
    axis = ctx.axis(ctx.attr("axis", 1), ctx.type(parts[0]).rank)
    return parts[0] if len(parts) == 1 else str(ctx.add("concat", parts, axis=axis))


@ONNX.lowers("Split")
def _split(ctx: Context, node: onnx.NodeProto) -> tuple[str, ...]:
    x = ctx.need(0)
    shape = ctx.type(x).shape
    axis = ctx.axis(ctx.attr("axis", 0), len(shape))
    sizes = integers_of(ctx, "split", 1)
    if sizes is None:
        count = ctx.attr("num_outputs", len(node.output))
        size = -(-shape[axis] // count)
        sizes = [size] * (count - 1) + [shape[axis] - size * (count - 1)]
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise RefusedError(f"sizes {sizes} do not cut an axis of {shape[axis]}")
    ends = np.cumsum(sizes).tolist()
    return tuple(cut(ctx, x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@ONNX.lowers("Slice")
def _slice(ctx: Context, node: onnx.NodeProto) -> str:
    """Ends beyond the axis are clamped; a negative step takes the same elements forwards and reverses them.

    A start that depends on the inputs is allowed where the end is computed from it, so that their distance is known; there a window that
    leaves the axis is an error of the run, not clamped.
    """
    x = ctx.need(0)
    shape = ctx.type(x).shape
    moving = ctx.attr("starts") is None and any(ctx.known(ctx.input(index)) is None for index in (1, 2))
    starts, ends = _distances(ctx) if moving else (integers_of(ctx, "starts", 1), integers_of(ctx, "ends", 2))
    if starts is None or ends is None:
        raise RefusedError("starts and ends must be given")
    given = integers_of(ctx, "axes", 3)
    axes = axes_of(ctx, range(len(starts)) if given is None else given, len(shape))
    steps = ctx.integers(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise RefusedError(f"starts {starts}, ends {ends} and steps {steps} do not fit the axes {axes}")
    bounds = [(0, size, 1) for size in shape]
    for position, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        if start is None:
            x = _window(ctx, x, axis, position, len(range(0, end, step)), step)
            bounds[axis] = (0, ctx.type(x).shape[axis], 1)
            continue
        taken = range(*slice(start, end, step).indices(shape[axis]))
        taken = taken if step > 0 else taken[::-1]
        bounds[axis] = (taken[0], taken[-1] + 1, min(abs(step), shape[axis])) if taken else (0, 0, 1)
    backwards = tuple(sorted(axis for axis, start, step in zip(axes, starts, steps, strict=True) if step < 0 and start is not None))
    start_of, limit_of, strides = zip(*bounds, strict=True) if bounds else ((), (), ())
    whole = bounds == [(0, size, 1) for size in ctx.type(x).shape]
    if whole and not backwards:
        return x
    y = x if whole else str((ctx.step if backwards else ctx.add)("slice", [x], start=start_of, limit=limit_of, strides=strides))
    return str(ctx.add("reverse", [y], axes=backwards)) if backwards else y


def _distances(ctx: Context) -> tuple[list[int | None], list[int]]:
    """Returns the starts and ends of a Slice; where they depend on the inputs None and the distance between them."""
    starts: list[int | None] = []
    ends: list[int] = []
    for (base, start), (end_base, end) in zip(*(_origins(ctx, ctx.node.input[index]) for index in (1, 2)), strict=True):
        if base != end_base:
            raise RefusedError("the size of its result depends on the inputs")
        starts.append(None if base else start)
        ends.append(end - start if base else end)
    return starts, ends


def _origins(ctx: Context, name: str) -> list[tuple[str, int]]:
    """Returns for each element of some integers what it was computed from ("" for a known one) and how far it is above that."""
    value = ctx.scope[name]
    array = ctx.known(value)
    if array is not None:
        return [("", int(number)) for number in array.reshape(-1)]
    node = next((made.node for made in ctx.walker.made if name in made.node.output), onnx.NodeProto())
    if node.op_type == "Concat":
        return [origin for part in node.input for origin in _origins(ctx, part)]
    types = [ctx.type(ctx.scope[source] or "") for source in node.input if source]
    if node.op_type in ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Cast") and types[0].dtype in (DType.I32, DType.I64):
        return _origins(ctx, node.input[0])
    if node.op_type in ("Add", "Sub") and all(type_.size == 1 for type_ in types):
        ((a, above_a),), ((b, above_b),) = (_origins(ctx, source) for source in node.input)
        if node.op_type == "Add" and (not a or not b):
            return [(a or b, above_a + above_b)]
        if node.op_type == "Sub" and not b:
            return [(a, above_a - above_b)]
    return [(f"{name}[{index}]", 0) for index in range(ctx.type(value or "").size)]


def _window(ctx: Context, x: str, axis: int, position: int, count: int, step: int) -> str:
    """Returns ``count`` elements along an axis from a start that is element ``position`` of the operator's starts."""
    start = cut(ctx, ctx.cast(ctx.reshape(ctx.need(1), [ctx.type(ctx.need(1)).size]), DType.I64), 0, position, position + 1)
    places = ctx.step("iota", [], dtype="i64", shape=(count,), axis=0)
    if step != 1:
        places = ctx.step("mul", [places, ctx.scalar(step, DType.I64)])
    places = ctx.step("add", [places, start])
    return str(ctx.step("take", [x, places], axis=axis, oob="error", wrap_negative=False, fill_value=None))


@ONNX.lowers("Pad")
def _pad(ctx: Context, node: onnx.NodeProto) -> str:
    """Negative pads crop, before anything is repeated."""
    x = ctx.need(0)
    shape, pads = ctx.type(x).shape, integers_of(ctx, "pads", 1)
    given = ctx.integers(3, "axes")
    axes = axes_of(ctx, range(len(shape)) if given is None else given, len(shape))
    if pads is None or len(pads) != 2 * len(axes):
        raise RefusedError(f"{len(axes)} axes need twice as many pads, not {pads}")
    low, high = [0] * len(shape), [0] * len(shape)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        low[axis], high[axis] = before, after
    mode = ctx.attr("mode", "constant")
    if mode == "constant":
        return _constant_pad(ctx, x, low, high)
    if mode not in ("edge", "reflect", "wrap"):
        raise RefusedError(f"mode {mode} is not supported")
    sizes = [size + min(before, 0) + min(after, 0) for size, before, after in zip(shape, low, high, strict=True)]
    for axis, size in enumerate(sizes):
        x = cut(ctx, x, axis, max(-low[axis], 0), max(-low[axis], 0) + size)
    low, high = [max(before, 0) for before in low], [max(after, 0) for after in high]
    if not any((*low, *high)):
        return x
    if any(size == 0 and before + after for size, before, after in zip(sizes, low, high, strict=True)):
        raise RefusedError(f"an empty axis of {sizes} has nothing to repeat")
    if mode == "edge" or (mode == "reflect" and all(max(low[axis], high[axis]) < max(size, 1) for axis, size in enumerate(sizes))):
        return _padded(ctx, x, low, high, mode, None)
    for axis, size in enumerate(sizes):
        if low[axis] or high[axis]:
            x = pick(ctx, x, np.pad(np.arange(size), (low[axis], high[axis]), mode), axis)
    return x


def _padded(ctx: Context, x: str, low: Sequence[int], high: Sequence[int], mode: str, value: float | None) -> str:
    return str(ctx.add("pad", [x], mode=mode, low=tuple(low), high=tuple(high), interior=(0,) * len(low), value=value))


def _constant_pad(ctx: Context, x: str, low: Sequence[int], high: Sequence[int]) -> str:
    if not any((*low, *high)):
        return x
    value = ctx.input(2)
    number = ctx.attr("value", 0.0) if value is None else ctx.known(value)
    if number is not None:
        return _padded(ctx, x, low, high, "constant", float(np.asarray(number).reshape(-1)[0]))
    inside = ctx.step("broadcast", [ctx.scalar(True, DType.BOOL)], shape=ctx.type(x).shape)
    zero = (0,) * len(low)
    covered = ctx.step("pad", [inside], mode="constant", low=tuple(low), high=tuple(high), interior=zero, value=0.0)
    padded = ctx.step("pad", [x], mode="constant", low=tuple(low), high=tuple(high), interior=zero, value=0.0)
    return str(ctx.add("select", [covered, padded, ctx.reshape(value or "", [])]))


@ONNX.lowers("CenterCropPad")
def _center_crop_pad(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    shape, wanted = ctx.type(x).shape, ctx.integers(1, "shape") or []
    axes = axes_of(ctx, ctx.attr("axes", range(len(shape))), len(shape))
    low, high = [0] * len(shape), [0] * len(shape)
    for axis, size in zip(axes, wanted, strict=True):
        missing = size - shape[axis]
        low[axis] = missing // 2 if missing > 0 else -(-missing // 2)
        high[axis] = missing - low[axis]
    return _padded(ctx, x, low, high, "constant", 0.0) if any((*low, *high)) else x


@ONNX.lowers("ConstantOfShape")
def _constant_of_shape(ctx: Context, node: onnx.NodeProto) -> str:
    value = ctx.attr("value", np.zeros(1, np.float32))
    shape = tuple(ctx.integers(0, "shape") or [])
    return str(ctx.add("broadcast", [ctx.constant(np.asarray(value).reshape(()), f"{ctx.name}.value")], shape=shape))


@ONNX.lowers("Range")
def _range(ctx: Context, node: onnx.NodeProto) -> str:
    """The numbers start, start + delta... below (above, for a negative delta) limit; their count must be known."""
    ends = [ctx.known(ctx.need(index)) for index in range(3)]
    if any(end is None for end in ends):
        raise RefusedError("the size of its result depends on the inputs")
    start, limit, delta = (np.asarray(end).reshape(-1)[0].item() for end in ends)
    dtype = ctx.type(ctx.need(0)).dtype
    if not delta:
        raise RefusedError("delta must not be 0")
    line = str(ctx.step("iota", [], dtype=dtype.value, shape=(max(math.ceil((limit - start) / delta), 0),), axis=0))
    if delta != 1:
        line = str(ctx.step("mul", [line, ctx.scalar(delta, dtype)]))
    return str(ctx.step("add", [line, ctx.scalar(start, dtype)])) if start else line


def _diagonals(ctx: Context, shape: Sequence[int]) -> str:
    """Returns how far each place of a matrix is right of the main diagonal, as i64."""
    rows, columns = (ctx.step("iota", [], dtype="i64", shape=tuple(shape), axis=axis) for axis in (0, 1))
    return str(ctx.step("sub", [columns, rows]))


@ONNX.lowers("EyeLike")
def _eye_like(ctx: Context, node: onnx.NodeProto) -> str:
    like = ctx.type(ctx.need(0))
    number = ctx.attr("dtype")
    try:
        dtype = like.dtype if number is None else dtype_of(number)
    except NotATensorError as error:
        raise RefusedError(str(error)) from None
    if like.rank != 2:
        raise RefusedError(f"it needs a matrix, not {like.rank} axes")
    wanted = ctx.scalar(ctx.attr("k", 0), DType.I64)
    return ctx.cast(ctx.step("compare", [_diagonals(ctx, like.shape), wanted], dir="eq"), dtype)


@ONNX.lowers("Trilu")
def _trilu(ctx: Context, node: onnx.NodeProto) -> str:
    """The triangle above (upper) or below the k-th diagonal, that diagonal included; 0 elsewhere. k may depend on the inputs."""
    x = ctx.need(0)
    given = ctx.input(1)
    diagonal = ctx.scalar(0, DType.I64) if given is None else ctx.reshape(given, [])
    inside = ctx.step("compare", [_diagonals(ctx, ctx.type(x).shape[-2:]), diagonal], dir="ge" if ctx.attr("upper", 1) else "le")
    return str(ctx.add("select", [inside, x, ctx.scalar(0, ctx.type(x).dtype)]))


@ONNX.lowers("DepthToSpace")
def _depth_to_space(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    (batch, depth, height, width), block = ctx.type(x).shape, ctx.attr("blocksize")
    rest = depth // block**2
    if ctx.attr("mode", "DCR") == "DCR":
        parted, perm = ctx.reshape(x, [batch, block, block, rest, height, width]), (0, 3, 4, 1, 5, 2)
    else:
        parted, perm = ctx.reshape(x, [batch, rest, block, block, height, width]), (0, 1, 4, 2, 5, 3)
    return str(ctx.add("reshape", [turned(ctx, parted, perm)], shape=(batch, rest, height * block, width * block)))


@ONNX.lowers("SpaceToDepth")
def _space_to_depth(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    (batch, depth, height, width), block = ctx.type(x).shape, ctx.attr("blocksize")
    parted = ctx.reshape(x, [batch, depth, height // block, block, width // block, block])
    perm = (0, 3, 5, 1, 2, 4) if ctx.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return str(ctx.add("reshape", [turned(ctx, parted, perm)], shape=(batch, depth * block**2, height // block, width // block)))
