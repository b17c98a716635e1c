"""The TensorFlow models of the zoo, in Keras: seeded weights, every statistic and bias randomised (zeros and ones would hide errors)."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporters.from_tf.tracing import load_tensorflow
from exporters.models.zoo import zoo_model

__all__: list[str] = []


def _keras() -> Any:
    """Imports Keras on the TensorFlow backend, set up as for an export; nothing may be computed before."""
    load_tensorflow()
    import keras

    return keras


def _randomised(model: Any, seed: int) -> Any:
    """Draws every weight of the model anew from a seed: kernels by their fan-in, scales and variances around 1, the rest around 0."""
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        kind = variable.path.rpartition("/")[2]
        noise = generator.standard_normal(variable.shape)
        if kind == "kernel":
            fan_in = np.prod(variable.shape[:2]) if "depthwise" in variable.path else np.prod(variable.shape[:-1])
            variable.assign(noise * np.sqrt(2.0 / fan_in))
        elif kind in ("gamma", "moving_variance"):
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
        else:
            variable.assign(0.1 * noise)
    return model


def _example(shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal(shape).astype(np.float32)]


@zoo_model("tf_mlp", description="784-512-512-10, relu", default=True)
def tf_mlp() -> tuple[Any, Any]:
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(512, activation="relu", name="hidden_1"),
            layers.Dense(512, activation="relu", name="hidden_2"),
            layers.Dense(10, name="logits"),
        ],
        name="tf_mlp",
    )
    return _randomised(model, 1), _example((1, 784), 2)


@zoo_model(
    "tf_cnn",
    description="convolutions (one strided, one depthwise) with batch norm, relu and a max pool on 32x32x3, 10 classes",
    default=True,
)
def tf_cnn() -> tuple[Any, Any]:
    keras = _keras()
    layers = keras.layers

    def block(x: Any, convolution: Any) -> Any:
        x = convolution(x)
        x = layers.BatchNormalization(name=f"{convolution.name}_norm")(x)
        return layers.ReLU(name=f"{convolution.name}_relu")(x)

    image = keras.Input((32, 32, 3), name="image")
    x = block(image, layers.Conv2D(32, 3, padding="same", name="conv_1"))
    x = layers.MaxPooling2D(2, name="pool")(x)
    x = block(x, layers.Conv2D(96, 3, strides=2, padding="same", name="conv_2"))
    x = block(x, layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise"))
    x = block(x, layers.Conv2D(192, 1, use_bias=False, name="conv_3"))
    x = block(x, layers.Conv2D(256, 3, strides=2, padding="same", name="conv_4"))
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(image, layers.Dense(10, name="logits")(x), name="tf_cnn")
    return _randomised(model, 3), _example((1, 32, 32, 3), 4)
