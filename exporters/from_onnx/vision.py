"""Lowerings of operators that sample images at positions known at run time, and of those that put windows together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

import exporters.from_onnx.resizing  # noqa: F401  (registers Resize)
from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.shapes import cut, integers_of, turned
from rml_exec.types import DType


class _Numbers:
    """Elementwise arithmetic on values of one element type."""

    def __init__(self, ctx: Context, dtype: DType) -> None:
        self.ctx, self.dtype = ctx, dtype

    def _operand(self, value: str | float) -> str:
        return value if isinstance(value, str) else self.ctx.scalar(value, self.dtype)

    def do(self, op: str, a: str | float, b: str | float, **attrs: str) -> str:
        """Returns the result of a binary op."""
        return str(self.ctx.step(op, [self._operand(a), self._operand(b)], **attrs))

    def outside(self, x: str, low: float, high: float) -> str:
        """Returns where ``x`` is below ``low`` or above ``high``."""
        return self.do("or", self.do("compare", x, low, dir="lt"), self.do("compare", x, high, dir="gt"))

    def clamp(self, x: str, low: float, high: float) -> str:
        return str(self.ctx.step("clamp", [x], lo=float(low), hi=float(high)))

    def reflect(self, x: str, low: float, high: float) -> str:
        """Returns ``x`` mirrored at both borders until it is between them."""
        width = high - low
        if not width:
            return self.do("add", self.do("mul", x, 0.0), low)
        beyond = self.do("rem", self.do("sub", x, low), 2 * width, sign="divisor")
        return self.do("add", self.do("min", beyond, self.do("sub", 2 * width, beyond)), low)


def _join(ctx: Context, op: str, parts: Sequence[str]) -> str:
    """Returns ``parts`` [..., taps] combined over all choices of one tap per part: [..., taps, taps...]."""
    result = parts[0]
    for part in parts[1:]:
        *lead, taps = ctx.type(part).shape
        extra = len(ctx.type(result).shape) - len(lead)
        result = ctx.step(op, [ctx.reshape(result, [*ctx.type(result).shape, 1]), ctx.reshape(part, [*lead, *[1] * extra, taps])])
    return result


def _sample(
    ctx: Context, x: str, positions: Sequence[str], images: str | None, *, mode: str, padding: str, corners: bool
) -> tuple[str, str]:
    """Returns what an interpolation at points of images mixes.

    Args:
        ctx: the operator.
        x: images [N, C, sizes...].
        positions: for each spatial axis where the points are [R, Q], counted in elements.
        images: the image [R] that a row of points lies in; its own number if None.
        mode: nearest, linear or cubic: 1, 2 or 4 elements per axis.
        padding: what is outside: zeros, border or reflection.
        corners: whether reflection is at the centres of the outermost elements, not at their outer edges.

    Returns:
        Elements [R, Q, taps, C] and their weights [R, Q, taps, 1].
    """
    batch, channels, *sizes = ctx.type(x).shape
    dtype = ctx.type(positions[0]).dtype
    rows, count = ctx.type(positions[0]).shape
    numbers, whole = _Numbers(ctx, dtype), _Numbers(ctx, DType.I64)
    offsets = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    places, weights, missing = [], [], []
    for position, size, stride in zip(positions, sizes, [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))], strict=True):
        point = ctx.reshape(position, [rows, count, 1])
        first = ctx.step("round", [point], mode="half_even") if mode == "nearest" else ctx.step("floor", [point])
        tap = numbers.do("add", first, ctx.constant(np.array(offsets, dtype.numpy), f"{ctx.name}.taps"))
        weights.append(_weights(ctx, numbers.do("sub", tap, point), mode))
        if padding == "reflection":
            tap = numbers.reflect(tap, *((0, size - 1) if corners else (-0.5, size - 0.5)))
        if padding == "zeros":
            missing.append(numbers.outside(tap, 0, size - 1))
        inside = ctx.cast(numbers.clamp(tap, 0, size - 1), DType.I64)
        places.append(inside if stride == 1 else whole.do("mul", inside, stride))
    taps = len(offsets) ** len(sizes)
    place = ctx.reshape(_join(ctx, "add", places), [rows, count * taps])
    first_of = ctx.reshape(ctx.step("iota", [], dtype="i64", shape=(rows,), axis=0) if images is None else images, [rows, 1])
    place = whole.do("add", place, whole.do("mul", first_of, math.prod(sizes)))
    if missing:
        place = str(ctx.step("select", [ctx.reshape(_join(ctx, "or", missing), [rows, count * taps]), ctx.scalar(-1, DType.I64), place]))
    flat = ctx.reshape(turned(ctx, x, [0, *range(2, 2 + len(sizes)), 1]), [batch * math.prod(sizes), channels])
    oob = "fill" if missing else "clamp" if images is None else "error"  # a position that is NaN is anywhere
    taken = ctx.step("take", [flat, place], axis=0, oob=oob, wrap_negative=False, fill_value=0.0 if missing else None)
    weight = ctx.cast(_join(ctx, "mul", weights), ctx.type(x).dtype)
    return ctx.reshape(taken, [rows, count, taps, channels]), ctx.reshape(weight, [rows, count, taps, 1])


def _weights(ctx: Context, offset: str, mode: str) -> str:
    """Returns the weights of elements at a distance from the point; cubic is Keys' kernel with a = -0.75."""
    numbers = _Numbers(ctx, ctx.type(offset).dtype)
    if mode == "nearest":
        return str(ctx.step("broadcast", [ctx.scalar(1, numbers.dtype)], shape=ctx.type(offset).shape))
    distance = ctx.step("abs", [offset])
    if mode == "linear":
        return numbers.do("sub", 1.0, distance)

    def polynomial(*factors: float) -> str:
        result: str | float = factors[0]
        for factor in factors[1:]:
            result = numbers.do("add", numbers.do("mul", result, distance), factor)
        return str(result)

    a = -0.75
    near, far = polynomial(a + 2, -(a + 3), 0, 1), polynomial(a, -5 * a, 8 * a, -4 * a)
    return str(ctx.step("select", [numbers.do("compare", distance, 1.0, dir="le"), near, far]))


