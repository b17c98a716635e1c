import math

import numpy as np
import pytest

from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.fold_pad import FOLD_PAD
from rml_exec.runtime.reference import run_reference

RNG = np.random.default_rng(5)
POOL = {"window": (2, 2), "strides": (2, 2), "pads": ((1, 0), (0, 0)), "dilations": (1, 1), "nan": "propagate"}
CONV = {"strides": (2, 2), "pads": ((1, 0), (0, 1)), "dilations": (1, 1), "groups": 1}


def ops_after(
    layout="NHWC", op="conv2d", value=0.0, mode="constant", low=None, high=None, interior=0, second_reader=False, is_output=False
):
    b = GraphBuilder("pad")
    x = b.input("x", "f32", (2, 6, 7, 3) if layout == "NHWC" else (2, 3, 6, 7))
    spatial = (1, 2) if layout == "NHWC" else (2, 3)
    low = low or tuple(1 if axis in spatial else 0 for axis in range(4))
    high = high or tuple(2 if axis == spatial[0] else 0 for axis in range(4))
    y = b.add("pad", [x], mode=mode, low=low, high=high, interior=(0, interior, 0, 0), value=value if mode == "constant" else None)
    if op == "conv2d":
        channels = b.type(y).shape[3 if layout == "NHWC" else 1]
        w = b.constant(RNG.standard_normal((4, channels, 3, 3)).astype(np.float32), name="w")
        z = b.add("conv2d", [y, w, None], **CONV, data_layout=layout)
    else:
        z = b.add("max_pool", [y], **POOL, data_layout=layout)
    b.output("z", z)
    if second_reader:
        b.output("other", b.add("neg", [y]))
    if is_output:
        b.output("y", y)
    graph = b.build()
    result = run_passes(graph, [FOLD_PAD], check_graph)
    inputs = {"x": RNG.standard_normal(graph.inputs[0].type.shape).astype(np.float32)}
    before, after = run_reference(graph, inputs, precision="f64"), run_reference(result, inputs, precision="f64")
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-12, atol=1e-12)
    return [node.op for node in result.nodes], result


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("op", "value"), [("conv2d", 0.0), ("max_pool", -math.inf)])
def test_the_reader_pads_instead(layout, op, value):
    ops, graph = ops_after(layout, op, value)
    assert ops == [op]
    assert len(graph.nodes[0].covers) == 2
    assert graph.nodes[0].label == op


@pytest.mark.parametrize(
    "options",
    [
        {"value": 1.0},
        {"op": "max_pool", "value": 0.0},
        {"mode": "edge"},
        {"interior": 1},
        {"low": (0, -1, 0, 0)},
        {"low": (0, 1, 1, 1)},
        {"second_reader": True},
        {"is_output": True},
    ],
    ids=str,
)
def test_a_pad_that_means_something_else_stays(options):
    ops, _ = ops_after(**options)
    assert ops[0] == "pad"
