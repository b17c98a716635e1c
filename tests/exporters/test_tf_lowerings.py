"""Every lowering of the TensorFlow exporter against TensorFlow itself: a small function, run by both, in f32."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_tf import to_graph
from exporters.from_tf.walk import TABLE
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]

NAN, INF = np.nan, np.inf


def f32(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return f32(*shape, seed=seed, low=0.1)


def i32(*elements: int) -> np.ndarray:
    return np.array(elements, np.int32)


def floats(*elements: float) -> np.ndarray:
    return np.array(elements, np.float32)


def bools(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


def compare(tf: Any, function: Callable[..., Any], inputs: tuple[np.ndarray, ...], rtol: float = 2e-5) -> Graph:
    """Exports ``function`` and requires the reference interpreter to give what TensorFlow gives; returns the graph."""
    traced = tf.function(function, autograph=False)  # autograph would parse this file once per case
    graph = to_graph(traced, inputs, name="case", input_names=[f"x{index}" for index in range(len(inputs))])
    got = list(run_reference(graph, {f"x{index}": array for index, array in enumerate(inputs)}, precision="f32").values())
    want = [np.asarray(tensor) for tensor in tf.nest.flatten(traced(*map(tf.constant, inputs)))]
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        finite = theirs[np.isfinite(theirs)].astype(np.float64) if theirs.dtype.kind == "f" else np.zeros(0)
        atol = rtol * float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        np.testing.assert_allclose(mine, theirs, rtol=rtol if theirs.dtype.kind == "f" else 0.0, atol=atol, equal_nan=True)
    return graph


Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...], str | None]
"""Operators it is about, function of (tf, *tensors), inputs, ops that the graph must consist of (None: whatever it takes)."""

SPECIAL = floats(NAN, INF, -INF, -0.0, 0.5, -2.5, 1.5)
UNARY = {
    "Abs": "abs", "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Exp": "exp", "Expm1": "expm1", "Sin": "sin", "Cos": "cos",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf", "Erfc": "erfc", "Relu": "relu", "IsNan": "is_nan", "IsInf": "is_inf",
    "IsFinite": "is_nan is_inf or not", "Sign": "sign", "Rint": "round", "Round": "round", "Square": "mul", "Reciprocal": "div",
    "Inv": "div", "Relu6": "clamp", "Elu": "elu", "Selu": "elu", "Softsign": "abs add div", "Softplus": "softplus", "Tan": "tan", "Atan": "atan",
    "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh",
}  # fmt: skip
POSITIVE = {"Log": "log", "Log1p": "log1p", "Sqrt": "sqrt", "Rsqrt": "rsqrt"}
UNIT = {"Asin": "asin", "Acos": "acos", "Atanh": "atanh"}
BINARY = {
    "Add": "add", "AddV2": "add", "Sub": "sub", "Mul": "mul", "Maximum": "max", "Minimum": "min", "RealDiv": "div", "Div": "div",
    "FloorDiv": "div floor", "FloorMod": "rem", "TruncateMod": "rem", "Mod": "rem", "SquaredDifference": "sub mul", "Equal": "compare",
    "NotEqual": "compare", "Less": "compare", "LessEqual": "compare", "Greater": "compare", "GreaterEqual": "compare",
    "Atan2": "atan2",
}  # fmt: skip
INTEGER = {
    "FloorDiv": "div", "TruncateDiv": "div", "FloorMod": "rem", "TruncateMod": "rem", "Div": "div", "BitwiseAnd": "and", "BitwiseOr": "or",
    "BitwiseXor": "xor", "Maximum": "max", "Mul": "mul",
}  # fmt: skip
ZEROS = {
    "DivNoNan": "div compare select", "MulNoNan": "mul compare select", "Xdivy": "div compare select", "Xlogy": "log mul compare select",
    "Xlog1py": "log1p mul compare select",
}  # fmt: skip
REDUCE = {"Sum": "sum", "Mean": "mean", "Max": "max", "Min": "min", "Prod": "prod", "EuclideanNorm": "sum"}
IMAGE = f32(2, 7, 6, 4)


def raw(name: str) -> Callable[..., Any]:
    """Returns a function that applies the raw operation of this name to its tensors, in the order of the operation's arguments."""

    def apply(tf: Any, *tensors: Any) -> Any:
        operation = getattr(tf.raw_ops, name)
        arguments = list(operation.__signature__.parameters) if hasattr(operation, "__signature__") else []
        names = arguments[: len(tensors)] or (["x"] if len(tensors) == 1 else ["x", "y"])
        return operation(**dict(zip(names, tensors, strict=True)))

    return apply


def conv(height: int, width: int, outputs: int, down: int, right: int, padding: str, **options: Any) -> Callable[..., Any]:
    """Returns a Conv2D of ``IMAGE`` with constant weights and strides ``down`` and ``right``."""
    weights = f32(height, width, 4, outputs, seed=1)
    return lambda tf, x: tf.raw_ops.Conv2D(input=x, filter=weights, strides=[1, down, right, 1], padding=padding, **options)


def depthwise(height: int, width: int, multiplier: int, stride: int, padding: str, **options: Any) -> Callable[..., Any]:
    weights = f32(height, width, 4, multiplier, seed=1)
    return lambda tf, x: tf.nn.depthwise_conv2d(x, weights, [1, stride, stride, 1], padding, **options)


def keras_ops() -> Any:
    import keras

    return keras.ops


def einsum(equation: str) -> Callable[..., Any]:
    return lambda tf, *tensors: tf.einsum(equation, *tensors)


def einsum_constant(equation: str, weights: np.ndarray) -> Callable[..., Any]:
    return lambda tf, x: tf.einsum(equation, x, tf.constant(weights))


def array(tf: Any, size: int) -> Any:
    return tf.TensorArray(tf.float32, size, clear_after_read=False)


def written(tf: Any, x: Any) -> Any:
    """Returns a TensorArray of three elements, the middle one never written."""
    return array(tf, 3).write(2, x * 2).write(0, x)


def pushed(tf: Any, x: Any) -> Any:
    ops, options = tf.raw_ops, {"element_dtype": tf.float32}
    empty = ops.EmptyTensorList(element_shape=[2, 3], max_num_elements=-1, **options)
    two = ops.TensorListPushBack(input_handle=ops.TensorListPushBack(input_handle=empty, tensor=x), tensor=x * 2)
    shape = ops.TensorListElementShape(input_handle=two, shape_type=tf.int32)
    joined, lengths = ops.TensorListConcat(input_handle=two, element_shape=[2, 3], **options)
    three = ops.TensorListStack(input_handle=ops.TensorListResize(input_handle=two, size=3), element_shape=[2, 3], **options)
    return joined, lengths, shape, three


