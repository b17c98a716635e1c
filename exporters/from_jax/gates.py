"""What goes into a gate of a recurrent cell: products of a step's values with constant matrices, and a bias, however they are written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from exporters.from_jax.elementwise import before_broadcast
from exporters.from_jax.matching import made_by, view
from exporters.from_jax.program import Value

__all__ = ["Part", "Sum", "gate", "sum_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """A constant matrix [inputs, outputs] or vector [outputs] that was made from weights.

    Attributes:
        array: its data.
        sources: the weights, one if it is part of one.
    """

    array: np.ndarray
    sources: tuple[Value, ...]

    def columns(self, start: int, stop: int) -> Part:
        return Part(self.array[..., start:stop], self.sources)

    def plus(self, other: Part | None) -> Part:
        return self if other is None else Part(self.array + other.array, (*self.sources, *other.sources))


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products, a bias and values.

    Attributes:
        products: value [.., inputs] -> the matrix that it is multiplied with.
        bias: what is added.
        plain: values that are added as they are -> the columns taken of them.
    """

    products: dict[Value, Part] = field(default_factory=dict)
    bias: Part | None = None
    plain: dict[Value, tuple[int, int]] = field(default_factory=dict)

    def columns(self, start: int, stop: int) -> Sum:
        """Returns some columns of the sum."""
        products = {value: part.columns(start, stop) for value, part in self.products.items()}
        plain = {value: (first + start, first + stop) for value, (first, _) in self.plain.items()}
        return Sum(products, self.bias and self.bias.columns(start, stop), plain)

    def plus(self, other: Sum) -> Sum | None:
        """Returns the sum of two sums; None if a value is in both."""
        mine, others = {*self.products, *self.plain}, {*other.products, *other.plain}
        if mine & others:
            return None
        bias = self.bias.plus(other.bias) if self.bias else other.bias
        return Sum(self.products | other.products, bias, self.plain | other.plain)

    def negated(self) -> Sum | None:
        """Returns minus the sum; None if it has plain values."""
        products = {value: Part(-part.array, part.sources) for value, part in self.products.items()}
        return None if self.plain else Sum(products, self.bias and Part(-self.bias.array, self.bias.sources))

    def only(self, value: Value) -> Sum:
        """Returns the part of the sum that a value gives, and the bias."""
        return Sum(
            {key: part for key, part in self.products.items() if key is value},
            self.bias,
            {key: columns for key, columns in self.plain.items() if key is value},
        )

    def fits(self, values: set[Value], width: int) -> bool:
        """True if it is made of these values only and is as wide as this."""
        widths = [part.array.shape[-1] for part in (*self.products.values(), *([self.bias] if self.bias else ()))]
        widths += [stop - start for start, stop in self.plain.values()]
        return {*self.products, *self.plain} <= values and set(widths) == {width}


def gate(value: Value, function: str) -> Sum | None:
    """Returns z of function(z), also where the columns of several gates were computed at once; None for anything else."""
    source, order, columns = _cut(value, tuple(range(len(value.shape))))
    operands = made_by(source, function)
    found = _sum(operands[0], order) if operands else None
    return found and found.columns(*columns)


def sum_of(value: Value, *, apart: bool = True) -> Sum | None:
    """Returns a value as a sum; None if what it adds up is not one of a :class:`Sum`.

    Args:
        value: the value.
        apart: whether a product of values joined along their last axis is taken for products of each of them.
    """
    return _sum(value, tuple(range(len(value.shape))), apart)


def _sum(value: Value, order: tuple[int, ...], apart: bool = True) -> Sum | None:
    """Returns a value as a sum, its axes taken in this order."""
    source, inner, columns = _cut(value, order)
    if source is not value:
        found = _sum(source, inner, apart)
        return found and found.columns(*columns)
    if operands := made_by(value, "add"):
        a, b = (_bias(term, value, order) if term.constant is not None else _sum(term, order, apart) for term in operands)
        return a.plus(b) if a is not None and b is not None else None
    if (product := _product(value, order, apart)) is not None:
        return product
    return Sum(plain={value: columns}) if order == tuple(range(len(value.shape))) and value.constant is None else None


