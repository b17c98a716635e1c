"""The traps of model conversion that torch and the graph can fall into, each with the value that is right.

The number in a case's name is that of the table in ``exporters/README.md``, which says where every trap is tested. A case holds the value as
a literal: torch must give it, and so must the reference interpreter and the executor, fused and not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.dims import Dim
from exporters.errors import ExportError
from exporters.from_torch import export, to_graph
from exporters.lowering import name_outputs
from rml_exec import Executor
from rml_exec.errors import KernelError
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")
INT_MIN = -(2**31)


def f32(*values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float32)


def line(*values: float) -> Any:
    """Returns one channel of one image of one dimension."""
    return f32(*values).reshape(1, 1, -1)


def results(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Returns what everyone makes of a graph."""
    return {
        "reference": run_reference(graph, inputs, precision="f32"),
        "executor": Executor.create(graph, threads=1).run(inputs),
        "executor without fusion": Executor.create(graph, threads=1, fuse=False).run(inputs),
    }


def check(function: Callable[..., Any], inputs: list[Any], expected: tuple[np.ndarray, ...]) -> None:
    graph = to_graph(function, inputs, name="trap")
    arrays = {value.name: tensor.numpy() for value, tensor in zip(graph.inputs, inputs, strict=True)}
    with torch.no_grad():
        given = {"torch": {name: leaf.numpy() for name, leaf in name_outputs(function(*inputs))}}
    for who, outputs in {**given, **results(graph, arrays)}.items():
        assert len(outputs) == len(expected)
        for output, right in zip(outputs.values(), expected, strict=True):
            assert (output.dtype, output.shape) == (right.dtype, right.shape), who
            np.testing.assert_allclose(output, right, rtol=2e-6, atol=1e-7, err_msg=who)


A, B = torch.tensor([-7, 7, -7, 7]), torch.tensor([3, 3, -3, -3])
AWKWARD = f32(1, NAN, 3, 3, NAN)
ROW = np.float32([[[1, 2, 3, 4]]])