CASES: list[Case] = [
    *((name, raw(name), (np.concatenate([SPECIAL, f32(9)]),), ops) for name, ops in UNARY.items()),
    *((name, raw(name), (positive(3, 5),), ops) for name, ops in POSITIVE.items()),
    *((name, raw(name), (f32(3, 5, low=-0.9, high=0.9),), ops) for name, ops in UNIT.items()),
    ("Acosh", raw("Acosh"), (f32(3, 5, low=1.1),), "acosh"),
    *((name, raw(name), (f32(3, 5), positive(5, seed=1)), ops) for name, ops in BINARY.items()),
    *((name, raw(name), (i32(7, -7, 7, -7, 6), i32(3, 3, -3, -3, -3)), ops) for name, ops in INTEGER.items()),
    *((name, raw(name), (floats(0, 1, NAN, INF, 2, 0), floats(0, 0, 0, 0, 3, NAN)), ops) for name, ops in ZEROS.items()),
    *((name, raw(name), (bools(3, 4), bools(4, seed=1)), op) for name, op in {"LogicalAnd": "and", "LogicalOr": "or"}.items()),
    ("Pow", raw("Pow"), (positive(3, 5), f32(5)), "pow"),
    ("Maximum", raw("Maximum"), (floats(NAN, 1, NAN), floats(1, NAN, NAN)), "max"),
    ("FloorDiv", raw("FloorDiv"), (floats(1.0, -7.5, 7.5, 1.0), floats(0.1, 3, -3, 0)), "div floor"),
    ("FloorMod", raw("FloorMod"), (floats(-7.5, 7.5, -7.5, 6), floats(3, -3, -3, -3)), "rem"),
    ("LogicalNot", raw("LogicalNot"), (bools(5),), "not"),
    ("Invert", raw("Invert"), (i32(0, 5, -1),), "not"),
    ("Abs", raw("Abs"), (i32(-5, 3, -(2**31)),), "abs"),
    ("Relu", lambda tf, x: tf.raw_ops.Relu(features=x), (i32(-5, 3),), "relu"),
    ("AddN", lambda tf, *x: tf.add_n(x), (f32(3), f32(3, seed=1), f32(3, seed=2)), "add add"),
    ("AccumulateNV2", lambda tf, *x: tf.raw_ops.AccumulateNV2(inputs=x, shape=[3]), (f32(3), f32(3, seed=1)), "add"),
    ("LeakyRelu", lambda tf, x: tf.nn.leaky_relu(x), (SPECIAL,), "leaky_relu"),
    ("ClipByValue", lambda tf, x: tf.clip_by_value(x, -1.0, 1.0), (SPECIAL,), "min max"),
    ("ClipByValue", lambda tf, x: tf.raw_ops.ClipByValue(t=x, clip_value_min=2.0, clip_value_max=1.0), (f32(5),), "min max"),
    ("L2Loss", lambda tf, x: tf.nn.l2_loss(x), (f32(3, 4),), "mul reduce mul"),
    ("Cast", lambda tf, x: tf.cast(x, tf.int32), (floats(3e9, NAN, -3e9, 1.9, -1.9, INF),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.uint8), (floats(300, -1, NAN, 3e9),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.int64), (floats(1e19, NAN, -1.5),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.uint32), (floats(5e9, -1, 3e9, NAN),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.bool), (floats(0, -0.0, 0.1, NAN),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.float16), (f32(5),), "cast"),
    ("Cast", lambda tf, x: tf.cast(x, tf.float32), (f32(5),), ""),
    ("Cast", lambda tf, x: x / 2, (i32(7, -7),), "cast div"),
    ("SelectV2", lambda tf, c, x: tf.where(c, x, 0.0), (bools(3, 1), f32(3, 4)), "select"),
    ("Select", lambda tf, c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y), (bools(3), f32(3, 4), f32(3, 4, seed=1)), "reshape select"),
    ("Select", lambda tf, c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y), (bools(3, 4), f32(3, 4), f32(3, 4, seed=1)), "select"),
    ("OneHot", lambda tf, i: tf.one_hot(i, 3, axis=1), (np.array([[0, 2], [7, -1]], np.int32),), "reshape compare select"),
    ("OneHot", lambda tf, i: tf.one_hot(i, 4, 2.5, -1.0), (np.array([3, 0], np.int64),), "reshape compare select"),
    ("MatrixBandPart", lambda tf, x: tf.linalg.band_part(x, 1, -1), (f32(2, 4, 5),), "select"),
    ("MatrixBandPart", lambda tf, x: tf.linalg.band_part(x, 0, 2), (f32(4, 4),), "select"),
    # Reductions.
    *((name, lambda tf, x, name=name: getattr(tf.raw_ops, name)(input=x, axis=[-1, 0], keep_dims=True), (f32(3, 4, 5),),
       "mul reduce sqrt" if name == "EuclideanNorm" else "reduce") for name in REDUCE),
    ("Max", lambda tf, x: tf.reduce_max(x, 1), (np.array([[1, NAN], [2, 3]], np.float32),), "reduce"),
    ("Max", lambda tf, x: tf.reduce_max(x, 0), (f32(0, 3),), "reduce"),
    ("Mean", lambda tf, x: tf.reduce_mean(x, 0), (f32(0, 3),), "reduce"),
    ("Mean", lambda tf, x: tf.reduce_mean(x), (i32(-7, 0),), "reduce div"),
    ("Sum", lambda tf, x: tf.reduce_sum(x, []), (f32(3),), ""),
    ("Sum", lambda tf, x: tf.reduce_sum(x), (i32(2**30, 2**30, 5),), "reduce"),
    ("All", lambda tf, x: tf.reduce_all(x, 1), (bools(3, 2),), "reduce"),
    ("Any", lambda tf, x: tf.reduce_any(x, 1), (bools(3, 2),), "reduce"),
    ("ArgMax", lambda tf, x: tf.argmax(x), (floats(1, NAN, 3, 3, NAN),), "argreduce"),
    ("ArgMax", lambda tf, x: tf.argmax(x), (floats(NAN, 1, 3),), "argreduce"),
    ("ArgMax", lambda tf, x: tf.argmax(x), (floats(NAN, NAN),), "argreduce"),
    ("ArgMax", lambda tf, x: tf.argmax(x, -1, output_type=tf.uint16), (f32(3, 5),), "argreduce cast"),
    ("ArgMin", lambda tf, x: tf.argmin(x, 1, output_type=tf.int32), (f32(3, 5),), "argreduce"),
    ("ArgMin", lambda tf, x: tf.argmin(x), (floats(NAN, 3, 1, 1),), "argreduce"),
    # Matrix products.
    ("MatMul", lambda tf, x, y: tf.matmul(x, y), (f32(3, 4), f32(4, 5)), "matmul"),
    ("MatMul", lambda tf, x, y: tf.matmul(x, y, transpose_a=True, transpose_b=True), (f32(4, 3), f32(5, 4)), "matmul"),
    ("MatMul", lambda tf, x: tf.matmul(x, tf.constant(f32(4, 5))), (f32(3, 4),), "linear"),
    ("MatMul", lambda tf, x: tf.matmul(x, tf.constant(f32(5, 4)), transpose_a=True, transpose_b=True), (f32(4, 3),), "transpose linear"),
    ("MatMul", lambda tf, x: tf.matmul(tf.constant(f32(3, 4)), x), (f32(4, 5),), "matmul"),
    ("MatMul BiasAdd", lambda tf, x, b: tf.nn.bias_add(tf.matmul(x, tf.constant(f32(4, 5))), b), (f32(3, 4), f32(5)), "linear"),
    ("MatMul BiasAdd", lambda tf, x, y, b: tf.nn.bias_add(tf.matmul(x, y), b), (f32(3, 4), f32(4, 5), f32(5)), "matmul add"),
    ("BatchMatMulV2", lambda tf, x, y: tf.matmul(x, y, adjoint_b=True), (f32(2, 1, 3, 4), f32(5, 2, 4)), "matmul"),
    ("BatchMatMulV2", lambda tf, x: tf.matmul(x, tf.constant(f32(4, 5))), (f32(2, 3, 4),), "linear"),
    ("BatchMatMul", lambda tf, x, y: tf.raw_ops.BatchMatMul(x=x, y=y, adj_x=True), (f32(2, 4, 3), f32(2, 4, 5)), "matmul"),
    ("BatchMatMulV3", lambda tf, x, y: tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32), (f32(2, 3, 4), f32(4, 5)), "matmul"),
    ("Einsum", einsum("ij,jk->ik"), (f32(2, 3), f32(3, 4)), "matmul"),
    ("Einsum", einsum("aecd,abcd->acbe"), (f32(2, 3, 4, 5), f32(2, 6, 4, 5)), "transpose transpose matmul transpose"),
    ("Einsum", einsum("acbe,aecd->abcd"), (f32(2, 4, 6, 3), f32(2, 3, 4, 5)), "transpose matmul transpose"),
    ("Einsum", einsum("...ij,...jk->...ik"), (f32(2, 1, 3, 4), f32(1, 5, 4, 2)), "matmul"),
    ("Einsum", einsum("...ij,...jk->...ik"), (f32(2, 1, 3, 4), f32(5, 4, 2)), None),
    ("Einsum", einsum("i,j->ij"), (f32(3), f32(4)), "reshape reshape matmul"),
    ("Einsum", einsum("ijk,jl->il"), (f32(2, 3, 4), f32(3, 5)), "reduce matmul"),
    ("Einsum", einsum("ijk->kj"), (f32(2, 3, 4),), "reduce transpose"),
    ("Einsum", einsum("ijk->"), (f32(2, 3, 4),), "reduce"),
    ("Einsum", einsum("ij,ij->i"), (f32(2, 3), f32(2, 3, seed=1)), "reshape reshape matmul reshape"),
    ("Einsum", einsum_constant("abc,cde->abde", f32(4, 3, 5)), (f32(2, 6, 4),), "linear reshape"),
    ("Einsum", einsum_constant("abcd,cde->abe", f32(3, 5, 4)), (f32(2, 6, 3, 5),), "reshape linear"),
    ("Einsum", einsum_constant("ab,cb->ac", f32(5, 4)), (f32(2, 4),), "linear"),
    ("Einsum", einsum("iij->ij"), (f32(3, 3, 4),), None),
    ("Einsum", einsum("ii->"), (f32(3, 3),), None),
    ("Einsum", einsum("i,ij,jk->k"), (f32(3), f32(3, 4), f32(4, 2)), None),
    ("Bitcast", lambda tf, x: tf.bitcast(x, tf.int32), (SPECIAL,), "bitcast"),
    ("LeftShift", raw("LeftShift"), (i32(3, -3, 1, 1), i32(2, 2, 31, 0)), "clamp shift"),
    ("RightShift", raw("RightShift"), (i32(9, -9, 1, -1), i32(2, 2, 40, 31)), "clamp shift"),
    ("RightShift", raw("RightShift"), (np.array([200, 9], np.uint8), np.array([1, 9], np.uint8)), "clamp shift"),
    # Convolutions and pools.
    ("Conv2D", conv(3, 3, 5, 1, 1, "SAME"), (IMAGE,), "conv2d"),
    ("Conv2D", conv(3, 3, 5, 2, 2, "SAME"), (IMAGE,), "conv2d"),
    ("Conv2D", conv(2, 5, 5, 3, 2, "SAME"), (IMAGE,), "conv2d"),
    ("Conv2D", conv(3, 2, 5, 2, 2, "VALID"), (IMAGE,), "conv2d"),
    ("Conv2D", conv(3, 3, 5, 1, 1, "SAME", dilations=[1, 2, 3, 1]), (IMAGE,), "conv2d"),
    ("Conv2D", conv(3, 3, 5, 1, 2, "EXPLICIT", explicit_paddings=[0, 0, 1, 0, 2, 3, 0, 0]), (IMAGE,), "conv2d"),
    ("Conv2D", lambda tf, x, w: tf.nn.conv2d(x, w, 2, "SAME"), (IMAGE, f32(3, 3, 2, 6)), "transpose conv2d"),
    ("Conv2D", lambda tf, x: tf.nn.conv1d(x, f32(3, 4, 5), 2, "SAME"), (f32(2, 8, 4),), "reshape conv2d reshape"),
    ("DepthwiseConv2dNative", depthwise(3, 3, 3, 2, "SAME"), (IMAGE,), "conv2d"),
    ("DepthwiseConv2dNative", depthwise(3, 2, 2, 1, "VALID"), (IMAGE,), "conv2d"),
    ("DepthwiseConv2dNative", lambda tf, x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"), (IMAGE, f32(2, 2, 4, 2)),
     "transpose reshape conv2d"),
    ("SpaceToBatchND BatchToSpaceND", lambda tf, x: tf.nn.atrous_conv2d(x, f32(3, 3, 4, 5), 2, "SAME"), (IMAGE,), "conv2d"),
    ("SpaceToBatchND BatchToSpaceND", depthwise(3, 3, 2, 1, "SAME", dilations=[2, 3]), (IMAGE,), "conv2d"),
    ("SpaceToBatchND", lambda tf, x: tf.space_to_batch(x, [2, 3], [[1, 0], [2, 1]]), (IMAGE,), "pad reshape transpose reshape"),
    ("BatchToSpaceND", lambda tf, x: tf.batch_to_space(x, [2, 3], [[1, 0], [2, 1]]), (f32(12, 3, 2, 5),),
     "reshape transpose reshape slice"),
    ("BiasAdd", lambda tf, x, b: tf.nn.bias_add(x, b), (IMAGE, f32(4)), "add"),
    ("BiasAdd", lambda tf, x, b: tf.nn.bias_add(x, b, data_format="NCHW"), (f32(2, 4, 5, 5), f32(4)), "reshape add"),
    ("BiasAddV1", lambda tf, x, b: tf.raw_ops.BiasAddV1(value=x, bias=b), (IMAGE, f32(4)), "add"),
    ("MaxPool", lambda tf, x: tf.nn.max_pool2d(x, [3, 2], 2, "SAME"), (IMAGE,), "max_pool"),
    ("MaxPool", lambda tf, x: tf.nn.max_pool2d(x, [3, 2], 2, "VALID"), (IMAGE,), "max_pool"),
    ("MaxPool", lambda tf, x: tf.nn.max_pool2d(x, 2, 1, "SAME"), (floats(1, NAN, -2, 5, NAN, 3).reshape(1, 2, 3, 1),), "max_pool"),
    ("MaxPoolV2", lambda tf, x: tf.raw_ops.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), (IMAGE,),
     "max_pool"),
    ("MaxPool3D", lambda tf, x: tf.nn.max_pool3d(x, 2, 2, "SAME"), (f32(1, 3, 4, 5, 2),), "max_pool"),
    ("AvgPool", lambda tf, x: tf.nn.avg_pool2d(x, [3, 2], 2, "SAME"), (IMAGE,), "avg_pool"),
    ("AvgPool", lambda tf, x: tf.nn.avg_pool2d(x, [3, 2], [2, 1], "VALID"), (IMAGE,), "avg_pool"),
    ("AvgPool3D", lambda tf, x: tf.nn.avg_pool3d(x, 2, 2, "SAME"), (f32(1, 3, 4, 5, 2),), "avg_pool"),
    ("Softmax", lambda tf, x: tf.nn.softmax(x), (f32(3, 5),), "softmax"),
    ("Softmax", lambda tf, x: tf.nn.softmax(x), (floats(-INF, -INF),), "softmax"),
    ("Softmax", lambda tf, x: tf.nn.softmax(x, axis=1), (f32(3, 5, 2),), "transpose softmax transpose"),
    ("LogSoftmax", lambda tf, x: tf.nn.log_softmax(x), (f32(3, 5),), "log_softmax"),
    ("Conv3D", lambda tf, x, w: tf.nn.conv3d(x, w, [1, 2, 1, 2, 1], "SAME"), (f32(2, 4, 5, 6, 3), f32(3, 2, 3, 3, 4)),
     "transpose conv3d"),
    ("Conv3D", lambda tf, x: tf.nn.conv3d(x, f32(2, 2, 2, 2, 4), [1] * 5, "VALID"), (f32(1, 4, 5, 6, 2),), "conv3d"),
    *(("Conv2DBackpropInput", lambda tf, x, s=shape, p=padding, t=stride: tf.nn.conv2d_transpose(x, f32(3, 2, 5, 4), s, t, p), (IMAGE,),
       "conv2d_transpose") for shape, stride, padding in
      (((2, 14, 12, 5), 2, "SAME"), ((2, 13, 11, 5), 2, "SAME"), ((2, 15, 12, 5), 2, "VALID"), ((2, 16, 12, 5), 2, "VALID"),
       ((2, 7, 6, 5), 1, "SAME"))),
    ("Conv2DBackpropInput", lambda tf, x, w: tf.nn.conv2d_transpose(x, w, [2, 9, 8, 5], 1, "VALID", dilations=1), (IMAGE, f32(3, 3, 5, 4)),
     "transpose conv2d_transpose"),
    ("DepthwiseConv2dNativeBackpropInput", lambda tf, x: tf.nn.depthwise_conv2d_backprop_input([2, 14, 12, 2], f32(3, 3, 2, 2), x,
     [1, 2, 2, 1], "SAME"), (IMAGE,), "conv2d_transpose"),
    *(("Conv3DBackpropInputV2", lambda tf, x, s=shape, p=padding: tf.nn.conv3d_transpose(x, f32(3, 2, 3, 4, 2), s, [1, 2, 1, 3, 1], p),
       (f32(1, 3, 4, 2, 2),), "pad conv3d") for shape, padding in
      (((1, 6, 4, 6, 4), "SAME"), ((1, 5, 4, 5, 4), "SAME"), ((1, 7, 5, 6, 4), "VALID"), ((1, 8, 5, 7, 4), "VALID"))),
    ("LRN", lambda tf, x: tf.nn.local_response_normalization(x, 2, 1.5, 0.3, 0.7), (f32(2, 3, 2, 7),), None),
    ("ExtractImagePatches", lambda tf, x: tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], "SAME"), (IMAGE,), None),
    ("ExtractImagePatches", lambda tf, x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"), (IMAGE,), None),
    *(("ResizeBilinear", lambda tf, x, s=size, o=options: tf.raw_ops.ResizeBilinear(images=x, size=s, **o), (IMAGE,), "resize")
      for size in ((14, 9), (3, 4), (1, 6)) for options in ({}, {"align_corners": True}, {"half_pixel_centers": True})),
    *(("ResizeNearestNeighbor", lambda tf, x, s=size, o=options: tf.raw_ops.ResizeNearestNeighbor(images=x, size=s, **o), (IMAGE,),
       "resize") for size in ((14, 9), (3, 4), (1, 6)) for options in ({}, {"align_corners": True}, {"half_pixel_centers": True})),
    ("ResizeBilinear", lambda tf, x: tf.image.resize(x, [4, 5]), (np.arange(24, dtype=np.uint8).reshape(1, 4, 6, 1),), "cast resize"),
    ("ResizeBicubic", lambda tf, x: tf.image.resize(x, [14, 24], "bicubic"), (IMAGE,), "resize"),
    ("ResizeBicubic", lambda tf, x: tf.raw_ops.ResizeBicubic(images=x, size=[14, 3]), (IMAGE,), "resize"),
    ("ResizeArea", lambda tf, x: tf.raw_ops.ResizeArea(images=x, size=[2, 3]), (f32(2, 8, 6, 3),), "avg_pool"),
    *(("ScaleAndTranslate", lambda tf, x, m=method, s=size: tf.image.resize(x, s, m, antialias=True), (f32(2, 12, 9, 3),), "resize")
      for method in ("bilinear", "bicubic") for size in ([5, 4], [24, 3])),
    # Positions.
    *(("GatherV2", lambda tf, x, i, a=axis: tf.gather(x, i, axis=a, batch_dims=1), (f32(2, 3, 4), np.array([[1, 0, 2], [2, 2, 0]], np.int32)),
       None) for axis in (1, 2)),
    ("GatherV2", lambda tf, x, i: tf.gather(x, i, batch_dims=-1, axis=-1), (f32(2, 3, 4), np.array([[1, 0], [2, 2]], np.int32)), None),
    ("GatherNd", lambda tf, x, i: tf.gather_nd(x, i), (f32(3, 4, 5), np.array([[0, 3], [2, 1]], np.int32)), "gather_nd"),
    ("GatherNd", lambda tf, x, i: tf.gather_nd(x, i, batch_dims=1), (f32(2, 4, 5), np.array([[[3]], [[1]]], np.int64)), None),
    ("ScatterNd", lambda tf, i, u: tf.scatter_nd(i, u, [4, 3]), (np.array([[0], [2], [0]], np.int32), f32(3, 3)), "broadcast scatter_nd"),
    *((f"TensorScatter{kind}", lambda tf, x, i, u, k=kind: getattr(tf.raw_ops, f"TensorScatter{k}")(tensor=x, indices=i, updates=u),
       (f32(4, 3), np.array([[0], [2]], np.int32), f32(2, 3, seed=1)), ops)
      for kind, ops in {"Update": "scatter_nd", "Add": "scatter_nd", "Sub": "neg scatter_nd", "Max": "scatter_nd", "Min": "scatter_nd"}.items()),
    *((f"UnsortedSegment{kind}", lambda tf, x, i, k=kind: getattr(tf.math, f"unsorted_segment_{k.lower()}")(x, i, 4),
       (f32(5, 2), i32(2, 0, 2, -1, 3)), "broadcast reshape scatter_nd") for kind in ("Sum", "Prod", "Max", "Min")),
    ("UnsortedSegmentMax", lambda tf, x, i: tf.math.unsorted_segment_max(x, i, 3), (np.array([5, -7], np.int64), i32(0, 2)), None),
    *((f"Segment{kind}V2" if kind != "Mean" else "SegmentMean", lambda tf, x, k=kind: getattr(tf.math, f"segment_{k.lower()}")(x, [0, 0, 2, 3, 3]),
       (f32(5, 2),), None) for kind in ("Sum", "Mean", "Prod", "Max", "Min")),
    *((f"Segment{kind}", lambda tf, x, k=kind: getattr(tf.raw_ops, f"Segment{k}")(data=x, segment_ids=[0, 0, 2, 3, 3]), (f32(5, 2),), None)
      for kind in ("Sum", "Prod", "Max", "Min")),
    ("TopKV2", lambda tf, x: tf.math.top_k(x, 3), (floats(1, 7, 7, 2, 9, 7, -INF),), "topk"),
    ("TopKV2", lambda tf, x: tf.math.top_k(x, 2, index_type=tf.int64), (f32(3, 5),), "topk"),
    ("Cumsum", lambda tf, x: tf.cumsum(x, 1), (f32(3, 5),), "cumulative"),
    ("Cumsum", lambda tf, x: tf.cumsum(x, -1, exclusive=True, reverse=True), (f32(3, 5),), "cumulative"),
    ("Cumprod", lambda tf, x: tf.math.cumprod(x, 0, exclusive=True), (f32(3, 5),), "cumulative"),
    ("CumulativeLogsumexp", lambda tf, x: tf.math.cumulative_logsumexp(x, 1), (f32(3, 5),), "cumulative"),
    ("Bucketize", lambda tf, x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 2.5]), (floats(-3, -1, 0.5, 2.5, 9, NAN),), None),
    ("Bucketize", lambda tf, x: tf.raw_ops.Bucketize(input=x, boundaries=[0.5, 3.0]), (np.array([[0, 1], [3, 4]], np.int32),), None),
    *((name, lambda tf, x, side=side: tf.searchsorted([[1.0, 3.0, 3.0, 7.0], [0.0, 1.0, 2.0, 3.0]], x, side),
       (floats(3, 0, 8, 1, 2, -1).reshape(2, 3),), "reshape compare cast reduce")
      for name, side in (("LowerBound", "left"), ("UpperBound", "right"))),
    ("DenseBincount", lambda tf, x: tf.math.bincount(x, minlength=4, maxlength=4), (i32(3, 0, 3, 9),), None),
    ("DenseBincount", lambda tf, x: tf.math.bincount(x, minlength=4, maxlength=4, axis=-1, binary_output=True),
     (i32(3, 0, 3, 9).reshape(2, 2),), None),
    ("DenseBincount", lambda tf, x, w: tf.math.bincount(x, w, minlength=4, maxlength=4), (i32(3, 0, 3, 9), f32(4)), None),
    ("DenseBincount", lambda tf, x: tf.raw_ops.DenseBincount(input=x, size=5, weights=np.zeros(0, np.int64)), (i32(3, 0, 3, 9),), None),
    ("XlaDynamicUpdateSlice", lambda tf, x, u, i: keras_ops().slice_update(x, i, u),
     (f32(4, 5), f32(2, 3, seed=1), i32(1, 2)), "dynamic_update_slice"),
    ("XlaDynamicUpdateSlice", lambda tf, x, u, i: keras_ops().slice_update(x, i, u),
     (f32(4, 5), f32(2, 3, seed=1), np.array([3, -1], np.int64)), "dynamic_update_slice"),
    ("Cross", lambda tf, x, y: tf.linalg.cross(x, y), (f32(4, 3), f32(4, 3, seed=1)), None),
    ("Tile", lambda tf, x: tf.tile(x, [2, 3, 1, 2, 2]), (f32(2, 1, 3, 2, 2),), None),
    ("Tile", lambda tf, x: tf.tile(x, [1, 1, 1, 1, 1, 2, 1]), (f32(1, 2, 1, 2, 1, 2, 2),), None),
    ("InvertPermutation", lambda tf, x: tf.math.invert_permutation(x), (i32(3, 0, 2, 1),), "sort"),
    ("ReverseSequence", lambda tf, x, n: tf.reverse_sequence(x, n, 1, 0), (f32(3, 4, 2), i32(0, 3, 4)), None),
    ("ReverseSequence", lambda tf, x, n: tf.reverse_sequence(x, n, 0, 2), (f32(3, 4, 2), np.array([2, 3], np.int64)), None),
    ("DynamicStitch", lambda tf, x, y: tf.dynamic_stitch([[3, 0], [[1], [2]]], [x, y]), (f32(2, 3), f32(2, 1, 3)), None),
    ("ParallelDynamicStitch", lambda tf, x: tf.raw_ops.ParallelDynamicStitch(indices=[[1, 0]], data=[x]), (f32(2, 3),), None),
    ("MatrixDiag", lambda tf, x: tf.raw_ops.MatrixDiag(diagonal=x), (f32(2, 3),), "take select"),
    ("MatrixDiagV2", lambda tf, x: tf.raw_ops.MatrixDiagV2(diagonal=x, k=-1, num_rows=-1, num_cols=-1, padding_value=0.0), (f32(2, 3),), None),
    ("MatrixDiagV3", lambda tf, x: tf.linalg.diag(x, k=2), (f32(2, 3),), "take select"),
    ("MatrixDiagV3", lambda tf, x: tf.linalg.diag(x, k=-1, num_cols=5, padding_value=7.0), (f32(2, 3),), "take select"),
    ("MatrixDiagPart", lambda tf, x: tf.raw_ops.MatrixDiagPart(input=x), (f32(2, 3, 4),), "reshape take"),
    ("MatrixDiagPartV2", lambda tf, x: tf.raw_ops.MatrixDiagPartV2(input=x, k=1, padding_value=0.0), (f32(2, 3, 4),), "reshape take"),
    ("MatrixDiagPartV3", lambda tf, x: tf.linalg.diag_part(x, k=-2), (f32(2, 3, 4),), "reshape take"),
    ("MatrixSetDiag", lambda tf, x, d: tf.raw_ops.MatrixSetDiag(input=x, diagonal=d), (f32(2, 3, 4), f32(2, 3)), "take select"),
    ("MatrixSetDiagV2", lambda tf, x, d: tf.raw_ops.MatrixSetDiagV2(input=x, diagonal=d, k=0), (f32(3, 4), f32(3)), "take select"),
    ("MatrixSetDiagV3", lambda tf, x, d: tf.linalg.set_diag(x, d, k=1), (f32(2, 3, 4), f32(2, 3)), "take select"),
    ("Slice", lambda tf, x, b: tf.slice(x, b, [1, 2]), (f32(3, 4), i32(2, 1)), "dynamic_slice"),
    ("StridedSlice", lambda tf, x, i: x[:, i], (f32(3, 4, 5), np.int32(3).reshape(())), None),
    ("StridedSlice", lambda tf, x, i: x[i, :, i + 1], (f32(3, 4, 5), np.int32(2).reshape(())), None),
    # Lists.
    ("TensorListReserve TensorListSetItem TensorListStack", lambda tf, x: written(tf, x).stack(), (f32(4),), None),
    ("TensorListGather", lambda tf, x: written(tf, x).gather([2, 0, 0]), (f32(4),), None),
    ("TensorListConcatV2", lambda tf, x: written(tf, x).concat(), (f32(4),), None),
    ("TensorListLength", lambda tf, x: x * tf.cast(written(tf, x).size(), tf.float32), (f32(4),), None),
    ("TensorListFromTensor TensorListGetItem", lambda tf, x: array(tf, 3).unstack(x).read(1), (f32(3, 2),), None),
    ("TensorListFromTensor", lambda tf, x, i: array(tf, 3).unstack(x).read(i), (f32(3, 2), np.int32(2).reshape(())), "take"),
    ("TensorListSetItem", lambda tf, x, i: array(tf, 3).unstack(x).write(i, x[0]).stack(), (f32(3, 2), np.int32(2).reshape(())), None),
    ("TensorListFromTensor", lambda tf, x: array(tf, 3).unstack(x).write(1, x[0]).stack(), (f32(3, 2),), None),
    ("TensorListSplit", lambda tf, x: array(tf, 3).split(x, [2, 2, 2]).read(2), (f32(6, 2),), None),
    ("EmptyTensorList TensorListPushBack TensorListConcat TensorListElementShape TensorListResize", pushed, (f32(2, 3),), None),
    # Shapes.
    ("Reshape Shape Pack StridedSlice", lambda tf, x: tf.reshape(x, [tf.shape(x)[0], -1]), (f32(3, 4, 5),), "reshape"),
    ("Shape", lambda tf, x: tf.cast(tf.shape(x, tf.int64), tf.float32) * x, (f32(2, 2),), "mul"),
    ("ShapeN Size Rank", lambda tf, x: x * tf.cast(tf.size(x) * tf.rank(x), tf.float32), (f32(2, 3),), "mul"),
    ("Size", lambda tf, x: tf.reshape(x, [tf.raw_ops.Size(input=x)]), (f32(2, 3),), "reshape"),
    ("ExpandDims", lambda tf, x: tf.expand_dims(x, -2), (f32(3, 4),), "reshape"),
    ("Squeeze", lambda tf, x: tf.squeeze(x, [-1]), (f32(1, 3, 1),), "reshape"),
    ("Squeeze", lambda tf, x: tf.squeeze(x), (f32(1, 3, 1),), "reshape"),
    ("Transpose", lambda tf, x: tf.transpose(x, [2, 0, 1]), (f32(2, 3, 4),), "transpose"),
    ("Transpose", lambda tf, x: tf.transpose(x, [0, 1]), (f32(2, 3),), ""),
    ("ConcatV2", lambda tf, x, y: tf.concat([x, y], -1), (f32(2, 3), f32(2, 0)), "concat"),
    ("Concat", lambda tf, x, y: tf.raw_ops.Concat(concat_dim=0, values=[x, y]), (f32(2, 3), f32(1, 3)), "concat"),
    ("Pack", lambda tf, x, y: tf.stack([x, y], -1), (f32(2, 3), f32(2, 3, seed=1)), "reshape reshape concat"),
    ("Unpack", lambda tf, x: tf.unstack(x, axis=1), (f32(2, 3),), "slice slice slice reshape reshape reshape"),
    ("Split", lambda tf, x: tf.split(x, 2, -1), (f32(3, 4),), "slice slice"),
    ("SplitV", lambda tf, x: tf.split(x, [1, -1, 2], 1), (f32(3, 6),), "slice slice slice"),
    ("Slice", lambda tf, x: tf.slice(x, [1, 0], [-1, 2]), (f32(3, 4),), "slice"),
    ("StridedSlice", lambda tf, x: x[1:3, ::2, -1], (f32(4, 5, 6),), "slice reshape"),
    ("StridedSlice", lambda tf, x: x[::-1, 3:0:-2, 1:100], (f32(4, 5, 6),), "reverse slice"),
    ("StridedSlice", lambda tf, x: x[..., tf.newaxis, 2], (f32(4, 5, 6),), "slice"),
    ("StridedSlice", lambda tf, x: x[tf.newaxis, 1, ..., -3:], (f32(4, 5, 6),), "slice"),
    ("StridedSlice", lambda tf, x: x[-2, tf.newaxis, 1:1], (f32(4, 5, 6),), "slice"),
    ("StridedSlice", lambda tf, x: x[:], (f32(4, 5, 6),), ""),
    ("Pad", lambda tf, x: tf.pad(x, [[1, 2], [0, 3]]), (f32(3, 4),), "pad"),
    ("PadV2", lambda tf, x: tf.pad(x, [[1, 2], [0, 3]], constant_values=-1.5), (f32(3, 4),), "pad"),
    ("Pad", lambda tf, x: tf.pad(x, [[1, 0]]), (bools(3),), "pad"),
    ("MirrorPad", lambda tf, x: tf.pad(x, [[1, 2], [0, 3]], "REFLECT"), (f32(3, 4),), "pad"),
    ("MirrorPad", lambda tf, x: tf.pad(x, [[1, 2], [0, 4]], "SYMMETRIC"), (f32(3, 4),), None),
    ("Tile", lambda tf, x: tf.tile(x, [2, 3]), (f32(2, 3),), "reshape broadcast reshape"),
    ("BroadcastTo", lambda tf, x: tf.broadcast_to(x, [2, 3, 4]), (f32(3, 1),), "broadcast"),
    ("Fill", lambda tf, x: tf.fill([2, 3], x), (np.float32(2.5).reshape(()),), "broadcast"),
    ("Fill", lambda tf, x: x + tf.fill([50, 60], 1.5), (f32(1),), "broadcast add"),
    ("ZerosLike OnesLike", lambda tf, x: tf.raw_ops.OnesLike(x=x) - tf.raw_ops.ZerosLike(x=x), (f32(2, 3),), "broadcast broadcast sub"),
    ("ReverseV2", lambda tf, x: tf.reverse(x, [-1, 0]), (f32(2, 3, 4),), "reverse"),
    ("Roll", lambda tf, x: tf.roll(x, [1, -3], [1, 0]), (f32(4, 5),), "slice slice concat slice slice concat"),
    ("GatherV2", lambda tf, x, i: tf.gather(x, i, axis=1), (f32(3, 5), np.array([[4, 0], [1, 1]], np.int64)), "take"),
    ("GatherV2", lambda tf, x, i: tf.gather(x, i), (f32(3, 5), np.array([2, 0], np.int16)), "cast take"),
    ("Gather", lambda tf, x, i: tf.raw_ops.Gather(params=x, indices=i), (f32(3, 5), i32(2, 0)), "take"),
    ("Range", lambda tf, x: x * tf.range(0.0, 1.0, 0.1), (f32(1),), "mul"),
    ("DepthToSpace", lambda tf, x: tf.nn.depth_to_space(x, 2), (f32(1, 3, 4, 8),), "reshape transpose reshape"),
    ("SpaceToDepth", lambda tf, x: tf.nn.space_to_depth(x, 2), (f32(1, 4, 6, 2),), "reshape transpose reshape"),
    ("Identity IdentityN StopGradient", lambda tf, x: tf.stop_gradient(tf.identity_n([tf.identity(x)])[0]) + 1.0, (f32(3),), "add"),
    ("CheckNumerics", lambda tf, x: tf.debugging.check_numerics(x, "finite") * 2.0, (f32(3),), "mul"),
    ("PreventGradient", lambda tf, x: tf.raw_ops.PreventGradient(input=x) * 2.0, (f32(3),), "mul"),
    ("PlaceholderWithDefault", lambda tf, x: tf.raw_ops.PlaceholderWithDefault(input=x, shape=[3]) * 2.0, (f32(3),), "mul"),
    ("Snapshot", lambda tf, x: tf.raw_ops.Snapshot(input=x) * 2.0, (f32(3),), "mul"),
    ("EnsureShape", lambda tf, x: tf.ensure_shape(x, [3]) * 2.0, (f32(3),), "mul"),
    # Formulas.
    ("gelu", lambda tf, x: tf.nn.gelu(x), (f32(3, 5),), "gelu"),
    ("gelu tanh", lambda tf, x: tf.nn.gelu(x, approximate=True), (f32(3, 5),), "gelu"),
    ("silu", lambda tf, x: tf.nn.silu(x), (f32(3, 5),), "silu"),
    ("silu", lambda tf, x, y: tf.sigmoid(x) * y, (f32(3, 5), f32(3, 5, seed=1)), "sigmoid mul"),
]  # fmt: skip


