"""The torch zoo by way of torch.onnx.export: the imported file passes the golden of the direct export and runs in the same steps; written as ONNX
again, it passes the golden in ONNX Runtime too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from exporters.errors import MissingFrameworkError
from exporters.from_onnx import load
from exporters.from_torch import export
from exporters.models.zoo import all_models, get_model
from exporters.to_onnx import to_onnx
from rml_exec import Executor
from rml_exec.ir.golden import Golden, read_golden
from rml_exec.loading import load_graph

onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")  # what torch.onnx.export works with

pytestmark = [pytest.mark.onnx, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

MODELS = [name for name, model in all_models().items() if model.framework == "torch"]


def exported(name: str, size: str, directory: Path) -> tuple[Path, Path]:
    """Exports a zoo model directly and by way of ONNX; returns the prefix of the direct export and the path of the ONNX file."""
    model = get_model(name, size=size)
    try:
        built, example = model.build()
    except MissingFrameworkError as error:
        pytest.skip(str(error))
    inputs = tuple(example.values()) if isinstance(example, dict) else tuple(example)
    prefix, path = directory / model.name, directory / "model.onnx"
    export(built, example, prefix, name=model.name)
    torch.onnx.export(built.eval(), inputs, str(path), dynamo=True, external_data=size == "full", verbose=False)
    return prefix, path


def steps(executor: Executor) -> list[str]:
    """Returns the labels of the steps; what torch.onnx.export has folded into a convolution no step is called after."""
    return [step.label.replace("+batch_norm", "") for step in executor.steps]


def check_outputs(got: Sequence[np.ndarray], golden: Golden, names: Sequence[str]) -> None:
    for name, array in zip(names, got, strict=True):
        rtol, atol = (float(golden.metadata[f"{kind}.{name}"]) for kind in ("rtol", "atol"))
        np.testing.assert_allclose(array, golden.outputs[name], rtol=rtol, atol=atol, err_msg=name)


def check_model(name: str, size: str, directory: Path) -> None:
    prefix, path = exported(name, size, directory)
    golden, imported, direct = read_golden(f"{prefix}.golden.safetensors"), Executor.create(load(path)), Executor.create(load_graph(prefix))
    inputs = [golden.inputs[value.name] for value in direct.graph.inputs]
    outputs = [output.name for output in direct.graph.outputs]
    feed = dict(zip((value.name for value in imported.graph.inputs), inputs, strict=True))
    check_outputs(list(imported.run(feed).values()), golden, outputs)
    assert steps(imported) == steps(direct)
    again = to_onnx(imported.graph, directory / "again.onnx", external_data=size == "full")  # checked by onnx.checker
    session = onnxruntime.InferenceSession(str(again.path), providers=["CPUExecutionProvider"])
    check_outputs(session.run(None, dict(zip((value.name for value in session.get_inputs()), inputs, strict=True))), golden, outputs)


@pytest.mark.parametrize("name", MODELS)
def test_tiny_twins(name: str, tmp_path: Path) -> None:
    check_model(name, "tiny" if "tiny" in get_model(name).sizes else "full", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_full_size(name: str, tmp_path: Path) -> None:
    check_model(name, "full", tmp_path)
