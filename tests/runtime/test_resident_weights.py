"""What stays in memory of the weights: packed panels, and neither the file they came from nor what was folded in between."""

import gc
from pathlib import Path

import numpy as np
import pytest

from rml_exec import Executor, load_graph, save_graph
from rml_exec.ir import derived
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.shared import aligned_floats

CHANNELS = 512


@pytest.fixture
def prefix(tmp_path):
    """A saved 1x1 convolution with batch norm, 1 MiB of weights."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", "f32", (1, CHANNELS, 4, 4))
    w = b.constant(rng.standard_normal((CHANNELS, CHANNELS, 1, 1), dtype=np.float32), name="w", key="w")
    y = b.add("conv2d", [x, w, None], strides=(1, 1), pads=((0, 0), (0, 0)), dilations=(1, 1), groups=1, data_layout="NCHW")
    statistics = [
        b.constant(rng.random(CHANNELS, dtype=np.float32) + 0.5, name=name, key=name) for name in ("scale", "bias", "mean", "variance")
    ]
    b.output("y", b.add("batch_norm", [y, *statistics], eps=1e-5, axis=1))
    save_graph(b.build(), tmp_path / "net")
    return tmp_path / "net"


def _resident_kib(path):
    """Returns how much of a file's mappings is in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_the_mapping_is_dropped_after_packing(prefix):
    graph = load_graph(prefix)
    weights = graph.constants[0].data
    weights.sum()  # brings the file in
    assert _resident_kib(f"{prefix}.safetensors") >= weights.nbytes // 1024
    executor = Executor.create(graph)
    assert _resident_kib(f"{prefix}.safetensors") < 64
    assert np.isfinite(executor.run({"x": np.ones((1, CHANNELS, 4, 4), np.float32)})["y"]).all()
    assert weights.any(), "and it can still be read"


def test_folded_weights_do_not_outlive_their_packing(prefix):
    executor = Executor.create(load_graph(prefix))
    gc.collect()
    held = [entry for entry in derived._entries.values() if entry.shape == (CHANNELS, CHANNELS, 1, 1)]
    assert held == []
    (folded,) = (constant for constant in executor.lowered.constants if constant.type.rank == 4)
    assert folded.data.shape == (CHANNELS, CHANNELS, 1, 1), "made again when asked for"


def test_two_executors_share_one_packing(prefix):
    graph = load_graph(prefix)
    first = Executor.create(graph)
    packed = [id(entry) for entry in derived._entries.values() if entry.nbytes >= CHANNELS * CHANNELS * 4]
    second = Executor.create(graph)
    assert packed == [id(entry) for entry in derived._entries.values() if entry.nbytes >= CHANNELS * CHANNELS * 4]
    assert first.steps == second.steps


KINDS = {
    "first layer": ((1, 3, 20, 20), (40, 3, 7, 7), {"strides": (2, 2), "pads": ((3, 3), (3, 3))}, "conv"),
    "1x1": ((1, 24, 5, 5), (40, 24, 1, 1), {}, "gemm"),
    "stride 2": ((1, 32, 9, 9), (48, 32, 3, 3), {"strides": (2, 2), "pads": ((1, 1), (1, 1))}, "conv"),
    "groups": ((1, 32, 9, 9), (48, 16, 3, 3), {"groups": 2, "pads": ((1, 1), (1, 1))}, "conv"),
    "depthwise": ((1, 32, 9, 9), (32, 1, 3, 3), {"groups": 32, "pads": ((1, 1), (1, 1))}, "conv_depthwise"),
    "winograd2": ((1, 32, 7, 7), (48, 32, 3, 3), {"pads": ((1, 1), (1, 1))}, "winograd2"),
    "winograd4": ((1, 32, 17, 17), (48, 32, 3, 3), {"pads": ((1, 1), (1, 1))}, "winograd4"),
}


@pytest.mark.parametrize(("shape", "weight_shape", "attrs", "kernel"), KINDS.values(), ids=KINDS)
def test_scaling_while_packing_gives_the_bits_of_folded_weights(shape, weight_shape, attrs, kernel):
    rng = np.random.default_rng(1)
    window = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "groups": 1, "data_layout": "NCHW", **attrs}
    scale = rng.uniform(0.5, 1.5, (weight_shape[0], 1, 1)).astype(np.float32)
    w = rng.standard_normal(weight_shape, dtype=np.float32)

    def build(weights, factor):
        b = GraphBuilder("net")
        y = b.add("conv2d", [b.input("x", "f32", shape), b.constant(weights, name="w"), None], **window)
        b.output("y", y if factor is None else b.add("mul", [y, b.constant(factor, name="scale")]))
        return Executor.create(b.build())

    scaled, folded = build(w, scale), build((w * scale[..., None].astype(np.float64)).astype(np.float32), None)
    assert kernel in ",".join(step.kernel for step in scaled.steps).split(",")
    assert not any("mul" in step.label for step in scaled.steps)
    x = rng.standard_normal(shape, dtype=np.float32)
    np.testing.assert_array_equal(scaled.run({"x": x})["y"], folded.run({"x": x})["y"])


@pytest.mark.parametrize("floats", [0, 1, 17, 1 << 20])
def test_packed_weights_begin_at_a_cache_line(floats):
    panels = aligned_floats(floats)
    assert panels.shape == (floats,)
    assert panels.__array_interface__["data"][0] % (64 if floats < 1 << 19 else 2 << 20) == 0