Case = tuple[str, Callable[..., Any], list[Any], tuple[Any, ...]]
CASES: list[Case] = [
    (
        "1-same-pads-more-behind",
        lambda x: F.conv1d(x, torch.ones(1, 1, 4), padding="same"),
        [line(1, 2, 3, 4)],
        (np.float32([[[6, 10, 9, 7]]]),),
    ),
    ("2-max-pool-pads-with-minus-infinity", lambda x: F.max_pool1d(x, 3, 1, 1), [line(-3, -1, -2)], (np.float32([[[-1, -1, -1]]]),)),
    (
        "3-avg-pool-counts-pads-but-no-overhang",
        lambda x: tuple(F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=count) for count in (True, False)),
        [line(2, 4, 6, 8)],
        (np.float32([[[2, 6, 4]]]), np.float32([[[3, 6, 8]]])),
    ),
    (
        "4-no-window-in-pads-alone",
        lambda x: (F.max_pool1d(x, 2, 2, 1, ceil_mode=True), F.avg_pool1d(x, 2, 2, 1, ceil_mode=True)),
        [line(1, 2, 3)],
        (np.float32([[[1, 3]]]), np.float32([[[0.5, 2.5]]])),
    ),
    (
        "5-gelu-is-erf-unless-told",
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
        [f32(1, -2)],
        (np.float32([0.84134475, -0.04550026]), np.float32([0.8411920, -0.04540229])),
    ),
    (
        "6-signs-of-division",
        lambda a, b: (a // b, torch.div(a, b, rounding_mode="trunc"), a % b, torch.fmod(a, b), a / b),
        [A, B],
        (
            np.int64([-3, 2, 2, -3]),
            np.int64([-2, 2, 2, -2]),
            np.int64([2, 1, -1, -2]),
            np.int64([-1, 1, -1, 1]),
            np.float32([-7 / 3, 7 / 3, 7 / 3, -7 / 3]),
        ),
    ),
    (
        "6-signs-of-float-division",
        lambda a, b: (a // b, a % b, torch.fmod(a, b)),
        [f32(-7.5, 7.5), f32(2, -2)],
        (np.float32([-4, -4]), np.float32([0.5, -0.5]), np.float32([-1.5, 1.5])),
    ),
    ("7-layer-norm-eps", lambda x: F.layer_norm(x, (2,)), [f32(0, 1e-3)], (np.float32([-0.15617376, 0.15617376]),)),
    (
        "7-layer-norm-two-passes",
        lambda x: F.layer_norm(x, (3,)),
        [f32(10000, 10001, 10002)],
        (np.float32([-1.2247356, 0, 1.2247356]),),
    ),
    (
        "8-masked-rows",
        lambda q, m: (
            F.scaled_dot_product_attention(q, q, q, m),
            (q @ q.mT).masked_fill(~m, -INF).softmax(-1) @ q,
            (q @ q.mT).masked_fill(~m, torch.finfo(torch.float32).min).softmax(-1) @ q,
        ),
        [f32(1, 3).reshape(1, 2, 1), torch.tensor([[True, False], [False, False]])],
        (np.float32([[[1], [0]]]), np.float32([[[1], [NAN]]]), np.float32([[[1], [2]]])),
    ),
    ("8-softmax-of-nothing", lambda x: x.softmax(0), [f32(-INF, -INF)], (np.float32([NAN, NAN]),)),
    (
        "9-integers-of-64-bits",
        lambda i, j, w: (i + 2**40, F.embedding(i, w), F.embedding(j, w), w[i], w.argmax(), i // 2 * 2**33),
        [torch.tensor([2, 0]), torch.tensor([2, 0], dtype=torch.int32), f32([1], [2], [3])],
        (
            np.int64([2**40 + 2, 2**40]),
            *[np.float32([[3], [1]])] * 3,
            np.array(2),
            np.int64([2**33, 0]),
        ),
    ),
    ("10-negative-indices-wrap", lambda x, i: x[i], [f32(1, 2, 3), torch.tensor([-1, -3, 2])], (np.float32([3, 1, 3]),)),
    (
        "11-argmax-of-nan-and-ties",
        lambda x, t: (x.argmax(), x.argmin(), t.argmax(), t.argmin(), t.max(0)[1]),
        [AWKWARD, f32(2, 5, 5, 2)],
        (np.array(1), np.array(1), np.array(1), np.array(0), np.array(1)),
    ),
    (
        "12-nan-goes-on",
        lambda x: (x.relu(), x.clamp(0, 2), torch.maximum(x, f32(0)), F.relu6(x), F.hardtanh(x), x.amax(0), x.amin(0), x.max()),
        [f32(NAN, -1, 3)],
        (
            np.float32([NAN, 0, 3]),
            np.float32([NAN, 0, 2]),
            np.float32([NAN, 0, 3]),
            np.float32([NAN, 0, 3]),
            np.float32([NAN, -1, 1]),
            *[np.float32(NAN)] * 3,
        ),
    ),
    (
        "12-nan-in-pools",
        lambda x: (F.max_pool1d(x, 2), F.avg_pool1d(x, 2)),
        [line(1, NAN, NAN, 2, 3, 4)],
        (np.float32([[[NAN, NAN, 4]]]), np.float32([[[NAN, NAN, 3.5]]])),
    ),
    ("12-fmax-skips-nan", torch.fmax, [f32(NAN, 1, NAN), f32(2, NAN, NAN)], (np.float32([2, 1, NAN]),)),
    (
        "13-float-to-integer",
        lambda x: (x.int(), x[:3].long()),
        [f32(NAN, 3e9, -3e9, 1.9, -1.9, INF)],
        (np.int32([INT_MIN, INT_MIN, INT_MIN, 1, -1, INT_MIN]), np.int64([-(2**63), 3 * 10**9, -3 * 10**9])),
    ),
    ("13-float-to-byte", lambda x: x.to(torch.uint8), [f32(300, -1, 7.9)], (np.uint8([44, 255, 7]),)),
    ("14-ties-go-to-even", torch.round, [f32(0.5, 1.5, 2.5, -0.5, -1.5)], (np.float32([0, 2, 2, -0.0, -2]),)),
    (
        "15-one-pixel",
        lambda x: tuple(F.interpolate(x, 1, mode="linear", align_corners=corners) for corners in (False, True)),
        [line(0, 1, 2, 3)],
        (np.float32([[[1.5]]]), np.float32([[[0]]])),
    ),
    (
        "15-linear-coordinates",
        lambda x: (F.interpolate(x, 8, mode="linear"), F.interpolate(x, 7, mode="linear", align_corners=True)),
        [line(0, 1, 2, 3)],
        (np.float32([[[0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]]]), np.float32([[[0, 0.5, 1, 1.5, 2, 2.5, 3]]])),
    ),
    (
        "15-nearest-coordinates",
        lambda x: (F.interpolate(x, 3), F.interpolate(x, 3, mode="nearest-exact")),
        [line(0, 1, 2, 3)],
        (np.float32([[[0, 1, 2]]]), np.float32([[[0, 2, 3]]])),
    ),
    (
        "15-cubic-coefficient",
        lambda x: F.interpolate(x, (1, 8), mode="bicubic")[0, 0, 0, 2:4],
        [line(0, 0, 1, 0)[None]],
        (np.float32([-0.10546875, 0.26171875]),),
    ),
    (
        "18-writes-into-views",
        lambda x: _write_into_views(x),
        [f32(1, 2, 3, 4)],
        (np.float32([-5, 24, 26, 4]),),
    ),
    (
        "21-no-elements",
        lambda x: (x[:0].sum(0), x[:0].mean(0), x[:0].reshape(0, 4), torch.cat([x[:0], x]), x[:0] @ x.mT, x[:, :0] @ x[:0]),
        [f32([1, 2], [3, 4])],
        (
            np.float32([0, 0]),
            np.float32([NAN, NAN]),
            np.zeros((0, 4), np.float32),
            np.float32([[1, 2], [3, 4]]),
            np.zeros((0, 2), np.float32),
            np.zeros((2, 2), np.float32),
        ),
    ),
    (
        "22-numbers-do-not-widen",
        lambda x, h, i, d: (x * d[0], x * 0.1, h * x[0], i + 1.5, i * 2, i / 2, x * d),
        [
            f32(1, 3),
            torch.tensor([1, 3], dtype=torch.float16),
            torch.tensor([1, 3], dtype=torch.int32),
            torch.tensor([0.1, 0.1], dtype=torch.float64),
        ],
        (
            np.float32([0.1, 0.3]),
            np.float32([0.1, 0.3]),
            np.float16([1, 3]),
            np.float32([2.5, 4.5]),
            np.int32([2, 6]),
            np.float32([0.5, 1.5]),
            np.float64([0.1, 0.1]) * np.float64([1, 3]),
        ),
    ),
    (
        "23-booleans-and-bytes",
        lambda b, u: (~b, b.sum(), b + b, b * 2, u + u, u.sum(), ~u, b.cumsum(0), -u),
        [torch.tensor([True, False, True]), torch.tensor([200, 100, 3], dtype=torch.uint8)],
        (
            np.bool_([False, True, False]),
            np.array(2),
            np.bool_([True, False, True]),
            np.int64([2, 0, 2]),
            np.uint8([144, 200, 6]),
            np.array(303),
            np.uint8([55, 155, 252]),
            np.int64([1, 1, 2]),
            np.uint8([56, 156, 253]),
        ),
    ),
    (
        "25-equal-elements-keep-their-order",
        lambda x: (torch.sort(x, stable=True)[1], torch.sort(x, stable=True, descending=True)[1], x.topk(2)[0]),
        [f32(3, 1, 3, 1)],
        (np.array([1, 3, 0, 2]), np.array([0, 2, 1, 3]), np.float32([3, 3])),
    ),
    (
        "25-nan-comes-last-or-largest",
        lambda x: (torch.sort(x)[0], *x[1:4].topk(2), torch.sort(x, descending=True)[0]),
        [AWKWARD],
        (np.float32([1, 3, 3, NAN, NAN]), np.float32([NAN, 3]), np.array([0, 1]), np.float32([NAN, NAN, 3, 3, 1])),
    ),
    (
        "27-transposed-convolution-crops-and-does-not-flip",
        lambda x, w: tuple(F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=more) for more in (0, 1)),
        [line(1, 2), line(1, 10, 100)],
        (np.float32([[[10, 102, 20]]]), np.float32([[[10, 102, 20, 200]]])),
    ),
    (
        "28-pixel-shuffle-has-channels-outside",
        lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)),
        [torch.arange(8.0).reshape(1, 8, 1, 1)],
        (np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2), np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)),
    ),
    (
        "32-channels-stand-before-pixels",
        lambda x, w: F.linear(F.conv2d(x, w).relu().flatten(1), torch.eye(8)),
        [torch.arange(8.0).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last), torch.eye(2)[:, :, None, None]],
        (np.arange(8, dtype=np.float32)[None],),
    ),
    (
        "matrix-sign-variance-slope",
        lambda x, y: (x.sign(), y.var(), y.var(correction=0), F.leaky_relu(y - 2)),
        [f32(NAN, -2, -0.0), f32(1, 2, 3)],
        (np.float32([0, -1, 0]), np.float32(1), np.float32(2 / 3), np.float32([-0.01, 0, 1])),
    ),
]


