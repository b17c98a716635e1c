"""Reductions, against ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from exporters.errors import UnsupportedOperatorsError
from tests.exporters.from_onnx.onnx_support import check, i64, imported, normal, run

OPS = ("Sum", "Prod", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
X = np.abs(normal(3, 4, 5)) + np.float32(0.1)
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(op: str, keepdims: int) -> None:
    """As an attribute and as an input, negative, absent, empty."""
    name = f"Reduce{op}"
    check(name, [X], keepdims=keepdims, axes=[-1, 0], opset=11)
    check(name, [X], keepdims=keepdims, opset=11)
    check(name, [X, i64(1, -1)], known=[1], keepdims=keepdims, opset=18)
    check(name, [X, i64()], known=[1], keepdims=keepdims, opset=18)
    check(name, [X, i64()], known=[1], keepdims=keepdims, noop_with_empty_axes=1, opset=18)


@pytest.mark.parametrize("op", OPS)
def test_no_elements_give_the_identity(op: str) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    if op == "Mean":
        (y,) = run(imported("ReduceMean", [x, i64(1)], known=[1], opset=18), [x])
        assert y.shape == (2, 1, 3)
        assert np.isnan(y).all()
    else:
        check(f"Reduce{op}", [x, i64(1)], known=[1], opset=18)
    check(f"Reduce{op}", [x, i64(0)], known=[1], opset=18)


@pytest.mark.parametrize("op", OPS)
def test_nan_wins(op: str) -> None:
    check(f"Reduce{op}", [np.array([[1, NAN, 3], [4, 5, 6]], np.float32), i64(1)], known=[1], opset=18)


@pytest.mark.parametrize("op", ["Sum", "Prod", "Mean", "Max", "Min", "L1", "L2", "SumSquare"])
def test_integers(op: str) -> None:
    check(f"Reduce{op}", [np.array([[-7, 2, -3], [4, 5, 6]], np.int32), i64(1)], known=[1], opset=18, peer="ort")


def test_bools() -> None:
    x = np.array([[True, False], [True, True]])
    for op in ("ReduceMax", "ReduceMin"):
        check(op, [x, i64(1)], known=[1], opset=20)


@pytest.mark.parametrize("row", [[-INF, -INF], [INF, 1], [1e4, 1e4], [-1e4, -1e4], [INF, -INF]])
def test_log_sum_exp_neither_overflows_nor_makes_nan(row: list[float]) -> None:
    x = np.array([row], np.float32)
    (y,) = run(imported("ReduceLogSumExp", [x, i64(1)], known=[1], keepdims=0, opset=18), [x])
    np.testing.assert_allclose(y, [np.logaddexp(*np.float64(row))], rtol=1e-6)


def test_unknown_and_wrong_axes_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="axes depends on the inputs"):
        imported("ReduceSum", [X, i64(1)])
    with pytest.raises(UnsupportedOperatorsError, match="out of range"):
        imported("ReduceSum", [X, i64(3)], known=[1])
    with pytest.raises(UnsupportedOperatorsError, match="named twice"):
        imported("ReduceSum", [X, i64(1, -2)], known=[1])
