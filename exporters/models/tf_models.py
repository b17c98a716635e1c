"""The TensorFlow models of the zoo, in Keras: seeded weights, every statistic and bias randomised (zeros and ones would hide errors)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from exporters.errors import MissingFrameworkError
from exporters.from_tf.tracing import load_saved_model, load_tensorflow
from exporters.models.zoo import zoo_model

__all__: list[str] = []


def _keras() -> Any:
    """Imports Keras on the TensorFlow backend, set up as for an export; nothing may be computed before."""
    load_tensorflow()
    import keras

    return keras


def _example(shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal(shape).astype(np.float32)]


def _randomised(model: Any, seed: int) -> Any:
    """Draws every weight of the model anew from a seed: kernels by their fan-in, scales and variances around 1, the rest around 0."""
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        kind = variable.path.rpartition("/")[2]
        noise = generator.standard_normal(variable.shape)
        if kind.endswith("kernel"):
            fan_in = np.prod(variable.shape[:2]) if "depthwise" in variable.path else np.prod(variable.shape[:-1])
            variable.assign(noise * np.sqrt((1.0 if kind == "recurrent_kernel" else 2.0) / fan_in))
        elif kind in ("gamma", "moving_variance"):
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
        elif "float" in variable.dtype:
            variable.assign(0.1 * noise)
    return model


def _settled(model: Any, example: list[np.ndarray], seed: int) -> Any:
    """Sets batch-norm statistics to what the model sees, but not quite, and the last layer so that outputs have an rms near 1.

    Else a deep model of random weights saturates or overflows. The numbers are rounded, so that they are the same on other machines.
    """
    keras = _keras()
    keras.utils.set_random_seed(seed)
    generator = np.random.default_rng(seed)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in norms:
        layer.momentum = 0.0
    model(example[0], training=True)
    for layer in norms:
        variance = np.asarray(layer.moving_variance)
        variance = np.maximum(variance, 0.1 * variance.mean())
        mean = np.asarray(layer.moving_mean) + 0.2 * np.sqrt(variance) * generator.standard_normal(variance.shape)
        layer.moving_variance.assign((variance * generator.uniform(0.7, 1.4, variance.shape)).astype(np.float16))
        layer.moving_mean.assign(mean.astype(np.float16))
    rms = np.sqrt(np.mean(np.square(model(example[0], training=False))))
    for variable in model.layers[-1].variables:
        variable.assign(np.asarray(variable) * 2.0 ** -np.round(np.log2(rms)))
    return model


def _application(name: str, size: str, batch: int, seed: int) -> tuple[Any, Any]:
    """Returns a model of keras.applications; the tiny twin has an eighth of the channels, ten classes and images of 64x64."""
    keras = _keras()
    model = getattr(keras.applications, name)(weights=None, classifier_activation=None)
    shape = (224, 224, 3)
    if size == "tiny":
        config = model.get_config()
        shape = (64, 64, 3)
        for layer in config["layers"]:
            options = layer["config"]
            layer.pop("build_config", None)  # the shapes of before
            if "filters" in options:
                options["filters"] = max(options["filters"] // 8, 1)
            if layer["class_name"] == "Reshape":  # of the squeezed channels
                options["target_shape"] = (1, 1, options["target_shape"][-1] // 8)
            if layer["class_name"] == "InputLayer":
                options["batch_shape"] = (None, *shape)
            if layer["class_name"] == "Dense":
                options["units"] = 10
        model = keras.Model.from_config(config)
    model = _settled(_randomised(model, seed), _example((8, *shape), seed + 2), seed)
    return model, _example((batch, *shape), seed + 1)


@zoo_model("tf_mlp", default=True, description="784-512-512-10, relu", parameters=669_706, flops=1_300_000)
def tf_mlp(batch: int = 1) -> tuple[Any, Any]:
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
    return _randomised(model, 1), _example((batch, 784), 2)


@zoo_model(
    "tf_cnn",
    default=True,
    description="convolutions (one strided, one depthwise) with batch norm, relu and a max pool on 32x32x3, 10 classes",
    parameters=494_474,
    flops=22_200_000,
)
def tf_cnn(batch: int = 1) -> tuple[Any, Any]:
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
    return _randomised(model, 3), _example((batch, 32, 32, 3), 4)


@zoo_model(
    "tf_mobilenet_v2", description="keras.applications.MobileNetV2 on 224x224x3, 1000 classes", parameters=3_538_984, flops=627_000_000
)
def tf_mobilenet_v2(size: str = "full", batch: int = 1) -> tuple[Any, Any]:
    return _application("MobileNetV2", size, batch, 5)


@zoo_model("tf_resnet50", description="keras.applications.ResNet50 on 224x224x3, 1000 classes", parameters=25_636_712, flops=7_760_000_000)
def tf_resnet50(size: str = "full", batch: int = 1) -> tuple[Any, Any]:
    return _application("ResNet50", size, batch, 7)


@zoo_model(
    "tf_efficientnet_b0",
    description="keras.applications.EfficientNetB0 on 224x224x3, 1000 classes",
    parameters=5_330_564,
    flops=871_000_000,
)
def tf_efficientnet_b0(size: str = "full", batch: int = 1) -> tuple[Any, Any]:
    return _application("EfficientNetB0", size, batch, 9)


@zoo_model(
    "tf_transformer",
    description="encoder with keras.layers.MultiHeadAttention: 4 layers, width 256, 8 heads, gelu, 64 tokens",
    parameters=3_159_040,
    flops=430_000_000,
)
def tf_transformer(size: str = "full", batch: int = 1) -> tuple[Any, Any]:
    keras = _keras()
    layers = keras.layers
    depth, width, heads, tokens = (4, 256, 8, 64) if size == "full" else (2, 16, 2, 7)
    x = sequence = keras.Input((tokens, width), name="tokens")
    for index in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"attention_{index}")
        x = layers.LayerNormalization(name=f"attention_norm_{index}")(x + attention(x, x))
        hidden = layers.Dense(4 * width, activation="gelu", name=f"expand_{index}")(x)
        x = layers.LayerNormalization(name=f"norm_{index}")(x + layers.Dense(width, name=f"contract_{index}")(hidden))
    model = keras.Model(sequence, x, name="tf_transformer")
    return _randomised(model, 11), _example((batch, tokens, width), 12)


@zoo_model(
    "tf_lstm",
    description="two keras.layers.LSTM of 256 units over 64 steps of 64 features, 10 classes per step",
    parameters=856_586,
    flops=109_000_000,
)
def tf_lstm(size: str = "full", batch: int = 1) -> tuple[Any, Any]:
    keras = _keras()
    layers = keras.layers
    steps, features, units = (64, 64, 256) if size == "full" else (5, 6, 8)
    model = keras.Sequential(
        [
            keras.Input((steps, features)),
            layers.LSTM(units, return_sequences=True, name="lstm_1"),
            layers.LSTM(units, return_sequences=True, name="lstm_2"),
            layers.Dense(10, name="logits"),
        ],
        name="tf_lstm",
    )
    return _randomised(model, 13), _example((batch, steps, features), 14)


@zoo_model(
    "tf_basic_pitch",
    description="the trained SavedModel of the package basic-pitch: notes in two seconds of audio",
    parameters=35_861,
    flops=1_057_000_000,
)
def tf_basic_pitch(batch: int = 1) -> tuple[Any, Any]:
    """The package is found by its path: importing it would want the packages that it was installed without."""
    package = importlib.util.find_spec("basic_pitch")
    if package is None or package.origin is None:
        hint = "pip install --no-deps basic-pitch"
        raise MissingFrameworkError.of("model tf_basic_pitch", "the package basic-pitch, which carries it, must be installed", hint=hint)
    signature = load_saved_model(Path(package.origin).parent / "saved_models" / "icassp_2022" / "nmp")
    (name,) = signature.structured_input_signature[1]

    def basic_pitch(audio: Any) -> Any:
        return signature(**{name: audio})

    seconds = np.arange(43844) / 22050
    generator = np.random.default_rng(15)
    audio = [
        sum(
            np.sin(2 * np.pi * pitch * seconds) * np.exp(-3 * np.maximum(seconds - start, 0)) * (seconds >= start) for pitch, start in notes
        )
        for notes in (zip(110 * 2 ** (generator.integers(0, 36, 5) / 12), generator.uniform(0, 1.5, 5), strict=True) for _ in range(batch))
    ]
    noise = 0.05 * generator.standard_normal((batch, 43844))  # the model takes logarithms: silence would be all rounding
    return basic_pitch, [(0.2 * np.stack(audio) + noise)[..., None].astype(np.float32)]
