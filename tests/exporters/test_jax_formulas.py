"""Activations, norms and attention as JAX, flax and their users write them become one op each; what differs from the formula does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.exporters.jax_support import check, normal, ops

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from exporters.from_jax import to_graph  # noqa: E402
from rml_exec.ir.graph import Graph  # noqa: E402
from rml_exec.runtime.reference import run_reference  # noqa: E402

pytestmark = pytest.mark.jax

POINTS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 30.0, -30.0, 100.0, -100.0, 1e-4, 2.0, -2.0, 0.5, -3.0, 3.0], np.float32)
FINITE = POINTS[3:]
W = normal(6, seed=5)
IMAGE = normal(2, 4, 5, 6)
LAST = {"axis": -1, "keepdims": True}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(jax.nn.softplus, ["softplus"], id="softplus"),
        pytest.param(lambda x: jnp.logaddexp(0.0, x), ["softplus"], id="logaddexp"),
        pytest.param(lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))), ["softplus"], id="softplus-written-out"),
        pytest.param(jax.nn.log_sigmoid, ["neg", "softplus", "neg"], id="log_sigmoid"),
        pytest.param(jax.nn.mish, ["softplus", "tanh", "mul"], id="mish"),
        pytest.param(jax.nn.elu, ["elu"], id="elu"),
        pytest.param(lambda x: jax.nn.elu(x, 0.5), ["elu"], id="elu-alpha"),
        pytest.param(lambda x: jax.nn.elu(x * 2), ["mul", "elu"], id="elu-of-a-product"),
        pytest.param(jax.nn.selu, ["elu"], id="selu"),
        pytest.param(jax.nn.celu, ["elu"], id="celu"),
        pytest.param(lambda x: jax.nn.celu(x, 0.5), ["elu"], id="celu-alpha"),
        pytest.param(jax.nn.hard_swish, ["hard_swish"], id="hard_swish"),
        pytest.param(lambda x: x * jax.nn.relu6(x + 3) * (1 / 6), ["hard_swish"], id="hard_swish-by-factor"),
        pytest.param(lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1), ["hard_swish"], id="hard_swish-by-clip"),
        pytest.param(jax.nn.hard_sigmoid, ["hard_sigmoid"], id="hard_sigmoid"),
        pytest.param(lambda x: jnp.clip(0.2 * x + 0.5, 0, 1), ["hard_sigmoid"], id="hard_sigmoid-keras-2"),
        pytest.param(jax.nn.hard_tanh, ["clamp"], id="hard_tanh"),
        pytest.param(jax.nn.relu6, ["clamp"], id="relu6"),
        pytest.param(lambda x: jnp.minimum(jnp.maximum(x, 2), 1), ["clamp", "clamp"], id="bounds-crossed"),
        pytest.param(lambda x: jnp.where(x < 0, 0.3 * x, x), ["leaky_relu"], id="leaky_relu-turned"),
    ],
)
def test_activations(function: Any, expected: list[str]) -> None:
    assert ops(check(function, (POINTS,))) == expected


def test_elu_written_with_exp() -> None:
    assert ops(check(lambda x: jnp.where(x > 0, x, 1.2 * (jnp.exp(x) - 1)), (FINITE,))) == ["elu"]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-x)), id="softplus-without-abs"),
        pytest.param(lambda x: jnp.maximum(x, 0.5) + jnp.log1p(jnp.exp(-jnp.abs(x))), id="softplus-other-bound"),
        pytest.param(lambda x: jnp.logaddexp(x, x * 0.5), id="logaddexp-of-two"),
        pytest.param(lambda x: jnp.where(x > 0.5, x, jnp.expm1(x)), id="elu-other-test"),
        pytest.param(lambda x: jnp.where(x > 0, jnp.expm1(x), x), id="elu-turned"),
        pytest.param(lambda x: jnp.maximum(x, 0) + jnp.expm1(x), id="celu-without-bound"),
        pytest.param(lambda x: jnp.where(x > 0, x * x, jnp.expm1(x)), id="elu-of-a-square"),
        pytest.param(lambda x: x * jnp.clip(x + 3, 0, 5) / 5, id="hard_swish-other-bound"),
        pytest.param(lambda x: jnp.clip(x + 3, 0.5, 6) / 6, id="hard_sigmoid-other-bound"),
        pytest.param(lambda x: jnp.where(x > 1, 1.5, jnp.where(x < -1, -1, x)), id="hard_tanh-that-jumps"),
    ],
)
def test_nearly_an_activation_stays_as_written(function: Any) -> None:
    found = set(ops(check(function, (FINITE / 10,))))
    assert not found & {"softplus", "elu", "hard_swish", "hard_sigmoid"}


def exported(model: Any, x: np.ndarray) -> Graph:
    model.eval()
    graph = to_graph(model, [x], name="t")
    np.testing.assert_allclose(run_reference(graph, {"x": x}, precision="f32")["y"], np.asarray(model(x)), rtol=1e-4, atol=1e-5)
    return graph


def drawn(model: Any) -> Any:
    """Returns the module with parameters that hide nothing."""
    generator = np.random.default_rng(0)
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda leaf: jnp.asarray(generator.uniform(0.3, 0.9, leaf.shape), leaf.dtype), state))
    return model


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 5, 6), (1, 1, 4, 6), (2, 1, 3, 6)], ids=str)
@pytest.mark.parametrize(
    ("build", "groups"),
    [
        pytest.param(lambda rngs: nnx.GroupNorm(6, num_groups=3, rngs=rngs), 3, id="groups"),
        pytest.param(lambda rngs: nnx.GroupNorm(6, num_groups=1, rngs=rngs), 1, id="one-group"),
        pytest.param(lambda rngs: nnx.GroupNorm(6, num_groups=6, rngs=rngs), 6, id="group-per-channel"),
        pytest.param(lambda rngs: nnx.GroupNorm(6, num_groups=2, use_fast_variance=False, use_scale=False, rngs=rngs), 2, id="two-pass"),
        pytest.param(lambda rngs: nnx.GroupNorm(6, num_groups=2, use_scale=False, use_bias=False, rngs=rngs), 2, id="plain"),
    ],
)
def test_flax_group_norm(build: Any, groups: int, shape: tuple[int, ...]) -> None:
    (node,) = exported(drawn(build(nnx.Rngs(0))), normal(*shape)).nodes
    assert (node.op, node.attrs["groups"], node.attrs["axis"]) == ("group_norm", groups, 3)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 5, 6)], ids=str)
def test_flax_instance_norm(shape: tuple[int, ...]) -> None:
    (node,) = exported(drawn(nnx.InstanceNorm(6, rngs=nnx.Rngs(0))), normal(*shape)).nodes
    assert (node.op, node.attrs["groups"]) == ("group_norm", 6)


@pytest.mark.parametrize("scaled", [True, False])
def test_flax_rms_norm(scaled: bool) -> None:
    (node,) = exported(drawn(nnx.RMSNorm(6, use_scale=scaled, rngs=nnx.Rngs(0))), IMAGE).nodes
    assert (node.op, node.attrs["axes"], len(node.inputs)) == ("rms_norm", (3,), 2)
    assert (node.inputs[1] is not None) == scaled


def _grouped(x: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    parts = x.reshape(shape)
    mean, variance = parts.mean(axes, keepdims=True), parts.var(axes, keepdims=True)
    return ((parts - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(lambda x: W * (x * lax.rsqrt(jnp.mean(x**2, **LAST) + 1e-6)), ["rms_norm"], id="llama"),
        pytest.param(lambda x: (1 + W) * (x / jnp.sqrt(jnp.mean(x * x, **LAST) + 1e-6)), ["rms_norm"], id="gemma"),
        pytest.param(lambda x: x * lax.rsqrt(jnp.mean(x**2, (-2, -1), keepdims=True) + 1e-6), ["rms_norm"], id="rms_norm-two-axes"),
        pytest.param(lambda x: _grouped(x, (2, 4, 5, 3, 2), (1, 2, 4)) * W + W[::-1], ["group_norm"], id="group_norm-last"),
        pytest.param(
            lambda x: _grouped(x, (2, 2, 2, 5, 6), (2, 3, 4)) * W[:4, None, None],
            ["reshape", "layer_norm", "reshape", "mul"],
            id="group_norm-first",
        ),
        pytest.param(lambda x: _grouped(x, x.shape, (1, 2)), ["group_norm"], id="instance_norm"),
    ],
)
def test_norms_written_out(function: Any, expected: list[str]) -> None:
    assert ops(check(function, (IMAGE,), rtol=1e-4, atol=1e-5)) == expected


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * lax.rsqrt(jnp.mean(x**2, 1, keepdims=True) + 1e-6), id="rms-of-another-axis"),
        pytest.param(lambda x: x * lax.rsqrt(jnp.sum(x**2, **LAST) + 1e-6), id="unit-norm"),
        pytest.param(lambda x: x * lax.rsqrt(jnp.mean(x**2, **LAST)), id="rms-without-eps"),
        pytest.param(lambda x: x * lax.rsqrt(jnp.mean(x[..., ::-1] ** 2, **LAST) * 2 + 1e-6), id="rms-scaled-inside"),
        pytest.param(lambda x: _grouped(x, x.shape, (0, 1, 2)), id="statistics-of-the-batch"),
        pytest.param(lambda x: _grouped(x, x.shape, (2,)), id="statistics-of-one-axis"),
        pytest.param(lambda x: x * W[0] * lax.rsqrt(jnp.mean(x**2, **LAST) + 1e-6), id="rms-of-another-value"),
    ],
)
def test_nearly_a_norm_stays_as_written(function: Any) -> None:
    assert not {"rms_norm", "group_norm", "layer_norm"} & set(ops(check(function, (IMAGE,), rtol=1e-4, atol=1e-5)))


QUERY, KEY, ONE = normal(2, 5, 6, 4), normal(2, 7, 2, 4, seed=1), normal(2, 7, 1, 4, seed=2)


def _repeated(q: Any, k: Any, times: int) -> Any:
    return jax.nn.dot_product_attention(q, jnp.repeat(k, times, axis=2), jnp.repeat(k + 1, times, axis=2))


def _capped(q: Any, k: Any, cap: float) -> Any:
    scores = cap * jnp.tanh(jnp.einsum("bthd,bshd->bhts", q, k) * 0.5 / cap)
    scores = jnp.where(jnp.tri(5, 7, dtype=bool), scores, -1e30)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), k + 1)


@pytest.mark.parametrize(
    ("function", "inputs", "groups", "softcap", "mask"),
    [
        pytest.param(lambda q, k: jax.nn.dot_product_attention(q, k, k + 1), (QUERY, KEY), 3, None, "none", id="fewer-heads"),
        pytest.param(lambda q, k: jax.nn.dot_product_attention(q, k, k + 1), (QUERY[:1], KEY[:1]), 3, None, "none", id="one-batch"),
        pytest.param(lambda q, k: jax.nn.dot_product_attention(q, k, k + 1), (QUERY, ONE), 6, None, "none", id="one-head"),
        pytest.param(
            lambda q, k, m: jax.nn.dot_product_attention(q, k, k + 1, mask=m),
            (QUERY, KEY, normal(2, 6, 5, 7) > 0),
            3,
            None,
            "bool",
            id="mask-of-each-head",
        ),
        pytest.param(
            lambda q, k, b: jax.nn.dot_product_attention(q, k, k + 1, bias=b),
            (QUERY, KEY, normal(1, 6, 5, 7)),
            3,
            None,
            "additive",
            id="bias",
        ),
        pytest.param(lambda q, k: _repeated(q, k, 3), (QUERY, KEY), 3, None, "none", id="repeated"),
        pytest.param(lambda q, k: _repeated(q, k, 6), (QUERY, ONE), 6, None, "none", id="one-head-repeated"),
        pytest.param(
            lambda q, k: jax.nn.dot_product_attention(q, jnp.tile(k, (1, 1, 3, 1)), jnp.tile(k + 1, (1, 1, 3, 1))),
            (QUERY, KEY),
            1,
            None,
            "none",
            id="tiled-is-another-order",
        ),
        pytest.param(lambda q, k: _capped(q, jnp.repeat(k, 3, axis=2), 50.0), (QUERY, KEY), 1, 50.0, "causal", id="softcap"),
        pytest.param(lambda q: _capped(q, jnp.concatenate([q, q[:, :2]], 1), 2.0), (QUERY,), 1, 2.0, "causal", id="small-softcap"),
    ],
)
def test_attention(function: Any, inputs: tuple[Any, ...], groups: int, softcap: float | None, mask: str) -> None:
    graph = check(function, inputs)
    (node,) = (node for node in graph.nodes if node.op == "attention")
    assert (node.attrs["kv_groups"], node.attrs["softcap"], node.attrs["mask"]) == (groups, softcap, mask)


def test_a_mask_within_the_softcap_is_none_of_the_attention() -> None:
    def function(q: Any) -> Any:
        scores = 5 * jnp.tanh(jnp.where(jnp.tri(5, dtype=bool), jnp.einsum("bthd,bshd->bhts", q, q), -1e30) / 5)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), q)

    assert "attention" not in ops(check(function, (QUERY,)))
