"""The rows of the kernel benchmark as graphs of one node, so that a row measures what the executor makes of the op: its kernel, its blocking,
its packing. How much it computes and moves follows from the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench import kernel_shapes as shapes
from rml_exec import Graph, GraphBuilder
from rml_exec.ops import get_op

__all__ = ["Case", "Work", "all_cases", "elementwise_graph", "work_of"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what it is called, and how to make its graph.

    Attributes:
        kernel: what is measured; not always the name of a native kernel.
        shape: its sizes; MxNxK where there is a matrix product.
        model: the model of the zoo that has it, or empty.
        graph: makes the graph, with its weights.
        numerics: "fast" or "exact", as for ``Executor.create``.
        indices: upper bound of integer inputs.
    """

    kernel: str
    shape: str
    model: str
    graph: Callable[[], Graph]
    numerics: str = "fast"
    indices: int = 1

    @property
    def name(self) -> str:
        """What ``--filter`` looks at, and what tells rows apart."""
        return " ".join(filter(None, (self.kernel, self.shape, self.model)))

    def inputs(self, graph: Graph) -> list[np.ndarray]:
        """Returns random inputs, the same each time: floats in (0.01, 4) where a logarithm reads them, else normal."""
        random, found = np.random.default_rng(1), []
        for value in graph.inputs:
            if value.type.dtype.is_float and self.kernel == "log":
                data: np.ndarray = random.uniform(0.01, 4, value.type.shape)
            elif value.type.dtype.is_float:
                data = random.standard_normal(value.type.shape, dtype=np.float32)
            else:
                data = random.integers(0, self.indices, value.type.shape)
            found.append(data.astype(value.type.dtype.numpy))
        return found


@dataclass(frozen=True, slots=True)
class Work:
    """What one call costs at least: floating-point operations, and bytes that it has to read and write once each."""

    flops: int
    read: int
    written: int

    @property
    def copies(self) -> bool:
        """True if so much is written that reading alone is not its limit."""
        return 4 * self.written > self.read


def work_of(graph: Graph) -> Work:
    """Returns the work of a graph: operations as the op records count them, inputs, constants and outputs. A take reads as much as it writes."""
    types = graph.types()
    flops = read = 0
    for node in graph.nodes:
        count = get_op(node.op).flops
        operands = [None if name is None else types[name] for name in node.inputs]
        flops += count(operands, tuple(value.type for value in node.outputs), node.attrs) if count is not None else 0
    gathered = {node.inputs[0] for node in graph.nodes if node.op == "take"}
    written = sum(types[output.value].nbytes for output in graph.outputs)
    for name in (*(value.name for value in graph.inputs), *(constant.name for constant in graph.constants)):
        read += written if name in gathered else types[name].nbytes
    return Work(flops, read, written)


def all_cases() -> list[Case]:
    """Returns every row, in the order of the report; no two have one name."""
    return [*_products(), *_convolutions(), *_attention_and_rows(), *_elementwise(), *_movement()]


def _products() -> Iterator[Case]:
    for model, m, n, k in shapes.GEMMS:
        yield Case("gemm", f"{m}x{n}x{k}", model, partial(_linear, m, n, k))
    for model, m, n, k, after in shapes.EPILOGUES:
        yield Case(f"gemm+{after}", f"{m}x{n}x{k}", model, partial(_linear, m, n, k, after))
    for batch, m, n, k in shapes.PRODUCTS:
        yield Case("gemm_both", f"{batch}x{m}x{n}x{k}", "", partial(_matmul, batch, m, n, k))
    for model, op, time, features, hidden in shapes.RECURRENT:
        yield Case(op, f"{time}x{features}x{hidden}", model, partial(_recurrent, op, time, features, hidden))


