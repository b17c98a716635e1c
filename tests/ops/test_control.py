"""Control flow as ops: what the references compute, what inference refuses, and how graphs with functions are built, shown and checked."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from rml_exec.errors import KernelError, TypeInferenceError, VerifyError
from rml_exec.ir.text import graph_text
from rml_exec.loading import GraphBuilder, check_graph, load_graph, save_graph
from rml_exec.runtime.reference import run_reference
from rml_exec.types import DType, TensorType


def add_function(b, name, takes, gives, *ops):
    """Adds a function that applies unary ops to its first input and gives that, then its other inputs, ``gives`` values in all."""
    f = b.function(name)
    inputs = [f.input(f"x{index}", *type_) for index, type_ in enumerate(takes)]
    y = inputs[0] if inputs else f.constant(np.float32(0))
    for op in ops:
        y = f.add(op, [y])
    for index, value in enumerate([y, *inputs[1:]][:gives]):
        f.output(f"y{index}", value)
    return f.build()


def add_truth(b, takes):
    f = b.function("truth")
    for index, type_ in enumerate(takes):
        f.input(f"x{index}", *type_)
    f.output("go", f.constant(np.array(False)))
    return f.build()


F3, F4, INT = ("f32", (3,)), ("f32", (4,)), ("i32", ())


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda b, x, n: b.add("call", [x], function="nowhere"), "calls function 'nowhere', which does not exist"),
        (
            lambda b, x, n: b.add("call", [x, n], function=add_function(b, "f", [F3], 1)),
            "function must take the operands' types (f32[3], i32[])",
        ),
        (
            lambda b, x, n: b.add("call", [x], function=add_function(b, "f", [F4], 1)),
            "function must take the operands' types (f32[3]); got (f32[4]) ->",
        ),
        (
            lambda b, x, n: b.add("cond", [x, x], branches=[add_function(b, "f", [F3], 1)]),
            "index must be bool[], i32[] or i64[]; got f32[3]",
        ),
        (lambda b, x, n: b.add("cond", [n, x], branches=[]), "branches must name one function at least"),
        (
            lambda b, x, n: b.add("cond", [n, x], branches=[add_function(b, "f", [F4], 1)]),
            "branches[0] must take the operands' types (f32[3])",
        ),
        (
            lambda b, x, n: b.add("cond", [n, x, n], branches=[add_function(b, "f", [F3, INT], gives) for gives in (2, 1)]),
            "branches[0] gives; got (f32[3], i32[]) -> (f32[3]) and (f32[3], i32[]) -> (f32[3], i32[])",
        ),
        (
            lambda b, x, n: b.add("cond", [b.add("compare", [n, n], dir="eq"), x], branches=[add_function(b, "f", [F3], 1)]),
            "a bool index chooses among two branches, the one for false and the one for true; got 1 branches",
        ),
        (lambda b, x, n: b.add("while", [], cond=add_truth(b, []), body=add_truth(b, [])), "a loop must carry one value at least"),
        (
            lambda b, x, n: b.add("while", [x], cond=add_truth(b, [INT]), body=add_function(b, "f", [F3], 1)),
            "cond must take the operands' types (f32[3])",
        ),
        (
            lambda b, x, n: b.add("while", [x], cond=add_function(b, "c", [F3], 1), body=add_function(b, "f", [F3], 1)),
            "cond must give one bool[]; got (f32[3]) -> (f32[3])",
        ),
        (
            lambda b, x, n: b.add("while", [x, n], cond=add_truth(b, [F3, INT]), body=add_function(b, "f", [F3, INT], 1)),
            "body must give the types that it takes; got (f32[3], i32[]) -> (f32[3])",
        ),
        (
            lambda b, x, n: scan(b, [x], add_function(b, "f", [F3], 1), -1, 0, 1),
            "length, num_consts and num_carry must be at least 0; got -1, 0, 1",
        ),
        (
            lambda b, x, n: scan(b, [x], add_function(b, "f", [F3], 1), 3, 1, 1),
            "num_consts + num_carry operands at least; got 1 + 1 for 1 operands",
        ),
        (
            lambda b, x, n: scan(b, [n, x], add_function(b, "f", [INT, F3], 1), 4, 1, 0),
            "the leading axis of a scanned operand must be the length 4; got f32[3] as scanned operand 0",
        ),
        (
            lambda b, x, n: scan(b, [x, n], add_function(b, "f", [F3, INT], 2), 3, 1, 0),
            "the leading axis of a scanned operand must be the length 3; got i32[]",
        ),
        (lambda b, x, n: scan(b, [n, x], add_function(b, "f", [INT, F3], 2), 3, 1, 0), "body must take the operands' types (i32[], f32[])"),
        (lambda b, x, n: scan(b, [x, n], add_function(b, "f", [F3, INT], 1), 3, 0, 2), "body must give first the types of the carry"),
    ],
)
def test_inference_refuses(build, text):
    b = GraphBuilder("g")
    x, n = b.input("x", *F3), b.input("n", *INT)
    with pytest.raises(TypeInferenceError, match=re.escape(text)):
        build(b, x, n)


def scan(b, operands, body, length, num_consts, num_carry, reverse=False):
    return b.add("scan", operands, body=body, length=length, reverse=reverse, num_consts=num_consts, num_carry=num_carry)


def test_scan_gives_carry_then_stacked_values():
    b = GraphBuilder("g")
    c, n, x = b.input("c", *F4), b.input("n", "i64", ()), b.input("x", "i64", (3,))
    f = b.function("f")
    fc, fn, fx = f.input("c", *F4), f.input("n", "i64", ()), f.input("x", "i64", ())
    total = f.add("add", [fn, fx])
    f.output("n", total)
    f.output("sum", total)
    f.output("c", fc)
    results = scan(b, [c, n, x], f.build(), 3, 1, 1, reverse=True)
    assert [b.type(value) for value in results] == [TensorType(DType.I64, ()), TensorType(DType.I64, (3,)), TensorType(DType.F32, (3, 4))]
    for name, value in zip(("n", "sums", "cs"), results, strict=True):
        b.output(name, value)
    inputs = {"c": np.arange(4, dtype=np.float32), "n": np.array(10), "x": np.array([1, 2, 4])}
    got = run_reference(b.build(), inputs, precision="f32")
    assert got["n"] == 17
    np.testing.assert_array_equal(got["sums"], [17, 16, 14])
    np.testing.assert_array_equal(got["cs"], np.tile(np.arange(4), (3, 1)))


def test_functions_run_in_float64_too():
    b = GraphBuilder("g")
    f = b.function("f")
    x = f.input("x", "f32", ())
    f.output("y", f.add("div", [x, f.constant(np.float32(3))], rounding="true"))
    third = f.build()
    b.output("y", b.add("call", [b.input("x", "f32", ())], function=third))
    b.output("none", scan(b, [b.input("xs", "f32", (0,))], third, 0, 0, 0))
    got = run_reference(b.build(), {"x": np.float32(1).reshape(()), "xs": np.zeros(0, np.float32)}, precision="f64")
    assert got["y"] == np.float64(1) / 3
    assert got["none"].dtype == np.float64


def test_a_function_calls_one_that_was_built_before_it():
    b = GraphBuilder("g")
    x = b.input("x", *F3)
    inner = add_function(b, "f", [F3], 1, "neg")
    outer = b.function("f")
    outer.output("y", outer.add("abs", [outer.add("call", [outer.input("x", *F3)], function=inner)]))
    b.output("y", b.add("call", [x], function=outer.build(), name="both"))
    graph = b.build()
    check_graph(graph)
    assert list(graph.functions) == ["f", "f_1"]
    assert 'function "f_1"' in graph_text(graph)
    assert "%both: f32[3] = call(%x) {function=f_1}" in graph_text(graph)
    np.testing.assert_array_equal(run_reference(graph, {"x": np.array([1, -2, 3], np.float32)}, precision="f32")["y"], [1, 2, 3])


def test_a_function_is_built_once_and_before_it_is_used():
    b = GraphBuilder("g")
    x = b.input("x", *F3)
    f = b.function("f")
    f.output("y", f.input("x", *F3))
    with pytest.raises(TypeInferenceError, match=r"call 'call': calls function 'f', which does not exist"):
        b.add("call", [x], function="f")
    f.build()
    with pytest.raises(VerifyError, match="function 'f': is built already"):
        f.build()


def nested_graph():
    b = GraphBuilder("g")
    x, n = b.input("x", *F3), b.input("n", *INT)
    f = add_function(b, "f", [F3], 1, "exp")
    g = b.function("g")
    g.output("y", g.add("call", [g.input("x", *F3)], function=f, name="inner"))
    b.output("y", b.add("cond", [n, x], branches=[f, g.build()], name="outer"))
    return b.build()


def test_recursion_is_refused():
    graph = nested_graph()
    f, g = graph.functions["f"], graph.functions["g"]
    itself = replace(f, nodes=(replace(g.nodes[0], inputs=("x0",), outputs=f.nodes[0].outputs),))
    with pytest.raises(VerifyError, match="function 'f': calls itself, directly or through others"):
        check_graph(replace(graph, functions={"f": itself, "g": g}))
    around = replace(f, nodes=(replace(itself.nodes[0], attrs={"function": "g"}),))
    with pytest.raises(VerifyError, match=r"(?s)2 problems.*function 'f': calls itself.*function 'g': calls itself"):
        check_graph(replace(graph, functions={"f": around, "g": g}))


def test_a_missing_branch_is_found_before_types_are():
    graph = nested_graph()
    with pytest.raises(VerifyError, match="cond 'outer': calls function 'g', which does not exist"):
        check_graph(replace(graph, functions={"f": graph.functions["f"]}))


def test_the_type_of_a_result_is_the_functions():
    graph = nested_graph()
    wrong = replace(graph.nodes[0], outputs=(replace(graph.nodes[0].outputs[0], type=TensorType(DType.F32, (4,))),))
    with pytest.raises(TypeInferenceError, match=r"cond 'outer': the recorded type .* recorded f32\[4\] but cond gives f32\[3\]"):
        check_graph(replace(graph, nodes=(wrong,)))


def test_files_hold_functions(tmp_path):
    save_graph(nested_graph(), tmp_path / "g")
    text = (tmp_path / "g.json").read_text()
    assert '"attrs": {"branches": ["f", "g"]}' in text
    loaded = load_graph(tmp_path / "g")
    assert loaded.nodes[0].attrs == {"branches": ("f", "g")}
    (tmp_path / "g.json").write_text(text.replace('["f", "g"]', '["f", 3]'))
    with pytest.raises(TypeInferenceError, match=r"attribute 'branches' must be functions; got \('f', 3\)"):
        load_graph(tmp_path / "g")


def test_an_error_inside_functions_names_the_way():
    b = GraphBuilder("g")
    i = b.input("i", *INT)
    f = b.function("f")
    one = f.constant(np.int32(1))
    f.output("y", f.add("div", [one, f.input("i", *INT)], rounding="trunc", name="quotient"))
    b.output("y", b.add("call", [i], function=f.build(), name="step"))
    with pytest.raises(KernelError, match=r"^call 'step', in function 'f': div 'quotient': "):
        run_reference(b.build(), {"i": np.array(0, np.int32)}, precision="f32")
