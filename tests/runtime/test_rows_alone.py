"""With numerics="exact" a row of a batch has the bits of that row alone, and of any thread count: graphs of every family of ops."""

import itertools
import zlib

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder

NAMES = itertools.count()


class _Weights:
    """Constants of a graph, always the same numbers."""

    def __init__(self, builder, family):
        self.builder, self._random = builder, np.random.default_rng(zlib.crc32(family.encode()))

    def __call__(self, *shape):
        array = (self._random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return self.builder.constant(array, name=f"w{next(NAMES)}")


def _conv(b, x, w, oc, ic, kernel, stride=1, groups=1, layout="NCHW"):
    pad = kernel // 2
    attrs = {"strides": (stride, stride), "pads": ((pad, pad), (pad, pad)), "dilations": (1, 1), "groups": groups, "data_layout": layout}
    return b.add("conv2d", [x, w(oc, ic // groups, kernel, kernel), w(oc)], **attrs)


def _heads(b, x, w):
    q, k, v = (
        b.add("transpose", [b.add("reshape", [_linear(b, x, w, 96, 96)], shape=(b.type(x).shape[0], 50, 4, 24))], perm=(0, 2, 1, 3))
        for _ in range(3)
    )
    return b.add("attention", [q, k, v, None], scale=0.2, mask="none", fully_masked="nan", kv_groups=1, softcap=None)


def _linear(b, x, w, i, o):
    return b.add("linear", [x, w(o, i), w(o)], weight_layout="oi")


def _bottleneck(b, x, w):
    y = b.add("relu", [_conv(b, x, w, 40, 24, 1)])
    y = b.add("relu", [_conv(b, y, w, 40, 40, 3, groups=40)])
    return b.add("relu", [b.add("add", [_conv(b, y, w, 24, 40, 1), x])])


def _recurrent(op, gates):
    def build(b, x, w):
        weights = [w(gates * 33, 20), w(gates * 33, 33), w(gates * 33), *((w(gates * 33),) if op == "gru" else (None,)), None]
        y = b.add(
            op, [b.add("transpose", [x], perm=(1, 0, 2)), *weights], direction="forward", **({"reset": "after"} if op == "gru" else {})
        )[0]
        return b.add("transpose", [y], perm=(1, 0, 2))

    return build


def _elementwise(b, x, w):
    y = x
    for op, attrs in (("gelu", {"approximate": "none"}), ("exp", {}), ("tanh", {}), ("sigmoid", {}), ("sin", {}), ("log1p", {})):
        y = b.add("add", [b.add(op, [y], **attrs), b.add("mul", [x, w(1, 77)])])
    return y


POOL = {"window": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "data_layout": "NCHW", "nan": "propagate"}
REDUCE = {"keepdims": False, "nan": "propagate", "empty": "error"}
RESIZE = {"coord": "half_pixel", "nearest_round": None, "cubic_a": None, "exclude_outside": False, "antialias": False, "scales": None}

FAMILIES = {
    "linear": ((300,), lambda b, x, w: _linear(b, b.add("relu", [_linear(b, x, w, 300, 513)]), w, 513, 70)),
    "linear-rows": ((7, 96), lambda b, x, w: b.add("gelu", [_linear(b, x, w, 96, 200)], approximate="none")),
    "matmul": ((13, 33), lambda b, x, w: b.add("matmul", [x, x], transpose_a=False, transpose_b=True)),
    "conv": ((24, 15, 13), lambda b, x, w: b.add("relu", [_conv(b, x, w, 33, 24, 3)])),
    "conv-nhwc": ((15, 13, 24), lambda b, x, w: _conv(b, x, w, 70, 24, 3, 2, layout="NHWC")),
    "conv-picture": ((3, 33, 35), lambda b, x, w: _conv(b, x, w, 32, 3, 7, 2)),
    "conv-grouped": ((32, 9, 9), lambda b, x, w: _conv(b, x, w, 64, 32, 3, 1, 4)),
    "conv-depthwise": ((40, 15, 17), lambda b, x, w: _conv(b, x, w, 40, 40, 3, 1, 40)),
    "conv-depthwise-stride": ((40, 15, 17), lambda b, x, w: _conv(b, x, w, 40, 40, 5, 2, 40)),
    "bottleneck": ((24, 14, 14), _bottleneck),
    "attention": ((50, 96), _heads),
    "layer_norm": ((11, 301), lambda b, x, w: b.add("layer_norm", [x, w(301), w(301)], axes=(2,), eps=1e-5, variance="two_pass")),
    "rms_norm": ((11, 301), lambda b, x, w: b.add("rms_norm", [x, w(301)], axes=(2,), eps=1e-6)),
    "group_norm": ((24, 9, 7), lambda b, x, w: b.add("group_norm", [x, w(24), w(24)], groups=4, axis=1, eps=1e-5)),
    "softmax": ((5, 197), lambda b, x, w: b.add("softmax", [x], axis=2, fully_masked="nan")),
    "log_softmax": ((9, 65), lambda b, x, w: b.add("log_softmax", [x], axis=1)),
    "lstm": ((9, 20), _recurrent("lstm", 4)),
    "gru": ((9, 20), _recurrent("gru", 3)),
    "elementwise": ((77,), _elementwise),
    "pool": ((24, 15, 13), lambda b, x, w: b.add("max_pool", [x], **POOL)),
    "mean": ((24, 15, 13), lambda b, x, w: b.add("reduce", [x], kind="mean", axes=(2, 3), **REDUCE)),
    "sum-short": ((500, 2), lambda b, x, w: b.add("reduce", [x], kind="sum", axes=(2,), **REDUCE)),
    "cumulative": ((1027,), lambda b, x, w: b.add("cumulative", [x], kind="sum", axis=1, exclusive=False, reverse=False)),
    "resize": ((24, 9, 7), lambda b, x, w: b.add("resize", [x], mode="linear", sizes=(20, 13), data_layout="NCHW", **RESIZE)),
}


def _executor(family, batch, threads=1):
    shape, build = FAMILIES[family]
    b = GraphBuilder(family)
    b.output("y", build(b, b.input("x", "f32", (batch, *shape)), _Weights(b, family)))
    return Executor.create(b.build(), numerics="exact", threads=threads)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_a_batch_is_that_row_alone(family):
    x = np.random.default_rng(3).standard_normal((5, *FAMILIES[family][0])).astype(np.float32)
    alone, batch = _executor(family, 1), _executor(family, 5)
    assert all(step.native for step in batch.steps)
    whole = batch.run({"x": x})["y"]
    assert np.isfinite(whole).any()
    assert _executor(family, 5, threads=2).run({"x": x})["y"].tobytes() == whole.tobytes()
    for row in range(5):
        assert alone.run({"x": x[row : row + 1]})["y"].tobytes() == whole[row : row + 1].tobytes()
