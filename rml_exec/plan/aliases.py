"""Which values are only another look at the storage of a value: the stride rules of the view ops, one table.

A view never moves data. The value that owns the storage is its *root*; an element of the view lies ``offset + sum(index * stride)``
elements behind the root's first. Chains of views resolve to one root: a reader of any of them needs the root's address and these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rml_exec.ir.graph import Body
from rml_exec.ops.registry import get_op
from rml_exec.types import TensorType

__all__ = ["View", "contiguous_strides", "reads_contiguous", "resolve_views"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Where a value's elements lie: in the storage of ``root``, from ``offset`` on, ``strides`` apart; all counted in elements."""

    root: str
    offset: int
    strides: tuple[int, ...]


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Returns the C-order strides of a shape, in elements."""
    strides = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def reads_contiguous(view: View, shape: Shape) -> bool:
    """True if the elements of a value of this shape lie in C order without gaps (from whatever offset)."""
    axes = zip(shape, view.strides, contiguous_strides(shape), strict=True)
    return 0 in shape or all(dim == 1 or step == dense for dim, step, dense in axes)


def resolve_views(body: Body, types: Mapping[str, TensorType]) -> dict[str, View]:
    """Returns the view of every value of a body.

    A value that is no view, and a reshape that its operand's strides cannot express, is its own root, contiguous from offset 0. So is a
    view of a value that ``types`` lacks, as happens in a range of nodes taken out of its graph: that costs a copy, it is never wrong.

    Args:
        body: verified; only its nodes are looked at.
        types: type of every value, as ``body.types()`` gives it.
    """
    views = {name: View(name, 0, contiguous_strides(type.shape)) for name, type in types.items()}
    for node in body.nodes:
        operand = node.inputs[0] if node.inputs and get_op(node.op).view else None
        if operand is None or operand not in views:
            continue
        result = node.outputs[0]
        source = views[operand]
        if result.type.size == 0:  # no element to point at: any strides do, and an offset computed from them could lie outside
            views[result.name] = View(source.root, source.offset, contiguous_strides(result.type.shape))
        elif view := _RULES[node.op](source, types[operand].shape, result.type.shape, node.attrs):
            views[result.name] = view
    return views


def _reshape(view: View, old: Shape, new: Shape, attrs: Mapping[str, Any]) -> View | None:
    """NumPy's rule: merges axes into the longest runs that step evenly and cuts the runs into the new axes; None if one crosses runs."""
    runs: list[tuple[int, int]] = []  # (elements, stride of the innermost axis)
    for dim, step in zip(old, view.strides, strict=True):
        if dim == 1:
            continue
        if runs and runs[-1][1] == dim * step:
            runs[-1] = (runs[-1][0] * dim, step)
        else:
            runs.append((dim, step))
    strides = []
    left, step = 1, 1
    for dim in reversed(new):
        if dim != 1 and left == 1:
            left, step = runs.pop()
        if left % dim:
            return None
        strides.append(step)
        left, step = left // dim, step * dim
    return View(view.root, view.offset, tuple(reversed(strides)))


def _transpose(view: View, old: Shape, new: Shape, attrs: Mapping[str, Any]) -> View:
    return View(view.root, view.offset, tuple(view.strides[axis] for axis in attrs["perm"]))


def _broadcast(view: View, old: Shape, new: Shape, attrs: Mapping[str, Any]) -> View:
    kept = (0 if dim != wide else step for dim, wide, step in zip(old, new[len(new) - len(old) :], view.strides, strict=True))
    return View(view.root, view.offset, (0,) * (len(new) - len(old)) + tuple(kept))


def _slice(view: View, old: Shape, new: Shape, attrs: Mapping[str, Any]) -> View:
    offset = view.offset + sum(first * step for first, step in zip(attrs["start"], view.strides, strict=True))
    return View(view.root, offset, tuple(step * stride for step, stride in zip(view.strides, attrs["strides"], strict=True)))


def _reverse(view: View, old: Shape, new: Shape, attrs: Mapping[str, Any]) -> View:
    axes = attrs["axes"]
    offset = view.offset + sum((old[axis] - 1) * view.strides[axis] for axis in axes)
    return View(view.root, offset, tuple(-step if axis in axes else step for axis, step in enumerate(view.strides)))


_Rule = Callable[[View, Shape, Shape, Mapping[str, Any]], View | None]
_RULES: dict[str, _Rule] = {"reshape": _reshape, "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "reverse": _reverse}
