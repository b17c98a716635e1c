"""Lowering of attention: two batched GEMMs around scale, mask and softmax, all in scratch."""

from __future__ import annotations

import math

import numpy as np

from rml_exec import _native
from rml_exec.ir.graph import Node, Value
from rml_exec.plan.aliases import contiguous_strides
from rml_exec.runtime.lower_elementwise import Tensor, elementwise_step
from rml_exec.runtime.lower_linear import gemm_step, matrix_batch, pack_step
from rml_exec.runtime.lowering import LowerContext, NativeStep, Scratch, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType, TensorType


@lowers("attention")
def lower_attention(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """softmax(q k^T * scale + mask) v; q, k and v are read through their strides, so that views of one fused projection cost no copy."""
    q, k, v, _ = node.inputs
    result, fully_masked = node.outputs[0], node.attrs["fully_masked"]
    assert q is not None and k is not None and v is not None
    if result.type.dtype is not DType.F32:
        return None
    batch_dims = result.type.shape[:-2]
    batch, (length, width), keys, depth = math.prod(batch_dims), result.type.shape[-2:], ctx.type(k).shape[-2], ctx.type(q).shape[-1]
    type_ = TensorType(DType.F32, (*batch_dims, length, keys))
    scores = ctx.scratch(type_.nbytes)
    weigh = _scale_and_mask(node, ctx, scores, type_)
    if weigh is None:
        return None
    q_operand, q_strides = matrix_batch(ctx, q, batch_dims, False, needs_unit_columns=True)
    k_operand, k_strides = matrix_batch(ctx, k, batch_dims, True, needs_unit_columns=False)
    v_operand, v_strides = matrix_batch(ctx, v, batch_dims, False, needs_unit_columns=False)
    pack_k = pack_step(ctx, k_operand, batch, depth, keys, *k_strides)
    pack_v = pack_step(ctx, v_operand, batch, keys, width, *v_strides)
    k_floats, v_floats = _native.packed_b_floats(depth, keys), _native.packed_b_floats(keys, width)
    return [
        pack_k,
        gemm_step(
            scores,
            q_operand,
            pack_k.operands[0],
            None,
            batch,
            length,
            keys,
            depth,
            q_strides[1],
            keys,
            q_strides[0],
            k_floats,
            length * keys,
        ),
        weigh,
        NativeStep("softmax", (batch * length, keys, 1, 0, int(fully_masked == "zero")), (scores, scores)),
        pack_v,
        gemm_step(
            result.name, scores, pack_v.operands[0], None, batch, length, width, keys, keys, width, length * keys, v_floats, length * width
        ),
    ]


def _scale_and_mask(node: Node, ctx: LowerContext, scores: Scratch, type_: TensorType) -> NativeStep | None:
    """Returns the elementwise step on the scores, in place; None for a mask that it cannot read."""
    number = TensorType(DType.F32, ())
    tensors = {
        "scores": Tensor(scores, type_, contiguous_strides(type_.shape)),
        "scale": Tensor(None, number, (), scalar=node.attrs["scale"]),
        "masked": Tensor(None, number, (), scalar=-math.inf),
    }
    body = [Node("mul", "scaled", ("scores", "scale"), (Value("scaled", type_),))]
    kind, mask = node.attrs["mask"], node.inputs[3]
    if kind == "causal":
        square = type_.shape[-2:]
        allowed = shared_data(None, ("causal", *square), lambda: np.tri(*square, dtype=np.bool_))
        tensors["mask"] = Tensor(allowed, TensorType(DType.BOOL, square), contiguous_strides(square))
    elif mask is not None:
        tensors["mask"] = Tensor(mask, ctx.type(mask), ctx.strides(mask))
    if kind == "additive":
        body.append(Node("add", "weighed", ("scaled", "mask"), (Value("weighed", type_),)))
    elif kind != "none":
        body.append(Node("select", "weighed", ("mask", "scaled", "masked"), (Value("weighed", type_),)))
    if node.attrs["fully_masked"] == "uniform":  # a row of equal finite scores gives even weights, where -inf would give NaN
        tensors["least"] = Tensor(None, number, (), scalar=-float(np.finfo(np.float32).max))
        body.append(Node("max", "finite", (body[-1].name, "least"), (Value("finite", type_),)))
    step = elementwise_step(tensors, body, [body[-1].name], [Value("weighed", type_)])
    return None if step is None else NativeStep(step.kernel, step.params, (scores, *step.operands[1:]))