def _cut(value: Value, order: tuple[int, ...]) -> tuple[Value, tuple[int, ...], tuple[int, int]]:
    """Looks through transposes, and slices and splits of the last axis; returns what was cut, its axes in order, and the columns."""
    start, stop = 0, value.shape[order[-1]] if order else 1
    while order and (operands := made_by(value, "slice", "split", "transpose")):
        (source,), producer, axis = operands, value.producer, order[-1]
        assert producer is not None
        first = 0
        if producer.primitive == "transpose":
            order = tuple(int(producer.params["permutation"][at]) for at in order)
        elif producer.primitive == "split":
            if producer.params["axis"] != axis:
                break
            first = int(sum(producer.params["sizes"][: producer.outputs.index(value)]))
        else:
            bounds = list(zip(producer.params["start_indices"], producer.params["limit_indices"], source.shape, strict=True))
            if producer.params["strides"] or any(bound[:2] != (0, bound[2]) for at, bound in enumerate(bounds) if at != axis):
                break
            first = int(bounds[axis][0])
        value, start, stop = source, start + first, stop + first
    return value, order, (start, stop)


def _bias(constant: Value, total: Value, order: tuple[int, ...]) -> Sum | None:
    """Returns a constant that is added to give ``total`` as a bias, if it varies along the last axis at most."""
    vector = before_broadcast(constant)
    aligned = (1,) * (len(total.shape) - len(vector.shape)) + vector.shape
    if any(size != 1 for at, size in enumerate(aligned) if at != order[-1]):
        return None
    return Sum(bias=Part(np.broadcast_to(vector.array().reshape(-1), total.shape[order[-1]]), (vector,)))


def _product(value: Value, order: tuple[int, ...], apart: bool) -> Sum | None:
    """Returns a product of a value's last axis with a constant matrix, on either side of it."""
    seen = view(value, repeats=False)
    operands = made_by(seen.source, "dot_general") or ()
    for side in (0, 1) if operands else ():
        assert seen.source.producer is not None
        contracted, batched = seen.source.producer.params["dimension_numbers"]
        weight, data = operands[side], operands[1 - side]
        if weight.constant is None or data.constant is not None or len(weight.shape) != 2 or batched[0] or len(contracted[0]) != 1:
            continue
        rank, (axis,) = len(data.shape), contracted[side]
        places = [*range(1, rank), 0] if side == 0 else [*range(rank)]  # where the axes of data, then the outputs, are in the result
        wanted = [place if value.shape[at] != 1 else None for place, at in zip(places, order, strict=False)]
        if tuple(contracted[1 - side]) != (rank - 1,) or [seen.axes[at] for at in order] != wanted:
            continue
        array = weight.array().T if axis == 1 else weight.array()
        bias = Part(operands[2].array().reshape(-1), (before_broadcast(operands[2]),)) if len(operands) == 3 else None
        matrix = Part(array, (weight,))
        return _by_rows(data, matrix, bias) if apart else Sum({data: matrix}, bias)
    return None


def _by_rows(data: Value, matrix: Part, bias: Part | None) -> Sum:
    """Returns a product as one of each value that ``data`` was joined of along its last axis."""
    parts = made_by(data, "concatenate")
    if not parts or data.producer is None or data.producer.params["dimension"] != len(data.shape) - 1 or len(set(parts)) != len(parts):
        return Sum({data: matrix}, bias)
    bounds = np.cumsum([0, *(part.shape[-1] for part in parts)])
    rows = zip(parts, bounds[:-1], bounds[1:], strict=True)
    return Sum({part: Part(matrix.array[start:stop], matrix.sources) for part, start, stop in rows}, bias)