def _write_into_views(x: Any) -> Any:
    y = x.clone()
    inner = y[1:3]
    inner.add_(10)
    inner.mul_(2)
    y.view(2, 2)[0, 0] = -5
    return y


@pytest.mark.parametrize(("function", "inputs", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_the_value_is_right(function: Callable[..., Any], inputs: list[Any], expected: tuple[np.ndarray, ...]) -> None:
    check(function, inputs, expected)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda x, i: x[i], [f32(1, 2, 3), torch.tensor([3])], id="10-index"),
        pytest.param(lambda x, i: x[i], [f32(1, 2, 3), torch.tensor([-4])], id="10-index-before"),
        pytest.param(lambda x, i: x.index_select(0, i), [f32(1, 2, 3), torch.tensor([-1])], id="10-index-select"),
        pytest.param(lambda x, i: F.embedding(i, x[:, None]), [f32(1, 2, 3), torch.tensor([-1])], id="10-embedding"),
        pytest.param(lambda x, i: x.gather(0, i), [f32(1, 2, 3), torch.tensor([-1])], id="10-gather"),
        pytest.param(lambda x, i: x.scatter(0, i, 1.0), [f32(1, 2, 3), torch.tensor([3])], id="10-scatter"),
        pytest.param(lambda x, i: F.one_hot(i, 3) * x, [f32(1, 2, 3), torch.tensor([3])], id="10-one-hot"),
        pytest.param(lambda x, i: F.one_hot(i, 3) * x, [f32(1, 2, 3), torch.tensor([-1])], id="10-one-hot-negative"),
        pytest.param(lambda x, i: i // (i - i), [f32(1), torch.tensor([1])], id="6-integer-by-zero"),
        pytest.param(lambda x, i: i % (i - i), [f32(1), torch.tensor([1])], id="6-integer-rest-by-zero"),
    ],
)
def test_what_torch_refuses_to_compute_is_an_error_of_the_run(function: Callable[..., Any], inputs: list[Any]) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        function(*inputs)
    right = [inputs[0], torch.ones_like(inputs[1])]
    graph = to_graph(function, right, name="trap")
    arrays = {value.name: tensor.numpy() for value, tensor in zip(graph.inputs, inputs, strict=True)}
    with pytest.raises(KernelError):
        run_reference(graph, arrays, precision="f32")
    for fuse in (True, False):
        executor = Executor.create(graph, threads=1, fuse=fuse)
        with pytest.raises(KernelError):
            executor.run(arrays)


