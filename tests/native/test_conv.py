from __future__ import annotations

import itertools

import numpy as np
import pytest

from rml_exec import _native

NO_EPILOGUE = (0, 0, 0, 0)


def _out_size(size, kernel, stride, pad, dilation):
    return tuple((s + sum(p) - d * (k - 1) - 1) // st + 1 for s, k, st, p, d in zip(size, kernel, stride, pad, dilation, strict=True))


def _offsets(size, channels, kernel, stride, pad, dilation):
    """Returns int32 [pixels, taps]: where the tap of an output pixel lies in [*size, channels], -1 on padding."""
    inside, position = np.ones((1, 1, 1, 1), bool), 0
    for axis, (s, k, st, p, d) in enumerate(zip(size, kernel, stride, pad, dilation, strict=True)):
        out = _out_size(size, kernel, stride, pad, dilation)[axis]
        at = (np.arange(out)[:, None] * st + np.arange(k) * d - p[0]).reshape((out, 1, k, 1) if axis == 0 else (1, out, 1, k))
        inside = inside & (at >= 0) & (at < s)
        position = position * s + at
    table = np.where(inside, position * channels, -1)
    return table.reshape(table.shape[0] * table.shape[1], -1).astype(np.int32)


def _reference(x, w, bias, groups, kernel, stride, pad, dilation):
    """Float64 convolution of x [n, h, w, ic] with w [taps, ic / groups, oc], and the same of magnitudes."""
    n, *size, ic = x.shape
    oc = w.shape[2]
    pixels = np.append(x.reshape(n, -1, ic).astype(np.float64), np.zeros((n, 1, ic)), axis=1)
    windows = pixels[:, _offsets(size, 1, kernel, stride, pad, dilation)]  # the last pixel, all zeros, is padding
    windows = windows.reshape(*windows.shape[:3], groups, ic // groups)
    weights = w.astype(np.float64).reshape(*w.shape[:2], groups, oc // groups)
    y = np.einsum("npkgi,kigo->npgo", windows, weights).reshape(n, -1, oc)
    magnitude = np.einsum("npkgi,kigo->npgo", np.abs(windows), np.abs(weights)).reshape(n, -1, oc)
    return (y, magnitude) if bias is None else (y + bias, magnitude + np.abs(bias))


def _assert_close(got, expected, magnitude, terms):
    assert np.all(np.abs(got - expected) <= 2 * (min(terms, 256) + terms // 256 + 2) * 2.0**-24 * magnitude)


def _data(n, size, ic, taps, per_in, oc):
    rng = np.random.default_rng(taps * 31 + oc)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return draw(n, *size, ic), draw(taps, per_in, oc), draw(oc)


def _conv(run_step, pack, x, w, bias, groups, kernel, stride, pad, dilation, *, isa, threads=1):
    n, height, width, ic = x.shape
    oc, taps = w.shape[2], w.shape[0]
    per_in, per_out = ic // groups, oc // groups
    table = _offsets((height, width), ic, kernel, stride, pad, dilation)
    matrix = w.reshape(taps * per_in, oc)
    packed = np.concatenate([pack(np.ascontiguousarray(matrix[:, g * per_out : (g + 1) * per_out]), isa) for g in range(groups)])
    pixels = len(table)
    params = [n, pixels, taps, per_in, per_out, groups, height * width * ic, oc, pixels * oc, *NO_EPILOGUE]
    operands = [x, packed, bias, table, np.zeros(per_in, np.float32), None]
    return run_step("conv", params, ((n, pixels, oc), np.float32), operands, isa=isa, threads=threads)


CONVS = {
    "3x3": (1, (7, 7), 16, 20, 1, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "batch": (3, (5, 6), 7, 70, 1, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "stride": (1, (9, 11), 5, 33, 1, (3, 3), (2, 2), ((0, 1), (1, 0)), (1, 1)),
    "dilation": (1, (10, 9), 4, 17, 1, (3, 2), (1, 2), ((2, 2), (1, 1)), (2, 3)),
    "groups": (2, (6, 6), 12, 18, 3, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "1x1 stride 2": (1, (8, 8), 40, 24, 1, (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    "first layer": (1, (15, 15), 3, 32, 1, (7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1)),
    "long sums": (1, (4, 4), 100, 8, 1, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "all padding": (1, (2, 2), 3, 5, 1, (2, 2), (3, 3), ((4, 4), (4, 4)), (1, 1)),
}


@pytest.mark.parametrize("case", CONVS.values(), ids=CONVS)
@pytest.mark.parametrize("threads", [1, 2])
def test_conv_equals_reference(run_step, pack, isa, case, threads):
    n, size, ic, oc, groups, *geometry = case
    x, w, bias = _data(n, size, ic, int(np.prod(geometry[0])), ic // groups, oc)
    got = _conv(run_step, pack, x, w, bias, groups, *geometry, isa=isa, threads=threads)
    _assert_close(got, *_reference(x, w, bias, groups, *geometry), w.shape[0] * w.shape[1])


def test_conv_has_the_same_bits_as_im2col_and_gemm_for_any_isa_and_threads(run_step, pack):
    size, ic, oc, geometry = (7, 9), 50, 70, ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w, bias = _data(1, size, ic, 9, ic, oc)
    table = _offsets(size, ic, *geometry)
    rows = np.concatenate([x.reshape(-1), np.zeros(ic, np.float32)])
    columns = rows[np.where(table < 0, x.size, table)[:, :, None] + np.arange(ic)].reshape(len(table), 9 * ic)
    for isa in [isa for isa in _native.isa_names() if isa != "baseline"]:
        params = [1, len(table), oc, 9 * ic, 9 * ic, oc, 0, 0, 0, *NO_EPILOGUE]
        packed = pack(w.reshape(9 * ic, oc), isa)
        expected = run_step("gemm", params, ((1, len(table), oc), np.float32), [columns, packed, bias, None], isa=isa)
        for threads in (1, 2, 3):
            got = _conv(run_step, pack, x, w, bias, 1, *geometry, isa=isa, threads=threads)
            np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def _depthwise(run_step, x, w, bias, kernel, stride, pad, dilation, *, isa, threads=1):
    n, height, width, channels = x.shape
    lines, columns = _out_size((height, width), kernel, stride, pad, dilation)
    params = [n, lines, columns, *kernel, channels, height, width, *stride, pad[0][0], pad[1][0], *dilation, *NO_EPILOGUE]
    operands = [x, w[:, 0], bias, np.zeros(channels, np.float32)]
    return run_step("conv_depthwise", params, ((n, lines * columns, channels), np.float32), operands, isa=isa, threads=threads)


GEOMETRIES = {
    "3x3": ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "3x3 stride 2": ((3, 3), (2, 2), ((0, 1), (0, 1)), (1, 1)),
    "3x3 stride 2 and 1": ((3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1)),
    "3x3 valid": ((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "3x3 wide pads": ((3, 3), (2, 2), ((3, 4), (4, 3)), (1, 1)),
    "3x3 stride 3": ((3, 3), (3, 3), ((1, 1), (1, 1)), (1, 1)),
    "3x3 dilated": ((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)),
    "5x5": ((5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    "1x3": ((1, 3), (1, 1), ((0, 0), (1, 1)), (1, 1)),
    "17x17": ((17, 17), (1, 1), ((8, 8), (8, 8)), (1, 1)),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_depthwise_equals_reference(run_step, isa, geometry, threads):
    sizes = ((7, 9), (8, 17))
    for channels, with_bias, size in itertools.product((1, 16, 50, 96), (True, False), sizes):
        x, w, bias = _data(2, size, channels, int(np.prod(geometry[0])), 1, channels)
        got = _depthwise(run_step, x, w, bias if with_bias else None, *geometry, isa=isa, threads=threads)
        _assert_close(got, *_reference(x, w, bias if with_bias else None, channels, *geometry), len(w))


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_depthwise_has_the_same_bits_on_every_fma_isa_and_thread_count(run_step, geometry):
    x, w, bias = _data(1, (8, 13), 37, int(np.prod(geometry[0])), 1, 37)
    fma = [isa for isa in _native.isa_names() if isa != "baseline"]
    first, *others = [_depthwise(run_step, x, w, bias, *geometry, isa=isa, threads=threads) for isa in fma for threads in (1, 2, 3)]
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 2), (2, 0))], ids=["valid", "same", "uneven"])
def test_depthwise_3x3_tiles_of_every_width(run_step, stride, pads):
    geometry = ((3, 3), (stride, stride), pads, (1, 1))
    fma = [isa for isa in _native.isa_names() if isa != "baseline"]
    for columns, channels in itertools.product(range(1, 17), (16, 27)):  # tiles are 1 to 7 wide
        size = (3 + 4 * stride, (columns - 1) * stride + 3 - sum(pads[1]))
        if size[1] < 1:
            continue
        x, w, bias = _data(2, size, channels, 9, 1, channels)
        exact = _reference(x, w, bias, channels, *geometry)
        for threads in (1, 2):
            results = [_depthwise(run_step, x, w, bias, *geometry, isa=isa, threads=threads) for isa in _native.isa_names()]
            for result in results:
                assert result.shape[1] == columns * len(range(0, size[0] + sum(pads[0]) - 2, stride))
                _assert_close(result, *exact, 9)
            first, *others = [result for isa, result in zip(_native.isa_names(), results, strict=True) if isa in fma]
            for other in others:
                np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))
