"""Control flow in the executor: against plain Python loops and, for random nests, bit for bit against the reference interpreter."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings

from rml_exec import Executor, GraphBuilder, KernelError, load_graph, save_graph
from rml_exec.ir.golden import graph_hashes
from rml_exec.ir.graph import Graph, Node, Output, Value
from rml_exec.ops import all_ops
from rml_exec.plan import ActionKind
from rml_exec.runtime.control import ControlStep
from rml_exec.runtime.reference import run_reference
from tests.helpers.control_graphs import control_graphs, loop_graph, rnn_graph
from tests.helpers.graphs import random_inputs
from tests.ops.operands import infer_case, operands_of, run_case, types_of


def run_rnn(graph, x, h, reverse=False):
    w, bias = (constant.data.astype(np.float64) for constant in graph.constants)
    states = np.zeros((len(x), *h.shape))
    for step in reversed(range(len(x))) if reverse else range(len(x)):
        h = np.tanh(np.concatenate([h, x[step]], 1) @ w.T + bias)
        states[step] = h
    return {"last": h, "states": states}


def steps_of(executor):
    return [(step.label, step.kernel, step.native) for step in executor.steps]


@settings(max_examples=120, deadline=None)
@given(control_graphs())
def test_random_control_flow_equals_the_reference_bit_for_bit(graph):
    inputs = random_inputs(graph)
    want = run_reference(graph, inputs, precision="f32")
    for options in ({"threads": 1}, {"threads": 2}, {"threads": 1, "fuse": False}):
        executor = Executor.create(graph, **options)
        arena = np.full(executor.memory.arena_bytes + 8, 0xFF, np.uint8)  # floats there are NaN
        got = [np.full(type_.shape, np.nan, np.float32) for type_ in executor.output_types.values()]
        executor.program.run(arena, list(inputs.values()), got, executor.threads)
        for name, array in zip(want, got, strict=True):
            np.testing.assert_array_equal(array.view(np.uint32), want[name].view(np.uint32))


@pytest.mark.parametrize("length", [0, 1, 2, 5])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_rnn_is_a_scan(length, reverse, threads):
    graph = rnn_graph(length, reverse=reverse)
    inputs = random_inputs(graph)
    executor = Executor.create(graph, threads=threads)
    assert steps_of(executor) == [("scan", "control", True)]
    want = run_rnn(graph, **inputs, reverse=reverse)
    for got in (executor.run(inputs), run_reference(graph, inputs, precision="f64")):
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "limit", "x", "factor"), [(0, 5, 1.5, 2.0), (0, 50, 1.5, 2.0), (7, 7, 3.0, 2.0), (0, 4, 200.0, 2.0), (-3, 0, 1.0, 0.5)]
)
def test_a_loop_ends_at_its_limit_or_early(n, limit, x, factor):
    graph = loop_graph()
    inputs = {"n": np.int32(n), "limit": np.int32(limit), "x": np.full(3, x, np.float32), "factor": np.float32(factor)}
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    while n < limit and x < 100:
        n, x = n + 1, x * factor
    for got in (Executor.create(graph).run(inputs), run_reference(graph, inputs, precision="f32")):
        assert got["n"] == n
        assert got["limit"] == limit
        assert got["factor"] == factor
        np.testing.assert_array_equal(got["x"], np.full(3, x, np.float32))


def test_a_value_that_a_loop_carries_unchanged_is_not_copied_by_its_steps():
    executor = Executor.create(loop_graph())
    (body,) = (compiled for name, compiled in executor._compiled.functions.items() if name.startswith("body"))
    assert [output.name for output in body.plan._body.outputs] == ["n", "x"]
    assert [step.label for step in body.steps] == ["add", "mul"]


def test_weights_that_a_scan_hands_over_are_packed_once():
    executor = Executor.create(rnn_graph())
    (cell,) = executor._compiled.functions.values()
    linear = next(step for step in cell.steps if "linear" in step.label)
    assert "pack_b" not in linear.kernel


def test_a_scan_writes_into_the_stacked_result_and_reads_where_the_elements_lie():
    b = GraphBuilder("places")
    x = b.input("x", "f32", (4, 3, 2))
    step = b.function("step")
    step.output("y", step.add("neg", [step.input("x", "f32", (3, 2))]))
    backwards = b.add("reverse", [x], axes=(0,))  # a view whose elements are whole
    b.output("y", b.add("scan", [backwards], body=step.build(), length=4, reverse=False, num_consts=0, num_carry=0))
    executor = Executor.create(b.build())
    assert executor.memory.arena_bytes == 0
    assert isinstance(executor.program, ControlStep)
    x = np.random.default_rng(0).standard_normal((4, 3, 2), np.float32)
    np.testing.assert_array_equal(executor.run([x])["y"], -x[::-1])


CONTROL_CASES = [(op, case) for op in all_ops() for case in op.cases if case.functions]


@pytest.mark.parametrize(("op", "case"), CONTROL_CASES, ids=[f"{op.name}-{case.id}" for op, case in CONTROL_CASES])
def test_the_executor_gives_what_the_records_mean(op, case):
    operands = operands_of(op, case)
    inputs = tuple(Value(f"x{index}", type_) for index, type_ in enumerate(types_of(case, operands)))
    values = tuple(Value(f"y{index}", type_) for index, type_ in enumerate(infer_case(op, case, operands)))
    node = Node(op.name, "node", tuple(value.name for value in inputs), values, case.attrs)
    outputs = tuple(Output(value.name, value.name) for value in values)
    graph = Graph("case", inputs, outputs, (), (node,), functions=case.functions)
    for got, want in zip(Executor.create(graph).run(operands).values(), run_case(op, case, operands), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_length_of_a_scan_may_be_symbolic(tmp_path):
    save_graph(rnn_graph(length=5), tmp_path / "rnn")
    path = tmp_path / "rnn.json"
    document = json.loads(path.read_text())
    document["dims"] = {"t": {"min": 0, "max": None, "hint": 5}}
    document["nodes"][0]["attrs"]["length"] = "t"
    for value in (document["inputs"][0], document["nodes"][0]["outputs"][1]):
        value["shape"][0] = "t"
    path.write_text(json.dumps(document))
    executor = Executor.create(load_graph(path))
    for length in (5, 8, 0, 5):
        inputs = random_inputs(rnn_graph(length), seed=length)
        want = run_rnn(rnn_graph(length), **inputs)
        for name, array in executor.run(inputs).items():
            np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-6)


def branch_graph(index_dtype="bool", branches=2):
    b = GraphBuilder("branches")
    index, x = b.input("index", index_dtype, ()), b.input("x", "f32", (4, 4))
    names = []
    for number in range(branches):
        f = b.function("branch")
        y = fx = f.input("x", "f32", (4, 4))
        for _ in range(3 * number):  # the later, the dearer
            y = f.add("matmul", [y, fx], transpose_a=False, transpose_b=False)
        f.output("y", y)
        names.append(f.build())
    b.output("y", b.add("cond", [index, x], branches=names))
    return b.build()


def test_a_bool_chooses_false_then_true():
    executor = Executor.create(branch_graph())
    x = np.eye(4, dtype=np.float32) * 2
    np.testing.assert_array_equal(executor.run([np.array(False), x])["y"], x)
    np.testing.assert_array_equal(executor.run([np.array(True), x])["y"], np.eye(4) * 16)


@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize(("index", "power"), [(-5, 0), (0, 0), (1, 3), (2, 6), (99, 6)])
def test_an_index_is_clamped(dtype, index, power):
    executor = Executor.create(branch_graph(dtype, 3))
    x = np.eye(4, dtype=np.float32) * 2
    got = executor.run([np.array(index, {"i32": np.int32, "i64": np.int64}[dtype]), x])["y"]
    np.testing.assert_array_equal(got, np.eye(4) * 2 ** (power + 1))


def test_one_function_called_thrice_is_compiled_once_and_fused_inside():
    b = GraphBuilder("calls")
    x = b.input("x", "f32", (5,))
    f = b.function("shift")
    f.output("y", f.add("relu", [f.add("add", [f.input("x", "f32", (5,)), f.constant(np.float32(-1))])]))
    shift = f.build()
    y = b.add("call", [b.add("call", [x], function=shift)], function=shift)
    b.output("y", y)
    b.output("z", b.add("call", [b.add("neg", [x])], function=shift))
    executor = Executor.create(b.build())
    (compiled,) = executor._compiled.functions.values()
    assert [step.label for step in compiled.steps] == ["fused(add,relu)"]
    x = np.array([-2, 0, 1, 2, 5], np.float32)
    got = executor.run([x])
    np.testing.assert_array_equal(got["y"], [0, 0, 0, 0, 3])
    np.testing.assert_array_equal(got["z"], [1, 0, 0, 0, 0])
    unfused = Executor.create(b.build(), fuse=False)
    assert [[step.label for step in compiled.steps] for compiled in unfused._compiled.functions.values()] == [["add", "relu"]]


def test_a_function_may_give_its_input_a_constant_or_one_value_twice():
    b = GraphBuilder("echo")
    x = b.input("x", "f32", (2, 3))
    f = b.function("echo")
    fx = f.input("x", "f32", (2, 3))
    c = f.constant(np.arange(20, dtype=np.float32), name="c")
    y = f.add("abs", [fx])
    for name, value in (("x", fx), ("c", c), ("y", y), ("again", y), ("turned", f.add("transpose", [fx], perm=(1, 0)))):
        f.output(name, value)
    for name, value in zip(("x", "c", "y", "again", "turned"), b.add("call", [x], function=f.build()), strict=True):
        b.output(name, value)
    executor = Executor.create(b.build())
    array = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    got = executor.run([array])
    want = {"x": array, "c": np.arange(20), "y": abs(array), "again": abs(array), "turned": array.T}
    for name, result in want.items():
        np.testing.assert_array_equal(got[name], result)
        assert not np.shares_memory(got[name], array)
    got["c"][:] = 0
    np.testing.assert_array_equal(executor.run([array])["c"], np.arange(20))


def failing_graph():
    """outer(index) runs a loop whose body takes row ``index`` of a table, in a branch of a cond."""
    b = GraphBuilder("failing")
    i = b.input("i", "i64", ())
    row = b.function("row")
    table = row.constant(np.arange(6, dtype=np.float32), name="table")
    look = {"axis": 0, "oob": "error", "wrap_negative": False, "fill_value": None}
    row.output("y", row.add("take", [table, row.input("i", "i64", ())], **look, name="look"))
    zero = b.function("zero")
    zero.input("i", "i64", ())
    zero.output("y", zero.constant(np.float32(0)))
    step = b.function("step")
    si = step.input("i", "i64", ())
    positive = step.add("compare", [si, step.constant(np.int64(0))], dir="gt")
    step.output("i", step.add("add", [si, step.constant(np.int64(1))]))
    step.output("y", step.add("cond", [positive, si], branches=[zero.build(), row.build()], name="choose"))
    last, ys = b.add("scan", [i], body=step.build(), length=4, reverse=False, num_consts=0, num_carry=1, name="loop")
    b.output("last", last)
    b.output("ys", ys)
    return b.build()


def test_an_error_names_the_way_to_the_node_and_leaves_the_executor_usable():
    graph = failing_graph()
    executor = Executor.create(graph)
    way = r"^scan 'loop', in function 'step': cond 'choose', in function 'row': take 'look': .*6"
    for _ in range(2):
        got = executor.run([np.array(-1, np.int64)])
        assert got["last"] == 3
        np.testing.assert_array_equal(got["ys"], [0, 0, 1, 2])
        with pytest.raises(KernelError, match=way):
            executor.run([np.array(3, np.int64)])
        with pytest.raises(KernelError, match=way):
            run_reference(graph, {"i": np.array(3, np.int64)}, precision="f64")
    assert executor.pool.bytes_in_use == 0


def test_a_step_that_numpy_runs_inside_a_function_marks_the_node():
    assert [step.native for step in Executor.create(failing_graph()).steps] == [False]


def test_callers_at_once_get_what_one_gets():
    graph, runs = rnn_graph(length=20), 25
    executor = Executor.create(graph)
    inputs = [random_inputs(graph, seed) for seed in range(8)]
    want = [executor.run(given) for given in inputs]
    failures = []

    def call(index):
        for _ in range(runs):
            got = executor.run(inputs[index])
            if any((got[name] != array).any() for name, array in want[index].items()):
                failures.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_a_steady_loop_takes_one_arena_from_the_pool():
    graph = rnn_graph(length=50)
    executor, inputs = Executor.create(graph), random_inputs(graph)
    out = executor.run(inputs)
    hits, misses = executor.pool.hits, executor.pool.misses
    executor.run(inputs, out=out)
    assert (executor.pool.hits, executor.pool.misses) == (hits + 1, misses)


def test_a_profiled_run_counts_a_loop_as_one_step():
    b = GraphBuilder("profile")
    x = b.input("x", "f32", (6, 3, 5))
    f = b.function("step")
    f.output("y", f.add("exp", [f.add("neg", [f.input("x", "f32", (3, 5))])]))
    y = b.add("scan", [b.add("relu", [x])], body=f.build(), length=6, reverse=False, num_consts=0, num_carry=0)
    b.output("y", b.add("softmax", [y], axis=2, fully_masked="nan"))
    executor = Executor.create(b.build())
    inputs = random_inputs(executor.graph)
    got, profile = executor.run_profiled(inputs)
    np.testing.assert_array_equal(got["y"], executor.run(inputs)["y"])
    assert [step.label for step in profile.steps] == ["relu", "scan", "softmax"]
    assert all(step.wall_ns > 0 for step in profile.steps)
    assert profile.gap_ns >= 0


def test_the_plan_treats_operands_of_control_flow_as_uses_and_functions_have_their_own():
    b = GraphBuilder("plan")
    x = b.input("x", "f32", (4, 4))
    f = b.function("f")
    fx = f.input("x", "f32", (4, 4))
    f.output("y", f.add("matmul", [f.add("exp", [fx]), fx], transpose_a=False, transpose_b=False))
    y = b.add("neg", [x], name="y")
    b.output("z", b.add("call", [y], function=f.build(), name="z"))
    executor = Executor.create(b.build())
    kinds = [(action.kind, action.name) for action in executor.plan.actions]
    run = kinds.index((ActionKind.EXECUTE_NODE, "z"))
    assert kinds.index((ActionKind.DELETE_BUFFER, "y")) > run
    assert kinds.index((ActionKind.ALLOCATE_TEMPORARY, "z")) < run  # the arena of the function
    (function,) = executor._compiled.functions.values()
    assert [node.op for node in function.plan.nodes] == ["exp", "matmul"]
    assert function.memory.arena_bytes > 0


@pytest.mark.parametrize("graph", [rnn_graph(), loop_graph(), branch_graph()], ids=lambda graph: graph.name)
def test_a_saved_graph_runs_as_before(graph, tmp_path):
    save_graph(graph, tmp_path / "m")
    loaded = load_graph(tmp_path / "m")
    inputs = random_inputs(graph)
    want, got = Executor.create(graph).run(inputs), Executor.create(loaded).run(inputs)
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    save_graph(loaded, tmp_path / "again")
    assert graph_hashes(tmp_path / "m.json")["weights_sha256"] == graph_hashes(tmp_path / "again.json")["weights_sha256"]
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "again.json").read_bytes()
