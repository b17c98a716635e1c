"""The TensorFlow exporter from end to end: what it accepts, names, refuses, and the models of the zoo."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.dims import parse_dim
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_tf import export, load_saved_model, open_saved_model, to_graph
from exporters.models.zoo import export_model, get_model
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference

needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
pytestmark = [pytest.mark.tf, needs_tensorflow]

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def run(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    return list(
        run_reference(graph, {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}, precision="f32").values()
    )


def test_importing_the_exporter_imports_no_framework() -> None:
    program = (
        "import sys, exporters.from_tf, exporters.models.tf_models; assert not {'tensorflow', 'keras', 'torch', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_tensorflow_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ExportError, match=r"pip install rml-exec\[tensorflow\]") as raised:
        to_graph(lambda x: x, (X,), name="model")
    assert raised.value.exit_code == 5


@pytest.mark.parametrize("kind", ["python", "tf.function", "concrete", "jit", "unknown batch", "keywords", "module"])
def test_what_computes_is_exported(tf: Any, kind: str) -> None:
    weight = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="weight")

    def model(x: Any, scale: Any) -> Any:
        return tf.matmul(x, weight) * scale

    class Module(tf.Module):
        def __call__(self, x: Any, scale: Any) -> Any:
            return model(x, scale)

    unknown = tf.TensorSpec([None, 4]), tf.TensorSpec([])
    inputs: Any = (X, np.float32(2))
    if kind == "keywords":
        inputs = {"scale": np.float32(2), "x": tf.constant(X)}
    entries: dict[str, Callable[[], Any]] = {
        "python": lambda: model,
        "tf.function": lambda: tf.function(model),
        "concrete": lambda: tf.function(model).get_concrete_function(tf.TensorSpec([3, 4]), tf.TensorSpec([])),
        "jit": lambda: tf.function(model, jit_compile=True),
        "unknown batch": lambda: tf.function(model, input_signature=unknown).get_concrete_function(),
        "keywords": lambda: model,
        "module": Module,
    }
    graph = to_graph(entries[kind](), inputs, name="model")
    assert [value.name for value in graph.inputs] == (["scale", "x"] if kind == "keywords" else ["x", "scale"])
    assert [output.name for output in graph.outputs] == ["y"]
    assert [node.op for node in graph.nodes] == ["linear", "mul"]
    assert [(constant.name, constant.key) for constant in graph.constants] == [("weight", "weight")]
    arrays = (np.float32(2), X) if kind == "keywords" else (X, np.float32(2))
    np.testing.assert_allclose(run(graph, *map(np.asarray, arrays))[0], X @ weight.numpy() * 2, rtol=1e-6)


def test_the_signature_of_a_saved_model_is_exported(tf: Any, tmp_path: Path) -> None:
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(np.full((4, 5), 0.5, np.float32), name="projection")

        @tf.function(input_signature=[tf.TensorSpec([None, 4], name="features")])
        def __call__(self, x: Any) -> Any:
            return {"logits": tf.matmul(x, self.weight), "rows": tf.shape(x)[0]}

    tf.saved_model.save(Module(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))  # its variables live as long as it does
    graph = to_graph(loaded.signatures["serving_default"], (X,), name="model")
    assert [output.name for output in graph.outputs] == ["logits", "rows"]
    assert graph.constants[0].key == "projection"
    logits, rows = run(graph, X)
    np.testing.assert_allclose(logits, X @ np.full((4, 5), 0.5, np.float32), rtol=1e-6)
    assert rows == 3


def test_keras_models_are_exported_in_inference_mode(keras: Any) -> None:
    image = keras.Input((4,), name="features")
    hidden = keras.layers.Dense(6, name="hidden")(image)
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.5)(hidden))
    model = keras.Model(image, [keras.layers.Activation("softmax")(hidden), hidden])
    graph = to_graph(model, [X], name="model")
    assert [node.op for node in graph.nodes] == ["linear", "batch_norm", "softmax"]
    assert [output.name for output in graph.outputs] == ["y0", "y1"]
    keys = {constant.name for constant in graph.constants}
    assert keys == {"hidden/kernel", "hidden/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"}
    for got, want in zip(run(graph, X), model(X, training=False), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_keras_model_with_several_inputs(keras: Any, by_name: bool) -> None:
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    model = keras.Model([left, right], left - right) if not by_name else keras.Model({"left": left, "right": right}, left - right)
    graph = to_graph(
        model, {"right": X, "left": 3 * X} if by_name else [3 * X, X], name="model", input_names=None if by_name else ["a", "b"]
    )
    assert [value.name for value in graph.inputs] == (["right", "left"] if by_name else ["a", "b"])
    np.testing.assert_allclose(run(graph, *((X, 3 * X) if by_name else (3 * X, X)))[0], 2 * X, rtol=1e-6)


def test_a_subclassed_keras_model_that_was_never_called(keras: Any) -> None:
    class Gate(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, x: Any, gate: Any, training: bool = True) -> Any:
            return self.dense(x) * (0 * gate if training else gate)

    graph = to_graph(Gate(), [X, X], name="model")
    assert [node.op for node in graph.nodes] == ["linear", "mul"]


def test_tied_weights_are_one_constant_and_other_layouts_another(tf: Any) -> None:
    weight = tf.Variable(np.arange(81, dtype=np.float32).reshape(3, 3, 3, 3), name="shared")
    image = np.ones((1, 5, 5, 3), np.float32)

    def model(x: Any) -> Any:
        twice = tf.nn.conv2d(tf.nn.conv2d(x, weight, 1, "SAME"), weight, 1, "SAME")
        return tf.nn.depthwise_conv2d(twice, weight, [1, 1, 1, 1], "SAME") + tf.reduce_sum(
            tf.matmul(tf.reshape(x[0, :3, :3], [3, 9]), tf.reshape(weight, [9, 9]))
        )

    graph = to_graph(model, (image,), name="model")
    assert [constant.key for constant in graph.constants if constant.type.size == 81] == [
        "shared",
        "shared.depthwise.9x1x3x3",
        "shared.9x9",
    ]
    assert graph.nodes[0].inputs[1] == graph.nodes[1].inputs[1]


def test_weights_are_not_copied_while_the_graph_is_made(tf: Any) -> None:
    weight = tf.Variable(np.ones((300, 300), np.float32), name="weight")
    graph = to_graph(lambda x: x @ weight, (np.ones((1, 300), np.float32),), name="model")
    (constant,) = graph.constants
    assert np.shares_memory(constant.data, np.asarray(weight.read_value()))
    weight.assign(np.zeros((300, 300), np.float32))  # the graph keeps what it was made of
    assert constant.data.all()


def test_strings_are_refused_with_what_to_do(keras: Any) -> None:
    words = keras.Input((1,), dtype="string")
    model = keras.Model(words, keras.layers.Embedding(4, 3)(keras.layers.StringLookup(vocabulary=["a", "b"])(words)))
    with pytest.raises(ExportError, match=r"input 'x': strings are no numbers: look them up before the model"):
        to_graph(model, [np.array([["a"], ["b"]])], name="model")


def test_a_tensor_of_too_many_axes_is_refused_at_its_line(tf: Any) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=r"at most 8 axes.*test_tf_export.py"):
        to_graph(lambda x: tf.reshape(x, [3, 1, 1, 1, 1, 1, 1, 1, 4]) + 1.0, (X,), name="model")


def test_variables_of_one_name_stay_apart(tf: Any) -> None:
    first, second = (tf.Variable(np.full((20,), value, np.float32), name="bias") for value in (1, 2))
    graph = to_graph(lambda x: x + first - second, (np.zeros(20, np.float32),), name="model")
    assert [constant.key for constant in graph.constants] == ["bias", "bias_1"]
    np.testing.assert_array_equal(run(graph, np.zeros(20, np.float32))[0], np.full(20, -1, np.float32))


def test_an_expanded_scalar_does_not_swell_the_weights(tf: Any) -> None:
    graph = to_graph(lambda x: tf.pad(x, [[0, 997], [0, 0]]) + tf.ones([1000, 4]), (X,), name="model")
    assert max(constant.type.size for constant in graph.constants) == 1


def test_outputs_may_be_an_input_a_constant_and_one_value_twice(tf: Any) -> None:
    weight = tf.Variable(np.arange(3, dtype=np.float32))
    graph = to_graph(lambda x: {"b": x, "a": weight, "c": tf.constant(7), "d": (x, None)}, (X,), name="model")
    results = {output.name: array for output, array in zip(graph.outputs, run(graph, X), strict=True)}
    assert set(results) == {"a", "b", "c", "d.0"}
    np.testing.assert_array_equal(results["b"], X)
    np.testing.assert_array_equal(results["a"], [0, 1, 2])
    assert results["c"] == 7


def test_all_unsupported_operators_are_listed_at_once_with_their_lines(tf: Any) -> None:
    def model(x: Any) -> Any:
        first = tf.math.lgamma(x)
        second = tf.math.lgamma(first) + x
        return second + tf.random.normal([3, 4]), tf.where(x > 0), tf.linalg.inv(x[:, :3])

    with pytest.raises(UnsupportedOperatorsError) as raised:
        to_graph(model, (X,), name="model")
    found = raised.value.operators
    assert sorted(operator.op for operator in found) == ["Lgamma", "Lgamma", "MatrixInverse", "RandomStandardNormal", "Where"]
    line = model.__code__.co_firstlineno
    assert {operator.where for operator in found if operator.op == "Lgamma"} == {f"test_tf_export.py:{line + offset}" for offset in (1, 2)}
    reasons = {operator.op: operator.reason for operator in found}
    assert "random numbers" in reasons["RandomStandardNormal"]
    assert "depends on data" in reasons["Where"]
    assert "5 nodes" in str(raised.value)
    assert "Lgamma (2x)" in str(raised.value)


@pytest.mark.parametrize(
    ("reason", "model"),
    [
        ("must be constant", lambda tf, x: tf.reshape(x, tf.cast(x[0, :2], tf.int32))),
        ("element type complex64", lambda tf, x: tf.math.real(tf.cast(x, tf.complex64))),
        ("strings and tables", lambda tf, x: tf.strings.length(tf.strings.as_string(x))),
        ("rounds the weights of bicubic", lambda tf, x: tf.image.resize(x[None, :, :, None], [5, 5], "bicubic")),
        ("whole factors only", lambda tf, x: tf.image.resize(x[None, :, :, None], [2, 3], "area")),
        ("kernel lanczos3", lambda tf, x: tf.image.resize(x[None, :, :, None], [2, 2], "lanczos3")),
        (
            "moving or cropping",
            lambda tf, x: tf.raw_ops.ScaleAndTranslate(
                images=x[None, :, :, None], size=[2, 2], scale=[0.5, 0.5], translation=[1.0, 0.0], kernel_type="triangle"
            ),
        ),
        ("boxes are known at run time", lambda tf, x: tf.image.crop_and_resize(x[None, :, :, None], x, [0, 0, 0], [2, 2])),
        ("several diagonals at once", lambda tf, x: tf.linalg.diag_part(x, k=(0, 1))),
        ("different width", lambda tf, x: tf.bitcast(x, tf.uint8)),
        ("truncates instead of rounding", lambda tf, x: tf.raw_ops.Cast(x=x, DstT=tf.float16, Truncate=True)),
        ("positions within a pool", lambda tf, x: tf.nn.max_pool_with_argmax(x[None, :, :, None], 2, 2, "SAME")[1]),
        ("quantised", lambda tf, x: tf.quantization.fake_quant_with_min_max_args(x)),
        ("which segments there are must be", lambda tf, x: tf.math.segment_sum(x, tf.cast(x[:, 0], tf.int32))),
        ("the end must be constant", lambda tf, x: tf.strided_slice(x, tf.cast(x[:1, 0], tf.int32), [2], begin_mask=1)),
        ("other than single indices", lambda tf, x: x[tf.cast(x[0, 0], tf.int32) :]),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_reason(tf: Any, reason: str, model: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=reason):
        to_graph(lambda x: model(tf, x), (X,), name="model")


def test_a_model_that_changes_its_variables_is_refused(tf: Any, keras: Any) -> None:
    counter = tf.Variable(0.0)

    def model(x: Any) -> Any:
        counter.assign_add(1.0)
        return x + counter

    with pytest.raises(UnsupportedOperatorsError, match=r"AssignAddVariableOp.*changes a variable"):
        to_graph(model, (X,), name="model")
    norm = keras.layers.BatchNormalization()
    with pytest.raises(UnsupportedOperatorsError, match="training mode"):
        to_graph(lambda x: norm(x, training=True), (X,), name="model")


@pytest.mark.parametrize(
    ("message", "model", "inputs"),
    [
        ("must be callable", 3, (X,)),
        ("must be able to trace.*Inputs: x=float32", lambda x: x @ x, (X,)),
        ("as many different names", lambda x: x, (X, X)),
        ("input 'x': must be a tensor", lambda x: x, ([object()],)),
        ("at least one tensor", lambda x: None, (X,)),
    ],
)
def test_entries_that_cannot_be_called_are_explained(message: str, model: Any, inputs: Any) -> None:
    with pytest.raises(ExportError, match=message):
        to_graph(model, inputs, name="model", input_names=["x"])


def test_a_failed_export_leaves_nothing(tf: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperatorsError):
        export(tf.math.lgamma, (X,), tmp_path / "model")
    assert not list(tmp_path.iterdir())


TINY = ("tf_mlp", "tf_cnn", "tf_mobilenet_v2-tiny", "tf_resnet50-tiny", "tf_efficientnet_b0-tiny", "tf_transformer-tiny", "tf_lstm-tiny")
FULL = ("tf_mobilenet_v2", "tf_resnet50", "tf_efficientnet_b0", "tf_transformer", "tf_lstm")
needs_basic_pitch = pytest.mark.skipif(importlib.util.find_spec("basic_pitch") is None, reason="basic-pitch is not installed")


@pytest.mark.parametrize(
    "name",
    [
        *TINY,
        *(pytest.param(name, marks=pytest.mark.slow) for name in FULL),
        pytest.param("tf_basic_pitch", marks=[pytest.mark.slow, needs_basic_pitch]),
    ],
)
def test_the_models_of_the_zoo(name: str, tmp_path: Path) -> None:
    summary = export_model(name, tmp_path)
    assert summary.golden_error < 3e-5
    assert is_finished(tmp_path / name)
    graph, golden = load_graph(tmp_path / name), read_golden(tmp_path / f"{name}.golden.safetensors")
    assert golden.metadata["framework"] == "tensorflow"
    assert graph.producer["options"]["TF_ENABLE_ONEDNN_OPTS"]
    for output, got in run_reference(graph, golden.inputs, precision="f32").items():
        tolerance = float(golden.metadata[f"atol.{output}"]), float(golden.metadata[f"rtol.{output}"])
        np.testing.assert_allclose(got, golden.outputs[output], atol=tolerance[0], rtol=tolerance[1])
        assert 0.03 < np.sqrt(np.mean(np.square(got))) < 30
    ops = [node.op for node in graph.nodes]
    if name == "tf_cnn":
        assert ((0, 1), (0, 1)) in [node.attrs["pads"] for node in graph.nodes if node.op == "conv2d"]
        assert ops.count("batch_norm") == 5


@pytest.mark.parametrize("name", ["tf_cnn", "tf_transformer-tiny", "tf_lstm-tiny"])
def test_models_take_batches(name: str, tmp_path: Path) -> None:
    model = get_model(f"{name}-b3")
    built, inputs = model.build()
    graph = to_graph(built, inputs, name=model.name)
    assert graph.inputs[0].type.shape[0] == 3
    np.testing.assert_allclose(run(graph, *inputs)[0], built(inputs[0], training=False), rtol=2e-3, atol=1e-4)


def test_without_basic_pitch_the_zoo_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match="pip install --no-deps basic-pitch") as raised:
        get_model("tf_basic_pitch").build()
    assert raised.value.exit_code == 5


def test_a_saved_model_is_loaded_by_its_directory(tf: Any, tmp_path: Path) -> None:
    module = tf.Module()
    module.weight = tf.Variable(np.full((4, 5), 0.5, np.float32), name="projection")
    specification = tf.TensorSpec([None, 4], name="features")
    double = tf.function(lambda features: {"twice": 2 * features @ module.weight}, input_signature=[specification])
    once = tf.function(lambda features: {"once": features @ module.weight}, input_signature=[specification])
    tf.saved_model.save(module, str(tmp_path), signatures={"double": double, "once": once})
    with pytest.raises(ExportError, match=r"no signature 'serving_default'.*signatures: double, once"):
        load_saved_model(tmp_path)
    function = load_saved_model(tmp_path, "once")
    gc.collect()  # the variables live with the function
    graph = to_graph(function, (X,), name="model")
    assert [output.name for output in graph.outputs] == ["once"]
    np.testing.assert_allclose(run(graph, X)[0], X @ np.full((4, 5), 0.5, np.float32), rtol=1e-6)


def test_the_command_takes_the_signature_that_is_named(tf: Any, tmp_path: Path) -> None:
    from exporters.__main__ import main

    specification = tf.TensorSpec([None, 3], tf.float32, name="x")
    module = tf.Module()
    double, once = (tf.function(lambda x, by=by: {"y": by * x}, input_signature=[specification]) for by in (2.0, 1.5))
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"double": double, "once": once})
    command = ["--from", "tf", "--saved-model", str(tmp_path / "saved"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert main([*command, "--signature", "once"]) == 0
    graph = load_graph(tmp_path / "out")
    x = np.float32([[1, -2, 3]])
    np.testing.assert_array_equal(run_reference(graph, {graph.inputs[0].name: x}, precision="f32")["y"], 1.5 * x)
    assert main(["--from", "tf", "--entry", "a:b", "--signature", "once", "--out", str(tmp_path / "out")]) == 2


def test_a_saved_model_with_a_forgotten_optimizer_is_loaded(tf: Any, tmp_path: Path) -> None:
    """Keras of years ago saved optimizers as objects that know about variables; TensorFlow refuses them today."""
    from tensorflow.core.protobuf import saved_model_pb2

    module = tf.Module()
    module.weight = tf.Variable([1.0, 2.0], name="weight")
    module.momentum = tf.Variable([3.0, 4.0], name="momentum")
    module.optimizer = tf.Module()
    run_it = tf.function(lambda x: {"y": x * module.weight}, input_signature=[tf.TensorSpec([2], name="x")])
    tf.saved_model.save(module, str(tmp_path), signatures=run_it)
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((tmp_path / "saved_model.pb").read_bytes())
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    children = {child.local_name: child.node_id for child in nodes[0].children}
    slot = nodes[children["optimizer"]].slot_variables.add()
    slot.original_variable_node_id, slot.slot_name, slot.slot_variable_node_id = children["weight"], "momentum", children["momentum"]
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(tmp_path))
    graph = to_graph(load_saved_model(tmp_path), [np.array([5, 6], np.float32)], name="model")
    np.testing.assert_array_equal(run(graph, np.array([5, 6], np.float32))[0], [5, 12])


def test_opening_a_saved_model_makes_inputs_of_one_row(tf: Any, tmp_path: Path) -> None:
    specifications = {"rate": tf.TensorSpec([None, 4], name="rate"), "ids": tf.TensorSpec([2], tf.int32, name="ids")}
    module = tf.Module()
    module.run = tf.function(lambda rate, ids: {"y": rate * 2.0, "n": ids}, input_signature=[specifications["rate"], specifications["ids"]])
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.run)
    function, inputs = open_saved_model(tmp_path / "saved")
    assert {name: (array.shape, array.dtype.name) for name, array in inputs.items()} == {
        "rate": ((1, 4), "float32"),
        "ids": ((2,), "int32"),
    }
    export(function, inputs, tmp_path / "graph")
    assert is_finished(tmp_path / "graph")
    module.run = tf.function(lambda x: {"y": x}, input_signature=[tf.TensorSpec([None, None], name="x")])
    tf.saved_model.save(module, str(tmp_path / "other"), signatures=module.run)
    with pytest.raises(ExportError, match=r"input 'x': its sizes must be known; got \(None, None\)"):
        open_saved_model(tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "text"), [("tf_cnn", "batch=1..64"), ("tf_transformer-tiny", "batch=2..8"), ("tf_lstm-tiny", "batch=1..4")]
)
def test_a_batch_of_any_size(name: str, text: str, tmp_path: Path) -> None:
    model, inputs = get_model(f"{name}-b2").build()
    export(model, inputs, tmp_path / "model", dims=[parse_dim(text)])
    graph = load_graph(tmp_path / "model").bind(batch=3)
    three = np.concatenate([inputs[0], inputs[0] + 1, inputs[0] - 1])[:3]
    np.testing.assert_allclose(run(graph, three)[0], model(three, training=False), rtol=1e-3, atol=1e-4)


def test_a_recurrent_layer_over_any_number_of_steps(keras: Any, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((None, 6)), keras.layers.GRU(4, return_sequences=True), keras.layers.Dense(3)])
    example = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
    export(model, [example], tmp_path / "model", dims=[parse_dim("batch=1..8"), parse_dim("steps=2..@1")], goldens=2)
    graph = load_graph(tmp_path / "model").bind(batch=1, steps=9)
    inputs = np.random.default_rng(1).standard_normal((1, 9, 6)).astype(np.float32)
    np.testing.assert_allclose(run(graph, inputs)[0], model(inputs, training=False), rtol=1e-4, atol=1e-5)
    assert len(list(tmp_path.glob("model.golden*.safetensors"))) == 4


def test_a_dim_that_the_model_fixes_is_refused(keras: Any) -> None:
    model = keras.Sequential([keras.Input((4, 6)), keras.layers.Flatten(), keras.layers.Dense(3)])
    with pytest.raises(ExportError, match=r"must take other sizes .* such as steps=2; got BiasAdd .* the 24 inputs of w"):
        to_graph(model, [np.zeros((2, 4, 6), np.float32)], name="model", dims=[parse_dim("steps=2..@1")])


def test_a_directory_that_is_no_saved_model(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="must be a directory with"):
        load_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"nonsense")
    with pytest.raises(ExportError, match="TensorFlow must be able to load it"):
        load_saved_model(tmp_path)


def test_an_export_repeats_bit_for_bit(tmp_path: Path) -> None:
    model, inputs = get_model("tf_mlp").build()
    for directory in ("first", "second"):
        export(model, inputs, tmp_path / directory / "mlp")
    for suffix in ("json", "safetensors", "golden.safetensors"):
        assert (tmp_path / "first" / f"mlp.{suffix}").read_bytes() == (tmp_path / "second" / f"mlp.{suffix}").read_bytes()
