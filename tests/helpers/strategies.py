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
