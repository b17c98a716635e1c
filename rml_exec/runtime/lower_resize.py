"""Lowering of resize: elements picked one by one or repeated (nearest), or lines and columns mixed by weights that are computed here."""

from __future__ import annotations

import math

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.ops.resize import nearest_elements, taps_of
from rml_exec.ops.rules import spatial_axes
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, copy_step, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType, TensorType

_RULES = ("mode", "coord", "nearest_round", "cubic_a", "exclude_outside", "antialias")
_Span = tuple[int, int, float | None]
"""Along an axis: elements of x, elements of the result, and the scale where it is given."""


@lowers("resize")
def lower_resize(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """One step; a volume takes two, its first axis before the others."""
    (x,), result, attrs = node.reads(), node.outputs[0], node.attrs
    type_ = ctx.type(x)
    if result.type.size == 0 or (attrs["mode"] != "nearest" and type_.dtype is not DType.F32):
        return None
    axes = spatial_axes(type_.rank, attrs["data_layout"])
    scales = attrs["scales"] or (None,) * len(axes)
    spans = [(type_.shape[axis], count, scale) for axis, count, scale in zip(axes, attrs["sizes"], scales, strict=True)]
    outer, inner = math.prod(type_.shape[: axes[0]]), math.prod(type_.shape[axes[-1] + 1 :])
    if attrs["mode"] == "nearest" and (repetition := _repetition(node, ctx, dict(zip(axes, spans, strict=True)))):
        return [repetition]
    source, steps = ctx.contiguous(x), []
    if attrs["mode"] == "nearest":
        params = (type_.dtype.itemsize, outer, math.prod(span[0] for span in spans), inner, math.prod(attrs["sizes"]), 4, 0, 1, 0)
        return [NativeStep("take", params, (result.name, source, _picked(node, spans)))]
    if len(spans) == 3:
        size, count, _ = spans[0]
        plane = math.prod(span[0] for span in spans[1:]) * inner
        between = ctx.scratch(outer * count * plane * type_.dtype.itemsize)
        params = (outer, size, count, _taps(node, spans[0]), 1, 1, 0, plane, outer * count)
        steps.append(NativeStep("resize", params, (between, source, *_tables(node, spans[0]), None, None, None)))
        source, outer, spans = between, outer * count, spans[1:]
    lines, columns = spans if len(spans) == 2 else (None, spans[0])
    size, count, _ = lines or (1, 1, None)
    workers = min(ctx.threads, outer * count)
    workspaces = ctx.scratch(workers * columns[0] * inner * 4) if lines else None
    params = (outer, size, count, _taps(node, lines), *columns[:2], _taps(node, columns), inner, workers)
    operands = (result.name, source, *_tables(node, lines), *_tables(node, columns), workspaces)
    return [*steps, NativeStep("resize", params, operands)]


def _repetition(node: Node, ctx: LowerContext, spans: dict[int, _Span]) -> NativeStep | None:
    """Returns the copy, which reads with a stride of 0, that repeats every element equally often along each axis; None if that is not it."""
    (x,), result, attrs = node.reads(), node.outputs[0], node.attrs
    dims: list[int] = []
    strides: list[int] = []
    for axis, (size, count, stride) in enumerate(zip(ctx.type(x).shape, result.type.shape, ctx.strides(x), strict=True)):
        times = count // size
        if axis in spans:
            taken = nearest_elements(*spans[axis], attrs["coord"], attrs["nearest_round"])
            if times * size != count or not np.array_equal(taken, np.arange(count) // times):
                return None
        dims += [size, times]
        strides += [stride, 0]
    return copy_step(result.name, x, TensorType(result.type.dtype, tuple(dims)), strides)


def _picked(node: Node, spans: list[_Span]) -> np.ndarray:
    """Returns the position in x of each element of the result, along all spatial axes as one."""
    rules = (node.attrs["coord"], node.attrs["nearest_round"])

    def make() -> np.ndarray:
        at = np.zeros((), np.int32)
        for size, count, scale in spans:
            at = at[..., None] * size + nearest_elements(size, count, scale, *rules)
        return np.ascontiguousarray(at, np.int32)

    return shared_data(None, ("nearest", *spans, *rules), make)


def _tables(node: Node, span: _Span | None) -> tuple[Operand, Operand]:
    """Returns the elements along an axis that each element of the result mixes and their weights, both [taps, count]; none for no axis."""
    if span is None:
        return None, None
    rules = {name: node.attrs[name] for name in _RULES}

    def table(part: int, dtype: type) -> np.ndarray:
        def make() -> np.ndarray:
            return np.ascontiguousarray(np.asarray(taps_of(*span, **rules)[part]).T, dtype)

        return shared_data(None, ("resize", part, span, *rules.values()), make)

    return table(0, np.int32), table(1, np.float32)


def _taps(node: Node, span: _Span | None) -> int:
    elements = _tables(node, span)[0]
    return len(elements) if isinstance(elements, np.ndarray) else 0
