"""Models for JAX: flax.nnx modules, Keras on the JAX backend, symbolic dims, and the zoo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.dims import Dim
from exporters.errors import ExportError
from exporters.from_jax import export, to_graph
from exporters.models.zoo import all_models, export_model
from rml_exec import Executor
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.jax_support import normal, ops

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402

pytestmark = pytest.mark.jax

MODELS = [model for model in all_models().values() if model.framework == "jax"]


class Everything(nnx.Module):
    """Twelve layers in a list, whose names do not sort as they stand; attention, norms, dropout, a recurrence."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(3, 8, rngs=rngs), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(8, 8 + index % 2, rngs=rngs) for index in range(0, 24, 2)])

    def __call__(self, sequence: Any, scale: Any = 1.0) -> Any:
        x = self.norm(self.attention(self.rnn(sequence)))
        for layer in self.layers:
            x = jnp.tanh(layer(self.drop(x)))
        return x * scale


def check_model(model: Any, inputs: list[np.ndarray], want: Any, **options: Any) -> Graph:
    graph = to_graph(model, inputs, name="test", **options)
    got = run_reference(graph, dict(zip([value.name for value in graph.inputs], inputs, strict=True)), precision="f32")
    np.testing.assert_allclose(got["y"], np.asarray(want), rtol=1e-5, atol=2e-6)
    return graph


def test_an_nnx_module_is_exported_as_it_is() -> None:
    model = Everything()
    model.eval()
    x = normal(2, 5, 3)
    graph = check_model(model, [x], model(x))
    assert [value.name for value in graph.inputs] == ["sequence"]
    assert {"lstm", "attention", "batch_norm", "linear"} <= set(ops(graph))
    assert {"layers.11.kernel", "norm.var", "attention.query.bias"} <= {constant.key for constant in graph.constants}
    check_model(model, [x, np.float32(3)], model(x, 3.0))


def test_an_nnx_module_in_training_mode_is_refused() -> None:
    model = Everything()
    model.attention.deterministic = True
    with pytest.raises(ExportError, match=r"drop, norm in training mode.*model\.eval\(\)"):
        to_graph(model, [normal(2, 5, 3)], name="t")


def test_an_nnx_module_that_writes_its_state_is_refused() -> None:
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.calls = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x: Any) -> Any:
            self.calls.set_value(self.calls.get_value() + 1)
            return x * 2

    with pytest.raises(ExportError, match="must not write its own state; got calls"):
        to_graph(Counter(), [normal(2)], name="t")


def test_shared_nnx_weights_are_stored_once() -> None:
    class Tied(nnx.Module):
        def __init__(self) -> None:
            self.embed = nnx.Embed(7, 4, rngs=nnx.Rngs(0))

        def __call__(self, ids: Any) -> Any:
            return self.embed.attend(self.embed(ids))

    model = Tied()
    ids = np.array([[1, 0, 6]], np.int32)
    assert [constant.key for constant in check_model(model, [ids], model(ids)).constants] == ["embed.embedding"]


KERAS = """
import sys
import keras, numpy as np
from keras import layers
from exporters.errors import ExportError
from exporters.from_jax import export, to_graph

x = keras.Input((8, 8, 3), name="image")
y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
y = layers.LayerNormalization()(layers.Activation("gelu")(y))
y = layers.Reshape((64, 4))(y)
y = layers.Dropout(0.5)(layers.MultiHeadAttention(2, 3)(y, y))
y = layers.GRU(5)(layers.Bidirectional(layers.LSTM(3, return_sequences=True))(y))
model = keras.Model(x, layers.Dense(3, activation="softmax")(y))
generator = np.random.default_rng(0)
for variable in model.variables:
    variable.assign(generator.uniform(0.3, 0.9, variable.shape))
if keras.backend.backend() != "jax":
    try:
        to_graph(model, [np.zeros((1, 8, 8, 3), np.float32)], name="t")
    except ExportError as error:
        sys.exit(str(error))
print(export(model, [generator.standard_normal((2, 8, 8, 3), np.float32)], sys.argv[1]))
a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
graph = to_graph(keras.Model([a, b], layers.Dense(2)(layers.Subtract()([a, b]))), [np.ones((1, 4), np.float32)] * 2, name="two")
assert [value.name for value in graph.inputs] == ["a", "b"]
assert [node.op for node in to_graph(layers.Dense(3), [np.ones((1, 4), np.float32)], name="layer").nodes] == ["linear"]
"""


