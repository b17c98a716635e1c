"""Native lowerings read operands that are views: every f32 case again with each operand as a transpose of what the graph is given."""

import numpy as np
import pytest

from rml_exec import Executor, GraphBuilder
from rml_exec.ops import all_ops
from rml_exec.types import DType, TensorType
from tests.ops.operands import assert_within, operands_of, widened

CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.id}")
    for op in all_ops()
    for case in op.cases
    if not op.internal
    and not any(op.calls(case.attrs))
    and any(isinstance(operand, TensorType) and operand.dtype is DType.F32 and operand.rank > 1 for operand in case.inputs)
]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_operands_that_are_views(op, case):
    operands = operands_of(op, case)
    builder = GraphBuilder("views")
    given, names = {}, []
    for index, array in enumerate(operands):
        if array is None:
            names.append(None)
            continue
        turned = np.array(array.T, order="C")
        given[f"v{index}"] = turned
        name = builder.input(f"v{index}", DType.of(turned.dtype), turned.shape)
        names.append(builder.add("transpose", [name], perm=tuple(reversed(range(turned.ndim)))))
    results = builder.add(op.name, names, **case.attrs)
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        builder.output(f"y{index}", value)
    got = Executor.create(builder.build(), numerics="exact", threads=2).run(given)
    attrs = {name: "f64" if op.attrs[name].kind == "dtype" and DType(value).is_float else value for name, value in case.attrs.items()}
    for index, want in enumerate(op.run_reference(widened(operands), attrs)):
        assert_within(got[f"y{index}"], want, op.tolerance)
