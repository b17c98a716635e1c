"""Lowerings onto the GEMM: linear and matmul. The right operand is packed into panels, once when it is constant."""

from __future__ import annotations

import math

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Node
from rml_exec.runtime.epilogue import NO_EPILOGUE, Epilogue
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, copy_step, lowers
from rml_exec.runtime.shared import aligned_floats, shared_data, unscaled
from rml_exec.types import DType, TensorType

_F32_BYTES = 4


def packed(b: np.ndarray | Recipe, k: int, n: int, row_stride: int, col_stride: int, offset: int = 0) -> np.ndarray:
    """Returns B [k, n] in the panels of the instruction set in use, f32, zero-padded to whole panels; packed once per process.

    Args:
        b: constant that holds B, contiguous, or how to make it.
        k: rows of B.
        n: columns of B.
        row_stride: elements of ``b`` from one row of B to the next.
        col_stride: elements of ``b`` from one column of B to the next.
        offset: elements of ``b`` before B.
    """

    def make() -> np.ndarray:
        panels = aligned_floats(_native.packed_b_floats(k, n))
        data, scale = unscaled(b)
        _native.pack_b(panels, data.reshape(-1)[offset:], k, n, row_stride, col_stride, scale=scale)
        return panels

    return shared_data(b, ("panels", k, n, row_stride, col_stride, offset), make)


