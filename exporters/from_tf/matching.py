"""What the formulas of :mod:`exporters.from_tf.patterns` ask of a tensor: what made it, of which operands, whether it is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporters.from_tf.evaluation import Evaluation, origin
from exporters.from_tf.table import Value

__all__ = [
    "Pattern",
    "axes_of",
    "fits",
    "is_number",
    "known",
    "maker",
    "number",
    "only_read_by",
    "orders",
    "origin",
    "other",
    "same",
    "sizes",
]

_SMALL = 16
"""A larger tensor is no shape, permutation or number that a formula could contain."""

_SHAPE_ONLY = ("Shape", "ShapeN", "Size", "Rank")
_COMMUTATIVE = ("Mul", "AddV2", "Add", "Maximum", "Minimum")


@dataclass(frozen=True)
class Pattern:
    """A formula found.

    Attributes:
        lower: its lowering: ``lower(context, **operands, **attrs)``.
        operands: the tensors that it reads, by parameter of ``lower``.
        attrs: further keyword arguments of ``lower``.
    """

    lower: Callable[..., Value]
    operands: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def maker(tensor: Any, *types: str) -> Any:
    """Returns the operation that made a tensor if it is of one of these types, else None (also for no tensor)."""
    if tensor is None:
        return None
    op = origin(tensor).op
    return op if op.type in types else None


def same(a: Any, b: Any) -> bool:
    """True if two tensors are one value; False where one is None."""
    return a is not None and b is not None and origin(a) is origin(b)


def orders(op: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the operands of a binary operation in every order that gives the same result; nothing for no operation."""
    if op is not None:
        a, b = op.inputs
        yield a, b
        if op.type in _COMMUTATIVE:
            yield b, a


def known(tensor: Any) -> np.ndarray | None:
    """Returns the elements of a small tensor that constants determine."""
    import tensorflow as tf

    if origin(tensor).op.type != "Const" and ((tensor.shape.num_elements() or _SMALL + 1) > _SMALL or not Evaluation.possible(tensor, ())):
        return None
    return np.asarray(Evaluation(tf, {}, {}).of(tensor))


def number(tensor: Any) -> float | None:
    """Returns the value of a scalar that constants determine."""
    if tensor.shape.num_elements() != 1 or (value := known(tensor)) is None or value.dtype.kind not in "fiu":
        return None
    return float(value.reshape(()))


def is_number(tensor: Any, wanted: float) -> bool:
    """True for a constant scalar that is ``wanted`` in f32."""
    value = number(tensor)
    return value is not None and abs(value - wanted) <= 1e-6 * abs(wanted)


def other(tensor: Any, kind: str, wanted: float) -> Any:
    """Returns the other operand if the tensor is a Mul or AddV2 (``kind``) with this constant, else None."""
    return next((rest for constant, rest in orders(maker(tensor, kind)) if is_number(constant, wanted)), None)


def sizes(tensor: Any) -> list[int | None] | None:
    """Returns the shape of a tensor, None for a size that is not known while tracing; None if not even the rank is."""
    return None if tensor.shape.rank is None else list(tensor.shape.as_list())


def fits(tensor: Any, *wanted: list[int | None]) -> bool:
    """True if the shape of a tensor is known in full and is one of these."""
    found = sizes(tensor)
    return found is not None and None not in found and found in wanted


def axes_of(reduction: Any) -> list[int] | None:
    """Returns the axes of a reduction that keeps them, counted from the front and sorted; None if they are not known."""
    indices, rank = known(reduction.inputs[1]), reduction.inputs[0].shape.rank
    if indices is None or rank is None or not reduction.get_attr("keep_dims"):
        return None
    return sorted(int(axis) % rank for axis in np.reshape(indices, -1))


def only_read_by(tensor: Any, reader: Any) -> bool:
    """True if nothing but this operation reads the elements of a tensor, by whatever name, and no function returns it."""
    while True:
        returned = {output.name for output in getattr(tensor.graph, "outputs", ())}
        if tensor.name in returned or any(op is not reader and op.type not in _SHAPE_ONLY for op in tensor.consumers()):
            return False
        if origin(tensor) is tensor:
            return True
        reader, tensor = tensor.op, tensor.op.inputs[0]
