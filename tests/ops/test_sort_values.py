"""sort, topk and the running reductions: values, ties and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ops import get_op
from rml_exec.types import TensorType
from tests.ops.operands import run

NAN, INF = np.nan, np.inf
MIXED = np.array([3, NAN, 1, 3, -INF, NAN, INF], np.float32)


def both(op, x, **attrs):
    x = np.asarray(x)
    inferred = get_op(op).infer_types(op, [TensorType.of(x)], attrs)
    results = get_op(op).run_reference([x], attrs)
    assert tuple(TensorType.of(result) for result in results) == inferred
    return results


def sort(x, descending=False, axis=0, stable=True, index_dtype="i64"):
    return both("sort", x, axis=axis, descending=descending, stable=stable, index_dtype=index_dtype)


def topk(x, k, largest=True, axis=0, index_dtype="i64"):
    return both("topk", x, k=k, axis=axis, largest=largest, sorted=True, index_dtype=index_dtype)


def test_nan_sorts_as_the_largest():
    values, indices = sort(MIXED)
    np.testing.assert_array_equal(values, [-INF, 1, 3, 3, INF, NAN, NAN])
    np.testing.assert_array_equal(indices, [4, 2, 0, 3, 6, 1, 5])
    values, indices = sort(MIXED, descending=True)
    np.testing.assert_array_equal(values, [NAN, NAN, INF, 3, 3, 1, -INF])
    np.testing.assert_array_equal(indices, [1, 5, 6, 0, 3, 2, 4])


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(descending):
    _, indices = sort(np.array([0.0, 1, -0.0, 1, 0.0], np.float32), descending)
    np.testing.assert_array_equal(indices, [1, 3, 0, 2, 4] if descending else [0, 2, 4, 1, 3])


def test_integers_at_the_ends_of_their_range():
    x = np.array([127, -128, 0, -128], np.int8)
    np.testing.assert_array_equal(sort(x, descending=True)[1], [0, 2, 1, 3])
    np.testing.assert_array_equal(sort(np.array([200, 3, 255], np.uint8), descending=True)[0], [255, 200, 3])
    np.testing.assert_array_equal(sort(np.array([True, False, True]))[1], [1, 0, 2])


def test_sort_along_an_axis_gives_the_index_type_asked_for():
    x = np.array([[2, 1], [1, 2]], np.float64)
    values, indices = sort(x, axis=1, index_dtype="i32")
    np.testing.assert_array_equal(values, [[1, 2], [1, 2]])
    np.testing.assert_array_equal(indices, [[1, 0], [0, 1]])
    assert indices.dtype == np.int32


def test_topk_prefers_the_lowest_index_and_nan():
    np.testing.assert_array_equal(topk(MIXED, 4)[1], [1, 5, 6, 0])
    np.testing.assert_array_equal(topk(MIXED, 3, largest=False)[1], [4, 2, 0])
    ties = np.zeros(16, np.float32)
    ties[[0, 1, 3, 5, 7, 13]] = 1
    np.testing.assert_array_equal(topk(ties, 5)[1], [0, 1, 3, 5, 7])
    values, indices = topk(MIXED, 0)
    assert values.shape == indices.shape == (0,)


def running(x, kind, exclusive=False, reverse=False, axis=0):
    return run("cumulative", x, kind=kind, axis=axis, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize(
    ("kind", "plain", "exclusive", "backwards"),
    [
        ("sum", [2, 3, 7], [0, 2, 3], [7, 5, 4]),
        ("prod", [2, 2, 8], [1, 2, 2], [8, 4, 4]),
        ("max", [2, 2, 4], [-INF, 2, 2], [4, 4, 4]),
        ("min", [2, 1, 1], [INF, 2, 1], [1, 1, 4]),
    ],
)
def test_running_reductions(kind, plain, exclusive, backwards):
    x = np.array([2.0, 1, 4])
    np.testing.assert_array_equal(running(x, kind), plain)
    np.testing.assert_array_equal(running(x, kind, exclusive=True), exclusive)
    np.testing.assert_array_equal(running(x, kind, reverse=True), backwards)
    np.testing.assert_array_equal(running(x[::-1], kind, True, True), np.asarray(exclusive, float)[::-1])


def test_running_reductions_of_integers_start_at_their_limits_and_wrap():
    x = np.array([100, 100, -3], np.int8)
    np.testing.assert_array_equal(running(x, "sum"), [100, -56, -59])
    np.testing.assert_array_equal(running(x, "max", exclusive=True), [-128, 100, 100])
    np.testing.assert_array_equal(running(x, "min", exclusive=True), [127, 100, 100])


def test_running_logsumexp_does_not_overflow():
    x = np.array([1000.0, 1000.0, -INF])
    np.testing.assert_allclose(running(x, "logsumexp"), 1000 + np.array([0, np.log(2), np.log(2)]))
    np.testing.assert_array_equal(running(x, "logsumexp", exclusive=True)[0], -INF)
    np.testing.assert_array_equal(running(np.array([-INF, -INF]), "logsumexp"), [-INF, -INF])


def test_nan_goes_on_to_the_end():
    x = np.array([1, NAN, 3])
    for kind in ("sum", "prod", "max", "min", "logsumexp"):
        np.testing.assert_array_equal(running(x, kind), [1, NAN, NAN])
        np.testing.assert_array_equal(running(x, kind, reverse=True)[2:], [3])
