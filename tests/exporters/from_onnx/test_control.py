"""If, Loop and Scan from ONNX, against ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec import Executor
from rml_exec.errors import KernelError
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.text_models import assert_matches, node_count, onnx, parsed

pytestmark = pytest.mark.onnx

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5

IF = """g (bool cond, float[2,3] x, float[3] b) => (float[2,3] y) <float[3] w = {1, 2, 3}> {
    y = If (cond) <
        then_branch = then () => (float[2,3] t) { a = Mul(x, w) t = Add(a, b) },
        else_branch = other () => (float[2,3] e) { e = Neg(x) }>
}"""


@pytest.mark.parametrize("cond", [True, False])
def test_if_gets_what_its_branches_read_as_operands(cond: bool) -> None:
    inputs = {"cond": np.array(cond), "x": X, "b": np.ones(3, np.float32)}
    graph = assert_matches(parsed(IF), inputs)
    (node,) = graph.nodes
    assert node.op == "cond"
    assert node.inputs == ("cond", "x", "b")
    assert all(len(function.inputs) == 2 for function in graph.functions.values())
    got = Executor.create(graph, threads=1).run(inputs)["y"]
    np.testing.assert_allclose(got, run_reference(graph, inputs, precision="f32")["y"], rtol=1e-6)


@pytest.mark.parametrize("cond", [True, False])
def test_if_with_a_known_condition_is_the_branch(cond: bool) -> None:
    inputs = {"cond": np.array(cond), "x": X, "b": np.ones(3, np.float32)}
    graph = assert_matches(parsed(IF), inputs, known={"cond": np.array(cond)})
    assert [node.op for node in graph.nodes] == (["mul", "add"] if cond else ["neg"])
    assert not graph.functions


def test_branches_of_different_shapes_are_refused() -> None:
    model = parsed(
        """g (bool cond, float[2,3] x) => (y) {
            y = If (cond) <then_branch = a () => (t) { t = Transpose(x) }, else_branch = b () => (e) { e = Neg(x) }>
        }"""
    )
    with pytest.raises(UnsupportedOperatorsError, match=r"different types: f32\[3,2\] or f32\[2,3\]"):
        to_graph(model)


def test_a_branch_that_does_not_fit_the_sizes_fails_when_it_is_taken() -> None:
    model = parsed(
        """g (bool cond, float[2,3] x, float[5,3] w) => (float[2,3] y) <int64[2] shape = {5, 5}> {
            y = If (cond) <then_branch = a () => (float[2,3] t) { t = Neg(x) }, else_branch = b () => (e) { r = Reshape(x, shape) e = MatMul(r, w) }>
        }"""
    )
    graph = to_graph(model)
    executor, inputs = Executor.create(graph, threads=1), {"x": X, "w": np.ones((5, 3), np.float32)}
    np.testing.assert_array_equal(executor.run({"cond": np.array(True), **inputs})["y"], -X)
    with pytest.raises(KernelError, match=r"r does not fit the sizes of the inputs .*shape must hold the 6 elements"):
        executor.run({"cond": np.array(False), **inputs})


def test_what_is_refused_in_both_branches_is_listed() -> None:
    model = parsed(
        """g (bool cond, float[2] x) => (float[2] y) {
            y = If (cond) <then_branch = a () => (float[2] t) { t = RandomNormalLike(x) }, else_branch = b () => (float[2] e) { e = Multinomial(x) }>
        }"""
    )
    with pytest.raises(UnsupportedOperatorsError) as raised:
        to_graph(model)
    assert [operator.op for operator in raised.value.operators] == ["Multinomial", "RandomNormalLike"]


LOOP = """g (float[2,3] x, float[3] b) => (float[2,3] y, float[5,3] rows) <int64 count = {5}, bool go = {1}, int64[1] axis = {0}> {
    y, rows = Loop (count, go, x) <
        body = step (int64 i, bool again, float[2,3] state) => (bool again2, float[2,3] next, float[3] row) {
            again2 = Identity(again)
            f = Cast <to: int = 1> (i)
            shifted = Add(state, f)
            next = Mul(shifted, b)
            row = ReduceSum <keepdims: int = 0> (next, axis)
        }>
}"""


def test_a_counted_loop_is_a_scan() -> None:
    inputs = {"x": X, "b": np.array([0.5, 1, -1], np.float32)}
    graph = assert_matches(parsed(LOOP), inputs)
    assert node_count(graph, "scan") == 1
    assert node_count(graph, "while") == 0
    results = Executor.create(graph, threads=1).run(inputs)
    np.testing.assert_allclose(results["rows"], run_reference(graph, inputs, precision="f32")["rows"], rtol=1e-5)


@pytest.mark.parametrize(("count", "go"), [(0, 1), (5, 0)])
def test_a_loop_without_steps_gives_its_start(count: int, go: int) -> None:
    text = LOOP.replace("{5}", f"{{{count}}}").replace("go = {1}", f"go = {{{go}}}").replace("float[5,3]", "float[0,3]")
    results = run_reference(to_graph(parsed(text)), {"x": X, "b": np.ones(3, np.float32)}, precision="f32")
    np.testing.assert_array_equal(results["y"], X)
    assert results["rows"].shape == (0, 3)


WHILE = """g (float x, int64 count, bool go) => (float y) <float limit = {100}> {
    y = Loop (COUNT, go, x) <
        body = step (int64 i, bool again, float state) => (bool more, float next) { next = Add(state, state) more = Less(next, limit) }>
}"""


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("count", [0, 3, 50])
def test_a_loop_that_data_end_is_a_while(count: int, go: bool) -> None:
    inputs = {"x": np.array(1.5, np.float32), "count": np.array(count), "go": np.array(go)}
    graph = assert_matches(parsed(WHILE.replace("COUNT", "count")), inputs)
    assert [node.op for node in graph.nodes] == ["while"]
    got = Executor.create(graph, threads=1).run(inputs)["y"]
    assert got == run_reference(graph, inputs, precision="f32")["y"]


@pytest.mark.parametrize("count", ['""', "most"])
def test_a_loop_without_a_limit(count: str) -> None:
    text = (
        WHILE.replace("COUNT", count)
        .replace("<float limit", "<int64 most = {9223372036854775807}, float limit")
        .replace(", int64 count", "")
    )
    graph = to_graph(parsed(text))
    got = run_reference(graph, {"x": np.array(1.5, np.float32), "go": np.array(True)}, precision="f32")["y"]
    assert got == 192.0


def test_values_that_no_step_changes_are_not_carried() -> None:
    model = parsed(
        """g (float[2] x, float[2] k) => (float[2] y, float[2] same) <int64 count = {3}, bool go = {1}> {
            y, same = Loop (count, go, x, k) <
                body = step (int64 i, bool again, float[2] s, float[2] inner) => (bool again2, float[2] next, float[2] out) {
                    again2 = Identity(again) next = Add(s, inner) out = Identity(inner) }>
        }"""
    )
    graph = assert_matches(model, {"x": X[0, :2], "k": X[1, :2]})
    (scan,) = (node for node in graph.nodes if node.op == "scan")
    assert (scan.attrs["num_consts"], scan.attrs["num_carry"]) == (1, 1)


GROWING = """g (float[1] x) => (float[N] y, float[3,1] firsts) <int64 count = {3}, bool go = {1}, int64[1] zero = {0}, int64[1] one = {1}> {
    y, firsts = Loop (count, go, x) <
        body = step (int64 i, bool again, float[K] s) => (bool again2, float[L] next, float[1] first) {
            again2 = Identity(again) next = Concat <axis: int = 0> (s, x) first = Slice(next, zero, one) }>
}"""


def test_steps_of_changing_shapes_are_written_out() -> None:
    graph = assert_matches(parsed(GROWING), {"x": np.array([2], np.float32)})
    assert node_count(graph, "scan") == 0
    assert node_count(graph, "concat") == 4
    assert not graph.functions


def test_a_loop_whose_condition_is_known_step_by_step_is_written_out() -> None:
    model = parsed(
        """g (float[2] x) => (float[2] y, float[3,2] all) <int64 start = {0}, int64 one = {1}, int64 end = {3}, bool go = {1}> {
            n, y, all = Loop ("", go, start, x) <
                body = step (int64 i, bool again, int64 n0, float[2] s) => (bool more, int64 n1, float[2] next, float[2] row) {
                    n1 = Add(n0, one) more = Less(n1, end) f = Cast <to: int = 1> (n1) next = Mul(s, f) row = Neg(next) }>
        }"""
    )
    results = run_reference(to_graph(model), {"x": np.array([1, 2], np.float32)}, precision="f32")
    assert results["y"].tolist() == [6, 12]
    assert results["all"].tolist() == [[-1, -2], [-2, -4], [-6, -12]]


def test_results_of_a_length_that_depends_on_data_are_refused() -> None:
    text = (
        LOOP.replace("<int64 count = {5}, bool go", "<bool go")
        .replace("float[3] b)", "float[3] b, int64 count)")
        .replace("float[5,3]", "float[K,3]")
    )
    with pytest.raises(UnsupportedOperatorsError, match="how many steps it takes"):
        to_graph(parsed(text))


def test_a_loop_that_cannot_be_written_out_reports_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.from_onnx.control.MOST_STEPS", 2)
    with pytest.raises(UnsupportedOperatorsError, match=r"how many steps it takes|change from step to step"):
        to_graph(parsed(GROWING))


SCAN = """g (float[2] start, float[4,2] xs, float[2,4] zs) => (float[2] last, float[4,2] sums, float[2,4] turned) {
    last, sums, turned = Scan <num_scan_inputs: int = 2, scan_input_axes: ints = [0, 1], scan_input_directions: ints = [0, 1],
        scan_output_axes: ints = [0, 1], scan_output_directions: ints = [1, 0],
        body = step (float[2] s, float[2] a, float[2] b) => (float[2] s2, float[2] out, float[2] out2) {
            t = Add(s, a) s2 = Sub(t, b) out = Identity(s2) out2 = Mul(s2, start) }> (start, xs, zs)
}"""


def test_scan_with_axes_directions_and_captures() -> None:
    generator = np.random.default_rng(3)
    inputs = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in (("start", 2), ("xs", (4, 2)), ("zs", (2, 4)))}
    graph = to_graph(parsed(SCAN))
    results = run_reference(graph, inputs, precision="f32")
    state, sums = inputs["start"], []
    for step in range(4):
        state = state + inputs["xs"][step] - inputs["zs"][:, 3 - step]
        sums.append(state)
    np.testing.assert_allclose(results["last"], state, rtol=1e-6)
    np.testing.assert_allclose(results["sums"], sums[::-1], rtol=1e-6)
    np.testing.assert_allclose(results["turned"], np.stack(sums, axis=1) * inputs["start"][:, None], rtol=1e-6)


def test_scan_of_operator_set_8_takes_a_batch_and_lengths() -> None:
    model = parsed(
        """g (float[2,1] start, float[2,3,1] xs) => (float[2,1] last, float[2,3,1] sums) <int64[2] lengths = {3, 2}> {
            last, sums = Scan <num_scan_inputs: int = 1, directions: ints = [0],
                body = step (float[1] s, float[1] x) => (float[1] s2, float[1] out) { s2 = Add(s, x) out = Identity(s2) }> (lengths, start, xs)
        }""",
        opset=8,
        ir_version=3,
    )
    xs = np.array([[[1], [2], [3]], [[10], [20], [30]]], np.float32)
    results = run_reference(to_graph(model), {"start": np.ones((2, 1), np.float32), "xs": xs}, precision="f32")
    assert results["last"].tolist() == [[7], [31]]
    assert results["sums"].tolist() == [[[2], [4], [7]], [[11], [31], [0]]]


def test_control_flow_inside_control_flow() -> None:
    model = parsed(
        """g (float[2] x, bool flag) => (float[2] y) <int64 count = {4}, bool go = {1}, float half = {0.5}> {
            y = Loop (count, go, x) <
                body = step (int64 i, bool again, float[2] s) => (bool again2, float[2] next) {
                    again2 = Identity(again)
                    next = If (flag) <
                        then_branch = t () => (float[2] a) { a = Mul(s, half) },
                        else_branch = e () => (float[2] b) { b = Add(s, x) }>
                }>
        }"""
    )
    for flag in (True, False):
        graph = assert_matches(model, {"x": np.array([1, 2], np.float32), "flag": np.array(flag)})
    assert {function.nodes[0].op for function in graph.functions.values() if len(function.nodes) == 1} >= {"mul", "add"}


def test_functions_of_attempts_do_not_stay() -> None:
    text = GROWING.replace(
        "first = Slice(next, zero, one)",
        "first = If (go2) <then_branch = t () => (float[1] p) { p = Neg(x) }, else_branch = e () => (float[1] q) { q = Abs(x) }>",
    )
    graph = to_graph(parsed(text.replace("(float[1] x)", "(float[1] x, bool go2)")))
    called = {name for node in graph.nodes for name in node.attrs.get("branches", ())}
    assert set(graph.functions) == called


def test_names_of_initializers_within_a_branch_hide_those_outside() -> None:
    model = parsed(IF)
    branch = next(attribute.g for attribute in model.graph.node[0].attribute if attribute.name == "then_branch")
    branch.initializer.append(onnx.numpy_helper.from_array(np.array([7, 7, 7], np.float32), "w"))
    inputs = {"cond": np.array(True), "x": X, "b": np.zeros(3, np.float32)}
    np.testing.assert_allclose(run_reference(to_graph(model), inputs, precision="f32")["y"], X * 7, rtol=1e-6)