def _convolutions() -> Iterator[Case]:
    def case(kernel: str, model: str, size: int, ic: int, oc: int, edge: int, stride: int, pad: int, groups: int = 1, **rest: Any) -> Case:
        out = (size + 2 * pad - edge) // stride + 1
        shape = f"{out}x{out}x{oc}x{edge * edge * ic // groups}" + (f" s{stride}" if stride > 1 else "")
        return Case(kernel, shape, model, partial(_conv, size, ic, oc, edge, stride, pad, groups), **rest)

    for model, size, ic, oc, stride in shapes.POINTWISE:
        yield case("conv1x1", model, size, ic, oc, 1, stride, 0)
    for model, size, ic, oc, stride in shapes.DIRECT:
        yield case("conv3x3", model, size, ic, oc, 3, stride, 1, numerics="exact")
    for model, size, ic, oc, stride in shapes.CONVOLUTIONS:
        yield case("conv3x3_fast", model, size, ic, oc, 3, stride, 1)
    for model, size, edge, oc, stride, pad in shapes.FIRST_LAYERS:
        yield case("conv_first", model, size, 3, oc, edge, stride, pad)
    for model, size, edge, channels, stride in shapes.DEPTHWISE:
        yield case(f"depthwise{edge}x{edge}", model, size, channels, channels, edge, stride, edge // 2, channels)
    for model, size, ic, oc in shapes.UPSAMPLING:
        yield Case("conv_transpose2x2", f"{size}x{size}x{ic}x{oc}", model, partial(_upsampling, size, ic, oc))


def _attention_and_rows() -> Iterator[Case]:
    for model, heads, length, depth, mask in shapes.ATTENTIONS:
        yield Case("attention", f"{heads}x{length}x{depth} {mask}", model, partial(_attention, heads, length, depth, mask), indices=2)
    for model, rows, n, op in shapes.SOFTMAXES:
        attrs: dict[str, Any] = {"axis": 1} if op == "log_softmax" else {"axis": 1, "fully_masked": "nan"}
        yield Case(op, f"{rows}x{n}", model, partial(_unary, op, (rows, n), **attrs))
    for model, rows, n, op in shapes.LAYER_NORMS:
        yield Case(op, f"{rows}x{n}", model, partial(_norm, op, rows, n))
    for model, shape, axes, kind in shapes.REDUCTIONS:
        attrs = {"kind": kind, "axes": axes, "keepdims": False, "nan": "propagate", "empty": "identity"}
        yield Case(f"reduce_{kind}", f"{_text(shape)} axes {_text(axes)}", model, partial(_unary, "reduce", shape, **attrs))
    for model, size, channels, window, stride, pad in shapes.MAX_POOLS:
        attrs = {**_windows(window, stride, pad), "dilations": (1, 1), "nan": "propagate"}
        yield Case(
            "max_pool",
            f"{size}x{size}x{channels} {window}s{stride}",
            model,
            partial(_unary, "max_pool", (1, size, size, channels), **attrs),
        )
    for model, size, channels, window, stride, pad in shapes.AVERAGE_POOLS:
        attrs = {**_windows(window, stride, pad), "divisor": "window", "divisor_value": None}
        yield Case(
            "avg_pool",
            f"{size}x{size}x{channels} {window}s{stride}",
            model,
            partial(_unary, "avg_pool", (1, size, size, channels), **attrs),
        )


def _elementwise() -> Iterator[Case]:
    for count, op in shapes.ELEMENTWISE:
        yield Case(op, str(count), "", partial(elementwise_graph, op, count))


def _movement() -> Iterator[Case]:
    for model, name, shape, order in shapes.COPIES:
        yield Case(name, _text(shape), model, partial(_unary, "transpose", shape, perm=order))
    for model, rows, columns, count in shapes.TAKES:
        yield Case("take", f"{count} of {rows}x{columns}", model, partial(_take, rows, columns, count), indices=rows)
    for k, n, transposed in shapes.PACKS:
        # No row of A: nothing but the packing is left.
        yield Case("pack_b", f"{k}x{n}" + (" transposed" if transposed else ""), "", partial(_matmul, 1, 0, n, k, transposed))


def _text(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _weights(*shape: int) -> np.ndarray:
    """Returns weights that keep activations near 1, for sums over all axes but the first."""
    data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return data / np.float32(math.sqrt(max(math.prod(shape[1:]), 1)))


def _unary(op: str, shape: tuple[int, ...], **attrs: Any) -> Graph:
    b = GraphBuilder(op)
    b.output("y", b.add(op, [b.input("x", "f32", shape)], **attrs))
    return b.build()


def _linear(m: int, n: int, k: int, after: str = "") -> Graph:
    b = GraphBuilder("gemm")
    x, weight, bias = b.input("x", "f32", (m, k)), b.constant(_weights(n, k), "weight"), b.constant(_weights(n), "bias")
    y = b.add("linear", [x, weight, bias], weight_layout="oi")
    if after == "add":
        y = b.add("add", [y, b.input("residual", "f32", (m, n))])
    elif after.startswith("gelu"):
        y = b.add("gelu", [y], approximate="tanh" if after == "gelu_tanh" else "none")
    elif after:
        y = b.add(after, [y])
    b.output("y", y)
    return b.build()


def _matmul(batch: int, m: int, n: int, k: int, transposed: bool = False) -> Graph:
    b = GraphBuilder("gemm_both")
    right = b.input("b", "f32", (batch, n, k) if transposed else (batch, k, n))
    b.output("y", b.add("matmul", [b.input("a", "f32", (batch, m, k)), right], transpose_a=False, transpose_b=transposed))
    return b.build()


def _recurrent(op: str, time: int, features: int, hidden: int) -> Graph:
    gates = 4 if op == "lstm" else 3
    b = GraphBuilder(op)
    operands: list[str | None] = [b.input("x", "f32", (time, 1, features))]
    operands += [b.constant(_weights(gates * hidden, columns), name) for name, columns in (("w", features), ("r", hidden))]
    operands.append(b.constant(_weights(gates * hidden), "bias"))
    attrs: dict[str, Any] = {"direction": "forward"}
    if op == "lstm":
        operands += [b.input("h0", "f32", (1, hidden)), b.input("c0", "f32", (1, hidden))]
    else:
        attrs["reset"] = "after"
        operands += [b.constant(_weights(gates * hidden), "recurrent_bias"), b.input("h0", "f32", (1, hidden))]
    for index, value in enumerate(b.add(op, operands, **attrs)):
        b.output(f"y{index}", value)
    return b.build()


def _conv(size: int, ic: int, oc: int, edge: int, stride: int, pad: int, groups: int) -> Graph:
    b = GraphBuilder("conv2d")
    operands = [
        b.input("x", "f32", (1, size, size, ic)),
        b.constant(_weights(oc, ic // groups, edge, edge), "weight"),
        b.constant(_weights(oc), "bias"),
    ]
    pads = ((pad, pad), (pad, pad))
    y = b.add("conv2d", operands, strides=(stride, stride), pads=pads, dilations=(1, 1), groups=groups, data_layout="NHWC")
    b.output("y", y)
    return b.build()


def _upsampling(size: int, ic: int, oc: int) -> Graph:
    b = GraphBuilder("conv2d_transpose")
    operands = [b.input("x", "f32", (1, size, size, ic)), b.constant(_weights(ic, oc, 2, 2), "weight"), b.constant(_weights(oc), "bias")]
    places: dict[str, Any] = {"strides": (2, 2), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "output_padding": (0, 0)}
    b.output("y", b.add("conv2d_transpose", operands, groups=1, data_layout="NHWC", **places))
    return b.build()


def _attention(heads: int, length: int, depth: int, mask: str) -> Graph:
    """Attention as models have it: queries, keys and values side by side in the output of one linear layer."""
    b = GraphBuilder("attention")
    joined = b.input("qkv", "f32", (1, length, 3 * heads * depth))
    operands: list[str | None] = []
    for index in range(3):
        first = index * heads * depth
        part = b.add("slice", [joined], start=(0, 0, first), limit=(1, length, first + heads * depth), strides=(1, 1, 1))
        operands.append(b.add("transpose", [b.add("reshape", [part], shape=(1, length, heads, depth))], perm=(0, 2, 1, 3)))
    operands.append(b.input("mask", "bool", (1, 1, length, length)) if mask == "bool" else None)
    scale = 1 / math.sqrt(depth)
    y = b.add("attention", operands, scale=scale, softcap=None, mask=mask, fully_masked="zero", kv_groups=1)
    b.output("y", b.add("reshape", [b.add("transpose", [y], perm=(0, 2, 1, 3))], shape=(1, length, heads * depth)))
    return b.build()


def _norm(op: str, rows: int, n: int) -> Graph:
    b = GraphBuilder(op)
    operands = [b.input("x", "f32", (rows, n)), b.constant(_weights(n), "scale")]
    operands += [b.constant(_weights(n), "bias")] if op == "layer_norm" else []
    attrs: dict[str, Any] = {"variance": "two_pass"} if op == "layer_norm" else {}
    b.output("y", b.add(op, operands, axes=(1,), eps=1e-5, **attrs))
    return b.build()


def _windows(window: int, stride: int, pad: int) -> dict[str, Any]:
    return {"window": (window, window), "strides": (stride, stride), "pads": ((pad, pad), (pad, pad)), "data_layout": "NHWC"}


def elementwise_graph(op: str, count: int) -> Graph:
    """Returns one op, or a chain, over so many elements.

    Chains: ``mul_add_sigmoid_mul`` z sigmoid(z) for z = 1.1 x + 0.3; ``add_relu``; ``eight_cheap`` of 8 additions, products, bounds.
    """
    b = GraphBuilder(op)
    x = b.input("x", "f32", (count,))

    def number(value: float) -> str:
        return b.constant(np.array(value, np.float32))

    if op == "mul_add_sigmoid_mul":
        z = b.add("add", [b.add("mul", [x, number(1.1)]), number(0.3)])
        y = b.add("mul", [z, b.add("sigmoid", [z])])
    elif op in ("add_relu", "eight_cheap"):
        other = b.input("other", "f32", (count,))
        y = b.add("add", [x, other])
        if op == "add_relu":
            y = b.add("relu", [y])
        else:
            y = b.add("relu", [b.add("sub", [b.add("mul", [y, number(1.1)]), number(0.3)])])
            y = b.add("add", [b.add("mul", [y, x]), other])
            y = b.add("mul", [b.add("min", [y, number(6)]), number(1 / 6)])
    elif op.startswith("gelu"):
        y = b.add("gelu", [x], approximate="tanh" if op == "gelu_tanh" else "none")
    else:
        y = b.add(op, [x])
    b.output("y", y)
    return b.build()


def _take(rows: int, columns: int, count: int) -> Graph:
    b = GraphBuilder("take")
    operands = [b.constant(_weights(rows, columns), "table"), b.input("indices", "i64", (count,))]
    b.output("y", b.add("take", operands, axis=0, oob="error", wrap_negative=False, fill_value=None))
    return b.build()
