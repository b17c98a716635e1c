"""The flax.nnx modules of the zoo, and their random weights. This module needs flax: build functions import it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

__all__ = ["Decoder", "Gru", "Mixer", "ResNet", "VisionTransformer", "randomised"]

_BRANCH = 0.3
"""Scale of the last batch norm of a residual branch, so that activations keep an rms near 1 over many blocks."""


def randomised(model: nnx.Module, seed: int) -> nnx.Module:
    """Draws a module's numbers anew, the same on every machine: activations keep an rms near 1, no bias or statistic is 0 or 1.

    Returns it in evaluation mode.
    """
    generator = np.random.default_rng(seed)
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        if issubclass(variable.type, nnx.RngState):
            continue
        kind, shape = str(path[-1]), variable.get_value().shape
        if kind == "kernel":
            depth = math.prod(shape[:-1] if "out" in path or len(shape) != 3 else shape[:1])  # [.., heads, head width] are outputs
            values = generator.standard_normal(shape) / math.sqrt(depth)
        elif kind in ("scale", "var"):
            values = generator.uniform(0.5, 1.5, shape) * (_BRANCH if "last_norm" in path and kind == "scale" else 1.0)
        elif kind in ("bias", "mean"):
            values = generator.normal(0, 0.1, shape)
        else:  # embeddings, positions, class tokens
            values = generator.standard_normal(shape) * 0.3
        variable.set_value(jnp.asarray(values, variable.get_value().dtype))
    model.eval()
    return model


class _Mlp(nnx.Module):
    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.expand = nnx.Linear(width, hidden, rngs=rngs)
        self.project = nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.project(nnx.gelu(self.expand(x)))


class _Block(nnx.Module):
    """A transformer block, normalised before attention and before the MLP."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norm_1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
        self.mlp = _Mlp(width, 4 * width, rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.mlp(self.norm_2(x))


class Decoder(nnx.Module):
    """A decoder-only language model with learned positions; the output layer is the embedding."""

    def __init__(self, *, width: int, heads: int, depth: int, vocabulary: int, tokens: int) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((tokens, width)))
        self.blocks = nnx.List([_Block(width, heads, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        mask = nnx.make_causal_mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


class _Bottleneck(nnx.Module):
    def __init__(self, inputs: int, width: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv_1 = nnx.Conv(inputs, width, (1, 1), use_bias=False, rngs=rngs)
        self.norm_1 = nnx.BatchNorm(width, rngs=rngs)
        self.conv_2 = nnx.Conv(width, width, (3, 3), strides=stride, use_bias=False, rngs=rngs)
        self.norm_2 = nnx.BatchNorm(width, rngs=rngs)
        self.conv_3 = nnx.Conv(width, 4 * width, (1, 1), use_bias=False, rngs=rngs)
        self.last_norm = nnx.BatchNorm(4 * width, rngs=rngs)
        changes = stride != 1 or inputs != 4 * width
        self.shortcut = nnx.Conv(inputs, 4 * width, (1, 1), strides=stride, use_bias=False, rngs=rngs) if changes else None
        self.shortcut_norm = nnx.BatchNorm(4 * width, rngs=rngs) if changes else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm_1(self.conv_1(x)))
        y = nnx.relu(self.norm_2(self.conv_2(y)))
        y = self.last_norm(self.conv_3(y))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return nnx.relu(x + y)


class ResNet(nnx.Module):
    """A ResNet of bottleneck blocks (https://arxiv.org/abs/1512.03385), strides in the 3x3 convolutions."""

    def __init__(self, depths: Sequence[int], width: int, classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.stem = nnx.Conv(3, width, (7, 7), strides=2, use_bias=False, rngs=rngs)
        self.stem_norm = nnx.BatchNorm(width, rngs=rngs)
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(_Bottleneck(inputs, width << stage, 2 if stage and not index else 1, rngs))
                inputs = 4 * width << stage
        self.blocks = nnx.List(blocks)
        self.logits = nnx.Linear(inputs, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem_norm(self.stem(x)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.logits(x.mean((1, 2)))


class VisionTransformer(nnx.Module):
    """A ViT with a class token and learned positions (https://arxiv.org/abs/2010.11929)."""

    def __init__(self, *, side: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.patches = nnx.Conv(3, width, (patch, patch), strides=patch, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, width)))
        self.positions = nnx.Param(jnp.zeros((1, (side // patch) ** 2 + 1, width)))
        self.blocks = nnx.List([_Block(width, heads, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.logits = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], axis=1) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x[:, 0]))


class Gru(nnx.Module):
    """Recurrent layers, one scan each; the last state is classified."""

    def __init__(self, features: int, width: int, layers: int, classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.RNN(nnx.GRUCell(width if index else features, width, rngs=rngs), rngs=rngs) for index in range(layers)])
        self.logits = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return self.logits(x[:, -1])


class _MixerBlock(nnx.Module):
    def __init__(self, tokens: int, width: int, across_tokens: int, across_channels: int, rngs: nnx.Rngs) -> None:
        self.norm_1 = nnx.LayerNorm(width, rngs=rngs)
        self.tokens = _Mlp(tokens, across_tokens, rngs)
        self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
        self.channels = _Mlp(width, across_channels, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.tokens(self.norm_1(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.channels(self.norm_2(x))


class Mixer(nnx.Module):
    """An MLP-Mixer (https://arxiv.org/abs/2105.01601)."""

    def __init__(self, *, side: int, patch: int, width: int, across_tokens: int, across_channels: int, depth: int, classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.patches = nnx.Conv(3, width, (patch, patch), strides=patch, padding="VALID", rngs=rngs)
        tokens = (side // patch) ** 2
        self.blocks = nnx.List([_MixerBlock(tokens, width, across_tokens, across_channels, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.logits = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: Any) -> jax.Array:
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x).mean(1))
