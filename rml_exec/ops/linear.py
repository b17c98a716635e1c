"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, NUMBERS, broadcast, dtype_in, same_dtype, vector_of
from rml_exec.ops.special import half_in_single
from rml_exec.types import DType, TensorType

PRODUCT = Tolerance(rtol=1e-5, atol_rms=1e-5)
"""Bound of every op that sums products; sums of thousands of them cancel, so it is relative to the rms of the result too."""


def _matrix(t: TensorType, transpose: bool, name: str) -> tuple[int, int]:
    if t.rank < 2:
        raise Rule(f"{name} must have at least 2 axes", f"rank {t.rank}", "reshape a vector to a matrix first")
    rows, columns = t.shape[-2:]
    return (columns, rows) if transpose else (rows, columns)


def _infer_matmul(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool) -> TensorType:
    dtype = same_dtype(a, b)
    dtype_in(dtype, NUMBERS)
    rows, inner = _matrix(a, transpose_a, "a")
    inner_b, columns = _matrix(b, transpose_b, "b")
    if inner != inner_b:
        raise Rule("the inner sizes must agree", f"{inner} and {inner_b}")
    return TensorType(dtype, (*broadcast(a.shape[:-2], b.shape[:-2]), rows, columns))


@half_in_single
def _matmul(a: np.ndarray, b: np.ndarray, *, transpose_a: bool, transpose_b: bool) -> np.ndarray:
    return np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)


def _matmul_flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    return 2 * outputs[0].size * types[0].shape[-2 if attrs["transpose_a"] else -1]


_PLAIN = {"transpose_a": False, "transpose_b": False}
_WIDE = TensorType(DType.F64, (5, 7))

define(
    name="matmul",
    inputs=("a", "b"),
    attrs={"transpose_a": Attr("bool"), "transpose_b": Attr("bool")},
    infer=_infer_matmul,
    reference=_matmul,
    flops=_matmul_flops,
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1), (1, 1), **_PLAIN),
        case("matrix", (7, 17), (17, 5), **_PLAIN),
        case("transpose-a", (17, 7), (17, 5), transpose_a=True, transpose_b=False),
        case("transpose-b", (7, 17), (5, 17), transpose_a=False, transpose_b=True),
        case("transpose-both", (2, 17, 7), (2, 5, 17), transpose_a=True, transpose_b=True),
        case("batch", (2, 3, 5, 7), (2, 3, 7, 4), **_PLAIN),
        case("batch-broadcast", (2, 1, 5, 7), (3, 7, 4), **_PLAIN),
        case("shared-right", (2, 3, 5, 7), (7, 4), **_PLAIN),
        case("no-rows", (0, 7), (7, 5), **_PLAIN),
        case("no-inner", (3, 0), (0, 5), **_PLAIN),
        case("no-batch", (0, 3, 4), (4, 5), **_PLAIN),
        case("tail", (3, 1027), (1027, 17), **_PLAIN),
        case("vector-wide", (1, 64), (64, 1027), **_PLAIN),
        case("i32", TensorType(DType.I32, (3, 5)), TensorType(DType.I32, (5, 2)), **_PLAIN),
        case("f64", _WIDE, TensorType(DType.F64, (7, 3)), **_PLAIN),
        case("f16", TensorType(DType.F16, (5, 33)), TensorType(DType.F16, (33, 3)), **_PLAIN),
    ),
    doc="y = a @ b on the last two axes, each operand turned first where its transpose flag says so; the other axes are batch "
    "and broadcast. An inner size of 0 gives zeros. Integers wrap.",
)


def _infer_linear(x: TensorType, w: TensorType, bias: TensorType | None, *, weight_layout: str) -> TensorType:
    dtype = same_dtype(x, w, bias)
    dtype_in(dtype, FLOATS)
    if x.rank < 1 or w.rank != 2:
        raise Rule("x must have at least 1 axis and w exactly 2", f"ranks {x.rank} and {w.rank}")
    outputs, inputs = w.shape if weight_layout == "oi" else w.shape[::-1]
    if x.shape[-1] != inputs:
        raise Rule(f"the last axis of x must have the {inputs} inputs of w ({weight_layout})", x.shape[-1])
    vector_of(outputs, bias, "bias")
    return TensorType(dtype, (*x.shape[:-1], outputs))


@half_in_single
def _linear(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, *, weight_layout: str) -> np.ndarray:
    product = np.matmul(x, w.T if weight_layout == "oi" else w)
    return product if bias is None else product + bias


define(
    name="linear",
    inputs=("x", "w", "bias?"),
    attrs={"weight_layout": Attr("str", ("oi", "io"))},
    infer=_infer_linear,
    reference=_linear,
    flops=lambda types, outputs, attrs: 2 * outputs[0].size * types[0].shape[-1],
    tolerance=PRODUCT,
    limits=NO_BF16,
    cases=(
        case("one", (1, 1), (1, 1), (1,), weight_layout="oi"),
        case("vector", (17,), (5, 17), None, weight_layout="oi"),
        case("matrix", (7, 17), (5, 17), (5,), weight_layout="oi"),
        case("io", (7, 17), (17, 5), (5,), weight_layout="io"),
        case("batch", (2, 3, 17), (33, 17), (33,), weight_layout="oi"),
        case("no-rows", (0, 17), (5, 17), (5,), weight_layout="oi"),
        case("no-inputs", (3, 0), (5, 0), (5,), weight_layout="oi"),
        case("no-outputs", (3, 4), (4, 0), (0,), weight_layout="io"),
        case("tail", (7, 1027), (65, 1027), (65,), weight_layout="oi"),
        case("f64", _WIDE, TensorType(DType.F64, (3, 7)), None, weight_layout="oi"),
    ),
    doc="y[.., o] = sum over i of x[.., i] * w[o, i] + bias[o]; w is [O, I] (oi: torch, ONNX Gemm transB) or [I, O] (io: jax, "
    "tf). No inputs: the bias.",
)
