"""Hypothesis strategies for random graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder

UNARY = ("neg", "abs", "relu", "tanh", "sigmoid")
BINARY = ("add", "mul", "sub", "max")
_NAMES = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters=":;"), min_size=1, max_size=6)
_CONSTANTS = st.floats(width=32)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random DAG of elementwise ops, reshapes and transposes over f32 values of one element count, with constants and several results."""
    b = GraphBuilder(draw(_NAMES))
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    values = [b.input(draw(_NAMES), "f32", (rows, columns)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        values.append(b.constant(np.full((rows, columns), draw(_CONSTANTS), np.float32), name=draw(_NAMES)))
    for _ in range(draw(st.integers(0, 12))):
        x = draw(st.sampled_from(values))
        shape = b.type(x).shape
        kind = draw(st.sampled_from(("unary", "binary", "scalar", "reshape", "transpose")))
        if kind == "unary":
            y = b.add(draw(st.sampled_from(UNARY)), [x], name=draw(_NAMES))
        elif kind == "binary":
            same = [value for value in values if b.type(value).shape == shape]
            y = b.add(draw(st.sampled_from(BINARY)), [x, draw(st.sampled_from(same))])
        elif kind == "scalar":
            y = b.add(draw(st.sampled_from(BINARY)), [x, b.constant(np.float32(draw(_CONSTANTS)))])
        elif kind == "reshape":
            y = b.add("reshape", [x], shape=(rows * columns,) if len(shape) == 2 else (columns, rows))
        else:
            y = b.add("transpose", [x], perm=tuple(reversed(range(len(shape)))))
        values.append(y)
    for index, value in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))):
        b.output(f"y{index}", value)
    return b.build()


@st.composite
def mixed_graphs(draw: st.DrawFn, max_nodes: int = 14) -> Graph:
    """A random DAG over ops of every kind: elementwise with broadcasting, views, copies, matmul, convolution, pools, norms, reductions, indices."""
    b = GraphBuilder("mixed")
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values = [b.input(f"x{i}", "f32", shape) for i, shape in enumerate(draw(st.lists(st.sampled_from(_SHAPES), min_size=1, max_size=3)))]
    for _ in range(draw(st.integers(1, max_nodes))):
        x = draw(st.sampled_from(values))
        kinds = [name for name, (applies, _) in _KINDS.items() if applies(b.type(x).shape)]
        values.append(_KINDS[draw(st.sampled_from(kinds))][1](draw, b, rng, x, values))
    for index, value in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))):
        b.output(f"y{index}", value)
    return b.build()


_SHAPES = ((5,), (1, 7), (3, 5), (4, 1, 6), (2, 3, 4), (1, 3, 6, 5), (2, 4, 4, 3), (0, 3))


