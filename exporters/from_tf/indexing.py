"""Gathering, scattering, sorting, running sums, diagonals: operations that pick elements by their positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.from_tf.elementwise import cast_to, offsets
from exporters.from_tf.matching import maker, number, orders
from exporters.from_tf.reductions import reduce
from exporters.from_tf.table import TABLE, Context, Known, RefusalError, Value, Variable
from rml_exec.types import DType

__all__: list[str] = []

_SCATTERS = {"TensorScatterUpdate": "none", "TensorScatterAdd": "add", "TensorScatterSub": "add"}
_SCATTERS |= {"TensorScatterMax": "max", "TensorScatterMin": "min"}
_SEGMENTS = {"Sum": "add", "Mean": "add", "Prod": "mul", "Max": "max", "Min": "min"}


def _source(params: Value) -> Value:
    """Returns the tensor to gather from; a variable may stand for its value."""
    if not isinstance(params, Variable):
        return params
    if params.known is None:
        raise RefusalError("the resource is not a variable")
    return params.known


def _indices(ctx: Context, indices: Value) -> Value:
    return indices if ctx.type(indices).dtype in (DType.I32, DType.I64) else cast_to(ctx, indices, DType.I32)


def _bounds(ctx: Context) -> dict[str, object]:
    """Returns what happens to an index out of range, also a negative one: TensorFlow raises, XLA clamps it."""
    return {"oob": "clamp" if ctx.xla else "error", "wrap_negative": False, "fill_value": None}


@TABLE.lowers("Gather", "GatherV2", "ResourceGather")
def _gather(ctx: Context, params: Value, indices: Value, axis: Value | None = None) -> Value:
    source, chosen = _source(params), _indices(ctx, indices)
    shape, rank = ctx.shape(source), len(ctx.shape(chosen))
    along = 0 if axis is None else ctx.axis(axis, len(shape))
    batch = ctx.attr("batch_dims") if "batch_dims" in ctx.op.node_def.attr else 0
    batch += rank if batch < 0 else 0
    if not batch:
        return ctx.add("take", source, chosen, axis=along, **_bounds(ctx))
    # The gathered axis goes right behind the batch, and what stood between them behind the indices again.
    between, rest = list(range(batch, along)), list(range(along + 1, len(shape)))
    moved = ctx.transpose(source, [*range(batch), along, *between, *rest])
    points = ctx.reshape(chosen, (*ctx.shape(chosen), 1))
    y = ctx.add("gather_nd", moved, points, batch_dims=batch, **_bounds(ctx))
    new = list(range(batch, rank))
    middle = list(range(rank, rank + len(between)))
    return ctx.transpose(y, [*range(batch), *middle, *new, *range(rank + len(between), rank + len(between) + len(rest))])


@TABLE.lowers("GatherNd", "ResourceGatherNd")
def _gather_nd(ctx: Context, params: Value, indices: Value) -> Value:
    return ctx.add("gather_nd", _source(params), _indices(ctx, indices), batch_dims=0, **_bounds(ctx))


def _scatter(ctx: Context, x: Value, indices: Value, updates: Value, kind: str, oob: str = "error") -> Value:
    return ctx.add("scatter_nd", x, _indices(ctx, indices), updates, reduce=kind, oob="drop" if ctx.xla else oob, wrap_negative=False)


@TABLE.lowers("ScatterNd")
def _scatter_nd(ctx: Context, indices: Value, updates: Value, shape: Value) -> Value:
    """Repeated positions add up."""
    return _scatter(ctx, _filled(ctx, 0, ctx.ints(shape, "the shape"), updates), indices, updates, "add")


@TABLE.lowers(*_SCATTERS)
def _tensor_scatter(ctx: Context, x: Value, indices: Value, updates: Value) -> Value:
    new = ctx.add("neg", updates) if ctx.op.type == "TensorScatterSub" else updates
    return _scatter(ctx, x, indices, new, _SCATTERS[ctx.op.type])


def _filled(ctx: Context, value: float | int, shape: Sequence[int], like: Value) -> Value:
    return ctx.add("broadcast", ctx.scalar(value, like), shape=tuple(shape))


def _start(ctx: Context, kind: str, like: Value) -> float | int:
    """Returns the number that a segment begins with."""
    if kind in ("add", "mul"):
        return int(kind == "mul")
    dtype = ctx.type(like).dtype.numpy
    if np.dtype(dtype).kind == "f":
        return float(np.finfo(dtype).min if kind == "max" else np.finfo(dtype).max)
    return int(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)


@TABLE.lowers(*(f"UnsortedSegment{name}" for name in ("Sum", "Prod", "Max", "Min")))
def _unsorted_segments(ctx: Context, x: Value, segments: Value, count: Value) -> Value:
    """A negative segment is left out; an empty one holds 0, 1, the lowest or the highest number."""
    kind = _SEGMENTS[ctx.op.type.removeprefix("UnsortedSegment")]
    (size,) = ctx.ints(count, "the number of segments")
    named = ctx.shape(segments)
    start = _filled(ctx, _start(ctx, kind, x), (size, *ctx.shape(x)[len(named) :]), x)
    return _scatter(ctx, start, ctx.reshape(segments, (*named, 1)), x, kind, "drop")


@TABLE.lowers(*(f"Segment{name}" for name in _SEGMENTS), *(f"Segment{name}V2" for name in _SEGMENTS if name != "Mean"))
def _segments(ctx: Context, x: Value, segments: Value, count: Value | None = None) -> Value:
    """The segments are sorted; their number is the last one plus 1, so they must be known. An empty one holds 0, a product 1."""
    name = ctx.op.type.removeprefix("Segment").removesuffix("V2")
    kind, numbers = _SEGMENTS[name], ctx.array(segments, "which segments there are")
    size = ctx.ints(count, "the number of segments")[0] if count is not None else int(numbers[-1]) + 1 if numbers.size else 0
    rest = ctx.shape(x)[1:]
    points = ctx.constant(numbers.reshape(-1, 1))
    y = _scatter(ctx, _filled(ctx, _start(ctx, kind, x), (size, *rest), x), points, x, kind)
    members = np.bincount(numbers, minlength=size).reshape(-1, *(1 for _ in rest))
    if name == "Mean":
        return ctx.add("div", y, ctx.constant(np.maximum(members, 1).astype(ctx.type(x).dtype.numpy)), rounding="true")
    if kind in ("max", "min") and not members.all():
        return ctx.add("select", ctx.constant(members > 0), y, ctx.scalar(0, x))
    return y


@TABLE.lowers("TopKV2")
def _topk(ctx: Context, x: Value, k: Value) -> Sequence[Value]:
    (count,) = ctx.ints(k, "the number of elements")
    wanted = ctx.output_dtype(1)
    index_dtype = wanted if wanted in (DType.I32, DType.I64) else DType.I32
    attrs = {"k": count, "axis": len(ctx.shape(x)) - 1, "largest": True, "sorted": ctx.attr("sorted"), "index_dtype": index_dtype}
    values, indices = ctx.add_all("topk", x, **attrs)
    return [values, cast_to(ctx, indices, wanted)]


def _counted(ctx: Context, hits: Value, dtype: DType) -> Value:
    """Returns how many are true along the last axis."""
    return reduce(ctx, cast_to(ctx, hits, dtype), "sum", (len(ctx.shape(hits)) - 1,), False)


@TABLE.lowers("Bucketize")
def _bucketize(ctx: Context, x: Value) -> Value:
    """Returns how many boundaries each number has reached; NaN is below none, so it has reached all."""
    boundaries = ctx.constant(np.asarray(ctx.attr("boundaries"), np.float32))
    each = cast_to(ctx, ctx.reshape(x, (*ctx.shape(x), 1)), DType.F32)
    return _counted(ctx, ctx.add("not", ctx.add("compare", each, boundaries, dir="lt")), DType.I32)


@TABLE.lowers("LowerBound", "UpperBound")
def _search_sorted(ctx: Context, rows: Value, values: Value) -> Value:
    """Returns how many elements of a sorted row are less (UpperBound: not more) than each value."""
    (batch, length), count = ctx.shape(rows), ctx.shape(values)[1]
    each, all_ = ctx.reshape(values, (batch, count, 1)), ctx.reshape(rows, (batch, 1, length))
    return _counted(ctx, ctx.add("compare", all_, each, dir="lt" if ctx.op.type == "LowerBound" else "le"), ctx.output_dtype())


@TABLE.lowers("DenseBincount")
def _bincount(ctx: Context, x: Value, size: Value, weights: Value) -> Value:
    """Counts each number below ``size`` in a row; what is beyond it is left out. Weights are added up in place of 1."""
    bins, shape, dtype = _bins(ctx, size), ctx.shape(x), ctx.output_dtype()
    bin_numbers = ctx.constant(np.arange(bins, dtype=ctx.type(x).dtype.numpy)[:, None])
    hits = ctx.add("compare", ctx.reshape(x, (*shape[:-1], 1, shape[-1])), bin_numbers, dir="eq")
    if ctx.attr("binary_output"):
        return cast_to(ctx, reduce(ctx, hits, "any", (len(shape),), False), dtype)
    if not ctx.type(weights).size:
        return _counted(ctx, hits, dtype)
    added = ctx.add("select", hits, ctx.reshape(weights, (*shape[:-1], 1, shape[-1])), ctx.scalar(0, weights))
    return reduce(ctx, added, "sum", (len(shape),), False)


def _bins(ctx: Context, size: Value) -> int:
    """Returns a number of bins; min(n, max(n, the largest element)), as Keras has it, is n."""
    if not isinstance(size, Known):
        for least, rest in orders(maker(ctx.op.inputs[1], "Minimum")):
            for other, _ in orders(maker(rest, "Maximum")):
                if (bins := number(least)) is not None and number(other) == bins:
                    return int(bins)
        raise RefusalError("the number of bins depends on data: give it a largest one that is the smallest too")
    return ctx.ints(size, "the number of bins")[0]


@TABLE.lowers("XlaDynamicUpdateSlice")
def _update_slice(ctx: Context, x: Value, update: Value, start: Value) -> Value:
    """What keras.ops.slice_update is; a window that would leave the tensor is moved back into it."""
    return ctx.add("dynamic_update_slice", x, update, _indices(ctx, start))


@TABLE.lowers("Cross")
def _cross(ctx: Context, a: Value, b: Value) -> Value:
    last = len(ctx.shape(a)) - 1
    turned = [
        [ctx.add("take", value, ctx.constant(np.asarray(order, np.int32)), axis=last, **_bounds(ctx)) for order in ((1, 2, 0), (2, 0, 1))]
        for value in (a, b)
    ]
    (a_next, a_last), (b_next, b_last) = turned
    return ctx.add("sub", ctx.add("mul", a_next, b_last), ctx.add("mul", a_last, b_next))


@TABLE.lowers("Cumsum", "Cumprod", "CumulativeLogsumexp")
def _cumulative(ctx: Context, x: Value, axis: Value) -> Value:
    kind = {"Cumsum": "sum", "Cumprod": "prod", "CumulativeLogsumexp": "logsumexp"}[ctx.op.type]
    attrs = {"axis": ctx.axis(axis, len(ctx.shape(x))), "exclusive": ctx.attr("exclusive"), "reverse": ctx.attr("reverse")}
    return ctx.add("cumulative", x, kind=kind, **attrs)


@TABLE.lowers("InvertPermutation")
def _invert_permutation(ctx: Context, x: Value) -> Value:
    """Where the sorted elements came from."""
    index_dtype = ctx.type(x).dtype
    return ctx.add_all("sort", x, axis=0, descending=False, stable=True, index_dtype=index_dtype)[1]


@TABLE.lowers("ReverseSequence")
def _reverse_sequence(ctx: Context, x: Value, lengths: Value) -> Value:
    """Position t of a row becomes length - 1 - t before its length, and stays from there on."""
    shape, along, batch = ctx.shape(x), ctx.attr("seq_dim"), ctx.attr("batch_dim")
    spread = [size if axis == batch else 1 for axis, size in enumerate(shape)]
    ends = ctx.reshape(_indices(ctx, lengths), spread)
    steps = np.arange(shape[along], dtype=ctx.type(ends).dtype.numpy).reshape([-1 if axis == along else 1 for axis in range(len(shape))])
    positions = ctx.constant(steps)
    turned = ctx.add("sub", ctx.add("sub", ends, ctx.scalar(1, ends)), positions)
    chosen = ctx.add("select", ctx.add("compare", positions, ends, dir="lt"), turned, positions)
    return ctx.add("take_along_axis", x, ctx.add("broadcast", chosen, shape=shape), axis=along, **_bounds(ctx))


@TABLE.lowers("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(ctx: Context, *operands: Value) -> Value:
    """Row i of the result is the last row that was given the index i; the indices must be known."""
    half = len(operands) // 2
    lists = [ctx.array(value, "the indices") for value in operands[:half]]
    rest = ctx.shape(operands[half])[lists[0].ndim :]
    rows = [ctx.reshape(value, (indices.size, *rest)) for indices, value in zip(lists, operands[half:], strict=True)]
    indices = np.concatenate([array.reshape(-1) for array in lists])
    order = {int(index): position for position, index in enumerate(indices)}
    if sorted(order) != list(range(len(order))):
        raise RefusalError("some of its rows are never given")
    joined = rows[0] if len(rows) == 1 else ctx.add("concat", *rows, axis=0)
    chosen = ctx.constant(np.asarray([order[index] for index in range(len(order))], np.int32))
    return ctx.add("take", joined, chosen, axis=0, **_bounds(ctx))


def _diagonal(ctx: Context, rows: int, columns: int, k: Value | None) -> tuple[Value, Value]:
    """Returns (position along the k-th diagonal, whether it lies on it) of each element of a matrix."""
    chosen = [0] if k is None else ctx.ints(k, "which diagonals")
    if len(set(chosen)) > 1:
        raise RefusalError("several diagonals at once are not supported")
    row, column = np.arange(rows, dtype=np.int32)[:, None], np.arange(columns, dtype=np.int32)
    distance = offsets(ctx, rows, columns)
    if isinstance(distance, Known):
        on = distance.array == chosen[0]
        return ctx.constant(np.where(on, np.minimum(row, column), 0)), ctx.constant(on)
    lies = ctx.add("compare", distance, ctx.constant(np.asarray(chosen[0], np.int32)), dir="eq")
    along = ctx.add("min", ctx.constant(row), ctx.constant(column))
    return ctx.add("select", lies, along, ctx.constant(np.asarray(0, np.int32))), lies


@TABLE.lowers("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _matrix_diag(
    ctx: Context,
    x: Value,
    k: Value | None = None,
    rows: Value | None = None,
    columns: Value | None = None,
    padding: Value | None = None,
) -> Value:
    *_, length = ctx.shape(x)
    offset = 0 if k is None else ctx.ints(k, "which diagonals")[0]
    sizes = [-1 if size is None else ctx.ints(size, "the size")[0] for size in (rows, columns)]
    least = [length + max(-offset, 0), length + max(offset, 0)]
    if sizes == [-1, -1]:  # a square
        least = [max(least)] * 2
    height, width = (smallest if size == -1 else size for size, smallest in zip(sizes, least, strict=True))
    along, on = _diagonal(ctx, height, width, k)
    return _onto_diagonal(ctx, x, along, on, ctx.scalar(0, x) if padding is None else padding)


def _onto_diagonal(ctx: Context, diagonal: Value, along: Value, on: Value, other: Value) -> Value:
    spread = ctx.add("take", diagonal, along, axis=len(ctx.shape(diagonal)) - 1, **_bounds(ctx))
    return ctx.add("select", on, spread, other)


@TABLE.lowers("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _matrix_set_diag(ctx: Context, x: Value, diagonal: Value, k: Value | None = None) -> Value:
    *_, rows, columns = ctx.shape(x)
    along, on = _diagonal(ctx, rows, columns, k)
    return _onto_diagonal(ctx, diagonal, along, on, x)


@TABLE.lowers("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def _matrix_diag_part(ctx: Context, x: Value, k: Value | None = None, padding: Value | None = None) -> Value:
    *batch, rows, columns = ctx.shape(x)
    offsets_wanted = [0] if k is None else ctx.ints(k, "which diagonals")
    if len(set(offsets_wanted)) > 1:
        raise RefusalError("several diagonals at once are not supported")
    first = max(offsets_wanted[0], 0) + max(-offsets_wanted[0], 0) * columns
    count = min(rows - max(-offsets_wanted[0], 0), columns - max(offsets_wanted[0], 0))
    chosen = ctx.constant(first + np.arange(count, dtype=np.int32) * (columns + 1))
    return ctx.add("take", ctx.reshape(x, (*batch, rows * columns)), chosen, axis=len(batch), **_bounds(ctx))


@TABLE.lowers("Slice")
def _slice(ctx: Context, x: Value, begin: Value, size: Value) -> Value:
    shape = ctx.shape(x)
    if isinstance(begin, Known):
        start, sizes = ctx.ints(begin, "the begin"), ctx.ints(size, "the size")
        return ctx.slice(x, start, [dim if count == -1 else first + count for first, count, dim in zip(start, sizes, shape, strict=True)])
    sizes = ctx.ints(size, "the size")
    if -1 in sizes:
        raise RefusalError("the size must be known where the begin is not")
    return ctx.add("dynamic_slice", x, begin, sizes=tuple(sizes))
