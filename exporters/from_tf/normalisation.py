"""Normalisations as TensorFlow and Keras spell them: batch norm, layer norm, group norm, RMS norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporters.from_tf.matching import Pattern, axes_of, fits, is_number, maker, number, orders, same, sizes
from exporters.from_tf.table import Context, Value

__all__ = ["find_group_norm", "find_normalisation", "find_rms_norm"]


@dataclass(frozen=True)
class _Affine:
    """The formula x * m + (offset - mean * m), m = scale / sqrt(variance + eps).

    Attributes:
        x: what is normalised.
        mean: what is taken away from it.
        variance: the square of what it is divided by, without ``eps``.
        eps: a number.
        vectors: ``scale`` and ``offset``, those that there are.
    """

    x: Any
    mean: Any
    variance: Any
    eps: float
    vectors: Mapping[str, Any]


def _affine(op: Any) -> Iterator[_Affine]:
    """Yields what an AddV2 may be, as tf.nn.batch_normalization and Keras spell it."""
    for scaled, shift in orders(op):
        for x, factor in orders(maker(scaled, "Mul")):
            statistics, moved = _deviation(factor), _offset_and_mean(shift, factor)
            if statistics is not None and moved is not None:
                variance, eps, scale = statistics
                vectors = {name: tensor for name, tensor in (("scale", scale), ("offset", moved[0])) if tensor is not None}
                yield _Affine(x, moved[1], variance, eps, vectors)


def _deviation(factor: Any) -> tuple[Any, float, Any] | None:
    """Returns (variance, eps, scale or None) of rsqrt(variance + eps) * scale."""
    for inverse, scale in orders(maker(factor, "Mul")) if maker(factor, "Mul") is not None else [(factor, None)]:
        rsqrt = maker(inverse, "Rsqrt")
        for variance, eps in orders(maker(rsqrt.inputs[0], "AddV2")) if rsqrt is not None else ():
            if (found := number(eps)) is not None:
                return variance, found, scale
    return None


def _offset_and_mean(shift: Any, factor: Any) -> tuple[Any, Any] | None:
    """Returns (offset or None, mean) of offset - mean * factor, of offset + (-mean) * factor and of (-mean) * factor."""
    difference = maker(shift, "Sub")
    if difference is not None and (mean := _times(difference.inputs[1], factor)) is not None:
        return difference.inputs[0], mean
    total = maker(shift, "AddV2")
    for product, offset in orders(total) if total is not None else [(shift, None)]:
        negation = maker(_times(product, factor), "Neg")
        if negation is not None:
            return offset, negation.inputs[0]
    return None


def _times(tensor: Any, factor: Any) -> Any:
    """Returns the other operand if the tensor is a product with ``factor``, else None."""
    return next((rest for rest, found in orders(maker(tensor, "Mul")) if same(found, factor)), None)


def find_normalisation(op: Any) -> Pattern | None:
    """Finds batch norm (mean and variance are operands) and layer norm (they are those of x over its last axes)."""
    for found in _affine(op):
        if (pattern := _batch_norm(found) or _layer_norm(found)) is not None:
            return pattern
    return None


def _batch_norm(found: _Affine) -> Pattern | None:
    """One number per position of one axis, which is the last one for vectors."""
    shape, operands = sizes(found.x), {"mean": found.mean, "variance": found.variance, **found.vectors}
    if shape is None or len(shape) < 2:
        return None
    for axis in reversed(range(len(shape))):
        spread: list[int | None] = [size if index == axis else 1 for index, size in enumerate(shape)]
        allowed = [spread, [shape[axis]]] if axis == len(shape) - 1 else [spread]
        if all(fits(tensor, *allowed) for tensor in operands.values()):
            return Pattern(_lower_batch_norm, {"x": found.x, **operands}, {"eps": found.eps, "axis": axis})
    return None


def _lower_batch_norm(
    ctx: Context, x: Value, mean: Value, variance: Value, scale: Value | None = None, offset: Value | None = None, *, eps: float, axis: int
) -> Value:
    size = ctx.shape(x)[axis]
    scale = ctx.constant(np.ones(size, ctx.type(x).dtype.numpy)) if scale is None else scale
    offset = ctx.constant(np.zeros(size, ctx.type(x).dtype.numpy)) if offset is None else offset
    vectors = [ctx.reshape(value, (size,)) for value in (scale, offset, mean, variance)]
    return ctx.add("batch_norm", x, *vectors, eps=eps, axis=axis)


def _moments(found: _Affine) -> list[int] | None:
    """Returns the axes of x that mean and variance are over, if they are its own."""
    mean, variance = maker(found.mean, "Mean"), maker(found.variance, "Mean")
    difference = maker(variance.inputs[0], "SquaredDifference") if variance is not None else None
    if mean is None or difference is None or not same(mean.inputs[0], found.x):
        return None
    a, b = difference.inputs
    if not ((same(a, found.x) and same(b, found.mean)) or (same(b, found.x) and same(a, found.mean))):
        return None
    axes = axes_of(mean)
    return axes if axes and axes == axes_of(variance) else None


def _last_axes(shape: list[int | None], axes: list[int]) -> list[int | None] | None:
    """Returns the sizes of the axes if they are the last ones."""
    return shape[axes[0] :] if axes == list(range(len(shape) - len(axes), len(shape))) else None


def _is_vector(tensor: Any, normalised: list[int | None]) -> bool:
    """True for a tensor with the normalised axes alone; axes of size 1 may stand before them."""
    found = sizes(tensor)
    if found is None:
        return False
    return fits(tensor, [*[1] * (len(found) - len(normalised)), *normalised])


def _layer_norm(found: _Affine) -> Pattern | None:
    axes, shape = _moments(found), sizes(found.x)
    normalised = None if axes is None or shape is None else _last_axes(shape, axes)
    if normalised is None or not all(_is_vector(tensor, normalised) for tensor in found.vectors.values()):
        return None
    return Pattern(_lower_layer_norm, {"x": found.x, **found.vectors}, {"eps": found.eps, "axes": tuple(axes or ())})


def _lower_layer_norm(
    ctx: Context, x: Value, scale: Value | None = None, offset: Value | None = None, *, eps: float, axes: tuple[int, ...]
) -> Value:
    shape = ctx.shape(x)[axes[0] :]
    vectors = [None if value is None else ctx.reshape(value, shape) for value in (scale, offset)]
    return ctx.add("layer_norm", x, *vectors, axes=axes, eps=eps, variance="two_pass")


def find_group_norm(op: Any) -> Pattern | None:
    """Finds a Reshape that joins channels again that were cut into groups and normalised with the statistics of their group."""
    for found in _affine(maker(op.inputs[0], "AddV2")):
        cut, axes, shape = maker(found.x, "Reshape"), _moments(found), sizes(found.x)
        whole = None if cut is None else sizes(cut.inputs[0])
        if axes is None or shape is None or whole is None or whole != sizes(op.outputs[0]) or len(shape) != len(whole) + 1:
            continue
        for axis in range(1, len(whole)):
            groups, inside = shape[axis : axis + 2]
            if groups is None or inside is None or whole != [*shape[:axis], groups * inside, *shape[axis + 2 :]]:
                continue
            spread = [size if index in (axis, axis + 1) else 1 for index, size in enumerate(shape)]
            if axes == [index for index in range(1, len(shape)) if index != axis] and all(
                fits(tensor, spread) for tensor in found.vectors.values()
            ):
                attrs = {"groups": groups, "axis": axis, "eps": found.eps}
                return Pattern(_lower_group_norm, {"x": cut.inputs[0], **found.vectors}, attrs)
    return None


def _lower_group_norm(
    ctx: Context, x: Value, scale: Value | None = None, offset: Value | None = None, *, groups: int, axis: int, eps: float
) -> Value:
    channels = ctx.shape(x)[axis]
    vectors = [None if value is None else ctx.reshape(value, (channels,)) for value in (scale, offset)]
    return ctx.add("group_norm", x, *vectors, groups=groups, axis=axis, eps=eps)


def find_rms_norm(op: Any) -> Pattern | None:
    """Finds x * rsqrt(mean(x^2) + eps) * scale in any order of the products, without the scale, and x / sqrt(mean(x^2) + eps)."""
    if (plain := _over_rms(op)) is not None:
        return _rms_norm(*plain)
    for a, b in orders(op) if op.type == "Mul" else ():
        inner = maker(a, "Mul", "RealDiv")
        if inner is not None and (plain := _over_rms(inner)) is not None:
            return _rms_norm(*plain, scale=b)
        for inverse, scale in orders(maker(a, "Mul")):
            if (found := _mean_square(maker(inverse, "Rsqrt"), b)) is not None:
                return _rms_norm(b, *found, scale=scale)
    return None


def _over_rms(op: Any) -> tuple[Any, float, list[int]] | None:
    """Returns (x, eps, axes) if an operation divides x by the root of its mean square."""
    for x, divisor in orders(op):
        root = maker(divisor, "Rsqrt" if op.type == "Mul" else "Sqrt")
        if (found := _mean_square(root, x)) is not None:
            return x, *found
    return None


def _mean_square(root: Any, x: Any) -> tuple[float, list[int]] | None:
    """Returns (eps, axes) of the root of the mean square of x + eps."""
    for mean, eps in orders(maker(root.inputs[0], "AddV2")) if root is not None else ():
        reduction = maker(mean, "Mean")
        square = maker(reduction.inputs[0], "Square", "Mul", "Pow") if reduction is not None else None
        if square is None or (value := number(eps)) is None or not same(square.inputs[0], x):
            continue
        power = square.inputs[-1]
        squared = square.type == "Square" or (same(power, x) if square.type == "Mul" else is_number(power, 2.0))
        if squared and (axes := axes_of(reduction)):
            return value, axes
    return None


def _rms_norm(x: Any, eps: float, axes: list[int], scale: Any = None) -> Pattern | None:
    shape = sizes(x)
    normalised = None if shape is None else _last_axes(shape, axes)
    if normalised is None or (scale is not None and not _is_vector(scale, normalised)):
        return None
    return Pattern(_lower_rms_norm, {"x": x} if scale is None else {"x": x, "scale": scale}, {"eps": eps, "axes": tuple(axes)})


def _lower_rms_norm(ctx: Context, x: Value, scale: Value | None = None, *, eps: float, axes: tuple[int, ...]) -> Value:
    vector = None if scale is None else ctx.reshape(scale, ctx.shape(x)[axes[0] :])
    return ctx.add("rms_norm", x, vector, axes=axes, eps=eps)
