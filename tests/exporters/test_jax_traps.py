"""Where frameworks and exporters are known to differ: what JAX gives, by number, and that the graph and the executor give it too.

Numbers in names are those of the list of traps in ``exporters/README.md``. What is not here cannot occur:

- 2, symmetric pads: convolutions and windows have a pair for each axis, here and in JAX.
- 4, a window wholly within padding: JAX rounds no size up; a window over padding alone gives what the reduction starts from.
- 18, writes into views: arrays do not change; a module that writes its state is refused (``test_jax_models.py``).
- 26, softmax over several axes at once: jax.nn.softmax over several axes is written out in primitives and stays so.
- 28, depth to space: JAX has no such operation, models write reshapes and transposes, which are read as they are.
- 30, calls left after freezing, and 31, operators decomposed after all: every call is inlined, and formulas are found in the primitives.
- 32, Flatten of channels last: the layout is never changed, so the order of features is JAX's.
- 34, boxes at the threshold: JAX has no such operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporters.dims import Dim
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_jax import to_graph
from rml_exec import Executor
from rml_exec.runtime.reference import run_reference
from tests.exporters.jax_support import check, normal

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

pytestmark = pytest.mark.jax

NAN, INF = np.nan, np.inf
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
NHWC = ("NHWC", "HWIO", "NHWC")


def f32(*elements: Any) -> np.ndarray:
    return np.array(elements, np.float32)


def i32(*elements: Any) -> np.ndarray:
    return np.array(elements, np.int32)


def line(*elements: float) -> np.ndarray:
    """Returns an image of one row and one channel."""
    return f32(*elements).reshape(1, 1, -1, 1)


def _conv(x: Any, weight: Any, stride: int, padding: Any, **options: Any) -> Any:
    return lax.conv_general_dilated(x, weight.reshape(1, -1, 1, 1), (1, stride), padding, dimension_numbers=NHWC, **options)[0, 0, :, 0]


def _masked(x: Any, hidden: float) -> Any:
    """Attention of one query that may attend to nothing."""
    scores = jnp.where(jnp.zeros((1, 2), bool), x[:1] @ x.T, hidden)
    return jax.nn.softmax(scores) @ x


TEN = f32(10, 20, 30)
Case = tuple[Callable[..., Any], list[np.ndarray], Any]
CASES: dict[str, Case] = {
    "1 SAME at stride 2 pads more at the end": (lambda x: _conv(x, jnp.ones(3), 2, "SAME"), [line(1, 2, 3, 4)], f32(6, 7)),
    "1 a pair of pads for each axis": (lambda x: _conv(x, jnp.ones(2), 1, ((0, 0), (2, 0))), [line(1, 2)], f32(0, 1, 3)),
    "2 max pools pad with -inf": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME"),
        [f32(-3, -1, -2)],
        f32(-1, -1, -1),
    ),
    "3 average pools divide as they are written": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "SAME") / 2,
        [f32([2, 4, 6])],
        f32([3, 5, 3]),
    ),
    "3 average pools that leave padding out": (
        lambda x: (
            lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "SAME")
            / lax.reduce_window(jnp.ones((1, 3)), 0.0, lax.add, (1, 2), (1, 1), "SAME")
        ),
        [f32([2, 4, 6])],
        f32([3, 5, 6]),
    ),
    "5 gelu is the tanh form by default": (jax.nn.gelu, [f32(1, -1)], f32(0.841192, -0.158808)),
    "5 gelu by erf": (lambda x: jax.nn.gelu(x, approximate=False), [f32(1, -1)], f32(0.8413447, -0.1586553)),
    "6 lax.div of integers truncates": (lax.div, [i32(-7, 7), i32(3, -3)], i32(-2, -2)),
    "6 // floors": (lambda a, b: a // b, [i32(-7, 7), i32(3, -3)], i32(-3, -3)),
    "6 lax.rem has the sign of the dividend": (lax.rem, [i32(-7, 7), i32(3, -3)], i32(-1, 1)),
    "6 % has the sign of the divisor": (lambda a, b: a % b, [i32(-7, 7), i32(3, -3)], i32(2, -2)),
    "6 integers by 0 give -1 and leave the dividend": (
        lambda a, b: (lax.div(a, b), lax.rem(a, b)),
        [i32(5, -5), i32(0, 0)],
        (i32(-1, -1), i32(5, -5)),
    ),
    "6 the lowest integer by -1": (lax.div, [i32(INT_MIN), i32(-1)], i32(INT_MIN)),
    "7 eps of layer norm counts where the variance is small": (
        lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
        [f32([0, 1e-3])],
        f32([-0.15617376, 0.15617376]),
    ),
    "8 softmax of nothing but -inf": (jax.nn.softmax, [f32(-INF, -INF)], f32(NAN, NAN)),
    "8 a query masked by -inf": (lambda x: _masked(x, -np.inf), [f32([1, 2], [3, 6])], f32([NAN, NAN])),
    "8 a query masked by a finite number gets the mean": (lambda x: _masked(x, -1e30), [f32([1, 2], [3, 6])], f32([2, 4])),
    "8 jax.nn.dot_product_attention gives the mean": (
        lambda x, m: jax.nn.dot_product_attention(x, x, x, mask=m)[0, :, 0],
        [f32([1, 2], [3, 6]).reshape(1, 2, 1, 2), np.zeros((1, 1, 2, 2), bool)],
        f32([2, 4], [2, 4]),
    ),
    "9 indices of 64 bits are of 32": (lambda x, i: x[i], [TEN, np.array([2, 0])], f32(30, 10)),
    "10 x[i] clamps": (lambda x, i: x[i], [TEN, i32(7, -1, -7)], f32(30, 30, 10)),
    "10 jnp.take fills": (jnp.take, [TEN, i32(7, -1, -7)], f32(NAN, 30, NAN)),
    "10 jnp.take of integers fills with the lowest": (jnp.take, [i32(1, 2, 3), i32(7)], i32(INT_MIN)),
    "10 writes out of range are dropped": (lambda x, i: x.at[i].set(1), [TEN, i32(7, 1)], f32(10, 1, 30)),
    "10 writes at negative positions count from the end": (lambda x, i: x.at[i].add(1), [TEN, i32(-1, -7)], f32(10, 20, 31)),
    "10 dynamic_slice clamps its start": (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), [TEN, np.int32(4)], f32(20, 30)),
    "10 dynamic_update_slice clamps its start": (
        lambda x, i: lax.dynamic_update_slice(x, f32(1, 2), (i,)),
        [TEN, np.int32(4)],
        f32(10, 1, 2),
    ),
    "10 one_hot out of range is 0": (lambda i: jax.nn.one_hot(i, 3), [i32(7, -1)], f32([0, 0, 0], [0, 0, 0])),
    "10 segments out of range are dropped": (lambda x, i: jax.ops.segment_sum(x, i, 2), [TEN, i32(1, 5, 1)], f32(0, 40)),
    "11 argmax takes the first NaN": (jnp.argmax, [f32(1, NAN, 3, 3, NAN)], np.int32(1)),
    "11 argmax takes the first of equals": (jnp.argmax, [f32(1, 3, 3)], np.int32(1)),
    "12 NaN in max and min": (
        lambda x: (jnp.maximum(x, 0), jnp.minimum(x, 0), x.max(), x.min()),
        [f32(NAN, 1)],
        (f32(NAN, 1), f32(NAN, 0), f32(NAN)[0], f32(NAN)[0]),
    ),
    "12 NaN in relu, relu6 and clip": (
        lambda x: (jax.nn.relu(x), jax.nn.relu6(x), jnp.clip(x, 0, 1)),
        [f32(NAN, 9)],
        (f32(NAN, 9), f32(NAN, 6), f32(NAN, 1)),
    ),
    "12 NaN in pools": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID"), [f32(1, NAN, 2, 3)], f32(NAN, NAN, 3)),
    "12 NaN in running maxima": (lax.cummax, [f32(1, NAN, 2)], f32(1, NAN, NAN)),
    "13 float to int saturates": (lambda x: x.astype(jnp.int32), [f32(3e9, -3e9, NAN, -1.9)], i32(INT_MAX, INT_MIN, 0, -1)),
    "13 float to byte saturates": (lambda x: x.astype(jnp.uint8), [f32(300, -1, 7.9)], np.array([255, 0, 7], np.uint8)),
    "13 int to byte wraps": (lambda x: x.astype(jnp.uint8), [i32(300, -1)], np.array([44, 255], np.uint8)),
    "14 jnp.round to even": (jnp.round, [f32(0.5, 1.5, 2.5, -0.5)], f32(0, 2, 2, -0.0)),
    "14 lax.round away from zero": (lax.round, [f32(0.5, 1.5, 2.5, -0.5)], f32(1, 2, 3, -1)),
    "15 resize takes half pixels": (lambda x: jax.image.resize(x, (4,), "linear"), [f32(0, 4)], f32(0, 1, 3, 4)),
    "15 resize to fewer smooths": (lambda x: jax.image.resize(x, (2,), "linear"), [f32(0, 0, 8, 8)], f32(1.1428572, 6.857143)),
    "15 resize to fewer without": (lambda x: jax.image.resize(x, (2,), "linear", antialias=False), [f32(0, 0, 8, 8)], f32(0, 8)),
    "15 nearest": (lambda x: jax.image.resize(x, (3,), "nearest"), [f32(1, 2, 3, 4, 5)], f32(1, 3, 5)),
    "15 cubic": (lambda x: jax.image.resize(x, (4,), "cubic"), [f32(0, 4)], f32(-0.3529412, 0.8285714, 3.1714287, 4.352941)),
    "17 eps of batch norm": (
        lambda x: (x - f32(0)) * (lax.rsqrt(jnp.asarray(f32(0)) + 1e-3) * f32(1)) + f32(0),
        [f32([1], [2])],
        f32([31.622776], [63.245552]),
    ),
    "21 no elements": (
        lambda x: (x.sum(1), x.reshape(0, 2).T, jnp.concatenate([x, x], 1)),
        [np.zeros((2, 0), np.float32)],
        (f32(0, 0), np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32)),
    ),
    "21 the largest of nothing": (lambda x: lax.reduce(x, -jnp.inf, lax.max, (1,)), [np.zeros((1, 0), np.float32)], f32(-INF)),
    "21 the mean of nothing": (lambda x: x.mean(1), [np.zeros((1, 0), np.float32)], f32(NAN)),
    "22 a Python number takes the array's type": (lambda x: x * 1.5 + 1, [np.array([1], np.float16)], np.array([2.5], np.float16)),
    "22 int and float": (lambda i: i + 1.5, [i32(1)], f32(2.5)),
    "22 a 0-d f32 widens f16": (lambda x: x * jnp.float32(1.5), [np.array([1], np.float16)], f32(1.5)),
    "22 int by int is f32": (lambda i: i / 2, [i32(3)], f32(1.5)),
    "23 not of bool and of integers": (lambda f, i: (~f, ~i), [np.array([True, False]), i32(0, 5)], (np.array([False, True]), i32(-1, -6))),
    "23 sum of bools": (jnp.sum, [np.array([True, True, False])], np.int32(2)),
    "23 sum of bytes": (jnp.sum, [np.array([200, 200], np.uint8)], np.uint32(400)),
    "23 bytes wrap": (lambda x: x + x, [np.array([200], np.uint8)], np.array([144], np.uint8)),
    "25 top_k of equals takes the lowest positions": (lambda x: lax.top_k(x, 3)[1], [f32(1, 2, 2, 1, 2)], i32(1, 2, 4)),
    "25 sorts are stable": (jnp.argsort, [f32(2, 1, 2, 1)], i32(1, 3, 0, 2)),
    "25 NaN comes last in sort": (jnp.sort, [f32(NAN, 1, -INF, INF)], f32(-INF, 1, INF, NAN)),
    "25 NaN is the largest of top_k": (lambda x: lax.top_k(x, 3)[1], [f32(1, NAN, 3, 0, NAN)], i32(1, 4, 2)),
    "27 lax.conv_transpose does not turn the kernel": (
        lambda x: lax.conv_transpose(x, f32(1, 2).reshape(1, 2, 1, 1), (1, 2), "VALID")[0, 0, :, 0],
        [line(1, 3)],
        f32(2, 1, 6, 3),
    ),
    "27 but for transpose_kernel": (
        lambda x: lax.conv_transpose(x, f32(1, 2).reshape(1, 2, 1, 1), (1, 2), "VALID", transpose_kernel=True)[0, 0, :, 0],
        [line(1, 3)],
        f32(1, 2, 3, 6),
    ),
    "27 SAME crops": (
        lambda x: lax.conv_transpose(x, f32(1, 2, 3).reshape(1, 3, 1, 1), (1, 2), "SAME")[0, 0, :, 0],
        [line(1, 1)],
        f32(3, 2, 4, 2),
    ),
    "matrix sign of NaN": (jnp.sign, [f32(NAN, -2)], f32(NAN, -1)),
    "matrix variance divides by n": (lambda x: x.var(0), [f32(1, 3)], np.float32(1)),
    "matrix slope of leaky_relu": (jax.nn.leaky_relu, [f32(-1)], f32(-0.01)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_trap(case: Case) -> None:
    function, inputs, expected = case
    graph = check(function, inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    fed = {value.name: np.asarray(jnp.asarray(array)) for value, array in zip(graph.inputs, inputs, strict=True)}
    runs = {
        "JAX": [np.asarray(leaf) for leaf in jax.tree.leaves(function(*map(jnp.asarray, inputs)))],
        "reference": list(run_reference(graph, fed, precision="f32").values()),
        "executor": list(Executor.create(graph, threads=1).run(fed).values()),
        "executor without fusion": list(Executor.create(graph, threads=1, fuse=False).run(fed).values()),
    }
    for who, got in runs.items():
        assert len(got) == len(wanted), who
        for found, right in zip(got, wanted, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape), who
            np.testing.assert_allclose(
                found, right, 2e-6 if right.dtype.kind == "f" else 0, 1e-6 if right.dtype.kind == "f" else 0, err_msg=who
            )


def test_20_a_batch_of_1_stays_symbolic() -> None:
    graph = to_graph(lambda x: x.reshape(x.shape[0], -1) @ normal(6, 2), [normal(1, 2, 3)], name="t", dims=[Dim("batch", 1, 8)])
    for batch in (1, 2, 7):
        assert Executor.create(graph, threads=1).run([normal(batch, 2, 3)])["y"].shape == (batch, 2)


def test_16_dropout_with_a_live_key_is_refused() -> None:
    def function(x: Any, seed: Any) -> Any:
        return jnp.where(jax.random.bernoulli(jax.random.key(seed), 0.5, x.shape), x * 2, 0)

    with pytest.raises(UnsupportedOperatorsError, match="random number drawn at run time"):
        to_graph(function, [normal(3), np.int32(1)], name="t")


def test_20_a_size_that_decides_is_reported() -> None:
    def function(x: Any) -> Any:
        return jnp.sin(x) if x.shape[0] > 4 else jnp.cos(x)

    with pytest.raises(ExportError, match="must be the same for all sizes"):
        to_graph(function, [normal(2)], name="t", dims=[Dim("batch", 1, 8)])


def test_24_bf16_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="bf16"):
        to_graph(lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32), [normal(3)], name="t")


def test_complex_numbers_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="complex numbers have no element type"):
        to_graph(lambda x: jnp.abs(jnp.fft.rfft(x)), [normal(8)], name="t")


def test_33_the_same_export_gives_the_same_weights_and_nodes() -> None:
    first, second = (to_graph(lambda p, x: jax.nn.gelu(x @ p), [normal(2, 3)], params=normal(3, 4), name="t") for _ in range(2))
    assert first.nodes == second.nodes
    assert [constant.data.tobytes() for constant in first.constants] == [constant.data.tobytes() for constant in second.constants]
