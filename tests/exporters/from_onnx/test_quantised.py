"""Quantised arithmetic as imported from ONNX: bit for bit what NumPy's integers give, and what ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.ir.graph import Graph
from tests.exporters.from_onnx.ort_support import feeds, matches_ort, node_model, results_of

U8, I8 = np.uint8, np.int8


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scale(*numbers: float) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def zero(dtype: Any, *numbers: int) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, dtype)


def outputs_of(op: str, *inputs: np.ndarray | None, known: tuple[int, ...] = (), **attrs: Any) -> list[np.ndarray]:
    """Returns the first output by the reference interpreter and by the executor."""
    values = {f"x{index}": inputs[index] for index in known if inputs[index] is not None}
    graph = to_graph(node_model(op, inputs, **attrs), known=values)
    return [results[0] for results in results_of(graph, feeds(inputs))]


def types(graph: Graph, op: str) -> set[str]:
    return {node.outputs[0].type.dtype.value for node in graph.nodes if node.op == op}


@pytest.mark.parametrize(
    ("dtype", "zero_point", "x", "expected"),
    [
        (U8, 1, [0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf], [1, 3, 3, 1, 255, 0, 255]),  # the half is decided before the zero point is added
        (I8, -3, [0.5, 1.5, -128.5, 126.5], [-3, -1, -128, 123]),
        (np.uint16, 7, [65527.5, 65528.5, 7e4], [65535, 65535, 65535]),
        (np.int16, 0, [-32769, 0.5], [-32768, 0]),
    ],
)
def test_rounds_half_to_even_and_saturates(dtype: Any, zero_point: int, x: list[float], expected: list[int]) -> None:
    for y in outputs_of("QuantizeLinear", np.array(x, np.float32), scale(1), zero(dtype, zero_point)):
        np.testing.assert_array_equal(y, np.array(expected, dtype), strict=True)


@pytest.mark.parametrize("dtype", [U8, I8, np.uint16, np.int16])
@pytest.mark.parametrize("known", [(), (1, 2)])
def test_quantise_and_back_per_axis(dtype: Any, known: tuple[int, ...]) -> None:
    scales, zeros = scale(0.1, 0.02, 1.5), integers(dtype, 3, seed=1)
    matches_ort("QuantizeLinear", 10 * normal(2, 3, 4), scales, zeros, axis=1, known=known)
    matches_ort("DequantizeLinear", integers(dtype, 2, 4, 3), scales, zeros, axis=-1, known=known)


@pytest.mark.parametrize("block", [2, 3])
def test_quantise_and_back_in_blocks(block: int) -> None:
    """The last block may be short."""
    scales, zeros = np.abs(normal(2, -(-6 // block), 3, seed=1)) + 0.1, integers(U8, 2, -(-6 // block), 3, seed=2)
    matches_ort("QuantizeLinear", normal(2, 6, 3), scales, zeros, axis=1, block_size=block)
    matches_ort("DequantizeLinear", integers(U8, 2, 6, 3), scales, zeros, axis=1, block_size=block)


def test_known_weights_are_dequantised_at_import() -> None:
    inputs = integers(I8, 2, 3), scale(0.5), zero(I8, 3)
    graph = to_graph(node_model("DequantizeLinear", inputs), known=feeds(inputs))
    assert not graph.nodes


def test_four_bit_types_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match=r"(?i)int4"):
        to_graph(node_model("QuantizeLinear", [normal(2), scale(1)], output_dtype=22))


@pytest.mark.parametrize("x", [normal(3, 4), np.abs(normal(3, 4)), -np.abs(normal(3, 4)), np.zeros((3, 4), np.float32)])
def test_dynamic_quantisation(x: np.ndarray) -> None:
    matches_ort("DynamicQuantizeLinear", x, outputs=3)


@pytest.mark.parametrize(("a", "b"), [(U8, U8), (U8, I8), (I8, I8)])
@pytest.mark.parametrize("known", [(), (1, 3)])
@pytest.mark.parametrize("shapes", [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (2, 5, 4))])
def test_integer_product(a: Any, b: Any, known: tuple[int, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
    left, right = integers(a, *shapes[0]), integers(b, *shapes[1], seed=1)
    zeros = integers(a, 1, seed=2)[0], integers(b, 4, seed=3)
    expected = np.matmul(left.astype(np.int32) - zeros[0], right.astype(np.int32) - zeros[1])
    for y in outputs_of("MatMulInteger", left, right, np.array(zeros[0]), zeros[1], known=known):
        np.testing.assert_array_equal(y, expected, strict=True)


@pytest.mark.parametrize("length", [256, 40_000])
def test_long_integer_sums_are_exact(length: int) -> None:
    """Sums of up to 2^24 are taken in f32, longer ones in f64; beyond 2^31 they wrap as i32 does."""
    left, right = np.full((2, length), 255, U8), np.full((length, 3), 255, U8)
    left[0, ::3] = 254
    expected = np.matmul(left.astype(np.int32), right.astype(np.int32))
    for y in outputs_of("MatMulInteger", left, right):
        np.testing.assert_array_equal(y, expected, strict=True)


def test_short_sums_of_known_weights_are_taken_in_f32() -> None:
    right = np.ones((2048, 2), I8)
    graph = to_graph(node_model("MatMulInteger", [integers(U8, 3, 2048), right]), known={"x1": right})
    assert types(graph, "linear") == {"f32"}


@pytest.mark.parametrize("vectors", [((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,))])
def test_integer_product_of_vectors(vectors: tuple[tuple[int, ...], ...]) -> None:
    left, right = integers(U8, *vectors[0]), integers(I8, *vectors[1], seed=1)
    for y in outputs_of("MatMulInteger", left, right):
        np.testing.assert_array_equal(y, np.matmul(left.astype(np.int32), right.astype(np.int32)), strict=True)


@pytest.mark.parametrize("window", [(3, 3), (2, 3), (3,)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("known", [(), (1, 3)])
def test_integer_convolution(window: tuple[int, ...], groups: int, known: tuple[int, ...]) -> None:
    """Padding stands for the zero point. ONNX Runtime allows one zero point of the weights for all."""
    x, weights = integers(U8, 2, 4, *(7,) * len(window)), integers(U8, 6, 4 // groups, *window, seed=1)
    pads = [1, 0] * len(window)
    inputs = x, weights, zero(U8, 131), zero(U8, 77)
    matches_ort("ConvInteger", *inputs, known=known, group=groups, pads=pads, strides=[2] * len(window))


def test_integer_convolution_with_many_channels_is_exact() -> None:
    """As many as the fast algorithms for floats ask for, which are not exact."""
    x, weights = integers(U8, 1, 64, 16, 16), integers(I8, 64, 64, 3, 3, seed=1)
    matches_ort("ConvInteger", x, weights, zero(U8, 128), known=(1, 2), pads=[1, 1, 1, 1])


@pytest.mark.parametrize(("of_x", "of_w"), [(U8, U8), (U8, I8), (I8, I8)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("window", [3, 2])
def test_quantised_convolution(of_x: Any, of_w: Any, per_channel: bool, bias: bool, window: int) -> None:
    x, weights = integers(of_x, 1, 4, 6, 7), integers(of_w, 6, 4, window, window, seed=1)
    w_scale = np.abs(normal(6, seed=2)) / 100 if per_channel else scale(0.01)
    w_zero = np.zeros(6, of_w) if per_channel else zero(of_w, 0 if of_w is I8 else 120)
    offset = np.random.default_rng(3).integers(-5000, 5000, 6, np.int32) if bias else None
    inputs = x, scale(0.02), zero(of_x, 11), weights, w_scale, w_zero, scale(0.1), zero(of_x, 5), offset
    matches_ort("QLinearConv", *inputs, known=(1, 2, 3, 4, 5, 6, 7, 8), pads=[1, 1, 1, 1])


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("per_column", [False, True])
def test_quantised_product(dtype: Any, per_column: bool) -> None:
    a, b = integers(dtype, 2, 3, 8), integers(dtype, 8, 4, seed=1)
    b_scale, b_zero = (np.abs(normal(4, seed=2)) / 50, integers(dtype, 4, seed=3)) if per_column else (scale(0.02), zero(dtype, 9))
    inputs = a, scale(0.03), zero(dtype, 4), b, b_scale, b_zero, scale(0.6), zero(dtype, 100)
    matches_ort("QLinearMatMul", *inputs, known=(1, 2, 3, 4, 5, 6, 7))


def contrib(op: str, *inputs: np.ndarray | None, **attrs: Any) -> Graph:
    """Floats between two roundings may differ in the last place, hence the result by one step."""
    return matches_ort(op, *inputs, domain="com.microsoft", steps=1, **attrs)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [U8, I8])
def test_quantised_sum_and_product_of_elements(op: str, dtype: Any) -> None:
    inputs = integers(dtype, 2, 3), scale(0.1), zero(dtype, 3), integers(dtype, 3, seed=1), scale(0.2), zero(dtype, 7)
    contrib(op, *inputs, scale(0.4), zero(dtype, 20))


def test_quantised_activations() -> None:
    inputs = integers(U8, 3, 9), scale(0.05), zero(U8, 120), scale(1 / 256), zero(U8, 0)
    contrib("QLinearSigmoid", *inputs, known=(1, 2, 3, 4))
    contrib("QLinearSoftmax", *inputs, known=(1, 2, 3, 4), axis=1, opset=13)
    contrib("QLinearLeakyRelu", *inputs[:3], scale(0.1), zero(U8, 50), known=(1, 2, 3, 4), alpha=0.2)


@pytest.mark.parametrize("last", [0, 1])
def test_quantised_pools(last: int) -> None:
    inputs = integers(U8, 2, 5, 6, 7), scale(0.05), zero(U8, 120), scale(0.04), zero(U8, 110)
    contrib("QLinearGlobalAveragePool", *inputs, channels_last=last)
    contrib("QLinearAveragePool", *inputs, channels_last=last, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    contrib("NhwcMaxPool", inputs[0], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])


def test_quantised_concat_and_where() -> None:
    one, two = (integers(U8, 2, 3), scale(0.05), zero(U8, 120)), (integers(U8, 2, 3, seed=1), scale(0.1), zero(U8, 3))
    contrib("QLinearConcat", scale(0.08), zero(U8, 60), *one, *two, axis=1)
    condition = normal(2, 3) > 0
    contrib("QLinearWhere", condition, *one, *two, scale(0.08), zero(U8, 60))


def test_quantised_convolution_with_channels_last() -> None:
    x, weights = integers(U8, 1, 6, 7, 4), integers(I8, 8, 4, 3, 3, seed=1)
    inputs = x, scale(0.02), zero(U8, 11), weights, scale(0.01), zero(I8, 0), scale(0.1), zero(U8, 5)
    contrib("QLinearConv", *inputs, channels_last=1, pads=[1, 1, 1, 1], known=(1, 2, 3, 4, 5, 6, 7))


@pytest.mark.parametrize("quantised", [True, False])
def test_quantised_gemm(quantised: bool) -> None:
    bias = np.random.default_rng(3).integers(-5000, 5000, 4, np.int32)
    result = (scale(0.5), zero(U8, 100)) if quantised else ()
    inputs = integers(U8, 3, 8), scale(0.03), zero(U8, 4), integers(I8, 4, 8, seed=1), scale(0.02), zero(I8, 0), bias, *result
    contrib("QGemm", *inputs, transB=1, alpha=1.0)


@pytest.mark.parametrize("per_column", [False, True])
def test_products_that_leave_as_floats(per_column: bool) -> None:
    b_scale, b_zero = (np.abs(normal(4, seed=2)), integers(I8, 4, seed=3)) if per_column else (scale(0.02), zero(I8, 9))
    b, bias = integers(I8, 8, 4, seed=1), normal(4, seed=4)
    contrib("DynamicQuantizeMatMul", normal(2, 3, 8), b, b_scale, b_zero, bias, known=(1, 2, 3, 4), atol=1e-3)
    a = integers(U8, 3, 8)
    contrib("MatMulIntegerToFloat", a, b, scale(0.1), b_scale, zero(U8, 5), b_zero, bias, known=(1, 3, 5, 6), atol=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_packed_in_blocks(bits: int, zeros: bool) -> None:
    """40 rows in blocks of 16: the last block is short."""
    packed, scales = integers(U8, 6, 3, 16 * bits // 8), np.abs(normal(6, 3, seed=1)) / 10
    points = integers(U8, 6, -(-3 * bits // 8), seed=2) if zeros else None
    inputs = normal(2, 40), packed, scales, points
    contrib("MatMulNBits", *inputs, K=40, N=6, bits=bits, block_size=16, known=(1, 2, 3), rtol=1e-3, atol=1e-3)
