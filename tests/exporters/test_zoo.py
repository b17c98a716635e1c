"""The zoo and the command ``python -m exporters``, without a framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from exporters import __main__ as command
from exporters.bundle import is_finished, write_export
from exporters.errors import ExportError, MissingFrameworkError, Unsupported, UnsupportedOperatorsError
from exporters.lowering import LoweringTable, golden_inputs, name_inputs, name_outputs
from exporters.models import zoo
from rml_exec.ir.graph import Graph

SMALL = {"torch_mlp", "torch_cnn", "torch_transformer", "jax_mlp", "jax_cnn", "tf_mlp", "tf_cnn"}
LARGE = {"resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "vit_b16", "bert_base", "gpt2", "unet", "lstm"}
EXPECTED = SMALL | {f"torch_{name}" for name in LARGE}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, small_graph: Graph, small_run: dict[str, Any]) -> list[str]:
    """Makes the exporter of torch one that needs no torch; gives the names of what it exported."""
    names: list[str] = []

    def export(model: Any, example_inputs: Any, prefix: Path, *, name: str) -> Any:
        names.append(name)
        if model == "broken":
            raise ExportError.of("torch export", "it is broken")
        return write_export(small_graph, prefix, **small_run)

    models = {name: zoo.ZooModel(name, "torch", lambda name=name: (name, ()), "a model") for name in ("good", "broken", "fine")}
    monkeypatch.setattr(zoo, "all_models", lambda: models)
    monkeypatch.setattr(command, "all_models", lambda: models)
    monkeypatch.setitem(sys.modules, "exporters.from_torch", SimpleNamespace(export=export))
    return names


def test_the_zoo_has_the_models_and_no_framework_is_imported_for_that() -> None:
    code = "import sys; from exporters.models.zoo import all_models; print(*all_models()); " + (
        "assert not {'torch', 'jax', 'tensorflow'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) >= EXPECTED


def test_models_have_a_framework_of_their_name_and_come_in_its_order() -> None:
    frameworks = [model.framework for model in zoo.all_models().values()]
    assert frameworks == sorted(frameworks, key=["torch", "jax", "tf"].index)
    assert all(name.startswith(model.framework + "_") and model.description for name, model in zoo.all_models().items())


def test_an_unknown_model_lists_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match=r"no model 'nonsense'.*torch_mlp, .*tf_cnn"):
        zoo.get_model("nonsense")
    assert command.main(["--models", "torch_mlp,nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_list_shows_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} >= EXPECTED


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("torch_mlp", "torch", "torch"),
        ("torch_gpt2", "transformers", "zoo"),
        ("jax_mlp", "jax", "jax"),
        ("tf_mlp", "tensorflow", "tensorflow"),
    ],
)
def test_a_missing_framework_is_exit_code_5_and_says_how_to_install_it(
    name: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "keras", None)
    assert command.main(["--models", name, "--out", str(tmp_path)]) == 5
    message = capsys.readouterr().err
    assert f"pip install rml-exec[{extra}]" in message
    assert message.count("\n") == 1


def test_variants_have_names_of_their_own() -> None:
    twin = zoo.get_model("torch_resnet50", size="tiny", batch=8)
    assert (twin.name, twin.size, twin.batch) == ("torch_resnet50-tiny-b8", "tiny", 8)
    assert zoo.get_model(twin.name) == twin
    assert zoo.get_model("torch_mlp", size="tiny") == zoo.get_model("torch_mlp")  # small enough as it is
    for wrong in ({"size": "huge"}, {"batch": 0}):
        with pytest.raises(ExportError, match=r"model torch_resnet50: (size|batch) must be"):
            zoo.get_model("torch_resnet50", **wrong)


def test_a_model_for_batch_1_says_so() -> None:
    with pytest.raises(ExportError, match="model one: comes for batch 1 only; got 2"):
        zoo.ZooModel("one", "torch", lambda: (None, None), "a model").variant(batch=2)


def test_few_models_are_the_default() -> None:
    assert {name for name, model in zoo.all_models().items() if model.default} == SMALL


def test_a_failed_model_does_not_stop_the_others(exported: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--models", "all", "--out", str(tmp_path)]) == 2
    assert exported == ["good", "broken", "fine"]
    assert capsys.readouterr().err.splitlines()[1] == "broken: torch export: it is broken."
    assert is_finished(tmp_path / "good")
    assert is_finished(tmp_path / "fine")


@pytest.mark.parametrize("arguments", [[], ["--out", "here"], ["--force"], ["--models", ""]])
def test_nothing_named_is_bad_usage(exported: list[str], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert "says nothing to export: --models NAMES or all" in capsys.readouterr().err
    assert exported == []


def test_what_is_finished_is_exported_again_only_by_force(exported: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "good", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    assert "3 nodes of 3 ops, 40 parameters" in capsys.readouterr().err
    assert command.main(arguments) == 0
    assert capsys.readouterr().err == "good: exported already\n"
    (tmp_path / "good.golden.safetensors").unlink()
    assert command.main(arguments) == 0
    assert command.main([*arguments, "--force"]) == 0
    assert exported == ["good"] * 3


def test_each_framework_gets_a_process_and_the_worst_code_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(arguments: list[str], check: bool) -> Any:
        commands.append(arguments[3:])
        return SimpleNamespace(returncode=5 if "jax_mlp" in arguments[4] else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["--models", "torch_mlp,jax_mlp,torch_cnn", "--out", "here", "--force"]) == 5
    assert commands == [
        ["--models", "torch_mlp,torch_cnn", "--out", "here", "--force"],
        ["--models", "jax_mlp", "--out", "here", "--force"],
    ]


def test_a_model_is_defined_once() -> None:
    with pytest.raises(ValueError, match="torch_mlp is defined twice"):
        zoo.zoo_model("torch_mlp", description="again")(zoo.get_model("torch_mlp").build)


def test_a_lowering_is_defined_once() -> None:
    table = LoweringTable()
    lowering = table.lowers("aten.add", "aten.sub")(lambda: None)
    assert (table.get("aten.sub"), table.get("aten.mul"), table.names()) == (lowering, None, ("aten.add", "aten.sub"))
    with pytest.raises(ValueError, match=r"aten\.add is defined twice"):
        table.lowers("aten.add")(lambda: None)


@pytest.mark.parametrize(
    ("inputs", "names", "defaults", "expected"),
    [
        ([1], None, None, ["x"]),
        ([1, 2], None, None, ["x0", "x1"]),
        ([1, 2], None, ["tokens", "mask"], ["tokens", "mask"]),
        ([1, 2], None, ["tokens"], ["x0", "x1"]),
        ([1, 2], ["a", "b"], ["tokens", "mask"], ["a", "b"]),
        ({"p": 1, "q": 2}, None, None, ["p", "q"]),
        ([], None, None, []),
    ],
)
def test_names_of_inputs(inputs: Any, names: Any, defaults: Any, expected: list[str]) -> None:
    values = list(inputs.values()) if isinstance(inputs, dict) else inputs
    assert name_inputs(inputs, names, defaults) == dict(zip(expected, values, strict=True))


@pytest.mark.parametrize("names", [["a"], ["a", "a"], []])
def test_input_names_must_fit(names: list[str]) -> None:
    with pytest.raises(ExportError, match="2 inputs need as many different names"):
        name_inputs([1, 2], names)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (1, [("y", 1)]),
        ((1,), [("y", 1)]),
        ([1, 2], [("y0", 1), ("y1", 2)]),
        ((1, None, 3), [("y0", 1), ("y2", 3)]),
        ({"logits": 1}, [("logits", 1)]),
        ({"a": 1, "b": (2, {"c": 3})}, [("a", 1), ("b.0", 2), ("b.1.c", 3)]),
        ((1, (2, 3)), [("y0", 1), ("y1.0", 2), ("y1.1", 3)]),
    ],
)
def test_names_of_outputs(result: Any, expected: list[tuple[str, Any]]) -> None:
    assert name_outputs(result) == expected


def test_only_constant_float_inputs_are_drawn() -> None:
    examples = {"x": np.zeros((3, 4), np.float32), "scale": np.float32(1), "ids": np.zeros(3, np.int64), "given": np.arange(4.0)}
    drawn = golden_inputs(examples, 7)
    assert (drawn["x"].dtype, drawn["x"].shape) == (np.float32, (3, 4))
    assert drawn["x"].std() > 0.3
    for name in ("scale", "ids", "given"):
        np.testing.assert_array_equal(drawn[name], examples[name])
        assert drawn[name].shape == examples[name].shape
    np.testing.assert_array_equal(drawn["x"], golden_inputs(examples, 7)["x"])
    assert (drawn["x"] != golden_inputs(examples, 8)["x"]).all()


def test_all_unsupported_operators_are_listed_with_counts_and_lines() -> None:
    error = UnsupportedOperatorsError(
        [
            Unsupported("aten.sort.stable", "sort", "model.py:3"),
            Unsupported("aten.rand.default", "rand", "", "it draws random numbers"),
            Unsupported("aten.sort.stable", "sort_1", "model.py:9"),
        ]
    )
    lines = str(error).splitlines()
    assert lines[0].startswith("export: 2 operators in 3 nodes cannot be exported.")
    assert lines[1:] == [
        "  aten.sort.stable (2x): sort at model.py:3, sort_1 at model.py:9",
        "  aten.rand.default (1x): it draws random numbers: rand at unknown source",
    ]
    assert error.exit_code == 2
    assert MissingFrameworkError.exit_code == 5
