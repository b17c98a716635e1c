"""Convolution and pooling against plain loops over their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.operands import run

NAN, INF = np.nan, np.inf


def naive_conv2d(x, w, bias, strides, pads, dilations, groups):
    """The formula of the op's doc, one product at a time (NCHW)."""
    outputs, inputs, *window = w.shape
    sizes = [(x.shape[2 + i] + sum(pads[i]) - dilations[i] * (window[i] - 1) - 1) // strides[i] + 1 for i in range(2)]
    y = np.zeros((x.shape[0], outputs, max(0, sizes[0]), max(0, sizes[1])))
    for n, o, row, column in np.ndindex(y.shape):
        total = 0.0 if bias is None else bias[o]
        for i, r, s in itertools.product(range(inputs), range(window[0]), range(window[1])):
            at = (row * strides[0] + r * dilations[0] - pads[0][0], column * strides[1] + s * dilations[1] - pads[1][0])
            if 0 <= at[0] < x.shape[2] and 0 <= at[1] < x.shape[3]:
                total += x[n, o // (outputs // groups) * inputs + i, at[0], at[1]] * w[o, i, r, s]
        y[n, o, row, column] = total
    return y


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_conv2d_is_its_formula_in_both_layouts(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    groups = draw(1, 3)
    inputs, outputs, batch = draw(1, 2), draw(1, 2) * groups, draw(0, 2)
    attrs = {
        "strides": (draw(1, 3), draw(1, 3)),
        "pads": ((draw(0, 2), draw(0, 2)), (draw(0, 2), draw(0, 2))),
        "dilations": (draw(1, 2), draw(1, 3)),
        "groups": groups,
    }
    random = np.random.default_rng(draw(0, 100))
    x = random.normal(size=(batch, inputs * groups, draw(1, 6), draw(1, 6)))
    w = random.normal(size=(outputs, inputs, draw(1, 3), draw(1, 3)))
    bias = random.normal(size=outputs) if data.draw(st.booleans()) else None
    want = naive_conv2d(x, w, bias, **attrs)
    np.testing.assert_allclose(run("conv2d", x, w, bias, **attrs, data_layout="NCHW"), want, rtol=1e-12, atol=1e-12)
    nhwc = run("conv2d", x.transpose(0, 2, 3, 1), w, bias, **attrs, data_layout="NHWC")
    np.testing.assert_allclose(nhwc.transpose(0, 3, 1, 2), want, rtol=1e-12, atol=1e-12)


def naive_pool(x, window, strides, pads, dilations, reduce):
    """Applies ``reduce`` to the list of elements of x that each window sees (channels first, any rank)."""
    rank = len(window)
    counts = [max(0, (x.shape[2 + i] + sum(pads[i]) - dilations[i] * (window[i] - 1) - 1) // strides[i] + 1) for i in range(rank)]
    y = np.zeros((*x.shape[:2], *counts))
    for index in np.ndindex(y.shape):
        seen = []
        for position in np.ndindex(*window):
            at = tuple(index[2 + i] * strides[i] + position[i] * dilations[i] - pads[i][0] for i in range(rank))
            if all(0 <= at[i] < x.shape[2 + i] for i in range(rank)):
                seen.append(x[index[:2] + at])
        y[index] = reduce(seen)
    return y


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pools_are_their_definitions_in_both_layouts(data):
    rank = data.draw(st.integers(1, 3))

    def draw(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(rank))

    window, strides, dilations, pads = draw(1, 3), draw(1, 3), draw(1, 2), tuple(zip(draw(0, 2), draw(0, 2), strict=True))
    x = np.random.default_rng(0).normal(size=(data.draw(st.integers(0, 2)), 2, *draw(1, 5)))
    area, ones = int(np.prod(window)), (1,) * rank
    max_attrs = {"window": window, "strides": strides, "pads": pads, "dilations": dilations, "nan": "propagate"}
    avg_attrs = {"window": window, "strides": strides, "pads": pads}
    runs = [("max_pool", max_attrs, naive_pool(x, window, strides, pads, dilations, lambda seen: max(seen, default=-INF)))]
    for divisor, value, divide in (
        ("window", None, lambda seen: sum(seen) / area),
        ("valid", None, lambda seen: sum(seen) / len(seen) if seen else NAN),
        ("fixed", 7, lambda seen: sum(seen) / 7),
    ):
        want = naive_pool(x, window, strides, pads, ones, divide)
        runs.append(("avg_pool", {**avg_attrs, "divisor": divisor, "divisor_value": value}, want))
    for op, attrs, want in runs:
        np.testing.assert_allclose(run(op, x, **attrs, data_layout="NCHW"), want, rtol=1e-12, atol=1e-13)
        last = run(op, np.moveaxis(x, 1, -1), **attrs, data_layout="NHWC")
        np.testing.assert_allclose(np.moveaxis(last, -1, 1), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("nan", "want"), [("propagate", [NAN, NAN, 3, NAN, NAN, NAN]), ("skip", [1, 2, 3, 3, -INF, -INF])])
def test_max_pool_nan(nan, want):
    x = np.array([[[1, NAN, 2, 3, NAN, NAN, -INF]]], np.float32)
    attrs = {"window": (2,), "strides": (1,), "pads": ((0, 0),), "dilations": (1,), "data_layout": "NCHW"}
    np.testing.assert_array_equal(run("max_pool", x, **attrs, nan=nan)[0, 0], want)


def test_max_pool_never_takes_padding():
    x = np.full((1, 1, 3), -5, np.int8)
    attrs = {"window": (3,), "strides": (1,), "pads": ((1, 1),), "dilations": (1,), "data_layout": "NCHW", "nan": "propagate"}
    np.testing.assert_array_equal(run("max_pool", x, **attrs), x)


def test_count_include_pad_with_ceil_mode_is_pad_then_valid():
    """As avg_pool1d(x, 3, 3, padding=1, ceil_mode=True) of torch, which counts the padding and never the overhang past it."""
    x = np.ones((1, 1, 6), np.float32)
    padded = run("pad", x, mode="constant", low=(0, 0, 1), high=(0, 0, 1), interior=(0, 0, 0), value=0.0)
    attrs = {"window": (3,), "strides": (3,), "pads": ((0, 1),), "data_layout": "NCHW", "divisor": "valid", "divisor_value": None}
    np.testing.assert_allclose(run("avg_pool", padded, **attrs)[0, 0], [2 / 3, 1, 1 / 2])


TURNED = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "groups": 1, "data_layout": "NCHW", "output_padding": (0, 0)}


def spread(x, w, **changed):
    return run("conv2d_transpose", np.asarray(x, float)[None, None], np.asarray(w, float)[None, None], None, **{**TURNED, **changed})[0, 0]


def test_each_element_adds_its_window():
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]]), [[1, 12, 23, 30]])
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]], strides=(1, 2)), [[1, 2, 13, 20, 30]])
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]], dilations=(1, 2)), [[1, 10, 2, 20, 3, 30]])


