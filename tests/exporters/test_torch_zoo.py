"""The torch models of the zoo from end to end: tiny twins here, full-size ones marked slow; symbolic dims; the first node that differs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.dims import Dim, parse_dim
from exporters.errors import ExportError
from exporters.from_torch import export, to_graph
from exporters.models.zoo import all_models, export_model, get_model
from rml_exec import Executor
from rml_exec.graph_run import compare_with_golden
from rml_exec.ir.golden import read_golden
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

MODELS = [name for name, model in all_models().items() if model.framework == "torch"]
LARGE = [name for name in MODELS if "tiny" in get_model(name).sizes]


def assert_executor_agrees(prefix: Path, goldens: int = 1) -> None:
    """Compares what an executor with one thread makes of every golden set, under its own tolerance."""
    executor = Executor.create(load_graph(prefix), threads=1)
    for number in range(goldens):
        golden = read_golden(f"{prefix}.golden{f'.{number}' if number else ''}.safetensors")
        inputs = {name: np.array(array) for name, array in golden.inputs.items()}
        assert compare_with_golden(executor.run(inputs), golden).passed


@pytest.mark.parametrize("name", MODELS)
def test_a_model_exports_from_end_to_end(name: str, tmp_path: Path) -> None:
    model = get_model(name, size="tiny")
    summary = export_model(model.name, tmp_path, goldens=2)
    assert is_finished(tmp_path / model.name, goldens=2)
    assert summary.golden_error < 1e-5
    golden = read_golden(tmp_path / f"{model.name}.golden.safetensors")
    single = run_reference(load_graph(tmp_path / model.name), golden.inputs, precision="f32")
    assert compare_with_golden(single, golden).passed
    assert all(0.2 < np.sqrt(np.mean(output**2)) < 5 for output in golden.outputs.values())
    assert_executor_agrees(tmp_path / model.name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_full_size_model_exports_from_end_to_end(name: str, tmp_path: Path) -> None:
    summary = export_model(name, tmp_path)
    assert (summary.parameters, summary.flops) == (get_model(name).parameters, get_model(name).flops)
    assert summary.golden_error < 1e-5
    assert_executor_agrees(tmp_path / name)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in LARGE])
def test_parameters_and_flops_are_as_listed(name: str, tmp_path: Path) -> None:
    summary = export_model(name, tmp_path)
    assert (summary.parameters, summary.flops) == (get_model(name).parameters, get_model(name).flops)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_bert_base", {"attention": 2, "layer_norm": 5, "gelu": 2, "linear": 13, "take": 4}),
        ("torch_gpt2", {"attention": 2, "layer_norm": 5, "linear": 9, "gelu": 2, "take": 2}),
        ("torch_vit_b16", {"attention": 2, "layer_norm": 5, "gelu": 2, "linear": 13, "conv2d": 1}),
        ("torch_lstm", {"lstm": 4, "concat": 2, "linear": 1}),
        ("torch_unet", {"conv2d_transpose": 2, "max_pool": 2, "concat": 2}),
        ("torch_efficientnet_b0", {"silu": 25, "avg_pool": 0, "pad": 5}),
        ("torch_mobilenet_v2", {"clamp": 35, "pad": 18}),
    ],
)
def test_composites_stay_whole(name: str, expected: dict[str, int]) -> None:
    model, inputs = get_model(name, size="tiny").build()
    counts = Counter(node.op for node in to_graph(model, inputs, name="t").nodes)
    assert {op: counts[op] for op in expected} == expected


def test_a_causal_mask_that_a_model_builds_is_known_to_be_one() -> None:
    model, inputs = get_model("torch_gpt2-tiny").build()
    masks = [node.attrs["mask"] for node in to_graph(model, inputs, name="t").nodes if node.op == "attention"]
    assert masks == ["causal", "causal"]


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_has_the_same_weights(name: str) -> None:
    (one, inputs), (three, batch) = (get_model(name, size="tiny", batch=rows).build() for rows in (1, 3))
    assert [tensor.shape[0] for tensor in batch] == [3] * len(inputs)
    for (key, a), b in zip(one.state_dict().items(), three.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


def test_weights_do_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    try:
        states = []
        for count in (1, 2):
            torch.set_num_threads(count)
            states.append(get_model("torch_resnet50-tiny").build()[0].state_dict())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("torch_resnet18-tiny", ["batch=1..64"]),
        ("torch_bert_base-tiny", ["batch=1..64", "tokens=2..32@1"]),
        ("torch_gpt2-tiny", ["tokens=2..32@1"]),
        ("torch_lstm-tiny", ["batch=1..64", "steps=1..40@1"]),
        ("torch_cnn", ["height=32..64@2", "width=32..@x.3"]),
    ],
)
def test_symbolic_dims_agree_with_torch_at_three_sizes(name: str, dims: list[str], tmp_path: Path) -> None:
    model, inputs = get_model(name).build()
    export(model, inputs, tmp_path / "model", dims=[parse_dim(text) for text in dims])
    shapes = set()
    for suffix in ("", ".1", ".2"):
        golden = read_golden(tmp_path / f"model.golden{suffix}.safetensors")
        shapes.add(str([array.shape for array in golden.inputs.values()]))
    assert len(shapes) == 3
    assert_executor_agrees(tmp_path / "model", 3)


def test_recurrent_layers_take_sequences_of_any_length(tmp_path: Path) -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lstm = torch.nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
            self.gru = torch.nn.GRU(12, 5)

        def forward(self, x: Any, state: Any) -> Any:
            y, (h, _) = self.lstm(x)
            return *self.gru(y.transpose(0, 1), state), h

    inputs = {"x": torch.randn(3, 7, 4), "state": torch.randn(1, 3, 5)}
    export(Layers().eval(), inputs, tmp_path / "layers", dims=[parse_dim("batch=1..8@x.0,state.1"), parse_dim("steps=1..40@x.1")])
    assert_executor_agrees(tmp_path / "layers", 3)
    nodes = load_graph(tmp_path / "layers").nodes
    assert [node.inputs[4:] for node in nodes if node.op == "lstm"] == [(None, None)] * 4  # zeros of any batch are left out
    assert not vars(torch._VF).keys() & {"lstm", "gru"}


@pytest.mark.parametrize(
    ("function", "dim", "message"),
    [
        (lambda x: x.reshape(3, 4), Dim("batch"), "batch"),
        (lambda x: x if x.shape[0] == 3 else -x, Dim("batch"), "batch"),
        (lambda x: x.reshape(x.shape[0] // 2, 8), Dim("batch"), "is invalid for input of size"),
        (lambda x: x * x.shape[0] ** 0.5, Dim("batch"), "depends on them"),
    ],
)
def test_a_dim_that_cannot_stay_symbolic_is_named(function: Any, dim: Dim, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        to_graph(function, [torch.randn(3, 4)], name="fixed", dims=[dim])


def test_numbers_that_torch_counts_are_counted_by_the_graph(tmp_path: Path) -> None:
    def positions(x: Any) -> Any:
        count = x.shape[1]
        steps = torch.arange(count) + torch.arange(1, 2 * count + 1, 2)
        later = torch.full((count, count), -1.0).triu(1) * torch.empty(count).fill_(2.0)
        return (
            x[:, 1:] * 2,
            torch.where(x > 0, x + steps * 0.5 + torch.zeros(count) + later[0], count),
            x.mean(1) + x.shape[0],
            torch.cat([x, x.flip(1)], 1),
        )

    export(positions, [torch.randn(2, 5)], tmp_path / "positions", dims=[Dim("rows", 1, 8), Dim("count", 3, 64, 1)])
    assert_executor_agrees(tmp_path / "positions", 3)


def test_the_first_node_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporters.from_torch.context import ATEN, Context

    def wrong(ctx: Context, x: str) -> str:
        return str(ctx.add("mul", [ctx.step("sin", [x]), ctx.scalar(1.01, ctx.type(x).dtype)]))

    def model(x: Any) -> Any:
        return (x * 2).cos().sin().exp().sum(1)

    monkeypatch.setitem(ATEN._functions, "aten.sin", wrong)
    with pytest.raises(
        ExportError, match=r"output 'y': .* First node that differs: mul 'sin' \(aten\.sin\.default, test_torch_zoo\.py:\d+\)"
    ):
        export(model, [torch.randn(3, 4)], tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_every_core_operator_is_lowered_or_refused_with_a_reason() -> None:
    from exporters.from_torch.context import ATEN
    from exporters.from_torch.program import DECOMPOSED
    from exporters.from_torch.walker import REFUSED, SYMBOLIC

    lowered = {".".join(name.split(".")[:2]) for name in ATEN.names()}
    core = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            core |= {str(packet) for overload in packet.overloads() if torch.Tag.core in getattr(packet, overload).tags}
    assert len(core) > 150
    assert core - lowered - set(REFUSED) - SYMBOLIC - DECOMPOSED == set()
    assert all(REFUSED.values())
