"""Pools as imported from ONNX, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.exporters.from_onnx.ort_support import matches_ort

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((9,), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ((9,), {"kernel_shape": [2], "auto_pad": "SAME_LOWER", "strides": [2]}),
    ((7, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [3, 3], "ceil_mode": 1}),
    ((7, 8), {"kernel_shape": [3, 3], "dilations": [2, 1], "pads": [1, 1, 1, 1], "strides": [1, 2]}),
    ((7, 8), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((5, 6, 4), {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "pads": [0, 1, 1, 0, 1, 0]}),
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("image", "attrs"), WINDOWS)
@pytest.mark.parametrize("column_major", [0, 1])
def test_max_pool_and_its_places(image: tuple[int, ...], attrs: dict[str, Any], column_major: int) -> None:
    x = np.random.default_rng(0).integers(-4, 4, (2, 3, *image)).astype(np.float32)  # ties
    matches_ort("MaxPool", x, outputs=2, storage_order=column_major, **attrs)


def test_max_pool_of_bytes() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (1, 2, 6, 7)).astype(np.int8)
    matches_ort("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def test_max_pool_skips_nan() -> None:
    x = normal(1, 1, 6)
    x[0, 0, 1] = np.nan
    matches_ort("MaxPool", x, kernel_shape=[2])


@pytest.mark.parametrize(("image", "attrs"), WINDOWS)
@pytest.mark.parametrize("count_padding", [0, 1])
def test_average_pool(image: tuple[int, ...], attrs: dict[str, Any], count_padding: int) -> None:
    matches_ort("AveragePool", normal(2, 3, *image), count_include_pad=count_padding, **attrs)


@pytest.mark.parametrize(("image", "attrs"), WINDOWS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_lp_pool(image: tuple[int, ...], attrs: dict[str, Any], order: int) -> None:
    matches_ort("LpPool", normal(2, 3, *image), p=order, **attrs)


@pytest.mark.parametrize(
    ("op", "attrs"), [("GlobalAveragePool", {}), ("GlobalMaxPool", {}), ("GlobalLpPool", {"p": 1}), ("GlobalLpPool", {"p": 3})]
)
@pytest.mark.parametrize("image", [(5,), (3, 4), (2, 3, 4)])
def test_global_pool(op: str, attrs: dict[str, Any], image: tuple[int, ...]) -> None:
    matches_ort(op, normal(2, 3, *image), at_opset=21, **attrs)