@lowers("linear")
def lower_linear(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """A product with the weight, plus bias, as one GEMM over all rows of x [..., I]."""
    return linear_steps(node, ctx, node.inputs[2], NO_EPILOGUE)


def linear_steps(node: Node, ctx: LowerContext, bias: str | None, epilogue: Epilogue) -> list[NativeStep] | None:
    """Returns the steps of a linear node with this bias and epilogue."""
    x, weight = node.inputs[:2]
    result = node.outputs[0]
    assert x is not None and weight is not None
    if result.type.dtype is not DType.F32:
        return None
    n, k = ctx.type(weight).shape
    if node.attrs["weight_layout"] == "io":
        n, k = k, n
    rows = math.prod(result.type.shape[:-1])
    if (constant := ctx.weights(weight)) is not None:
        strides = (1, k) if node.attrs["weight_layout"] == "oi" else (n, 1)
        panels: Operand = packed(constant, k, n, *strides)
        steps = []
    else:
        row, column = ctx.strides(weight)
        steps = [pack_step(ctx, weight, 1, k, n, 0, *((column, row) if node.attrs["weight_layout"] == "oi" else (row, column)))]
        panels = steps[0].operands[0]
    return [*steps, gemm_step(result.name, ctx.contiguous(x), panels, _vector(bias, ctx), 1, rows, n, k, k, n, 0, 0, 0, epilogue=epilogue)]


def _vector(bias: str | None, ctx: LowerContext) -> Operand:
    return None if bias is None else ctx.contiguous(bias)


@lowers("matmul")
def lower_matmul(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Batched a @ b. A constant 2-D b is packed once and all batches of a are rows of one GEMM; else b is packed on the way."""
    return matmul_steps(node, ctx, None, NO_EPILOGUE)


def matmul_steps(node: Node, ctx: LowerContext, bias: str | None, epilogue: Epilogue) -> list[NativeStep] | None:
    """Returns the steps of a matmul node plus a bias per column, with this epilogue."""
    a, b = node.inputs
    result = node.outputs[0]
    assert a is not None and b is not None
    if result.type.dtype is not DType.F32:
        return None
    transpose_a, transpose_b = node.attrs["transpose_a"], node.attrs["transpose_b"]
    m, n = result.type.shape[-2:]
    vector = _vector(bias, ctx)
    k = ctx.type(a).shape[-2 if transpose_a else -1]
    batch_dims = result.type.shape[:-2]
    data = ctx.constant(b)
    if data is not None and math.prod(data.shape[:-2]) == 1 and not transpose_a:
        panels = packed(data, k, n, *((1, k) if transpose_b else (n, 1)))
        return [
            gemm_step(result.name, ctx.contiguous(a), panels, vector, 1, math.prod(batch_dims) * m, n, k, k, n, 0, 0, 0, epilogue=epilogue)
        ]
    batch, floats = math.prod(batch_dims), _native.packed_b_floats(k, n)
    a_operand, a_strides = matrix_batch(ctx, a, batch_dims, transpose_a, needs_unit_columns=True)
    if data is not None:
        panels = shared_data(data, ("batch", batch_dims, k, n, transpose_b), lambda: _packed_batch(data, batch_dims, k, n, transpose_b))
        strides = (a_strides[0], floats, m * n)
        return [gemm_step(result.name, a_operand, panels, vector, batch, m, n, k, a_strides[1], n, *strides, epilogue=epilogue)]
    b_operand, b_strides = matrix_batch(ctx, b, batch_dims, transpose_b, needs_unit_columns=False)
    pack = pack_step(ctx, b_operand, batch if b_strides[0] else 1, k, n, *b_strides)
    strides = (a_strides[0], floats if b_strides[0] else 0, m * n)
    gemm = gemm_step(result.name, a_operand, pack.operands[0], vector, batch, m, n, k, a_strides[1], n, *strides, epilogue=epilogue)
    return [pack, gemm]


def _packed_batch(data: np.ndarray, batch_dims: tuple[int, ...], k: int, n: int, transpose: bool) -> np.ndarray:
    matrices = np.broadcast_to(np.swapaxes(data, -1, -2) if transpose else data, (*batch_dims, k, n)).reshape(-1, k, n)
    floats = _native.packed_b_floats(k, n)
    panels = aligned_floats(len(matrices), floats)
    for panel, matrix in zip(panels, matrices, strict=True):
        _native.pack_b(panel, np.ascontiguousarray(matrix), k, n, n, 1)
    return panels.reshape(-1)


def gemm_step(
    c: Operand,
    a: Operand,
    panels: Operand,
    bias: Operand,
    batch: int,
    m: int,
    n: int,
    k: int,
    lda: int,
    ldc: int,
    *batch_strides: int,
    epilogue: Epilogue = NO_EPILOGUE,
) -> NativeStep:
    """Returns the step C = epilogue(A B + bias) over a batch; the three batch strides are those of A, packed B and C, in elements."""
    return NativeStep("gemm", (batch, m, n, k, lda, ldc, *batch_strides, *epilogue.params), (c, a, panels, bias, epilogue.residual))


def pack_step(ctx: LowerContext, b: Operand, batch: int, k: int, n: int, batch_stride: int, row: int, column: int) -> NativeStep:
    """Returns the step that packs a batch of B [k, n] into scratch, its first operand; strides in elements."""
    panels = ctx.scratch(batch * _native.packed_b_floats(k, n) * _F32_BYTES)
    return NativeStep("pack_b", (batch, k, n, batch_stride, row, column), (panels, b))


def matrix_batch(
    ctx: LowerContext, name: str, batch_dims: tuple[int, ...], transpose: bool, *, needs_unit_columns: bool
) -> tuple[Operand, tuple[int, int, int]]:
    """Returns a batch of matrices as an operand with (batch stride, row stride, column stride) in elements.

    The strides are those of the value where one batch stride reaches every matrix; else the value is copied once, into C order of what the
    multiplication reads.
    """
    type_, strides = ctx.type(name), ctx.strides(name)
    own = type_.shape[:-2]
    aligned = (0,) * (len(batch_dims) - len(own)) + tuple(0 if dim == 1 else stride for dim, stride in zip(own, strides, strict=False))
    row, column = (strides[-1], strides[-2]) if transpose else (strides[-2], strides[-1])
    batch_stride = collapsed_stride(batch_dims, aligned)
    if batch_stride is not None and (column == 1 or type_.shape[-2 if transpose else -1] <= 1 or not needs_unit_columns):
        return name, (batch_stride, row, column)
    rows, columns = (type_.shape[-1], type_.shape[-2]) if transpose else type_.shape[-2:]
    target = TensorType(type_.dtype, (*batch_dims, rows, columns))
    part = ctx.scratch(target.nbytes)
    ctx.prologue.append(copy_step(part, name, target, (*aligned, row, column)))
    return part, (rows * columns, columns, 1)


def collapsed_stride(dims: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Returns the one stride that steps through all dims in C order, or None if there is no such stride."""
    wanted, step = None, 1
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim != 1:
            if wanted is None:
                wanted = stride
            elif stride != wanted * step:
                return None
        step *= dim
    return wanted or 0
