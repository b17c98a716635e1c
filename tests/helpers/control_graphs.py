"""Graphs with control flow, and a random one."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rml_exec.ir.builder import BodyBuilder
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from tests.helpers.graphs import pattern


def rnn_graph(length: int = 5, batch: int = 2, width: int = 3, hidden: int = 4, *, reverse: bool = False) -> Graph:
    """``h = tanh(W [h, x] + b)`` over time: weights are scan consts, results are the last state and all states."""
    b = GraphBuilder("rnn")
    x, h = b.input("x", "f32", (length, batch, width)), b.input("h", "f32", (batch, hidden))
    w = b.constant(pattern(hidden, hidden + width), name="w", key="w")
    bias = b.constant(pattern(hidden, step=11), name="bias")
    cell = b.function("cell")
    cw, cb = cell.input("w", "f32", (hidden, hidden + width)), cell.input("bias", "f32", (hidden,))
    ch, cx = cell.input("h", "f32", (batch, hidden)), cell.input("x", "f32", (batch, width))
    new = cell.add("tanh", [cell.add("linear", [cell.add("concat", [ch, cx], axis=1), cw, cb], weight_layout="oi")])
    cell.output("h", new)
    cell.output("y", new)
    last, states = b.add("scan", [w, bias, h, x], body=cell.build(), length=length, reverse=reverse, num_consts=2, num_carry=1)
    b.output("last", last)
    b.output("states", states)
    return b.build()


def loop_graph(shape: tuple[int, ...] = (3,)) -> Graph:
    """While n < limit and all of x < 100: n += 1, x = x * factor; ``factor`` and ``limit`` are carried unchanged."""
    b = GraphBuilder("loop")
    types = {"n": ("i32", ()), "limit": ("i32", ()), "x": ("f32", shape), "factor": ("f32", ())}
    operands = [b.input(name, *type_) for name, type_ in types.items()]
    cond, body = b.function("cond"), b.function("body")
    n, limit, x, _ = (cond.input(name, *type_) for name, type_ in types.items())
    small = cond.add("compare", [x, cond.constant(np.float32(100), name="hundred")], dir="lt")
    small = cond.add("reduce", [small], kind="all", axes=tuple(range(len(shape))), keepdims=False, nan="propagate", empty="identity")
    cond.output("go", cond.add("and", [cond.add("compare", [n, limit], dir="lt"), small]))
    n, limit, x, factor = (body.input(name, *type_) for name, type_ in types.items())
    body.output("n", body.add("add", [n, body.constant(np.int32(1), name="one")]))
    body.output("limit", limit)
    body.output("x", body.add("mul", [x, factor]))
    body.output("factor", factor)
    results = b.add("while", operands, cond=cond.build(), body=body.build(), outputs=["n1", "limit1", "x1", "factor1"])
    for name, value in zip(types, results, strict=True):
        b.output(name, value)
    return b.build()


SHAPE = (3,)


@st.composite
def control_graphs(draw: st.DrawFn) -> Graph:
    """Random control flow, nested up to three deep, over f32[3] values and exact ops: operands may be inputs, constants, strided views."""
    b = GraphBuilder("control")
    values = [b.input(f"x{i}", "f32", SHAPE) for i in range(2)] + [b.constant(pattern(*SHAPE, step=draw(st.integers(1, 9))), name="c")]
    _fill(draw, b, values, depth=3)
    for index, value in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))):
        b.output(f"y{index}", value)
    return b.build()


def _fill(draw: st.DrawFn, b: BodyBuilder, values: list[str], depth: int) -> None:
    """Adds a few nodes and appends the f32[3] values that they make."""
    kinds = ("neg", "add", "max", "reverse", "constant", *(("call", "cond", "switch", "while", "scan") if depth else ()))
    for _ in range(draw(st.integers(0 if depth < 3 else 1, 3))):
        kind = draw(st.sampled_from(kinds))
        x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        match kind:
            case "neg":
                values.append(b.add("neg", [x]))
            case "add" | "max":
                values.append(b.add(kind, [x, y]))
            case "reverse":
                values.append(b.add("reverse", [x], axes=(0,)))
            case "constant":
                values.append(b.constant(pattern(*SHAPE, step=draw(st.integers(1, 9))), name="k"))
            case "call":
                values.append(b.add("call", [x, y], function=_function(draw, b, depth, 2, 1)))
            case "cond":
                less = b.add("compare", [x, y], dir="lt")
                index = b.add("reshape", [b.add("slice", [less], start=(1,), limit=(2,), strides=(1,))], shape=())
                branches = [_function(draw, b, depth, 2, 2) for _ in range(2)]
                values.extend(b.add("cond", [index, x, y], branches=branches))
            case "switch":
                index = b.constant(np.int64(draw(st.integers(-1, 3))), name="index")
                branches = [_function(draw, b, depth, 1, 1) for _ in range(draw(st.integers(1, 3)))]
                values.append(b.add("cond", [index, x], branches=branches))
            case "while":
                _, first, second = b.add("while", [b.constant(np.int32(draw(st.integers(-3, 0)))), x, y], **_loop(draw, b, depth))
                values.extend((first, second))
            case "scan":
                values.extend(_scan(draw, b, depth, x, y))


def _function(draw: st.DrawFn, b: BodyBuilder, depth: int, takes: int, gives: int) -> str:
    f = b.function("f")
    values = [f.input(f"x{i}", "f32", SHAPE) for i in range(takes)]
    _fill(draw, f, values, depth - 1)
    for index in range(gives):
        f.output(f"y{index}", draw(st.sampled_from(values)))
    return f.build().name


def _loop(draw: st.DrawFn, b: BodyBuilder, depth: int) -> dict[str, str]:
    """Returns cond and body of a loop that counts up to 0 and carries two more values."""
    cond, body = b.function("cond"), b.function("body")
    n, *_ = cond.input("n", "i32", ()), cond.input("x", "f32", SHAPE), cond.input("y", "f32", SHAPE)
    cond.output("go", cond.add("compare", [n, cond.constant(np.int32(0), name="zero")], dir="lt"))
    n, *values = body.input("n", "i32", ()), body.input("x", "f32", SHAPE), body.input("y", "f32", SHAPE)
    body.output("n", body.add("add", [n, body.constant(np.int32(1), name="one")]))
    _fill(draw, body, values, depth - 1)
    body.output("x", draw(st.sampled_from(values)))
    body.output("y", draw(st.sampled_from(values)))
    return {"cond": cond.build().name, "body": body.build().name}


def _scan(draw: st.DrawFn, b: BodyBuilder, depth: int, x: str, y: str) -> list[str]:
    """Adds a scan of 0 to 4 steps with one const, one carry and one scanned value, and returns the f32[3] values of its results."""
    length, layout = draw(st.integers(0, 4)), draw(st.sampled_from(("rows", "columns", "reversed")))
    rows = b.add("broadcast", [y], shape=(length, *SHAPE))
    if layout == "columns":  # scanned elements that do not lie together
        rows = b.add("transpose", [b.add("neg", [b.add("transpose", [rows], perm=(1, 0))])], perm=(1, 0))
    elif layout == "reversed":
        rows = b.add("reverse", [b.add("neg", [rows])], axes=(0,))
    body = b.function("step")
    values = [body.input(name, "f32", SHAPE) for name in ("const", "carry", "element")]
    _fill(draw, body, values, depth - 1)
    body.output("carry", draw(st.sampled_from(values)))
    body.output("y", draw(st.sampled_from(values)))
    reverse = draw(st.booleans())
    carry, stacked = b.add("scan", [x, y, rows], body=body.build(), length=length, reverse=reverse, num_consts=1, num_carry=1)
    most = b.add("reduce", [stacked], kind="max", axes=(0,), keepdims=False, nan="propagate", empty="identity")
    return [carry, most]
