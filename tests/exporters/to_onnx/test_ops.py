"""Every op, all cases of its record: written as ONNX, checked, run, and compared with the NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from exporters.errors import UnsupportedOperatorsError  # noqa: E402
from exporters.to_onnx import to_model  # noqa: E402
from exporters.to_onnx.context import ONNX  # noqa: E402
from rml_exec import GraphBuilder  # noqa: E402
from rml_exec.ir.graph import Graph  # noqa: E402
from rml_exec.ops import Case, OpDef, Tolerance, all_ops  # noqa: E402
from tests.exporters.to_onnx.onnx_runs import NEWEST, OPSETS, operators, run_model  # noqa: E402
from tests.ops.operands import assert_within, operands_of, run_case, types_of  # noqa: E402

CASES = [pytest.param(op, case, id=f"{op.name}-{case.id}") for op in all_ops() if not op.internal for case in op.cases]

REFUSED_AT_17 = (
    {("bitcast", id) for id in ("scalar", "tail", "special", "to-float", "i64", "f64", "u16")}
    | {(op, "i32") for op in ("and", "or", "xor")}
    | {("scatter_along_axis", id) for id in ("repeats-max", "repeats-min", "wrap")}
    | {("scatter_nd", id) for id in ("repeats-max", "repeats-min", "drop")}
)
"""Cases whose operators came with a later opset."""

TRAPS = {(op, f"i32-{kind}") for op, kinds in (("div", ("floor", "trunc")), ("rem", ("divisor", "dividend"))) for kind in kinds}
"""The lowest integer divided by -1 ends a process that runs ONNX Runtime."""

LOOSE = {
    "erfc": Tolerance(rtol=0.02, atol_rms=2e-6),  # 1 - erf(x): the tail loses its digits
    "silu": Tolerance(rtol=1e-3, atol_rms=2e-6),  # ONNX Runtime's sigmoid loses its tail
    "resize": Tolerance(rtol=1e-5, atol_rms=1e-5),  # positions in f32
}


def graph_of(op: OpDef, case: Case, operands: list[np.ndarray | None], inputs: int | None = None) -> Graph:
    """Returns the graph of one node; operand i is input ``in{i}`` (from ``inputs`` on a constant), result i output ``out{i}``."""
    builder = GraphBuilder("case")
    for name, function in case.functions.items():
        copy = builder.function(name)
        for value in function.inputs:
            copy.input(value.name, value.type.dtype.value, value.type.shape)
        for constant in function.constants:
            copy.constant(constant.data, name=constant.name)
        for node in function.nodes:
            copy.add(node.op, node.inputs, **node.attrs, outputs=[output.name for output in node.outputs])
        for output in function.outputs:
            copy.output(output.name, output.value)
        copy.build()
    types = types_of(case, operands)
    names: list[str | None] = []
    for index, (type_, array) in enumerate(zip(types, operands, strict=True)):
        if type_ is None or array is None:
            names.append(None)
        elif inputs is None or index < inputs:
            names.append(builder.input(f"in{index}", type_.dtype.value, type_.shape))
        else:
            names.append(builder.constant(array, f"in{index}", key=f"in{index}"))
    results = builder.add(op.name, names, **case.attrs)
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        builder.output(f"out{index}", value)
    return builder.build()


def tolerance(op: OpDef, array: np.ndarray) -> Tolerance:
    """That of the op, wider where other implementations of its parts are: ONNX Runtime has its own exp, tanh and so on."""
    if array.dtype == np.float16:
        return Tolerance(rtol=2e-3, atol_rms=2e-3)
    exact = op.tolerance == Tolerance()
    wider = op.tolerance if exact else Tolerance(max(op.tolerance.rtol, 2e-6), max(op.tolerance.atol_rms, 2e-6))
    return LOOSE.get(op.name, wider)


def test_every_op_is_in_the_table() -> None:
    to_model(GraphBuilder("empty").build())  # fills it
    assert set(ONNX.names()) == {op.name for op in all_ops() if not op.internal}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_a_case_gives_what_the_reference_gives(op: OpDef, case: Case, opset: int) -> None:
    operands = operands_of(op, case)
    graph = graph_of(op, case, operands)
    if opset == 17 and (op.name, case.id) in REFUSED_AT_17:
        with pytest.raises(UnsupportedOperatorsError, match=f"{op.name}.* needs opset (18|26), this is 17"):
            to_model(graph, opset=opset)
        return
    model = to_model(graph, opset=opset, edge_cases=True)
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} <= {""}
    compare_with_reference(op, case, operands, model)


def compare_with_reference(op: OpDef, case: Case, operands: list[np.ndarray | None], model: Any) -> None:
    taken = {value.name for value in model.graph.input}
    inputs = {f"in{index}": array for index, array in enumerate(operands) if array is not None and f"in{index}" in taken}
    results = run_model(model, inputs, trusted=(op.name, case.id) not in TRAPS)
    wanted = run_case(op, case, operands)
    if op.name == "topk" and not case.attrs["sorted"]:  # the order is open
        results, wanted = ([np.sort(array, case.attrs["axis"]) for array in arrays] for arrays in (results, wanted))
    for got, want in zip(results, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert_within(got, want, tolerance(op, want))


WITH_CONSTANTS = [param for param in CASES if len(param.values[1].inputs) > 1 and "bf16" not in param.values[1].id]


@pytest.mark.parametrize(("op", "case"), WITH_CONSTANTS)
def test_a_case_whose_other_operands_are_constants(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    model = to_model(graph_of(op, case, operands, inputs=1), edge_cases=True)
    onnx.checker.check_model(model, full_check=True)
    compare_with_reference(op, case, operands, model)


HOT: dict[str, tuple[list[Any], dict[str, Any], list[str]]] = {
    "relu": ([(2, 3)], {}, ["Relu"]),
    "max": ([(2, 3), (3,)], {}, ["Max"]),
    "clamp": ([(2, 3)], {"lo": 0.0, "hi": 6.0}, ["Clip"]),
    "softmax": ([(2, 3)], {"axis": 1, "fully_masked": "nan"}, ["Softmax"]),
    "take": ([(5, 3), np.array([0, 4])], {"axis": 0, "oob": "clamp", "wrap_negative": True, "fill_value": None}, ["Gather"]),
    "reduce": (
        [(2, 3)],
        {"kind": "max", "axes": (1,), "keepdims": False, "nan": "propagate", "empty": "error"},
        ["ReduceMax"],
    ),
    "argreduce": (
        [(2, 3)],
        {"kind": "max", "axis": 1, "keepdims": False, "tie": "first", "nan": "first", "index_dtype": "i64"},
        ["ArgMax"],
    ),
    "max_pool": (
        [(1, 2, 6, 6)],
        {
            "window": (2, 2),
            "strides": (2, 2),
            "pads": ((0, 0), (0, 0)),
            "dilations": (1, 1),
            "data_layout": "NCHW",
            "nan": "propagate",
        },
        ["MaxPool"],
    ),
    "layer_norm": ([(2, 3), (3,), (3,)], {"axes": (1,), "eps": 1e-5, "variance": "fast"}, ["LayerNormalization"]),
    "gelu": ([(2, 3)], {"approximate": "tanh"}, ["Gelu"]),
    "linear": ([(2, 3), (4, 3), (4,)], {"weight_layout": "oi"}, ["Gemm"]),
}


@pytest.mark.parametrize("name", HOT)
def test_what_models_spend_their_time_in_is_one_operator(name: str) -> None:
    operands, attrs, expected = HOT[name]
    builder = GraphBuilder("hot")
    names = []
    for index, operand in enumerate(operands):
        dtype, shape = ("f32", operand) if isinstance(operand, tuple) else ("i64", operand.shape)
        names.append(builder.input(f"x{index}", dtype, shape))
    builder.output("y", builder.add(name, names, **attrs))
    assert operators(to_model(builder.build())) == expected


def test_all_that_is_refused_is_listed_at_once() -> None:
    builder = GraphBuilder("refused")
    x, n = builder.input("x", "f32", (3,)), builder.input("n", "i32", (3,))
    builder.output("bits", builder.add("bitcast", [x], to="i32", source={"op": "view", "where": "model.py:3"}))
    builder.output("both", builder.add("and", [n, n], source={"op": "and", "where": "model.py:4"}))
    graph = builder.build()
    with pytest.raises(UnsupportedOperatorsError, match="2 operators in 2 nodes") as refused:
        to_model(graph, opset=17)
    assert "model.py:3" in str(refused.value)
    assert "model.py:4" in str(refused.value)
    assert len(to_model(graph, opset=NEWEST).graph.node) == 2
