"""Lowerings of operators that read or write at indices, sort or search.

A negative index counts from the end; one out of range is an error of the run.
"""

from __future__ import annotations

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.shapes import cut, pick, turned
from rml_exec.types import DType

_READ = {"oob": "error", "wrap_negative": True, "fill_value": None}


def _indices(ctx: Context, value: str) -> str:
    return value if ctx.type(value).dtype in (DType.I32, DType.I64) else ctx.cast(value, DType.I64)


@ONNX.lowers("Gather")
def _gather(ctx: Context, node: onnx.NodeProto) -> str:
    """One known index is a view: a slice without the axis."""
    x, index = ctx.need(0), ctx.known(ctx.need(1))
    shape = ctx.type(x).shape
    axis = ctx.axis(ctx.attr("axis", 0), len(shape))
    if index is not None and not index.shape and -shape[axis] <= index < shape[axis]:
        place = int(index) % shape[axis]
        return cut(ctx, x, axis, place, place + 1, squeeze=True)
    return str(ctx.add("take", [x, _indices(ctx, ctx.need(1))], axis=axis, **_READ))


@ONNX.lowers("GatherElements")
def _gather_elements(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    axis = ctx.axis(ctx.attr("axis", 0), ctx.type(x).rank)
    return str(ctx.add("take_along_axis", [x, _indices(ctx, ctx.need(1))], axis=axis, **_READ))


@ONNX.lowers("GatherND")
def _gather_nd(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("gather_nd", [ctx.need(0), _indices(ctx, ctx.need(1))], batch_dims=ctx.attr("batch_dims", 0), **_READ))


@ONNX.lowers("Scatter", "ScatterElements")
def _scatter_elements(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    axis = ctx.axis(ctx.attr("axis", 0), ctx.type(x).rank)
    operands = [x, _indices(ctx, ctx.need(1)), ctx.need(2)]
    return str(ctx.add("scatter_along_axis", operands, axis=axis, reduce=ctx.attr("reduction", "none"), oob="error", wrap_negative=True))


@ONNX.lowers("ScatterND")
def _scatter_nd(ctx: Context, node: onnx.NodeProto) -> str:
    operands = [ctx.need(0), _indices(ctx, ctx.need(1)), ctx.need(2)]
    return str(ctx.add("scatter_nd", operands, reduce=ctx.attr("reduction", "none"), oob="error", wrap_negative=True))


@ONNX.lowers("TensorScatter")
def _tensor_scatter(ctx: Context, node: onnx.NodeProto) -> str:
    """Writes the update of each batch index from its position on; circular: what passes the end goes on at the front."""
    x, update, given = ctx.need(0), ctx.need(1), ctx.input(2)
    shape, length = ctx.type(x).shape, ctx.type(update).shape
    rank, axis = len(shape), ctx.axis(ctx.attr("axis", -2), len(shape))
    circular = ctx.attr("mode", "linear") == "circular"
    if axis == 0:
        raise RefusedError("axis 0 is the batch")
    first = ctx.constant(np.zeros(shape[0], np.int64), f"{ctx.name}.start") if given is None else ctx.cast(given, DType.I64)
    if shape[0] == 1 and not circular:
        zeros = [ctx.constant(np.zeros(count, np.int64), f"{ctx.name}.zeros") for count in (axis, rank - axis - 1)]
        return str(ctx.add("dynamic_update_slice", [x, update, ctx.step("concat", [zeros[0], first, zeros[1]], axis=0)]))
    steps = ctx.step("iota", [], dtype="i64", shape=(length[axis],), axis=0)
    place = ctx.step("add", [ctx.reshape(first, [shape[0], 1]), steps])
    if circular:
        place = ctx.step("rem", [place, ctx.scalar(shape[axis], DType.I64)], sign="divisor")
    points = (shape[0], length[axis], 1)
    batch = ctx.step("iota", [], dtype="i64", shape=points, axis=0)
    places = ctx.step("concat", [batch, ctx.reshape(place, points)], axis=2)
    perm = [0, axis, *(index for index in range(1, rank) if index != axis)]
    operands = [turned(ctx, x, perm), places, turned(ctx, update, perm)]
    return turned(ctx, ctx.step("scatter_nd", operands, reduce="none", oob="error", wrap_negative=False), np.argsort(perm).tolist())


@ONNX.lowers("OneHot")
def _one_hot(ctx: Context, node: onnx.NodeProto) -> str:
    """Off everywhere for an index beyond the depth; -depth to -1 count from the end."""
    indices, values = ctx.cast(ctx.need(0), DType.I64), ctx.need(2)
    (depth,) = ctx.integers(1, "depth") or [0]
    shape = ctx.type(indices).shape
    axis = ctx.axis(ctx.attr("axis", -1), len(shape) + 1)
    wrapped = ctx.step("add", [indices, ctx.scalar(depth, DType.I64)])
    negative = ctx.step("compare", [indices, ctx.scalar(0, DType.I64)], dir="lt")
    place = ctx.reshape(ctx.step("select", [negative, wrapped, indices]), [*shape[:axis], 1, *shape[axis:]])
    line = ctx.step("iota", [], dtype="i64", shape=(depth, *(1 for _ in shape[axis:])), axis=0)
    hot = ctx.step("compare", [place, line], dir="eq")
    off, on = (cut(ctx, values, 0, index, index + 1, squeeze=True) for index in (0, 1))
    return str(ctx.add("select", [hot, on, off]))


@ONNX.lowers("ReverseSequence")
def _reverse_sequence(ctx: Context, node: onnx.NodeProto) -> str:
    """The first elements of each batch index, as many as its length, in reverse; the rest in place."""
    x, lengths = ctx.need(0), ctx.cast(ctx.need(1), DType.I64)
    shape = ctx.type(x).shape
    batch, time = (ctx.axis(ctx.attr(name, default), len(shape)) for name, default in (("batch_axis", 1), ("time_axis", 0)))
    points = (shape[batch], shape[time], 1)
    step = ctx.step("iota", [], dtype="i64", shape=points, axis=1)
    length = ctx.reshape(lengths, [shape[batch], 1, 1])
    mirrored = ctx.step("sub", [ctx.step("sub", [length, step]), ctx.scalar(1, DType.I64)])
    place = ctx.step("select", [ctx.step("compare", [step, length], dir="lt"), mirrored, step])
    perm = [batch, time, *(axis for axis in range(len(shape)) if axis not in (batch, time))]
    taken = ctx.step("gather_nd", [turned(ctx, x, perm), place], batch_dims=1, oob="error", wrap_negative=False, fill_value=None)
    return turned(ctx, taken, np.argsort(perm).tolist())


@ONNX.lowers("CumSum", "CumProd")
def _cumulative(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    (axis,) = ctx.integers(1, "axis") or [0]
    kind = node.op_type.removeprefix("Cum").lower()
    flags = {name: bool(ctx.attr(name, 0)) for name in ("exclusive", "reverse")}
    return str(ctx.add("cumulative", [x], kind=kind, axis=ctx.axis(axis, ctx.type(x).rank), **flags))


@ONNX.lowers("ArgMax", "ArgMin")
def _arg_reduce(ctx: Context, node: onnx.NodeProto) -> str:
    """The first NaN wins, as in ONNX's reference implementation; ONNX Runtime passes over NaN."""
    x = ctx.need(0)
    return str(
        ctx.add(
            "argreduce",
            [x],
            kind=node.op_type.removeprefix("Arg").lower(),
            axis=ctx.axis(ctx.attr("axis", 0), ctx.type(x).rank),
            keepdims=bool(ctx.attr("keepdims", 1)),
            tie="last" if ctx.attr("select_last_index", 0) else "first",
            nan="first",
            index_dtype="i64",
        )
    )


@ONNX.lowers("TopK")
def _topk(ctx: Context, node: onnx.NodeProto) -> tuple[str, str]:
    x = ctx.need(0)
    given = ctx.attr("k")
    counts = (ctx.integers(1, "k") or []) if given is None else [given]
    axis = ctx.axis(ctx.attr("axis", -1), ctx.type(x).rank)
    size = ctx.type(x).shape[axis] if ctx.type(x).rank else 1
    if len(counts) != 1 or not 0 <= counts[0] <= size:
        raise RefusedError(f"its k must be one number from 0 to {size}, the size of axis {axis}, not {counts}")
    (k,) = counts
    largest, ordered = (bool(ctx.attr(name, 1)) for name in ("largest", "sorted"))
    values, indices = ctx.step("topk", [x], k=k, axis=axis, largest=largest, sorted=ordered, index_dtype="i64")
    return values, indices


def _known(ctx: Context, index: int) -> np.ndarray:
    array = ctx.known(ctx.need(index))
    if array is None:
        raise RefusedError("the size of its result depends on the inputs")
    return array


@ONNX.lowers("NonZero")
def _non_zero(ctx: Context, node: onnx.NodeProto) -> str:
    return ctx.constant(np.array(np.nonzero(np.atleast_1d(_known(ctx, 0))), np.int64))


@ONNX.lowers("Compress")
def _compress(ctx: Context, node: onnx.NodeProto) -> str:
    x, kept = ctx.need(0), np.flatnonzero(_known(ctx, 1))
    axis = ctx.attr("axis")
    if axis is None:
        return pick(ctx, ctx.reshape(x, [ctx.type(x).size]), kept, 0)
    return pick(ctx, x, kept, ctx.axis(axis, ctx.type(x).rank))


@ONNX.lowers("Unique")
def _unique(ctx: Context, node: onnx.NodeProto) -> tuple[str, ...]:
    """In ascending order, or (sorted 0) in that of the first occurrences."""
    x = _known(ctx, 0)
    axis = ctx.attr("axis")
    axis = None if axis is None else ctx.axis(axis, x.ndim)
    y, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not ctx.attr("sorted", 1):
        order = np.argsort(first)
        y, first, counts, inverse = np.take(y, order, axis or 0), first[order], counts[order], np.argsort(order)[inverse]
    places = {"first": first, "inverse": inverse, "counts": counts}
    return ctx.constant(y), *(ctx.constant(array.astype(np.int64), f"{ctx.name}.{name}") for name, array in places.items())


@ONNX.lowers("NonMaxSuppression")
def _non_max_suppression(ctx: Context, node: onnx.NodeProto) -> str:
    """(batch, class, box) of every box that stays, batch by batch and class by class, best score first."""
    boxes, scores = _known(ctx, 0), _known(ctx, 1)
    if ctx.attr("center_point_box", 0):
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        boxes = np.concatenate([centre - half, centre + half], -1)
    limit = min((ctx.integers(2, "limit") or [0])[0], boxes.shape[1])
    thresholds = [None if ctx.input(index) is None else float(_known(ctx, index).reshape(())) for index in (3, 4)]
    attrs = {"max_outputs": max(limit, 0), "iou_threshold": thresholds[0] or 0.0, "score_threshold": thresholds[1], "index_dtype": "i64"}
    found = []
    for batch, classes in enumerate(scores):
        for number, score in enumerate(classes):
            operands = [ctx.constant(boxes[batch]), ctx.constant(score)]
            indices, count = (np.asarray(ctx.known(value)) for value in ctx.step("nms", operands, **attrs))
            found += [(batch, number, index) for index in indices[: int(count)]]
    return ctx.constant(np.array(found, np.int64).reshape(-1, 3))
