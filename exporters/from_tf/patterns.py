"""Formulas that TensorFlow spells out and the graph format has one op for: found by what they compute, constants included.

A pattern stands for the last operation of its formula and reads the formula's operands; what lies in between stays only if others read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporters.from_tf.linear import lower_linear
from exporters.from_tf.neural import CONVOLUTIONS, add_conv, relay_filter
from exporters.from_tf.table import Context, Value

__all__ = ["Pattern", "find_pattern"]

_PASS_THROUGH = ("Identity", "StopGradient", "PreventGradient", "Snapshot")
_COMMUTATIVE = ("Mul", "AddV2", "Add")


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


def find_pattern(op: Any) -> Pattern | None:
    """Returns the formula that ends with this operation, None if there is none."""
    for find in _FINDERS.get(op.type, ()):
        if (pattern := find(op)) is not None:
            return pattern
    return None


def _maker(tensor: Any, *types: str) -> Any:
    """Returns the operation that made a tensor if it is of one of these types, else None."""
    while tensor.op.type in _PASS_THROUGH:
        tensor = tensor.op.inputs[0]
    return tensor.op if tensor.op.type in types else None


def _same(a: Any, b: Any) -> bool:
    """True if two tensors are one value; False where the first is None."""
    if a is None:
        return False
    while a.op.type in _PASS_THROUGH:
        a = a.op.inputs[0]
    while b.op.type in _PASS_THROUGH:
        b = b.op.inputs[0]
    return bool(a is b)


def _orders(op: Any) -> list[tuple[Any, Any]]:
    """Returns the operands of a binary operation in every order that gives the same result."""
    a, b = op.inputs
    return [(a, b), (b, a)] if op.type in _COMMUTATIVE else [(a, b)]


def _number(tensor: Any) -> float | None:
    """Returns the value of a constant scalar."""
    import tensorflow as tf

    if _maker(tensor, "Const") is None:
        return None
    value = tf.get_static_value(tensor)
    return float(value) if value is not None and np.ndim(value) == 0 else None


def _is_number(tensor: Any, wanted: float) -> bool:
    """True for a constant scalar that is ``wanted`` in f32."""
    value = _number(tensor)
    return value is not None and abs(value - wanted) <= 1e-6 * abs(wanted)


def _find_bias(op: Any) -> Pattern | None:
    """BiasAdd(MatMul(x, w), b), the product read by nothing else."""
    product = op.inputs[0].op
    if product.type != "MatMul" or len(product.outputs[0].consumers()) != 1 or op.get_attr("data_format") != b"NHWC":
        return None
    return Pattern(lower_linear, {"a": product.inputs[0], "b": product.inputs[1], "bias": op.inputs[1]}, {"product": product})


def _find_dilated_conv(op: Any) -> Pattern | None:
    """BatchToSpaceND(Conv2D(SpaceToBatchND(x))): a dilated convolution, as tf.nn.atrous_conv2d and depthwise layers spell it."""
    import tensorflow as tf

    conv = _maker(op.inputs[0], *CONVOLUTIONS)
    spread = _maker(conv.inputs[0], "SpaceToBatchND") if conv is not None else None
    if spread is None or conv.get_attr("padding") != b"VALID" or conv.get_attr("data_format") != b"NHWC":
        return None
    if set(conv.get_attr("strides")) != {1} or set(conv.get_attr("dilations")) != {1}:
        return None
    blocks, blocks_again, paddings, crops = map(tf.get_static_value, (spread.inputs[1], op.inputs[1], spread.inputs[2], op.inputs[2]))
    if (
        any(known is None for known in (blocks, blocks_again, paddings, crops))
        or len(blocks) != 2
        or not np.array_equal(blocks, blocks_again)
    ):
        return None
    pads = paddings - crops  # cropping the result takes away what the pads beyond it gave
    if (pads < 0).any():
        return None
    attrs = {"depthwise": conv.type != "Conv2D", "pads": pads.tolist(), "dilations": blocks.tolist()}
    return Pattern(_lower_dilated_conv, {"x": spread.inputs[0], "filters": conv.inputs[1]}, attrs)


def _lower_dilated_conv(
    ctx: Context, x: Value, filters: Value, *, depthwise: bool, pads: Sequence[Sequence[int]], dilations: Sequence[int]
) -> Value:
    weights = relay_filter(ctx, filters, depthwise)
    return add_conv(ctx, x, weights, (1, 1), [(low, high) for low, high in pads], dilations, "NHWC")


def _find_normalisation(op: Any) -> Pattern | None:
    """Finds x * m + (offset - mean * m), m = rsqrt(variance + eps) * scale, as tf.nn.batch_normalization and Keras spell it."""
    for scaled, shift in _orders(op):
        product = _maker(scaled, "Mul")
        for x, factor in _orders(product) if product is not None else ():
            statistics, moved = _deviation(factor), _offset_and_mean(shift, factor)
            if statistics is not None and moved is not None:
                variance, eps, scale = statistics
                offset, mean = moved
                affine = {name: tensor for name, tensor in (("scale", scale), ("offset", offset)) if tensor is not None}
                return _batch_norm(x, affine, mean, variance, eps) or _layer_norm(x, affine, mean, variance, eps)
    return None


def _deviation(factor: Any) -> tuple[Any, float, Any] | None:
    """Returns (variance, eps, scale or None) of rsqrt(variance + eps) * scale."""
    product = _maker(factor, "Mul")
    for inverse, scale in _orders(product) if product is not None else [(factor, None)]:
        rsqrt = _maker(inverse, "Rsqrt")
        total = _maker(rsqrt.inputs[0], "AddV2") if rsqrt is not None else None
        for variance, eps in _orders(total) if total is not None else ():
            if (number := _number(eps)) is not None:
                return variance, number, scale
    return None


def _offset_and_mean(shift: Any, factor: Any) -> tuple[Any, Any] | None:
    """Returns (offset or None, mean) of offset - mean * factor, of offset + (-mean) * factor and of (-mean) * factor."""
    difference = _maker(shift, "Sub")
    if difference is not None and (mean := _times(difference.inputs[1], factor)) is not None:
        return difference.inputs[0], mean
    total = _maker(shift, "AddV2")
    for product, offset in _orders(total) if total is not None else [(shift, None)]:
        minus = _times(product, factor)
        negation = _maker(minus, "Neg") if minus is not None else None
        if negation is not None:
            return offset, negation.inputs[0]
    return None


def _times(tensor: Any, factor: Any) -> Any:
    """Returns the other operand if the tensor is a product with ``factor``, else None."""
    product = _maker(tensor, "Mul")
    for other, found in _orders(product) if product is not None else ():
        if _same(found, factor):
            return other
    return None


def _batch_norm(x: Any, affine: Mapping[str, Any], mean: Any, variance: Any, eps: float) -> Pattern | None:
    """One number per position of one axis, which is the last one for vectors."""
    operands = {"x": x, "mean": mean, "variance": variance, **affine}
    if not all(tensor.shape.is_fully_defined() for tensor in operands.values()) or x.shape.rank < 2:
        return None
    sizes = x.shape.as_list()
    for axis in reversed(range(len(sizes))):
        spread = [size if index == axis else 1 for index, size in enumerate(sizes)]
        allowed = [spread, [sizes[axis]]] if axis == len(sizes) - 1 else [spread]
        if all(tensor.shape.as_list() in allowed for name, tensor in operands.items() if name != "x"):
            return Pattern(_lower_batch_norm, operands, {"eps": eps, "axis": axis})
    return None


def _lower_batch_norm(
    ctx: Context, x: Value, mean: Value, variance: Value, scale: Value | None = None, offset: Value | None = None, *, eps: float, axis: int
) -> Value:
    size = ctx.shape(x)[axis]
    scale = ctx.constant(np.ones(size, ctx.type(x).dtype.numpy)) if scale is None else scale
    offset = ctx.constant(np.zeros(size, ctx.type(x).dtype.numpy)) if offset is None else offset
    vectors = [ctx.reshape(value, (size,)) for value in (scale, offset, mean, variance)]
    return ctx.add("batch_norm", x, *vectors, eps=eps, axis=axis)


def _layer_norm(x: Any, affine: Mapping[str, Any], mean: Any, variance: Any, eps: float) -> Pattern | None:
    """Mean and variance of x itself over its last axes; scale and offset have these axes alone."""
    import tensorflow as tf

    mean_op, variance_op = _maker(mean, "Mean"), _maker(variance, "Mean")
    square = _maker(variance_op.inputs[0], "SquaredDifference") if variance_op is not None else None
    if mean_op is None or square is None or not all(tensor.shape.is_fully_defined() for tensor in (x, *affine.values())):
        return None
    if not _same(mean_op.inputs[0], x) or not any(_same(a, x) and _same(b, mean) for a, b in (square.inputs, reversed(square.inputs))):
        return None
    axes = []
    for reduction in (mean_op, variance_op):
        indices = tf.get_static_value(reduction.inputs[1])
        if indices is None or not reduction.get_attr("keep_dims"):
            return None
        axes.append(sorted(int(axis) % x.shape.rank for axis in np.reshape(indices, -1)))
    rank, count = x.shape.rank, len(axes[0])
    if axes[0] != axes[1] or not count or axes[0] != list(range(rank - count, rank)):
        return None
    normalised = x.shape.as_list()[rank - count :]
    for tensor in affine.values():
        sizes = tensor.shape.as_list()
        if sizes[-count:] != normalised or any(size != 1 for size in sizes[:-count]):
            return None
    return Pattern(_lower_layer_norm, {"x": x, **affine}, {"eps": eps, "axes": tuple(axes[0])})


def _lower_layer_norm(
    ctx: Context, x: Value, scale: Value | None = None, offset: Value | None = None, *, eps: float, axes: tuple[int, ...]
) -> Value:
    shape = ctx.shape(x)[axes[0] :]
    vectors = [None if value is None else ctx.reshape(value, shape) for value in (scale, offset)]
    return ctx.add("layer_norm", x, *vectors, axes=axes, eps=eps, variance="two_pass")


def _without(tensor: Any, kind: str, number: float) -> Any:
    """Returns the other operand if the tensor is a Mul or AddV2 (``kind``) with this constant, else None."""
    op = _maker(tensor, kind)
    for constant, other in _orders(op) if op is not None else ():
        if _is_number(constant, number):
            return other
    return None


def _find_gelu(op: Any) -> Pattern | None:
    """Finds 0.5 * x * erfc(-x * sqrt(1/2)) and 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), as tf.nn.gelu spells them."""
    for half, factor in _orders(op):
        x = _without(half, "Mul", 0.5)
        if x is not None and _is_erf_gate(factor, x):
            return Pattern(_lower_gelu, {"x": x}, {"approximate": "none"})
        if x is not None and _is_tanh_gate(factor, x):
            return Pattern(_lower_gelu, {"x": x}, {"approximate": "tanh"})
    return None


def _is_erf_gate(gate: Any, x: Any) -> bool:
    erfc = _maker(gate, "Erfc")
    minus = _without(erfc.inputs[0], "Mul", math.sqrt(0.5)) if erfc is not None else None
    negation = _maker(minus, "Neg") if minus is not None else None
    return negation is not None and _same(negation.inputs[0], x)


def _is_tanh_gate(gate: Any, x: Any) -> bool:
    inner = _without(gate, "AddV2", 1.0)
    tanh = _maker(inner, "Tanh") if inner is not None else None
    argument = _without(tanh.inputs[0], "Mul", math.sqrt(2 / math.pi)) if tanh is not None else None
    total = _maker(argument, "AddV2") if argument is not None else None
    for linear, cubic in _orders(total) if total is not None else ():
        cube = _without(cubic, "Mul", 0.044715)
        power = _maker(cube, "Pow") if cube is not None else None
        if power is not None and _same(linear, x) and _same(power.inputs[0], x) and _is_number(power.inputs[1], 3.0):
            return True
    return False


def _lower_gelu(ctx: Context, x: Value, *, approximate: str) -> Value:
    return ctx.add("gelu", x, approximate=approximate)


def _find_silu(op: Any) -> Pattern | None:
    """Finds x * sigmoid(x); tf.nn.silu multiplies by a beta of 1 inside."""
    for x, gate in _orders(op):
        sigmoid = _maker(gate, "Sigmoid")
        if sigmoid is not None and (_same(sigmoid.inputs[0], x) or _same(_without(sigmoid.inputs[0], "Mul", 1.0), x)):
            return Pattern(_lower_silu, {"x": x})
    return None


def _lower_silu(ctx: Context, x: Value) -> Value:
    return ctx.add("silu", x)


_FINDERS: Mapping[str, Sequence[Callable[[Any], Pattern | None]]] = {
    "BiasAdd": (_find_bias,),
    "BatchToSpaceND": (_find_dilated_conv,),
    "AddV2": (_find_normalisation,),
    "Mul": (_find_gelu, _find_silu),
}
