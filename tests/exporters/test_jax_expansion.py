"""Primitives written in terms of others: reductions and windows of any function, loops by row, functions applied at positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_jax import to_graph
from tests.exporters.jax_support import check, normal, ops

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

pytestmark = pytest.mark.jax

X, Y, IMAGE = normal(3, 5), normal(3, 5, seed=1), normal(2, 9, 11, 3)
COUNTS = np.array([3, 1, 0], np.int32)
INTS = np.array([[6, 3, 12], [7, 5, 4]], np.int32)
BRANCHES = [jnp.sin, lambda v: v * 2, jnp.zeros_like]


def _window(start: Any, function: Any, size: tuple[int, ...] = (1, 3, 2, 1), padding: Any = "SAME", **options: Any) -> Any:
    return lambda x: lax.reduce_window(x, start, function, size, (1,) * len(size), padding, **options)


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """The larger value and where it stood."""
    first = a[0] >= b[0]
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda x: lax.reduce(x, jnp.float32(3), lax.add, (0,)), (X,), id="reduce from another number"),
        pytest.param(lambda x, s: lax.reduce(x, s, lax.max, (1,)), (X, np.float32(0.3)), id="reduce from a number at run time"),
        pytest.param(lambda x: lax.reduce(x, jnp.float32(-jnp.inf), jnp.logaddexp, (0,)), (X,), id="reduce by a function"),
        pytest.param(
            lambda x: lax.reduce((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), (-jnp.inf, jnp.int32(0)), _pair, (1,)),
            (X,),
            id="reduce pairs",
        ),
        pytest.param(lambda x: lax.reduce(x, jnp.float32(1), lambda a, b: a * b, (1, 2)), (IMAGE[:, :2, :2],), id="reduce two axes"),
        pytest.param(lambda x: jnp.bitwise_and.reduce(x, axis=0), (INTS,), id="and of integers"),
        pytest.param(lambda x: jnp.bitwise_or.reduce(x, axis=1), (INTS,), id="or of integers"),
        pytest.param(lambda x: jnp.bitwise_xor.reduce(x, axis=0), (INTS,), id="xor of integers"),
        pytest.param(_window(0.0, lax.add, window_dilation=(1, 2, 3, 1)), (IMAGE,), id="sum of a dilated window"),
        pytest.param(_window(0.0, lax.add, base_dilation=(1, 2, 2, 1)), (IMAGE,), id="sum over a dilated operand"),
        pytest.param(_window(-jnp.inf, lax.max, base_dilation=(1, 2, 2, 1)), (IMAGE,), id="max over a dilated operand"),
        pytest.param(_window(1.0, lax.mul), (IMAGE,), id="product"),
        pytest.param(_window(2.0, lax.add, (2, 2), "VALID"), (X,), id="window from another number"),
        pytest.param(_window(np.int32(0), lax.add, (3,)), (INTS[0],), id="sum of integers"),
        pytest.param(_window(np.int32(2**31 - 1), lax.min, (3,)), (INTS[0],), id="minimum of integers"),
        pytest.param(_window(False, lax.bitwise_or, (2, 2)), (X > 0.5,), id="any"),
        pytest.param(_window(-jnp.inf, jnp.logaddexp, (2, 3), "VALID"), (X,), id="window of a function"),
        pytest.param(
            lambda x: lax.reduce_window(
                (x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), (-jnp.inf, jnp.int32(0)), _pair, (1, 3), (1, 2), "VALID"
            ),
            (X,),
            id="window of pairs",
        ),
        pytest.param(_window(0.0, lax.add, (2, 2, 2, 2), "VALID"), (IMAGE,), id="window of four axes"),
        pytest.param(jax.vmap(lambda x: lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2 + 1, x)), (np.abs(X),), id="while by row"),
        pytest.param(
            jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda i, c: (c[0] * 1.1 + i, c[1] + 1), (x, 0))), (X, COUNTS), id="fori by row"
        ),
        pytest.param(
            jax.vmap(jax.vmap(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2 + 1, x))), (np.abs(X),), id="while by element"
        ),
        pytest.param(jax.vmap(lambda x, i: lax.switch(i, BRANCHES, x)), (X, np.array([0, 5, -1], np.int32)), id="switch by row"),
        pytest.param(jax.vmap(lambda x, i: lax.cond(i > 0, jnp.sin, jnp.cos, x)), (X, COUNTS), id="cond by row"),
        pytest.param(jax.vmap(lambda x: lax.scan(lambda c, r: (c + r, c * r), 0.0, x)), (X,), id="scan by row"),
        pytest.param(lambda x: lax.map(jnp.sin, x, batch_size=2), (X,), id="map in batches"),
        pytest.param(lambda x: lax.associative_scan(lax.mul, x, axis=1, reverse=True), (X,), id="associative scan"),
        pytest.param(lambda x: jnp.asarray(x).at[np.array([2, 0])].apply(jnp.sin), (X,), id="apply at rows"),
        pytest.param(lambda x: jnp.asarray(x).at[np.array([0, 1]), np.array([4, 9])].apply(jnp.exp), (X,), id="apply at points"),
        pytest.param(lambda x: jnp.asarray(x).at[1:, 2].apply(jnp.square), (X,), id="apply to a slice"),
        pytest.param(
            lambda a, b, g: lax.ragged_dot(a, b, g), (normal(5, 3), normal(2, 3, 4), np.array([1, 3], np.int32)), id="ragged product"
        ),
        pytest.param(lambda x, v: jnp.interp(x, v, v * 2), (X, np.sort(Y[0])), id="interp"),
        pytest.param(lambda x: jnp.histogram(x, bins=4, range=(-2, 2))[0], (X,), id="histogram"),
        pytest.param(lambda x: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])), (X,), id="digitize"),
        pytest.param(lambda x: jnp.einsum("ii->i", x[:, :3]), (X,), id="einsum of a diagonal"),
        pytest.param(lambda x, y: jnp.einsum("ij,kj,lj->ikl", x, y, x), (X, Y), id="einsum of three"),
        pytest.param(lambda x, y: jnp.einsum("...i,...i->...", x, y), (X, Y), id="einsum of rows"),
        pytest.param(lambda x: jnp.einsum("ijk->ki", x), (IMAGE[0],), id="einsum of one"),
        *(
            pytest.param(lambda x, m=method: jax.image.resize(x, (2, 5, 14, 3), m), (IMAGE,), id=f"resize {method}")
            for method in ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
        ),
    ],
)
def test_what_is_written_in_other_primitives(function: Any, inputs: tuple[Any, ...]) -> None:
    check(function, inputs)


def test_a_custom_derivative_is_the_function_itself() -> None:
    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g,))
    assert ops(check(jax.vmap(sine), (X,))) == ["sin"]


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        pytest.param(lambda x, i: x.at[i].apply(jnp.sin), (X, COUNTS), "positions that may repeat", id="apply at run time"),
        pytest.param(lambda x: jnp.asarray(x).at[np.array([1, 1])].apply(jnp.sin), (X,), "positions that may repeat", id="apply twice"),
        pytest.param(_window(1.0, lax.mul, (600,)), (normal(700),), "windows this large", id="a large window"),
        pytest.param(lambda x: lax.reduce_precision(x, 8, 7), (X,), "8 exponent bits and 7 mantissa bits", id="reduce_precision"),
        pytest.param(
            lambda x, w: lax.conv(x, w, (1,) * 4, "SAME"), (normal(1, 2, 3, 3, 3, 3), normal(2, 2, 2, 2, 2, 2)), "4 spatial axes", id="conv"
        ),
        pytest.param(lambda x: jnp.linalg.inv(x), (normal(3, 3),), "linear algebra", id="inverse"),
    ],
)
def test_what_cannot_be_written_otherwise_is_refused(function: Any, inputs: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=reason):
        to_graph(function, inputs, name="t")
