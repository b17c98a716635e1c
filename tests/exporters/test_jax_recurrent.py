"""Loops that are LSTM or GRU layers become one op, whoever wrote them; any other loop stays one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.from_jax import to_graph
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.jax_support import check, normal, ops

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

pytestmark = pytest.mark.jax

X = normal(2, 5, 3)
RNGS = nnx.Rngs(0)
VIEWS = {"transpose", "reshape", "concat"}


def exported(model: Any, x: np.ndarray) -> Graph:
    model.eval()
    state = nnx.state(model, nnx.Param)
    generator = np.random.default_rng(0)
    nnx.update(model, jax.tree.map(lambda leaf: jnp.asarray(generator.uniform(-0.9, 0.9, leaf.shape), leaf.dtype), state))
    graph = to_graph(model, [x], name="t")
    got = run_reference(graph, {graph.inputs[0].name: x}, precision="f32")
    for found, wanted in zip(got.values(), jax.tree.leaves(model(x)), strict=True):
        np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=2e-6)
    return graph


def rnn(cell: Any, **options: Any) -> Any:
    return nnx.RNN(cell(3, 8, rngs=RNGS), rngs=RNGS, **options)


@pytest.mark.parametrize(
    ("build", "x", "expected"),
    [
        pytest.param(lambda: rnn(nnx.LSTMCell), X, ["lstm"], id="lstm"),
        pytest.param(lambda: rnn(nnx.OptimizedLSTMCell), X, ["lstm"], id="lstm-of-one-product"),
        pytest.param(lambda: rnn(nnx.GRUCell), X, ["gru"], id="gru"),
        pytest.param(lambda: rnn(nnx.GRUCell, return_carry=True), X[:1], ["gru"], id="one-row"),
        pytest.param(lambda: rnn(nnx.LSTMCell, return_carry=True), X[:, :1], ["lstm"], id="one-step"),
        pytest.param(lambda: rnn(nnx.LSTMCell, return_carry=True), X[0], ["lstm"], id="no-batch"),
        pytest.param(lambda: rnn(nnx.GRUCell), normal(2, 3, 5, 3), ["gru"], id="two-batch-axes"),
        pytest.param(lambda: rnn(nnx.LSTMCell, time_major=True, return_carry=True), X, ["lstm"], id="time-major"),
        pytest.param(lambda: rnn(nnx.LSTMCell, reverse=True, return_carry=True), X, ["lstm", "reverse"], id="reversed"),
        pytest.param(lambda: rnn(nnx.GRUCell, reverse=True, keep_order=True, return_carry=True), X, ["gru"], id="reversed-in-order"),
        pytest.param(lambda: nnx.RNN(nnx.LSTMCell(1, 1, rngs=RNGS), rngs=RNGS), X[..., :1], ["lstm"], id="sizes-of-one"),
        pytest.param(
            lambda: nnx.Bidirectional(rnn(nnx.OptimizedLSTMCell), rnn(nnx.GRUCell), rngs=RNGS), X, ["lstm", "gru"], id="bidirectional"
        ),
    ],
)
def test_flax_layers(build: Any, x: np.ndarray, expected: list[str]) -> None:
    graph = exported(build(), x)
    assert [op for op in ops(graph) if op not in VIEWS] == expected
    assert not graph.functions


def test_weights_of_several_gates_are_named_after_what_they_share() -> None:
    graph = exported(rnn(nnx.LSTMCell), X)
    assert {constant.key: constant.type.shape for constant in graph.constants} == {
        "cell.w": (32, 3),
        "cell.r": (32, 8),
        "cell.bias": (32,),
    }


def test_one_cell_used_twice_is_stored_once() -> None:
    class Twice(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.RNN(nnx.OptimizedLSTMCell(8, 8, rngs=RNGS), rngs=RNGS)

        def __call__(self, x: Any) -> Any:
            return self.layer(self.layer(x))

    graph = exported(Twice(), normal(2, 5, 8))
    assert ops(graph).count("lstm") == 2
    assert len({constant.key for constant in graph.constants}) == 3


PARAMS = {"W": normal(12, 4, seed=3), "U": normal(12, 3, seed=4), "b": normal(12, seed=5)}
STEPS, START = normal(6, 2, 4), normal(2, 3, seed=1)


def lstm(kind: str) -> Any:
    """Returns an LSTM, or something that is nearly one."""

    def function(p: Any, x: Any, start: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            h, c = carry
            gates = row @ p["W"].T + h @ p["U"].T + p["b"]
            if kind == "peephole":
                gates = gates + jnp.concatenate([c] * 4, -1) * 0.1
            i, f, o, g = jnp.split(gates, 4, -1)
            forgotten = 1 - jax.nn.sigmoid(i) if kind == "coupled" else jax.nn.sigmoid(f + 1.0 if kind == "forget-bias" else f)
            new = forgotten * c + jax.nn.sigmoid(i) * (jnp.sin(g) if kind == "sine" else jnp.tanh(g))
            new = jnp.clip(new, -1, 1) if kind == "clipped" else new
            out = jax.nn.sigmoid(o) * jnp.tanh(new)
            if kind == "residual":
                out = out + h
            if kind == "layer-norm":
                out = (out - out.mean(-1, keepdims=True)) / jnp.sqrt(out.var(-1, keepdims=True) + 1e-5)
            return (out, new), {"memory": new, "old": h}.get(kind, out)

        return lax.scan(step, (start, start * 2), x, reverse=kind == "reverse")

    return function


@pytest.mark.parametrize("kind", ["plain", "forget-bias", "reverse"])
def test_an_lstm_of_ones_own(kind: str) -> None:
    assert ops(check(lstm(kind), (STEPS, START), params=PARAMS)) == ["mul", "lstm"]


@pytest.mark.parametrize("kind", ["peephole", "coupled", "sine", "clipped", "residual", "layer-norm", "memory", "old"])
def test_nearly_an_lstm_stays_a_scan(kind: str) -> None:
    assert "scan" in ops(check(lstm(kind), (STEPS, START), params=PARAMS))


def test_weights_that_come_at_run_time_stay_in_the_scan() -> None:
    graph = check(lambda x, start, w: lstm("plain")(PARAMS | {"W": w}, x, start), (STEPS, START, PARAMS["W"]))
    assert "scan" in ops(graph)


def test_masked_steps_stay_in_the_scan() -> None:
    def function(p: Any, x: Any, mask: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            x, keep = row
            new = gru_step(p, h, x, "torch")
            return jnp.where(keep, new, h), new

        return lax.scan(step, jnp.zeros((2, 3)), (x, mask))

    assert "scan" in ops(check(function, (STEPS, normal(6, 2, 1) > 0), params=PARAMS))


def gru_step(p: Any, h: Any, x: Any, kind: str) -> Any:
    a, b = jnp.split(x @ p["W"][:9].T + p["b"][:9], 3, -1), jnp.split(h @ p["U"][:9].T, 3, -1)
    r, z = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
    from_h = (r * h) @ p["U"][6:9].T if kind == "reset-before" else r * (b[2] + p["b"][9:])
    n = jnp.tanh(a[2] + from_h)
    match kind:
        case "turned":
            return (1 - z) * h + z * n
        case "difference":
            return n + z * (h - n)
        case "turned-difference":
            return h + z * (n - h)
        case "sum":
            return z * h + z * n
        case "minimal":
            return (1 - r) * h + r * jnp.tanh(a[2] + h)
    return (1 - z) * n + z * h


@pytest.mark.parametrize("kind", ["torch", "reset-before", "turned", "difference", "turned-difference"])
def test_a_gru_of_ones_own(kind: str) -> None:
    graph = check(lambda p, x, h: lax.scan(lambda c, r: (gru_step(p, c, r, kind), None), h, x)[0], (STEPS, START), params=PARAMS)
    assert ops(graph) == ["gru"]
    assert graph.nodes[0].attrs["reset"] == ("before" if kind == "reset-before" else "after")


@pytest.mark.parametrize("kind", ["sum", "minimal"])
def test_nearly_a_gru_stays_a_scan(kind: str) -> None:
    graph = check(lambda p, x, h: lax.scan(lambda c, r: (gru_step(p, c, r, kind), None), h, x)[0], (STEPS, START), params=PARAMS)
    assert ops(graph) == ["scan"]


def vector_lstm(p: Any, x: Any, h: Any) -> Any:
    """A cell for one sequence, weights on the left, as equinox writes it; two results that are the same."""

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(p["W"] @ row + p["U"] @ h + p["b"], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), (h, h)

    return lax.scan(step, (h, jnp.zeros(3)), x)


def test_vectors_and_batches_of_them() -> None:
    assert set(ops(check(vector_lstm, (normal(6, 4), normal(3)), params=PARAMS))) == {"reshape", "lstm"}
    graph = check(jax.vmap(vector_lstm, (None, 0, 0)), (normal(2, 6, 4), normal(2, 3)), params=PARAMS)
    assert set(ops(graph)) == {"transpose", "lstm"}


def test_input_and_state_in_one_product() -> None:
    def function(p: Any, x: Any) -> Any:
        kernel = jnp.concatenate([p["W"].T, p["U"].T])

        def step(carry: Any, row: Any) -> Any:
            h, c = carry
            gates = jnp.concatenate([row, h], -1) @ kernel + p["b"]
            opened = jax.nn.sigmoid(gates[:, :9])
            c = opened[:, 3:6] * c + opened[:, :3] * jnp.tanh(gates[:, 9:])
            h = opened[:, 6:] * jnp.tanh(c)
            return (h, c), h

        return lax.scan(step, (jnp.zeros((2, 3)), jnp.zeros((2, 3))), x)

    assert ops(check(function, (STEPS,), params=PARAMS)) == ["lstm"]
