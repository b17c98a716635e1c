"""Operators that read or write at indices, sort or search, against ONNX's reference implementation and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from exporters.errors import UnsupportedOperatorsError
from rml_exec.errors import KernelError
from tests.exporters.from_onnx.onnx_support import check, i64, imported, normal, run

X = normal(4, 5, 3)
NAN = np.nan


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_wraps_negative_indices(axis: int) -> None:
    check("Gather", [X, i64(0, -1, 2).reshape(3, 1)], axis=axis)
    check("Gather", [X, np.array(-3, np.int32)], axis=axis)
    graph = check("Gather", [X, np.array(-3, np.int32)], known=[1], axis=axis)
    assert [node.op for node in graph.nodes] == ["slice", "reshape"]
    check("Gather", [X, np.zeros((0, 2), np.int64)], axis=axis)


def test_an_index_out_of_range_is_an_error_of_the_run() -> None:
    inputs = [X, i64(4)]
    with pytest.raises(KernelError, match="range"):
        run(imported("Gather", inputs), inputs)


def test_gather_elements_and_nd() -> None:
    check("GatherElements", [X, np.random.default_rng(0).integers(-5, 5, (4, 2, 3))], axis=1, peer="ort")
    check("GatherND", [X, i64(0, -1, 3, 2).reshape(2, 2)], peer="ort")
    check("GatherND", [X, i64(0, -1, 3, 2).reshape(4, 1)], batch_dims=1, peer="ort")


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    indices = np.array([[1, -1, 0], [0, 2, 1]])
    if reduction != "none":
        indices = np.array([[1, -1, 1], [0, 0, 0]])
    check("ScatterElements", [normal(2, 4), indices, normal(2, 3, seed=1)], axis=1, reduction=reduction, peer="ort")
    points = i64(0, 2, 2) if reduction != "none" else i64(0, 2, 3)
    check("ScatterND", [X, points.reshape(3, 1), normal(3, 5, 3, seed=1)], reduction=reduction, peer="ort")


def test_scatter_before_opset_11() -> None:
    check("Scatter", [normal(3, 4), np.array([[1], [0]]), normal(2, 1, seed=1)], axis=1, opset=10, peer="ort")


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("axis", [1, -1])
def test_tensor_scatter(mode: str, batch: int, axis: int) -> None:
    cache, update = normal(batch, 6, 6), normal(*((batch, 2, 6) if axis == 1 else (batch, 6, 2)), seed=1)
    starts = i64(5, 0, 2) if mode == "circular" else i64(4, 0, 2)
    check("TensorScatter", [cache, update, starts[:batch]], mode=mode, axis=axis, opset=24)
    check("TensorScatter", [cache, update], mode=mode, axis=axis, opset=24)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.uint8])
def test_one_hot(axis: int, dtype: type) -> None:
    indices = np.array([[0, 2, 9], [1, 3, 1]] if dtype is np.uint8 else [[0, -1, 9], [-4, 3, -5]], dtype)
    check("OneHot", [indices, np.array(4), np.array([-1, 5], np.int32)], known=[1], axis=axis)


def test_reverse_sequence() -> None:
    check("ReverseSequence", [X, i64(4, 1, 2, 3, 1)], batch_axis=1, time_axis=0)
    check("ReverseSequence", [X, i64(5, 1, 2, 3)], batch_axis=0, time_axis=1)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(op: str, exclusive: int, reverse: int) -> None:
    for x, axis in ((X, -2), (np.arange(1, 7, dtype=np.int32).reshape(2, 3), 0), (normal(2, 0), 1)):
        check(op, [x, np.array(axis)], known=[1], exclusive=exclusive, reverse=reverse, opset=26)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reduction_of_ties(op: str, last: int) -> None:
    x = np.array([[3, 1, 3, 1], [2, 2, 2, 2]], np.float32)
    check(op, [x], axis=-1, keepdims=0, select_last_index=last)
    check(op, [x.astype(np.int32)], axis=0, select_last_index=last)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_reduction_finds_the_first_nan(op: str) -> None:
    check(op, [np.array([[1, NAN, 3, NAN], [NAN, 0, -1, 2]], np.float32)], axis=1)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(largest: int, axis: int) -> None:
    """Among equal elements the lowest index comes first."""
    x = np.array([[1, 3, 3, 0], [3, 3, 1, 2], [5, 0, 0, 2]], np.float32)
    for array in (x, x.astype(np.int64)):
        check("TopK", [array, i64(2)], known=[1], outputs=2, axis=axis, largest=largest, peer="ort", opset=11)
    check("TopK", [x], outputs=2, k=3, axis=axis, opset=9)


def test_top_k_of_none_and_of_too_many() -> None:
    check("TopK", [X, i64(0)], known=[1], outputs=2)
    with pytest.raises(UnsupportedOperatorsError, match="TopK"):
        imported("TopK", [X, i64(4)], known=[1], outputs=2)
    with pytest.raises(UnsupportedOperatorsError, match="k depends on the inputs"):
        imported("TopK", [X, i64(2)], outputs=2)


def test_compress_takes_a_known_condition() -> None:
    condition = np.array([True, False, True])
    check("Compress", [X, condition], known=[1], axis=-2)
    check("Compress", [X, condition], known=[1])
    with pytest.raises(UnsupportedOperatorsError, match="size of its result"):
        imported("Compress", [X, condition], axis=0)


@pytest.mark.parametrize("op", ["NonZero", "Unique"])
def test_an_unknown_number_of_results_is_refused(op: str) -> None:
    x = np.array([[0, 3, 0], [3, 1, 0]], np.float32)
    check(op, [x], known=[0])
    with pytest.raises(UnsupportedOperatorsError, match="size of its result"):
        imported(op, [x])


@pytest.mark.parametrize("attrs", [{}, {"sorted": 0}, {"axis": 0}, {"axis": -1, "sorted": 0}])
def test_unique(attrs: dict[str, Any]) -> None:
    x = np.array([[2, 1, 1], [0, 5, 5], [2, 1, 1]], np.float32)
    check("Unique", [x], known=[0], outputs=4, peer="ort", **attrs)


@pytest.mark.parametrize("centre", [0, 1])
def test_non_max_suppression_of_known_boxes(centre: int) -> None:
    generator = np.random.default_rng(0)
    boxes = generator.uniform(0.1, 1, (2, 12, 4)).astype(np.float32)
    scores = generator.uniform(0, 1, (2, 3, 12)).astype(np.float32)
    known = [i64(4), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    check("NonMaxSuppression", [boxes, scores, *known], known=range(5), center_point_box=centre, peer="ort", opset=11)
    with pytest.raises(UnsupportedOperatorsError, match="size of its result"):
        imported("NonMaxSuppression", [boxes, scores, *known], known=[2, 3, 4])
