"""Exports from torch: weights, names, refusals, and the models of the zoo from end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.errors import ExportError, MissingFrameworkError, UnsupportedOperatorsError
from exporters.from_torch import export, to_graph
from exporters.models.zoo import export_model, get_model
from rml_exec.errors import KernelError
from rml_exec.ir.golden import read_golden
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.torch


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x)  # applies


def linear() -> Any:
    return Linear().eval()


def line_of(text: str) -> str:
    """Returns file.py:line of the only line of this file that ends with a marker comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{Path(__file__).name}:{number}"


@pytest.mark.parametrize("name", ["torch_mlp", "torch_cnn", "torch_transformer"])
def test_a_zoo_model_exports_from_end_to_end(name: str, tmp_path: Path) -> None:
    summary = export_model(name, tmp_path)
    assert is_finished(tmp_path / name)
    assert summary.golden_error < 5e-6
    model, _ = get_model(name).build()
    assert summary.parameters == sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())

    graph = load_graph(tmp_path / name)
    golden = read_golden(tmp_path / f"{name}.golden.safetensors")
    assert golden.metadata["threads"] == "1"
    single = run_reference(graph, golden.inputs, precision="f32")
    for output, expected in golden.outputs.items():
        rtol, atol = (float(golden.metadata[f"{key}.{output}"]) for key in ("rtol", "atol"))
        np.testing.assert_allclose(single[output], expected, rtol, atol)
        assert 0.3 < np.sqrt(np.mean(expected**2)) < 3


def test_the_zoo_transformer_keeps_its_composites(tmp_path: Path) -> None:
    model, inputs = get_model("torch_transformer").build()
    ops = [node.op for node in to_graph(model, inputs, name="t").nodes]
    counts = {op: ops.count(op) for op in ("attention", "layer_norm", "gelu", "linear")}
    assert counts == {"attention": 4, "layer_norm": 8, "gelu": 4, "linear": 16}


