"""Resampling: coordinates, rounding, edges and anti-aliasing by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.operands import run

LINE = np.array([10, 20, 30, 40], np.float64)


def resize(x, size, mode="nearest", coord="half_pixel", scale=None, **changed):
    attrs = {
        "nearest_round": "floor" if mode == "nearest" else None,
        "cubic_a": -0.75 if mode == "cubic" else None,
        "exclude_outside": False,
        "antialias": False,
        "data_layout": "NCHW",
    }
    scales = None if scale is None else (scale,)
    return run("resize", np.asarray(x)[None, None], mode=mode, coord=coord, sizes=(size,), scales=scales, **{**attrs, **changed})[0, 0]


@pytest.mark.parametrize(
    ("coord", "nearest_round", "want"),
    [
        ("asymmetric", "floor", [10, 10, 20, 30, 30, 40]),  # torch nearest: 0 .67 1.33 2 2.67 3.33
        ("asymmetric", "ceil", [10, 20, 30, 30, 40, 40]),
        ("asymmetric", "half_down", [10, 20, 20, 30, 40, 40]),
        ("tf_half_pixel_for_nn", "floor", [10, 20, 20, 30, 40, 40]),  # .33 1 1.67 2.33 3 3.67
        ("align_corners", "half_down", [10, 20, 20, 30, 30, 40]),  # 0 .6 1.2 1.8 2.4 3
        ("half_pixel", "half_down", [10, 10, 20, 30, 30, 40]),  # -.17 .5 1.17 1.83 2.5 3.17
        ("half_pixel", "half_up", [10, 20, 20, 30, 40, 40]),
    ],
)
def test_nearest(coord, nearest_round, want):
    np.testing.assert_array_equal(resize(LINE, 6, coord=coord, nearest_round=nearest_round), want)


def test_whole_positions_are_exact():
    for size in range(1, 40):
        for factor in (2, 3, 7):
            x = np.arange(size)
            np.testing.assert_array_equal(resize(x, size * factor, coord="asymmetric"), np.repeat(x, factor))
            np.testing.assert_array_equal(resize(np.repeat(x, factor), size, coord="asymmetric"), x)


@pytest.mark.parametrize(
    ("coord", "want"),
    [
        ("half_pixel", [10, 12.5, 17.5, 22.5, 27.5, 32.5, 37.5, 40]),
        ("pytorch_half_pixel", [10, 12.5, 17.5, 22.5, 27.5, 32.5, 37.5, 40]),
        ("asymmetric", [10, 15, 20, 25, 30, 35, 40, 40]),
        ("align_corners", 10 + np.arange(8) * 30 / 7),
    ],
)
def test_linear(coord, want):
    np.testing.assert_allclose(resize(LINE, 8, "linear", coord), want)


def test_a_result_of_one_element():
    assert resize(LINE, 1, "linear", "half_pixel") == 25
    assert resize(LINE, 1, "linear", "pytorch_half_pixel") == 10
    assert resize(LINE, 1, "linear", "align_corners") == 10
    np.testing.assert_array_equal(resize([7.0], 3, "cubic", "align_corners"), [7, 7, 7])


def test_given_scales_decide_the_coordinates():
    np.testing.assert_allclose(resize(LINE, 6, "linear", "asymmetric", scale=1.6), 10 + np.minimum(np.arange(6) / 1.6, 3) * 10)
    np.testing.assert_allclose(resize(LINE, 6, "linear", "asymmetric"), 10 + np.minimum(np.arange(6) / 1.5, 3) * 10)


def test_cubic_weights_are_those_of_keys():
    a, t = -0.5, 0.25  # at -0.25: a quarter of the way from element 0 back to the repeated edge
    weights = [a * (t**3 - 2 * t**2 + t), (a + 2) * t**3 - (a + 3) * t**2 + 1, 0, 0]
    s = 1 - t
    weights[2] = (a + 2) * s**3 - (a + 3) * s**2 + 1
    weights[3] = a * (s**3 - 2 * s**2 + s)
    assert sum(weights) == pytest.approx(1)
    inside = weights[0] * 10 + weights[1] * 20 + weights[2] * 30 + weights[3] * 40
    assert resize(LINE, 8, "cubic", cubic_a=a)[3] == pytest.approx(inside)  # at 1.25
    edge = weights[0] * 20 + weights[1] * 10 + (weights[2] + weights[3]) * 10
    assert resize(LINE, 8, "cubic", cubic_a=a)[0] == pytest.approx(edge)
    kept = (weights[0] * 20 + weights[1] * 10) / (weights[0] + weights[1])
    assert resize(LINE, 8, "cubic", cubic_a=a, exclude_outside=True)[0] == pytest.approx(kept)


def test_antialias_widens_the_kernel_when_shrinking_only():
    # Two elements out of four: at 0.5 and 2.5, a triangle two elements wide on either side.
    weights = np.array([0.75, 0.75, 0.25])
    want = np.array([weights @ [10, 20, 30], weights @ [40, 30, 20]]) / weights.sum()
    np.testing.assert_allclose(resize(LINE, 2, "linear", antialias=True, exclude_outside=True), want)
    np.testing.assert_allclose(resize(LINE, 2, "linear"), [15, 35])
    for mode in ("linear", "cubic"):
        np.testing.assert_allclose(resize(LINE, 8, mode, antialias=True), resize(LINE, 8, mode))


def test_axes_and_layouts():
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    attrs = {"mode": "linear", "coord": "half_pixel", "nearest_round": None, "cubic_a": None, "exclude_outside": False}
    attrs |= {"antialias": False, "scales": None, "sizes": (7, 3)}
    y = run("resize", x, data_layout="NCHW", **attrs)
    swapped = run("resize", np.moveaxis(x, 1, 3), data_layout="NHWC", **attrs)
    np.testing.assert_array_equal(np.moveaxis(swapped, 3, 1), y)
    rows = np.stack([resize(x[1, 2, :, column], 7, "linear") for column in range(5)], 1)
    np.testing.assert_allclose(y[1, 2], np.stack([resize(row, 3, "linear") for row in rows]))