IDS = [f"{name.replace(' ', '-')}-{index}" for index, (name, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("function", "inputs", "ops"), [case[1:] for case in CASES], ids=IDS)
def test_lowering_gives_what_tensorflow_gives(tf: Any, function: Any, inputs: tuple[np.ndarray, ...], ops: str | None) -> None:
    graph = compare(tf, lambda *tensors: function(tf, *tensors), inputs)
    if ops is not None:
        assert [node.op for node in graph.nodes] == ops.split()


def test_every_lowering_has_a_case() -> None:
    """Those that no case names have a test of their own below."""
    named = {name for case in CASES for name in case[0].split()}
    elsewhere = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "ResourceGather", "ResourceGatherNd"}
    assert set(TABLE.names()) - named == elsewhere


@pytest.mark.parametrize("version", ["", "V2", "V3"])
def test_fused_batch_norm_uses_its_statistics_and_epsilon(tf: Any, version: str) -> None:
    def normalise(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        operation = getattr(tf.raw_ops, f"FusedBatchNorm{version}")
        return operation(x=x, scale=scale, offset=offset, mean=mean, variance=variance, epsilon=0.03, is_training=False)[0]

    graph = compare(tf, normalise, (IMAGE, f32(4), f32(4, seed=1), f32(4, seed=2), positive(4, seed=3)))
    (node,) = graph.nodes
    assert node.op == "batch_norm"
    assert node.attrs["axis"] == 3
    assert node.attrs["eps"] == pytest.approx(0.03)


def test_half_precision_images_are_normalised_in_f32(tf: Any) -> None:
    def normalise(x: Any, a: Any, b: Any) -> Any:
        return tf.raw_ops.FusedBatchNormV3(x=x, scale=a, offset=b, mean=b, variance=a, epsilon=0.001, is_training=False)[0]

    graph = compare(tf, normalise, (IMAGE.astype(np.float16), positive(4), f32(4)), rtol=1e-3)
    assert [node.op for node in graph.nodes] == ["cast", "batch_norm", "cast"]


def test_batch_norm_in_training_mode_is_refused(tf: Any) -> None:
    def normalise(x: Any, scale: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(x, scale, scale, is_training=True)[0]

    with pytest.raises(UnsupportedOperatorsError, match="training mode"):
        to_graph(normalise, (IMAGE, f32(4)), name="case")


def test_max_pool_channels_first_is_lowered_with_its_layout(tf: Any) -> None:
    """TensorFlow's CPU kernels know NHWC only, so the graph is compared with the transposed computation."""

    def channels_first(x: Any) -> Any:
        x = tf.nn.conv2d(x, tf.constant(f32(3, 3, 4, 5)), [1, 1, 2, 2], "SAME", data_format="NCHW")
        x = tf.nn.bias_add(x, tf.constant(f32(5)), data_format="NC..")
        x = tf.nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW")
        return tf.nn.avg_pool2d(x, 2, 1, "SAME", data_format="NCHW")

    def channels_last(x: Any) -> Any:
        x = tf.nn.conv2d(tf.transpose(x, [0, 2, 3, 1]), tf.constant(f32(3, 3, 4, 5)), 2, "SAME") + tf.constant(f32(5))
        x = tf.nn.avg_pool2d(tf.nn.max_pool2d(x, 2, 2, "SAME"), 2, 1, "SAME")
        return tf.transpose(x, [0, 3, 1, 2])

    image = f32(1, 4, 9, 8)
    graph = to_graph(channels_first, (image,), name="case")
    assert {node.attrs["data_layout"] for node in graph.nodes if "data_layout" in node.attrs} == {"NCHW"}
    (got,) = run_reference(graph, {"x": image}, precision="f32").values()
    np.testing.assert_allclose(got, channels_last(tf.constant(image)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["DepthToSpace", "SpaceToDepth"])
def test_depth_and_space_channels_first(tf: Any, name: str) -> None:
    operation = getattr(tf.raw_ops, name)
    image = f32(1, 8, 4, 6)
    graph = to_graph(lambda x: operation(input=x, block_size=2, data_format="NCHW"), (image,), name="case")
    (got,) = run_reference(graph, {"x": image}, precision="f32").values()
    want = tf.transpose(operation(input=tf.transpose(image, [0, 2, 3, 1]), block_size=2, data_format="NHWC"), [0, 3, 1, 2])
    np.testing.assert_array_equal(got, want)


def test_functions_that_xla_compiles_are_inlined_with_xla_semantics(tf: Any) -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any, indices: Any) -> Any:
        return tf.gather(tf.cast(x, tf.int32), indices)

    graph = compare(tf, lambda x, i: compiled(x, i) + 1, (floats(3e9, NAN, -3e9, 1.9, 300), i32(0, 1, 2, 3, -1, 7)))
    assert [node.op for node in graph.nodes] == ["cast", "take", "add"]


def test_grouped_convolution_of_keras_is_inlined(tf: Any) -> None:
    import keras

    layer = keras.layers.Conv2D(6, 3, strides=2, padding="same", groups=2)
    layer.build(IMAGE.shape)
    graph = compare(tf, lambda x: layer(x), (IMAGE,))
    assert [node.op for node in graph.nodes] == ["conv2d", "add"]
    assert graph.nodes[0].attrs["groups"] == 2


def test_a_gather_from_a_variable_and_a_tied_product_share_the_weights(tf: Any) -> None:
    table = tf.Variable(f32(7, 4), name="embedding")

    def model(indices: Any) -> Any:
        rows = tf.raw_ops.ResourceGather(resource=table.handle, indices=indices, dtype=tf.float32)
        points = tf.raw_ops.ResourceGatherNd(resource=table.handle, indices=indices[:, None], dtype=tf.float32)
        return tf.matmul(rows + points, table, transpose_b=True)

    graph = compare(tf, model, (i32(6, 0, 3),))
    assert [node.op for node in graph.nodes] == ["take", "reshape", "gather_nd", "add", "linear"]
    assert [constant.key for constant in graph.constants] == ["embedding"]


def test_a_constant_condition_chooses_its_branch(tf: Any) -> None:
    def model(x: Any) -> Any:
        return tf.raw_ops.StatelessIf(
            cond=tf.constant(False),
            input=[x],
            Tout=[tf.float32],
            then_branch=tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([3])),
            else_branch=tf.function(lambda x: x * 2).get_concrete_function(tf.TensorSpec([3])),
        )[0]

    assert [node.op for node in compare(tf, model, (f32(3),)).nodes] == ["mul"]


@pytest.mark.parametrize("affine", ["both", "scale", "offset", "neither"])
@pytest.mark.parametrize("kind", ["layer", "vector", "spread", "channels first", "wrong axis", "other input"])
def test_normalisations_are_recognised_by_their_formula(tf: Any, kind: str, affine: str) -> None:
    x = f32(2, 3, 5, 8)
    shape = {"spread": (1, 1, 1, 8), "channels first": (1, 3, 1, 1)}.get(kind, (8,))
    scale = tf.constant(f32(*shape)) if affine in ("both", "scale") else None
    offset = tf.constant(f32(*shape, seed=1)) if affine in ("both", "offset") else None

    def model(x: Any) -> Any:
        if kind in ("layer", "wrong axis", "other input"):
            source = x * 2 if kind == "other input" else x
            mean, variance = tf.nn.moments(source, [1 if kind == "wrong axis" else -1], keepdims=True)
        else:
            mean, variance = tf.constant(f32(*shape, seed=2)), tf.constant(positive(*shape, seed=3))
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)

    graph = compare(tf, model, (x,))
    ops = [node.op for node in graph.nodes]
    if kind in ("wrong axis", "other input"):
        assert not {"layer_norm", "batch_norm"} & set(ops)
    else:
        assert ops == ["layer_norm" if kind == "layer" else "batch_norm"]
        assert graph.nodes[0].attrs.get("axis", 3) == (1 if kind == "channels first" else 3)


