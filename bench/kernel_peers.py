"""How other libraries run a row of the kernel benchmark: products, attention, softmax, layer norm and functions of one operand.

A library gets what it is best at: outputs written in place where it can, operands in the layout it likes, one thread.
A chain is held against a loop written by hand in C.
"""

from __future__ import annotations

import ctypes
import math
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rml_exec
from rml_exec import Graph
from rml_exec.ir.graph import Node

__all__ = ["KERNEL_SOURCES", "PREPARE"]

KERNEL_SOURCES = Path(rml_exec.__file__).parent / "native" / "kernels"
"""Where the headers of the kernels lie; an installed package has none."""

Call = Callable[[], Any]
"""Runs once and returns the output, in whatever form the library has it."""


def _single(graph: Graph, op: str) -> Node | None:
    """Returns the node of a graph that has only one, of this op."""
    return graph.nodes[0] if len(graph.nodes) == 1 and graph.nodes[0].op == op else None


def _attention(graph: Graph) -> Node | None:
    return next((node for node in graph.nodes if node.op == "attention"), None)


def _constants(graph: Graph) -> list[np.ndarray]:
    return [constant.data for constant in graph.constants]


def _heads(node: Node, joined: np.ndarray) -> list[np.ndarray]:
    """Returns queries, keys and values as views [1, heads, length, depth] of what one linear layer made."""
    _, heads, length, depth = node.outputs[0].type.shape
    return [joined.reshape(1, length, 3, heads, depth)[:, :, index].transpose(0, 2, 1, 3) for index in range(3)]


# ---- NumPy -----------------------------------------------------------------------------------------------------------------------------


def _numpy(graph: Graph, inputs: Sequence[np.ndarray]) -> Call | None:
    x = inputs[0]
    out = np.empty_like(x)
    op = graph.nodes[0].op if len(graph.nodes) == 1 else ""
    if op in ("exp", "log", "tanh"):
        function = getattr(np, op)
        return lambda: function(x, out=out)
    if op in ("sigmoid", "silu"):
        numerator = x if op == "silu" else np.float32(1)

        def sigmoid() -> np.ndarray:
            np.negative(x, out=out)
            np.exp(out, out=out)
            np.add(out, np.float32(1), out=out)
            return np.divide(numerator, out, out=out)

        return sigmoid
    if op == "gelu" and graph.nodes[0].attrs["approximate"] == "tanh":
        return lambda: _numpy_gelu(x, out)
    if op == "softmax":
        return lambda: _numpy_softmax(x, out)
    if op == "layer_norm":
        gain, shift = _constants(graph)
        return lambda: _numpy_layer_norm(x, gain, shift, out)
    if op == "linear":
        weight, bias = _constants(graph)
        right, product = np.ascontiguousarray(weight.T), np.empty((len(x), len(weight)), np.float32)

        def linear() -> np.ndarray:
            np.matmul(x, right, out=product)
            return np.add(product, bias, out=product)

        return linear
    if (node := _attention(graph)) is not None and node.attrs["mask"] == "none":
        q, k, v = _heads(node, x)
        scale = np.float32(node.attrs["scale"])

        def attention() -> np.ndarray:
            scores = q @ k.swapaxes(2, 3)
            scores *= scale
            _numpy_softmax(scores, scores)
            return np.ascontiguousarray((scores @ v).transpose(0, 2, 1, 3))

        return attention
    return None


