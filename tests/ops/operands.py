"""Operand arrays for the cases of op records, and the comparison their tolerance stands for."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rml_exec.ops import Case, OpDef, Tolerance, get_op
from rml_exec.runtime.reference import ReferenceFunction
from rml_exec.types import DType, TensorType


def operands_of(op: OpDef, case: Case) -> list[np.ndarray | None]:
    """Returns read-only operands of a case: shapes filled from the op's domain, always with the same numbers."""
    random = np.random.default_rng(zlib.crc32(f"{op.name}/{case.id}".encode()))
    made = [_filled(operand, op.domain, random) for operand in case.inputs]
    for array in made:
        if array is not None:
            array.flags.writeable = False
    return made


def _filled(operand: TensorType | np.ndarray | None, domain: tuple[float, float], random: np.random.Generator) -> np.ndarray | None:
    if operand is None or isinstance(operand, np.ndarray):
        return None if operand is None else operand.copy()
    low, high = domain
    if operand.dtype is DType.BOOL:
        return np.asarray(random.random(operand.shape) < 0.5)
    if operand.dtype is DType.BF16:
        return (random.uniform(low, high, operand.shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if operand.dtype.is_float:
        return np.asarray(random.uniform(low, high, operand.shape)).astype(operand.dtype.numpy)
    info = np.iinfo(operand.dtype.numpy)
    return np.asarray(random.integers(max(int(low), info.min), min(int(high), info.max), operand.shape, operand.dtype.numpy, endpoint=True))


def types_of(case: Case, operands: list[np.ndarray | None]) -> list[TensorType | None]:
    """Returns the operand types of a case; bf16, which NumPy lacks, is taken from the case."""
    return [
        given if isinstance(given, TensorType) else None if array is None else TensorType.of(array)
        for given, array in zip(case.inputs, operands, strict=True)
    ]


def infer_case(op: OpDef, case: Case, operands: list[np.ndarray | None]) -> tuple[TensorType, ...]:
    """Returns the output types of a case."""
    return op.infer_types(op.name, types_of(case, operands), case.attrs, case.functions)


def run_case(op: OpDef, case: Case, operands: list[np.ndarray | None], *, wide: bool = False) -> tuple[np.ndarray, ...]:
    """Returns the results of the op's reference; ``wide`` says that floats are float64, inside the case's functions too."""
    functions = {name: ReferenceFunction(function, case.functions, wide=wide, where=op.name) for name, function in case.functions.items()}
    return op.run_reference(operands, case.attrs, op.name, functions)


def widened(operands: list[np.ndarray | None]) -> list[np.ndarray | None]:
    return [array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array for array in operands]


def assert_within(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> None:
    """Compares as :class:`Tolerance` says; ``want`` may be of a wider float type than ``got``."""
    rounded = want.astype(got.dtype)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, rounded)
        return
    finite = np.isfinite(rounded) & np.isfinite(got)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, rounded), err_msg="infinities or NaN differ")
    exact, near = np.asarray(rounded[finite], np.float64), np.asarray(got[finite], np.float64)
    if exact.size:
        bound = tolerance.rtol * np.abs(exact) + tolerance.atol_rms * np.sqrt(np.mean(np.square(exact)))
        worst = np.argmax(np.abs(near - exact) - bound)
        assert np.all(np.abs(near - exact) <= bound), (
            f"worst element: got {near[worst]!r}, want {exact[worst]!r}, may differ by {bound[worst]:.3g}"
        )


def run(op: str, *operands: Any, **attrs: Any) -> np.ndarray:
    """Infers and runs the reference of an op of one result on array-likes (None: absent); both must agree on the type of the result."""
    arrays = [None if operand is None else np.asarray(operand) for operand in operands]
    (inferred,) = get_op(op).infer_types(op, [None if array is None else TensorType.of(array) for array in arrays], attrs)
    (result,) = get_op(op).run_reference(arrays, attrs)
    assert TensorType.of(result) == inferred
    return result
