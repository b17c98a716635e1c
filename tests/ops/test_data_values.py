"""What the ops that move elements give: views, concat, pad, iota and take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rml_exec.errors import KernelError
from tests.ops.operands import run

LINE = np.array([10, 11, 12, 13, 14], np.float32)
GRID = np.arange(35, dtype=np.float32).reshape(5, 7)


def take(indices, oob="error", wrap_negative=False, fill_value=None, x=LINE, axis=0):
    return run("take", x, np.asarray(indices), axis=axis, oob=oob, wrap_negative=wrap_negative, fill_value=fill_value)


def test_views():
    np.testing.assert_array_equal(run("reshape", GRID, shape=(7, 5)), GRID.reshape(7, 5))
    np.testing.assert_array_equal(run("transpose", GRID, perm=(1, 0)), GRID.T)
    np.testing.assert_array_equal(run("broadcast", LINE, shape=(2, 5)), [LINE, LINE])
    np.testing.assert_array_equal(run("slice", GRID, start=(1, 0), limit=(5, 6), strides=(2, 3)), GRID[1:5:2, 0:6:3])
    np.testing.assert_array_equal(run("reverse", GRID, axes=(1,)), GRID[:, ::-1])
    np.testing.assert_array_equal(run("reverse", GRID, axes=(0, 1)), GRID[::-1, ::-1])


def test_transpose_puts_axis_perm_i_at_i():
    assert run("transpose", np.zeros((2, 3, 5)), perm=(2, 0, 1)).shape == (5, 2, 3)


def test_concat_keeps_the_order_of_operands():
    np.testing.assert_array_equal(run("concat", GRID, GRID[:, :0], GRID[:, :2], axis=1), np.hstack([GRID, GRID[:, :2]]))


def test_iota_counts_along_its_axis():
    np.testing.assert_array_equal(run("iota", dtype="i32", shape=(2, 3), axis=1), [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(run("iota", dtype="f32", shape=(2, 3), axis=0), [[0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("attrs", "want"),
    [
        ({"mode": "constant", "low": (2,), "high": (1,), "interior": (0,), "value": 9.0}, [9, 9, 1, 2, 3, 9]),
        ({"mode": "constant", "low": (1,), "high": (0,), "interior": (2,), "value": 0.0}, [0, 1, 0, 0, 2, 0, 0, 3]),
        ({"mode": "constant", "low": (-1,), "high": (2,), "interior": (1,), "value": 0.0}, [0, 2, 0, 3, 0, 0]),
        ({"mode": "constant", "low": (-1,), "high": (-1,), "interior": (0,), "value": 0.0}, [2]),
        ({"mode": "constant", "low": (0,), "high": (0,), "interior": (0,), "value": 0.0}, [1, 2, 3]),
        ({"mode": "reflect", "low": (2,), "high": (1,), "interior": (0,), "value": None}, [3, 2, 1, 2, 3, 2]),
        ({"mode": "reflect", "low": (-1,), "high": (2,), "interior": (0,), "value": None}, [2, 3, 2, 1]),
        ({"mode": "edge", "low": (2,), "high": (3,), "interior": (0,), "value": None}, [1, 1, 1, 2, 3, 3, 3, 3]),
    ],
)
def test_pad(attrs, want):
    x = np.array([1, 2, 3], np.float32)
    x.flags.writeable = False
    np.testing.assert_array_equal(run("pad", x, **attrs), want)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pad_is_that_of_numpy(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge"]))
    widths = [tuple(data.draw(st.integers(0, size - 1 if mode == "reflect" else 4)) for _ in range(2)) for size in shape]
    x = np.arange(np.prod(shape)).reshape(shape)
    low, high = zip(*widths, strict=True)
    got = run("pad", x, mode=mode, low=low, high=high, interior=(0,) * len(shape), value=5.0 if mode == "constant" else None)
    np.testing.assert_array_equal(got, np.pad(x, widths, mode, **({"constant_values": 5} if mode == "constant" else {})))


def test_take_error_names_the_index():
    for index in (7, -1):
        with pytest.raises(KernelError, match=f"^take: indices must be in range for axis 0 of size 5; got {index}"):
            take([0, index])
    with pytest.raises(KernelError, match="got -7"):
        take([-7], wrap_negative=True)


@pytest.mark.parametrize(
    ("oob", "wrap_negative", "fill_value", "want"),
    [
        ("clamp", True, None, [14, 14, 10]),  # jax x[i]
        ("clamp", False, None, [14, 10, 10]),  # tf with jit_compile
        ("fill", True, np.nan, [np.nan, 14, np.nan]),  # jnp.take
        ("fill", False, -1.0, [-1, -1, -1]),
    ],
)
def test_take_out_of_range(oob, wrap_negative, fill_value, want):
    np.testing.assert_array_equal(take([7, -1, -7], oob, wrap_negative, fill_value), want)


def test_take_axis_and_index_shape():
    indices = np.array([[6, 0], [3, 3]], np.int32)
    np.testing.assert_array_equal(take(indices, x=GRID, axis=1), GRID[:, indices])
    np.testing.assert_array_equal(take(np.int64(2), x=GRID), GRID[2])
    np.testing.assert_array_equal(take(-1, x=GRID, axis=1, wrap_negative=True), GRID[:, -1])
    np.testing.assert_array_equal(take([4, 5], "fill", False, -(2.0**31), x=LINE.astype(np.int32)), [14, -(2**31)])