def _numpy_gelu(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.multiply(x, x, out=out)
    out *= np.float32(0.044715)
    out += np.float32(1)
    out *= x
    out *= np.float32(math.sqrt(2 / math.pi))
    np.tanh(out, out=out)
    out += np.float32(1)
    out *= x
    out *= np.float32(0.5)
    return out


def _numpy_softmax(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def _numpy_layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
    variance = np.einsum("ij,ij->i", out, out)[:, None] / np.float32(x.shape[-1])
    out /= np.sqrt(variance + np.float32(1e-5))
    out *= scale
    out += bias
    return out


# ---- PyTorch ---------------------------------------------------------------------------------------------------------------------------


def _torch(graph: Graph, inputs: Sequence[np.ndarray]) -> Call | None:
    import torch

    torch.set_num_threads(1)
    x = torch.from_numpy(inputs[0])
    out = torch.empty_like(x)
    functional = torch.nn.functional
    op = graph.nodes[0].op if len(graph.nodes) == 1 else ""
    if op in ("exp", "log", "tanh", "erf", "sigmoid"):
        function = getattr(torch, op)
        return lambda: function(x, out=out)
    if op == "silu":
        return lambda: torch.ops.aten.silu.out(x, out=out)
    if op == "gelu":
        approximate = graph.nodes[0].attrs["approximate"]
        return lambda: torch.ops.aten.gelu.out(x, approximate=approximate, out=out)
    if op == "softmax":
        return lambda: torch.softmax(x, -1, out=out)
    if op == "layer_norm":
        scale, bias = (torch.from_numpy(data.copy()) for data in _constants(graph))
        return lambda: functional.layer_norm(x, scale.shape, scale, bias)
    if op == "linear":
        weight, bias = (torch.from_numpy(data.copy()) for data in _constants(graph))
        product = torch.empty(len(x), len(weight))
        right = weight.t()
        return lambda: torch.addmm(bias, x, right, out=product)
    if (node := _attention(graph)) is not None and node.attrs["mask"] in ("none", "bool"):
        q, k, v = (torch.from_numpy(view) for view in _heads(node, inputs[0]))
        mask = torch.from_numpy(inputs[1]) if len(inputs) > 1 else None
        return lambda: functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).contiguous()
    return None


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------------------------


def _onnxruntime(graph: Graph, inputs: Sequence[np.ndarray]) -> Call | None:
    import onnxruntime

    node = _attention(graph)
    known = ("exp", "log", "tanh", "erf", "sigmoid", "silu", "gelu", "softmax", "layer_norm", "linear")
    if node is not None and node.attrs["mask"] == "none":
        model, inputs = _fused_attention(node), [np.ascontiguousarray(part) for part in np.split(inputs[0], 3, axis=2)]
    elif any(_single(graph, op) is not None for op in known):
        from exporters.to_onnx import to_model

        model = to_model(graph)
    else:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for slot, data in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(slot.name, data)
    (slot,) = session.get_outputs()
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(slot.shape, np.float32)
    binding.bind_ortvalue_output(slot.name, value)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return value

    return run


def _fused_attention(node: Node) -> Any:
    """Returns a model of ONNX Runtime's own fused operator, which the standard ones would only be turned into where it finds the pattern."""
    from onnx import TensorProto, helper

    _, heads, length, depth = node.outputs[0].type.shape
    shape = (1, length, heads * depth)
    attend = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads, scale=float(node.attrs["scale"])
    )
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkvy"]
    graph = helper.make_graph([attend], "attention", tensors[:3], tensors[3:])
    operator_sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=operator_sets, ir_version=9)


# ---- a loop written by hand ------------------------------------------------------------------------------------------------------------


def _hand(graph: Graph, inputs: Sequence[np.ndarray]) -> Call | None:
    if graph.name != "mul_add_sigmoid_mul":
        return None
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "hand_fused.so")
        neon = ["-DRML_USE_NEON"] if platform.machine() in ("aarch64", "arm64") else []
        flags = ["-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", "-DRML_ISA=hand", *neon]
        subprocess.run(
            ["cc", *flags, f"-I{KERNEL_SOURCES}", str(Path(__file__).with_name("hand_fused.c")), "-o", str(library), "-lm"], check=True
        )
        function = ctypes.CDLL(str(library)).hand_fused
    x = inputs[0]
    out = np.empty_like(x)
    operands = *(array.ctypes.data_as(ctypes.c_void_p) for array in (out, x)), ctypes.c_int64(x.size)  # they keep the arrays alive

    def run() -> np.ndarray:
        function(*operands)
        return out

    return run


PREPARE: dict[str, Callable[[Graph, Sequence[np.ndarray]], Call | None]] = {
    "numpy": _numpy,
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "hand": _hand,
}
"""Name of a library -> what prepares a call with everything bound, or returns None for a row that is not compared."""
