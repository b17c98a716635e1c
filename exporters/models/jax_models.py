"""The JAX models of the zoo: functions of a parameter pytree, and flax.nnx modules.

NumPy draws all weights from a fixed seed; no bias, scale or statistic is 0 or 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from exporters.models.zoo import zoo_model

__all__: list[str] = []

Params = dict[str, dict[str, np.ndarray]]


def _affine(generator: np.random.Generator, *shape: int) -> dict[str, np.ndarray]:
    """Returns a kernel with the outputs on its last axis, scaled so that activations keep an rms near 1, and its bias."""
    kernel = generator.standard_normal(shape) * math.sqrt(2 / math.prod(shape[:-1]))
    return {"kernel": kernel.astype(np.float32), "bias": generator.normal(0, 0.1, shape[-1]).astype(np.float32)}


def _statistics(generator: np.random.Generator, channels: int) -> dict[str, np.ndarray]:
    """Returns scale, bias, mean and variance of a batch norm."""
    drawn = {
        "scale": generator.uniform(0.5, 1.5, channels),
        "bias": generator.normal(0, 0.1, channels),
        "mean": generator.normal(0, 0.1, channels),
        "variance": generator.uniform(0.5, 1.5, channels),
    }
    return {name: values.astype(np.float32) for name, values in drawn.items()}


@zoo_model("jax_mlp", description="784-512-512-10, relu", default=True, parameters=669_706, flops=1_337_354)
def jax_mlp(batch: int) -> tuple[Any, Any]:
    import jax

    generator = np.random.default_rng(1)
    params = {"hidden_1": _affine(generator, 784, 512), "hidden_2": _affine(generator, 512, 512), "logits": _affine(generator, 512, 10)}

    def mlp(params: Params, x: Any) -> Any:
        for name in ("hidden_1", "hidden_2"):
            x = jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])
        return x @ params["logits"]["kernel"] + params["logits"]["bias"]

    return functools.partial(mlp, params), (generator.standard_normal((batch, 784), np.float32),)


@zoo_model(
    "jax_cnn",
    description="three convolutions with batch norm, relu and pools on 32x32x3 (NHWC), 10 classes",
    default=True,
    parameters=95_434,
    flops=20_900_000,
)
def jax_cnn(batch: int) -> tuple[Any, Any]:
    import jax
    from jax import lax

    generator = np.random.default_rng(2)
    widths = (3, 32, 64, 128)
    params = {"logits": _affine(generator, widths[-1], 10)}
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        params[f"conv_{index}"] = _affine(generator, 3, 3, inputs, outputs)
        params[f"norm_{index}"] = _statistics(generator, outputs)

    def convolution(p: dict[str, np.ndarray], x: Any) -> Any:
        return lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + p["bias"]

    def batch_norm(p: dict[str, np.ndarray], x: Any) -> Any:
        return (x - p["mean"]) * (lax.rsqrt(p["variance"] + 1e-5) * p["scale"]) + p["bias"]

    def max_pool(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def cnn(params: Params, x: Any) -> Any:
        for index in range(len(widths) - 1):
            x = max_pool(x) if index else x
            x = jax.nn.relu(batch_norm(params[f"norm_{index}"], convolution(params[f"conv_{index}"], x)))
        return x.mean((1, 2)) @ params["logits"]["kernel"] + params["logits"]["bias"]

    return functools.partial(cnn, params), (generator.standard_normal((batch, 32, 32, 3), np.float32),)


@zoo_model(
    "jax_transformer",
    description="flax.nnx decoder: 4 layers, width 256, 8 heads, causal, tied embedding, 64 tokens",
    parameters=3_431_936,
    flops=461_900_000,
)
def jax_transformer(size: str, batch: int) -> tuple[Any, Any]:
    from exporters.models.jax_networks import Decoder, randomised

    options = {"width": 256, "heads": 8, "depth": 4, "vocabulary": 1000, "tokens": 64}
    if size == "tiny":
        options = {"width": 16, "heads": 2, "depth": 2, "vocabulary": 40, "tokens": 12}
    ids = np.random.default_rng(13).integers(0, options["vocabulary"], (batch, options["tokens"]), np.int32)
    return randomised(Decoder(**options), 3), (ids,)


@zoo_model("jax_resnet50", description="ResNet-50 in flax.nnx, 224x224x3 (NHWC), 1000 classes", parameters=25_610_152, flops=8_217_600_000)
def jax_resnet50(size: str, batch: int) -> tuple[Any, Any]:
    from exporters.models.jax_networks import ResNet, randomised

    depths, width, classes, side = ((3, 4, 6, 3), 64, 1000, 224) if size == "full" else ((1, 2), 8, 10, 32)
    return randomised(ResNet(depths, width, classes), 4), (_images(14, batch, side),)


@zoo_model("jax_vit_s16", description="ViT-S/16 in flax.nnx, 224x224x3 (NHWC), 1000 classes", parameters=22_050_664, flops=9_344_200_000)
def jax_vit_s16(size: str, batch: int) -> tuple[Any, Any]:
    from exporters.models.jax_networks import VisionTransformer, randomised

    options = {"side": 224, "patch": 16, "width": 384, "heads": 6, "depth": 12, "classes": 1000}
    if size == "tiny":
        options = {"side": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "classes": 10}
    return randomised(VisionTransformer(**options), 5), (_images(15, batch, options["side"]),)


@zoo_model(
    "jax_gru",
    description="two flax.nnx GRU layers of 256 over 50 steps of 64 features, 10 classes",
    parameters=643_082,
    flops=63_900_000,
)
def jax_gru(size: str, batch: int) -> tuple[Any, Any]:
    from exporters.models.jax_networks import Gru, randomised

    features, width, steps = (64, 256, 50) if size == "full" else (4, 8, 6)
    x = np.random.default_rng(16).standard_normal((batch, steps, features), np.float32)
    return randomised(Gru(features, width, 2, 10), 6), (x,)


@zoo_model(
    "jax_mixer", description="MLP-Mixer-S/16 in flax.nnx, 224x224x3 (NHWC), 1000 classes", parameters=18_528_264, flops=7_675_900_000
)
def jax_mixer(size: str, batch: int) -> tuple[Any, Any]:
    from exporters.models.jax_networks import Mixer, randomised

    options = {"side": 224, "patch": 16, "width": 512, "across_tokens": 256, "across_channels": 2048, "depth": 8, "classes": 1000}
    if size == "tiny":
        options = {"side": 16, "patch": 4, "width": 16, "across_tokens": 8, "across_channels": 24, "depth": 2, "classes": 10}
    return randomised(Mixer(**options), 7), (_images(17, batch, options["side"]),)


def _images(seed: int, batch: int, side: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, side, side, 3), np.float32)
