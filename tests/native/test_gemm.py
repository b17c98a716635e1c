from __future__ import annotations

import numpy as np
import pytest

from rml_exec import _native

NO_EPILOGUE = (0, 0, 0, 0)

FMA_ISAS = [isa for isa in _native.isa_names() if isa != "baseline"]


def _operands(m, n, k, batch=1):
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return draw(batch, m, k), draw(k, n), draw(n)


def _gemm(run_step, pack, a, b, bias, *, isa, threads=1):
    batch, m, k = a.shape
    n = b.shape[1]
    params = [batch, m, n, k, k, n, m * k, 0, m * n, *NO_EPILOGUE]
    return run_step("gemm", params, ((batch, m, n), np.float32), [a, pack(b, isa), bias, None], isa=isa, threads=threads)


def _assert_close(got, a, b, bias):
    """Within the rounding error that a sum of k products in blocks of 256 can have (two roundings per product without FMA)."""
    k = a.shape[-1]
    exact = a.astype(np.float64) @ b.astype(np.float64) + (0 if bias is None else bias)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + (0 if bias is None else np.abs(bias))
    roundings = 2 * (min(k, 256) + k // 256 + 2)
    assert np.all(np.abs(got - exact) <= roundings * 2.0**-24 * magnitude)


def _edges(tile):
    return sorted({0, 1, tile - 1, tile, tile + 1, 2 * tile + 1})


@pytest.mark.parametrize("threads", [1, 2])
def test_gemm_equals_reference_at_every_tile_edge(run_step, pack, isa, threads):
    info = _native.isa_info(isa)
    for m in [*_edges(info["gemm_mr"]), 49]:
        narrow = [info["lanes"] + extra for extra in (0, 1, info["lanes"] // 2, info["lanes"] // 2 + 1)]
        for n in [*_edges(info["gemm_nr"]), *narrow, *(info["gemm_nr"] + width for width in narrow), 5 * info["gemm_nr"] + 3]:
            for k in (0, 1, 7, 256, 257):
                a, b, bias = _operands(m, n, k)
                _assert_close(_gemm(run_step, pack, a, b, bias, isa=isa, threads=threads), a, b, bias)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1031, 777), (1, 64, 1024), (2, 1031, 600), (131, 257, 521), (409, 130, 64), (49, 512, 1024)])
def test_gemm_equals_reference_for_larger_shapes(run_step, pack, isa, m, n, k):
    a, b, _ = _operands(m, n, k)
    results = [_gemm(run_step, pack, a, b, None, isa=isa, threads=threads) for threads in (1, 2, 3)]
    _assert_close(results[0], a, b, None)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 200, 300), (7, 65, 513), (49, 130, 1000)])
def test_gemm_has_the_same_bits_on_every_fma_isa(run_step, pack, m, n, k):
    a, b, bias = _operands(m, n, k)
    first, *others = [_gemm(run_step, pack, a, b, bias, isa=isa) for isa in FMA_ISAS]
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


def test_gemm_row_of_a_batch_equals_that_row_alone(run_step, pack, isa):
    a, b, bias = _operands(23, 300, 600)
    whole = _gemm(run_step, pack, a, b, bias, isa=isa, threads=2)
    for row in range(23):
        alone = _gemm(run_step, pack, a[:, row : row + 1], b, bias, isa=isa)
        np.testing.assert_array_equal(alone[0, 0].view(np.uint32), whole[0, row].view(np.uint32))


def test_gemm_sums_in_blocks_of_256_seeded_by_the_bias(run_step, pack, isa):
    big = np.float32(2**24)  # ones added to it are lost, sums of 256 of them are not
    for k, expected in ((256, big), (257, big), (258, big + 2), (512, big + 256), (768, big + 512)):
        result = _gemm(run_step, pack, np.ones((1, 1, k), np.float32), np.ones((k, 3), np.float32), np.full(3, big), isa=isa)
        np.testing.assert_array_equal(result, np.full((1, 1, 3), expected, np.float32))


@pytest.mark.parametrize("threads", [1, 2])
def test_gemm_batches_with_one_b_each(run_step, pack, isa, threads):
    batch, m, n, k = 5, 13, 70, 300
    rng = np.random.default_rng(1)
    a = rng.standard_normal((batch, m, k), dtype=np.float32)
    b = rng.standard_normal((batch, k, n), dtype=np.float32)
    packed = np.stack([pack(matrix, isa) for matrix in b])
    params = [batch, m, n, k, k, n, m * k, packed.shape[1], m * n, *NO_EPILOGUE]
    got = run_step("gemm", params, ((batch, m, n), np.float32), [a, packed, None, None], isa=isa, threads=threads)
    for item in range(batch):
        _assert_close(got[item], a[item], b[item], None)