def test_exports_of_one_model_are_equal_byte_for_byte(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        export_model("torch_cnn", tmp_path / directory)
    for suffix in (".json", ".safetensors", ".golden.safetensors"):
        assert (tmp_path / f"a/torch_cnn{suffix}").read_bytes() == (tmp_path / f"b/torch_cnn{suffix}").read_bytes()


def test_weights_have_their_names_and_share_their_memory() -> None:
    model = linear()
    graph = to_graph(model, [torch.zeros(2, 8)], name="linear")
    weights = {constant.key: constant.data for constant in graph.constants}
    assert set(weights) == {"layer.weight", "layer.bias"}
    assert np.shares_memory(weights["layer.weight"], model.layer.weight.detach().numpy())
    assert dict(graph.producer) | {"framework_version": ""} == {
        "framework": "torch",
        "framework_version": "",
        "exporter_version": "0.1.0",
        "options": {"strict": False},
    }
    assert dict(graph.nodes[0].source) == {"op": "aten.linear.default", "where": line_of("applies")}


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embedding.weight
            self.register_buffer("same", self.embedding.weight.detach())

        def forward(self, tokens: Any) -> Any:
            return self.head(self.embedding(tokens)) + self.same.sum()

    summary = export(Tied().eval(), [torch.tensor([[1, 10, 0]])], tmp_path / "tied")
    assert (summary.parameters, summary.weight_bytes) == (66, 264)
    graph = load_graph(tmp_path / "tied")
    assert [constant.key for constant in graph.constants if constant.key] == ["embedding.weight"]


def test_a_view_of_a_weight_is_not_taken_for_the_weight() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.arange(36.0).reshape(6, 6)
            self.register_buffer("base", base)
            self.register_buffer("turned", base.t())

        def forward(self, x: Any) -> Any:
            return x @ self.base + x @ self.turned

    x = torch.eye(6)
    graph = to_graph(Views().eval(), [x], name="views")
    expected = Views()(x).numpy()
    np.testing.assert_array_equal(run_reference(graph, {"x": x.numpy()}, precision="f32")["y"], expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Linear(), r"the model must be in evaluation mode; got the model, layer in training mode\. Hint: call model\.eval\(\)"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout()).eval().append(nn.Dropout()), "got 2 in training mode"),
        (lambda: nn.Sequential(*[nn.Linear(8, 8)] * 1, nn.ReLU(), nn.ReLU(), nn.ReLU()), "and 2 more in training mode"),
        (lambda: 3, "must be a torch.nn.Module or a function; got int"),
        (lambda: linear().to("meta"), r"the model must be on the CPU; got 'layer\.weight' on meta\. Hint: call model\.cpu\(\)"),
    ],
)
def test_a_model_in_the_wrong_state_is_refused(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export(model(), [torch.zeros(2, 8)], tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_all_unsupported_operators_are_listed_with_their_lines() -> None:
    class Unsupported(nn.Module):
        def forward(self, x: Any) -> Any:
            ordered = torch.mode(x).values + x  # picks
            noisy = ordered + torch.rand(4)  # draws
            turned = torch.fft.fft(noisy).real  # transforms
            return torch.mode(turned).indices  # picks again

    with pytest.raises(UnsupportedOperatorsError) as caught:
        to_graph(Unsupported().eval(), [torch.zeros(4)], name="unsupported")
    found = {(operator.op, operator.where) for operator in caught.value.operators}
    assert {
        ("aten.mode.default", line_of("picks")),
        ("aten.rand.default", line_of("draws")),
        ("aten._fft_r2c.default", line_of("transforms")),
        ("aten.mode.default", line_of("picks again")),
    } <= found
    assert "it draws random numbers" in str(caught.value)


def test_a_result_that_cannot_be_computed_is_refused_only_where_it_is_used() -> None:
    def values(x: Any) -> Any:
        return nn.functional.max_pool2d_with_indices(x, 2)[0]

    def both(x: Any) -> Any:
        return nn.functional.max_pool2d_with_indices(x, 2)

    example = [torch.zeros(1, 1, 4, 4)]
    assert [node.op for node in to_graph(values, example, name="values").nodes] == ["max_pool"]
    with pytest.raises(UnsupportedOperatorsError, match="its result number 1 cannot be computed"):
        to_graph(both, example, name="both")


def test_writes_into_buffers_and_inputs_are_refused_with_their_lines() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)  # counts
            x.mul_(2)  # writes
            return x + self.count

    with pytest.raises(UnsupportedOperatorsError) as caught:
        to_graph(Counter().eval(), [torch.zeros(3)], name="counter")
    found = {(operator.where, operator.reason) for operator in caught.value.operators}
    assert found == {
        (line_of("counts"), "it writes into buffer 'count': a graph has no state"),
        (line_of("writes"), "it writes into input 'x': a graph has no state"),
    }


def test_writes_into_the_models_own_tensors_are_followed() -> None:
    def fills(x: Any) -> Any:
        result = torch.zeros(3, 4)
        result[1] = x
        result[:, 2:] += x[2:]
        return result

    x = torch.randn(4)
    graph = to_graph(fills, [x], name="fills")
    np.testing.assert_array_equal(run_reference(graph, {"x": x.numpy()}, precision="f32")["y"], fills(x).numpy())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, "torch.export must be able to trace the model; got"),
        (lambda x: x.reshape(5, 5), "torch.export must be able to trace the model; got RuntimeError: shape"),
        (lambda x: x + 1 if x.nosuch else x, "got AttributeError"),
        (lambda x: (x, 3), "output 'y1': must be a tensor; got 3"),
        (lambda x: torch.nonzero(x), "depend on data"),
        (lambda x: x[x > 0], r"aten.index.Tensor \(1x\): the shape of its result depends on data"),
        (lambda x: x * torch.nonzero(x).shape[0], "depend on data"),
        (lambda x: x * x.sum().item(), "depend on data"),
        (lambda x: torch.view_as_complex(x.reshape(2, 2)), "complex64 is not supported"),
    ],
)
def test_what_no_graph_can_say_is_refused(function: Any, message: str) -> None:
    with pytest.raises((ExportError, UnsupportedOperatorsError), match=message):
        to_graph(function, [torch.ones(4)], name="refused")


