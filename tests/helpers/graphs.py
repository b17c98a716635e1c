"""Small graphs with deterministic weights, and inputs for them."""

from __future__ import annotations

import numpy as np

from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder


def pattern(*shape: int, step: int = 7, scale: float = 1 / 63) -> np.ndarray:
    """Returns f32 numbers in [-0.8, 0.8] that depend on ``step`` alone: the same on every machine and NumPy version, unlike random ones."""
    numbers = (np.arange(np.prod(shape, dtype=np.int64)) * step) % 101 - 50
    return (numbers * scale).astype(np.float32).reshape(shape)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns one array per input: normal floats, small integers, coin flips."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in graph.inputs:
        dtype = value.type.dtype
        if dtype.is_float:
            found[value.name] = rng.standard_normal(value.type.shape).astype(dtype.numpy)
        else:
            found[value.name] = rng.integers(0, 2 if dtype.value == "bool" else 5, value.type.shape).astype(dtype.numpy)
    return found


def mlp_graph(batch: int = 2, sizes: tuple[int, ...] = (8, 16, 4), name: str = "mlp") -> Graph:
    """Linear layers with biases, a relu between each two."""
    b = GraphBuilder(name, producer={"framework": "numpy", "framework_version": "2", "exporter_version": "0.1.0", "options": {}})
    value = b.input("x", "f32", (batch, sizes[0]))
    for index, (width, height) in enumerate(zip(sizes[1:], sizes, strict=False)):
        weight = b.constant(pattern(width, height, step=7 + 2 * index), name=f"fc{index}.weight", key=f"fc{index}.weight")
        bias = b.constant(pattern(width, step=11 + 2 * index), name=f"fc{index}.bias", key=f"fc{index}.bias")
        value = b.add("linear", [value, weight, bias], weight_layout="oi", name=f"fc{index}")
        if index < len(sizes) - 2:
            value = b.add("relu", [value], name=f"relu{index}")
    b.output("y", value)
    return b.build()


def cnn_graph(batch: int = 1, size: int = 8, layout: str = "NCHW") -> Graph:
    """Conv, relu, max pool, conv without bias, global mean, linear."""
    b = GraphBuilder("cnn", producer={"framework": "numpy", "framework_version": "2", "exporter_version": "0.1.0", "options": {}})
    x = b.input("image", "f32", (batch, 3, size, size) if layout == "NCHW" else (batch, size, size, 3))
    conv = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "data_layout": layout}
    weight0 = b.constant(pattern(6, 3, 3, 3), name="conv0.weight", key="conv0.weight")
    bias0 = b.constant(pattern(6, step=13), name="conv0.bias", key="conv0.bias")
    y = b.add("relu", [b.add("conv2d", [x, weight0, bias0], **conv)])
    y = b.add("max_pool", [y], window=(2, 2), strides=(2, 2), pads=((0, 0), (0, 0)), dilations=(1, 1), data_layout=layout, nan="propagate")
    weight1 = b.constant(pattern(4, 6, 3, 3, step=17), name="conv1.weight", key="conv1.weight")
    y = b.add("conv2d", [y, weight1, None], **conv)
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    y = b.add("reduce", [y], kind="mean", axes=axes, keepdims=False, nan="propagate", empty="identity")
    head = b.constant(pattern(3, 4, step=19), name="head", key="head")
    b.output("y", b.add("linear", [y, head, None], weight_layout="oi"))
    return b.build()


def chain_graph(nodes: int = 100) -> Graph:
    """Many tiny nodes, y = y * x + x over and over: what a run costs beside its kernels."""
    b = GraphBuilder("chain", producer={"framework": "numpy", "framework_version": "2", "exporter_version": "0.1.0", "options": {}})
    x = y = b.input("x", "f32", (16,))
    for index in range(nodes):
        y = b.add("add" if index % 2 else "mul", [y, x])
    b.output("y", y)
    return b.build()


def elementwise_graph() -> Graph:
    """A chain and a diamond with broadcasting, an inline constant, and three results: two of one value, one that is the input itself."""
    b = GraphBuilder("elementwise")
    x = b.input("x", "f32", (3, 5))
    row = b.input("row", "f32", (5,))
    two = b.constant(np.float32(2), name="two")
    y = b.add("mul", [b.add("add", [x, row]), two])
    y = b.add("sub", [b.add("tanh", [y]), b.add("relu", [y])])
    b.output("y", y)
    b.output("again", y)
    b.output("x", x)
    return b.build()
