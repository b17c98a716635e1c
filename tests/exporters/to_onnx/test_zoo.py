"""The zoo on its way out: every model's tiny twin as an ONNX file that gives its golden's outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from exporters.errors import MissingFrameworkError  # noqa: E402
from exporters.models.zoo import all_models, export_model, get_model  # noqa: E402
from exporters.to_onnx import to_onnx  # noqa: E402
from tests.exporters.to_onnx.onnx_runs import OPSETS, operators  # noqa: E402

FAST = ("torch_cnn", "torch_transformer", "torch_mobilenet_v2", "torch_lstm", "jax_cnn", "jax_gru", "tf_cnn", "tf_lstm")
"""One of each kind; exporting all of them takes minutes."""

MODELS = [
    pytest.param(name, marks=[getattr(pytest.mark, model.framework), *([] if name in FAST else [pytest.mark.slow])])
    for name, model in all_models().items()
]
CHANNELS_LAST = ("jax_cnn", "jax_resnet50", "tf_cnn", "tf_efficientnet_b0", "tf_mobilenet_v2", "tf_resnet50")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_its_golden(name: str, tmp_path: Path) -> None:
    sizes = get_model(name).sizes
    model = get_model(name, size=sizes[-1])
    try:
        export_model(model.name, tmp_path)
    except MissingFrameworkError as error:
        pytest.skip(str(error))
    for opset in OPSETS:
        summary = to_onnx(tmp_path / model.name, tmp_path / f"{opset}.onnx", opset=opset)
        assert summary.golden == "pass"
    if name in CHANNELS_LAST:
        assert operators(onnx.load(summary.path)).count("Transpose") == 1