def test_a_dtype_without_a_counterpart_is_refused() -> None:
    with pytest.raises(ExportError, match=r"input 'x': torch\.complex64 is not supported"):
        to_graph(lambda x: x.real, [torch.zeros(3, dtype=torch.complex64)], name="complex")


class Several(nn.Module):
    def forward(self, tokens: Any, state: Any, scale: float = 2.0, *, mask: Any = None) -> Any:
        first, named = state
        return tokens * scale + first - named["cell"] * (1 if mask is None else mask)


@pytest.mark.parametrize(
    ("inputs", "names", "expected"),
    [
        ([torch.ones(3), (torch.ones(3), {"cell": torch.ones(3)})], None, ["tokens", "state.0", "state.1.cell"]),
        ([torch.ones(3), (torch.ones(3), {"cell": torch.ones(3)}), 0.5], ["a", "b", "c"], ["a", "b.0", "b.1.cell"]),
        (
            {"mask": torch.ones(3), "tokens": torch.ones(3), "state": [torch.ones(3), {"cell": torch.ones(3)}]},
            None,
            ["tokens", "state.0", "state.1.cell", "mask"],
        ),
    ],
)
def test_inputs_have_the_names_of_the_arguments(inputs: Any, names: Any, expected: list[str], tmp_path: Path) -> None:
    export(Several().eval(), inputs, tmp_path / "several", input_names=names, seed=3)
    graph = load_graph(tmp_path / "several")
    assert [value.name for value in graph.inputs] == expected
    golden = read_golden(tmp_path / "several.golden.safetensors")
    assert golden.metadata["seed"] == "3"
    assert all(array.std() > 0 for array in golden.inputs.values())  # ones would hide errors: they are replaced


def test_numpy_inputs_and_a_lone_array_will_do() -> None:
    x = np.zeros((2, 8), np.float32)
    for inputs in ([x], {"x": x}, x, [torch.zeros(2, 8)]):
        graph = to_graph(linear(), inputs, name="linear")
        assert [(value.name, str(value.type)) for value in graph.inputs] == [("x", "f32[2,8]")]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ["y"]),
        (lambda x: [x + 1], ["y"]),
        (lambda x: (x + 1, x), ["y0", "y1"]),
        (lambda x: {"logits": x + 1, "hidden": (x, x * 2)}, ["logits", "hidden.0", "hidden.1"]),
        (lambda x: (x, None, x * 2), ["y0", "y2"]),
    ],
)
def test_outputs_have_names(function: Any, names: list[str], tmp_path: Path) -> None:
    export(function, [torch.randn(3)], tmp_path / "model")
    assert [output.name for output in load_graph(tmp_path / "model").outputs] == names
    assert list(read_golden(tmp_path / "model.golden.safetensors").outputs) == sorted(names)


def test_what_depends_on_literals_and_buffers_alone_is_computed_at_export() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ids", torch.arange(64).expand(1, 64))
            self.embedding = nn.Embedding(64, 4)

        def forward(self, x: Any) -> Any:
            bias = torch.tril(torch.ones(5, 5)).log() + torch.zeros(5, 5)
            return x + self.embedding(self.ids[:, :5]) + bias.sum(0)[:4].exp()

    graph = to_graph(Positions().eval(), [torch.zeros(1, 5, 4)], name="positions")
    assert [node.op for node in graph.nodes] == ["take", "add", "add"]


def test_a_big_constant_of_one_value_is_stored_as_one_number() -> None:
    graph = to_graph(lambda x: torch.where(x > 0, x, torch.zeros(1000, 1000)), [torch.ones(1000, 1000)], name="zeros")
    assert max(constant.type.size for constant in graph.constants) == 1


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (lambda x, i: torch.nn.functional.embedding(i, x), [-1, 5]),
        (lambda x, i: x.index_select(0, i), [-1, 5]),
        (lambda x, i: x[:, 0].gather(0, i), [-1, 5]),
        (lambda x, i: x[i], [-6, 5]),
        (lambda x, i: x[i, i - 1], [-5, 5]),
        (lambda x, i: x.index_put((i,), torch.tensor(1.0)), [-6, 5]),
        (lambda x, i: x[:, 0].scatter(0, i, 1.0), [-1, 5]),
    ],
)
def test_an_index_out_of_range_is_an_error_of_the_run_as_in_torch(function: Any, wrong: list[int]) -> None:
    x = torch.randn(5, 5)
    graph = to_graph(function, [x, torch.tensor([4, 1])], name="index")
    for index in wrong:
        indices = torch.tensor([0, index])
        with pytest.raises((IndexError, RuntimeError)):
            function(x, indices)
        with pytest.raises(KernelError):
            run_reference(graph, {value.name: a.numpy() for value, a in zip(graph.inputs, (x, indices), strict=True)}, precision="f32")