@pytest.mark.parametrize("kind", ["layer", "batch", "batch-axis-3", "plain-batch"])
def test_normalisation_layers_of_keras_are_one_node(tf: Any, kind: str) -> None:
    import keras

    layer = {
        "layer": lambda: keras.layers.LayerNormalization(epsilon=0.02),
        "batch": lambda: keras.layers.BatchNormalization(epsilon=0.02),
        "batch-axis-3": lambda: keras.layers.BatchNormalization(axis=3, epsilon=0.02),
        "plain-batch": lambda: keras.layers.BatchNormalization(scale=False, center=False, epsilon=0.02),
    }[kind]()
    layer.build(IMAGE.shape)
    for seed, variable in enumerate(layer.variables):
        variable.assign(positive(4, seed=seed))
    (node,) = compare(tf, lambda x: layer(x, training=False), (IMAGE,)).nodes
    assert node.op == ("layer_norm" if kind == "layer" else "batch_norm")
    assert node.attrs["eps"] == pytest.approx(0.02)


def test_a_formula_of_constants_is_exported(tf: Any) -> None:
    compare(tf, lambda x: x + tf.nn.silu(tf.constant(f32(3))) + tf.nn.gelu(tf.constant(f32(3))), (f32(3),))


def test_a_formula_whose_parts_are_read_elsewhere_keeps_them(tf: Any) -> None:
    def model(x: Any) -> Any:
        gate = tf.sigmoid(x)
        product = tf.matmul(x, tf.constant(f32(4, 4)))
        return x * gate, gate, tf.nn.bias_add(product, tf.constant(f32(4))), product

    ops = sorted(node.op for node in compare(tf, model, (f32(3, 4),)).nodes)
    assert ops == ["add", "linear", "sigmoid", "silu"]
