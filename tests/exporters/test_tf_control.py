"""Control flow and recurrent layers of the TensorFlow exporter against TensorFlow itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_tf import control, to_graph
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def i32(number: int) -> np.ndarray:
    return np.array(number, np.int32)


def compare(tf: Any, function: Callable[..., Any], *inputs: np.ndarray) -> Graph:
    """Exports a function and requires the reference interpreter to give what TensorFlow gives; returns the graph."""
    traced = tf.function(function)
    names = [f"x{index}" for index in range(len(inputs))]
    graph = to_graph(traced, inputs, name="case", input_names=names)
    got = list(run_reference(graph, dict(zip(names, inputs, strict=True)), precision="f32").values())
    want = [np.asarray(tensor) for tensor in tf.nest.flatten(traced(*map(tf.constant, inputs)))]
    assert [array.dtype for array in got] == [array.dtype for array in want]
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, strict=True)
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def recurrent(keras: Any, kind: str, **options: Any) -> Any:
    """Returns a recurrent layer whose biases are not zero."""
    return getattr(keras.layers, kind)(4, bias_initializer=keras.initializers.RandomNormal(seed=3), **options)


@pytest.mark.parametrize(
    "options", [{}, {"return_sequences": True}, {"go_backwards": True}, {"return_state": True}, {"unroll": True}], ids=str
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_recurrent_layers_of_keras_are_loops(tf: Any, keras: Any, kind: str, options: dict[str, bool]) -> None:
    layer = recurrent(keras, kind, **options)
    graph = compare(tf, lambda x: layer(x, training=False), f32(2, 5, 3))
    loop = "scan" if kind == "SimpleRNN" else kind.lower()
    assert ops(graph).count(loop) == ("unroll" not in options)


def test_variants_of_recurrent_layers(tf: Any, keras: Any) -> None:
    stacked = keras.layers.RNN([keras.layers.LSTMCell(4), keras.layers.GRUCell(3)])
    convolution = keras.layers.ConvLSTM1D(2, 2, return_sequences=True)
    for layer, inputs, count in (
        (stacked, f32(2, 5, 3), 1),
        (convolution, f32(1, 3, 5, 2), 1),
    ):
        graph = compare(tf, lambda x, layer=layer: layer(x, training=False), inputs)
        assert ops(graph).count("scan") == count


def test_a_masked_lstm(tf: Any, keras: Any) -> None:
    embedding, layer = keras.layers.Embedding(10, 4, mask_zero=True), recurrent(keras, "LSTM", return_sequences=True)
    compare(tf, lambda ids: layer(embedding(ids)), np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 0]], np.int32))


def test_the_weights_of_a_scanned_layer_are_its_own_constants_by_their_names(tf: Any, keras: Any) -> None:
    layer = recurrent(keras, "LSTM", activation="relu", name="memory")
    graph = compare(tf, lambda x: layer(x, training=False), f32(2, 5, 3))
    (function,) = graph.functions.values()
    assert {constant.key for constant in function.constants} >= {"memory/lstm_cell/kernel", "memory/lstm_cell/recurrent_kernel"}
    assert len(graph.nodes[1].inputs) == graph.nodes[1].attrs["num_carry"] + 1


def test_weights_that_two_bodies_use_are_tied(tf: Any) -> None:
    weight = tf.Variable(f32(20, 20), name="shared")

    def model(x: Any) -> Any:
        x = x @ weight
        for _ in tf.range(3):
            x = tf.tanh(x @ weight)
        return x

    graph = compare(tf, model, f32(2, 20))
    (function,) = graph.functions.values()
    assert [constant.key for constant in (*graph.constants, *function.constants) if constant.type.size == 400] == ["shared", "shared"]


def test_loops_of_keras(tf: Any, keras: Any) -> None:
    """keras.ops.scan keeps what it carries in a list of one element."""
    operations = keras.ops
    graph = compare(tf, lambda x: operations.scan(lambda total, row: (total + row, 2 * total), 0 * x[0], x), f32(5, 3))
    assert "scan" in ops(graph)
    for function in (
        lambda x: operations.fori_loop(0, 4, lambda i, y: y * 1.1 + operations.cast(i, "float32"), x),
        lambda x: operations.while_loop(lambda i, y: operations.sum(y) < 50, lambda i, y: (i + 1, 2 * operations.abs(y)), (0, x)),
        lambda x: operations.associative_scan(lambda a, b: a + b, x, axis=0),
        lambda x: operations.vectorized_map(lambda row: operations.sum(row * row), x),
        lambda x: operations.slice_update(x, [1, 0], x[:2]),
    ):
        compare(tf, function, f32(5, 3))


def power(tf: Any, x: Any) -> Any:
    step, total = tf.constant(0), tf.zeros_like(x)
    while tf.reduce_sum(total) < 5.0 and step < 50:
        total += tf.abs(x) * 0.1
        step += 1
    return total, step


def read_and_write(tf: Any, x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 6, clear_after_read=False).write(0, x)
    for step in tf.range(1, 6):
        array = array.write(step, array.read(step - 1) * 0.5 + x)
    return array.stack()


def write_at_run_time(tf: Any, x: Any) -> Any:
    array, step = tf.TensorArray(tf.float32, 4, element_shape=[3]), tf.constant(0)
    while step < tf.cast(tf.reduce_sum(x * x) * 0.0, tf.int32) + 3:
        array = array.write(step, x * tf.cast(step, tf.float32))
        step += 1
    return array.stack()


def grown(tf: Any, x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    for step in tf.range(4):
        array = array.write(step, x * tf.cast(step, tf.float32))
    return array.stack()


def backwards(tf: Any, x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 4)
    for step in tf.range(4):
        array = array.write(3 - step, x * tf.cast(step, tf.float32))
    return array.stack()


def every_second(tf: Any, x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 5)
    for step in tf.range(0, 5, 2):
        array = array.write(step, x + tf.cast(step, tf.float32))
    return array.stack()


def rows(tf: Any, x: Any) -> Any:
    total = tf.zeros(3)
    for row in x:
        total = total * 0.5 + row
    return total


def indexed(tf: Any, x: Any) -> Any:
    total = tf.zeros(3)
    for step in tf.range(5):
        total = total * 0.5 + x[step]
    return total


def nested(tf: Any, x: Any) -> Any:
    for outer in tf.range(3):
        for inner in tf.range(2):
            x = x * 1.1 + tf.cast(outer * inner, tf.float32)
    return x


def never(tf: Any, x: Any) -> Any:
    for _ in tf.range(0):
        x = x * 2.0
    return x


def branch_in_loop(tf: Any, x: Any) -> Any:
    for step in tf.range(4):
        if tf.reduce_sum(x) > 1.0:
            x = x * 0.5
        elif step > 2:
            x = x + tf.cast(step, tf.float32)
    return x


def halting(tf: Any, x: Any) -> Any:
    for _ in tf.range(10):
        x = x + 1.0
        if tf.reduce_max(x) > 4.0:
            break
    return x


LOOPS: list[tuple[Callable[..., Any], tuple[int, ...], str]] = [
    (power, (3,), "while"),
    (read_and_write, (3,), "scan"),
    (write_at_run_time, (3,), "while"),
    (grown, (3,), "scan"),
    (backwards, (3,), "scan"),
    (every_second, (3,), "scan"),
    (rows, (6, 3), "scan"),
    (indexed, (6, 3), "scan"),
    (nested, (3,), "scan"),
    (never, (3,), ""),
    (branch_in_loop, (3,), "scan"),
    (halting, (3,), "while"),
    (lambda tf, x: tf.scan(lambda a, b: a * 0.5 + b, x), (6, 3), "scan"),
    (lambda tf, x: tf.scan(lambda a, b: a * 0.5 + b, x, initializer=tf.zeros(3), reverse=True), (6, 3), "scan"),
    (lambda tf, x: tf.map_fn(lambda row: tf.reduce_sum(row * row), x), (6, 3), "scan"),
    (lambda tf, x: tf.foldl(lambda a, row: a + row, x), (6, 3), "scan"),
    (lambda tf, x: tf.vectorized_map(lambda row: tf.reduce_sum(row * row), x), (6, 3), ""),
]


@pytest.mark.parametrize(("function", "shape", "op"), LOOPS, ids=[f"{case[0].__name__}-{index}" for index, case in enumerate(LOOPS)])
def test_loops(tf: Any, function: Callable[..., Any], shape: tuple[int, ...], op: str) -> None:
    def model(x: Any) -> Any:
        return function(tf, x)

    graph = compare(tf, model, f32(*shape))
    assert [name for name in ops(graph) if name in ("scan", "while")] == [op] * bool(op)


def test_a_loop_with_too_many_steps_to_count_is_a_while(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_STEPS", 3)
    assert ops(compare(tf, lambda x: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 0.5), (0, x)), f32(3))) == ["scan"]
    assert ops(compare(tf, lambda x: tf.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * 0.5), (0, x)), f32(3))) == ["while"]


def test_branches(tf: Any) -> None:
    graph = compare(tf, lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: (x * 2, x[0]), lambda: (x - 1, x[1])), f32(3))
    assert ops(graph)[-1] == "cond"
    assert len(graph.functions) == 2
    compare(tf, lambda x, c: tf.raw_ops.StatelessIf(
        cond=c, input=[x], Tout=[tf.float32],
        then_branch=tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([3])),
        else_branch=tf.function(lambda x: x * 2).get_concrete_function(tf.TensorSpec([3])),
    ), f32(3), i32(2))  # fmt: skip


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_an_index_out_of_range_takes_the_last_branch(tf: Any, index: int) -> None:
    compare(tf, lambda i, x: tf.switch_case(i, [lambda: x * 2, lambda: x - 1, lambda: x]), i32(index), f32(3))
    graph = compare(tf, lambda x: tf.switch_case(tf.constant(index), [lambda: x * 2, lambda: x - 1, lambda: x + 1]), f32(3))
    assert "cond" not in ops(graph)


def test_what_a_branch_or_a_loop_cannot_express_is_refused_by_its_own_line(tf: Any) -> None:
    def model(x: Any) -> Any:
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.math.lgamma(x), lambda: x)
        for _ in tf.range(3):
            y = tf.math.digamma(y)
        return y

    with pytest.raises(UnsupportedOperatorsError) as raised:
        to_graph(model, (f32(3),), name="model")
    line = model.__code__.co_firstlineno
    assert {(operator.op, operator.where) for operator in raised.value.operators} >= {("Lgamma", f"test_tf_control.py:{line + 1}")}


def test_a_loop_that_reads_beyond_its_list_is_refused(tf: Any) -> None:
    def model(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(x)
        return tf.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v + array.read(i)), (0, x[0]))[1]

    with pytest.raises(UnsupportedOperatorsError, match="list of 3 elements at positions from 0 to 4"):
        to_graph(model, (f32(3, 2),), name="model")
