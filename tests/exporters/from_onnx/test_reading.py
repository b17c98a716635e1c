"""Model files that nobody vouches for: one clear report, and no file outside the model's folder is read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exporters.__main__ import main
from exporters.errors import ExportError
from exporters.from_onnx import load, to_graph
from rml_exec.errors import RmlError
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.text_models import onnx, parsed

pytestmark = pytest.mark.onnx

MODEL = "g (float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"
W = np.arange(1, 4, dtype=np.float32)


def external_model(location: str, **entries: int | str) -> onnx.ModelProto:
    """Returns the model with its weight in another file."""
    model = parsed(MODEL)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


def written(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_model_is_a_path_bytes_or_a_message(tmp_path: Path) -> None:
    model = parsed(MODEL)
    path = written(tmp_path, model)
    for source in (path, str(path), model.SerializeToString(), model):
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(run_reference(load(source), {"x": x}, precision="f32")["y"], x * W)


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_external_data_in_the_models_folder_are_mapped(tmp_path: Path, location: str) -> None:
    data = tmp_path / location
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(b"\0" * 64 + W.tobytes() + b"more")
    graph = load(written(tmp_path, external_model(location, offset=64, length=12)))
    np.testing.assert_array_equal(graph.constants[0].data, W)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.bin"
    path.write_bytes(W.tobytes())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link.bin").symlink_to(path)
    (tmp_path / "models" / "up").symlink_to(tmp_path)
    return path


@pytest.mark.parametrize(
    "location", ["../secret.bin", "link.bin", "up/secret.bin", "models/../../secret.bin", "ABSOLUTE", "", "a\0b", "C:\\x"]
)
def test_external_data_outside_the_models_folder_are_refused(tmp_path: Path, secret: Path, location: str) -> None:
    path = written(tmp_path / "models", external_model(str(secret) if location == "ABSOLUTE" else location))
    with pytest.raises(ExportError, match="must be a file in the model's folder"):
        load(path)


def test_a_link_within_the_models_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(W.tobytes())
    (tmp_path / "w.bin").symlink_to("blob")
    model = tmp_path / "store"
    assert load(written(tmp_path, external_model("w.bin"))).constants[0].data.tolist() == [1, 2, 3]
    assert not model.exists()


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"offset": 8}, "within the file"),
        ({"offset": -4}, "within the file"),
        ({"length": 4}, "must be 12 bytes"),
        ({"offset": "x"}, "whole numbers"),
    ],
)
def test_external_data_of_the_wrong_size(tmp_path: Path, entries: dict[str, int | str], match: str) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ExportError, match=match):
        load(written(tmp_path, external_model("w.bin", **entries)))


def test_external_data_must_be_an_ordinary_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(ExportError, match="ordinary file"):
        load(written(tmp_path, external_model("w.bin")))
    with pytest.raises(ExportError, match="must be readable"):
        load(written(tmp_path, external_model("missing.bin")))


def test_external_data_of_a_message_cannot_be_found() -> None:
    with pytest.raises(ExportError, match="was not read from a file"):
        load(external_model("w.bin"))


def emptied(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].ClearField("float_data")


def shortened(model: onnx.ModelProto) -> None:
    emptied(model)
    model.graph.initializer[0].raw_data = b"1234"


def huge(model: onnx.ModelProto) -> None:
    emptied(model)
    model.graph.initializer[0].dims[:] = [1 << 40]


def negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-3]


def too_new(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 10_000


def without_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def newer_format(model: onnx.ModelProto) -> None:
    model.ir_version = 10_000


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Frobnicate"


def unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


def unknown_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "nothing"


def unknown_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nothing"


def strings(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING


def strange_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 4711


def sequence(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(model.graph.input[0].type))


def untyped(model: onnx.ModelProto) -> None:
    model.graph.input[0].ClearField("type")


def without_rank(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (emptied, "tensor 'w' has no data"),
        (shortened, "tensor 'w' of 3 elements has 4 bytes"),
        (huge, "tensor 'w' has no data"),
        (negative, "tensor 'w' has the shape"),
        (too_new, "pip install --upgrade onnx"),
        (without_opset, "imports no operator set of domain 'ai.onnx'"),
        (newer_format, "known version of the file format"),
        (unknown_operator, r"Frobnicate \(1x\): onnx .* knows no such operator"),
        (unknown_domain, r"com.example.Mul \(1x\): the model imports no operator set of domain 'com.example'"),
        (unknown_input, "reads 'nothing', which is no input"),
        (unknown_output, "reads 'nothing'"),
        (strings, "input 'x': element type string is not supported"),
        (strange_type, "element type number 4711"),
        (sequence, "input 'x': type sequence is not supported"),
        (untyped, "input 'x': type unknown is not supported"),
        (without_rank, "--input-shape x="),
    ],
)
def test_damaged_models(damage: Callable[[onnx.ModelProto], None], match: str) -> None:
    model = parsed(MODEL)
    damage(model)
    with pytest.raises(RmlError, match=match) as raised:
        to_graph(model)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"hello world, this is no model", b"\x08\x07", b"\xff" * 100])
def test_files_that_are_no_models(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="is no ONNX model"):
        load(path)
    with pytest.raises(ExportError, match="cannot be read"):
        load(tmp_path / "missing.onnx")
    with pytest.raises(ExportError, match="cannot be read"):
        load(tmp_path)


def test_truncated_and_damaged_files_end_with_one_error() -> None:
    model = parsed(
        """g (bool c, float[1,3,8,8] x) => (float[1,3,8,8] y) <float[3,3,3,3] w = {0.5}, int64[1] axes = {1}> {
            k = Conv <pads: ints = [1, 1, 1, 1]> (x, w)
            s = ReduceSum <keepdims: int = 1> (k, axes)
            y = If (c) <then_branch = t () => (float[1,3,8,8] a) { a = Add(x, s) }, else_branch = e () => (float[1,3,8,8] b) { b = Clip(x) }>
        }"""
    )
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w"))
    content = model.SerializeToString()
    to_graph(content)
    generator, refused, accepted = random.Random(5), 0, 0
    damaged = [content[:size] for size in range(0, len(content), 7)]
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(generator.choice((1, 1, 2, 5))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        damaged.append(bytes(changed))
    for case in damaged:
        try:
            to_graph(case)
        except RmlError as error:
            refused += error.exit_code == 2
        else:
            accepted += 1
    assert refused + accepted == len(damaged)
    assert refused > len(damaged) // 2


FUNCTIONS = """
<opset_import: ["" : 22, "local" : 1], domain: "local"> {first} (x) => (y) {{ y = local.{second}(x) }}
<opset_import: ["" : 22, "local" : 1], domain: "local"> {second} (x) => (y) {{ y = {third}(x) }}
"""


@pytest.mark.parametrize(
    ("second", "third", "circle"),
    [("inner", "local.outer", "outer calls inner calls outer"), ("inner", "local.inner", "inner calls inner")],
)
def test_functions_that_call_themselves_are_refused(second: str, third: str, circle: str) -> None:
    local = FUNCTIONS.format(first="outer", second=second, third=third)
    with pytest.raises(ExportError, match=f"must not call themselves; got {circle}"):
        to_graph(parsed("g (float[2] x) => (float[2] y) { y = local.outer(x) }", local=local))


def test_functions_that_explode_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.from_onnx.reading.MOST_NODES", 1000)
    header = '<opset_import: ["" : 22, "local" : 1], domain: "local">'
    bodies = [f"{header} f{level} (x) => (y) {{ a = local.f{level + 1}(x) y = local.f{level + 1}(a) }}" for level in range(40)]
    model = parsed(
        "g (float[2] x) => (float[2] y) { y = local.f0(x) }", local="\n".join([*bodies, f"{header} f40 (x) => (y) {{ y = Neg(x) }}"])
    )
    with pytest.raises(ExportError, match="at most 1,000 nodes"):
        to_graph(model)


def test_all_that_is_refused_is_listed_with_counts_and_places() -> None:
    model = parsed(
        "g (float[2] x) => (float[2] y) { a = Frob(x) b = Frob(a) c = Multinomial(x) d = Neg(b) e = Frob(d) f = Add(e, c) y = Frob(x) }"
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("f", 1, [2]))
    with pytest.raises(RmlError) as raised:
        to_graph(model)
    assert "2 operators in 5 nodes" in str(raised.value)  # of what reads a refused value only operators that nothing knows
    assert "Frob (4x)" in str(raised.value)
    assert "Multinomial (1x): random numbers" in str(raised.value)


def test_the_command_ends_with_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, parsed(MODEL))
    path.write_bytes(path.read_bytes()[:40])
    assert main(["--from", "onnx", str(path), "--out", str(tmp_path / "out")]) == 2
    shown = capfd.readouterr().err
    assert shown.count("\n") == 1
    assert "is no ONNX model" in shown
