"""What reductions and argreduce give with NaN, ties, no elements and small integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.operands import run

NAN, INF = np.nan, np.inf
ROWS = np.array([[1, NAN, 3, 3, NAN], [3, 1, 3, 1, 2], [NAN] * 5, [-INF, NAN, -INF, NAN, NAN]], np.float32)


def reduce(x, kind, axes=(-1,), keepdims=False, nan="propagate", empty="identity"):
    x = np.asarray(x)
    return run("reduce", x, kind=kind, axes=tuple(axis % x.ndim for axis in axes), keepdims=keepdims, nan=nan, empty=empty)


def argreduce(kind, tie, nan, x=ROWS, index_dtype="i64"):
    return run("argreduce", x, kind=kind, axis=x.ndim - 1, keepdims=False, tie=tie, nan=nan, index_dtype=index_dtype)


@pytest.mark.parametrize(
    ("kind", "nan", "want"),
    [
        ("max", "propagate", [NAN, 3, NAN, NAN]),
        ("max", "skip", [3, 3, -INF, -INF]),
        ("min", "propagate", [NAN, 1, NAN, NAN]),
        ("min", "skip", [1, 1, INF, -INF]),
        ("sum", "propagate", [NAN, 10, NAN, NAN]),
        ("sum", "skip", [7, 10, 0, -INF]),
        ("prod", "skip", [9, 18, 1, INF]),
        ("mean", "propagate", [NAN, 2, NAN, NAN]),
        ("mean", "skip", [7 / 3, 2, NAN, -INF]),
    ],
)
def test_nan(kind, nan, want):
    np.testing.assert_allclose(reduce(ROWS, kind, nan=nan), want, rtol=1e-6)


@pytest.mark.parametrize(("kind", "want"), [("sum", 0), ("prod", 1), ("max", -INF), ("min", INF), ("mean", NAN)])
def test_over_no_elements_the_identity(kind, want):
    np.testing.assert_array_equal(reduce(np.zeros((2, 0)), kind), [want, want])


def test_over_no_elements_of_integers_and_bool():
    assert reduce(np.zeros(0, np.int32), "max") == -(2**31)
    assert reduce(np.zeros(0, np.uint8), "min") == 255
    assert not reduce(np.zeros(0, bool), "any")
    assert reduce(np.zeros(0, bool), "all")


def test_small_integers_keep_their_type_and_wrap():
    assert reduce(np.array([200, 100], np.uint8), "sum") == 44
    assert reduce(np.array([100, 2], np.int8), "prod") == -56


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_axes_and_keepdims_are_those_of_numpy(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    axes = tuple(axis for axis in range(len(shape)) if data.draw(st.booleans()))
    keepdims = data.draw(st.booleans())
    x = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(reduce(x, "sum", axes, keepdims), np.sum(x, axes, keepdims=keepdims), rtol=1e-12, atol=1e-14)
    if x.size:
        np.testing.assert_array_equal(reduce(x, "max", axes, keepdims), np.max(x, axes, keepdims=keepdims))
        np.testing.assert_allclose(reduce(x, "mean", axes, keepdims), np.mean(x, axes, keepdims=keepdims), rtol=1e-12, atol=1e-14)


def test_f32_sums_of_a_contiguous_axis_are_pairwise():
    x = np.full((1, 1 << 20), 0.1, np.float32)
    assert reduce(x, "mean")[0] == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "tie", "nan", "want"),
    [
        ("max", "first", "first", [1, 0, 0, 1]),  # torch, jax
        ("max", "first", "skip", [2, 0, 0, 0]),  # tf, ONNX Runtime
        ("max", "last", "first", [1, 2, 0, 1]),
        ("max", "last", "skip", [3, 2, 0, 2]),
        ("min", "first", "first", [1, 1, 0, 1]),
        ("min", "first", "skip", [0, 1, 0, 0]),
        ("min", "last", "skip", [0, 3, 0, 2]),
    ],
)
def test_argreduce_nan_and_ties(kind, tie, nan, want):
    assert list(argreduce(kind, tie, nan)) == want
    assert argreduce(kind, tie, nan, index_dtype="i32").dtype == np.int32


def test_argreduce_of_integers_and_of_the_lowest_values():
    assert argreduce("max", "first", "skip", np.array([-128, 127, 127], np.int8)) == 1
    assert argreduce("max", "last", "first", np.array([-INF, -INF])) == 1
    assert argreduce("min", "last", "first", np.array([True, False, True])) == 1
