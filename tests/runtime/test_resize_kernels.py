"""Resize in its kernel: sizes beyond a vector, channels of every number, both layouts."""

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.ops import get_op
from rml_exec.runtime.reference import run_reference
from tests.ops.operands import assert_within

RANDOM = np.random.default_rng(9)
RULES = {"coord": "half_pixel", "exclude_outside": False, "antialias": False, "scales": None}
MODES = {
    "linear": {"nearest_round": None, "cubic_a": None},
    "cubic": {"nearest_round": None, "cubic_a": -0.75},
    "nearest": {"nearest_round": "floor", "cubic_a": None},
}


def _check(shape, sizes, layout, mode, **rules):
    b = GraphBuilder("resize")
    attrs = {**RULES, **MODES[mode], "mode": mode, "sizes": sizes, "data_layout": layout, **rules}
    b.output("y", b.add("resize", [b.input("x", "f32", shape)], **attrs))
    graph, x = b.build(), RANDOM.standard_normal(shape).astype(np.float32)
    want = run_reference(graph, {"x": x}, precision="f64")["y"]
    for threads in (1, 2, 3):
        executor = Executor.create(graph, threads=threads, numerics="exact")
        assert all(step.native for step in executor.steps)
        assert_within(executor.run({"x": x})["y"], want, get_op("resize").tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 3, 17, 64, 131])
@pytest.mark.parametrize(("size", "sizes"), [((9, 11), (23, 37)), ((40, 33), (7, 80)), ((65, 70), (64, 1))], ids=str)
def test_pictures(size, sizes, channels, mode):
    _check((2, *size, channels), sizes, "NHWC", mode)
    _check((2, channels, *size), sizes, "NCHW", mode)


@pytest.mark.parametrize("mode", MODES)
def test_signals_and_volumes(mode):
    _check((3, 5, 301), (200,), "NCHW", mode)
    _check((3, 301, 5), (700,), "NHWC", mode)
    _check((2, 3, 5, 17, 9), (7, 11, 21), "NCHW", mode)
    _check((2, 5, 17, 9, 19), (3, 30, 4), "NHWC", mode)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_wide_windows(mode):
    _check((1, 3, 240, 320), (24, 31), "NCHW", mode, antialias=True)
    _check((1, 240, 320, 3), (24, 31), "NHWC", mode, antialias=True, exclude_outside=True)
