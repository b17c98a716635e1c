"""Graphs whose steps are of every kind: products with epilogues, Winograd, fused chains, composites, recurrences, control flow, views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from tests.helpers.control_graphs import loop_graph, rnn_graph
from tests.helpers.graphs import chain_graph, cnn_graph, elementwise_graph, mlp_graph, pattern


def _weights(b: GraphBuilder, name: str, *shape: int, step: int = 7, scale: float = 1 / 63) -> str:
    return b.constant(pattern(*shape, step=step, scale=scale), name=name, key=name)


def _conv(b: GraphBuilder, x: str, name: str, shape: tuple[int, ...], *, bias: bool = True, groups: int = 1, step: int = 7) -> str:
    pad = shape[2] // 2
    weight = _weights(b, f"{name}.weight", *shape, step=step, scale=1 / 300)
    added = _weights(b, f"{name}.bias", shape[0], step=13) if bias else None
    attrs = {"strides": (1, 1), "pads": ((pad, pad), (pad, pad)), "dilations": (1, 1), "groups": groups, "data_layout": "NCHW"}
    return b.add("conv2d", [x, weight, added], name=name, **attrs)


def _batch_norm(b: GraphBuilder, x: str, name: str, channels: int) -> str:
    parts = [_weights(b, f"{name}.{part}", channels, step=step) for part, step in (("scale", 11), ("bias", 5), ("mean", 3))]
    variance = b.constant(np.abs(pattern(channels, step=9)) + np.float32(0.5), name=f"{name}.variance", key=f"{name}.variance")
    return b.add("batch_norm", [x, *parts, variance], eps=1e-5, axis=1, name=name)


def residual_graph() -> Graph:
    """Convolution, batch norm, relu; a residual that a second convolution adds: large enough for Winograd's method."""
    b = GraphBuilder("residual")
    x = _conv(b, b.input("x", "f32", (1, 3, 16, 16)), "stem", (32, 3, 3, 3))
    y = b.add("relu", [_batch_norm(b, _conv(b, x, "conv1", (32, 32, 3, 3), bias=False), "bn1", 32)])
    y = _batch_norm(b, _conv(b, y, "conv2", (32, 32, 3, 3), bias=False, step=17), "bn2", 32)
    b.output("y", b.add("relu", [b.add("add", [y, x])]))
    return b.build()


def depthwise_graph() -> Graph:
    """A pointwise, a depthwise and a pointwise convolution, clamped, then pooled."""
    b = GraphBuilder("depthwise")
    x = b.add("clamp", [_conv(b, b.input("x", "f32", (1, 8, 9, 9)), "expand", (24, 8, 1, 1))], lo=0.0, hi=6.0)
    x = b.add("clamp", [_batch_norm(b, _conv(b, x, "depthwise", (24, 1, 3, 3), groups=24, bias=False), "bn", 24)], lo=0.0, hi=6.0)
    x = _conv(b, x, "project", (8, 24, 1, 1), step=19)
    pooled = b.add("avg_pool", [x], window=(3, 3), strides=(3, 3), pads=((0, 0), (0, 0)), data_layout="NCHW", divisor="window",
                   divisor_value=None)  # fmt: skip
    b.output("y", pooled)
    return b.build()


def transformer_graph(tokens: int = 6, width: int = 16, heads: int = 2) -> Graph:
    """One block: layer norm, attention over heads made by views, residual, layer norm, gelu, residual."""
    b = GraphBuilder("transformer")
    x = b.input("x", "f32", (1, tokens, width))

    def norm(value: str, name: str) -> str:
        parts = [_weights(b, f"{name}.scale", width, step=11), _weights(b, f"{name}.bias", width, step=5)]
        return b.add("layer_norm", [value, *parts], axes=(2,), eps=1e-5, variance="two_pass", name=name)

    def linear(value: str, name: str, inner: int, outer: int) -> str:
        parts = [_weights(b, f"{name}.weight", outer, inner, step=7), _weights(b, f"{name}.bias", outer, step=13)]
        return b.add("linear", [value, *parts], weight_layout="oi", name=name)

    def split(value: str) -> str:
        return b.add("transpose", [b.add("reshape", [value], shape=(1, tokens, heads, width // heads))], perm=(0, 2, 1, 3))

    normed = norm(x, "norm1")
    q, k, v = (split(linear(normed, name, width, width)) for name in "qkv")
    mixed = b.add("attention", [q, k, v, None], scale=0.35, mask="causal", fully_masked="zero", kv_groups=1, softcap=None)
    mixed = b.add("reshape", [b.add("transpose", [mixed], perm=(0, 2, 1, 3))], shape=(1, tokens, width))
    x = b.add("add", [x, linear(mixed, "out", width, width)])
    hidden = b.add("gelu", [linear(norm(x, "norm2"), "up", width, 4 * width)], approximate="tanh")
    b.output("y", b.add("add", [x, linear(hidden, "down", 4 * width, width)]))
    return b.build()


def lstm_graph() -> Graph:
    """An lstm and a gru, one after the other, and a linear layer on the last state."""
    b = GraphBuilder("recurrent")
    x = b.input("x", "f32", (5, 2, 6))
    y, _, _ = b.add("lstm", [x, _weights(b, "w", 32, 6), _weights(b, "r", 32, 8), _weights(b, "b", 32), None, None], direction="forward")
    operands = [y, _weights(b, "w2", 12, 8), _weights(b, "r2", 12, 4), None, None, None]
    _, last = b.add("gru", operands, direction="reverse", reset="after")
    b.output("y", b.add("linear", [last, _weights(b, "head", 3, 4), None], weight_layout="oi"))
    return b.build()


def softmax_graph() -> Graph:
    """Softmax and log softmax of a product with batches, positions chosen by an integer input, sums that cancel, a concat."""
    b = GraphBuilder("softmax")
    x, index = b.input("x", "f32", (2, 5, 7)), b.input("index", "i64", (3,))
    scores = b.add("matmul", [x, x], transpose_a=False, transpose_b=True)
    weights = b.add("softmax", [scores], axis=2, fully_masked="nan")
    logs = b.add("log_softmax", [scores], axis=1)
    both = b.add("concat", [weights, b.add("exp", [logs])], axis=2)
    taken = b.add("take", [both, index], axis=1, oob="clamp", wrap_negative=False, fill_value=None)
    centred = b.add("sub", [taken, b.add("reduce", [taken], kind="mean", axes=(2,), keepdims=True, nan="propagate", empty="identity")])
    total = b.add("reduce", [centred], kind="sum", axes=(1,), keepdims=False, nan="propagate", empty="identity")
    b.output("y", b.add("cumulative", [total], kind="sum", axis=1, exclusive=False, reverse=False))
    return b.build()


STEP_GRAPHS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp_graph(sizes=(8, 600, 4)),
    "cnn": cnn_graph,
    "chain": lambda: chain_graph(12),
    "elementwise": elementwise_graph,
    "residual": residual_graph,
    "depthwise": depthwise_graph,
    "transformer": transformer_graph,
    "recurrent": lstm_graph,
    "softmax": softmax_graph,
    "scan": rnn_graph,
    "loop": loop_graph,
}
