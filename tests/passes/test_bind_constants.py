import numpy as np
import pytest
from hypothesis import given, settings

from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes import lower_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.bind_constants import BIND_CONSTANTS
from rml_exec.runtime.reference import run_reference
from tests.helpers.control_graphs import control_graphs, loop_graph, rnn_graph
from tests.helpers.graphs import elementwise_graph, pattern, random_inputs


def bound(graph):
    return run_passes(graph, [BIND_CONSTANTS], check_graph)


def assert_same_results(before, after):
    inputs = random_inputs(before)
    want, got = run_reference(before, inputs, precision="f64"), run_reference(after, inputs, precision="f64")
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_scan_consts_become_constants_of_the_body():
    graph = rnn_graph()
    result = bound(graph)
    (node,) = result.nodes
    assert node.inputs == ("h", "x")
    assert (node.attrs["num_consts"], node.attrs["num_carry"]) == (0, 1)
    assert result.constants == ()
    cell = result.functions["cell"]
    assert [constant.name for constant in cell.constants] == ["w", "bias"]
    assert cell.constants[0].data is graph.constants[0].data
    assert [value.name for value in cell.inputs] == ["h", "x"]
    assert_same_results(graph, result)


def scaled_loop(*, only_constants=False):
    """A loop that carries a counter, or only constants: ``scale`` goes through unchanged and is read behind the loop."""
    b = GraphBuilder("scaled")
    n = b.constant(np.int32(5), name="five") if only_constants else b.input("n", "i32", ())
    scale = b.constant(pattern(20), name="scale")
    cond, body = b.function("cond"), b.function("body")
    cn, _ = cond.input("n", "i32", ()), cond.input("scale", "f32", (20,))
    cond.output("go", cond.add("compare", [cn, cond.constant(np.int32(3), name="three")], dir="lt"))
    bn, bs = body.input("n", "i32", ()), body.input("scale", "f32", (20,))
    body.output("n", bn if only_constants else body.add("add", [bn, body.constant(np.int32(1), name="one")]))
    body.output("scale", bs)
    last, same = b.add("while", [n, scale], cond=cond.build(), body=body.build())
    b.output("n", last)
    b.output("scale", same)
    b.output("twice", b.add("add", [same, same]))
    return b.build()


def test_a_loop_does_not_carry_constants():
    graph = scaled_loop()
    result = bound(graph)
    loop, add = result.nodes
    assert loop.inputs == ("n",)
    assert [value.name for value in loop.outputs] == ["while.0"]
    assert add.inputs == ("scale", "scale")
    assert [output.value for output in result.outputs] == ["while.0", "scale", add.outputs[0].name]
    assert_same_results(graph, result)


def test_a_loop_keeps_its_results_if_all_are_constants():
    graph = scaled_loop(only_constants=True)
    result = bound(graph)
    assert result.nodes[0].inputs == ("five", "scale")
    assert_same_results(graph, result)


def test_a_carried_value_that_changes_stays_an_operand():
    graph = loop_graph()
    assert bound(graph).nodes == graph.nodes
    b = GraphBuilder("changes")
    f = b.function("f")
    f.output("y", f.add("neg", [f.input("x", "f32", (3,))]))
    start = b.constant(pattern(3), name="start")
    b.output("y", b.add("scan", [start], body=f.build(), length=3, reverse=False, num_consts=0, num_carry=1))
    graph = b.build()
    assert bound(graph).nodes[0].inputs == ("start",)
    assert_same_results(graph, bound(graph))


@pytest.mark.parametrize("same", [True, False])
def test_a_function_becomes_one_per_set_of_constants(same):
    b = GraphBuilder("calls")
    x = b.input("x", "f32", (3,))
    f = b.function("shift")
    f.output("y", f.add("add", [f.input("x", "f32", (3,)), f.input("c", "f32", (3,))]))
    shift = f.build()
    c, d = b.constant(pattern(3), name="c"), b.constant(pattern(3, step=5), name="d")
    y = b.add("call", [b.add("call", [x, c], function=shift), c if same else d], function=shift)
    b.output("y", b.add("call", [y, x], function=shift))  # and one without
    graph = b.build()
    result = bound(graph)
    assert [node.attrs["function"] for node in result.nodes] == (["shift", "shift", "shift_1"] if same else ["shift", "shift_1", "shift_2"])
    assert set(result.functions) == {node.attrs["function"] for node in result.nodes}
    assert_same_results(graph, result)


def test_constants_go_down_through_all_functions():
    b = GraphBuilder("deep")
    inner = b.function("inner")
    inner.output("y", inner.add("add", [inner.input("x", "f32", (3,)), inner.input("c", "f32", (3,))]))
    outer = b.function("outer")
    ox, oc = outer.input("x", "f32", (3,)), outer.input("c", "f32", (3,))
    true = outer.constant(np.array(True), name="true")
    inner_function = inner.build()
    outer.output("y", outer.add("cond", [true, ox, oc], branches=[inner_function, inner_function]))
    b.output("y", b.add("call", [b.input("x", "f32", (3,)), b.constant(pattern(3), name="c")], function=outer.build()))
    graph = b.build()
    result = bound(graph)
    assert [constant.name for constant in result.functions["inner"].constants] == ["c"]
    assert [constant.name for constant in result.functions["outer"].constants] == ["true"]
    assert_same_results(graph, result)


def test_a_graph_without_functions_is_left_alone():
    graph = elementwise_graph()
    assert bound(graph) is graph


@settings(max_examples=60, deadline=None)
@given(control_graphs())
def test_the_pipeline_changes_no_result(graph):
    assert_same_results(graph, lower_graph(graph, verify=check_graph))
