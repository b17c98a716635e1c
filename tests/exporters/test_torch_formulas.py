"""Composites that models write out as formulas: which op they become, that near misses stay as written, and that the values are torch's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from exporters.from_torch import to_graph
from exporters.lowering import name_outputs
from rml_exec.ir.graph import Graph

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.torch


def values(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def exported(assert_graph_gives: Callable[..., None]) -> Callable[..., Graph]:
    """Returns a function that gives a function's graph, after a comparison of its values with torch's."""

    def export(function: Callable[..., Any], *inputs: Any) -> Graph:
        names = [f"x{index}" for index in range(len(inputs))]
        graph = to_graph(function, inputs, name="formula", input_names=names)
        expected = {name: leaf.contiguous().numpy() for name, leaf in name_outputs(function(*inputs))}
        assert_graph_gives(graph, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}, expected)
        return graph

    return export


X, W, B = values(2, 5, 8), values(8, seed=1), values(8, seed=2)
ROOT = math.sqrt(2 / math.pi)


def centred(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


def variance(x: Any) -> Any:
    return centred(x).pow(2).mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "inputs", "op", "attrs"),
    [
        pytest.param(lambda x: x * torch.sigmoid(x), (X,), "silu", {}, id="silu"),
        pytest.param(lambda x: x / (1 + torch.exp(-x)), (X,), "silu", {}, id="silu-of-exp"),
        pytest.param(lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))), (X,), "gelu", {"approximate": "tanh"}, id="gpt2"),
        pytest.param(
            lambda x: x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
            (X,),
            "gelu",
            {"approximate": "tanh"},
            id="bloom",
        ),
        pytest.param(
            lambda x: 0.5 * (x * (torch.tanh((x + x * x * x * 0.044715) * ROOT) + 1)), (X,), "gelu", {"approximate": "tanh"}, id="bracketed"
        ),
        pytest.param(lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), (X,), "gelu", {"approximate": "none"}, id="gelu-erf"),
        pytest.param(lambda x: x * F.relu6(x + 3) / 6, (X,), "hard_swish", {}, id="hard-swish"),
        pytest.param(
            lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
            (X, W),
            "rms_norm",
            {"axes": (2,), "eps": 1e-6},
            id="llama",
        ),
        pytest.param(
            lambda x: x / torch.sqrt((x * x).mean((-2, -1), True) + 1e-3),
            (X,),
            "rms_norm",
            {"axes": (1, 2), "eps": 1e-3},
            id="rms-no-weight",
        ),
        pytest.param(lambda x, w: F.rms_norm(x, (8,), w, 1e-5), (X, W), "rms_norm", {"axes": (2,), "eps": 1e-5}, id="rms-norm-of-torch"),
        pytest.param(
            lambda x, w, b: w * (centred(x) / torch.sqrt(variance(x) + 1e-5)) + b, (X, W, B), "layer_norm", {"axes": (2,)}, id="layer-norm"
        ),
        pytest.param(
            lambda x, w, b: w * centred(x) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) + b,
            (X, W, B),
            "layer_norm",
            {"axes": (2,), "eps": 1e-5},
            id="layer-norm-var",
        ),
        pytest.param(lambda x: centred(x) * torch.rsqrt(variance(x) + 1e-12), (X,), "layer_norm", {"eps": 1e-12}, id="layer-norm-bare"),
    ],
)
def test_a_formula_becomes_one_op(
    function: Callable[..., Any], inputs: tuple[Any, ...], op: str, attrs: dict[str, Any], exported: Callable[..., Graph]
) -> None:
    (node,) = exported(function, *inputs).nodes
    assert node.op == op
    assert attrs.items() <= node.attrs.items()


@pytest.mark.parametrize(
    ("function", "inputs", "op"),
    [
        pytest.param(lambda x: x * torch.sigmoid(1.702 * x), (X,), "silu", id="quick-gelu"),
        pytest.param(lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3))), (X,), "gelu", id="other-constant"),
        pytest.param(lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6), (X,), "rms_norm", id="sum-for-mean"),
        pytest.param(lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6), (X,), "rms_norm", id="first-axis"),
        pytest.param(lambda x, y: x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6), (X, X + 1), "rms_norm", id="of-another"),
        pytest.param(lambda x: centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt(), (X,), "layer_norm", id="unbiased"),
        pytest.param(lambda x: (x * (s := torch.sigmoid(x)), s), (X,), "silu", id="factor-used-elsewhere"),
    ],
)
def test_a_near_miss_stays_as_written(
    function: Callable[..., Any], inputs: tuple[Any, ...], op: str, exported: Callable[..., Graph]
) -> None:
    assert op not in {node.op for node in exported(function, *inputs).nodes}


def test_a_weight_of_another_shape_is_a_product_behind_the_norm(exported: Callable[..., Graph]) -> None:
    graph = exported(lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, X, values(5, 8, seed=3))
    assert [node.op for node in graph.nodes] == ["rms_norm", "mul"]


Q, K, V = values(2, 4, 5, 8), values(2, 4, 7, 8, seed=1), values(2, 4, 7, 6, seed=2)
SHARED_K, SHARED_V = values(2, 2, 7, 8, seed=1), values(2, 2, 7, 6, seed=2)
ALLOWED = values(2, 1, 5, 7, seed=3) > -0.5
HIDDEN_ROW = ALLOWED.clone()
HIDDEN_ROW[0, 0, 2] = False
LEAST = torch.finfo(torch.float32).min


def repeat_kv(x: Any, groups: int) -> Any:
    """As transformers has it."""
    batch, heads, length, width = x.shape
    return x[:, :, None, :, :].expand(batch, heads, groups, length, width).reshape(batch, heads * groups, length, width)


def attend(scores: Any, v: Any) -> Any:
    return torch.softmax(scores, -1) @ v


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) / math.sqrt(8)


def causal(q: Any, k: Any) -> Any:
    mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2])).view(1, 1, q.shape[-2], k.shape[-2])
    return scores(q, k).masked_fill(mask == 0, -math.inf)


PLAIN = {"scale": 8**-0.5, "softcap": None, "mask": "none", "kv_groups": 1, "fully_masked": "nan"}


@pytest.mark.parametrize(
    ("function", "inputs", "attrs"),
    [
        pytest.param(lambda q, k, v: attend(scores(q, k), v), (Q, K, V), {}, id="plain"),
        pytest.param(lambda q, k, v: attend((q * 0.5) @ k.permute(0, 1, 3, 2), v), (Q, K, V), {"scale": 0.5}, id="scaled-queries"),
        pytest.param(lambda q, k, v: attend(scores(q, k), v), (Q[0], K[0], V[0]), {}, id="rank-3"),
        pytest.param(lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(2), v), (Q[0], K[0], V[0]), {"scale": 1.0}, id="bmm"),
        pytest.param(lambda q, k, v, m: attend(scores(q, k) + m, v), (Q, K, V, values(5, 7)), {"mask": "additive"}, id="bias"),
        pytest.param(
            lambda q, k, v, m: attend(scores(q, k).masked_fill(~m, -math.inf), v), (Q, K, V, ALLOWED), {"mask": "bool"}, id="masked-fill"
        ),
        pytest.param(
            lambda q, k, v, m: attend(torch.where(m, scores(q, k), LEAST), v),
            (Q, K, V, HIDDEN_ROW),
            {"mask": "bool", "fully_masked": "uniform"},
            id="where-least",
        ),
        pytest.param(
            lambda q, k, v, m: attend(torch.where(m, torch.full((), -1e9), scores(q, k)), v),
            (Q, K, V, ~HIDDEN_ROW),
            {"mask": "bool", "fully_masked": "uniform"},
            id="where-hidden",
        ),
        pytest.param(
            lambda q, v, m: attend(causal(q, q).masked_fill(~m, -math.inf), v),
            (Q, V[:, :, :5], ALLOWED[:, :, :1, :5]),
            {"mask": "bool"},
            id="two-masks",
        ),
        pytest.param(lambda q, v: attend(causal(q, q), v), (Q, V[:, :, :5]), {"mask": "causal"}, id="causal-by-tril"),
        pytest.param(lambda q, k, v: attend(2.0 * torch.tanh(scores(q, k) / 2.0), v), (Q, K, V), {"softcap": 2.0}, id="softcap"),
        pytest.param(
            lambda q, k, v: attend(scores(q, repeat_kv(k, 2)), repeat_kv(v, 2)), (Q, SHARED_K, SHARED_V), {"kv_groups": 2}, id="grouped"
        ),
        pytest.param(
            lambda q, k, v: F.scaled_dot_product_attention(q, repeat_kv(k, 2), repeat_kv(v, 2)),
            (Q, SHARED_K, SHARED_V),
            {"kv_groups": 2, "fully_masked": "zero"},
            id="grouped-operator",
        ),
        pytest.param(
            lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)),
            (Q, SHARED_K, SHARED_V),
            {"kv_groups": 2, "fully_masked": "zero"},
            id="grouped-interleave",
        ),
        pytest.param(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            (Q, SHARED_K, SHARED_V),
            {"kv_groups": 2, "fully_masked": "zero"},
            id="enable-gqa",
        ),
        pytest.param(
            lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("b h i d, b h j d -> b h i j", q, k).softmax(-1), v),
            (Q, K, V),
            {"scale": 1.0},
            id="einsum",
        ),
        pytest.param(
            lambda q, k, v: torch.einsum("bhqk,bkhd->bqhd", (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3).softmax(-1), v),
            (Q.transpose(1, 2).clone(), K.transpose(1, 2).clone(), V.transpose(1, 2).clone()),
            {"scale": 0.3},
            id="einsum-heads-inside",
        ),
    ],
)
def test_attention_written_out_is_one_op(
    function: Callable[..., Any], inputs: tuple[Any, ...], attrs: dict[str, Any], exported: Callable[..., Graph]
) -> None:
    graph = exported(function, *inputs)
    counts = Counter(node.op for node in graph.nodes)
    assert set(counts) <= {"attention", "transpose", "not", "and"}
    (node,) = (node for node in graph.nodes if node.op == "attention")
    for name, value in {**PLAIN, **attrs}.items():
        assert node.attrs[name] == (pytest.approx(value) if isinstance(value, float) else value), name


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda q, k, v: (p := torch.softmax(scores(q, k), -1)) @ v * p.sum(), (Q, K, V), id="weights-used-elsewhere"),
        pytest.param(lambda q, k, v: torch.softmax(scores(q, k), -2) @ v, (Q, K, V), id="softmax-over-queries"),
        pytest.param(lambda q, k, v: attend(scores(q, k).relu(), v), (Q, K, V), id="relu"),
        pytest.param(lambda q, k, v, m: attend(torch.where(m, scores(q, k), -5.0), v), (Q, K, V, ALLOWED), id="weak-mask"),
        pytest.param(lambda q, k, v: attend(scores(q, k), v), (Q, K[:1], V), id="broadcast-keys"),
        pytest.param(
            lambda q, k, v, m: attend(torch.where(m, scores(q, k), -1e9).masked_fill(~m.flip(-1), -math.inf), v),
            (Q, K, V, ALLOWED),
            id="masks-of-two-kinds",
        ),
    ],
)
def test_nearly_attention_is_computed_as_written(
    function: Callable[..., Any], inputs: tuple[Any, ...], exported: Callable[..., Graph]
) -> None:
    assert "attention" not in {node.op for node in exported(function, *inputs).nodes}


def test_heads_tiled_in_another_order_are_not_shared(exported: Callable[..., Graph]) -> None:
    graph = exported(lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), Q, SHARED_K, SHARED_V)
    (node,) = (node for node in graph.nodes if node.op == "attention")
    assert node.attrs["kv_groups"] == 1


def test_a_causal_mask_of_every_batch_is_known_to_be_one(exported: Callable[..., Graph]) -> None:
    mask = torch.ones(5, 5).tril().bool().expand(2, 1, 5, 5).clone()
    graph = exported(lambda q: F.scaled_dot_product_attention(q, q, q, mask), Q)
    assert [node.attrs["mask"] for node in graph.nodes] == ["causal"]


EINSUMS = [
    "ij,jk->ik",
    "ij,kj->ki",
    "bij,bjk->bik",
    "bij,bkj->bki",
    "bij,jk->bik",
    "bij,bij->bi",
    "i,j->ij",
    "bhi,bij->bhj",
    "abij,abjk->baki",
]


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum_gives_what_torch_gives(equation: str, exported: Callable[..., Graph]) -> None:
    sizes = {"a": 2, "b": 3, "h": 2, "i": 4, "j": 5, "k": 6}
    terms = equation.partition("->")[0].split(",")
    exported(lambda a, b: torch.einsum(equation, a, b), *(values(*map(sizes.__getitem__, term), seed=n) for n, term in enumerate(terms)))
