import numpy as np

from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.fuse_elementwise import FUSE_ELEMENTWISE
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import random_inputs


def fused(build):
    b = GraphBuilder("group")
    build(b)
    graph = b.build()
    result = run_passes(graph, [FUSE_ELEMENTWISE], check_graph)
    inputs = random_inputs(graph)
    before, after = run_reference(graph, inputs, precision="f32"), run_reference(result, inputs, precision="f32")
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    return result


def test_a_chain_becomes_one_step_whose_only_result_is_the_last_member():
    def build(b):
        x, y = b.input("x", "f32", (3, 5)), b.input("y", "f32", (5,))
        b.output("z", b.add("relu", [b.add("add", [x, y])]))

    (node,) = fused(build).nodes
    assert node.label == "fused(add,relu)"
    assert len(node.covers) == 2
    assert [value.type.shape for value in node.outputs] == [(3, 5)]
    assert node.inputs == ("x", "y")


def test_members_need_not_be_connected():
    def build(b):
        x = b.input("x", "f32", (4,))
        b.output("a", b.add("neg", [x]))
        b.output("b", b.add("exp", [x]))

    (node,) = fused(build).nodes
    assert node.label == "fused(neg,exp)"
    assert len(node.outputs) == 2


def test_every_member_read_outside_is_a_result():
    def build(b):
        x = b.input("x", "f32", (4,))
        a = b.add("neg", [x])
        c = b.add("exp", [a])
        total = b.add("reduce", [a], kind="sum", axes=(0,), keepdims=False, nan="propagate", empty="identity")
        b.output("c", c)
        b.output("total", total)

    nodes = fused(build).nodes
    assert [node.label for node in nodes] == ["fused(neg,exp)", "reduce"]
    assert len(nodes[0].outputs) == 2


def test_another_output_shape_ends_a_group():
    def build(b):
        x, y = b.input("x", "f32", (4,)), b.input("y", "f32", (3, 4))
        a = b.add("neg", [x])
        c = b.add("exp", [a])
        d = b.add("add", [c, y])
        b.output("e", b.add("relu", [d]))

    assert [node.label for node in fused(build).nodes] == ["fused(neg,exp)", "fused(add,relu)"]


def test_one_elementwise_node_alone_stays_itself():
    def build(b):
        b.output("y", b.add("neg", [b.input("x", "f32", (4,))]))

    assert [node.op for node in fused(build).nodes] == ["neg"]


def test_a_group_that_nothing_reads_is_left_alone():
    def build(b):
        x = b.input("x", "f32", (4,))
        b.add("neg", [x])
        b.add("exp", [x])
        b.output("y", x)

    assert [node.op for node in fused(build).nodes] == ["neg", "exp"]


def test_values_that_the_interpreter_lacks_make_a_group_of_their_own():
    def build(b):
        x, i = b.input("x", "f32", (4,)), b.input("i", "i64", (4,))
        a = b.add("exp", [b.add("neg", [x])])
        c = b.add("cast", [b.add("add", [i, i])], to="f32", f2i="saturate")
        b.output("y", b.add("mul", [b.add("add", [a, c]), x]))

    assert [node.label for node in fused(build).nodes] == ["fused(neg,exp)", "fused(add,cast)", "fused(add,mul)"]


def test_a_long_run_is_cut_where_it_would_have_too_many_operands():
    def build(b):
        y = b.input("x", "f32", (4,))
        for i in range(40):
            y = b.add("add", [y, b.input(f"x{i}", "f32", (4,))])
        b.output("y", y)

    nodes = fused(build).nodes
    assert len(nodes) == 2
    assert all(len(node.inputs) + len(node.outputs) <= 32 for node in nodes)


def test_a_long_chain_is_one_group():
    def build(b):
        x = y = b.input("x", "f32", (4,))
        for i in range(200):
            y = b.add("add" if i % 2 else "mul", [y, x])
        b.output("y", y)

    assert len(fused(build).nodes) == 1