def test_gemm_leaves_the_gaps_between_rows_alone(run_step, pack, isa):
    m, n, k, lda, ldc = 8, 37, 20, 29, 50
    a, b, bias = _operands(m, n, k)
    wide = np.full((m, lda), np.nan, np.float32)
    wide[:, :k] = a[0]
    got = run_step("gemm", [1, m, n, k, lda, ldc, 0, 0, 0, *NO_EPILOGUE], ((m, ldc), np.float32), [wide, pack(b, isa), bias, None], isa=isa)
    _assert_close(got[:, :n], a[0], b, bias)
    assert np.isnan(got[:, n:]).all()


def test_gemm_keeps_nan_and_inf_in_their_rows(run_step, pack, isa):
    a, b, _ = _operands(9, 70, 40)
    a[0, 3, 5], a[0, 7, 0] = np.nan, np.inf
    got = _gemm(run_step, pack, a, b, None, isa=isa)[0]
    assert np.isnan(got[3]).all()
    assert np.isinf(got[7]).all()
    assert np.isfinite(np.delete(got, [3, 7], axis=0)).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_pack_b_step_equals_pack_b(run_step, pack, isa, transposed, threads):
    batch, k, n = 3, 37, 150
    b = np.random.default_rng(2).standard_normal((batch, n, k) if transposed else (batch, k, n), dtype=np.float32)
    strides = (1, k) if transposed else (n, 1)
    floats = _native.packed_b_floats(k, n, isa=isa)
    got = run_step("pack_b", [batch, k, n, k * n, *strides], ((batch, floats), np.float32), [b], isa=isa, threads=threads)
    for item in range(batch):
        np.testing.assert_array_equal(got[item], pack(b[item].T if transposed else b[item], isa))


@pytest.mark.parametrize("outputs", [1, 15, 64, 71])
@pytest.mark.parametrize("taps", [1, 4, 9])
@pytest.mark.parametrize("scaled", [False, True])
def test_pack_b_gathers_taps_and_scales_columns(pack, isa, outputs, taps, scaled):
    depth = 33
    rng = np.random.default_rng(outputs)
    w = rng.standard_normal((outputs, depth, taps), dtype=np.float32)
    scale = rng.uniform(-2, 2, outputs) if scaled else None
    got = np.full(_native.packed_b_floats(taps * depth, outputs, isa=isa), np.nan, np.float32)
    _native.pack_b(got, w, taps * depth, outputs, taps, depth * taps, isa=isa, taps=taps, tap_stride=1, scale=scale)
    product = w if scale is None else (w * scale[:, None, None]).astype(np.float32)
    matrix = np.ascontiguousarray(product.transpose(2, 1, 0)).reshape(taps * depth, outputs)
    np.testing.assert_array_equal(got, pack(matrix, isa))


def test_pack_b_checks_its_buffers():
    b = np.zeros((4, 5), np.float32)
    floats = _native.packed_b_floats(4, 5)
    with pytest.raises(ValueError, match="dst must hold"):
        _native.pack_b(np.zeros(floats - 1, np.float32), b, 4, 5, 5, 1)
    with pytest.raises(ValueError, match="b must hold 100 bytes; got 80"):
        _native.pack_b(np.zeros(999, np.float32), b, 5, 5, 5, 1)
    with pytest.raises(ValueError, match="must not be negative"):
        _native.pack_b(np.zeros(999, np.float32), b, 4, 5, -5, 1)
    with pytest.raises(ValueError, match="k a multiple of taps"):
        _native.pack_b(np.zeros(999, np.float32), b, 4, 5, 5, 1, taps=3)
    with pytest.raises(ValueError, match="scale must hold 40 bytes"):
        _native.pack_b(np.zeros(999, np.float32), b, 4, 5, 5, 1, scale=np.zeros(4))
    with pytest.raises(ValueError, match="b must hold 96 bytes"):
        _native.pack_b(np.zeros(999, np.float32), b, 4, 5, 5, 1, taps=2, tap_stride=14)
