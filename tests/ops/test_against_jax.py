"""Indices out of range, sorting, resampling and running reductions against JAX."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ops import get_op
from tests.ops.operands import run

pytestmark = pytest.mark.jax

RANDOM = np.random.default_rng(13)
GRID = RANDOM.normal(size=(5, 7)).astype(np.float32)


def same(got, want, rtol=1e-6):
    np.testing.assert_allclose(got, np.asarray(want), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("mode", "attrs"), [("clip", {"oob": "clamp", "fill_value": None}), ("fill", {"oob": "fill", "fill_value": np.nan})]
)
def test_reads_out_of_range(mode, attrs):
    import jax.numpy as jnp

    indices = np.array([[0, 6, 7, -1, -7, -8]] * 5, np.int32)
    attrs = {**attrs, "wrap_negative": mode == "fill"}
    if mode == "clip":
        indices = np.maximum(indices, 0)
    same(run("take_along_axis", GRID, indices, axis=1, **attrs), jnp.take_along_axis(GRID, indices, 1, mode=mode))
    same(run("take", GRID, indices[0], axis=1, **attrs), jnp.take(GRID, indices[0], 1, mode=mode))


@pytest.mark.parametrize("reduce", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(("mode", "oob"), [("drop", "drop"), ("clip", "clamp")])
def test_writes_out_of_range(reduce, mode, oob):
    import jax.numpy as jnp

    points = np.array([[0, 6], [4, 7], [5, 0], [2, 2]], np.int32)
    updates = RANDOM.normal(size=4).astype(np.float32)
    method = {"none": "set", "mul": "multiply"}.get(reduce, reduce)
    want = getattr(jnp.asarray(GRID).at[points[:, 0], points[:, 1]], method)(updates, mode=mode)
    same(run("scatter_nd", GRID, points, updates, reduce=reduce, oob=oob, wrap_negative=False), want)


@pytest.mark.parametrize("start", [(0, 0), (4, 6), (2, 100)])
def test_dynamic_windows(start):
    from jax import lax

    at = np.array(start, np.int32)
    same(run("dynamic_slice", GRID, at, sizes=(3, 4)), lax.dynamic_slice(GRID, start, (3, 4)))
    update = np.ones((2, 3), np.float32)
    same(run("dynamic_update_slice", GRID, update, at), lax.dynamic_update_slice(GRID, update, start))


def test_sort_topk_and_running_reductions():
    import jax.numpy as jnp
    from jax import lax

    x = RANDOM.integers(0, 5, (4, 33)).astype(np.float32)
    x[1, 3] = np.nan
    attrs = {"axis": 1, "descending": False, "stable": True, "index_dtype": "i32"}
    values, indices = get_op("sort").run_reference([x], attrs)
    np.testing.assert_array_equal(values, jnp.sort(x, 1))
    np.testing.assert_array_equal(indices, jnp.argsort(x, 1))
    best = get_op("topk").run_reference([x], {"k": 9, "axis": 1, "largest": True, "sorted": True, "index_dtype": "i32"})
    for got, want in zip(best, lax.top_k(x, 9), strict=True):
        np.testing.assert_array_equal(got, want)
    for kind in ("sum", "prod", "max", "min", "logsumexp"):
        want = getattr(lax, f"cum{kind}")(GRID, 1, True)
        same(run("cumulative", GRID, kind=kind, axis=1, exclusive=False, reverse=True), want, 1e-5)


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("sizes", [(9, 12), (3, 4), (10, 3)])
def test_resize(method, antialias, sizes):
    from jax import image

    nearest = method == "nearest"
    attrs = {
        "coord": "tf_half_pixel_for_nn" if nearest else "half_pixel",
        "nearest_round": "floor" if nearest else None,
        "cubic_a": -0.5 if method == "cubic" else None,
        "exclude_outside": not nearest,
        "antialias": antialias and not nearest,
        "scales": None,
        "data_layout": "NHWC",
    }
    x = RANDOM.normal(size=(2, 5, 7, 3)).astype(np.float32)
    want = image.resize(x, (2, *sizes, 3), method, antialias=antialias)
    same(run("resize", x, mode=method, sizes=sizes, **attrs), want, 1e-5)


def test_shift_and_bitcast():
    from jax import lax

    a = np.array([-128, 127, -5, -1, 64, 3], np.int8)
    b = np.array([1, 7, 8, -1, 3, 100], np.int8)
    np.testing.assert_array_equal(run("shift", a, b, dir="left", arithmetic=False), lax.shift_left(a, b))
    np.testing.assert_array_equal(run("shift", a, b, dir="right", arithmetic=False), lax.shift_right_logical(a, b))
    np.testing.assert_array_equal(run("shift", a, b, dir="right", arithmetic=True), lax.shift_right_arithmetic(a, b))
    np.testing.assert_array_equal(run("bitcast", GRID, to="i32"), lax.bitcast_convert_type(GRID, np.int32))