def _mixed(ctx: Context, taken: str, weight: str) -> str:
    """Returns the weighted sums over taps, [R, Q, C]."""
    products = ctx.step("mul", [taken, weight])
    return str(ctx.step("reduce", [products], kind="sum", axes=(2,), keepdims=False, nan="propagate", empty="identity"))


@ONNX.lowers("GridSample")
def _grid_sample(ctx: Context, node: onnx.NodeProto) -> str:
    """The grid counts from -1 to 1, its last axis in reverse order of the axes of x."""
    x, grid = ctx.need(0), ctx.need(1)
    batch, channels, *sizes = ctx.type(x).shape
    *outer, rank = ctx.type(grid).shape[1:]
    given = ctx.attr("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(given, given)
    padding, corners = ctx.attr("padding_mode", "zeros"), bool(ctx.attr("align_corners", 0))
    if rank != len(sizes) or mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise RefusedError(f"mode {given} with padding {padding} of {len(sizes)} axes by a grid of {rank} is not supported")
    numbers = _Numbers(ctx, ctx.type(grid).dtype)
    points = ctx.reshape(grid, [batch, math.prod(outer), rank])
    positions = []
    for axis, size in enumerate(sizes):
        along = numbers.do("add", cut(ctx, points, 2, rank - 1 - axis, rank - axis, squeeze=True), 1.0)
        wide = numbers.do("mul", along, (size - 1 if corners else size) / 2)
        position = wide if corners else numbers.do("sub", wide, 0.5)
        if mode == "nearest":
            position = str(ctx.step("round", [position], mode="half_even"))
        low, high = (0, size - 1) if corners else (-0.5, size - 0.5)
        if padding == "border":
            inside = numbers.clamp(position, 0, size - 1)
            position = str(ctx.step("select", [numbers.outside(position, low, high), inside, position]))
        elif padding == "reflection":
            position = numbers.reflect(position, low, high)
        positions.append(position)
    dtype = ctx.type(x).dtype
    source = x if mode == "nearest" or dtype.is_float else ctx.cast(x, DType.F32)
    taken, weight = _sample(ctx, source, positions, None, mode=mode, padding=padding, corners=corners)
    count = math.prod(outer)
    y = ctx.reshape(taken, [batch, count, channels]) if mode == "nearest" else ctx.cast(_mixed(ctx, taken, weight), dtype)
    return str(ctx.add("reshape", [turned(ctx, y, [0, 2, 1])], shape=(batch, channels, *outer)))


@ONNX.lowers("AffineGrid")
def _affine_grid(ctx: Context, node: onnx.NodeProto) -> str:
    theta, size = ctx.need(0), ctx.integers(1, "size") or []
    batch, *sizes = size[:1] + size[2:]
    lines = []
    for count in sizes:
        steps = np.arange(count, dtype=np.float64)
        lines.append(2 * steps / max(count - 1, 1) - 1 if ctx.attr("align_corners", 0) else (2 * steps + 1) / count - 1)
    grids = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*grids[::-1], np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    base = ctx.constant(points.astype(ctx.type(theta).dtype.numpy), f"{ctx.name}.base")
    moved = ctx.step("matmul", [base, theta], transpose_a=False, transpose_b=True)
    return str(ctx.add("reshape", [moved], shape=(batch, *sizes, len(sizes))))


def _window(ctx: Context, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Returns the attributes strides, dilations and pads, which are 1, 1 and 0 where they are absent."""
    return ctx.attr("strides", [1] * rank), ctx.attr("dilations", [1] * rank), ctx.attr("pads", [0] * 2 * rank)


@ONNX.lowers("DeformConv")
def _deform_conv(ctx: Context, node: onnx.NodeProto) -> str:
    """Every element of the window is read where its offset moves it to, linearly interpolated with zeros outside; then a product."""
    x, w, offset, bias, mask = ctx.need(0), ctx.need(1), ctx.need(2), ctx.input(3), ctx.input(4)
    batch, channels, *sizes = ctx.type(x).shape
    outputs, per_group, *window = ctx.type(w).shape
    rank, groups, offset_groups = len(sizes), ctx.attr("group", 1), ctx.attr("offset_group", 1)
    strides, dilations, pads = _window(ctx, rank)
    made = ctx.type(offset).shape[2:]
    count, taps = math.prod(made), math.prod(window)
    moved = ctx.reshape(offset, [batch * offset_groups, taps, rank, count])
    numbers = _Numbers(ctx, ctx.type(x).dtype)
    begin = np.indices(made).reshape(rank, 1, -1) * np.reshape(strides, (rank, 1, 1))
    inner = np.indices(window).reshape(rank, -1, 1) * np.reshape(dilations, (rank, 1, 1))
    base = begin + inner - np.reshape(pads[:rank], (rank, 1, 1))
    positions = []
    for axis in range(rank):
        still = ctx.constant(base[axis].astype(numbers.dtype.numpy), f"{ctx.name}.positions")
        position = numbers.do("add", cut(ctx, moved, 2, axis, axis + 1, squeeze=True), still)
        positions.append(ctx.reshape(position, [batch * offset_groups, taps * count]))
    parted = ctx.reshape(x, [batch * offset_groups, channels // offset_groups, *sizes])
    taken, weight = _sample(ctx, parted, positions, None, mode="linear", padding="zeros", corners=True)
    if mask is not None:
        weight = ctx.step("mul", [weight, ctx.reshape(mask, [batch * offset_groups, taps * count, 1, 1])])
    read = turned(ctx, _mixed(ctx, taken, weight), [0, 2, 1])
    columns = ctx.reshape(read, [batch, groups, per_group * taps, count])
    kernels = ctx.reshape(w, [groups, outputs // groups, per_group * taps])
    y = ctx.reshape(ctx.step("matmul", [kernels, columns], transpose_a=False, transpose_b=False), [batch, outputs, *made])
    return y if bias is None else str(ctx.add("add", [y, ctx.reshape(bias, [outputs, *[1] * rank])]))


@ONNX.lowers("RoiAlign")
def _roi_align(ctx: Context, node: onnx.NodeProto) -> str:
    """Each bin of a region takes the mean (or the maximum) of points on a grid in it, linearly interpolated."""
    x, rois, images = ctx.need(0), ctx.need(1), ctx.need(2)
    _, channels, *sizes = ctx.type(x).shape
    rows, ratio = ctx.type(rois).shape[0], ctx.attr("sampling_ratio", 0)
    made = (ctx.attr("output_height", 1), ctx.attr("output_width", 1))
    half = ctx.opset >= 16 and ctx.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    if ratio <= 0:
        raise RefusedError("with sampling_ratio 0 the number of points depends on the inputs")
    numbers = _Numbers(ctx, ctx.type(x).dtype)
    scaled = numbers.do("sub", numbers.do("mul", rois, ctx.attr("spatial_scale", 1.0)), 0.5 if half else 0.0)
    positions, outside = [], []
    count = math.prod(made) * ratio * ratio
    for axis, (size, bins) in enumerate(zip(sizes, made, strict=True)):
        start, end = (cut(ctx, scaled, 1, column, column + 1) for column in (1 - axis, 3 - axis))
        width = numbers.do("sub", end, start)
        width = width if half else numbers.do("max", width, 1.0)
        share = ((np.arange(bins)[:, None] + (np.arange(ratio) + 0.5) / ratio) / bins).reshape(-1)
        line = numbers.do("add", start, numbers.do("mul", width, ctx.constant(share.astype(numbers.dtype.numpy), f"{ctx.name}.points")))
        # [rows, height bin, row in it, width bin, column in it], so that the points of a bin can be brought together.
        spread = ctx.reshape(line, [rows, bins, ratio, 1, 1] if axis == 0 else [rows, 1, 1, bins, ratio])
        wide = ctx.step("broadcast", [spread], shape=(rows, made[0], ratio, made[1], ratio))
        position = ctx.reshape(turned(ctx, wide, [0, 1, 3, 2, 4]), [rows, count])
        outside.append(numbers.outside(position, -1, size))
        positions.append(numbers.clamp(position, 0, size - 1))
    taken, weight = _sample(ctx, x, positions, ctx.cast(images, DType.I64), mode="linear", padding="border", corners=True)
    none = ctx.reshape(_Numbers(ctx, DType.BOOL).do("or", *outside), [rows, count, 1, 1])
    read = ctx.step("mul", [taken, ctx.step("select", [none, ctx.scalar(0, numbers.dtype), weight])])
    mean = ctx.attr("mode", "avg") == "avg"
    over = {"keepdims": False, "nan": "propagate", "empty": "identity"}
    points = ctx.step("reduce", [read], kind="sum" if mean else "max", axes=(2,), **over)
    parted = ctx.reshape(points, [rows, math.prod(made), ratio * ratio, channels])
    pooled = turned(ctx, ctx.step("reduce", [parted], kind="mean" if mean else "max", axes=(2,), **over), [0, 2, 1])
    return str(ctx.add("reshape", [pooled], shape=(rows, channels, *made)))


@ONNX.lowers("MaxRoiPool")
def _max_roi_pool(ctx: Context, node: onnx.NodeProto) -> str:
    """The maximum of each bin of a region, first over columns, then over rows; a bin without an element gives 0."""
    x, rois, made = ctx.need(0), ctx.need(1), ctx.attr("pooled_shape")
    dtype, rows = ctx.type(x).dtype, ctx.type(rois).shape[0]
    numbers = _Numbers(ctx, dtype)
    image = ctx.cast(cut(ctx, rois, 1, 0, 1, squeeze=True), DType.I64)
    y = str(ctx.step("take", [x, image], axis=0, oob="error", wrap_negative=False, fill_value=None))
    scaled = ctx.step("round", [numbers.do("mul", rois, ctx.attr("spatial_scale", 1.0))], mode="half_away")
    empty = []
    for axis, first in ((3, 1), (2, 2)):
        size, bins = ctx.type(y).shape[axis], made[axis - 2]
        start, end = (cut(ctx, scaled, 1, column, column + 1, squeeze=True) for column in (first, first + 2))
        width = numbers.do("max", numbers.do("add", numbers.do("sub", end, start), 1.0), 1.0)
        share = numbers.do("div", width, float(bins), rounding="true")
        place = ctx.step("iota", [], dtype=dtype.value, shape=tuple(size if a == axis else 1 for a in range(4)), axis=axis)
        parts = []
        for number in range(bins):
            low, high = (
                numbers.clamp(numbers.do("add", ctx.step(op, [numbers.do("mul", share, float(edge))]), start), 0, size)
                for op, edge in (("floor", number), ("ceil", number + 1))
            )
            after = numbers.do("compare", place, ctx.reshape(low, [rows, 1, 1, 1]), dir="ge")
            inside = ctx.step("and", [after, numbers.do("compare", place, ctx.reshape(high, [rows, 1, 1, 1]), dir="lt")])
            kept = ctx.step("select", [inside, y, ctx.scalar(-math.inf, dtype)])
            parts.append(ctx.step("reduce", [kept], kind="max", axes=(axis,), keepdims=True, nan="propagate", empty="identity"))
            empty.append((axis, number, numbers.do("compare", high, low, dir="le")))
        y = str(ctx.step("concat", parts, axis=axis))
    nothing = [ctx.step("concat", [ctx.reshape(e, [rows, 1]) for a, _, e in empty if a == axis], axis=1) for axis in (2, 3)]
    none = ctx.step("or", [ctx.reshape(nothing[0], [rows, 1, made[0], 1]), ctx.reshape(nothing[1], [rows, 1, 1, made[1]])])
    return str(ctx.add("select", [none, ctx.scalar(0, dtype), y]))


@ONNX.lowers("MaxUnpool")
def _max_unpool(ctx: Context, node: onnx.NodeProto) -> str:
    """Every element goes where its index says, in a result of zeros; an index counts in the size that the pooling would have had."""
    x, places = ctx.need(0), ctx.need(1)
    shape, dtype, size = ctx.type(x).shape, ctx.type(x).dtype, ctx.type(x).size
    kernel = ctx.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = ctx.attr("strides", [1] * rank), ctx.attr("pads", [0] * 2 * rank)
    inferred = [*shape[:2], *((shape[2 + a] - 1) * strides[a] + kernel[a] - pads[a] - pads[rank + a] for a in range(rank))]
    zeros = ctx.step("broadcast", [ctx.scalar(0, dtype)], shape=(math.prod(inferred),))
    operands = [zeros, ctx.reshape(ctx.cast(places, DType.I64), [size, 1]), ctx.reshape(x, [size])]
    y = ctx.reshape(ctx.step("scatter_nd", operands, reduce="none", oob="error", wrap_negative=False), inferred)
    wanted = integers_of(ctx, "output_shape", 2) or inferred
    if wanted == inferred:
        return y
    high = tuple(want - have for want, have in zip(wanted, inferred, strict=True))
    zero = (0,) * len(high)
    return str(ctx.add("pad", [y], mode="constant", low=zero, high=high, interior=zero, value=0.0))


@ONNX.lowers("Col2Im")
def _col2im(ctx: Context, node: onnx.NodeProto) -> str:
    """Adds every column up where its block lies in the image; what lies in the padding is dropped."""
    x, image, block = ctx.need(0), ctx.integers(1, "image_shape") or [], ctx.integers(2, "block_shape") or []
    rank, dtype = len(image), ctx.type(x).dtype
    strides, dilations, pads = _window(ctx, rank)
    batch, rows, count = ctx.type(x).shape
    taps = math.prod(block)
    blocks = [(image[a] + pads[a] + pads[rank + a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(rank)]
    if math.prod(blocks) != count or rows % taps:
        raise RefusedError(f"{blocks} blocks of {block} do not fit the columns {[rows, count]}")
    place, inside = np.zeros((taps, count), np.int64), np.ones((taps, count), np.bool_)
    for axis in range(rank):
        within, begin = np.indices(block)[axis].reshape(-1, 1) * dilations[axis], np.indices(blocks)[axis].reshape(1, -1) * strides[axis]
        at = within + begin - pads[axis]
        inside &= (at >= 0) & (at < image[axis])
        place = place * image[axis] + at
    updates = turned(ctx, ctx.reshape(x, [batch, rows // taps, taps * count]), [2, 0, 1])
    points = ctx.constant(np.where(inside, place, -1).reshape(-1, 1), f"{ctx.name}.places")
    zeros = ctx.step("broadcast", [ctx.scalar(0, dtype)], shape=(math.prod(image), batch, rows // taps))
    added = ctx.step("scatter_nd", [zeros, points, updates], reduce="add", oob="drop", wrap_negative=False)
    return str(ctx.add("reshape", [turned(ctx, added, [1, 2, 0])], shape=(batch, rows // taps, *image)))
