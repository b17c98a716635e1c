"""Activation functions, the inverse and hyperbolic functions, shifts and bit patterns by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.ops.operands import run

NAN, INF = np.nan, np.inf
X = np.array([-INF, -100, -3, -1, -0.0, 0.0, 1e-4, 1, 3, 100, INF, NAN])


def test_hard_functions():
    np.testing.assert_allclose(
        run("hard_sigmoid", X, alpha=0.2, beta=0.5), [0, 0, 0, 0.3, 0.5, 0.5, 0.50002, 0.7, 1, 1, 1, NAN], atol=1e-15
    )
    np.testing.assert_allclose(run("hard_sigmoid", [1.0], alpha=1 / 6, beta=0.5), [2 / 3])
    want = [NAN, 0, 0, -1 / 3, 0, 0, 1e-4 * 3.0001 / 6, 2 / 3, 3, 100, INF, NAN]
    np.testing.assert_allclose(run("hard_swish", X), want)


def test_elu():
    attrs = {"alpha": 1.5, "scale": 2.0, "input_scale": 0.5}
    want = [-3, -3, 3 * math.expm1(-1.5), 3 * math.expm1(-0.5), 0, 0, 2e-4, 2, 6, 200, INF, NAN]
    np.testing.assert_allclose(run("elu", X, **attrs), want)
    tiny = np.float32(-1e-6)
    assert run("elu", tiny, alpha=1.0, scale=1.0, input_scale=1.0) == pytest.approx(-1e-6, rel=1e-6)  # no cancellation


def test_softplus_and_its_threshold():
    want = [0, math.exp(-100), math.log1p(math.exp(-3)), math.log1p(math.exp(-1)), math.log(2), math.log(2)]
    np.testing.assert_allclose(run("softplus", X, beta=1.0, threshold=None)[:6], want)
    np.testing.assert_array_equal(run("softplus", X, beta=1.0, threshold=None)[-3:], [100, INF, NAN])
    x = np.array([0.5, 3.0])
    np.testing.assert_allclose(run("softplus", x, beta=2.0, threshold=1.5), [math.log1p(math.exp(1.0)) / 2, 3.0])
    assert run("softplus", 3.0, beta=2.0, threshold=6.0) > 3.0  # at the threshold: not yet x itself


def test_inverse_functions_outside_their_domain():
    for op in ("asin", "acos"):
        np.testing.assert_array_equal(run(op, [1.5, -1.5, INF, NAN]), [NAN] * 4)
    np.testing.assert_array_equal(run("acosh", [0.5, -2.0, 1.0, INF]), [NAN, NAN, 0, INF])
    np.testing.assert_array_equal(run("atanh", [1.0, -1.0, 1.5, 0.0]), [INF, -INF, NAN, 0])
    np.testing.assert_array_equal(run("log2", [8.0, 0.0, -1.0, 0.125]), [3, -INF, NAN, -3])
    np.testing.assert_allclose(run("asinh", [-1e10, 1e10]), [-math.asinh(1e10), math.asinh(1e10)])
    np.testing.assert_array_equal(run("atan", [INF, -INF]), [math.pi / 2, -math.pi / 2])


def test_atan2_counts_the_sign_of_zero():
    y = np.array([0.0, -0.0, 0.0, -0.0, 1, -1, 1, INF, -INF, NAN])
    x = np.array([0.0, 0.0, -0.0, -0.0, 0, 0, -1, INF, -INF, 1])
    pi = math.pi
    want = [0, 0, pi, -pi, pi / 2, -pi / 2, 3 * pi / 4, pi / 4, -3 * pi / 4, NAN]
    got = run("atan2", y, x)
    np.testing.assert_allclose(got, want)
    assert list(np.signbit(got[:2])) == [False, True]


@pytest.mark.parametrize(
    ("attrs", "want"),
    [
        ({"dir": "left", "arithmetic": False}, [-10, 0, 0, 0, -128]),
        ({"dir": "right", "arithmetic": False}, [125, 0, 0, 1, 0]),
        ({"dir": "right", "arithmetic": True}, [-3, -1, -1, -1, 0]),
    ],
)
def test_shift(attrs, want):
    a = np.array([-5, -5, -5, -128, 1], np.int8)
    b = np.array([1, 8, -1, 7, 7], np.int8)
    np.testing.assert_array_equal(run("shift", a, b, **attrs), want)
    assert run("shift", np.uint8(255), np.uint8(4), dir="right", arithmetic=False) == 15


def test_bitcast_keeps_bits():
    np.testing.assert_array_equal(run("bitcast", np.array([1.0, -0.0], np.float32), to="u32"), [0x3F800000, 0x80000000])
    assert run("bitcast", np.int64(0x7FF0000000000000), to="f64") == INF
    assert run("bitcast", np.uint16(0x3C00), to="f16") == 1
    bits = np.array([0x7FC00001], np.uint32)
    assert run("bitcast", run("bitcast", bits, to="f32"), to="u32") == bits  # a NaN's payload too


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 5)])
@pytest.mark.parametrize("exponent_shape", [(), (1,)])
def test_pow_of_a_half_is_not_the_square_root(shape, exponent_shape):
    for base, want in ((-INF, INF), (-0.0, 0.0), (4.0, 2.0), (-1.0, NAN)):
        got = run("pow", np.full(shape, base, np.float32), np.full(exponent_shape, 0.5, np.float32))
        np.testing.assert_array_equal(got, np.full(np.broadcast_shapes(shape, exponent_shape), want))
        assert not np.any(np.signbit(got)) or np.isnan(want)
    column = run("pow", np.full((3, 2), -INF), np.array([[0.5], [0.5], [2.0]]))
    np.testing.assert_array_equal(column, INF)
