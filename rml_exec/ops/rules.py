"""Rules that the type inference of several ops shares, and the element types that ops accept.

Each function returns what it derived or raises :class:`Rule` with the rule and the offending values; :meth:`OpDef.infer_types` adds the
node and the operand types to the sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from rml_exec.ops.registry import Limit, Rule
from rml_exec.types import DType, TensorType

__all__ = [
    "BITS",
    "FLOATS",
    "INDICES",
    "INTEGERS",
    "NO_BF16",
    "NUMBERS",
    "axes_in_range",
    "axis_in_range",
    "broadcast",
    "dtype_in",
    "per_axis",
    "representable",
    "same_dtype",
    "spatial_axes",
    "vector_of",
    "window_counts",
]

FLOATS = (DType.F16, DType.F32, DType.F64)
INTEGERS = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64)
NUMBERS = FLOATS + INTEGERS
BITS = (DType.BOOL, *INTEGERS)
INDICES = (DType.I32, DType.I64)

NO_BF16 = (Limit(DType.BF16, "NumPy has no bfloat16, so the op has no reference"),)
"""``limits`` of every op that computes; ops that only move elements carry bf16 as its 16 bits."""


def dtype_in(dtype: DType, allowed: Collection[DType], name: str = "element type") -> None:
    """Requires ``dtype`` to be one of ``allowed``."""
    if dtype not in allowed:
        raise Rule(f"{name} must be one of {', '.join(map(str, allowed))}", dtype)


def same_dtype(*types: TensorType | None) -> DType:
    """Returns the one element type of all present operands; nothing promotes."""
    present = [t.dtype for t in types if t is not None]
    if len(set(present)) != 1:
        raise Rule("operands must have one element type", " and ".join(map(str, present)), "insert cast")
    return present[0]


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that NumPy's broadcasting gives: right-aligned, an axis of size 1 stretches."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise Rule("shapes must broadcast together", " and ".join(map(str, map(list, shapes)))) from None


def axis_in_range(axis: int, rank: int, name: str = "axis") -> int:
    """Returns ``axis`` if it names one of ``rank`` axes; negative axes are not part of the format."""
    if not 0 <= axis < rank:
        raise Rule(f"{name} must be at least 0 and below the rank {rank}", axis)
    return axis


def axes_in_range(axes: Sequence[int], rank: int) -> None:
    """Requires ``axes`` to be ascending, without repeats and each below ``rank``."""
    for axis in axes:
        axis_in_range(axis, rank, "each of axes")
    if list(axes) != sorted(set(axes)):
        raise Rule("axes must ascend without repeats", list(axes))


def per_axis(values: Sequence[object], rank: int, name: str, minimum: int | None = None) -> None:
    """Requires one entry per axis, each (or both of a pair) at least ``minimum``."""
    if len(values) != rank:
        raise Rule(f"{name} needs one entry for each of {rank} axes", list(values))
    if minimum is not None and values and np.min(np.asarray(values)) < minimum:
        raise Rule(f"{name} must be at least {minimum}", list(values))


def representable(value: float, dtype: DType, name: str) -> None:
    """Requires a float attribute to be a value of ``dtype``: whole and in range for integers, 0 or 1 for bool."""
    if dtype.is_float:
        return
    low, high = (0, 1) if dtype is DType.BOOL else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    if value != value or not low <= value <= high or int(value) != value:
        raise Rule(f"{name} must be a value of {dtype}", value)


def vector_of(size: int, operand: TensorType | None, name: str) -> None:
    """Requires an operand, where present, to have the shape [size]."""
    if operand is not None and operand.shape != (size,):
        raise Rule(f"{name} must have the shape [{size}]", list(operand.shape))


def spatial_axes(rank: int, data_layout: str) -> range:
    """Returns the spatial axes of a [batch, channels, ...] (NCHW) or [batch, ..., channels] (NHWC) tensor with 1 to 3 of them."""
    if not 3 <= rank <= 5:
        raise Rule("x must have a batch axis, a channel axis and 1 to 3 spatial axes", f"rank {rank}")
    return range(2, rank) if data_layout == "NCHW" else range(1, rank - 1)


def window_counts(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], pads: Sequence[tuple[int, int]], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Returns how many windows fit along each spatial axis: ``(size + low + high - dilation*(window-1) - 1) // stride + 1``, at least 0.

    Raises:
        Rule: a wrong number of entries, a window, stride or dilation below 1, or a negative pad (crop with ``slice`` or ``pad``).
    """
    per_axis(window, len(sizes), "window", 1)
    per_axis(strides, len(sizes), "strides", 1)
    per_axis(pads, len(sizes), "pads", 0)
    per_axis(dilations, len(sizes), "dilations", 1)
    return tuple(
        max(0, (size + low + high - dilation * (extent - 1) - 1) // stride + 1)
        for size, extent, stride, (low, high), dilation in zip(sizes, window, strides, pads, dilations, strict=True)
    )
