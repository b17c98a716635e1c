from __future__ import annotations

import numpy as np
import pytest

from rml_exec import _native
from rml_exec.runtime.winograd import workspace_floats

# Largest error over the output's rms, sums of up to 9 * 128 products.
BOUNDS = {2: 5e-6, 4: 3e-5}


def _reference(x, w, bias, pads):
    """Float64 convolution of x [n, h, w, ic] with OIHW weights, stride 1."""
    x = np.pad(x.astype(np.float64), ((0, 0), *pads, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,ocij->nhwo", windows, w.astype(np.float64)) + bias


def _data(batch, size, ic, oc):
    rng = np.random.default_rng(ic * 7 + oc)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return np.maximum(draw(batch, *size, ic), 0), draw(oc, ic, 3, 3), draw(oc)


def _winograd(run_step, edge, x, w, bias, pads, *, isa, threads=1, block=5, workers=3):
    batch, height, width, ic = x.shape
    oc = len(w)
    lines, columns = height + sum(pads[0]) - 2, width + sum(pads[1]) - 2
    floats = (edge + 2) ** 2 * _native.packed_b_floats(ic, oc, isa=isa)
    weights = run_step(f"winograd{edge}_weights", [ic, oc], ((floats,), np.float32), [w, None], isa=isa, threads=threads)
    workspaces = np.full((workers, workspace_floats(edge, block, ic, oc)), np.nan, np.float32)
    params = [batch, lines, columns, ic, oc, height, width, pads[0][0], pads[1][0], block, workers, 0, 0, 0, 0]
    operands = [x, weights, bias, np.zeros(ic, np.float32), workspaces, None]
    return run_step(f"winograd{edge}", params, ((batch, lines, columns, oc), np.float32), operands, isa=isa, threads=threads)


SAME, VALID = ((1, 1), (1, 1)), ((0, 0), (0, 0))
CASES = {
    "even": (1, (8, 8), 32, 48, SAME),
    "odd": (1, (7, 13), 48, 32, SAME),
    "valid": (1, (9, 10), 32, 80, VALID),
    "asymmetric": (1, (6, 11), 32, 32, ((0, 2), (2, 1))),
    "one pixel": (1, (1, 1), 32, 32, SAME),
    "batch": (3, (5, 6), 32, 96, SAME),
    "wide pads": (1, (4, 4), 32, 32, ((5, 6), (7, 5))),
    "deep": (1, (14, 14), 128, 144, SAME),
}


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_winograd_is_close_to_the_convolution_in_float64(run_step, isa, edge, case):
    *shape, pads = case
    x, w, bias = _data(*shape)
    expected = _reference(x, w, bias, pads)
    got = _winograd(run_step, edge, x, w, bias, pads, isa=isa)
    assert np.max(np.abs(got - expected)) <= BOUNDS[edge] * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("edge", [2, 4])
def test_winograd_without_bias(run_step, isa, edge):
    x, w, _ = _data(1, (6, 6), 32, 32)
    expected = _reference(x, w, 0, SAME)
    got = _winograd(run_step, edge, x, w, None, SAME, isa=isa)
    assert np.max(np.abs(got - expected)) <= BOUNDS[edge] * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("size", [(7, 9), (25, 31)])  # few tiles, so that threads share panels, and many
def test_winograd_has_the_same_bits_for_any_threads_and_blocks(run_step, isa, edge, size):
    x, w, bias = _data(1, size, 32, 272)
    first = _winograd(run_step, edge, x, w, bias, SAME, isa=isa)
    for threads, block, workers in [(2, 5, 3), (3, 16, 3), (4, 1, 2), (2, 64, 1)]:
        other = _winograd(run_step, edge, x, w, bias, SAME, isa=isa, threads=threads, block=block, workers=workers)
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@pytest.mark.parametrize("edge", [2, 4])
def test_winograd_keeps_a_nan_within_the_tiles_that_read_it(run_step, isa, edge):
    x, w, bias = _data(1, (16, 16), 32, 32)
    clean = _winograd(run_step, edge, x, w, bias, SAME, isa=isa)
    x[0, 5, 6, 3] = np.nan
    got = _winograd(run_step, edge, x, w, bias, SAME, isa=isa)
    assert np.isnan(got[0, 4:7, 5:8]).all()  # the outputs whose windows hold it
    reached = {axis: {tile for tile in range(16 // edge) if tile * edge - 1 <= at <= tile * edge + edge} for axis, at in ((0, 5), (1, 6))}
    for line in range(16):
        for column in range(16):
            if line // edge not in reached[0] or column // edge not in reached[1]:
                np.testing.assert_array_equal(got[0, line, column], clean[0, line, column])


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize(("ic", "oc"), [(32, 16), (48, 80), (16, 64)])
def test_weights_take_a_scale_per_output_channel(run_step, isa, edge, ic, oc):
    rng = np.random.default_rng(ic)
    w, scale = rng.standard_normal((oc, ic, 3, 3), dtype=np.float32), rng.uniform(-2, 2, oc)
    floats = (edge + 2) ** 2 * _native.packed_b_floats(ic, oc, isa=isa)
    arguments = (f"winograd{edge}_weights", [ic, oc], ((floats,), np.float32))
    before = run_step(*arguments, [(w * scale[:, None, None, None]).astype(np.float32), None], isa=isa)
    np.testing.assert_array_equal(run_step(*arguments, [w, scale], isa=isa, threads=2), before)
