"""Formulas that TensorFlow spells out and the graph format has one op for: found by what they compute, constants included.

A pattern stands for the last operation of its formula and reads the formula's operands; what lies in between stays only if others read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from exporters.from_tf.activations import (
    find_celu,
    find_elu,
    find_gelu,
    find_hard_sigmoid,
    find_hard_swish,
    find_leaky_relu,
    find_log_softmax,
    find_silu,
)
from exporters.from_tf.attention import find_attention
from exporters.from_tf.linear import lower_linear
from exporters.from_tf.matching import Pattern, maker, only_read_by
from exporters.from_tf.neural import CONVOLUTIONS, add_conv, relay_filter
from exporters.from_tf.normalisation import find_group_norm, find_normalisation, find_rms_norm
from exporters.from_tf.table import Context, Value

__all__ = ["find_pattern"]

_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def find_pattern(op: Any) -> Pattern | None:
    """Returns the formula that ends with this operation, None if there is none."""
    for find in _FINDERS.get(op.type, ()):
        if (pattern := find(op)) is not None:
            return pattern
    return None


def _find_bias(op: Any) -> Pattern | None:
    """Finds BiasAdd(MatMul(x, w), b), the product read by nothing else."""
    product = op.inputs[0].op
    if product.type not in _PRODUCTS or not only_read_by(op.inputs[0], op) or op.get_attr("data_format") != b"NHWC":
        return None
    return Pattern(lower_linear, {"a": product.inputs[0], "b": product.inputs[1], "bias": op.inputs[1]}, {"product": product})


def _find_dilated_conv(op: Any) -> Pattern | None:
    """BatchToSpaceND(Conv2D(SpaceToBatchND(x))): a dilated convolution, as tf.nn.atrous_conv2d and depthwise layers spell it."""
    import tensorflow as tf

    conv = maker(op.inputs[0], *CONVOLUTIONS)
    spread = maker(conv.inputs[0], "SpaceToBatchND") if conv is not None else None
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


_FINDERS: Mapping[str, Sequence[Callable[[Any], Pattern | None]]] = {
    "AddV2": (find_normalisation, find_celu),
    **dict.fromkeys((*_PRODUCTS, "Einsum"), (find_attention,)),
    "BatchToSpaceND": (_find_dilated_conv,),
    "BiasAdd": (_find_bias,),
    "Maximum": (find_leaky_relu,),
    "Mul": (find_gelu, find_hard_swish, find_hard_sigmoid, find_silu, find_rms_norm),
    "RealDiv": (find_hard_swish, find_hard_sigmoid, find_rms_norm),
    "Reshape": (find_group_norm,),
    "SelectV2": (find_elu,),
    "Sub": (find_leaky_relu, find_log_softmax),
}
