"""Formulas that TensorFlow and Keras spell out and the graph has one op for: each is found, and what nearly is the formula is not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporters.from_tf import to_graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.tf_support import check, node_of, normal, ops

pytestmark = [pytest.mark.tf, pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")]

IMAGE = normal(2, 5, 6, 8)
TOKENS = normal(2, 7, 12)


def drawn(layer: Any, shape: tuple[int | None, ...]) -> Callable[..., Any]:
    """Returns the call of a built Keras layer with random weights."""
    layer.build(shape)
    for seed, variable in enumerate(layer.variables):
        variable.assign(0.5 * normal(*variable.shape, seed=seed))
    return lambda x: layer(x)


@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}, {"scale": False, "center": False}], ids=str)
@pytest.mark.parametrize("groups", [4, -1, 1])
def test_group_normalisation_is_one_node(keras: Any, groups: int, options: dict[str, bool]) -> None:
    layer = keras.layers.GroupNormalization(groups, epsilon=0.01, **options)
    graph = check(drawn(layer, IMAGE.shape), [IMAGE])
    assert ops(graph) == ["group_norm"]
    attrs = graph.nodes[0].attrs
    assert (attrs["groups"], attrs["axis"], attrs["eps"]) == (8 if groups == -1 else groups, 3, pytest.approx(0.01))


def test_group_normalisation_of_channels_first_tokens_and_rows(keras: Any) -> None:
    for x, axis in ((normal(2, 6, 4, 5), 1), (TOKENS, -1), (normal(3, 6), -1)):
        layer = keras.layers.GroupNormalization(3, axis=axis)
        assert ops(check(drawn(layer, x.shape), [x])) == ["group_norm"]


def test_normalisations_are_found_with_a_symbolic_batch_and_symbolic_sizes(keras: Any) -> None:
    layers = keras.layers
    for layer, op in (
        (layers.GroupNormalization(4), "group_norm"),
        (layers.LayerNormalization(), "layer_norm"),
        (layers.RMSNormalization(), "rms_norm"),
        (layers.BatchNormalization(axis=3), "batch_norm"),
    ):
        call = drawn(layer, IMAGE.shape)
        if op == "batch_norm":
            layer.moving_variance.assign(np.abs(layer.moving_variance) + 0.5)
        image = normal(3, 5, 6, 8)
        graph = check(lambda x, call=call: call(x), [image], dims=["batch=1..8"], at=[[IMAGE], [IMAGE[:1]]])
        assert ops(graph) == [op]
    call = drawn(layers.GroupNormalization(4), (None, None, None, 8))
    graph = check(call, [normal(2, 5, 6, 8)], dims=["batch=1..8", "height=2..9@1", "width=2..9@2"], at=[[normal(3, 4, 7, 8)]])
    assert ops(graph) == ["group_norm"]


def test_what_is_nearly_group_normalisation_stays_as_it_is(tf: Any) -> None:
    def model(x: Any, kind: str) -> Any:
        cut = tf.reshape(x, [2, 5, 6, 4, 2])
        mean, variance = tf.nn.moments(cut, [1, 2] if kind == "axes" else [1, 2, 4], keepdims=True)
        scale = tf.constant(normal(1, 5, 1, 4, 2)) if kind == "scale" else tf.constant(normal(1, 1, 1, 4, 2))
        y = tf.nn.batch_normalization(cut, mean, variance, None, scale, 1e-3)
        return tf.reshape(y, [2, 30, 8] if kind == "shape" else [2, 5, 6, 8])

    for kind in ("axes", "scale", "shape"):
        assert "group_norm" not in ops(check(lambda x, kind=kind: model(x, kind), [IMAGE]))
    assert ops(check(lambda x: model(x, ""), [IMAGE])) == ["group_norm"]


def test_rms_normalisation_is_one_node(tf: Any, keras: Any) -> None:
    layer = keras.layers.RMSNormalization(epsilon=0.02)
    graph = check(drawn(layer, TOKENS.shape), [TOKENS])
    assert ops(graph) == ["rms_norm"]
    assert graph.nodes[0].attrs["eps"] == pytest.approx(0.02)
    scale = tf.constant(normal(12))

    def mean_square(x: Any) -> Any:
        return tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-3

    formulas: dict[str, Callable[[Any], Any]] = {
        "plain": lambda x: x * tf.math.rsqrt(mean_square(x)),
        "root": lambda x: x / tf.sqrt(mean_square(x)),
        "scaled root": lambda x: x / tf.sqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-3) * scale,
        "scale first": lambda x: x * (tf.math.rsqrt(tf.reduce_mean(tf.pow(x, 2.0), -1, keepdims=True) + 1e-3) * scale),
        "several axes": lambda x: x * tf.math.rsqrt(tf.reduce_mean(x * x, [1, 2], keepdims=True) + 1e-3),
    }
    for formula in formulas.values():
        assert ops(check(formula, [TOKENS])) == ["rms_norm"]
    for nearly in (
        lambda x: x * tf.math.rsqrt(tf.reduce_mean(x * (x + 1), -1, keepdims=True) + 3.0),
        lambda x: x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), -1, keepdims=True) + 1e-3),
        lambda x: x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), 1, keepdims=True) + 1e-3),
        lambda x: (x + 1) * tf.math.rsqrt(mean_square(x)),
        lambda x: x * tf.math.rsqrt(tf.reduce_mean(tf.abs(x) ** 3.0, -1, keepdims=True) + 1e-3),
    ):
        assert "rms_norm" not in ops(check(nearly, [TOKENS]))


ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "celu": ("elu", {"alpha": 1.0, "input_scale": 1.0}),
    "elu": ("elu", {"alpha": 1.0}),
    "selu": ("elu", {"alpha": 1.6732632, "scale": 1.050701}),
    "gelu": ("gelu", {}),
    "hard_sigmoid": ("hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hard_silu": ("hard_swish", {}),
    "leaky_relu": ("leaky_relu", {"alpha": 0.2}),
    "log_softmax": ("log_softmax", {"axis": 2}),
    "silu": ("silu", {}),
    "softplus": ("softplus", {"beta": 1.0}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_keras_are_one_node(keras: Any, name: str) -> None:
    op, attrs = ACTIVATIONS[name]
    graph = check(keras.layers.Activation(name), [4 * TOKENS])
    assert ops(graph) == [op]
    assert {key: graph.nodes[0].attrs[key] for key in attrs} == pytest.approx(attrs, rel=1e-6)


def test_activations_spelt_out_are_one_node(tf: Any, keras: Any) -> None:
    def log_softmax(x: Any, axis: int, sums: int) -> Any:
        shifted = x - tf.reduce_max(x, axis, keepdims=True)
        return shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), sums, keepdims=True))

    relu6, special = tf.nn.relu6, np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0, -2.0, 5.0, -5.0], np.float32)
    for op, formula, x in (
        ("hard_swish", lambda x: x * relu6(x + 3) / 6, special),
        ("hard_swish", lambda x: relu6(3 + x) * (1 / 6) * x, special),
        ("hard_sigmoid", lambda x: relu6(x + 3) * (1 / 6), special),
        ("leaky_relu", lambda x: tf.maximum(0.3 * x, x), special),
        ("leaky_relu", lambda x: tf.nn.relu(x) - 0.3 * tf.nn.relu(-x), special),
        ("elu", keras.layers.ELU(0.5), special),
        ("elu", lambda x: keras.activations.celu(x, 0.7), special),
        ("gelu", lambda x: 0.5 * x * (1 + tf.math.erf(x / tf.sqrt(2.0))), TOKENS),
        ("gelu", lambda x: x * 0.5 * (1.0 + tf.math.erf(x * 0.70710678)), TOKENS),
        ("gelu", lambda x: 0.5 * (x * (1.0 + tf.math.erf(x / 1.41421356))), TOKENS),
        ("log_softmax", lambda x: log_softmax(x, 1, 1), TOKENS),
    ):
        assert ops(check(formula, [x])) == [op], op
    for op, nearly in (
        ("hard_swish", lambda x: (x + 1) * relu6(x + 3) / 6),
        ("hard_sigmoid", lambda x: relu6(x + 2) / 6),
        ("hard_sigmoid", lambda x: relu6(x + 3) / 5),
        ("leaky_relu", lambda x: tf.maximum(0.3 * x, x + 1)),
        ("elu", lambda x: tf.maximum(x, 0) + 0.5 * tf.math.expm1(tf.minimum(x, 0) / 0.7)),
        ("gelu", lambda x: 0.5 * x * (1 + tf.math.erf(x / tf.sqrt(2.5)))),
        ("log_softmax", lambda x: log_softmax(x, 1, 2)),
    ):
        assert op not in ops(check(nearly, [TOKENS])), op
    # With oneDNN TensorFlow itself takes this for a leaky relu, which it is not: so NumPy says what is right.
    steep = to_graph(lambda x: tf.maximum(1.5 * x, x), [TOKENS], name="test")
    assert ops(steep) == ["mul", "max"]
    (y,) = run_reference(steep, {"x": TOKENS}, precision="f32").values()
    np.testing.assert_array_equal(y, np.maximum(np.float32(1.5) * TOKENS, TOKENS))
    mish = check(keras.layers.Activation("mish"), [TOKENS])
    assert ops(mish) == ["softplus", "tanh", "mul"]


ATTENTION: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "plain": (lambda layers: layers.MultiHeadAttention(3, 4), {"mask": "none"}),
    "dropout": (lambda layers: layers.MultiHeadAttention(3, 4, dropout=0.1), {"mask": "none"}),
    "value width": (lambda layers: layers.MultiHeadAttention(3, 4, value_dim=5), {"mask": "none"}),
    "grouped": (lambda layers: layers.GroupQueryAttention(4, 6, 2), {"mask": "none", "kv_groups": 3}),
    "one shared head": (lambda layers: layers.GroupQueryAttention(4, 3, 1), {"kv_groups": 3}),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("symbolic", [False, True])
def test_attention_layers_of_keras_are_one_node(keras: Any, kind: str, causal: bool, symbolic: bool) -> None:
    make, attrs = ATTENTION[kind]
    layer = make(keras.layers)
    dims = ["batch=1..8", "tokens=2..40@1"] if symbolic else []
    graph = check(
        lambda x: layer(x, x, use_causal_mask=causal), [TOKENS], dims=dims, at=[[normal(3, 35, 12)], [normal(1, 2, 12)]] if symbolic else []
    )
    node = node_of(graph, "attention")
    wanted = {"scale": 0.5, "softcap": None, "kv_groups": 1, **attrs, **({"mask": "causal"} if causal else {})}
    assert {name: node.attrs[name] for name in wanted} == wanted
    assert "softmax" not in ops(graph)
    assert "broadcast" not in ops(graph)


def test_masks_of_attention(tf: Any, keras: Any) -> None:
    layer = keras.layers.MultiHeadAttention(3, 4)
    mask = np.random.default_rng(3).random((2, 7, 7)) < 0.5
    mask[1, 3] = False  # a query that sees nothing: Keras gives the mean of the values
    graph = check(lambda x, m: layer(x, x, attention_mask=m), [TOKENS, mask])
    node = node_of(graph, "attention")
    assert (node.attrs["mask"], node.attrs["fully_masked"]) == ("bool", "uniform")
    for fixed, kind, masked in ((mask, "bool", "uniform"), (mask | np.eye(7, dtype=bool), "bool", "nan"), (mask | True, "none", "nan")):
        node = node_of(check(lambda x, fixed=fixed: layer(x, x, attention_mask=fixed), [TOKENS]), "attention")
        assert (node.attrs["mask"], node.attrs["fully_masked"]) == (kind, masked)
    dropping = keras.layers.MultiHeadAttention(3, 4, dropout=0.2)  # takes another way, which gives zeros
    node = node_of(check(lambda x, m: dropping(x, x, attention_mask=m), [TOKENS, mask]), "attention")
    assert (node.attrs["mask"], node.attrs["fully_masked"]) == ("bool", "zero")
    padded = check(lambda x: layer(x, x, key_mask=tf.constant([[True] * 5 + [False] * 2, [True] * 7])), [TOKENS])
    assert node_of(padded, "attention").attrs["mask"] == "bool"


def attend(tf: Any, q: Any, k: Any, v: Any, change: Callable[[Any], Any] = lambda scores: scores) -> Any:
    return tf.matmul(tf.nn.softmax(change(tf.matmul(q, k, transpose_b=True) / tf.sqrt(8.0))), v)


def test_attention_of_plain_products_is_one_node(tf: Any) -> None:
    q, k, v = normal(2, 3, 5, 8), normal(2, 3, 7, 8, seed=1), normal(2, 3, 7, 6, seed=2)
    bias, keep = normal(3, 5, 7, seed=3), np.random.default_rng(4).random((2, 1, 1, 7)) < 0.7
    for attrs, model in (
        ({"mask": "none", "scale": pytest.approx(8**-0.5)}, lambda q, k, v: attend(tf, q, k, v)),
        ({"mask": "additive"}, lambda q, k, v: attend(tf, q, k, v, lambda s: s + bias)),
        ({"mask": "additive"}, lambda q, k, v: attend(tf, q, k, v, lambda s: bias + s)),
        (
            {"mask": "bool", "fully_masked": "uniform"},
            lambda q, k, v: attend(tf, q, k, v, lambda s: tf.where(v[:, :1, None, :, 0] > 0, s, -1e30)),
        ),
        ({"mask": "bool"}, lambda q, k, v: attend(tf, q, k, v, lambda s: tf.where(keep, s, -np.inf))),
        ({"mask": "bool"}, lambda q, k, v: attend(tf, q, k, v, lambda s: tf.where(~keep, -1e9, s))),
        ({"softcap": pytest.approx(2.5)}, lambda q, k, v: attend(tf, q, k, v, lambda s: 2.5 * tf.tanh(s / 2.5))),
        ({"scale": pytest.approx(0.25)}, lambda q, k, v: tf.nn.softmax(tf.einsum("bhtd,bhsd->bhts", 0.5 * q, k / 2)) @ v),
        ({"mask": "none"}, lambda q, k, v: tf.einsum("bhsw,bhts->tbhw", v, tf.nn.softmax(tf.einsum("bhsd,bhtd->bhts", k, q)))),
        ({"mask": "none"}, lambda q, k, v: attend(tf, q[0, 0], k[0, 0], v[0, 0])),
    ):
        graph = check(model, [q, k, v])
        node = node_of(graph, "attention")
        assert {name: node.attrs[name] for name in attrs} == attrs
        assert not {"softmax", "matmul"} & set(ops(graph))


def test_a_scale_known_at_run_time_only_multiplies_the_queries(tf: Any) -> None:
    q = normal(2, 5, 8)
    graph = check(lambda q, s: tf.nn.softmax(tf.matmul(q, q, transpose_b=True) * s) @ q, [q, np.array(0.3, np.float32)])
    assert sorted(ops(graph)) == ["attention", "mul"]


def test_what_is_nearly_attention_stays_as_it_is(tf: Any, keras: Any) -> None:
    q, k, v = normal(2, 5, 8), normal(2, 5, 8, seed=1), normal(2, 5, 5, seed=2)

    def returns_scores(q: Any, k: Any, v: Any) -> Any:
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True))
        return weights @ v, weights

    for model in (
        returns_scores,
        lambda q, k, v: attend(tf, q, k, v, lambda s: tf.where(s > 0, s, -5.0)),  # not hidden
        lambda q, k, v: attend(tf, q, k, v, lambda s: s + v * s),
        lambda q, k, v: attend(tf, q, k, v, lambda s: tf.nn.relu(s)),
        lambda q, k, v: attend(tf, q, k, v, lambda s: s * v),
        lambda q, k, v: tf.nn.softmax(tf.matmul(q, k, transpose_b=True), axis=1) @ v,
        lambda q, k, v: tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v, transpose_a=True),
        lambda q, k, v: tf.einsum("bts,bst->bt", tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v),
    ):
        graph = check(model, [q, k, v])
        assert "attention" not in ops(graph), model
        assert "softmax" in ops(graph)
