"""The reference interpreter: precision, intermediates, checks of inputs, fused groups."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.errors import InputError, KernelError
from rml_exec.ir.graph import Graph, Node, Value
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference
from rml_exec.types import DType, TensorType


def small_mlp() -> tuple[Graph, dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    b = GraphBuilder("mlp")
    x = b.input("x", "f32", (5, 17))
    w = b.constant(random.normal(size=(7, 17)).astype(np.float32), name="w", key="w")
    bias = b.constant(random.normal(size=7).astype(np.float32), name="bias", key="bias")
    hidden = b.add("linear", [x, w, bias], weight_layout="oi", name="hidden")
    y = b.add("relu", [hidden], name="act")
    b.output("y", y)
    b.output("x_again", x)
    return b.build(), {"x": random.normal(size=(5, 17)).astype(np.float32)}


def test_f32_and_f64_run_the_same_graph():
    graph, inputs = small_mlp()
    single = run_reference(graph, inputs, precision="f32")
    double = run_reference(graph, inputs, precision="f64")
    constants = {constant.name: constant.data.astype(np.float64) for constant in graph.constants}
    want = np.maximum(inputs["x"].astype(np.float64) @ constants["w"].T + constants["bias"], 0)
    assert {name: array.dtype for name, array in single.items()} == {"y": np.float32, "x_again": np.float32}
    assert {name: array.dtype for name, array in double.items()} == {"y": np.float64, "x_again": np.float64}
    np.testing.assert_allclose(double["y"], want, rtol=1e-13)
    np.testing.assert_allclose(single["y"], want, rtol=1e-5, atol=1e-6)


def test_results_are_owned_by_the_caller():
    graph, inputs = small_mlp()
    result = run_reference(graph, inputs, precision="f32", want=["w"])
    for array in result.values():
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert not np.shares_memory(result["x_again"], inputs["x"])


def test_want_gives_intermediates_inputs_and_constants():
    graph, inputs = small_mlp()
    got = run_reference(graph, inputs, precision="f64", want=["hidden", "x", "bias"])
    assert list(got) == ["y", "x_again", "hidden", "x", "bias"]
    np.testing.assert_array_equal(np.maximum(got["hidden"], 0), got["y"])
    np.testing.assert_array_equal(got["x"], inputs["x"])
    with pytest.raises(InputError, match="graph 'mlp': has no value 'nonsense'"):
        run_reference(graph, inputs, precision="f64", want=["nonsense"])


def test_want_of_a_value_whose_name_another_output_has_is_refused():
    b = GraphBuilder("g")
    x = b.input("x", "f32", ())
    y = b.add("neg", [x], name="n")
    b.output("x", y)
    with pytest.raises(InputError, match="cannot return value 'x': an output of another value"):
        run_reference(b.build(), {"x": np.zeros((), np.float32)}, precision="f32", want=["x"])


def test_f64_widens_what_cast_and_iota_make_but_not_integers():
    b = GraphBuilder("g")
    x = b.input("x", "f32", (3,))
    whole = b.add("cast", [x], to="i32", f2i="saturate", name="whole")
    back = b.add("cast", [whole], to="f32", f2i="error", name="back")
    half = b.add("cast", [x], to="f16", f2i="error", name="half")
    count = b.add("iota", [], dtype="f32", shape=(3,), axis=0, name="count")
    b.output("y", b.add("add", [back, count]))
    b.output("half", half)
    b.output("whole", whole)
    x = np.array([1 / 3, 2.7, -9.1], np.float32)
    got = run_reference(b.build(), {"x": x}, precision="f64")
    assert [got[name].dtype for name in ("y", "half", "whole")] == [np.float64, np.float64, np.int32]
    np.testing.assert_array_equal(got["half"], x.astype(np.float64))
    np.testing.assert_array_equal(got["y"], [0, 3, -7])


def test_fused_groups_run_and_widen_inside():
    shape = TensorType(DType.F32, (4,))
    members = (
        Node("cast", "c", ("x",), (Value("c", shape),), {"to": "f32", "f2i": "error"}),
        Node("exp", "e", ("c",), (Value("e", shape),)),
        Node("add", "s", ("e", "x"), (Value("s", shape),)),
    )
    b = GraphBuilder("g")
    x = b.input("x", "f32", (4,))
    b.output("y", b.add("neg", [x]))
    graph = b.build()
    attrs = {"params": ("x",), "body": members, "results": ("e", "s")}
    fused = Node("fused", "f", ("x",), (Value("e", shape), Value("s", shape)), attrs)
    last = Node("neg", "n", ("s",), (graph.nodes[0].outputs[0],))
    x = np.array([-1, 0, 0.1, 2], np.float32)
    got = run_reference(graph.with_nodes((fused, last)), {"x": x}, precision="f64", want=["e"])
    np.testing.assert_allclose(got["e"], np.exp(x.astype(np.float64)), rtol=1e-15)
    np.testing.assert_allclose(got["y"], -(np.exp(x.astype(np.float64)) + x), rtol=1e-15)
    assert got["y"].dtype == np.float64


def test_bf16_moves_as_bits_in_f32_and_as_numbers_in_f64():
    b = GraphBuilder("g")
    x = b.input("x", "bf16", (3,))
    b.output("y", b.add("reverse", [x], axes=(0,)))
    bits = (np.array([1.0, -2.5, 3.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    graph = b.build()
    np.testing.assert_array_equal(run_reference(graph, {"x": bits}, precision="f32")["y"], bits[::-1])
    np.testing.assert_array_equal(run_reference(graph, {"x": bits}, precision="f64")["y"], [3.0, -2.5, 1.0])


def test_absent_operands_and_unread_nodes():
    b = GraphBuilder("g")
    x = b.input("x", "f32", (2, 3))
    unused = b.input("unused", "i64", (4,))
    b.add("neg", [unused], name="dead")
    b.output("y", b.add("layer_norm", [x, None, None], axes=(1,), eps=0.0, variance="two_pass"))
    inputs = {"x": np.array([[-1, 0, 1], [2, 4, 6]], np.float32), "unused": np.arange(4)}
    got = run_reference(b.build(), inputs, precision="f64")
    np.testing.assert_allclose(got["y"], np.sqrt(1.5) * np.array([[-1, 0, 1]] * 2), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"graph 'mlp': input 'x' must be given; got inputs \[\]"),
        ({"extra": np.zeros(1)}, r"graph 'mlp': has no input 'extra'. Hint: its inputs are \['x'\]"),
        ({"x": np.zeros((5, 17))}, r"graph 'mlp' input 'x': must be f32\[5,17\]; got float64\[5, 17\]"),
        ({"x": np.zeros((5, 16), np.float32)}, r"input 'x': must be f32\[5,17\]; got float32\[5, 16\]"),
    ],
)
@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_inputs_are_checked_by_name(change, message, precision):
    graph, inputs = small_mlp()
    given = {name: array for name, array in {**inputs, **change}.items() if array is not None}
    with pytest.raises(InputError, match=message):
        run_reference(graph, given, precision=precision)


def test_unknown_precision_is_refused():
    graph, inputs = small_mlp()
    with pytest.raises(InputError, match="precision must be f32 or f64; got 'f16'"):
        run_reference(graph, inputs, precision="f16")


def test_refused_values_name_the_node():
    b = GraphBuilder("g")
    x, i = b.input("x", "f32", (3,)), b.input("i", "i64", (1,))
    b.output("y", b.add("take", [x, i], axis=0, oob="error", wrap_negative=False, fill_value=None, name="lookup"))
    with pytest.raises(KernelError, match=r"^take 'lookup': indices must be in range for axis 0 of size 3; got 9"):
        run_reference(b.build(), {"x": np.zeros(3, np.float32), "i": np.array([9])}, precision="f32")
