"""Recurrent layers: LSTM and GRU over a whole sequence in one direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ops.decompose import Primitives
from rml_exec.ops.linear import PRODUCT
from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, dtype_in, same_dtype, vector_of
from rml_exec.ops.special import half_in_single
from rml_exec.ops.unary import sigmoid
from rml_exec.types import DType, TensorType


def _infer_cell(
    x: TensorType, w: TensorType, r: TensorType, gates: int, states: dict[str, TensorType | None]
) -> tuple[TensorType, TensorType]:
    """Returns the types of all hidden states and of the last one."""
    dtype = x.dtype
    dtype_in(dtype, FLOATS)
    if x.rank != 3 or w.rank != 2 or r.rank != 2:
        raise Rule("x must have the axes [time, batch, features], w and r 2 axes", f"ranks {x.rank}, {w.rank} and {r.rank}")
    time, batch, features = x.shape
    hidden = r.shape[1]
    for name, matrix, columns in (("w", w, features), ("r", r, hidden)):
        if matrix.shape != (gates * hidden, columns):
            raise Rule(f"{name} must have the shape [{gates * hidden}, {columns}]: {gates} gates of {hidden}", list(matrix.shape))
    for name, state in states.items():
        if state is not None and state.shape != (batch, hidden):
            raise Rule(f"{name} must have the shape [{batch}, {hidden}]", list(state.shape))
    return TensorType(dtype, (time, batch, hidden)), TensorType(dtype, (batch, hidden))


def _steps(count: int, direction: str) -> range:
    return range(count) if direction == "forward" else range(count - 1, -1, -1)


def _infer_lstm(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None,
    h0: TensorType | None,
    c0: TensorType | None,
    *,
    direction: str,
) -> tuple[TensorType, ...]:
    same_dtype(x, w, r, bias, h0, c0)
    y, last = _infer_cell(x, w, r, 4, {"h0": h0, "c0": c0})
    vector_of(w.shape[0], bias, "bias")
    return y, last, last


@half_in_single
def _lstm(
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray | None,
    h0: np.ndarray | None,
    c0: np.ndarray | None,
    *,
    direction: str,
) -> tuple[np.ndarray, ...]:
    time, batch, _ = x.shape
    hidden = r.shape[1]
    from_x = np.matmul(x, w.T)
    if bias is not None:
        from_x = from_x + bias
    y = np.empty((time, batch, hidden), x.dtype)
    h = np.zeros((batch, hidden), x.dtype) if h0 is None else h0
    c = np.zeros((batch, hidden), x.dtype) if c0 is None else c0
    for step in _steps(time, direction):
        i, f, g, o = np.split(from_x[step] + np.matmul(h, r.T), 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        y[step] = h
    return y, h.copy(), c.copy()


def _expand_lstm(
    p: Primitives, x: str, w: str, r: str, bias: str | None, h0: str | None, c0: str | None, *, direction: str
) -> tuple[str, ...]:
    time, batch, _ = p.type(x).shape
    hidden = p.type(r).shape[1]
    h = h0 or p.full((batch, hidden), 0.0, x)
    c = c0 or p.full((batch, hidden), 0.0, x)
    from_x = p("linear", x, w, bias, weight_layout="oi")
    ys = {}
    for step in _steps(time, direction):
        gates = p("add", _step(p, from_x, step), p("linear", h, r, None, weight_layout="oi"))
        i, f, g, o = (p.part(gates, 1, gate * hidden, (gate + 1) * hidden) for gate in range(4))
        c = p("add", p("mul", p("sigmoid", f), c), p("mul", p("sigmoid", i), p("tanh", g)))
        h = p("mul", p("sigmoid", o), p("tanh", c))
        ys[step] = h
    return _stacked(p, ys, (time, batch, hidden), x), h, c


def _step(p: Primitives, x: str, step: int) -> str:
    return p("reshape", p.part(x, 0, step, step + 1), shape=p.type(x).shape[1:])


def _stacked(p: Primitives, ys: dict[int, str], shape: tuple[int, ...], like: str) -> str:
    if not ys:
        return p.full(shape, 0.0, like)
    return p("concat", *(p("reshape", ys[step], shape=(1, *shape[1:])) for step in sorted(ys)), axis=0)


def _infer_gru(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None,
    recurrent_bias: TensorType | None,
    h0: TensorType | None,
    *,
    direction: str,
    reset: str,
) -> tuple[TensorType, ...]:
    same_dtype(x, w, r, bias, recurrent_bias, h0)
    y, last = _infer_cell(x, w, r, 3, {"h0": h0})
    vector_of(w.shape[0], bias, "bias")
    vector_of(w.shape[0], recurrent_bias, "recurrent_bias")
    return y, last


@half_in_single
def _gru(
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray | None,
    recurrent_bias: np.ndarray | None,
    h0: np.ndarray | None,
    *,
    direction: str,
    reset: str,
) -> tuple[np.ndarray, ...]:
    time, batch, _ = x.shape
    hidden = r.shape[1]
    from_x = np.matmul(x, w.T)
    if bias is not None:
        from_x = from_x + bias
    added = np.zeros(3 * hidden, x.dtype) if recurrent_bias is None else recurrent_bias
    y = np.empty((time, batch, hidden), x.dtype)
    h = np.zeros((batch, hidden), x.dtype) if h0 is None else h0
    gates, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)
    for step in _steps(time, direction):
        from_h = np.matmul(h, r[gates].T) + added[gates]
        reset_gate, update = np.split(sigmoid(from_x[step][:, gates] + from_h), 2, 1)
        if reset == "after":
            inner = reset_gate * (np.matmul(h, r[candidate].T) + added[candidate])
        else:
            inner = np.matmul(reset_gate * h, r[candidate].T) + added[candidate]
        new = np.tanh(from_x[step][:, candidate] + inner)
        h = (1 - update) * new + update * h
        y[step] = h
    return y, h.copy()


def _expand_gru(
    p: Primitives,
    x: str,
    w: str,
    r: str,
    bias: str | None,
    recurrent_bias: str | None,
    h0: str | None,
    *,
    direction: str,
    reset: str,
) -> tuple[str, ...]:
    time, batch, _ = p.type(x).shape
    hidden = p.type(r).shape[1]
    h = h0 or p.full((batch, hidden), 0.0, x)
    from_x = p("linear", x, w, bias, weight_layout="oi")
    bounds = [(0, hidden), (hidden, 2 * hidden), (2 * hidden, 3 * hidden)]
    weights = [p.part(r, 0, *bound) for bound in bounds]
    added = [recurrent_bias and p.part(recurrent_bias, 0, *bound) for bound in bounds]
    ys = {}
    for step in _steps(time, direction):
        now = _step(p, from_x, step)
        seen = [p.part(now, 1, *bound) for bound in bounds]

        def product(gate: int, state: str) -> str:
            return p("linear", state, weights[gate], added[gate], weight_layout="oi")

        reset_gate, update = (p("sigmoid", p("add", seen[gate], product(gate, h))) for gate in (0, 1))
        inner = p("mul", reset_gate, product(2, h)) if reset == "after" else product(2, p("mul", reset_gate, h))
        new = p("tanh", p("add", seen[2], inner))
        h = p("add", p("mul", p("sub", 1.0, update), new), p("mul", update, h))
        ys[step] = h
    return _stacked(p, ys, (time, batch, hidden), x), h


def _flops(types: Any, outputs: tuple[TensorType, ...], attrs: Any) -> int:
    time, batch, hidden = outputs[0].shape
    gates, features = types[1].shape
    return time * batch * (2 * gates * (features + hidden) + 15 * gates) + outputs[1].size


_DIRECTION = Attr("str", ("forward", "reverse"))
_DOUBLE, _HALF = DType.F64, DType.F16


def _lstm_case(
    id: str, time: int, batch: int, features: int, hidden: int, direction: str = "forward", given: str = "bhc", dtype: DType = DType.F32
) -> Any:
    """A case with the optional operands in ``given``: b bias, h and c the initial states."""
    state = TensorType(dtype, (batch, hidden))
    optional = {"b": TensorType(dtype, (4 * hidden,)), "h": state, "c": state}
    operands = (TensorType(dtype, shape) for shape in ((time, batch, features), (4 * hidden, features), (4 * hidden, hidden)))
    return case(id, *operands, *(optional[name] if name in given else None for name in "bhc"), direction=direction)


define(
    name="lstm",
    inputs=("x", "w", "r", "bias?", "h0?", "c0?"),
    outputs=("y", "h", "c"),
    attrs={"direction": _DIRECTION},
    infer=_infer_lstm,
    reference=_lstm,
    expand=_expand_lstm,
    flops=_flops,
    tolerance=PRODUCT,
    domain=(-0.75, 0.75),
    limits=NO_BF16,
    cases=(
        _lstm_case("one", 1, 1, 1, 1),
        _lstm_case("forward", 7, 3, 5, 9),
        _lstm_case("reverse", 5, 2, 17, 8, "reverse"),
        _lstm_case("plain", 3, 1, 4, 33, given=""),
        _lstm_case("bias-only", 3, 5, 4, 16, given="b"),
        _lstm_case("hidden-only", 3, 2, 4, 7, "reverse", given="h"),
        _lstm_case("no-time", 0, 2, 3, 5),
        _lstm_case("no-time-plain", 0, 2, 3, 5, given=""),
        _lstm_case("no-batch", 3, 0, 3, 5),
        _lstm_case("no-features", 3, 2, 0, 5),
        _lstm_case("no-hidden", 3, 2, 3, 0),
        _lstm_case("f64", 3, 2, 3, 5, dtype=_DOUBLE),
        _lstm_case("f16", 3, 2, 3, 5, dtype=_HALF),
    ),
    doc="A long short-term memory layer over x [time, batch, features]: with (i, f, g, o) = x_t @ w^T + h @ r^T + bias cut into four, c = "
    "sigmoid(f) * c + sigmoid(i) * tanh(g) and h = sigmoid(o) * tanh(c) for each t. y [time, batch, hidden] holds every h, h and c "
    "[batch, hidden] the last ones. w is [4*hidden, features], r [4*hidden, hidden], gates in the order i f g o (torch; Keras' i f c o; "
    "ONNX's i o f c is reordered); bias is the sum of a framework's two. h0 and c0 null are zeros. direction reverse goes from the last t "
    "to the first, y[t] staying at t; two directions are two nodes and a concat.",
)


def _gru_case(
    id: str,
    time: int,
    batch: int,
    features: int,
    hidden: int,
    reset: str,
    direction: str = "forward",
    given: str = "brh",
    dtype: DType = DType.F32,
) -> Any:
    """A case with the optional operands in ``given``: b bias, r recurrent bias, h the initial state."""
    vector = TensorType(dtype, (3 * hidden,))
    optional = {"b": vector, "r": vector, "h": TensorType(dtype, (batch, hidden))}
    operands = (TensorType(dtype, shape) for shape in ((time, batch, features), (3 * hidden, features), (3 * hidden, hidden)))
    return case(id, *operands, *(optional[name] if name in given else None for name in "brh"), direction=direction, reset=reset)


define(
    name="gru",
    inputs=("x", "w", "r", "bias?", "recurrent_bias?", "h0?"),
    outputs=("y", "h"),
    attrs={"direction": _DIRECTION, "reset": Attr("str", ("after", "before"))},
    infer=_infer_gru,
    reference=_gru,
    expand=_expand_gru,
    flops=_flops,
    tolerance=PRODUCT,
    domain=(-0.75, 0.75),
    limits=NO_BF16,
    cases=(
        *(_gru_case(f"one-{reset}", 1, 1, 1, 1, reset) for reset in ("after", "before")),
        *(_gru_case(f"forward-{reset}", 7, 3, 5, 9, reset) for reset in ("after", "before")),
        *(_gru_case(f"reverse-{reset}", 5, 2, 17, 8, reset, "reverse", "rh") for reset in ("after", "before")),
        _gru_case("plain", 3, 1, 4, 33, "after", given=""),
        _gru_case("plain-before", 3, 1, 4, 33, "before", given=""),
        _gru_case("no-time", 0, 2, 3, 5, "after"),
        _gru_case("no-batch", 3, 0, 3, 5, "before"),
        _gru_case("no-features", 3, 2, 0, 5, "after"),
        _gru_case("no-hidden", 3, 2, 3, 0, "before"),
        _gru_case("f64", 3, 2, 3, 5, "after", dtype=_DOUBLE),
        _gru_case("f16", 3, 2, 3, 5, "before", dtype=_HALF),
    ),
    doc="A gated recurrent unit over x [time, batch, features]: with a = x_t @ w^T + bias cut into (ar, az, an), r and recurrent_bias cut "
    "likewise, s = sigmoid(ar + h @ rr^T + br), z = sigmoid(az + h @ rz^T + bz), n = tanh(an + s * (h @ rn^T + bn)) with reset after "
    "(torch, flax, Keras by default, ONNX linear_before_reset) or tanh(an + (s * h) @ rn^T + bn) with reset before (ONNX by default), h = "
    "(1 - z) * n + z * h for each t. y [time, batch, hidden] holds every h, h [batch, hidden] the last one. w is [3*hidden, features], r "
    "[3*hidden, hidden], gates in the order r z n (torch; z r h of Keras and ONNX is reordered). h0 null is zeros; direction as in lstm.",
)
