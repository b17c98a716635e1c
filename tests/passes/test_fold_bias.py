import numpy as np
import pytest

from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.fold_bias import FOLD_BIAS
from rml_exec.runtime.reference import run_reference

RNG = np.random.default_rng(0)


def conv_graph(layout, bias_shape, *, conv_is_output=False, second_reader=False, own_bias=False, swap=False, width=6, oc=6):
    b = GraphBuilder("conv_bias")
    x = b.input("x", "f32", (2, 3, 5, width) if layout == "NCHW" else (2, 5, width, 3))
    w = b.constant(RNG.standard_normal((oc, 3, 1, 1), np.float32), name="w")
    own = b.constant(RNG.standard_normal(oc, np.float32), name="own") if own_bias else None
    bias = b.constant(RNG.standard_normal(bias_shape, np.float32), name="bias")
    y = b.add("conv2d", [x, w, own], strides=(1, 1), pads=((0, 0), (0, 0)), dilations=(1, 1), groups=1, data_layout=layout)
    z = b.add("add", [bias, y] if swap else [y, bias])
    b.output("z", z)
    if conv_is_output:
        b.output("y", y)
    if second_reader:
        b.output("twice", b.add("neg", [y]))
    return b.build()


def folded(graph):
    result = run_passes(graph, [FOLD_BIAS], check_graph)
    inputs = {"x": RNG.standard_normal(graph.inputs[0].type.shape, np.float32)}
    before, after = run_reference(graph, inputs, precision="f64"), run_reference(result, inputs, precision="f64")
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-12, atol=1e-12)
    return [node.label for node in result.nodes], result


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("NCHW", (6, 1, 1)), ("NCHW", (1, 6, 1, 1)), ("NHWC", (6,)), ("NHWC", (1, 6)), ("NHWC", (1, 1, 1, 6))],
)
@pytest.mark.parametrize("swap", [False, True])
def test_a_per_channel_constant_becomes_the_bias(layout, shape, swap):
    labels, graph = folded(conv_graph(layout, shape, swap=swap))
    assert labels == ["conv2d+add"]
    assert len(graph.nodes[0].covers) == 2
    assert graph.types()[graph.nodes[0].inputs[2]].shape == (6,)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("NCHW", (6,)),  # varies along the width, which happens to be the number of channels
        ("NCHW", (5, 6)),
        ("NCHW", (1, 1, 1, 1)),
        ("NHWC", (6, 1)),
        ("NHWC", (5, 1, 1)),
        ("NHWC", (2, 1, 1, 6)),
        ("NHWC", ()),
    ],
)
def test_a_constant_that_varies_along_another_axis_stays_an_add(layout, shape):
    width = 6
    labels, _ = folded(conv_graph(layout, shape, width=width))
    assert labels == ["conv2d", "add"]


@pytest.mark.parametrize("keep", ["conv_is_output", "second_reader", "own_bias"])
def test_a_conv_that_is_needed_on_its_own_stays_two_steps(keep):
    labels, _ = folded(conv_graph("NHWC", (6,), **{keep: True}))
    assert labels[0] == "conv2d"
    assert "add" in labels


def test_an_addend_computed_at_run_time_is_no_bias():
    b = GraphBuilder("dynamic")
    x, bias = b.input("x", "f32", (1, 4, 4, 3)), b.input("bias", "f32", (2,))
    w = b.constant(np.ones((2, 3, 1, 1), np.float32), name="w")
    y = b.add("conv2d", [x, w, None], strides=(1, 1), pads=((0, 0), (0, 0)), dilations=(1, 1), groups=1, data_layout="NHWC")
    b.output("z", b.add("add", [y, bias]))
    assert [node.label for node in run_passes(b.build(), [FOLD_BIAS], check_graph).nodes] == ["conv2d", "add"]


def test_one_constant_used_twice_stays_readable_by_its_other_reader():
    b = GraphBuilder("shared")
    x = b.input("x", "f32", (1, 4, 4, 3))
    w = b.constant(np.ones((2, 3, 1, 1), np.float32), name="w")
    bias = b.constant(np.ones((1, 1, 1, 2), np.float32), name="bias")
    y = b.add("conv2d", [x, w, None], strides=(1, 1), pads=((0, 0), (0, 0)), dilations=(1, 1), groups=1, data_layout="NHWC")
    z = b.add("add", [y, bias])
    b.output("z", b.add("mul", [z, bias]))
    result = run_passes(b.build(), [FOLD_BIAS], check_graph)
    assert {constant.name for constant in result.constants} == {"w", "bias", "bias.bias"}


@pytest.mark.parametrize(("shape", "found"), [((5,), True), ((1, 1, 5), True), ((3, 5), False), ((1,), False)])
@pytest.mark.parametrize("op", ["linear", "matmul", "transposed matmul"])
def test_products_take_their_bias(op, shape, found):
    b = GraphBuilder("product")
    x = b.input("x", "f32", (2, 3, 4))
    if op == "linear":
        y = b.add("linear", [x, b.constant(RNG.standard_normal((5, 4), np.float32), name="w"), None], weight_layout="oi")
    else:
        turned = op != "matmul"
        w = b.constant(RNG.standard_normal((5, 4) if turned else (4, 5), np.float32), name="w")
        y = b.add("matmul", [x, w], transpose_a=False, transpose_b=turned)
    b.output("side", b.add("neg", [x]))  # what stands between changes nothing
    b.output("z", b.add("add", [b.constant(RNG.standard_normal(shape, np.float32), name="bias"), y]))
    labels, graph = folded(b.build())
    name = op.split()[-1]
    assert labels == ([f"{name}+add", "neg"] if found else [name, "neg", "add"])
    assert graph.nodes[0].op == ("linear" if found else name)


def test_a_product_of_two_values_takes_no_bias():
    b = GraphBuilder("values")
    x = b.input("x", "f32", (4, 4))
    y = b.add("matmul", [x, x], transpose_a=False, transpose_b=False)
    b.output("z", b.add("add", [y, b.constant(np.ones(4, np.float32), name="bias")]))
    assert folded(b.build())[0] == ["matmul", "add"]
