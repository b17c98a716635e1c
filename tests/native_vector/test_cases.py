"""The cases of the op records, run natively: against the float64 reference, on every instruction set, with one thread and two."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ops import all_ops, get_op
from rml_exec.runtime.elementwise_program import OPS
from rml_exec.types import DType
from tests.native_vector.native import ISAS, NotLoweredError, run
from tests.ops.operands import assert_within, operands_of, widened

ROW_OPS = ("softmax", "log_softmax", "layer_norm", "batch_norm", "reduce", "max_pool", "avg_pool")
_STATISTICS = (1, 2, 3, 4)  # batch_norm is native where these operands are constants
_LANES = (DType.F32, DType.I32, DType.BOOL)
# Left to NumPy: errors that depend on values, kinds and types that no model has needed yet.
_NOT_NATIVE = {
    "cast": {"error"},
    "div": {"i32-floor", "i32-trunc"},
    "rem": {"i32-divisor", "i32-dividend"},
    "pow": {"i32"},
    "sign": {"i32"},
    "reduce": {"mean-nan-skip", "any-bool", "all-bool", "i32-lowest"},
}


def _native_cases() -> list[tuple[str, int]]:
    found = []
    for op in all_ops():
        if op.name not in (*OPS, "fused", *ROW_OPS):
            continue
        for index, item in enumerate(op.cases):
            operands = operands_of(op, item)
            types = [DType.of(x.dtype) for x in operands if x is not None] + [DType(item.attrs.get("to", "f32"))]
            needs_value_check = op.name == "cast" and item.attrs["f2i"] == "error" and types[0] is DType.F32 and types[-1] is DType.I32
            if all(t in _LANES for t in types) and item.id not in _NOT_NATIVE.get(op.name, ()) and not needs_value_check:
                found.append((op.name, index))
    return found


@pytest.mark.parametrize(("op", "index"), _native_cases(), ids=lambda value: str(value))
def test_a_case_agrees_with_the_reference_everywhere(op: str, index: int) -> None:
    record = get_op(op)
    item = record.cases[index]
    operands = operands_of(record, item)
    wanted = record.run_reference(widened(operands), item.attrs)
    constants = _STATISTICS if op == "batch_norm" else ()
    bits = {}
    for isa in ISAS:
        results = run(op, operands, item.attrs, isa=isa, constants=constants)
        for got, want in zip(results, wanted, strict=True):
            assert got.shape == want.shape
            assert_within(got, want, record.tolerance)
        bits[isa] = [got.tobytes() for got in results]
        assert [got.tobytes() for got in run(op, operands, item.attrs, isa=isa, threads=2, constants=constants)] == bits[isa]
    with_fma = [bits[isa] for isa in ISAS if isa != "baseline"]
    assert all(other == with_fma[0] for other in with_fma)


def test_every_op_with_a_lowering_is_among_the_cases() -> None:
    assert {op for op, _ in _native_cases()} == {*OPS, "fused", *ROW_OPS}


def test_operands_without_a_constant_go_to_numpy_where_the_kernel_needs_one() -> None:
    record = get_op("batch_norm")
    operands = operands_of(record, record.cases[0])
    with pytest.raises(NotLoweredError):
        run("batch_norm", operands, record.cases[0].attrs)


def test_constants_and_variables_give_the_same(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, two = rng.standard_normal((3, 70)).astype(np.float32), np.float32(2).reshape(())
    for op, attrs in (("add", {}), ("div", {"rounding": "true"}), ("sub", {}), ("compare", {"dir": "lt"})):
        for operands in ([x, two], [two, x]):
            variable = run(op, operands, attrs, isa=isa)[0]
            constant = (
                run(op, operands, attrs, isa=isa, constants=(0, 1))[0]
                if operands[0] is two
                else run(op, operands, attrs, isa=isa, constants=(1,))[0]
            )
            np.testing.assert_array_equal(constant, variable)
