"""Normalisation, softmax, attention and the matrix products: values, and rows where frameworks differ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.operands import run

NAN, INF = np.nan, np.inf
RANDOM = np.random.default_rng(7)


def test_layer_norm_two_pass_and_fast():
    x = RANDOM.normal(3.0, 2.0, (4, 33))
    scale, bias = RANDOM.normal(size=33), RANDOM.normal(size=33)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3) * scale + bias
    for variance in ("two_pass", "fast"):
        np.testing.assert_allclose(run("layer_norm", x, scale, bias, axes=(1,), eps=1e-3, variance=variance), want, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(
            run("layer_norm", x, None, bias, axes=(1,), eps=1e-3, variance=variance), (want - bias) / scale + bias, rtol=1e-10
        )


def test_fast_variance_is_never_negative_but_loses_digits():
    x = np.array([[10000.0, 10000.1, 10000.2]], np.float32)
    fast = run("layer_norm", x, None, None, axes=(1,), eps=1e-6, variance="fast")
    two_pass = run("layer_norm", x, None, None, axes=(1,), eps=1e-6, variance="two_pass")
    assert np.all(np.isfinite(fast))
    np.testing.assert_allclose(two_pass, [[-1.2247, 0, 1.2247]], atol=0.02)
    assert np.max(np.abs(fast - two_pass)) > 0.1


def test_batch_norm_axis():
    x = RANDOM.normal(size=(2, 3, 5))
    scale, bias, mean, variance = RANDOM.uniform(0.5, 2, (4, 3))
    want = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(run("batch_norm", x, scale, bias, mean, variance, eps=1e-5, axis=1), want, rtol=1e-12)
    swapped = run("batch_norm", x.swapaxes(1, 2), scale, bias, mean, variance, eps=1e-5, axis=2)
    np.testing.assert_allclose(swapped.swapaxes(1, 2), want, rtol=1e-12)


@pytest.mark.parametrize(("fully_masked", "row"), [("nan", [NAN, NAN]), ("zero", [0, 0])])
def test_softmax_of_masked_rows(fully_masked, row):
    x = np.array([[-INF, -INF], [-INF, 3], [INF, 3], [NAN, 3], [1000, 1000]], np.float32)
    got = run("softmax", x, axis=1, fully_masked=fully_masked)
    np.testing.assert_array_equal(got, [row, [0, 1], [NAN, NAN], [NAN, NAN], [0.5, 0.5]])


def test_log_softmax_does_not_underflow():
    got = run("log_softmax", np.array([[0.0, -1000.0], [-INF, 2.0]]), axis=1)
    np.testing.assert_array_equal(got, [[0, -1000], [-INF, 0]])
    x = RANDOM.normal(size=(3, 5))
    np.testing.assert_allclose(run("log_softmax", x, axis=0), np.log(run("softmax", x, axis=0, fully_masked="nan")), rtol=1e-12)


PLAIN = {"softcap": None, "kv_groups": 1}


def attention(mask, mask_operand, fully_masked="nan", length=3):
    q, k, v = (np.random.default_rng(seed).normal(size=(2, length, 4)) for seed in range(3))
    y = run("attention", q, k, v, mask_operand, scale=0.5, mask=mask, fully_masked=fully_masked, **PLAIN)
    return q, k, v, y


def test_attention_is_softmax_of_scores_times_v():
    q, k, v, y = attention("none", None)
    for batch in range(2):
        for row in range(3):
            weights = np.exp(0.5 * k[batch] @ q[batch, row])
            np.testing.assert_allclose(y[batch, row], weights / weights.sum() @ v[batch], rtol=1e-12)


def test_causal_is_the_lower_triangle():
    *_, causal = attention("causal", None)
    *_, masked = attention("bool", np.tri(3, dtype=bool))
    *_, added = attention("additive", np.where(np.tri(3, dtype=bool), 0.0, -INF))
    np.testing.assert_array_equal(causal, masked)
    np.testing.assert_allclose(causal, added, rtol=1e-14)


@pytest.mark.parametrize("fully_masked", ["zero", "nan", "uniform"])
@pytest.mark.parametrize("mask", ["bool", "additive"])
def test_fully_masked_rows(mask, fully_masked):
    allowed = np.array([[True, True, False], [False, False, False], [True, True, True]])
    operand = allowed if mask == "bool" else np.where(allowed, 0.0, -INF)
    *_, v, y = attention(mask, operand, fully_masked)
    want = {"zero": np.zeros((2, 4)), "nan": np.full((2, 4), NAN), "uniform": v.mean(1)}[fully_masked]
    np.testing.assert_allclose(y[:, 1], want, rtol=1e-12)
    assert np.all(np.isfinite(y[:, ::2]))


def test_a_masked_key_does_not_matter_even_if_it_is_nan():
    q, k, v = np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 4))
    k[1] = NAN
    y = run("attention", q, k, v, np.array([[True, False]]), scale=1.0, mask="bool", fully_masked="zero", **PLAIN)
    np.testing.assert_array_equal(y, 1)


def test_matmul_transposes_and_broadcasts_batches():
    a, b = RANDOM.normal(size=(2, 1, 3, 4)), RANDOM.normal(size=(5, 6, 4))
    want = np.einsum("aijk,bmk->abjm", a, b)
    np.testing.assert_allclose(run("matmul", a, b, transpose_a=False, transpose_b=True), want, rtol=1e-12)
    np.testing.assert_allclose(run("matmul", a.swapaxes(2, 3), b, transpose_a=True, transpose_b=True), want, rtol=1e-12)
    assert run("matmul", np.array([[100]], np.int8), np.array([[2]], np.int8), transpose_a=False, transpose_b=False)[0, 0] == -56


def test_linear_layouts():
    x, w, bias = RANDOM.normal(size=(2, 3, 4)), RANDOM.normal(size=(5, 4)), RANDOM.normal(size=5)
    want = np.einsum("abi,oi->abo", x, w) + bias
    np.testing.assert_allclose(run("linear", x, w, bias, weight_layout="oi"), want, rtol=1e-12)
    np.testing.assert_allclose(run("linear", x, w.T, bias, weight_layout="io"), want, rtol=1e-12)
    np.testing.assert_array_equal(run("linear", np.zeros((2, 0)), np.zeros((5, 0)), bias, weight_layout="oi"), [bias, bias])
