"""The internal op that stands for a group of elementwise nodes: one step, one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.ops.registry import Attr, Rule, Tolerance, case, define, get_op
from rml_exec.types import DType, TensorType


def _infer_fused(*types: TensorType, params: tuple[str, ...], body: tuple[Node, ...], results: tuple[str, ...]) -> tuple[TensorType, ...]:
    if len(params) != len(types):
        raise Rule("a fused group must have one parameter per operand", f"{len(params)} parameters, {len(types)} operands")
    known = dict(zip(params, types, strict=True))
    for node in body:
        op = get_op(node.op)
        if not op.elementwise:
            raise Rule("a fused group holds elementwise nodes only", f"{node.op} '{node.name}'")
        inferred = op.infer_types(f"{node.op} '{node.name}'", [known[name] for name in node.reads()], node.attrs)
        known.update((value.name, type_) for value, type_ in zip(node.outputs, inferred, strict=True))
    shapes = {known[name].shape for name in results}
    if len(shapes) != 1:
        raise Rule("all results of a fused group must have one shape", sorted(shapes))
    return tuple(known[name] for name in results)


def _run_fused(*operands: np.ndarray, params: tuple[str, ...], body: tuple[Node, ...], results: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    known = dict(zip(params, operands, strict=True))
    for node in body:
        outputs = get_op(node.op).run_reference([known[name] for name in node.reads()], node.attrs)
        known.update((value.name, array) for value, array in zip(node.outputs, outputs, strict=True))
    return tuple(known[name] for name in results)


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    total = 0
    for node in attrs["body"]:
        node_outputs = tuple(value.type for value in node.outputs)
        rule = get_op(node.op).flops
        total += rule([], node_outputs, node.attrs) if rule else sum(t.size for t in node_outputs)
    return total


def _case_body(shape: tuple[int, ...]) -> dict[str, Any]:
    type_ = TensorType(DType.F32, shape)
    add = Node("add", "sum", ("a", "b"), (Value("s", type_),))
    act = Node("relu", "act", ("s",), (Value("r", type_),))
    return {"params": ("a", "b"), "body": (add, act), "results": ("s", "r")}


fused = define(
    name="fused",
    inputs=("xs*",),
    outputs=("ys*",),
    attrs={"params": Attr("strs"), "body": Attr("body"), "results": Attr("strs")},
    infer=_infer_fused,
    reference=_run_fused,
    elementwise=True,
    inplace=tuple((output, operand) for output in range(8) for operand in range(16)),  # any result over any operand of its type
    flops=_flops,
    tolerance=Tolerance(rtol=2e-6, atol_rms=1e-6),
    internal=True,
    cases=(
        case("scalar", (), (), **_case_body(())),
        case("empty", (0, 3), (3,), **_case_body((0, 3))),
        case("row", (5, 17), (17,), **_case_body((5, 17))),
        case("tail", (1027,), (1027,), **_case_body((1027,))),
    ),
    doc="""Runs `body`, a list of elementwise nodes of one output shape, on operands bound to the names `params`; the values named
    `results` are its outputs. Made by the pass `fuse_elementwise`; a file cannot contain it.""",
)
