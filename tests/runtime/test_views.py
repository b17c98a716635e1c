"""Native lowerings read operands that are views: every f32 case again with each operand as a transpose of what the graph is given."""

import numpy as np
import pytest

from rml_exec import Executor, GraphBuilder
from rml_exec.ops import all_ops, get_op
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


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("groups", [1, 3])
def test_attention_reads_heads_of_a_fused_projection(groups, length):
    """Queries, keys and values as models make them: [batch, length, heads * width], reshaped and transposed."""
    operands = [np.random.default_rng(seed).normal(size=(2, length, heads * 8)) for seed, heads in enumerate((2 * groups, 2, 2))]
    attrs = {"scale": 0.4, "softcap": None, "mask": "none", "fully_masked": "nan", "kv_groups": groups}
    builder = GraphBuilder("heads")
    names, want = [], []
    for index, array in enumerate(operands):
        x = builder.input(f"x{index}", "f32", array.shape)
        parted = builder.add("reshape", [x], shape=(2, length, array.shape[-1] // 8, 8))
        names.append(builder.add("transpose", [parted], perm=(0, 2, 1, 3)))
        want.append(array.reshape(2, length, -1, 8).swapaxes(1, 2))
    builder.output("y", builder.add("attention", [*names, None], **attrs))
    given = {f"x{index}": array.astype(np.float32) for index, array in enumerate(operands)}
    got = Executor.create(builder.build(), threads=2).run(given)["y"]
    np.testing.assert_allclose(got, get_op("attention").run_reference([*want, None], attrs)[0], rtol=1e-4, atol=1e-5)
