"""Models that are not of the zoo: by path, as ONNX files, by an entry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.adapters.base import ARMS
from bench.own_models import ENTRY_VARIABLE, entry_of, from_entry, from_onnx, from_path
from bench.records import read_records
from rml_exec.errors import InputError
from tests.bench.test_cli import command, said, zoo_graphs  # noqa: F401  (fixtures)


def test_a_path_prefix_in_place_of_a_name_is_measured(command, tmp_path, zoo_graphs):  # noqa: F811
    results = tmp_path / "results.jsonl"
    assert command("--models", f"{zoo_graphs}/torch_one.json,torch_two", "--results", str(results), "--format", "csv") == 0
    with results.open() as file:
        models = [record.model for record in read_records(file) if record.framework == "rml"]
    assert models == [os.path.abspath(zoo_graphs / "torch_one"), "torch_two"]


def test_only_arms_that_run_files_take_one(zoo_graphs):  # noqa: F811
    model = from_path(str(zoo_graphs / "torch_one"))
    assert {name for name, arm in ARMS.items() if model.framework in arm.runs} == {"rml", "rml-exact", "onnxruntime", "openvino"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "nowhere/model"], "must be the path prefix of a finished export"),
        (["--onnx", "nowhere.onnx"], "must be an ONNX file; there is none"),
        (["--entry", "module:build"], "needs --from torch, jax or tf"),
        (["--entry", "module", "--from", "jax"], "must be package.module:function"),
        (["--from", "jax"], "goes with --entry"),
    ],
)
def test_bad_usage_is_one_sentence(command, capsys, arguments, words):  # noqa: F811
    assert command(*arguments) == 2
    assert words in said(capsys)


def test_workers_learn_of_the_entry(monkeypatch):
    model = from_entry("package.module:build", "torch")
    assert model.export == ("--from", "torch", "--entry", "package.module:build")
    assert model.name != from_entry("package.other:build", "torch").name
    monkeypatch.setenv(ENTRY_VARIABLE, f"{model.name}=package.module:build")
    assert entry_of(model.name) == "package.module:build"
    assert entry_of("torch_mlp") is None


def test_an_onnx_file_is_imported_into_a_folder_of_its_own(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"x")
    model = from_onnx(str(path))
    assert Path(model.name) == Path("own/net")
    assert model.export == ("--from", "onnx", str(path))
    with pytest.raises(InputError):
        from_onnx(str(tmp_path))
