"""Where frameworks and exporters are known to differ: what TensorFlow gives, by number, and that the graph gives it too.

Numbers in names are those of the list of traps in the research on exporters. What is not here cannot occur:

- 4, a window wholly within padding: SAME pads less than a window, and no pool of TensorFlow rounds its size up.
- 18, writes into views: tensors do not change; a model that assigns to variables is refused (``test_tf_export.py``).
- 22, promotion of numbers and 0-d tensors: TensorFlow raises where types differ, so every operand has the type it needs.
- 24, bf16 through NumPy: refused for lack of bf16 arithmetic (below).
- 26, softmax over several axes at once: the operation takes the last axis, ``tf.nn.softmax`` transposes before it.
- 30, calls left after freezing: nothing is frozen, functions are inlined while walking (grouped convolutions, recurrent layers).
- 31, operators decomposed after all, and 35, internals of tracers: TensorFlow's graph is its public form.
- 32, Flatten of channels last: the layout is never changed, so the order of features is TensorFlow's.
- 34, boxes at the threshold: NonMaxSuppression is refused, for its result's shape depends on data.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_tf import to_graph
from rml_exec.errors import RmlError
from rml_exec.runtime.reference import run_reference
from tests.exporters.tf_support import check, node_of, normal, ops

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]

NAN, INF = np.nan, np.inf
INT_MIN = -(2**31)


def f32(*elements: float) -> np.ndarray:
    return np.array(elements, np.float32)


def i32(*elements: int) -> np.ndarray:
    return np.array(elements, np.int32)


def line(*elements: float) -> np.ndarray:
    """Returns an image of one row and one channel."""
    return f32(*elements).reshape(1, 1, -1, 1)


Case = tuple[Callable[..., Any], list[np.ndarray], Any]

CASES: dict[str, Case] = {
    "1 SAME at stride 2 pads more at the end": (
        lambda tf, x: tf.nn.conv2d(x, tf.ones([1, 3, 1, 1]), [1, 1, 2, 1], "SAME")[0, 0, :, 0],
        [line(1, 2, 3, 4)],
        f32(6, 7),
    ),
    "2 a max pool pads with -inf": (
        lambda tf, x: tf.nn.max_pool2d(x, [1, 3], [1, 2], "SAME")[0, 0, :, 0],
        [line(-5, -7, -9, -8)],
        f32(-5, -8),
    ),
    "3 padding does not count in an average": (
        lambda tf, x: tf.nn.avg_pool2d(x, [1, 3], [1, 2], "SAME")[0, 0, :, 0],
        [line(1, 2, 3, 6)],
        f32(2, 4.5),
    ),
    "5 gelu is exact unless asked": (
        lambda tf, x: tf.stack([tf.nn.gelu(x), tf.nn.gelu(x, approximate=True)]),
        [f32(1.0)],
        f32(0.8413447, 0.8411920).reshape(2, 1),
    ),
    "6 floor division of integers": (lambda tf, x, y: tf.stack([x // y, x % y]), [i32(-7, 7, -7), i32(3, -3, -3)], i32(-3, -3, 2, 2, -2, -1)),
    "6 division toward zero": (
        lambda tf, x, y: tf.stack([tf.truncatediv(x, y), tf.math.mod(x, y) * 0 + tf.truncatemod(x, y)]),
        [i32(-7, 7), i32(3, -3)],
        i32(-2, -2, -1, 1),
    ),
    "6 division of floats": (lambda tf, x, y: tf.stack([x // y, x % y]), [f32(-7, 7.5), f32(3, -2)], f32(-3, -4, 2, -0.5)),
    "7 layer norm of a large mean is exact": (
        lambda tf, x: _layer_norm(tf, x),
        [f32(30, 31, 32)],
        f32(-1.2238257, 0, 1.2238257),
    ),
    "8 softmax of a row that is masked": (lambda tf, x: tf.nn.softmax(x), [f32(-INF, -INF)], f32(NAN, NAN)),
    "9 64-bit indices": (lambda tf, x, i: tf.gather(x, i), [f32(1, 2, 3), np.array([2, 0], np.int64)], f32(3, 1)),
    "10 one-hot out of range": (lambda tf, i: tf.one_hot(i, 3), [i32(7, -1, 1)], f32(0, 0, 0, 0, 0, 0, 0, 1, 0)),
    "11 argmax of ties and NaN": (lambda tf, x: tf.argmax(x), [f32(1, NAN, 3, 3, NAN)], np.array(2, np.int64)),
    "11 argmin of ties": (lambda tf, x: tf.argmin(x, output_type=tf.int32), [f32(4, 1, 1)], np.array(1, np.int32)),
    "12 the largest with NaN": (lambda tf, x: tf.reduce_max(x), [f32(1, NAN)], np.float32(NAN)),
    "12 a max pool with NaN": (lambda tf, x: tf.nn.max_pool2d(x, [1, 2], 1, "VALID")[0, 0, :, 0], [line(1, NAN)], f32(1)),
    "12 clipping NaN": (
        lambda tf, x: tf.stack([tf.nn.relu(x), tf.nn.relu6(x), tf.clip_by_value(x, 0, 1), tf.maximum(x, 0.0)]),
        [f32(NAN)],
        f32(NAN, NAN, NAN, NAN),
    ),
    "13 floats out of range of i32": (
        lambda tf, x: tf.cast(x, tf.int32),
        [f32(3e9, -3e9, NAN, INF, -1.9)],
        i32(INT_MIN, INT_MIN, INT_MIN, INT_MIN, -1),
    ),
    "13 floats out of range of u8": (lambda tf, x: tf.cast(x, tf.uint8), [f32(300, -1)], np.array([44, 255], np.uint8)),
    "14 ties of round": (lambda tf, x: tf.round(x), [f32(0.5, 1.5, 2.5, -0.5)], f32(0, 2, 2, -0.0)),
    "15 resize with half pixels": (
        lambda tf, x: tf.image.resize(x, [1, 4])[0, 0, :, 0],
        [line(0, 4)],
        f32(0, 1, 3, 4),
    ),
    "15 resize as TensorFlow 1 did": (
        lambda tf, x: tf.compat.v1.image.resize(x, [1, 4])[0, 0, :, 0],
        [line(0, 4)],
        f32(0, 2, 4, 4),
    ),
    "15 resize with aligned corners": (
        lambda tf, x: tf.compat.v1.image.resize(x, [1, 4], align_corners=True)[0, 0, :, 0],
        [line(0, 3)],
        f32(0, 1, 2, 3),
    ),
    "15 nearest takes the pixel at the centre": (
        lambda tf, x: tf.image.resize(x, [1, 2], "nearest")[0, 0, :, 0],
        [line(0, 1, 2, 3, 4)],
        f32(1, 3),
    ),
    "21 nothing to reduce": (
        lambda tf, x: tf.stack([tf.reduce_max(x, 1), tf.reduce_min(x, 1), tf.reduce_sum(x, 1), tf.reduce_mean(x, 1), tf.reduce_prod(x, 1)]),
        [np.zeros((1, 0), np.float32)],
        f32(-INF, INF, 0, NAN, 1),
    ),
    "21 a shape of nothing": (lambda tf, x: tf.reshape(x, [0, 2]), [np.zeros((3, 0), np.float32)], np.zeros((0, 2), np.float32)),
    "22 a quotient of integers": (lambda tf, x: x / 2, [i32(3)], np.array([1.5], np.float64)),
    "23 a sum of bytes wraps": (lambda tf, x: tf.reduce_sum(x), [np.array([200, 100], np.uint8)], np.array(44, np.uint8)),
    "23 not of bools and of bits": (
        lambda tf, x: tf.stack([tf.cast(~x, tf.uint8), tf.bitwise.invert(tf.cast(x, tf.uint8))]),
        [np.array([True, False])],
        np.array([0, 1, 254, 255], np.uint8),
    ),
    "25 the largest of ties": (lambda tf, x: tf.math.top_k(x, 3)[1], [f32(1, 2, 2, 0, 2, 2)], i32(1, 2, 4)),
    "25 sorting keeps the order of ties": (lambda tf, x: tf.argsort(x), [f32(1, 0, 1, 0)], i32(1, 3, 0, 2)),
    "27 a transposed convolution is cropped": (
        lambda tf, x: tf.nn.conv2d_transpose(x, f32(1, 10, 100).reshape(1, 3, 1, 1), [1, 1, 4, 1], [1, 1, 2, 1], "SAME")[0, 0, :, 0],
        [line(1, 2)],
        f32(1, 10, 102, 20),
    ),
    "28 depth to space, blocks first": (
        lambda tf, x: tf.nn.depth_to_space(tf.reshape(x, [1, 1, 1, 8]), 2)[0],
        [f32(0, 1, 2, 3, 4, 5, 6, 7)],
        f32(0, 1, 2, 3, 4, 5, 6, 7).reshape(2, 2, 2),
    ),
}  # fmt: skip


def _layer_norm(tf: Any, x: Any) -> Any:
    """Normalises as keras.layers.LayerNormalization does, eps 1e-3 included."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_what_tensorflow_gives_is_what_the_graph_gives(tf: Any, name: str) -> None:
    function, inputs, wanted = CASES[name]
    theirs = np.asarray(function(tf, *map(tf.constant, inputs)))
    wanted = np.asarray(wanted).reshape(theirs.shape)
    assert theirs.dtype == wanted.dtype
    np.testing.assert_allclose(theirs, wanted, rtol=1e-5)
    check(lambda *tensors: function(tf, *tensors), inputs, rtol=1e-5)