def test_pads_crop_the_result_and_output_padding_adds_behind():
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]], pads=((0, 0), (1, 0))), [[12, 23, 30]])
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]], pads=((0, 0), (0, 2))), [[1, 12]])
    np.testing.assert_array_equal(spread([[1, 10]], [[1, 2, 3]], output_padding=(0, 2)), [[1, 12, 23, 30, 0, 0]])
    cropped = spread([[1, 10]], [[1, 2, 3]], pads=((0, 0), (1, 1)), output_padding=(0, 1))
    np.testing.assert_array_equal(cropped, [[12, 23, 30]])  # what the crop took away comes back, not a zero
    assert spread([[1]], [[1]], pads=((1, 0), (0, 0))).shape == (0, 1)


def test_transpose_is_the_adjoint_of_conv2d():
    random = np.random.default_rng(4)
    attrs = {"strides": (2, 3), "pads": ((1, 0), (2, 1)), "dilations": (2, 1), "groups": 2}
    x, w = random.normal(size=(2, 4, 9, 11)), random.normal(size=(6, 2, 3, 4))
    for data_layout in ("NCHW", "NHWC"):
        image = x if data_layout == "NCHW" else np.moveaxis(x, 1, 3)
        y = run("conv2d", image, w, None, **attrs, data_layout=data_layout)
        weights = random.normal(size=y.shape)
        back = run("conv2d_transpose", weights, w, None, **attrs, output_padding=(1, 1), data_layout=data_layout)
        assert back.shape == image.shape
        np.testing.assert_allclose(np.sum(back * image), np.sum(weights * y), rtol=1e-12)


def test_conv3d_over_one_slice_is_conv2d():
    random = np.random.default_rng(6)
    x, w, bias = random.normal(size=(2, 4, 9, 11)), random.normal(size=(6, 2, 3, 4)), random.normal(size=6)
    attrs = {"groups": 2, "data_layout": "NCHW"}
    flat = run("conv2d", x, w, bias, strides=(2, 1), pads=((1, 0), (2, 1)), dilations=(1, 2), **attrs)
    deep = {"strides": (1, 2, 1), "pads": ((0, 0), (1, 0), (2, 1)), "dilations": (1, 1, 2)}
    np.testing.assert_allclose(run("conv3d", x[:, :, None], w[:, :, None], bias, **deep, **attrs)[:, :, 0], flat, rtol=1e-12)
    both = np.stack([x, 2 * x], 2)
    summed = run("conv3d", both, np.stack([w, w], 2), None, **{**deep, "strides": (1, 2, 1)}, **attrs)[:, :, 0]
    np.testing.assert_allclose(summed, 3 * (flat - bias[:, None, None]), rtol=1e-9, atol=1e-12)
