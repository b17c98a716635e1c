import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.fold_affine import FOLD_AFFINE
from rml_exec.runtime.reference import run_reference

RNG = np.random.default_rng(3)


def positive(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def conv(b, layout="NHWC", bias=None, oc=4):
    x = b.input("x", "f32", (2, 5, 6, 3) if layout == "NHWC" else (2, 3, 5, 6))
    w = b.constant(RNG.standard_normal((oc, 3, 3, 3)).astype(np.float32), name="w")
    bias = None if bias is None else b.constant(RNG.standard_normal(oc).astype(np.float32), name="b")
    return b.add("conv2d", [x, w, bias], strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(1, 1), groups=1, data_layout=layout)


def batch_norm(b, y, axis, oc=4):
    stats = [b.constant(positive(oc), name=name) for name in ("gamma", "beta", "mean", "variance")]
    return b.add("batch_norm", [y, *stats], eps=1e-3, axis=axis)


def folded(build):
    b = GraphBuilder("affine")
    build(b)
    graph = b.build()
    result = run_passes(graph, [FOLD_AFFINE], check_graph)
    inputs = {value.name: RNG.standard_normal(value.type.shape).astype(np.float32) for value in graph.inputs}
    before, after = run_reference(graph, inputs, precision="f64"), run_reference(result, inputs, precision="f64")
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5)
    return result


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("bias", [None, True])
def test_batch_norm_goes_into_the_convolution(layout, bias):
    def build(b):
        b.output("y", b.add("relu", [batch_norm(b, conv(b, layout, bias), 1 if layout == "NCHW" else 3)]))

    nodes = folded(build).nodes
    assert [node.label for node in nodes] == ["conv2d+batch_norm", "relu"]
    assert len(nodes[0].covers) == 2


def test_spelled_out_batch_norm_goes_in_too():
    def build(b):
        y = conv(b, bias=True)
        y = b.add("sub", [y, b.constant(positive(4), name="m")])
        y = b.add("mul", [b.constant(positive(1, 1, 4), name="s"), y])
        y = b.add("div", [y, b.constant(positive(4), name="d")], rounding="true")
        y = b.add("sub", [b.constant(positive(4), name="a"), y])
        b.output("y", y)

    nodes = folded(build).nodes
    assert [node.op for node in nodes] == ["conv2d"]
    assert len(nodes[0].covers) == 5


@pytest.mark.parametrize("layout", ["oi", "io"])
def test_a_scale_goes_into_a_linear(layout):
    def build(b):
        x = b.input("x", "f32", (3, 5))
        w = b.constant(RNG.standard_normal((4, 5) if layout == "oi" else (5, 4)).astype(np.float32), name="w")
        b.output("y", b.add("mul", [b.add("linear", [x, w, None], weight_layout=layout), b.constant(positive(4), name="s")]))

    assert [node.op for node in folded(build).nodes] == ["linear"]


def test_adds_alone_are_not_its_business():
    def build(b):
        b.output("y", b.add("add", [conv(b, bias=True), b.constant(positive(4), name="a")]))

    assert [node.op for node in folded(build).nodes] == ["conv2d", "add"]


@pytest.mark.parametrize("what", ["output", "second reader", "other axis", "run-time scale", "divided by it"])
def test_what_must_stay(what):
    def build(b):
        y = conv(b, oc=6)
        scale = (
            b.input("s", "f32", (6,))
            if what == "run-time scale"
            else b.constant(positive(*((5, 6, 1) if what == "other axis" else (6,))), name="s")
        )
        b.output("y", b.add("div", [scale, y], rounding="true") if what == "divided by it" else b.add("mul", [y, scale]))
        if what == "output":
            b.output("conv", y)
        if what == "second reader":
            b.output("other", b.add("neg", [y]))

    assert [node.op for node in folded(build).nodes][:2] == ["conv2d", "div" if what == "divided by it" else "mul"]


def test_executors_share_the_folded_weights():
    b = GraphBuilder("shared")
    b.output("y", batch_norm(b, conv(b), 3))
    graph = b.build()
    first, second = (Executor.create(graph).lowered.constants for _ in range(2))
    assert {c.name for c in first} == {"w.folded", "w.folded_bias"}
    assert all(one.data is other.data for one, other in zip(first, second, strict=True))
