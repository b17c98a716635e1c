from dataclasses import replace

import numpy as np
import pytest

from rml_exec.errors import VerifyError
from rml_exec.ir.graph import Constant, Function, Graph, Node, Output, Value
from rml_exec.ir.verify import verify_graph
from rml_exec.types import DType, TensorType

F32 = TensorType(DType.F32, (2,))


def node(name: str, *inputs: str | None, op: str = "add", out: str | None = None) -> Node:
    return Node(op, name, inputs, (Value(name if out is None else out, F32),))


def graph(*nodes: Node, inputs=("x",), outputs=(("y", "x"),), constants=(), functions=None) -> Graph:
    values = tuple(Value(name, F32) for name in inputs)
    return Graph("g", values, tuple(Output(*output) for output in outputs), tuple(constants), nodes, functions=functions or {})


def problem(bad: Graph, **options) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_graph(bad, **options)
    return str(caught.value)


def test_a_good_graph_passes():
    verify_graph(graph(node("a", "x", None), node("b", "a", "a"), outputs=(("y", "b"), ("z", "b"), ("x", "x"))))


def test_undefined_disordered_and_cyclic_are_told_apart():
    assert "add 'a': reads value 'ghost', which nothing defines" in problem(graph(node("a", "ghost")))
    assert "add 'a': reads value 'b' before node 'b' defines it" in problem(graph(node("a", "b"), node("b", "x")))
    assert "add 'a': reads its own result: a cycle through a -> c -> b -> a" in problem(
        graph(node("a", "b"), node("b", "c"), node("c", "a"))
    )
    assert "add 'a': reads its own result: a cycle through a -> a" in problem(graph(node("a", "a")))


def test_the_culprit_is_shown_among_its_neighbours():
    nodes = [node(f"n{index}", f"n{index - 1}" if index else "x") for index in range(20)]
    nodes[10] = node("n10", "ghost")
    text = problem(graph(*nodes))
    lines = text.splitlines()[1:]
    assert len(lines) == 11
    assert lines[0] == "      5 %n5: f32[2] = add(%n4)"
    assert lines[5] == ">    10 %n10: f32[2] = add(%ghost)"


def test_all_problems_are_listed():
    text = problem(graph(node("a", "ghost"), node("a", "phantom", out="x"), outputs=(("y", "spirit"),)))
    for part in ("5 problems", "'ghost'", "'phantom'", "another node has the same name", "value 'x' is defined twice", "'spirit'"):
        assert part in text
    many = problem(graph(*(node(f"n{index}", "ghost") for index in range(500))))
    assert "500 problems" in many
    assert "... and 480 more" in many


@pytest.mark.parametrize("name", ["", "a:b", "a;b", "a\n", "a\x7f", "\ud800"])
def test_illegal_names(name):
    assert "must not be empty or hold" in problem(graph(node("a", "x", out=name)))
    assert "must not be empty or hold" in problem(graph(node(name, "x", out="a")))
    assert "must not be empty or hold" in problem(graph(inputs=("x", name)))
    assert "must not be empty or hold" in problem(graph(outputs=((name, "x"),)))


def test_names_are_unique():
    assert "input 'x': value 'x' is defined twice" in problem(graph(inputs=("x", "x")))
    assert "value 'a' is defined twice" in problem(graph(node("a", "x"), node("b", "x", out="a")))
    assert "two outputs are called 'y'" in problem(graph(outputs=(("y", "x"), ("y", "x"))))
    verify_graph(graph(node("x", "x", out="a")))  # values and nodes are named apart


def test_limits():
    for shape, rule in (((1,) * 9, "at most 8 axes"), ((-1,), "no negative dim"), ((2**40, 2**40), "larger than any memory")):
        assert rule in problem(replace(graph(), inputs=(Value("x", TensorType(DType.F32, shape)),)))
    verify_graph(replace(graph(), inputs=(Value("x", TensorType(DType.F32, (1,) * 8)),)))


def test_constants_have_the_size_of_their_type():
    def constant(data):
        return graph(constants=[Constant("c", F32, data)])

    verify_graph(constant(np.zeros(2, np.float32)))
    assert "constant 'c': is f32[2] but its data is float32[3]" in problem(constant(np.zeros(3, np.float32)))
    assert "constant 'c': is f32[2] but its data is float64[2]" in problem(constant(np.zeros(2)))


def test_a_node_has_outputs():
    assert "must have an output" in problem(graph(Node("add", "a", ("x",), ())))


def function(name: str, *nodes: Node) -> Function:
    return Function(name, (Value("x", F32),), (Output("y", "x"),), (), nodes)


def test_functions_capture_nothing():
    inner = function("f", node("b", "outer"))
    text = problem(graph(node("outer", "x"), functions={"f": inner}))
    assert "add 'b': reads value 'outer', which is the graph's: functions capture nothing" in text
    assert "must be listed under its own name; got f" in problem(graph(functions={"h": function("f")}))


def calls(caller: Node) -> list[str]:
    return [caller.op.removeprefix("call ")] if caller.op.startswith("call ") else []


def test_functions_exist_and_do_not_recurse():
    assert "calls function 'f', which does not exist" in problem(graph(node("a", "x", op="call f")), calls=calls)
    itself = {"f": function("f", node("a", "x", op="call f"))}
    assert "function 'f': calls itself" in problem(graph(functions=itself), calls=calls)
    mutual = {name: function(name, node("a", "x", op=f"call {other}")) for name, other in (("f", "g"), ("g", "f"))}
    assert "2 problems" in problem(graph(functions=mutual), calls=calls)
    twice = {"f": function("f", node("a", "x", op="call g"), node("b", "x", op="call g")), "g": function("g")}
    verify_graph(graph(node("a", "x", op="call f"), functions=twice), calls=calls)


def test_a_long_disordered_graph_is_refused_quickly():
    nodes = [node(f"n{index}", f"n{index + 1}") for index in range(20_000)]
    assert "20000 problems" in problem(graph(*nodes))  # quadratic work would take minutes
