"""Every lowering of a JAX primitive against JAX itself, with the values where frameworks differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.exporters.jax_support import check, normal, ops

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from exporters.from_jax.context import TABLE  # noqa: E402
from exporters.from_jax.patterns import recognise  # noqa: E402
from exporters.from_jax.program import Value, flatten  # noqa: E402

pytestmark = pytest.mark.jax

X, Y = normal(3, 5), normal(3, 5, seed=1)
POSITIVE = np.abs(X) + np.float32(0.1)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3e9, -3e9, 300.0, -1.0, 1e-30], np.float32)
INTS = np.array([7, -7, 7, -7, 0, 5, -(2**31), 2**31 - 1, -6], np.int32)
DIVISORS = np.array([3, 3, -3, -3, 5, 0, -1, 2, 3], np.int32)
FLAGS, FLAGS2 = X > 0, Y > 0
IMAGE = normal(2, 9, 11, 6)
INDICES = np.array([[0, 4, -1], [2, 7, -7]], np.int32)

Case = tuple[str, Any, tuple[Any, ...]]


def _unary(name: str, x: np.ndarray = X) -> Case:
    return name, getattr(lax, name), (x,)


def _gather(mode: str) -> Any:
    numbers = lax.GatherDimensionNumbers(offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,))
    return lambda x, i: lax.gather(x, i[:, None], numbers, (3, 1), mode=mode)


def _conv(spec: tuple[str, str, str], strides: Any = (1, 1), padding: Any = "SAME", **options: Any) -> Any:
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=spec, **options)


def _dot(contract: Any, batch: Any = ((), ())) -> Any:
    return lambda a, b: lax.dot_general(a, b, (contract, batch))


NHWC = ("NHWC", "HWIO", "NHWC")
KERNEL = normal(3, 3, 6, 4, seed=2)
COLUMN, PLAIN = normal(5, 4, seed=3), normal(4, 2, 5, 3, seed=4)
CASES: list[Case] = [
    *(
        _unary(name)
        for name in ("abs", "ceil", "cos", "erf", "erfc", "exp", "expm1", "floor", "neg", "sin", "tanh", "logistic", "square", "exp2")
    ),
    *(_unary(name, POSITIVE) for name in ("log", "log1p", "rsqrt", "sqrt")),
    *(
        (f"{name} special", getattr(lax, name), (SPECIAL,))
        for name in ("abs", "ceil", "floor", "sign", "sqrt", "tanh", "logistic", "is_finite")
    ),
    ("not bool", lax.bitwise_not, (FLAGS,)),
    ("not int", lax.bitwise_not, (INTS,)),
    ("sign int", lax.sign, (INTS,)),
    ("neg lowest", lax.neg, (INTS,)),
    ("add", lax.add, (X, Y)),
    ("add scalar", lambda x: x + 2, (X,)),
    ("add column", lambda x, y: x + y[:, :1], (X, Y)),
    ("add row", lambda x, y: x + y[0], (X, Y)),
    ("sub wraps", lambda a, b: a - b, (INTS, DIVISORS)),
    ("mul wraps", lambda a: a * a, (INTS,)),
    ("add_any", jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)), (X,)),
    ("and bool", lambda a, b: a & b, (FLAGS, FLAGS2)),
    ("or int", lambda a, b: a | b, (INTS, DIVISORS)),
    ("xor", lambda a, b: a ^ b, (FLAGS, FLAGS2)),
    *((f"compare {name}", getattr(lax, name), (SPECIAL, SPECIAL[::-1].copy())) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    ("is_nan", jnp.isnan, (SPECIAL,)),
    ("is_inf", jnp.isinf, (SPECIAL,)),
    ("max nan", lax.max, (SPECIAL, SPECIAL[::-1].copy())),
    ("min nan", lax.min, (SPECIAL, SPECIAL[::-1].copy())),
    ("max bool", jnp.maximum, (FLAGS, FLAGS2)),
    ("min bool", jnp.minimum, (FLAGS, FLAGS2)),
    ("max number nan", lambda x: jnp.maximum(x, 1.5), (SPECIAL,)),
    ("max with nan", lambda x: jnp.maximum(x, jnp.nan), (SPECIAL,)),
    ("min int", lambda x: jnp.minimum(x, 3), (INTS,)),
    ("clip", lambda x: jnp.clip(x, 0, 6), (SPECIAL,)),
    ("clamp", lambda x: lax.clamp(-1.0, x, 1.0), (SPECIAL,)),
    ("clamp crossed", lambda x: lax.clamp(jnp.float32(2), x, jnp.float32(-1)), (X,)),
    ("clamp arrays", lax.clamp, (X, Y, X + 1)),
    ("round away", lax.round, (SPECIAL,)),
    ("round even", jnp.round, (SPECIAL,)),
    ("trunc", jnp.trunc, (SPECIAL,)),
    *((f"integer_pow {y}", lambda x, y=y: lax.integer_pow(x, y), (POSITIVE,)) for y in (0, 2, 3, 7, -1, -2)),
    ("integer_pow int", lambda x: x**3, (INTS,)),
    ("pow", lax.pow, (POSITIVE, Y)),
    ("pow special", lax.pow, (SPECIAL, np.full(15, 0.5, np.float32))),
    ("pow by int", lambda x, i: lax.pow(x, i), (POSITIVE, np.arange(-7, 8, dtype=np.int32).reshape(3, 5))),
    ("div", lax.div, (X, Y)),
    ("div by zero", lambda x: x / 0, (SPECIAL,)),
    ("div int", lax.div, (INTS, DIVISORS)),
    ("div int constant", lambda a: lax.div(a, jnp.int32(3)), (INTS,)),
    ("div unsigned", lax.div, (INTS.astype(np.uint32), DIVISORS.astype(np.uint32))),
    ("floor_divide int", lambda a: a // -3, (INTS,)),
    ("floor_divide", lambda a: a // 0.75, (X,)),
    ("rem int", lax.rem, (INTS, DIVISORS)),
    ("rem", lax.rem, (X, Y)),
    ("mod int", lambda a: a % 3, (INTS,)),
    ("mod", lambda a, b: a % b, (X, Y)),
    ("select", jnp.where, (FLAGS, X, Y)),
    ("select scalar predicate", lambda p, x, y: lax.select(p, x, y), (np.bool_(True), X, Y)),
    ("select_n of three", lambda i, x, y: lax.select_n(i, x, y, x * y), (np.arange(-7, 8, dtype=np.int32).reshape(3, 5) % 3, X, Y)),
    ("select_n of one", lambda i, x: lax.select_n(i, x), (FLAGS, X)),
    *((f"cast to {to}", lambda x, to=to: x.astype(to), (SPECIAL,)) for to in ("int32", "uint8", "int8", "uint32", "bool", "float16")),
    ("cast int wraps", lambda x: x.astype(jnp.uint8), (INTS,)),
    ("cast from bool", lambda x: x.astype(jnp.float32), (FLAGS,)),
    ("reduce_precision", lambda x: lax.reduce_precision(x * 2, 8, 23), (X,)),
    ("stop_gradient", lambda x: lax.stop_gradient(x * 2), (X,)),
    ("reshape", lambda x: x.reshape(5, 3), (X,)),
    ("squeeze", lambda x: jnp.squeeze(x[:, :1], 1), (X,)),
    ("transpose", lambda x: x.transpose(2, 0, 3, 1), (IMAGE,)),
    ("broadcast leading", lambda x: jnp.broadcast_to(x, (4, 2, 3, 5)), (X,)),
    ("broadcast trailing", lambda x: lax.broadcast_in_dim(x, (3, 2, 5, 4), (0, 2)), (X,)),
    ("broadcast ones", lambda x: lax.broadcast_in_dim(x[:1], (1, 6, 5), (0, 2)), (X,)),
    ("broadcast scalar", lambda x: jnp.broadcast_to(x, (2, 3)), (np.float32(3),)),
    ("tile", lambda x: jnp.tile(x, (2, 1, 3)), (X,)),
    ("repeat", lambda x: jnp.repeat(x, 3, axis=0), (X,)),
    ("concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), (X, Y)),
    ("stack", lambda x, y: jnp.stack([x, y], 1), (X, Y)),
    ("split", lambda x: jnp.split(x, [1, 4], axis=1), (X,)),
    ("unstack", lambda x: jnp.unstack(x, axis=1), (X,)),
    ("roll", lambda x: jnp.roll(x, 2, axis=1), (X,)),
    ("slice", lambda x: x[1:, ::2], (X,)),
    ("slice to scalar", lambda x: x[1, -1], (X,)),
    ("rev", lambda x: x[::-1, ::-1], (X,)),
    ("pad", lambda x: jnp.pad(x, ((1, 0), (2, 3)), constant_values=7), (X,)),
    ("pad interior and crop", lambda x: lax.pad(x, jnp.float32(-1), ((-1, 2, 1), (1, -2, 0))), (X,)),
    ("pad int", lambda x: lax.pad(x, jnp.int32(-5), ((1, 1, 0),)), (INTS,)),
    ("pad bool", lambda x: lax.pad(x, True, ((1, 1, 0), (0, 0, 0))), (FLAGS,)),
    ("pad reflect", lambda x: jnp.pad(x, ((1, 1), (2, 2)), mode="reflect"), (X,)),
    ("iota", lambda x: x + lax.broadcasted_iota(jnp.float32, (512, 1024), 1), (normal(512, 1024),)),
    ("one_hot", lambda i: jax.nn.one_hot(i, 4), (INTS,)),
    ("dynamic_slice constant", lambda x: lax.dynamic_slice(x, (2, 1), (2, 3)), (X,)),
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 3)), (X, np.int32(9))),
    ("dynamic_slice two", lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), (X, np.int32(-3))),
    ("dynamic index", lambda x, i: x[i], (X, np.int32(-1))),
    ("dynamic index u8", lambda x, i: lax.dynamic_slice(x, (i, i), (1, 2)), (X, np.uint8(1))),
    ("x[i]", lambda x, i: x[i], (normal(5, 4), INDICES)),
    ("x[i] of i8", lambda x, i: x[i], (normal(5, 4), INDICES.astype(np.int8))),
    ("x[:, i]", lambda x, i: x[:, i], (normal(2, 5, 4), INDICES)),
    ("x[i] constant", lambda x: x[:, jnp.array([3, -1, 0])], (normal(2, 5, 4),)),
    ("take", lambda x, i: jnp.take(x, i, axis=1), (normal(2, 5, 4), INDICES)),
    ("take clip", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (normal(5, 4), INDICES)),
    ("take ints", lambda x, i: jnp.take(x, i), (INTS, INDICES * 3)),
    ("take bools", lambda x, i: jnp.take(x, i), (INTS > 0, INDICES * 3)),
    ("take unsigned", lambda x, i: jnp.take(x, i), (INTS.astype(np.uint8), INDICES.astype(np.uint32))),
    *((f"gather {mode}", _gather(mode), (X, np.array([0, 4, 5, -1], np.int32))) for mode in ("fill", "clip", "promise_in_bounds")),
    (
        "gather keeping the axis",
        lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1, 2), (), (1,)), (3, 1), mode="clip"),
        (X, np.array([[1], [9]])),
    ),
    *(
        (f"reduce_{name}", lambda x, name=name: getattr(jnp, name)(x, axis=(0, 2)), (IMAGE,))
        for name in ("sum", "max", "min", "prod", "mean")
    ),
    *((f"reduce_{name} nan", lambda x, name=name: getattr(jnp, name)(x), (SPECIAL,)) for name in ("sum", "max", "min")),
    ("reduce_max of nothing", lambda x: lax.reduce_max_p.bind(x, axes=(1,), out_sharding=None), (np.zeros((2, 0), np.float32),)),
    ("reduce_sum ints", lambda x: jnp.sum(x, dtype=jnp.int32), (INTS,)),
    ("sum of bools", lambda x: jnp.sum(x, axis=0), (FLAGS,)),
    ("any", lambda x: jnp.any(x, axis=1), (FLAGS,)),
    ("all", lambda x: jnp.all(x, axis=0), (FLAGS,)),
    ("argmax nan and ties", lambda x: jnp.argmax(x, axis=1), (np.array([[1, np.nan, 3, 3, np.nan], [3, 1, 3, 0, 2]], np.float32),)),
    ("argmin", lambda x: jnp.argmin(x, axis=0, keepdims=True), (X,)),
    ("argmax u32", lambda x: lax.argmax(x, 0, np.uint32), (X,)),
    ("dot", lambda a, b: a @ b, (X, COLUMN)),
    ("dot constant", lambda a: a @ COLUMN, (X,)),
    ("dot constant turned", lambda a: a @ np.ascontiguousarray(COLUMN.T).T + 1, (X,)),
    ("dot constant left", lambda a: COLUMN.T @ a.T, (X,)),
    ("dot vectors", lambda a, b: a[0] @ b[0], (X, Y)),
    ("dot vector constant", lambda a: a @ COLUMN[:, 0], (X,)),
    ("dot dense general", lambda a: jnp.einsum("bthd,hdo->bto", a, normal(5, 3, 8)), (PLAIN,)),
    ("dot dense general mixed", lambda a: jnp.einsum("bthd,ohd->bto", a, normal(8, 5, 3)), (PLAIN,)),
    ("dot dense general out", lambda a: jnp.einsum("btd,hod->btho", a, normal(2, 3, 5)), (normal(2, 4, 5),)),
    ("dot attention scores", lambda a, b: jnp.einsum("bthd,bshd->bhts", a, b), (PLAIN, PLAIN + 1)),
    ("dot attention values", lambda a, b: jnp.einsum("bhts,bshd->bthd", a, b), (normal(4, 5, 2, 2), PLAIN)),
    ("dot outer", lambda a, b: jnp.einsum("bi,bj->bij", a, b), (X, Y)),
    ("dot two contracted", _dot(((1, 3), (0, 2))), (PLAIN, normal(2, 6, 3, 7))),
    ("dot contracted first", _dot(((0,), (0,))), (X, normal(3, 4))),
    ("dot batch last", _dot(((0,), (1,)), ((2,), (0,))), (normal(3, 2, 4), normal(4, 3, 5))),
    ("dot ints", _dot(((1,), (0,))), (np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(12, dtype=np.int32).reshape(3, 4))),
    (
        "dot i8",
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        (np.full((2, 3), 100, np.int8), np.full((3, 2), 100, np.int8)),
    ),
    ("dot of nothing", lambda a, b: a @ b, (np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))),
    ("conv nhwc", _conv(NHWC), (IMAGE, KERNEL)),
    ("conv strided same", _conv(NHWC, (2, 2)), (normal(1, 8, 8, 6), KERNEL)),
    ("conv nchw", _conv(("NCHW", "OIHW", "NCHW"), (2, 1), ((1, 0), (2, 1))), (IMAGE, normal(4, 9, 3, 2))),
    ("conv odd layouts", _conv(("HWNC", "OHWI", "CNHW")), (IMAGE, normal(4, 3, 3, 6))),
    ("conv dilated", _conv(NHWC, rhs_dilation=(2, 3)), (IMAGE, KERNEL)),
    ("conv grouped", _conv(NHWC, feature_group_count=3), (IMAGE, normal(3, 3, 2, 9))),
    ("conv depthwise", _conv(NHWC, feature_group_count=6), (IMAGE, normal(3, 3, 1, 12))),
    ("conv negative padding", _conv(NHWC, padding=((-1, 2), (-1, -2))), (IMAGE, KERNEL)),
    ("conv constant kernel", lambda x: _conv(NHWC)(x, KERNEL), (IMAGE,)),
    (
        "conv 1-D",
        lambda x, w: lax.conv_general_dilated(x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        (normal(2, 9, 3), normal(4, 3, 5)),
    ),
    ("conv 1-D ncw", lambda x: lax.conv(x, normal(5, 3, 4), (1,), "VALID"), (normal(2, 3, 9),)),
    ("max_pool nan", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME"), (SPECIAL,)),
    ("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    ("max_pool nchw", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 3), "VALID"), (IMAGE,)),
    (
        "max_pool dilated",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", window_dilation=(1, 2, 3, 1)),
        (IMAGE,),
    ),
    ("max_pool first axis", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 1, 1, 3), (1, 1, 1, 1), "VALID"), (IMAGE,)),
    ("max_pool ints", lambda x: lax.reduce_window(x, jnp.int32(-(2**31)), lax.max, (2,), (1,), "SAME"), (INTS,)),
    ("reduce from an array", lambda x: lax.reduce(x, jnp.float32(0), lax.add, (0,)), (X,)),
    ("reduce_window from an array", lambda x: lax.reduce_window(x, jnp.float32(jnp.inf), lax.min, (1, 3), (1, 2), "SAME"), (X,)),
    ("min_pool", lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"), (IMAGE,)),
    ("sum_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    ("pool of one", lambda x: lax.reduce_window(x * 2, 0.0, lax.add, (1, 1), (1, 1), "VALID"), (X,)),
    ("softmax", jax.nn.softmax, (X,)),
    ("log_softmax", lambda x: jax.nn.log_softmax(x, axis=0), (X,)),
    ("gelu", jax.nn.gelu, (X,)),
    ("silu", jax.nn.silu, (X,)),
    ("leaky_relu", jax.nn.leaky_relu, (X,)),
    ("layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), (X,)),
    ("avg_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4, (IMAGE,)),
    ("softplus", jax.nn.softplus, (X,)),
    ("elu", jax.nn.elu, (X,)),
    ("hard_swish", jax.nn.hard_swish, (X,)),
    ("logsumexp", lambda x: jax.nn.logsumexp(x, axis=-1), (X,)),
    ("attention", lambda q: jax.nn.dot_product_attention(q, q + 1, q * 2, is_causal=True), (PLAIN,)),
    ("platform", lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), (X,)),
    ("checkpoint", jax.checkpoint(lambda x: jnp.sin(x) * 2), (X,)),
    ("half precision", lambda x: jnp.exp(x) / 3, (X.astype(np.float16),)),
]


@pytest.mark.parametrize(("function", "inputs"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_lowering_gives_what_jax_gives(function: Any, inputs: tuple[Any, ...]) -> None:
    half = inputs[0].dtype == np.float16
    check(function, inputs, **({"rtol": 2e-3, "atol": 1e-3} if half else {}))


def test_every_lowering_has_a_case() -> None:
    seen = set()
    for _, function, inputs in CASES:
        jaxpr = jax.make_jaxpr(function)(*inputs)
        program = flatten(jaxpr, [Value(var.aval.shape, var.aval.dtype) for var in jaxpr.jaxpr.invars], {})
        seen |= {equation.primitive for equation in [*program.equations, *recognise(program).equations]}
    assert set(TABLE.names()) - seen == set()


LAST = {"axis": -1, "keepdims": True}


def _fast_variance(x: Any) -> Any:
    """The statistics and the order of operations of flax.nnx.LayerNorm."""
    mean = x.mean(-1)
    variance = jnp.maximum(0.0, jnp.square(x).mean(-1) - jnp.square(mean))
    factor = lax.rsqrt(variance[:, None] + 1e-6) * normal(5, seed=7).reshape(1, 5)
    return (x - mean[:, None]) * factor + normal(5, seed=8).reshape(1, 5)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        pytest.param(jax.nn.relu, (SPECIAL,), ["relu"], id="relu"),
        pytest.param(lambda x: jnp.maximum(0, x), (SPECIAL,), ["relu"], id="max-0"),
        pytest.param(jax.nn.relu6, (SPECIAL,), ["relu", "clamp"], id="relu6"),
        pytest.param(lambda x: jax.nn.softmax(x, axis=1), (IMAGE,), ["softmax"], id="softmax"),
        pytest.param(
            jax.nn.softmax, (np.array([[0, -np.inf, 1], [-np.inf] * 3, [np.nan, 0, 1]], np.float32),), ["softmax"], id="softmax-masked"
        ),
        pytest.param(jax.nn.log_softmax, (X,), ["log_softmax"], id="log_softmax"),
        pytest.param(jax.nn.gelu, (np.linspace(-8, 8, 99, dtype=np.float32),), ["gelu"], id="gelu-tanh"),
        pytest.param(lambda x: jax.nn.gelu(x, approximate=False), (np.linspace(-8, 8, 99, dtype=np.float32),), ["gelu"], id="gelu-erfc"),
        pytest.param(lambda x: x * (1 + lax.erf(x / np.sqrt(2))) / 2, (X,), ["gelu"], id="gelu-erf"),
        pytest.param(lambda x: jax.nn.gelu(x * 3), (X,), ["mul", "gelu"], id="gelu-of-a-product"),
        pytest.param(jax.nn.silu, (np.linspace(-90, 90, 99, dtype=np.float32),), ["silu"], id="silu"),
        pytest.param(lambda x: jax.nn.leaky_relu(x, 0.2), (SPECIAL,), ["leaky_relu"], id="leaky_relu"),
        pytest.param(
            lambda x: (x - x.mean(**LAST)) / jnp.sqrt(x.var(**LAST) + 1e-5) * normal(5, seed=7) + normal(5, seed=8),
            (X,),
            ["layer_norm"],
            id="layer_norm",
        ),
        pytest.param(_fast_variance, (X,), ["layer_norm"], id="layer_norm-fast"),
        pytest.param(
            lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 1, 1, 1), "SAME") / 6, (IMAGE,), ["avg_pool"], id="avg_pool"
        ),
        pytest.param(
            lambda x: (
                lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 1, 1, 1), "SAME")
                / lax.reduce_window(jnp.ones((1, 9, 11, 1)), 0.0, lax.add, (1, 2, 3, 1), (1, 1, 1, 1), "SAME")
            ),
            (IMAGE,),
            ["avg_pool"],
            id="avg_pool-valid",
        ),
        pytest.param(lambda x: x.mean((1, 2)), (IMAGE,), ["reduce"], id="mean"),
        pytest.param(lambda x: x @ COLUMN + COLUMN[0], (X,), ["linear"], id="linear"),
        pytest.param(lambda x: x @ COLUMN + COLUMN[:3, :1], (X,), ["linear", "add"], id="no-bias-along-rows"),
        pytest.param(lambda x, i: x[i], (COLUMN, INDICES), ["take"], id="take"),
    ],
)
def test_formula_becomes_one_op(function: Any, inputs: tuple[Any, ...], expected: list[str]) -> None:
    assert ops(check(function, inputs)) == expected


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * jax.nn.sigmoid(1.7 * x), id="quick-gelu"),
        pytest.param(lambda x: 0.5 * x * (1 + jnp.tanh(0.79 * (x + 0.044715 * x**3))), id="gelu-other-constant"),
        pytest.param(lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True), id="softmax-unshifted"),
        pytest.param(
            lambda x: jnp.exp(x - x.max(-1, keepdims=True)) / jnp.exp(x - x.max(-1, keepdims=True)).sum(0), id="softmax-other-axis"
        ),
        pytest.param(
            lambda x: (x[:3, :3] - x[:3, :3].mean(0)[:, None]) / jnp.sqrt(x[:3, :3].var(-1, keepdims=True) + 1e-5),
            id="layer_norm-other-axis",
        ),
        pytest.param(lambda x: (x - x.mean(**LAST)) / jnp.sqrt(x.var(**LAST, ddof=1) + 1e-5), id="layer_norm-unbiased"),
        pytest.param(lambda x: jnp.where(x >= 0.5, x, 0.1 * x), id="leaky_relu-shifted"),
    ],
)
def test_nearly_the_formula_stays_as_written(function: Any) -> None:
    assert not {"gelu", "silu", "softmax", "layer_norm", "leaky_relu"} & set(ops(check(function, (X,))))


def test_a_sum_over_another_number_is_no_mean() -> None:
    graph = check(lambda x: x.sum(0) / 4, (X,))
    assert [node.attrs["kind"] for node in graph.nodes if node.op == "reduce"] == ["sum"]


def test_a_part_that_is_read_elsewhere_stays() -> None:
    def function(x: Any) -> Any:
        shifted = jnp.exp(x - x.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True), shifted

    graph = check(function, (X,))
    assert "softmax" in ops(graph)
    assert "exp" in ops(graph)


def test_attention_scores_are_one_product() -> None:
    graph = check(lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k), (PLAIN, PLAIN + 1))
    assert [op for op in ops(graph) if op not in ("transpose", "reshape")] == ["matmul"]