def run_keras(backend: str, prefix: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, "-c", KERAS, str(prefix)], env=environment, capture_output=True, text=True, check=False)


def test_keras_on_the_jax_backend(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    done = run_keras("jax", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    graph = load_graph(tmp_path / "model")
    assert [value.name for value in graph.inputs] == ["image"]
    assert {"conv2d", "batch_norm", "gelu", "layer_norm", "attention", "gru", "lstm", "softmax"} <= set(ops(graph))
    assert {"conv2d/kernel", "batch_normalization/moving_variance", "dense/bias"} <= {constant.key for constant in graph.constants}


def test_keras_on_another_backend_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    done = run_keras("numpy", tmp_path / "model")
    assert "KERAS_BACKEND=jax" in done.stderr


def test_symbolic_dims(tmp_path: Path) -> None:
    def function(p: Any, x: Any) -> Any:
        q = x @ p["w"] + p["positions"][jnp.arange(x.shape[1])]
        q = q.reshape(*q.shape[:2], 2, 4)
        y = jax.nn.dot_product_attention(q, q, q, is_causal=True).reshape(*x.shape[:2], 8)
        state, rows = jax.lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros((x.shape[0], 8)), y.swapaxes(0, 1))
        return state + rows.mean(0)

    params = {"w": normal(3, 8), "positions": normal(40, 8)}
    dims = [Dim("batch", 1, 8), Dim("tokens", 2, 40, 1)]
    export(function, [normal(2, 6, 3)], tmp_path / "model", params=params, dims=dims)
    graph = load_graph(tmp_path / "model")
    assert set(graph.dims) == {"batch", "tokens"}
    assert {"attention", "scan"} <= set(ops(graph))
    executor = Executor.create(graph, threads=1)
    for batch, tokens in ((1, 2), (3, 17), (8, 40)):
        x = normal(batch, tokens, 3, seed=tokens)
        np.testing.assert_allclose(executor.run([x])["y"], np.asarray(function(params, x)), rtol=1e-4, atol=1e-5)


def test_further_golden_sets(tmp_path: Path) -> None:
    export(lambda x: jnp.sin(x), [normal(3)], tmp_path / "sin", goldens=3)
    inputs = [read_golden(tmp_path / f"sin.golden{number}.safetensors").inputs["x"] for number in ("", ".1", ".2")]
    assert len({array.tobytes() for array in inputs}) == 3


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_small_zoo_models_run_as_jax_does(model: Any, tmp_path: Path) -> None:
    name = model.name + ("-tiny" if "tiny" in model.sizes else "")
    check_zoo_model(name, tmp_path, {"jax_transformer": "attention", "jax_resnet50": "batch_norm", "jax_gru": "gru"}.get(model.name))


def test_a_zoo_model_of_several_rows(tmp_path: Path) -> None:
    check_zoo_model("jax_vit_s16-tiny-b3", tmp_path, "attention")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_zoo_models_run_as_jax_does(model: Any, tmp_path: Path) -> None:
    check_zoo_model(model.name, tmp_path, None)


def check_zoo_model(name: str, folder: Path, op: str | None) -> None:
    summary = export_model(name, folder)
    assert is_finished(folder / name)
    assert summary.golden_error < 5e-6
    graph, golden = load_graph(folder / name), read_golden(folder / f"{name}.golden.safetensors")
    assert op is None or op in ops(graph)
    got = Executor.create(graph, threads=1).run(golden.inputs)
    for output, want in golden.outputs.items():
        np.testing.assert_allclose(got[output], want, float(golden.metadata[f"rtol.{output}"]), float(golden.metadata[f"atol.{output}"]))
    bodies = [graph, *graph.functions.values()]
    assert all(np.ptp(constant.data) > 0 for body in bodies for constant in body.constants if constant.key)
