from __future__ import annotations

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference
from rml_exec.runtime.winograd import tile_of


@pytest.mark.parametrize(
    ("output", "ic", "oc", "tile"),
    [
        ((56, 56), 64, 64, 4),
        ((28, 28), 128, 128, 4),
        ((14, 14), 256, 256, 4),
        ((7, 7), 512, 512, 2),
        ((56, 56), 512, 512, 4),  # weights beyond the cache, shared by many tiles
        ((224, 224), 3, 64, 0),
        ((56, 56), 72, 64, 0),  # not whole vectors
        ((56, 56), 16, 16, 0),
        ((3, 3), 64, 64, 0),
    ],
)
def test_tile_by_size(output, ic, oc, tile):
    assert tile_of(1, output, ic, oc) == tile


def _convolution(size, ic, oc, data_layout, **attrs):
    rng = np.random.default_rng(0)
    b = GraphBuilder("conv")
    shape = (1, ic, *size) if data_layout == "NCHW" else (1, *size, ic)
    w = b.constant(rng.standard_normal((oc, ic // attrs.get("groups", 1), 3, 3), dtype=np.float32), name="w", key="w")
    defaults = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1}
    b.output("y", b.add("conv2d", [b.input("x", "f32", shape), w, None], data_layout=data_layout, **{**defaults, **attrs}))
    return b.build(), rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("data_layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "kernel", "bound"), [((17, 22), "winograd4", 3e-5), ((7, 8), "winograd2", 5e-6)])
def test_fast_uses_winograd_and_exact_does_not(data_layout, threads, size, kernel, bound):
    graph, x = _convolution(size, 32, 48, data_layout)
    expected = run_reference(graph, {"x": x}, precision="f64")["y"]
    fast, exact = (Executor.create(graph, numerics=numerics, threads=threads) for numerics in ("fast", "exact"))
    assert kernel in ",".join(step.kernel for step in fast.steps).split(",")
    assert not any("winograd" in step.kernel for step in exact.steps)
    rms = np.sqrt(np.mean(expected**2))
    assert np.max(np.abs(fast.run({"x": x})["y"] - expected)) <= bound * rms
    assert np.max(np.abs(exact.run({"x": x})["y"] - expected)) <= 5e-6 * rms


@pytest.mark.parametrize("attrs", [{"strides": (2, 2)}, {"dilations": (2, 2)}, {"groups": 2}], ids=str)
def test_other_convolutions_stay_direct(attrs):
    graph, _ = _convolution((17, 22), 64, 64, "NHWC", **attrs)
    assert [step.kernel for step in Executor.create(graph).steps] == ["conv"]
