import numpy as np
import pytest

from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.choose_layout import CHOOSE_LAYOUT
from rml_exec.runtime.reference import run_reference

RNG = np.random.default_rng(2)
CONV = {"strides": (1, 1), "pads": ((1, 1), (0, 1)), "dilations": (1, 1), "groups": 1, "data_layout": "NCHW"}
POOL = {"window": (2, 2), "strides": (2, 2), "pads": ((0, 0), (0, 0)), "data_layout": "NCHW"}


def lowered(build):
    b = GraphBuilder("layout")
    build(b)
    graph = b.build()
    result = run_passes(graph, [CHOOSE_LAYOUT], check_graph)
    inputs = {value.name: RNG.standard_normal(value.type.shape, np.float32) for value in graph.inputs}
    before, after = run_reference(graph, inputs, precision="f64"), run_reference(result, inputs, precision="f64")
    for name, array in before.items():
        assert after[name].shape == array.shape
        np.testing.assert_allclose(after[name], array, rtol=1e-12, atol=1e-12)
    return [node.op for node in result.nodes]


def conv(b, x, oc=4, ic=3):
    return b.add("conv2d", [x, b.constant(RNG.standard_normal((oc, ic, 3, 3), np.float32), name="w"), None], **CONV)


def test_a_network_has_one_transpose_at_the_front_and_none_before_a_global_pool():
    def build(b):
        y = conv(b, b.input("x", "f32", (2, 3, 8, 7)))
        stats = [b.constant(np.abs(RNG.standard_normal(4, np.float32)) + 0.5, name=n) for n in ("scale", "shift", "mean", "variance")]
        y = b.add("relu", [b.add("batch_norm", [y, *stats], eps=1e-3, axis=1)])
        y = b.add("add", [y, b.constant(RNG.standard_normal((4, 1, 1), np.float32), name="c")])
        y = b.add("max_pool", [y], **POOL, dilations=(1, 1), nan="propagate")
        y = b.add("avg_pool", [y], **POOL, divisor="window", divisor_value=None)
        b.output("y", b.add("reduce", [y], kind="mean", axes=(2, 3), keepdims=False, nan="propagate", empty="identity"))

    assert lowered(build) == ["transpose", "conv2d", "batch_norm", "relu", "add", "max_pool", "avg_pool", "reduce"]


def test_an_output_in_nchw_comes_back_through_one_transpose():
    def build(b):
        b.output("y", conv(b, b.input("x", "f32", (1, 3, 4, 4))))

    assert lowered(build) == ["transpose", "conv2d", "transpose"]


def test_a_reader_that_needs_nchw_gets_it_once():
    def build(b):
        y = conv(b, b.input("x", "f32", (1, 3, 4, 4)))
        b.output("a", b.add("reshape", [y], shape=(1, 48)))
        b.output("b", b.add("reshape", [y], shape=(48,)))
        b.output("c", b.add("relu", [y]))

    assert lowered(build).count("transpose") == 3  # in, the reshapes' operand, the output c


def test_concat_and_residual_add_stay_channels_last():
    def build(b):
        x = conv(b, b.input("x", "f32", (1, 3, 4, 4)))
        y = b.add("concat", [x, b.add("add", [x, b.add("sigmoid", [x])])], axis=1)
        b.output("y", b.add("reduce", [y], kind="max", axes=(2, 3), keepdims=True, nan="propagate", empty="identity"))

    assert lowered(build) == ["transpose", "conv2d", "sigmoid", "add", "concat", "reduce", "transpose"]


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (3,), (4, 1, 1)])
def test_an_operand_computed_in_nchw_stops_the_layout_there(shape):
    def build(b):
        y = conv(b, b.input("x", "f32", (1, 3, 4, 4)))
        b.output("y", b.add("mul", [y, b.input("z", "f32", shape)]))

    ops = lowered(build)
    assert ops[:2] == ["transpose", "conv2d"]
    assert ops[-2:] == ["transpose", "mul"]


def test_a_channels_last_graph_is_left_as_it_is():
    def build(b):
        w = b.constant(RNG.standard_normal((4, 3, 3, 3), np.float32), name="w")
        b.output("y", b.add("conv2d", [b.input("x", "f32", (1, 5, 5, 3)), w, None], **{**CONV, "data_layout": "NHWC"}))

    assert lowered(build) == ["conv2d"]


def test_a_u_net_like_part_stays_channels_last():
    def build(b):
        x = conv(b, b.input("x", "f32", (1, 3, 4, 5)))
        x = b.add("pad", [x], mode="constant", low=(0, 0, 0, 1), high=(0, 0, 1, 0), interior=(0, 0, 0, 0), value=0.5)
        scale = b.constant(RNG.standard_normal(4).astype(np.float32), name="scale")
        x = b.add("group_norm", [x, scale, None], groups=2, axis=1, eps=1e-5)
        w = b.constant(RNG.standard_normal((4, 2, 2, 2)).astype(np.float32), name="up")
        x = b.add("conv2d_transpose", [x, w, None], **{**CONV, "strides": (2, 2), "pads": ((0, 0), (0, 0))}, output_padding=(0, 0))
        b.output("y", b.add("reduce", [x], kind="mean", axes=(2, 3), keepdims=False, nan="propagate", empty="identity"))

    assert lowered(build) == ["transpose", "conv2d", "pad", "group_norm", "conv2d_transpose", "reduce"]
