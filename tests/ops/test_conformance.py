"""Tests made from the records: each claim of each op is checked on each of its cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rml_exec import GraphBuilder
from rml_exec.ops import Case, OpDef, all_ops, get_op
from rml_exec.ops.decompose import decompose
from rml_exec.runtime.reference import run_reference
from rml_exec.types import DType, TensorType
from tests.ops.operands import assert_within, infer_case, operands_of, run_case, types_of, widened


def cases(wanted: Callable[[OpDef, Case], bool]) -> pytest.MarkDecorator:
    """Runs a test on every case of every op that ``wanted`` chooses."""
    return pytest.mark.parametrize(
        ("op", "case"), [pytest.param(op, case, id=f"{op.name}-{case.id}") for op in all_ops() for case in op.cases if wanted(op, case)]
    )


def has(dtype: type) -> Callable[[OpDef, Case], bool]:
    def wanted(op: OpDef, case: Case) -> bool:
        return any(operand is not None and _storage(operand) == dtype for operand in case.inputs)

    return wanted


def _storage(operand: TensorType | np.ndarray) -> np.dtype:
    return operand.dtype if isinstance(operand, np.ndarray) else operand.dtype.numpy


each_case = cases(lambda op, case: True)


@each_case
def test_reference_gives_exactly_the_inferred_types(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    inferred = infer_case(op, case, operands)
    results = run_case(op, case, operands)
    assert [(array.dtype, array.shape) for array in results] == [(type_.dtype.numpy, type_.shape) for type_ in inferred]


@cases(has(np.float32))
def test_f32_reference_is_within_tolerance_of_the_f64_reference(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    attrs = {name: "f64" if op.attrs[name].kind == "dtype" and DType(value).is_float else value for name, value in case.attrs.items()}
    wide = run_case(op, replace(case, attrs=attrs), widened(operands), wide=True)
    for got, want in zip(run_case(op, case, operands), wide, strict=True):
        assert want.dtype == (np.float64 if got.dtype.kind == "f" else got.dtype)
        assert_within(got, want, op.tolerance)


@cases(lambda op, case: has(np.float16)(op, case) and op.name not in ("cast", "bitcast"))
def test_half_is_the_single_result_rounded_once(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    single = [None if array is None else array.astype(np.float32) if array.dtype == np.float16 else array for array in operands]
    for got, want in zip(op.run_reference(operands, case.attrs), op.run_reference(single, case.attrs), strict=True):
        np.testing.assert_array_equal(got, want.astype(got.dtype))


@cases(lambda op, case: op.elementwise)
def test_elementwise_result_depends_on_its_own_position_only(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    whole = op.run_reference(operands, case.attrs)
    shape = whole[0].shape
    order = np.random.default_rng(0).permutation(whole[0].size)[: max(1, whole[0].size * 2 // 3)]
    picked = [np.broadcast_to(array, shape).reshape(-1)[order] for array in operands if array is not None]
    for part, full in zip(op.run_reference(picked, case.attrs), whole, strict=True):
        assert_within(part, full.reshape(-1)[order], op.tolerance)


@cases(lambda op, case: op.view)
def test_view_shares_the_memory_of_its_operand(op: OpDef, case: Case) -> None:
    (operand,) = operands_of(op, case)
    (result,) = op.run_reference([operand], case.attrs)
    assert operand is not None
    assert result.size == 0 or np.shares_memory(result, operand)


@each_case
def test_inplace_pairs_and_flops_make_sense(op: OpDef, case: Case) -> None:
    operands = operands_of(op, case)
    types = types_of(case, operands)
    outputs = infer_case(op, case, operands)
    if not op.variadic:
        assert all(output < len(outputs) and operand < len(types) for output, operand in op.inplace)
    if op.flops is not None:
        flops = op.flops(types, outputs, case.attrs)
        assert isinstance(flops, int)
        assert (flops > 0) == any(type_.size for type_ in outputs) or op.name in (
            "reduce",
            "argreduce",
            "conv2d",
            "matmul",
            "linear",
            "attention",
            "scatter_along_axis",
            "scatter_nd",
            "conv2d_transpose",
        )


@cases(lambda op, case: op.expand is not None)
def test_composite_is_its_decomposition(op: OpDef, case: Case) -> None:
    operands = widened(operands_of(op, case))
    builder = GraphBuilder("decomposition")
    names = [None if array is None else builder.input("x", DType.of(array.dtype), array.shape) for array in operands]
    results = decompose(builder, op.name, names, case.attrs)
    for index, value in enumerate(results):
        builder.output(f"y{index}", value)
    graph = builder.build()
    assert all(get_op(node.op).expand is None for node in graph.nodes), "a decomposition holds primitives only"
    inputs = {name: array for name, array in zip(names, operands, strict=True) if name is not None and array is not None}
    got = run_reference(graph, inputs, precision="f64")
    wants = op.run_reference(operands, case.attrs)
    assert len(wants) == len(results)
    for index, want in enumerate(wants):
        assert (got[f"y{index}"].dtype, got[f"y{index}"].shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got[f"y{index}"], want, rtol=1e-12, atol=1e-13)


def test_composites_are_those_of_the_set() -> None:
    composites = """relu leaky_relu elu silu gelu softplus hard_sigmoid hard_swish batch_norm layer_norm rms_norm group_norm softmax
    log_softmax attention lstm gru"""
    assert [op.name for op in all_ops() if op.expand is not None] == composites.split()
    builder = GraphBuilder("primitive")
    with pytest.raises(ValueError, match="op add is primitive"):
        decompose(builder, "add", [builder.input("a", "f32", (3,)), builder.input("b", "f32", (3,))], {})


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_cases_cover_the_edges(op: OpDef) -> None:
    sizes = set()
    for case in op.cases:
        outputs = infer_case(op, case, operands_of(op, case))
        sizes.update(type_.size for type_ in outputs)
    assert 0 in sizes, "no case has an empty result"
    assert any(size % 2 and size > 1 for size in sizes), "no case has an odd number of results"
    assert len({case.id for case in op.cases}) == len(op.cases)
