"""The internal op that stands for a matrix product or convolution and the elementwise nodes that finish its sums before they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.ops.linear import PRODUCT
from rml_exec.ops.registry import Attr, Rule, case, define, get_op
from rml_exec.types import DType, TensorType

_PRODUCTS = ("linear", "matmul", "conv2d")


def _infer_epilogue(*types: TensorType | None, params: tuple[str, ...], body: tuple[Node, ...]) -> TensorType:
    if len(params) != len(types):
        raise Rule("an epilogue must have one parameter per operand", f"{len(params)} parameters, {len(types)} operands")
    known = dict(zip(params, types, strict=True))
    for index, node in enumerate(body):
        op = get_op(node.op)
        if not (op.elementwise if index else node.op in _PRODUCTS):
            raise Rule("an epilogue holds a product and then elementwise nodes", f"{node.op} '{node.name}'")
        operands = [None if name is None else known[name] for name in node.inputs]
        known[node.outputs[0].name] = op.infer_types(f"{node.op} '{node.name}'", operands, node.attrs)[0]
    result = known[body[-1].outputs[0].name]
    if types[0] is not None and types[0] != result:
        raise Rule(f"the residual must have the type of the result ({result})", types[0])
    assert result is not None
    return result


def _run_epilogue(*operands: np.ndarray | None, params: tuple[str, ...], body: tuple[Node, ...]) -> np.ndarray:
    known = dict(zip(params, operands, strict=True))
    for node in body:
        inputs = [None if name is None else known[name] for name in node.inputs]
        known[node.outputs[0].name] = get_op(node.op).run_reference(inputs, node.attrs)[0]
    result = known[body[-1].outputs[0].name]
    assert result is not None
    return result


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    known, total = dict(zip(attrs["params"], types, strict=True)), 0
    for node in attrs["body"]:
        rule = get_op(node.op).flops
        results = tuple(value.type for value in node.outputs)
        total += rule([known.get(name) for name in node.inputs], results, node.attrs) if rule else results[0].size
        known[node.outputs[0].name] = results[0]
    return total


def _body(product: str, attrs: dict[str, Any], shape: tuple[int, ...], *chain: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the attributes of a case: the product of operands "a" and "b", then a chain of nodes, of which an add reads the residual "r"."""
    type_ = TensorType(DType.F32, shape)
    inputs = ("a", "b") if product == "matmul" else ("a", "b", None)
    nodes = [Node(product, "v0", inputs, (Value("v0", type_),), attrs)]
    for index, (op, op_attrs) in enumerate(chain, 1):
        operands = (f"v{index - 1}", "r") if op == "add" else (f"v{index - 1}",)
        nodes.append(Node(op, f"v{index}", operands, (Value(f"v{index}", type_),), op_attrs))
    return {"params": ("r" if any(op == "add" for op, _ in chain) else "", "a", "b"), "body": tuple(nodes)}


_LINEAR = {"weight_layout": "oi"}
_MATMUL = {"transpose_a": False, "transpose_b": False}
_CONV = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "data_layout": "NHWC"}
_RELU6 = ("clamp", {"lo": 0.0, "hi": 6.0})

define(
    name="epilogue",
    inputs=("residual?", "xs*"),
    attrs={"params": Attr("strs"), "body": Attr("body")},
    infer=_infer_epilogue,
    reference=_run_epilogue,
    inplace=((0, 0),),
    flops=_flops,
    tolerance=PRODUCT,
    internal=True,
    cases=(
        case("one", None, (1, 1), (1, 1), **_body("matmul", _MATMUL, (1, 1), ("relu", {}))),
        case("vector", None, (1, 65), (300, 65), **_body("linear", _LINEAR, (1, 300), ("gelu", {"approximate": "none"}))),
        case("empty", None, (0, 5), (5, 3), **_body("matmul", _MATMUL, (0, 3), ("tanh", {}))),
        case("residual", (7, 67), (7, 17), (67, 17), **_body("linear", _LINEAR, (7, 67), ("add", {}), ("relu", {}))),
        case("residual-after", (7, 33), (7, 17), (33, 17), **_body("linear", _LINEAR, (7, 33), ("silu", {}), ("add", {}))),
        case("gelu-tanh", None, (9, 300), (300, 70), **_body("matmul", _MATMUL, (9, 70), ("gelu", {"approximate": "tanh"}))),
        case("batch", (3, 5, 9), (3, 5, 4), (3, 4, 9), **_body("matmul", _MATMUL, (3, 5, 9), ("add", {}), ("sigmoid", {}))),
        case(
            "conv",
            (2, 7, 5, 33),
            (2, 7, 5, 8),
            (33, 8, 3, 3),
            **_body("conv2d", _CONV, (2, 7, 5, 33), ("add", {}), ("relu", {})),
        ),
        case("conv-hard", None, (1, 7, 5, 8), (17, 8, 3, 3), **_body("conv2d", _CONV, (1, 7, 5, 17), ("hard_swish", {}))),
        case("depthwise", None, (1, 9, 8, 33), (33, 1, 3, 3), **_body("conv2d", {**_CONV, "groups": 33}, (1, 9, 8, 33), _RELU6)),
    ),
    doc="""Runs `body`, a linear, matmul or conv2d followed by elementwise nodes of its shape, each reading the one before, on operands bound
    to the names `params`; the last node's result is the output, which may overwrite `residual`. Made by the pass `fuse_epilogue`; a file
    cannot contain it.""",
)
