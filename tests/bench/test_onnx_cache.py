"""The ONNX files beside the exported models."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import onnx_cache
from bench.adapters.base import UnavailableError
from bench.onnx_cache import FOLDER, model_file, product_file
from bench.processes import PYTHON_VARIABLE


def files(graphs: Path) -> set[str]:
    return {path.name for path in (graphs / FOLDER).iterdir()}


@pytest.fixture
def failing_python(monkeypatch, tmp_path):
    """Returns a function that makes the interpreter which writes files one that says something and ends with an exit code."""

    def use(words: str, code: int) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho 'bench.onnx_cache: {words}' >&2\nexit {code}\n")
        python.chmod(0o755)
        monkeypatch.setenv(PYTHON_VARIABLE, str(python))

    return use


@pytest.mark.onnx
def test_a_model_is_written_once(graphs, monkeypatch):
    pytest.importorskip("onnx")
    path = model_file(graphs / "tiny_mlp")
    assert files(graphs) == {path.name}
    written = path.stat().st_mtime_ns
    monkeypatch.setenv(PYTHON_VARIABLE, "/bin/false")
    assert model_file(graphs / "tiny_mlp") == path
    assert path.stat().st_mtime_ns == written


@pytest.mark.onnx
def test_other_weights_are_another_file_and_take_the_place_of_the_old_one(graphs):
    pytest.importorskip("onnx")
    old = model_file(graphs / "tiny_mlp")
    (graphs / FOLDER / f"tiny_mlp-b8-{'0' * 16}.onnx").touch()  # a variant's
    weights = graphs / "tiny_mlp.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    new = model_file(graphs / "tiny_mlp")
    assert files(graphs) == {new.name, f"tiny_mlp-b8-{'0' * 16}.onnx"}
    assert new != old


@pytest.mark.onnx
def test_other_code_makes_another_file(graphs, monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.setattr(onnx_cache, "_writer", lambda: "other")
    other = model_file(graphs / "tiny_mlp")
    monkeypatch.undo()
    assert model_file(graphs / "tiny_mlp") != other


@pytest.mark.onnx
def test_the_product_holds_the_probes_constant(graphs):
    onnx = pytest.importorskip("onnx")
    from bench.probe import operands

    model = onnx.load(product_file(graphs))
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), operands()[1])


def test_onnx_that_is_missing_is_unavailable(graphs, failing_python):
    failing_python("onnx must be installed", 5)
    with pytest.raises(UnavailableError, match=r"^onnx must be installed$"):
        model_file(graphs / "tiny_mlp")


def test_a_model_that_onnx_has_no_words_for_fails_with_the_reason(graphs, failing_python):
    failing_python("cannot say this: that", 2)
    with pytest.raises(RuntimeError, match=r"^cannot say this: that$"):
        model_file(graphs / "tiny_mlp")
    assert not (graphs / FOLDER).exists()


def test_a_writer_that_says_nothing_fails_with_its_exit_code(graphs, monkeypatch):
    monkeypatch.setenv(PYTHON_VARIABLE, shutil.which("false") or sys.executable)
    with pytest.raises(RuntimeError, match="exit code 1"):
        model_file(graphs / "tiny_mlp")


@pytest.mark.onnx
def test_an_unknown_operation_is_told_by_the_real_writer(graphs):
    pytest.importorskip("onnx")
    document = graphs / "tiny_mlp.json"
    graph = json.loads(document.read_text())
    graph["nodes"][0]["op"] = "no_such_op"
    document.write_text(json.dumps(graph))
    with pytest.raises(RuntimeError, match="no_such_op"):
        model_file(graphs / "tiny_mlp")
