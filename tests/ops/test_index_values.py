"""What the ops that read and write at positions from an operand give, out of range too."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.errors import KernelError
from tests.ops.operands import run

NAN = np.nan
LINE = np.array([10, 11, 12, 13, 14], np.float32)
GRID = np.arange(35, dtype=np.float32).reshape(5, 7)


def along(x, indices, axis=0, oob="error", wrap_negative=False, fill_value=None):
    return run("take_along_axis", x, np.asarray(indices), axis=axis, oob=oob, wrap_negative=wrap_negative, fill_value=fill_value)


def gather(x, indices, batch_dims=0, oob="error", wrap_negative=False, fill_value=None):
    return run("gather_nd", x, np.asarray(indices), batch_dims=batch_dims, oob=oob, wrap_negative=wrap_negative, fill_value=fill_value)


def scatter_along(x, indices, updates, axis=0, reduce="none", oob="error", wrap_negative=False):
    attrs = {"axis": axis, "reduce": reduce, "oob": oob, "wrap_negative": wrap_negative}
    return run("scatter_along_axis", x, np.asarray(indices), np.asarray(updates, x.dtype), **attrs)


def scatter(x, indices, updates, reduce="none", oob="error", wrap_negative=False):
    return run("scatter_nd", x, np.asarray(indices), np.asarray(updates, x.dtype), reduce=reduce, oob=oob, wrap_negative=wrap_negative)


def test_take_along_axis_is_that_of_numpy():
    order = np.argsort(-GRID, axis=1)
    np.testing.assert_array_equal(along(GRID, order, 1), np.take_along_axis(GRID, order, 1))
    np.testing.assert_array_equal(along(GRID, order[:, :2], 1), GRID[:, [6, 5]])


def test_indices_smaller_on_other_axes_read_the_first_rows():
    np.testing.assert_array_equal(along(GRID, [[6, 0], [3, 3]], 1), [[6, 0], [10, 10]])
    y = scatter_along(np.zeros_like(GRID), [[6, 0], [3, 3]], [[1, 2], [3, 4]], 1)
    assert y[0, 6] == 1
    assert y[0, 0] == 2
    assert y[1, 3] == 4
    assert np.count_nonzero(y) == 3


@pytest.mark.parametrize(
    ("oob", "wrap_negative", "fill_value", "want"),
    [
        ("clamp", True, None, [14, 14, 10]),
        ("clamp", False, None, [14, 10, 10]),
        ("fill", True, NAN, [NAN, 14, NAN]),
        ("fill", False, -1.0, [-1, -1, -1]),
    ],
)
def test_reads_out_of_range(oob, wrap_negative, fill_value, want):
    indices = [7, -1, -7]
    np.testing.assert_array_equal(along(LINE, indices, 0, oob, wrap_negative, fill_value), want)
    np.testing.assert_array_equal(gather(LINE, [[index] for index in indices], 0, oob, wrap_negative, fill_value), want)


@pytest.mark.parametrize("call", [along, lambda x, i, **attrs: gather(x, np.asarray(i)[:, None], **attrs)], ids=["along", "gather_nd"])
def test_a_read_that_is_an_error_names_the_index(call):
    for index in (7, -1):
        with pytest.raises(KernelError, match=f"indices must be in range for axis 0 of size 5; got {index}"):
            call(LINE, [0, index])
    with pytest.raises(KernelError, match="got -7"):
        call(LINE, [0, -7], wrap_negative=True)


def test_gather_nd_addresses_leading_axes():
    np.testing.assert_array_equal(gather(GRID, [[4, 6], [0, 1]]), [34, 1])
    np.testing.assert_array_equal(gather(GRID, [[4], [0]]), GRID[[4, 0]])
    np.testing.assert_array_equal(gather(GRID, [4, 6]), 34)
    np.testing.assert_array_equal(gather(GRID, np.zeros((2, 0), np.int64)), [GRID, GRID])


def test_gather_nd_with_batch_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(gather(x, [[[2]], [[0]]], 1), [[x[0, 2]], [x[1, 0]]])
    np.testing.assert_array_equal(gather(x, [[2, 3], [0, 1]], 1), [x[0, 2, 3], x[1, 0, 1]])


def test_a_point_with_one_coordinate_out_of_range_is_out_of_range():
    np.testing.assert_array_equal(gather(GRID, [[1, 9], [9, 1], [1, 1]], oob="fill", fill_value=-5.0), [-5, -5, 8])
    np.testing.assert_array_equal(gather(GRID, [[1, 9], [-9, 1]], oob="clamp"), [13, 1])
    got = scatter(np.zeros((2, 2), np.float32), [[0, 9], [9, 0], [1, 1]], [1, 2, 3], oob="drop")
    np.testing.assert_array_equal(got, [[0, 0], [0, 3]])


@pytest.mark.parametrize(
    ("reduce", "want"),
    [("none", [10, 3, 12]), ("add", [10, 11 + 2 + 3, 12]), ("mul", [10, 66, 12]), ("max", [10, 11, 12]), ("min", [10, 2, 12])],
)
def test_scatter_counts_repeated_positions_in_order(reduce, want):
    x = np.array([10, 11, 12], np.float32)
    np.testing.assert_array_equal(scatter_along(x, [1, 1], [2, 3], reduce=reduce), want)
    np.testing.assert_array_equal(scatter(x, [[1], [1]], [2, 3], reduce=reduce), want)
    np.testing.assert_array_equal(x, [10, 11, 12])


def test_scatter_propagates_nan():
    x = np.array([NAN, 1], np.float32)
    for reduce in ("max", "min"):
        np.testing.assert_array_equal(scatter(x, [[0], [1]], [5, NAN], reduce=reduce), [NAN, NAN])


@pytest.mark.parametrize(
    ("oob", "wrap_negative", "want"),
    [("drop", False, [10, 11, 1]), ("drop", True, [10, 11, 2]), ("clamp", False, [4, 11, 3]), ("clamp", True, [4, 11, 3])],
)
def test_writes_out_of_range(oob, wrap_negative, want):
    x, indices, updates = np.array([10, 11, 12], np.float32), [2, -1, 7, -9], [1, 2, 3, 4]
    np.testing.assert_array_equal(scatter_along(x, indices, updates, oob=oob, wrap_negative=wrap_negative), want)
    np.testing.assert_array_equal(scatter(x, np.array(indices)[:, None], updates, oob=oob, wrap_negative=wrap_negative), want)


def test_a_write_that_is_an_error_names_the_index():
    for call in (lambda: scatter_along(LINE, [7], [0]), lambda: scatter(LINE, [[7]], [0])):
        with pytest.raises(KernelError, match="indices must be in range for axis 0 of size 5; got 7"):
            call()


def test_scatter_nd_writes_rows():
    got = scatter(np.zeros((3, 2), np.float32), [[2], [0]], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(got, [[3, 4], [0, 0], [1, 2]])
    np.testing.assert_array_equal(scatter(LINE, np.zeros((2, 0), np.int64), [LINE, LINE], "add"), 3 * LINE)


@pytest.mark.parametrize(("start", "first"), [(0, 0), (2, 2), (4, 2), (-3, 0), (2**40, 2)])
def test_a_dynamic_window_is_moved_into_range(start, first):
    np.testing.assert_array_equal(run("dynamic_slice", LINE, np.array([start]), sizes=(3,)), LINE[first : first + 3])
    want = LINE.copy()
    want[first : first + 3] = [1, 2, 3]
    np.testing.assert_array_equal(run("dynamic_update_slice", LINE, np.array([1, 2, 3], np.float32), np.array([start])), want)


def test_dynamic_slice_of_several_axes():
    np.testing.assert_array_equal(run("dynamic_slice", GRID, np.array([3, 1], np.int32), sizes=(1, 4)), GRID[3:4, 1:5])
    assert run("dynamic_slice", GRID, np.array([9, 9]), sizes=(0, 7)).shape == (0, 7)
