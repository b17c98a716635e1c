"""Architectures outside the zoo by way of torch.onnx.export, with open dims where they are read: the numbers of torch, attention as one node each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.from_onnx import load
from rml_exec import Executor

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

pytestmark = [pytest.mark.onnx, pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "use_cache": False}
_IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8}


def _model(name: str, **config: Any) -> Callable[[], Any]:
    """Returns how to make a model of transformers with random weights: a class whose name begins with ``name``, less its task."""

    def make() -> Any:
        torch.manual_seed(0)
        family = name.removesuffix("ForCausalLM").removesuffix("Model").removesuffix("Encoder")
        made = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**config)).eval()
        with torch.no_grad():
            for tensor in made.parameters():
                tensor.add_(0.1 * torch.randn_like(tensor))
        return made

    return make


MODELS: dict[str, tuple[Callable[[], Any], int, int]] = {  # name -> how to make it, inputs of a text model (0: an image), attentions
    "distilbert": (_model("DistilBertModel", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64), 2, 2),
    "llama": (_model("LlamaForCausalLM", **_GROUPED), 1, 2),
    "qwen2": (_model("Qwen2ForCausalLM", **_GROUPED), 2, 2),
    "gemma2": (_model("Gemma2ForCausalLM", **_GROUPED, head_dim=8, sliding_window=4, attn_implementation="eager"), 1, 2),
    "t5": (
        _model("T5EncoderModel", vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, attn_implementation="eager"),
        2,
        2,
    ),
    "deit": (_model("DeiTModel", **_IMAGE), 0, 2),
    "swin": (
        _model(
            "SwinModel",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            attn_implementation="eager",
        ),
        0,
        4,
    ),
    "convnext": (_model("ConvNextModel", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=32), 0, 0),
}


class _Positional(torch.nn.Module):
    """A model that takes its inputs by position and gives its first result."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Any) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def _inputs(count: int, batch: int, length: int) -> tuple[Any, ...]:
    if not count:
        return (torch.randn(batch, 3, 32, 32),)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return (torch.randint(0, 99, (batch, length)), mask)[:count]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_torch_gives(name: str, tmp_path: Path) -> None:
    make, count, attentions = MODELS[name]
    names = ["input_ids", "attention_mask"][:count] if count else ["pixel_values"]
    model, example = _Positional(make(), names).eval(), _inputs(count, 2, 12)
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", max=64)}
    shapes = (tuple(dims for _ in example),) if count else None
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, example, str(path), dynamo=True, external_data=False, verbose=False, dynamic_shapes=shapes)
    graph = load(path)
    assert set(graph.dims) == ({"batch", "tokens"} if count else set())
    assert [node.op for node in graph.nodes].count("attention") == attentions
    executor = Executor.create(graph)
    for batch, length in ((2, 12), (1, 5), (3, 17)) if count else ((2, 0),):
        inputs = _inputs(count, batch, length)
        with torch.no_grad():
            want = model(*inputs).numpy()
        (got,) = executor.run({value.name: array.numpy() for value, array in zip(graph.inputs, inputs, strict=True)}).values()
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