@pytest.mark.parametrize("index", [7, -1, -7])
def test_10_an_index_out_of_range_is_an_error(tf: Any, index: int) -> None:
    x, i = f32(1, 2, 3), i32(index)
    for function in (
        lambda x, i: tf.gather(x, i),
        lambda x, i: tf.gather_nd(x, i[:, None]),
        lambda x, i: tf.tensor_scatter_nd_update(x, i[:, None], f32(9)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(tf.constant(x), tf.constant(i))
        graph = to_graph(function, [x, i], name="test", input_names=["x", "i"])
        with pytest.raises(RmlError, match="range"):
            run_reference(graph, {"x": x, "i": i}, precision="f32")


def test_10_compiled_by_xla_a_gather_clamps_and_a_scatter_drops(tf: Any) -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any, i: Any) -> Any:
        return tf.gather(x, i), tf.tensor_scatter_nd_update(x, i[:, None], tf.zeros([3]))

    taken, left = (np.asarray(tensor) for tensor in compiled(tf.constant(f32(1, 2, 3)), tf.constant(i32(7, -1, 1))))
    np.testing.assert_array_equal(taken, f32(3, 1, 2))
    np.testing.assert_array_equal(left, f32(1, 0, 3))
    check(compiled, [f32(1, 2, 3), i32(7, -1, 1)])


def test_8_a_query_without_keys_gives_the_mean_of_the_values_or_zeros(keras: Any) -> None:
    q, v = normal(1, 2, 4), normal(1, 3, 4, seed=1)
    mask = np.array([[[True, False, True], [False, False, False]]])
    for dropout, kind in ((0.0, "uniform"), (0.5, "zero")):
        layer = keras.layers.MultiHeadAttention(1, 4, dropout=dropout, use_bias=False)
        y = np.asarray(layer(q, v, attention_mask=mask))
        kernels = {variable.path.split("/")[-2]: np.asarray(variable) for variable in layer.variables if variable.name == "kernel"}
        mean = v[0].mean(0) @ kernels["value"][:, 0] @ kernels["attention_output"][0]
        np.testing.assert_allclose(y[0, 1], 0 if dropout else mean, atol=1e-5)
        graph = check(lambda q, v, m, layer=layer: layer(q, v, attention_mask=m), [q, v, mask])
        assert node_of(graph, "attention").attrs["fully_masked"] == kind


def test_16_and_17_layers_are_exported_in_inference_mode_with_keras_eps(keras: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()])
    graph = to_graph(model, [normal(3, 4)], name="test")
    assert ops(graph) == ["batch_norm"]
    assert graph.nodes[0].attrs["eps"] == pytest.approx(1e-3)
    with pytest.raises(UnsupportedOperatorsError, match="training mode"):
        to_graph(lambda x: model(x, training=True), [normal(3, 4)], name="test")


