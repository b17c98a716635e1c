"""The executor on every case of every op record: against the float64 reference, on 1 and 2 threads, with operands as inputs and as constants, in
memory full of NaN, with guard bytes behind every buffer, and on every instruction set of the machine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml_exec import Executor, isa_info
from rml_exec.ir.graph import Constant, Graph, Node, Output, Value
from rml_exec.ops import all_ops
from rml_exec.types import DType
from tests.ops.operands import assert_within, operands_of, types_of, widened

GUARD = 64
POISON = 0xFF  # makes every float a NaN

CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.id}")
    for op in all_ops()
    for case in op.cases
    if not any(getattr(operand, "dtype", None) is DType.BF16 for operand in case.inputs)
    and not any(op.calls(case.attrs))  # see test_control.py
]


def graph_of(op, case, constant):
    """Returns a graph of one node; its operands after the first are constants, or all are inputs."""
    operands = operands_of(op, case)
    types = types_of(case, operands)
    names = [None if type_ is None else f"v{i}" for i, type_ in enumerate(types)]
    held = {i for i, type_ in enumerate(types) if constant and i and type_ is not None}
    outputs = op.infer_types(op.name, types, case.attrs)
    node = Node(op.name, "node", tuple(names), tuple(Value(f"y{i}", type_) for i, type_ in enumerate(outputs)), case.attrs)
    graph = Graph(
        "case",
        tuple(Value(names[i], types[i]) for i in range(len(names)) if names[i] is not None and i not in held),
        tuple(Output(value.name, value.name) for value in node.outputs),
        tuple(Constant(names[i], types[i], operands[i]) for i in sorted(held)),
        (node,),
    )
    return graph, operands, [operands[i] for i in range(len(names)) if names[i] is not None and i not in held]


def run_poisoned(executor, inputs, threads):
    """Runs in memory full of NaN with guard bytes behind arena and outputs; inputs end right before guard bytes too."""
    arena = np.full(executor.memory.arena_bytes + GUARD, POISON, np.uint8)
    raw = [np.full(type_.nbytes + GUARD, POISON, np.uint8) for type_ in executor.output_types.values()]
    given = []
    for array in inputs:
        padded = np.full(array.nbytes + GUARD, POISON, np.uint8)
        padded[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        given.append(padded)
    executor.program.run(arena, given, raw, threads)
    for buffer in (arena[executor.memory.arena_bytes :], *(buffer[-GUARD:] for buffer in (*raw, *given))):
        assert (buffer == POISON).all(), "bytes behind a buffer were written"
    for padded, array in zip(given, inputs, strict=True):
        assert padded[: array.nbytes].tobytes() == array.tobytes(), "an input was written"
    return [
        np.frombuffer(buffer[:-GUARD].tobytes(), type_.dtype.numpy).reshape(type_.shape)
        for buffer, type_ in zip(raw, executor.output_types.values(), strict=True)
    ]


@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize(("op", "case"), CASES)
def test_the_executor_gives_what_the_op_means(op, case, constant):
    graph, operands, inputs = graph_of(op, case, constant)
    executor = Executor.create(graph, numerics="exact")
    attrs = {name: "f64" if op.attrs[name].kind == "dtype" and DType(value).is_float else value for name, value in case.attrs.items()}
    want = op.run_reference(widened(operands), attrs)
    one, two = (run_poisoned(executor, inputs, threads) for threads in (1, 2))
    for got, again, reference in zip(one, two, want, strict=True):
        assert got.tobytes() == again.tobytes(), "1 and 2 threads differ"
        assert_within(got, reference, op.tolerance)


_KERNELS = ("conformance", "rows_alone", "order_kernels", "integer_kernels", "resize_kernels")  # tests of what depends on the vector width


@pytest.mark.skipif("RML_ISA" in os.environ, reason="this is the run for one instruction set")
@pytest.mark.parametrize("isa", [isa for isa in isa_info()["available"] if isa != isa_info()["name"]])
def test_the_same_on_every_other_instruction_set(isa):
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(str(Path(__file__).with_name(f"test_{name}.py")) for name in _KERNELS),
        "--rootdir",
        str(Path(__file__).parents[2]),
    ]
    done = subprocess.run(
        run, env={**os.environ, "RML_ISA": isa}, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
