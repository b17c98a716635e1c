"""Symbolic dims of the TensorFlow exporter: what grows with a size is computed from it at run time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from exporters.errors import ExportError
from tests.exporters.tf_support import check, normal, ops

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]


def length(tf: Any, x: Any) -> Any:
    return tf.shape(x)[1]


def causal(tf: Any, x: Any) -> Any:
    n = length(tf, x)
    return tf.linalg.band_part(tf.ones([n, n]), -1, 0)


def sinusoids(tf: Any, x: Any) -> Any:
    place = tf.cast(tf.range(length(tf, x)), tf.float32)[:, None]
    rates = tf.pow(100.0, -tf.range(0.0, 4.0) / 4)
    return tf.sin(place * rates)


MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "causal mask": lambda tf, x: x[:, :, :1] * causal(tf, x),
    "hidden by a large number": lambda tf, x: tf.matmul(x, x, transpose_b=True) + (1.0 - causal(tf, x)) * -1e9,
    "window of two": lambda tf, x: x[:, :, :1] * tf.linalg.band_part(tf.ones([length(tf, x)] * 2), 2, 1),
    "compared positions": lambda tf, x: tf.where(tf.range(length(tf, x))[:, None] >= tf.range(length(tf, x)), x[:, :, :1], -2.0),
    "counted positions": lambda tf, x: x[:, :, :1] * tf.cumsum(tf.ones([1, length(tf, x), length(tf, x)]), axis=-2),
    "identity matrix": lambda tf, x: x[:, :, :1] * tf.eye(length(tf, x)),
    "sinusoids": lambda tf, x: x + sinusoids(tf, x),
    "first positions": lambda tf, x: x * tf.cast(tf.range(length(tf, x)) < 2, tf.float32)[:, None],
    "sequence mask": lambda tf, x: x * tf.sequence_mask([2], length(tf, x), tf.float32)[:, :, None],
    "one hot": lambda tf, x: tf.one_hot(tf.argmax(x, 1), length(tf, x)),
    "a size as a number": lambda tf, x: x * tf.cast(length(tf, x), tf.float32) + tf.sqrt(tf.cast(tf.size(x), tf.float32)),
    "shape as a result": lambda tf, x: (x, tf.shape(x), tf.shape(x)[1] * 2 - 1),
    "zeros and ones": lambda tf, x: tf.concat([x, tf.zeros_like(x), tf.ones([tf.shape(x)[0], length(tf, x), 2])], -1),
    "backwards": lambda tf, x: x * tf.cast(tf.range(length(tf, x) - 1, -1, -1), tf.float32)[:, None],
    "steps of three": lambda tf, x: x[:, :1] * tf.cast(tf.range(0, 3 * length(tf, x), 3)[:, None], tf.float32),
    "relative positions": lambda tf, x: (
        x[:, :, :1] * tf.gather(tf.constant(normal(80)), 40 + tf.range(length(tf, x))[:, None] - tf.range(length(tf, x)))
    ),
    "flattened": lambda tf, x: tf.reshape(tf.transpose(x, [1, 0, 2]), [length(tf, x), -1]),
    "split in halves": lambda tf, x: x[:, : length(tf, x) // 2],
    "tiled": lambda tf, x: tf.tile(x[:, :1], [1, length(tf, x), 2]),
    "repeated": lambda tf, x: tf.repeat(x, 3, axis=1),
    "broadcast": lambda tf, x: tf.broadcast_to(tf.constant([1.0, 2.0]), [tf.shape(x)[0], length(tf, x), 2]),
    "loop over the length": lambda tf, x: tf.scan(lambda a, b: a + b, tf.transpose(x, [1, 0, 2])),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_grows_with_a_size_is_computed_from_it(tf: Any, kind: str) -> None:
    sizes = [(1, 2), (2, 5), (3, 33)]
    inputs = [[normal(batch, tokens, 4)] for batch, tokens in sizes]
    graph = check(lambda x: MODELS[kind](tf, x), inputs[1], dims=["batch=1..", "tokens=2..@1"], at=inputs)
    assert set(graph.dims) == {"batch", "tokens"}
    assert all(constant.type.size <= 80 for constant in graph.constants)


def test_masks_of_two_lengths(tf: Any) -> None:
    def model(q: Any, k: Any) -> Any:
        rows, columns = tf.shape(q)[0], tf.shape(k)[0]
        return tf.where(tf.range(columns) <= tf.range(rows)[:, None] + (columns - rows), tf.matmul(q, k, transpose_b=True), -1e9)

    inputs = [[normal(t, 4), normal(s, 4, seed=1)] for t, s in ((3, 7), (2, 2), (5, 30))]
    check(model, inputs[0], dims=["queries=1..@x0.0", "keys=2..@x1.0"], at=inputs)


def test_a_constant_that_does_not_grow_stays_one(tf: Any) -> None:
    weight = tf.constant(normal(4, 4))
    graph = check(lambda x: x @ weight + tf.range(4.0), [normal(3, 4)], dims=["batch=1..8"], at=[[normal(1, 4)]])
    assert ops(graph) == ["linear", "add"]


def test_what_cannot_be_computed_from_a_size_is_named(tf: Any) -> None:
    with pytest.raises(ExportError, match=r"(?s)symbolic export of 'test': the graph must be the same .* got .*MatrixInverse"):
        check(lambda x: x @ tf.linalg.inv(tf.eye(tf.shape(x)[1]) * 2.0), [normal(3, 4)], dims=["n=2..8@1"])