def test_19_tied_weights_are_one_constant(keras: Any) -> None:
    layer = keras.layers.Dense(5, name="shared")
    layer.build((None, 5))
    graph = check(lambda x: layer(layer(x)), [normal(3, 5)])
    assert [constant.key for constant in graph.constants if constant.type.size == 25] == ["shared/kernel"]


def test_20_a_batch_of_one_does_not_fix_a_symbolic_batch(keras: Any) -> None:
    model = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)])
    check(lambda x: model(x), [normal(1, 6, 6, 2)], dims=["batch=1..8"], at=[[normal(5, 6, 6, 2)]])


def test_24_bf16_is_refused(tf: Any) -> None:
    with pytest.raises(UnsupportedOperatorsError, match="bf16"):
        to_graph(lambda x: tf.cast(tf.nn.gelu(tf.cast(x, tf.bfloat16)), tf.float32), [f32(1, 2)], name="test")


def test_25_nan_is_above_all_numbers_where_tensorflow_leaves_it_open(tf: Any) -> None:
    """TensorFlow compares NaN as if it equalled every number, so which elements it gives depends on their number: there is no rule to follow."""
    x = f32(1, NAN, 3, 3, NAN)
    theirs = [tf.math.top_k(x, k).indices.numpy().tolist() for k in (1, 2, 3)]
    assert theirs == [[0], [1, 2], [1, 2, 0]]
    graph = to_graph(lambda x: tf.math.top_k(x, 3)[1], [x], name="test")
    (mine,) = run_reference(graph, {"x": x}, precision="f32").values()
    np.testing.assert_array_equal(mine, [1, 4, 2])


def test_29_gates_of_keras_are_reordered(keras: Any) -> None:
    for layer, gates in ((keras.layers.LSTM(2), "ifgo"), (keras.layers.GRU(2), "rzn")):
        graph = check(lambda x, layer=layer: layer(x), [normal(1, 3, 9)])
        kernel = np.asarray(layer.variables[0])
        parts = np.split(kernel.T, len(gates))
        wanted = parts if gates == "ifgo" else [parts[1], parts[0], parts[2]]
        (weights,) = (constant.data for constant in graph.constants if constant.type.shape == (2 * len(gates), 9))
        np.testing.assert_array_equal(weights, np.concatenate(wanted))


def test_33_what_the_numbers_depend_on_is_recorded(tf: Any) -> None:
    options = to_graph(lambda x: x + 1.0, [f32(1)], name="test").producer["options"]
    assert options["TF_ENABLE_ONEDNN_OPTS"] in ("0", "1", "default")
    assert options["keras"]


def test_34_suppression_of_boxes_is_refused(tf: Any) -> None:
    with pytest.raises(UnsupportedOperatorsError, match="depends on data"):
        to_graph(lambda boxes, scores: tf.image.non_max_suppression(boxes, scores, 2), [normal(3, 4), normal(3)], name="test")
