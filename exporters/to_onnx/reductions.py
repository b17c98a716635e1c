"""Reductions, positions of extremes, order along an axis, running reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from exporters.to_onnx.context import ELEMENT_TYPES, ONNX, Context, Laid
from rml_exec.types import DType

_OPERATORS = {"sum": "ReduceSum", "prod": "ReduceProd", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}


def reduced(ctx: Context, operator: str, x: str, axes: Sequence[int], keepdims: bool) -> str:
    """Emits a reduction; its axes are an operand since opset 18, of ReduceSum since 13."""
    if ctx.opset >= 18 or operator == "ReduceSum":
        return ctx.emit(operator, x, ctx.ints(axes), keepdims=int(keepdims))
    return ctx.emit(operator, x, axes=list(axes), keepdims=int(keepdims))


def _any(ctx: Context, flags: str, axes: Sequence[int], keepdims: bool) -> str:
    """Emits whether any of some flags is set."""
    return ctx.cast(reduced(ctx, "ReduceMax", ctx.cast(flags, DType.I32), axes, keepdims), DType.BOOL)


@ONNX.lowers("reduce")
def _reduce(ctx: Context, *, kind: str, axes: tuple[int, ...], keepdims: bool, nan: str, empty: str) -> str | Laid:
    order = ctx.order()
    x, dtype = ctx.input(0, order), ctx.dtype()
    if not axes and kind not in ("any", "all") and not (nan == "skip" and dtype.is_float):
        return Laid(x, order)
    if any(size == 0 for size in (ctx.held(0).type.shape[axis] for axis in axes)):
        return _over_nothing(ctx, kind)
    places = sorted(order.index(axis) for axis in axes)
    left = [axis for axis in order if keepdims or axis not in axes]
    ranked = sorted(left)
    result = tuple(ranked.index(axis) for axis in left)
    if kind in ("any", "all"):
        y = reduced(ctx, "ReduceMax" if kind == "any" else "ReduceMin", ctx.cast(x, DType.I32), places, keepdims) if axes else x
        return Laid(ctx.cast(y, DType.BOOL) if axes else y, result)
    y = _numbers(ctx, x, kind, places, keepdims, nan if dtype.is_float else "propagate")
    return Laid(y, result)


def _numbers(ctx: Context, x: str, kind: str, places: list[int], keepdims: bool, nan: str) -> str:
    operator, dtype = _OPERATORS[kind], ctx.dtype()
    extreme = kind in ("max", "min")
    if nan == "skip" and (not extreme or ctx.edge_cases):
        absent = ctx.emit("IsNaN", x)
        if kind == "mean":
            present = ctx.cast(ctx.emit("Not", absent), dtype)
            total = ctx.emit("Where", absent, ctx.number(0), x)
            sums = [reduced(ctx, "ReduceSum", part, places, keepdims) if places else part for part in (total, present)]
            return ctx.emit("Div", *sums)
        identity = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[kind]
        x = ctx.emit("Where", absent, ctx.number(identity), x)
    if not places:
        return x
    if kind == "mean" and dtype is DType.F32 and ctx.rank() == 4 and places == [2, 3]:
        y = ctx.emit("GlobalAveragePool", x)
        return y if keepdims else ctx.emit("Flatten", y, axis=1)
    small = dtype.is_integer and dtype.itemsize < 4
    y = reduced(ctx, operator, ctx.cast(x, DType.I32) if small else x, places, keepdims)
    y = ctx.cast(y, dtype) if small else y
    if extreme and nan == "propagate" and dtype.is_float and ctx.edge_cases:
        unknown = _any(ctx, ctx.emit("IsNaN", x), places, keepdims)
        y = ctx.emit("Where", unknown, ctx.number(math.nan), y)
    return y


def _over_nothing(ctx: Context, kind: str) -> str:
    """Emits the identity of a reduction over no elements."""
    (type_, shape), dtype = ctx.result(), ctx.dtype()
    number: float
    match kind:
        case "max":
            number = -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)
        case "min":
            number = math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)
        case _:
            number = {"sum": 0, "prod": 1, "mean": math.nan, "any": False, "all": True}[kind]
    return ctx.emit("Expand", ctx.constant(number, type_.dtype), ctx.ints(shape))


@ONNX.lowers("argreduce")
def _argreduce(ctx: Context, *, kind: str, axis: int, keepdims: bool, tie: str, nan: str, index_dtype: str) -> str:
    x, dtype = ctx.input(0), ctx.dtype()
    if dtype is DType.BOOL:
        x = ctx.cast(x, DType.I32)
    attrs: dict[str, Any] = {"axis": axis, "keepdims": int(keepdims)}
    y = ctx.emit(f"Arg{kind.capitalize()}", x, select_last_index=int(tie == "last"), **attrs)
    if dtype.is_float and ctx.edge_cases:
        unknown = ctx.emit("IsNaN", x)
        flags = ctx.cast(unknown, DType.I32)
        if nan == "first":
            y = ctx.emit("Where", _any(ctx, unknown, [axis], keepdims), ctx.emit("ArgMax", flags, **attrs), y)
        else:
            y = _known_best(ctx, x, unknown, y, kind, attrs, tie)
    return y if index_dtype == "i64" else ctx.cast(y, DType.I32)


def _known_best(ctx: Context, x: str, unknown: str, plain: str, kind: str, attrs: dict[str, Any], tie: str) -> str:
    """Emits the position of the best element that is no NaN; 0 where all are."""
    worst = ctx.number(-math.inf if kind == "max" else math.inf)
    known = ctx.emit("Where", unknown, worst, x)
    best = reduced(ctx, f"Reduce{kind.capitalize()}", known, [attrs["axis"]], True)
    wanted = ctx.emit("And", ctx.emit("Equal", known, best), ctx.emit("Not", unknown))
    flags = ctx.cast(wanted, DType.I32)
    found = ctx.emit("ArgMax", flags, select_last_index=int(tie == "last"), **attrs)
    some = ctx.cast(reduced(ctx, "ReduceMax", flags, [attrs["axis"]], bool(attrs["keepdims"])), DType.BOOL)
    return ctx.emit("Where", some, found, ctx.constant(np.int64(0)))


@ONNX.lowers("sort")
def _sort(ctx: Context, *, axis: int, descending: bool, stable: bool, index_dtype: str) -> tuple[str, str]:
    count = ctx.shape()[axis]
    return _best(ctx, ctx.ints([count]), axis, descending, True, index_dtype)


@ONNX.lowers("topk")
def _topk(ctx: Context, *, k: int, axis: int, largest: bool, sorted: bool, index_dtype: str) -> tuple[str, str]:
    return _best(ctx, ctx.ints([k]), axis, largest, sorted, index_dtype)


def _best(ctx: Context, k: str, axis: int, largest: bool, sorted_: bool, index_dtype: str) -> tuple[str, str]:
    x, dtype = ctx.input(0), ctx.dtype()
    small = not dtype.is_float and dtype not in (DType.I32, DType.I64)
    wide = DType.I64 if dtype in (DType.U32, DType.U64) else DType.I32
    values, indices = ctx.emit(
        "TopK", ctx.cast(x, wide) if small else x, k, outputs=2, axis=axis, largest=int(largest), sorted=int(sorted_)
    )
    return ctx.cast(values, dtype) if small else values, indices if index_dtype == "i64" else ctx.cast(indices, DType.I32)


@ONNX.lowers("cumulative")
def _cumulative(ctx: Context, *, kind: str, axis: int, exclusive: bool, reverse: bool) -> str:
    x, dtype = ctx.input(0), ctx.dtype()
    wide = dtype if dtype in (DType.F32, DType.F64, DType.I32, DType.I64) else DType.F32 if dtype is DType.F16 else DType.I64
    seen = x if wide is dtype else ctx.cast(x, wide)
    if kind == "sum":
        y = ctx.emit("CumSum", seen, ctx.constant(np.int64(axis)), exclusive=int(exclusive), reverse=int(reverse))
    else:
        y = _running(ctx, seen, wide, kind, axis, exclusive, reverse)
    return y if wide is dtype else ctx.cast(y, dtype)


def _running(ctx: Context, x: str, dtype: DType, kind: str, axis: int, exclusive: bool, reverse: bool) -> str:
    """Emits a Scan along the axis that carries the reduction."""
    type_, shape = ctx.result()
    held = ctx.dtype()
    match kind:
        case "prod":
            identity: float = 1
        case "max" | "logsumexp":
            identity = -math.inf if held.is_float else int(np.iinfo(held.numpy).min)
        case _:
            identity = math.inf if held.is_float else int(np.iinfo(held.numpy).max)
    rest = [size for at, size in enumerate(shape) if at != axis]
    first = ctx.emit("Expand", ctx.constant(identity, dtype), ctx.ints(rest))
    inner = ctx.scope.inner(ctx.node.name)
    row = [size for at, size in enumerate(type_.shape) if at != axis]
    sizes = [plain if isinstance(size, int) else None for size, plain in zip(rest, row, strict=True)]
    names = [ctx.model.name(f"{inner.prefix}{name}") for name in ("carry", "element")]
    carry, element = names
    if kind == "logsumexp":
        equal, larger = inner.emit("Equal", carry, element), inner.emit("Max", carry, element)
        gap = inner.emit("Neg", inner.emit("Abs", inner.emit("Sub", carry, element)))
        apart = inner.emit("Log", inner.emit("Add", inner.emit("Exp", gap), ctx.constant(1, dtype)))
        new = inner.emit("Add", larger, inner.emit("Where", equal, ctx.constant(math.log(2), dtype), apart))
    else:
        new = inner.emit({"prod": "Mul", "max": "Max", "min": "Min"}[kind], carry, element)
        if kind == "prod" and dtype is not held and held.is_integer:  # wraps at every step, so that nothing overflows
            new = inner.emit("Cast", inner.emit("Cast", new, to=ELEMENT_TYPES[held]), to=ELEMENT_TYPES[dtype])
    result = inner.emit("Identity", carry if exclusive else new)
    values = [onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], sizes) for name in (carry, element, new, result)]
    graph = onnx.helper.make_graph(inner.nodes, ctx.node.name, values[:2], values[2:])
    direction = [int(reverse)]
    _, y = ctx.emit(
        "Scan",
        first,
        x,
        outputs=2,
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=direction,
        scan_output_directions=direction,
    )
    return str(y)