def test_the_largest_of_no_elements_is_refused_with_torchs_own_words() -> None:
    with pytest.raises(ExportError, match="RuntimeError: reducing over zero-size dimension"):
        to_graph(lambda x: x.amax(0), [torch.zeros(0, 3)], name="nothing")


def normalised(eps: float) -> Any:
    """Returns a batch norm with statistics, weight and bias of its own, and a dropout, in evaluation mode."""
    norm = nn.BatchNorm1d(1, eps=eps)
    with torch.no_grad():
        for tensor, value in ((norm.running_mean, 2.0), (norm.running_var, 4.0), (norm.weight, 3.0), (norm.bias, 1.0)):
            tensor.fill_(value)
    return nn.Sequential(norm, nn.Dropout(0.9)).eval()


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 12.0])
def test_trap_16_and_17_evaluation_mode_and_its_own_eps(eps: float) -> None:
    graph = to_graph(normalised(eps), [f32([1], [4])], name="norm")
    expected = np.array([[(x - 2) / math.sqrt(4 + eps) * 3 + 1] for x in (1, 4)])
    for outputs in results(graph, {graph.inputs[0].name: np.float32([[1], [4]])}).values():
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-6)
    assert not [constant.name for constant in graph.constants if "num_batches_tracked" in constant.name]


