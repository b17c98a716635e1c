from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [np.uint8, np.uint16, np.float32, np.float64]


def _copy(run_step, source, view, threads=1):
    """Copies a view (of the array source) into a dense array."""
    item = source.itemsize
    offset = (view.__array_interface__["data"][0] - source.__array_interface__["data"][0]) // item if view.size else 0
    assert offset == 0, "the step has no offset parameter: the place carries it"
    strides = [stride // item for stride in view.strides]
    dense = np.cumprod([1, *view.shape[:0:-1]])[::-1][: view.ndim] if view.ndim else []
    params = [item, view.ndim, *view.shape, *dense, *strides]
    return run_step("copy", params, (view.shape, source.dtype), [source], threads=threads)


def _numbered(shape, dtype):
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (7,), (5, 31), (3, 17, 33), (2, 3, 4, 5), (64, 129)])
def test_copy_of_every_axis_order(run_step, dtype, threads, shape):
    source = _numbered(shape, dtype)
    for order in itertools.permutations(range(len(shape))):
        view = source.transpose(order)
        np.testing.assert_array_equal(_copy(run_step, source, view, threads), view)


@pytest.mark.parametrize("threads", [1, 2])
def test_copy_of_a_large_transposition_is_shared_between_threads(run_step, threads):
    source = _numbered((1, 211, 307), np.float32)
    view = source.transpose(2, 0, 1)
    np.testing.assert_array_equal(_copy(run_step, source, view, threads), view)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_copy_of_slices_and_broadcasts(run_step, data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    source = _numbered(shape, data.draw(st.sampled_from(DTYPES)))
    steps = tuple(slice(0, data.draw(st.integers(0, extent)), data.draw(st.integers(1, 3))) for extent in shape)
    view = source[steps]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (2, *view.shape))
    np.testing.assert_array_equal(_copy(run_step, source, view, data.draw(st.sampled_from([1, 2]))), view)


def test_copy_into_a_strided_destination_leaves_the_rest(run_step):
    source = _numbered((4, 3), np.float32)
    got = run_step("copy", [4, 2, 4, 3, 10, 2, 3, 1], ((4, 10), np.float32), [source])
    np.testing.assert_array_equal(got[:, 0:6:2], source)
    assert np.isnan(got[:, 1:6:2]).all()
    assert np.isnan(got[:, 6:]).all()


def test_copy_backwards(run_step):
    source = _numbered((50,), np.float32)
    got = run_step("copy", [4, 2, 5, 10, 10, 1, 10, 1], ((5, 10), np.float32), [source])
    np.testing.assert_array_equal(got, source.reshape(5, 10))
