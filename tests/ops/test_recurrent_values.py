"""LSTM and GRU: one step by hand, the order of the gates, directions and states."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ops import get_op
from tests.ops.operands import run

RANDOM = np.random.default_rng(5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, w, r, bias=None, h0=None, c0=None, direction="forward"):
    return get_op("lstm").run_reference([x, w, r, bias, h0, c0], {"direction": direction})


def gru(x, w, r, bias=None, recurrent_bias=None, h0=None, direction="forward", reset="after"):
    return get_op("gru").run_reference([x, w, r, bias, recurrent_bias, h0], {"direction": direction, "reset": reset})


def operands(gates, time=3, batch=2, features=4, hidden=5):
    return (
        RANDOM.normal(size=(time, batch, features)),
        RANDOM.normal(size=(gates * hidden, features)),
        RANDOM.normal(size=(gates * hidden, hidden)),
        RANDOM.normal(size=gates * hidden),
        RANDOM.normal(size=(batch, hidden)),
    )


def test_gates_of_the_lstm_are_in_the_order_i_f_g_o():
    x, w, r = np.ones((1, 1, 1)), np.zeros((4, 1)), np.zeros((4, 1))
    bias, c0 = np.array([0.3, -0.7, 1.1, 0.2]), np.array([[2.0]])
    y, h, c = lstm(x, w, r, bias, None, c0)
    cell = sigmoid(-0.7) * 2.0 + sigmoid(0.3) * np.tanh(1.1)
    np.testing.assert_allclose(c, [[cell]])
    np.testing.assert_allclose(h, [[sigmoid(0.2) * np.tanh(cell)]])
    np.testing.assert_array_equal(y[0], h)


@pytest.mark.parametrize(("reset", "inner"), [("after", lambda s, h: s * (2.0 * h + 0.4)), ("before", lambda s, h: 2.0 * (s * h) + 0.4)])
def test_gates_of_the_gru_are_in_the_order_r_z_n(reset, inner):
    x, w, r = np.ones((1, 1, 1)), np.zeros((3, 1)), np.array([[0.5], [-0.5], [2.0]])
    bias, recurrent_bias, h0 = np.array([0.3, -0.7, 1.1]), np.array([0.1, 0.2, 0.4]), np.array([[0.8]])
    _, h = gru(x, w, r, bias, recurrent_bias, h0, reset=reset)
    s, z = sigmoid(0.3 + 0.5 * 0.8 + 0.1), sigmoid(-0.7 - 0.5 * 0.8 + 0.2)
    new = np.tanh(1.1 + inner(s, 0.8))
    np.testing.assert_allclose(h, [[(1 - z) * new + z * 0.8]])


def test_absent_states_and_biases_are_zeros():
    x, w, r, bias, state = operands(4)
    zeros = np.zeros_like(state)
    for got, want in zip(lstm(x, w, r, bias), lstm(x, w, r, bias, zeros, zeros), strict=True):
        np.testing.assert_array_equal(got, want)
    x, w, r, bias, state = operands(3)
    for got, want in zip(gru(x, w, r), gru(x, w, r, 0 * bias, 0 * bias, 0 * state), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "layer", [lambda x, direction: lstm(x, *CELL, direction=direction), lambda x, direction: gru(x, *SMALL, direction=direction)]
)
def test_reverse_is_forward_on_the_reversed_sequence(layer):
    x = operands(4)[0]
    y, *states = layer(x, "reverse")
    flipped, *others = layer(x[::-1], "forward")
    np.testing.assert_array_equal(y, flipped[::-1])
    np.testing.assert_array_equal(y[0], states[0])
    for state, other in zip(states, others, strict=True):
        np.testing.assert_array_equal(state, other)


CELL = operands(4)[1:4]
SMALL = operands(3)[1:4]


def test_a_sequence_in_two_parts_is_the_whole():
    x, w, r, bias, state = operands(4, time=5)
    whole, *last = lstm(x, w, r, bias, state, state)
    first, h, c = lstm(x[:2], w, r, bias, state, state)
    second, *ends = lstm(x[2:], w, r, bias, h, c)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-14)
    for end, want in zip(ends, last, strict=True):
        np.testing.assert_allclose(end, want, rtol=1e-14)


def test_no_time_gives_the_initial_states():
    x, w, r, bias, state = operands(4, time=0)
    y, h, c = lstm(x, w, r, bias, state, 2 * state)
    assert y.shape == (0, 2, 5)
    np.testing.assert_array_equal(h, state)
    np.testing.assert_array_equal(c, 2 * state)
    assert not np.shares_memory(h, state)


def test_states_are_new_arrays():
    x, w, r, bias, state = operands(3)
    y, h = gru(x, w, r, bias, None, state)
    assert not np.shares_memory(y, h)


def test_group_norm_and_rms_norm():
    x = RANDOM.normal(2.0, 3.0, (2, 6, 5))
    scale, bias = RANDOM.normal(size=6), RANDOM.normal(size=6)
    parts = x.reshape(2, 3, 10)
    normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-3)
    want = normal.reshape(2, 6, 5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(run("group_norm", x, scale, bias, groups=3, axis=1, eps=1e-3), want, rtol=1e-11)
    last = run("group_norm", x.swapaxes(1, 2), scale, bias, groups=3, axis=2, eps=1e-3)
    np.testing.assert_allclose(last.swapaxes(1, 2), want, rtol=1e-11)
    root = np.sqrt(np.mean(x * x, 2, keepdims=True) + 1e-2)
    np.testing.assert_allclose(run("rms_norm", x, bias[:5], axes=(2,), eps=1e-2), x / root * bias[:5], rtol=1e-12)
    np.testing.assert_array_equal(run("rms_norm", np.zeros((1, 4)), None, axes=(1,), eps=1e-6), 0)
