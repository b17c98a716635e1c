"""Recurrent layers, with the gates in ONNX's order, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.to_onnx.context import ONNX, Context, Held
from rml_exec.types import DType


def _gates(ctx: Context, index: int, gates: Sequence[int], hidden: int) -> str:
    """Returns a weight or bias as ONNX wants it: its gates in another order, behind an axis for the direction."""
    held = ctx.held(index)
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in gates])
    if held.array is not None:
        key = None if held.key is None else (held.key, "gates", tuple(gates))
        return ctx.model.initializer(held.array[rows][None], held.type.dtype, key=key, name=held.key or "weight")
    return ctx.emit("Unsqueeze", ctx.emit("Gather", ctx.input(index), ctx.constant(rows), axis=0), ctx.ints([0]))


def _bias(ctx: Context, indices: Sequence[int], gates: Sequence[int], hidden: int) -> str | None:
    """Returns the two biases one after the other, zeros for an absent one; None if both are."""
    if not any(index < len(ctx.operands) and ctx.has(index) for index in indices):
        return None
    parts = []
    for index in (*indices, -1)[:2]:
        if index >= 0 and ctx.has(index):
            parts.append(_gates(ctx, index, gates, hidden))
        else:
            parts.append(ctx.constant(np.zeros((1, len(gates) * hidden), ctx.dtype().numpy)))
    return ctx.emit("Concat", *parts, axis=1)


def _state(ctx: Context, index: int) -> str | None:
    return ctx.emit("Unsqueeze", ctx.input(index), ctx.ints([0])) if ctx.has(index) else None


def _no_time(ctx: Context, states: Sequence[int]) -> list[str | Held]:
    """Returns the results over no time steps: no outputs, and the states as they were."""
    type_, shape = ctx.result()
    results: list[str | Held] = [Held(type_, shape, array=np.zeros(type_.shape, type_.dtype.numpy))]
    for index in states:
        results.append(ctx.input(index) if ctx.has(index) else ctx.emit("Expand", ctx.number(0), ctx.ints(ctx.result(1)[1])))
    return results


def _weights(ctx: Context, gates: Sequence[int], hidden: int) -> tuple[str, str, str]:
    """Returns x, w and r; without features a column of zeros stands for them."""
    if ctx.size(2):
        return ctx.input(0), _gates(ctx, 1, gates, hidden), _gates(ctx, 2, gates, hidden)
    dtype = ctx.dtype().numpy
    x = ctx.emit("Expand", ctx.number(0), ctx.ints([*ctx.shape()[:2], 1]))
    return x, ctx.constant(np.zeros((1, len(gates) * hidden, 1), dtype)), _gates(ctx, 2, gates, hidden)


@ONNX.lowers("lstm")
def _lstm(ctx: Context, *, direction: str) -> list[str | Held]:
    hidden, gates = ctx.size(1, 2), (0, 3, 1, 2)  # i f g o -> i o f c
    if not ctx.held(0).type.shape[0]:
        return _no_time(ctx, (4, 5))
    x, w, r = _weights(ctx, gates, hidden)
    bias, h, c = _bias(ctx, (3,), gates, hidden), _state(ctx, 4), _state(ctx, 5)
    results = ctx.emit("LSTM", x, w, r, bias, None, h, c, outputs=3, hidden_size=hidden, direction=direction)
    return [ctx.emit("Squeeze", name, ctx.ints([axis])) for name, axis in zip(results, (1, 0, 0), strict=True)]


@ONNX.lowers("gru")
def _gru(ctx: Context, *, direction: str, reset: str) -> list[str | Held]:
    hidden, gates = ctx.size(1, 2), (1, 0, 2)  # r z n -> z r h
    if not ctx.held(0).type.shape[0]:
        return _no_time(ctx, (5,))
    x, w, r = _weights(ctx, gates, hidden)
    bias, h = _bias(ctx, (3, 4), gates, hidden), _state(ctx, 5)
    after = int(reset == "after")
    results = ctx.emit("GRU", x, w, r, bias, None, h, outputs=2, hidden_size=hidden, direction=direction, linear_before_reset=after)
    return [ctx.emit("Squeeze", name, ctx.ints([axis])) for name, axis in zip(results, (1, 0), strict=True)]


@ONNX.lowers("nms")
def _nms(ctx: Context, *, max_outputs: int, iou_threshold: float, score_threshold: float | None, index_dtype: str) -> tuple[str, str]:
    """NonMaxSuppression, its results filled up with -1; ONNX computes overlaps in f32."""
    zero = ctx.ints([0])
    boxes, scores = (ctx.input(index) if ctx.dtype() is DType.F32 else ctx.cast(ctx.input(index), DType.F32) for index in (0, 1))
    if ctx.edge_cases and score_threshold is None:
        score_threshold = float(np.finfo(np.float32).min)  # no NaN is above it
    threshold = None if score_threshold is None else ctx.constant(np.array([score_threshold], np.float32))
    found = ctx.emit(
        "NonMaxSuppression",
        ctx.emit("Unsqueeze", boxes, zero),
        ctx.emit("Unsqueeze", scores, ctx.ints([0, 1])),
        ctx.ints([max_outputs]),
        ctx.constant(np.array([iou_threshold], np.float32)),
        threshold,
    )
    indices = ctx.emit("Gather", found, ctx.constant(np.int64(2)), axis=1)
    count = ctx.emit("Shape", indices)
    missing = ctx.emit("Sub", ctx.ints([max_outputs]), count)
    filled = ctx.emit("Pad", indices, ctx.emit("Concat", zero, missing, axis=0), ctx.constant(np.int64(-1)))
    single = ctx.emit("Squeeze", count)
    if index_dtype == "i64":
        return filled, single
    return ctx.cast(filled, DType.I32), ctx.cast(single, DType.I32)