def test_bfloat16_is_refused() -> None:
    with pytest.raises(ExportError, match=r"input 'x': torch\.bfloat16 is not supported: call model\.float\(\) first"):
        to_graph(lambda x: x + 1, [torch.zeros(3, dtype=torch.bfloat16)], name="half")
    with pytest.raises(ExportError, match=r"'layer\.weight' and 1 more in bfloat16\. Hint: call model\.float\(\) first"):
        to_graph(linear().to(torch.bfloat16), [torch.zeros(2, 8)], name="half")

    def mixed(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    with pytest.raises(UnsupportedOperatorsError, match=r"bfloat16 is not supported.*no autocast"):
        to_graph(mixed, [torch.zeros(3, 3)], name="half")


def test_one_tensor_for_two_inputs_is_two_inputs() -> None:
    x = torch.arange(3.0)
    graph = to_graph(lambda a, b: a - b, [x, x], name="same")
    results = run_reference(graph, {"a": x.numpy(), "b": x.numpy() * 3}, precision="f32")
    np.testing.assert_array_equal(results["y"], x.numpy() * -2)


def test_a_transformer_looks_at_no_mask_while_it_is_traced(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.modules.transformer
    detect = layers._detect_is_causal_mask
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)
    export(model.eval(), {"src": torch.randn(2, 5, 8), "mask": mask}, tmp_path / "m")
    assert layers._detect_is_causal_mask is detect


def test_a_transformers_model_with_a_cache_is_told_to_leave_it_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)).eval()
    inputs = {"input_ids": torch.tensor([[3, 9, 4]])}
    with pytest.raises(ExportError, match=r"model\.config\.use_cache = False"):
        to_graph(model, inputs, name="llama")
    model.config.use_cache = False
    export(model, inputs, tmp_path / "llama")
    graph = load_graph(tmp_path / "llama")
    assert [output.name for output in graph.outputs] == ["logits"]
    (attention,) = (node for node in graph.nodes if node.op == "attention")
    assert (attention.attrs["mask"], attention.attrs["kv_groups"]) == ("causal", 2)
    assert {"rms_norm", "silu"} <= {node.op for node in graph.nodes}


def test_without_torch_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingFrameworkError, match=r"torch must be installed.*pip install rml-exec\[torch\]") as caught:
        export(None, [], tmp_path / "model")
    assert caught.value.exit_code == 5


def test_the_order_of_keyword_inputs_does_not_matter() -> None:
    def subtract(a: Any, b: Any) -> Any:
        return a - b

    a, b = torch.tensor([5.0]), torch.tensor([3.0])
    graph = to_graph(subtract, {"b": b, "a": a}, name="subtract")
    assert run_reference(graph, {"a": a.numpy(), "b": b.numpy()}, precision="f32")["y"] == [2.0]


def test_the_golden_run_has_one_thread_and_the_users_settings_are_left_alone(tmp_path: Path) -> None:
    class Spy(nn.Module):
        def forward(self, x: Any) -> Any:
            seen.append(torch.get_num_threads())
            return x * 2

    seen: list[int] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = torch.random.get_rng_state()
        export(Spy().eval(), [torch.ones(2, 8)], tmp_path / "spy")
        assert (seen[-1], torch.get_num_threads(), torch.is_grad_enabled()) == (1, 2, True)
        assert torch.equal(before, torch.random.get_rng_state())
    finally:
        torch.set_num_threads(threads)
