"""Lowering of attention: keys and values are packed, then one kernel takes blocks of queries past all keys without a score matrix."""

from __future__ import annotations

import math

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.runtime.lower_linear import collapsed_stride, matrix_batch, pack_step
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, copy_step, float_bits, lowers
from rml_exec.types import DType, TensorType

_MASKS = ("none", "bool", "additive", "causal")
_FULLY_MASKED = ("nan", "zero", "uniform")
_BLOCK_FLOATS = 1 << 15
"""Scores of one block of queries, 128 KiB: they stay in the second-level cache."""
_BLOCK_ROWS = 96
_TILE_ROWS = 6
_LINE_FLOATS = 16


@lowers("attention")
def lower_attention(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """softmax(q k^T * scale + mask) v; q, k and v are read through their strides, so that views of one fused projection cost no copy.

    Query heads that share keys and values are rows of one product with them: nothing is repeated, and what is packed is read once.
    """
    q, k, v, _ = node.inputs
    result, attrs = node.outputs[0], node.attrs
    assert q is not None and k is not None and v is not None
    if result.type.dtype is not DType.F32:
        return None
    length, width = result.type.shape[-2:]
    groups, batch_dims = attrs["kv_groups"], ctx.type(k).shape[:-2]
    keys, depth = ctx.type(k).shape[-2], ctx.type(q).shape[-1]
    items, rows = math.prod(batch_dims), groups * length
    if groups > 1:
        q_operand, q_strides = _grouped_queries(ctx, q, groups)
    else:
        q_operand, q_strides = matrix_batch(ctx, q, batch_dims, False, needs_unit_columns=True)
    k_operand, k_strides = matrix_batch(ctx, k, batch_dims, True, needs_unit_columns=False)
    v_operand, v_strides = matrix_batch(ctx, v, batch_dims, False, needs_unit_columns=False)
    pack_k = pack_step(ctx, k_operand, items, depth, keys, *k_strides)
    pack_v = pack_step(ctx, v_operand, items, keys, width, *v_strides)
    mask, mask_layout = _mask(node, ctx)
    stride = -(-keys // _LINE_FLOATS) * _LINE_FLOATS
    block = max(_TILE_ROWS, min(_BLOCK_ROWS, _BLOCK_FLOATS // max(stride, 1)) // _TILE_ROWS * _TILE_ROWS)
    block = min(block, max(rows, 1))
    workers = min(ctx.threads, max(items * -(-rows // block), 1))
    params = (
        *(items, rows, keys, depth, width, length, *q_strides[:2]),
        *(float_bits(attrs["scale"]), float_bits(attrs["softcap"] or 0.0)),
        *(_MASKS.index(attrs["mask"]), _FULLY_MASKED.index(attrs["fully_masked"])),
        *mask_layout,
        *(int(ctx.numerics == "fast"), block, stride, workers),
    )
    workspaces = ctx.scratch(workers * block * (stride + 1) * np.dtype(np.float32).itemsize)
    attend = NativeStep("attention", params, (result.name, q_operand, pack_k.operands[0], pack_v.operands[0], mask, workspaces))
    return [pack_k, pack_v, attend]


def _grouped_queries(ctx: LowerContext, q: str, groups: int) -> tuple[Operand, tuple[int, int, int]]:
    """Returns the queries as a batch of matrices [groups * length, depth], one for each head of the keys, with (batch, row, column) strides.

    They are read where they lie if one stride steps through all rows of a group, as for a single query; else copied once.
    """
    *outer, heads, length, depth = ctx.type(q).shape
    *outer_strides, head, row, column = ctx.strides(q)
    rows, shared = groups * length, heads // groups
    stride = head if length == 1 else row
    batch = collapsed_stride((*outer, shared), (*outer_strides, head * groups))
    if batch is not None and head == length * stride and (column == 1 or depth <= 1):
        return q, (batch, stride, 1)
    return ctx.contiguous(q), (rows * depth, depth, 1)


def _mask(node: Node, ctx: LowerContext) -> tuple[Operand, tuple[int, int, int, int, int]]:
    """Returns the mask, and where it lies: heads per outer index, then its strides over outer index, head, query and key.

    A mask is read where it lies, with stride 0 where it is broadcast, unless its batch axes need more than two strides or its keys lie
    apart: then it is copied once, broadcast over the batch.
    """
    name, type_ = node.inputs[3], node.outputs[0].type
    if name is None:
        return None, (1, 0, 0, 0, 0)
    *batch_dims, length, _ = type_.shape
    keys = ctx.type(node.inputs[1]).shape[-2]  # type: ignore[arg-type]
    shape, own = (*batch_dims, length, keys), ctx.type(name)
    missing = len(shape) - own.rank
    strides = [0] * missing + [0 if dim == 1 else stride for dim, stride in zip(own.shape, ctx.strides(name), strict=True)]
    for split in range(len(batch_dims) + 1):
        outer = collapsed_stride(tuple(batch_dims[:split]), tuple(strides[:split]))
        inner = collapsed_stride(tuple(batch_dims[split:]), tuple(strides[split:-2]))
        if outer is not None and inner is not None and (strides[-1] in (0, 1) or keys == 1):
            return name, (max(math.prod(batch_dims[split:]), 1), outer, inner, strides[-2], strides[-1])
    whole = TensorType(own.dtype, shape)
    part = ctx.scratch(whole.nbytes)
    ctx.prologue.append(copy_step(part, name, whole, strides))
    return part, (max(math.prod(batch_dims), 1), 0, length * keys, keys, 1)
