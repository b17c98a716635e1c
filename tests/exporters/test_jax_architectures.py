"""Models outside of the zoo, as users write them: exported, some for any batch, and run by the executor."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.dims import Dim
from exporters.from_jax import export
from rml_exec import Executor
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from tests.exporters.jax_support import normal, ops

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
linen = pytest.importorskip("flax.linen")

import jax.numpy as jnp  # noqa: E402

pytestmark = pytest.mark.jax

BATCH = Dim("batch", 1, 8)
RNGS = nnx.Rngs(0)


def exported(path: Path, model: Any, inputs: list[Any], **options: Any) -> Graph:
    """Exports, which compares with JAX at several sizes, and lets the executor do the same at one of its own."""
    summary = export(model, inputs, path / "model", **options)
    assert summary.golden_error < 5e-6
    graph = load_graph(path / "model")
    if options.get("dims") == [BATCH]:
        inputs = [np.concatenate([x] * 3)[:5] for x in inputs]
    params = [options["params"]] if "params" in options else []
    wanted = jax.tree.leaves(model(*params, *inputs))
    for got, want in zip(Executor.create(graph, threads=1).run(inputs).values(), wanted, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
    return graph


class DecoderLayer(nnx.Module):
    """RMS norm, rotary positions, grouped queries, a gated feed-forward layer."""

    def __init__(self) -> None:
        linear = functools.partial(nnx.Linear, use_bias=False, rngs=RNGS)
        self.norm, self.norm_2 = nnx.RMSNorm(32, rngs=RNGS), nnx.RMSNorm(32, rngs=RNGS)
        self.q, self.k, self.v, self.o = linear(32, 32), linear(32, 16), linear(32, 16), linear(32, 32)
        self.gate, self.up, self.down = linear(32, 64), linear(32, 64), linear(64, 32)

    def __call__(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = (part.reshape(*x.shape[:2], -1, 8) for part in (self.q(y), self.k(y), self.v(y)))
        attended = jax.nn.dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.o(attended.reshape(x.shape))
        y = self.norm_2(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


def rotated(x: Any) -> Any:
    angles = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(4) / 4)
    sine, cosine = jnp.sin(angles)[None, :, None], jnp.cos(angles)[None, :, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


class Decoder(nnx.Module):
    def __init__(self) -> None:
        self.embed = nnx.Embed(50, 32, rngs=RNGS)
        self.layers = nnx.List([DecoderLayer() for _ in range(2)])
        self.norm = nnx.RMSNorm(32, rngs=RNGS)

    def __call__(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed.attend(self.norm(x))


def test_a_decoder_of_any_length(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (2, 8), np.int32)
    graph = exported(tmp_path, Decoder(), [ids], dims=[BATCH, Dim("tokens", 2, 32, 1)])
    assert [ops(graph).count(op) for op in ("rms_norm", "attention", "silu")] == [5, 2, 2]
    assert {node.attrs["kv_groups"] for node in graph.nodes if node.op == "attention"} == {2}


class UNet(nnx.Module):
    """Down, up by a bilinear resize, and across; a time embedding between, as diffusion models have it."""

    def __init__(self) -> None:
        conv = functools.partial(nnx.Conv, kernel_size=(3, 3), rngs=RNGS)
        self.first, self.down, self.middle, self.last = conv(3, 8), conv(8, 16, strides=(2, 2)), conv(16, 16), conv(24, 2)
        self.norm = nnx.GroupNorm(16, num_groups=4, rngs=RNGS)
        self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=RNGS)
        self.time = nnx.Linear(8, 16, rngs=RNGS)

    def __call__(self, x: Any, t: Any) -> Any:
        angles = t.astype(jnp.float32)[:, None] * jnp.exp(-jnp.arange(4.0))
        embedding = self.time(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        first = jax.nn.relu(self.first(x))
        y = jax.nn.silu(self.norm(self.middle(self.down(first)))) + embedding[:, None, None]
        y = y + self.attention(y.reshape(y.shape[0], -1, 16)).reshape(y.shape)
        up = jax.image.resize(y, (*first.shape[:3], 16), "bilinear")
        return self.last(jax.nn.elu(jnp.concatenate([first, up], -1)))


def test_a_unet_with_time(tmp_path: Path) -> None:
    graph = exported(tmp_path, UNet(), [normal(2, 8, 8, 3), np.array([3, 500], np.int32)], dims=[BATCH])
    assert {"group_norm", "attention", "silu", "elu", "concat"} <= set(ops(graph))
    assert "iota" not in ops(graph)  # what does not depend on the batch is computed at export


def test_a_sequence_classifier(tmp_path: Path) -> None:
    class Classifier(nnx.Module):
        def __init__(self) -> None:
            layers = [nnx.RNN(nnx.OptimizedLSTMCell(8, 12, rngs=RNGS), rngs=RNGS) for _ in range(2)]
            self.embed = nnx.Embed(30, 8, rngs=RNGS)
            self.both = nnx.Bidirectional(*layers, rngs=RNGS)
            self.last = nnx.RNN(nnx.GRUCell(24, 6, rngs=RNGS), return_carry=True, rngs=RNGS)
            self.logits = nnx.Linear(6, 3, rngs=RNGS)

        def __call__(self, ids: Any) -> Any:
            state, _ = self.last(self.both(self.embed(ids)))
            return self.logits(state)

    ids = np.random.default_rng(0).integers(0, 30, (2, 7), np.int32)
    graph = exported(tmp_path, Classifier(), [ids], dims=[BATCH, Dim("time", 2, 20, 1)])
    assert [ops(graph).count(op) for op in ("lstm", "gru")] == [2, 1]


def test_a_graph_network(tmp_path: Path) -> None:
    def network(p: Any, nodes: Any, source: Any, target: Any) -> Any:
        count = nodes.shape[0]
        for layer in p:
            messages = jax.nn.relu(jnp.concatenate([nodes[source], nodes[target]], -1) @ layer["message"])
            weights = jnp.exp(messages[:, 0] - jax.ops.segment_max(messages[:, 0], target, count)[target])
            shares = weights / jax.ops.segment_sum(weights, target, count)[target]
            nodes = jax.nn.softplus(jax.ops.segment_sum(shares[:, None] * messages, target, count) @ layer["update"])
        return nodes.mean(0)

    params = [{"message": normal(10, 6, seed=k), "update": normal(6, 5, seed=k + 5)} for k in range(2)]
    source, target = np.random.default_rng(0).integers(0, 6, (2, 14)).astype(np.int32)
    dims = [Dim("nodes", 6, 40, (("nodes", 0),)), Dim("edges", 2, 50, (("source", 0), ("target", 0)))]
    graph = exported(tmp_path, network, [normal(6, 5), source, target], params=params, dims=dims)
    assert {"take", "scatter_nd", "softplus"} <= set(ops(graph))


def test_a_linen_model(tmp_path: Path) -> None:
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.BatchNorm(use_running_average=True)(linen.Conv(8, (3, 3))(x))
            x = linen.GroupNorm(4)(linen.avg_pool(linen.swish(x), (2, 2), (2, 2)))
            x = x.reshape(x.shape[0], -1, 8)
            x = linen.RMSNorm()(x + linen.MultiHeadDotProductAttention(2, deterministic=True)(x))
            x = linen.Bidirectional(linen.RNN(linen.LSTMCell(6)), linen.RNN(linen.GRUCell(6)))(x)
            return linen.Dense(3)(linen.LayerNorm()(x[:, -1]))

    model, x = Model(), normal(2, 6, 6, 3)
    variables = model.init(jax.random.key(0), x)
    graph = exported(tmp_path, lambda p, x: model.apply(p, x), [x], params=variables, dims=[BATCH])
    assert {"batch_norm", "group_norm", "attention", "rms_norm", "lstm", "gru", "layer_norm"} <= set(ops(graph))
    assert "params.Dense_0.kernel" in {constant.key for constant in graph.constants}


def test_one_step_of_a_decoder_with_its_cache(tmp_path: Path) -> None:
    def step(p: Any, token: Any, position: Any, keys: Any, values: Any) -> Any:
        x = p["embed"][token]
        q, k, v = ((x @ p[name]).reshape(1, 1, 2, 4) for name in "qkv")
        keys, values = (jax.lax.dynamic_update_slice(old, new, (0, position, 0, 0)) for old, new in ((keys, k), (values, v)))
        mask = (jnp.arange(keys.shape[1]) <= position)[None, None, None]
        y = jax.nn.dot_product_attention(q, keys, values, mask=mask)
        return y.reshape(1, 8) @ p["embed"].T, keys, values

    params = {"embed": normal(20, 8), **{name: normal(8, 8, seed=k) for k, name in enumerate("qkv", 1)}}
    cache = normal(1, 6, 2, 4), normal(1, 6, 2, 4, seed=1)
    graph = exported(tmp_path, step, [np.array([3], np.int32), np.int32(2), *cache], params=params)
    assert {"attention", "dynamic_update_slice"} <= set(ops(graph))


def test_experts(tmp_path: Path) -> None:
    def experts(p: Any, x: Any) -> Any:
        weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        mixed = (jax.nn.one_hot(chosen, 4) * weights[..., None]).sum(1)
        hidden = jax.nn.gelu(jnp.einsum("td,edf->etf", x, p["up"]))
        return jnp.einsum("etf,efd,te->td", hidden, p["down"], mixed)

    params = {"router": normal(8, 4), "up": normal(4, 8, 16), "down": normal(4, 16, 8)}
    assert "topk" in ops(exported(tmp_path, experts, [normal(6, 8)], params=params, dims=[BATCH]))