@pytest.mark.parametrize("mode", [(), (0,), (1,)])
def test_trap_16_a_part_in_training_mode_is_refused(mode: tuple[int, ...]) -> None:
    model = normalised(1e-5).train() if not mode else normalised(1e-5)
    for index in mode:
        model[index].train()
    with pytest.raises(ExportError, match="must be in evaluation mode"):
        to_graph(model, [f32([1], [4])], name="norm")


@pytest.mark.parametrize("example", [1, 4])
def test_trap_20_a_symbolic_batch_holds_for_one_row_and_for_many(example: int) -> None:
    def share(x: Any) -> Any:
        return x / x.sum(0, keepdim=True) * x.shape[0], x.reshape(-1), x.mean(1) + x.new_zeros(x.shape[0])

    graph = to_graph(share, [torch.ones(example, 2)], name="share", dims=[Dim("batch", 1, 64)])
    for rows in (1, 2, 5):
        x = np.arange(1, 2 * rows + 1, dtype=np.float32).reshape(rows, 2)
        expected = (x / x.sum(0) * rows, x.reshape(-1), x.mean(1))
        for outputs in results(graph.bind(batch=rows), {"x": x}).values():
            for output, right in zip(outputs.values(), expected, strict=True):
                np.testing.assert_allclose(output, right, rtol=1e-6)


def test_trap_24_a_bf16_model_is_refused_by_name() -> None:
    with pytest.raises(ExportError, match=r"must be of an element type that NumPy has; got .* in bfloat16"):
        to_graph(nn.Linear(2, 2).bfloat16().eval(), [torch.ones(1, 2, dtype=torch.bfloat16)], name="bf16")


def test_trap_25_of_equal_elements_topk_takes_the_first() -> None:
    x = f32(*(k // 2 % 2 for k in range(16)))
    graph = to_graph(lambda x: x.topk(5)[1], [x], name="ties")  # torch's own choice is none that could be relied on
    for outputs in results(graph, {"x": x.numpy()}).values():
        np.testing.assert_array_equal(outputs["y"], [2, 3, 6, 7, 10])


def test_trap_29_the_gates_of_gru_and_lstm() -> None:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    gru, lstm = nn.GRU(1, 1).eval(), nn.LSTM(1, 1).eval()
    with torch.no_grad():
        for net in (gru, lstm):
            for number, parameter in enumerate(net.parameters()):
                parameter.copy_(torch.arange(1.0, parameter.numel() + 1).reshape(parameter.shape) * (0.1 if number % 2 else -0.2))
    # in the order of torch's rows: reset, update, new with the reset after the product; input, forget, cell, output
    r, z = (sigmoid(-0.2 * k * 2 + 0.1 * k * 0.5 - 0.2 * k + 0.1 * k) for k in (1, 2))
    n = math.tanh(-0.6 * 2 - 0.6 + r * (0.3 * 0.5 + 0.3))
    i, f, c, o = (-0.2 * k * 2 + 0.1 * k * 0.5 - 0.2 * k + 0.1 * k for k in (1, 2, 3, 4))
    cell = sigmoid(f) * 0.25 + sigmoid(i) * math.tanh(c)
    x, h = f32([[2]]), f32([[0.5]])
    for net, state, expected in (
        (gru, h, [(1 - z) * n + z * 0.5]),
        (lstm, (h, f32([[0.25]])), [sigmoid(o) * math.tanh(cell), cell]),
    ):
        graph = to_graph(net, [x, state], name="gates")
        arrays = {value.name: leaf.numpy() for value, (_, leaf) in zip(graph.inputs, name_outputs((x, state)), strict=True)}
        for outputs in results(graph, arrays).values():
            np.testing.assert_allclose([float(array.item()) for array in list(outputs.values())[1:]], expected, rtol=1e-6)


def test_trap_33_goldens_repeat_and_record_how_they_were_made(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            export(model, [f32(*range(64))[None]], tmp_path / str(count) / "m")
    finally:
        torch.set_num_threads(threads)
    goldens = [(tmp_path / name / "m.golden.safetensors").read_bytes() for name in ("1", "2")]
    assert goldens[0] == goldens[1]
    assert b'"threads":"1"' in goldens[0]
