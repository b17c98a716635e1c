import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.errors import InputError
from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.fuse_epilogue import FUSE_EPILOGUE
from rml_exec.runtime.reference import run_reference

CONV = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "data_layout": "NHWC"}
LINEAR = {"weight_layout": "oi"}


def array(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def built(build):
    b = GraphBuilder("epilogues")
    build(b)
    return b.build()


def fused(build):
    """Returns the nodes after the pass, which leaves the results of the reference interpreter as they are, bit for bit."""
    graph = built(build)
    result = run_passes(graph, [FUSE_EPILOGUE], check_graph)
    inputs = {value.name: array(*value.type.shape) for value in graph.inputs}
    before, after = run_reference(graph, inputs, precision="f32"), run_reference(result, inputs, precision="f32")
    for name, expected in before.items():
        np.testing.assert_array_equal(after[name], expected)
    executor = Executor.create(graph, numerics="exact")
    assert all(step.native for step in executor.steps)
    for name, got in executor.run(inputs).items():
        np.testing.assert_allclose(got, before[name], rtol=1e-5, atol=1e-5)
    return result.nodes


def conv(b, x, oc=16, ic=8, **attrs):
    return b.add("conv2d", [x, b.constant(array(oc, ic // attrs.get("groups", 1), 3, 3)), None], **{**CONV, **attrs})


def linear(b, x, out=33, into=17, bias=True):
    return b.add("linear", [x, b.constant(array(out, into)), b.constant(array(out)) if bias else None], **LINEAR)


ACTIVATIONS = {
    "relu": {},
    "clamp": {"lo": 0.0, "hi": 6.0},
    "gelu": {"approximate": "none"},
    "silu": {},
    "sigmoid": {},
    "tanh": {},
    "hard_swish": {},
}


@pytest.mark.parametrize(("op", "attrs"), ACTIVATIONS.items(), ids=ACTIVATIONS)
def test_an_activation_follows_a_linear(op, attrs):
    def build(b):
        b.output("y", b.add(op, [linear(b, b.input("x", "f32", (5, 17)))], **attrs))

    (node,) = fused(build)
    assert (node.op, node.label) == ("epilogue", f"linear+{op}")
    assert len(node.covers) == 2


def test_residual_and_activation_of_a_convolution_stand_where_the_last_of_them_stood():
    def build(b):
        x = b.input("x", "f32", (1, 6, 7, 8))
        y = conv(b, x)
        other = b.add("tanh", [conv(b, x)])
        b.output("y", b.add("relu", [b.add("add", [y, other])]))

    nodes = fused(build)
    assert [node.label for node in nodes] == ["conv2d+tanh", "conv2d+add+relu"]
    assert nodes[1].inputs[0] == nodes[0].outputs[0].name


def test_a_residual_may_follow_the_activation():
    def build(b):
        x = b.input("x", "f32", (5, 17))
        b.output("y", b.add("add", [x, b.add("silu", [linear(b, x, 17)])]))

    (node,) = fused(build)
    assert node.label == "linear+silu+add"
    assert node.inputs.count("x") == 2  # as residual and as operand: nothing may overwrite it


def test_a_vector_added_to_a_product_without_bias_is_its_bias():
    def build(b):
        y = b.add("matmul", [b.input("x", "f32", (2, 5, 17)), b.constant(array(17, 33))], transpose_a=False, transpose_b=False)
        y = b.add("add", [b.constant(array(1, 33)), y])
        b.output("y", b.add("gelu", [y], approximate="tanh"))

    (node,) = fused(build)
    assert node.label == "matmul+add+gelu"
    assert node.inputs[0] is None


def test_a_residual_is_overwritten_where_it_dies():
    def build(b):
        x = b.input("x", "f32", (64, 64))
        y = b.add("exp", [x])
        for _ in range(4):
            y = b.add("relu", [b.add("add", [linear(b, x, 64, 64), y])])
        b.output("y", b.add("neg", [y]))

    executor = Executor.create(built(build))
    assert [step.label for step in executor.steps] == ["exp", *["linear+add+relu"] * 4, "neg"]
    assert executor.memory.arena_bytes == 0  # all of them in the output's place


def test_what_a_product_made_on_the_way_is_named():
    def build(b):
        y = linear(b, b.input("x", "f32", (5, 17)))
        b.output("y", b.add("relu", [y]))

    graph = built(build)
    executor = Executor.create(graph)
    inner = graph.nodes[0].outputs[0].name
    with pytest.raises(InputError, match=r"linear\+relu"):
        executor.run({"x": array(5, 17)}, want=[inner])
    plain = Executor.create(graph, fuse=False)
    assert [step.label for step in plain.steps] == ["linear", "relu"]
    assert inner in plain.run({"x": array(5, 17)}, want=[inner])


UNFUSED = {
    "a second reader": lambda b, x: b.add("mul", [y := linear(b, x), b.add("relu", [y])]),
    "two of one": lambda b, x: b.add("add", [y := linear(b, x), y]),
    "a row": lambda b, x: b.add("add", [linear(b, x), b.constant(array(5, 1))]),
    "a larger result": lambda b, x: b.add("add", [linear(b, x), b.constant(array(2, 5, 33))]),
    "another op": lambda b, x: b.add("exp", [linear(b, x)]),
}


@pytest.mark.parametrize("build", UNFUSED.values(), ids=UNFUSED)
def test_left_alone(build):
    nodes = fused(lambda b: b.output("y", build(b, b.input("x", "f32", (5, 17)))))
    assert all(node.op != "epilogue" for node in nodes)


def test_a_graph_output_stays():
    def build(b):
        y = linear(b, b.input("x", "f32", (5, 17)))
        b.output("sums", y)
        b.output("y", b.add("relu", [y]))

    assert [node.op for node in fused(build)] == ["linear", "relu"]


def test_one_activation_and_one_residual_at_most():
    def build(b):
        x = b.input("x", "f32", (5, 17))
        y = b.add("relu", [b.add("tanh", [linear(b, x, 17)])])
        z = b.add("add", [b.add("add", [linear(b, x, 17), x]), y])
        b.output("z", z)

    assert [node.label for node in fused(build)] == ["linear+tanh", "relu", "linear+add", "add"]


def test_a_depthwise_convolution_takes_no_residual():
    def build(b):
        x = b.input("x", "f32", (1, 6, 7, 8))
        b.output("y", b.add("add", [b.add("clamp", [conv(b, x, 8, 8, groups=8)], lo=0.0, hi=6.0), x]))

    assert [node.label for node in fused(build)] == ["conv2d+clamp", "add"]