def _random(rng, shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def _unary(draw, b, rng, x, values):
    return b.add(draw(st.sampled_from((*UNARY, "exp", "erf", "silu"))), [x])


def _binary(draw, b, rng, x, values):
    shape = b.type(x).shape
    other = draw(st.sampled_from(("value", "scalar", "row", "column")))
    if other == "value":
        y = draw(st.sampled_from([value for value in values if b.type(value).shape == shape]))
    else:
        y = b.constant(_random(rng, {"scalar": (), "row": shape[-1:], "column": (*shape[-2:-1], 1)}[other]))
    return b.add(draw(st.sampled_from(BINARY)), [x, y])


def _select(draw, b, rng, x, values):
    positive = b.add("compare", [x, b.constant(np.float32(0.1))], dir=draw(st.sampled_from(("lt", "ge"))))
    return b.add("select", [positive, x, b.add("neg", [x])])


def _reshape(draw, b, rng, x, values):
    shape = b.type(x).shape
    return b.add(
        "reshape",
        [x],
        shape=draw(st.sampled_from(((int(np.prod(shape)),), (1, *shape), (*shape[:-2], int(np.prod(shape[-2:]))), shape[::-1]))),
    )


def _transpose(draw, b, rng, x, values):
    return b.add("transpose", [x], perm=tuple(draw(st.permutations(range(len(b.type(x).shape))))))


def _slice(draw, b, rng, x, values):
    shape = b.type(x).shape
    start = tuple(draw(st.integers(0, max(0, dim - 1))) for dim in shape)
    return b.add("slice", [x], start=start, limit=shape, strides=tuple(draw(st.integers(1, 2)) for _ in shape))


def _reverse(draw, b, rng, x, values):
    return b.add("reverse", [x], axes=(draw(st.integers(0, len(b.type(x).shape) - 1)),))


def _broadcast(draw, b, rng, x, values):
    return b.add("broadcast", [x], shape=(2, *b.type(x).shape))


def _concat(draw, b, rng, x, values):
    axis = draw(st.integers(0, len(b.type(x).shape) - 1))
    return b.add("concat", [x, b.add("neg", [x]), x], axis=axis)


def _linear(draw, b, rng, x, values):
    width = draw(st.integers(1, 5))
    return b.add("linear", [x, b.constant(_random(rng, (width, b.type(x).shape[-1]))), b.constant(_random(rng, width))], weight_layout="oi")


def _matmul(draw, b, rng, x, values):
    return b.add("matmul", [x, x], transpose_a=False, transpose_b=True)


def _reduce(draw, b, rng, x, values):
    axis = draw(st.integers(0, len(b.type(x).shape) - 1))
    kind = draw(st.sampled_from(("sum", "mean", "max")))
    return b.add("reduce", [x], kind=kind, axes=(axis,), keepdims=draw(st.booleans()), nan="propagate", empty="identity")


def _softmax(draw, b, rng, x, values):
    return b.add("softmax", [x], axis=draw(st.integers(0, len(b.type(x).shape) - 1)), fully_masked="nan")


def _layer_norm(draw, b, rng, x, values):
    width = b.type(x).shape[-1]
    scale = b.constant(_random(rng, width))
    return b.add("layer_norm", [x, scale, None], axes=(len(b.type(x).shape) - 1,), eps=1e-3, variance="two_pass")


def _take(draw, b, rng, x, values):
    indices = b.constant(rng.integers(0, b.type(x).shape[0], 3))
    return b.add("take", [x, indices], axis=0, oob="error", wrap_negative=False, fill_value=None)


def _conv(draw, b, rng, x, values):
    layout = draw(st.sampled_from(("NCHW", "NHWC")))
    channels = b.type(x).shape[1 if layout == "NCHW" else 3]
    oc, pads = draw(st.integers(1, 4)), ((1, draw(st.integers(0, 1))), (1, 1))
    weight = b.constant(_random(rng, (oc, channels, 2, 2)))
    y = b.add("conv2d", [x, weight, None], strides=(1, draw(st.integers(1, 2))), pads=pads, dilations=(1, 1), groups=1, data_layout=layout)
    if draw(st.booleans()):
        y = b.add("add", [y, b.constant(_random(rng, (oc, 1, 1) if layout == "NCHW" else (oc,)))])
    return y


def _max_pool(draw, b, rng, x, values):
    layout = draw(st.sampled_from(("NCHW", "NHWC")))
    return b.add(
        "max_pool", [x], window=(2, 2), strides=(1, 1), pads=((1, 0), (0, 1)), dilations=(1, 1), data_layout=layout, nan="propagate"
    )


_KINDS = {
    "unary": (lambda s: True, _unary),
    "binary": (lambda s: True, _binary),
    "select": (lambda s: True, _select),
    "reshape": (lambda s: len(s) > 1, _reshape),
    "transpose": (lambda s: len(s) > 1, _transpose),
    "slice": (lambda s: len(s) > 0, _slice),
    "reverse": (lambda s: len(s) > 0, _reverse),
    "broadcast": (lambda s: 0 < len(s) < 4 and np.prod(s) < 500, _broadcast),
    "concat": (lambda s: len(s) > 0 and np.prod(s) < 500, _concat),
    "linear": (lambda s: len(s) > 0, _linear),
    "matmul": (lambda s: len(s) > 1, _matmul),
    "reduce": (lambda s: len(s) > 0, _reduce),
    "softmax": (lambda s: len(s) > 0 and 0 not in s, _softmax),
    "layer_norm": (lambda s: len(s) > 0 and 0 not in s, _layer_norm),
    "take": (lambda s: len(s) > 0 and s[0] > 0, _take),
    "conv": (lambda s: len(s) == 4 and min(s) > 0, _conv),
    "max_pool": (lambda s: len(s) == 4 and min(s) > 0, _max_pool),
}
