"""Convolutions of pictures: few channels, so that a row of the kernel is one tap over a padded copy."""

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference


@pytest.mark.parametrize("data_layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [1, 3, 8])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "dilations"),
    [
        ((7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1)),
        ((3, 3), (2, 2), ((0, 1), (0, 1)), (1, 1)),
        ((3, 2), (1, 3), ((4, 0), (0, 5)), (2, 1)),
        ((1, 5), (1, 1), ((0, 0), (2, 2)), (1, 1)),
        ((2, 4), (2, 4), ((0, 0), (0, 0)), (1, 1)),
        ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 2)),
    ],
)
def test_pictures(data_layout, channels, kernel, strides, pads, dilations):
    rng = np.random.default_rng(1)
    shape = (2, channels, 17, 23) if data_layout == "NCHW" else (2, 17, 23, channels)
    b = GraphBuilder("picture")
    w = b.constant(rng.standard_normal((19, channels, *kernel), dtype=np.float32), name="w", key="w")
    bias = b.constant(rng.standard_normal(19, dtype=np.float32), name="bias", key="bias")
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": 1, "data_layout": data_layout}
    b.output("y", b.add("conv2d", [b.input("x", "f32", shape), w, bias], **attrs))
    graph, x = b.build(), rng.standard_normal(shape, dtype=np.float32)
    want = run_reference(graph, {"x": x}, precision="f64")["y"]
    one, two = (Executor.create(graph, threads=threads, numerics="exact").run({"x": x})["y"] for threads in (1, 2))
    np.testing.assert_allclose(one, want, rtol=1e-5, atol=5e-5)
    assert one.tobytes() == two.tobytes()


def test_the_padding_of_a_picture_is_zero_again_in_every_run():
    """The padded copy lives in the arena, where other values may have lain before."""
    b = GraphBuilder("picture")
    x = b.input("x", "f32", (1, 3, 33, 33))
    w = b.constant(np.ones((4, 3, 3, 3), np.float32), name="w", key="w")
    attrs = {"strides": (2, 2), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "data_layout": "NCHW"}
    y = b.add("conv2d", [x, w, None], **attrs)
    b.output("y", b.add("reduce", [y], kind="sum", axes=(1, 2, 3), keepdims=False, nan="propagate", empty="identity"))
    executor = Executor.create(b.build(), threads=1)
    for value in (1.0, 5.0, 1.0):
        got = executor.run({"x": np.full((1, 3, 33, 33), value, np.float32)})["y"][0]
        assert got == 4 * 3 * value * (3 * 17 - 2) ** 2
