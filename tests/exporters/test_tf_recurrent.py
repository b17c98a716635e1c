"""Loops of TensorFlow that are an LSTM or a GRU become that op; what is not exactly one stays a scan."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.exporters.tf_support import check, node_of, normal, ops

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]

X = normal(2, 5, 3)


def recurrent(keras: Any, kind: str, units: int = 4, **options: Any) -> Any:
    """Returns a recurrent layer whose biases are not zero."""
    return getattr(keras.layers, kind)(units, bias_initializer=keras.initializers.RandomNormal(stddev=0.5, seed=3), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": True},
        {"return_sequences": True, "return_state": True},
        {"go_backwards": True, "return_sequences": True},
        {"go_backwards": True, "return_state": True},
        {"use_bias": False, "return_sequences": True},
        {"units": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "GRU-before"])
def test_recurrent_layers_of_keras_are_their_op(keras: Any, kind: str, options: dict[str, Any]) -> None:
    name, _, before = kind.partition("-")
    layer = recurrent(keras, name, **options, **({"reset_after": False} if before else {}))
    node_of(check(lambda x: layer(x), [X[:1]]), name.lower())  # of one row Keras makes other operations
    node = node_of(check(lambda x: layer(x), [X]), name.lower())
    assert node.inputs[-1] is None  # it begins with zeros
    if name == "GRU":
        assert node.attrs["reset"] == ("before" if before else "after")
        assert (node.inputs[4] is None) == bool(before or options.get("use_bias") is False)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_gates_that_are_products_of_their_own(keras: Any, kind: str) -> None:
    cell = recurrent(keras, f"{kind}Cell")
    for implementation in (1, 2):
        cell.implementation = implementation
        layer = keras.layers.RNN(cell, return_sequences=True)
        assert kind.lower() in ops(check(lambda x, layer=layer: layer(x), [X]))


def test_both_directions_and_several_layers(keras: Any) -> None:
    layers = keras.layers
    both = layers.Bidirectional(recurrent(keras, "GRU", return_sequences=True))
    model = keras.Sequential([both, layers.Bidirectional(recurrent(keras, "LSTM")), layers.Dense(3)])
    found = ops(check(lambda x: model(x), [X]))
    assert [found.count(op) for op in ("gru", "lstm", "scan")] == [2, 2, 0]


def test_an_initial_state_that_is_given(keras: Any) -> None:
    lstm, gru = recurrent(keras, "LSTM", return_sequences=True), recurrent(keras, "GRU")
    h, c = normal(2, 4, seed=1), normal(2, 4, seed=2)
    node = node_of(check(lambda x, h, c: lstm(x, initial_state=[h, c]), [X, h, c]), "lstm")
    assert node.inputs[4:] == ("x1", "x2")
    assert node_of(check(lambda x, h: gru(x, initial_state=h), [X, h]), "gru").inputs[5] == "x1"


def test_a_large_state_of_zeros_is_left_out(keras: Any) -> None:
    layer = recurrent(keras, "LSTM", 64)
    assert node_of(check(lambda x: layer(x), [normal(32, 4, 3)]), "lstm").inputs[4:] == (None, None)


def test_a_symbolic_batch_and_length(keras: Any) -> None:
    layers = keras.layers
    model = keras.Sequential([layers.Bidirectional(recurrent(keras, "GRU", return_sequences=True)), recurrent(keras, "LSTM")])
    graph = check(lambda x: model(x), [X], dims=["batch=1..64", "time=2..30@1"], at=[[normal(1, 2, 3)], [normal(3, 29, 3)]])
    assert ops(graph).count("gru") == 2
    assert ops(graph).count("lstm") == 1


def test_the_weights_keep_their_names_and_ties(keras: Any) -> None:
    layer = recurrent(keras, "LSTM", 3, name="memory")
    graph = check(lambda x: layer(x) + layer(x + 1), [X])
    keys = [constant.key for constant in graph.constants if constant.type.size > 16]
    assert keys == ["memory/lstm_cell/kernel.ifgo", "memory/lstm_cell/recurrent_kernel.ifgo"]
    first, second = (node for node in graph.nodes if node.op == "lstm")
    assert first.inputs[1:3] == second.inputs[1:3]


def joint_cell(tf: Any, forget_bias: float = 1.0, peephole: bool = False) -> Callable[..., Any]:
    """Returns a loop over a time-major sequence with the cell of TensorFlow 1: one product of x and h side by side, gates i j f o."""
    weights, bias = tf.constant(normal(7, 16)), tf.constant(normal(16, seed=1))

    def model(x: Any) -> Any:
        h = c = tf.zeros([2, 4])
        outputs = tf.TensorArray(tf.float32, 5)
        for t in tf.range(5):
            i, j, f, o = tf.split(tf.matmul(tf.concat([x[t], h], 1), weights) + bias, 4, 1)
            c = c * tf.sigmoid(f + forget_bias + (0.1 * c if peephole else 0.0)) + tf.sigmoid(i) * tf.tanh(j)
            h = tf.tanh(c) * tf.sigmoid(o)
            outputs = outputs.write(t, h)
        return outputs.stack(), c

    return model


def test_a_loop_of_ones_own(tf: Any) -> None:
    x = np.ascontiguousarray(X.transpose(1, 0, 2))

    def unstacked(x: Any) -> Any:
        steps, h, kernel = tf.TensorArray(tf.float32, 5).unstack(x), tf.zeros([2, 4]), tf.constant(normal(3, 12))
        recurrent_kernel = tf.constant(normal(4, 12, seed=1))
        for t in tf.range(5):
            z, r, n = tf.split(steps.read(t) @ kernel, 3, 1)
            zh, rh, nh = tf.split(h @ recurrent_kernel, 3, 1)
            z = tf.sigmoid(z + zh)
            h = (1.0 - z) * tf.tanh(tf.sigmoid(r + rh) * nh + n) + h * z
        return h

    assert "gru" in ops(check(unstacked, [x]))
    assert "lstm" not in ops(check(joint_cell(tf, peephole=True), [x]))


def test_what_is_nearly_a_cell_stays_a_scan(tf: Any, keras: Any) -> None:
    layers = keras.layers
    for layer in (
        recurrent(keras, "LSTM", activation="relu"),
        recurrent(keras, "LSTM", recurrent_activation="hard_sigmoid"),
        recurrent(keras, "GRU", activation="sigmoid"),
        recurrent(keras, "GRU", recurrent_activation="tanh"),
        recurrent(keras, "SimpleRNN"),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)]),
    ):
        found = ops(check(lambda x, layer=layer: layer(x), [X]))
        assert "scan" in found
        assert not {"lstm", "gru"} & set(found)

    def writes_the_cell_state(x: Any) -> Any:
        steps, h, c, w = tf.TensorArray(tf.float32, 5).unstack(x), tf.zeros([2, 3]), tf.zeros([2, 3]), tf.constant(normal(3, 12))
        states = tf.TensorArray(tf.float32, 5)
        for t in tf.range(5):
            i, f, g, o = tf.split(steps.read(t) @ w + h @ w, 4, 1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            states = states.write(t, c)
        return states.stack(), h

    assert "scan" in ops(check(writes_the_cell_state, [np.ascontiguousarray(X.transpose(1, 0, 2))]))


def test_padding_that_is_masked_stays_a_scan(keras: Any) -> None:
    embedding, layer = keras.layers.Embedding(10, 4, mask_zero=True), recurrent(keras, "LSTM", return_sequences=True)
    graph = check(lambda ids: layer(embedding(ids)), [np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 0]], np.int32)])
    assert "scan" in ops(graph)
