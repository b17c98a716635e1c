"""erf and erfc against the C library's, as far as float64 can tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rml_exec.ops.special import erf, erfc, half_in_single

POINTS = np.concatenate(
    [np.linspace(-30, 30, 60001), np.geomspace(1e-300, 10, 3000), [0.46875, np.nextafter(0.46875, 1), 4.0, np.nextafter(4.0, 5)]]
)


@pytest.mark.parametrize(("ours", "theirs"), [(erf, math.erf), (erfc, math.erfc)], ids=["erf", "erfc"])
def test_relative_error_is_a_few_ulps_everywhere(ours, theirs):
    want = np.array([theirs(x) for x in POINTS])
    normal = np.abs(want) >= np.finfo(np.float64).tiny
    got = ours(POINTS)
    assert np.max(np.abs(got - want)[normal] / np.abs(want)[normal]) < 1.5e-15
    np.testing.assert_allclose(got[~normal], want[~normal], rtol=1e-12, atol=5e-324)


def test_special_values():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300])
    np.testing.assert_array_equal(erf(special), [np.nan, 1, -1, 0, -0.0, 1, -1])
    assert list(np.signbit(erf(np.array([0.0, -0.0])))) == [False, True]
    np.testing.assert_array_equal(erfc(special), [np.nan, 0, 2, 1, 1, 0, 2])


def test_tail_of_erfc_reaches_the_denormals():
    assert 0 < erfc(np.array([27.0]))[0] < np.finfo(np.float64).tiny
    np.testing.assert_array_equal(erfc(np.array([27.5, 40.0])), 0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keeps_dtype_and_shape(shape, dtype):
    x = np.full(shape, 0.75, dtype)
    for function, value in ((erf, math.erf(0.75)), (erfc, math.erfc(0.75))):
        assert function(x).dtype == dtype
        assert function(x).shape == shape
        np.testing.assert_allclose(function(x), np.full(shape, value).astype(dtype), rtol=4e-16)


def test_half_in_single_rounds_once():
    seen = []

    @half_in_single
    def add_three(a, b, *, times):
        seen.append((a.dtype, None if b is None else b.dtype))
        return a * times

    halves = np.array([1.0009765625], np.float16)
    assert add_three(halves, None, times=3).dtype == np.float16
    assert add_three(halves, np.array([1]), times=3)[0] == np.float16(3 * 1.0009765625)
    assert add_three(halves.astype(np.float64), halves.astype(np.float64), times=3).dtype == np.float64
    assert seen == [(np.float32, None), (np.float32, np.int64), (np.float64, np.float64)]
