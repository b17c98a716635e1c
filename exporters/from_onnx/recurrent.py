"""Lowerings of RNN, LSTM and GRU.

The plain LSTM and GRU are ops; what these do not do (other activations, clipping, peepholes, sequences of different lengths) is written out as
a ``scan`` over the time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.neural import broadcast
from rml_exec.ops.decompose import Primitives
from rml_exec.types import DType

Activation = Callable[[Primitives, str], str]

_PARAMETERS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "relu": (),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (),
    "softplus": (),
    "softsign": (),
    "tanh": (),
    "thresholdedrelu": (1.0,),
}
"""Activation -> defaults of its alpha and beta."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction of a recurrent operator.

    Attributes:
        x: [time, batch, features].
        w: [gates * hidden, features], gates in ONNX's order.
        r: [gates * hidden, hidden].
        biases: [gates * hidden] of each of the two products, or None.
        states: [batch, hidden] of h (and c), None for zeros.
        peepholes: [3 * hidden] or None.
        lengths: [batch], steps of each sequence; None: all.
        reverse: true if it goes from the last step to the first.
        activations: of the gates, the cell and the output.
    """

    x: str
    w: str
    r: str
    biases: tuple[str, str] | None
    states: tuple[str | None, ...]
    peepholes: str | None
    lengths: str | None
    reverse: bool
    activations: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def direction(self) -> str:
        return "reverse" if self.reverse else "forward"


@ONNX.lowers("RNN", "GRU", "LSTM")
def _recurrent(ctx: Context, node: onnx.NodeProto) -> tuple[str | None, ...]:
    x, batch_first = ctx.need(0), bool(ctx.attr("layout", 0))
    if batch_first:
        x = ctx.step("transpose", [x], perm=(1, 0, 2))
    time, batch, _ = ctx.type(x).shape
    direction = ctx.attr("direction", "forward")
    turns = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if turns is None:
        raise RefusedError(f"direction {direction} is not supported")
    activations = _activations(ctx, len(turns))
    results = []
    for index, reverse in enumerate(turns):
        layer = _Layer(
            x,
            _of_direction(ctx, ctx.need(1), index),
            _of_direction(ctx, ctx.need(2), index),
            _biases(ctx, index),
            tuple(_state(ctx, ctx.input(place), index, batch_first) for place in ((5, 6) if node.op_type == "LSTM" else (5,))),
            None if ctx.input(7) is None else _of_direction(ctx, ctx.need(7), index),
            _lengths(ctx, time),
            reverse,
            activations[index],
        )
        results.append(_run(ctx, node.op_type, layer))
    sequences, *states = zip(*results, strict=True)
    hidden = ctx.type(sequences[0]).shape[2]
    rows = [ctx.reshape(sequence, [time, 1, batch, hidden]) for sequence in sequences]
    y = rows[0] if len(rows) == 1 else ctx.step("concat", rows, axis=1)
    y = ctx.step("transpose", [y], perm=(2, 0, 1, 3)) if batch_first else y
    return y, *(_stacked(ctx, parts, batch_first) for parts in states)


def _of_direction(ctx: Context, value: str, index: int) -> str:
    """Returns what a parameter, stacked over the directions, holds for one of them."""
    shape = ctx.type(value).shape
    return ctx.reshape(_part(ctx, value, index, index + 1), shape[1:])


def _part(ctx: Context, value: str, start: int, limit: int) -> str:
    shape = ctx.type(value).shape
    if (start, limit) == (0, shape[0]):
        return value
    rest = [0] * (len(shape) - 1)
    return str(ctx.step("slice", [value], start=(start, *rest), limit=(limit, *shape[1:]), strides=(1,) * len(shape)))


def _biases(ctx: Context, index: int) -> tuple[str, str] | None:
    if ctx.input(3) is None:
        return None
    both = _of_direction(ctx, ctx.need(3), index)
    half = ctx.type(both).size // 2
    return _part(ctx, both, 0, half), _part(ctx, both, half, 2 * half)


def _state(ctx: Context, states: str | None, index: int, batch_first: bool) -> str | None:
    """Returns one direction's initial state [batch, hidden]; None if it is known to be zeros."""
    known = ctx.known(states)
    if states is None or (known is not None and not known.any()):
        return None
    return _of_direction(ctx, ctx.step("transpose", [states], perm=(1, 0, 2)) if batch_first else states, index)


def _stacked(ctx: Context, parts: Sequence[str], batch_first: bool) -> str:
    """Returns the last states of the directions as [directions, batch, hidden], or with the batch first."""
    axis = 1 if batch_first else 0
    shape = list(ctx.type(parts[0]).shape)
    shape.insert(axis, 1)
    rows = [ctx.reshape(part, shape) for part in parts]
    return rows[0] if len(rows) == 1 else str(ctx.step("concat", rows, axis=axis))


def _lengths(ctx: Context, time: int) -> str | None:
    lengths = ctx.input(4)
    known = ctx.known(lengths)
    return None if known is not None and bool((known == time).all()) else lengths


def _activations(ctx: Context, directions: int) -> list[tuple[tuple[str, tuple[float, ...]], ...]]:
    """Returns the activations of each direction, each with its alpha and beta: those that have some take them from the lists in turn."""
    defaults = _DEFAULTS[ctx.node.op_type]
    names = [name.lower() for name in ctx.attr("activations") or defaults * directions]
    if len(names) != len(defaults) * directions or not _PARAMETERS.keys() >= set(names):
        raise RefusedError(f"activations {', '.join(names)} are not supported")
    lists = [list(ctx.attr(name) or []) for name in ("activation_alpha", "activation_beta")]
    found = []
    for name in names:
        numbers = [values.pop(0) if values else default for values, default in zip(lists, _PARAMETERS[name], strict=False)]
        found.append((name, tuple(numbers)))
    return [tuple(found[first : first + len(defaults)]) for first in range(0, len(found), len(defaults))]


def _run(ctx: Context, kind: str, layer: _Layer) -> tuple[str, ...]:
    """Returns the output sequence [time, batch, hidden] and the last states [batch, hidden]."""
    usual = tuple(name for name, _ in layer.activations) == _DEFAULTS[kind]
    plain = usual and layer.lengths is None and layer.peepholes is None and not ctx.attr("clip") and not ctx.attr("input_forget", 0)
    if not plain or kind == "RNN":
        return _scan(ctx, kind, layer)
    if kind == "LSTM":
        w, r = (_in_order(ctx, value, (0, 2, 3, 1)) for value in (layer.w, layer.r))
        bias = None if layer.biases is None else _in_order(ctx, ctx.step("add", layer.biases), (0, 2, 3, 1))
        return tuple(ctx.step("lstm", [layer.x, w, r, bias, *layer.states], direction=layer.direction))
    w, r = (_in_order(ctx, value, (1, 0, 2)) for value in (layer.w, layer.r))
    biases = [None, None] if layer.biases is None else [_in_order(ctx, bias, (1, 0, 2)) for bias in layer.biases]
    reset = "after" if ctx.attr("linear_before_reset", 0) else "before"
    return tuple(ctx.step("gru", [layer.x, w, r, *biases, *layer.states], direction=layer.direction, reset=reset))


def _in_order(ctx: Context, value: str, order: Sequence[int]) -> str:
    """Returns a parameter with its gates, parts of the first axis, in another order."""
    size = ctx.type(value).shape[0] // len(order)
    return str(ctx.step("concat", [_part(ctx, value, gate * size, (gate + 1) * size) for gate in order], axis=0))


class _Step:
    """One time step, written into the body of a scan.

    Attributes:
        p: writes the nodes.
        hidden: width of the state.
    """

    def __init__(self, ctx: Context, p: Primitives, layer: _Layer, hidden: int) -> None:
        self.p = p
        self.hidden = hidden
        self._activations = layer.activations
        self._clip = ctx.attr("clip", 0.0)
        self._coupled = bool(ctx.attr("input_forget", 0))
        self._reset_after = bool(ctx.attr("linear_before_reset", 0))

    def activate(self, index: int, x: str, *, clipped: bool = True) -> str:
        """Returns an activation of x, which is clipped before."""
        p, (name, numbers) = self.p, self._activations[index]
        x = p("clamp", x, lo=-self._clip, hi=self._clip) if self._clip and clipped else x
        return _ACTIVATE[name](p, x, *numbers)

    def gate(self, gates: str, index: int) -> str:
        return self.p.part(gates, self.p.type(gates).rank - 1, index * self.hidden, (index + 1) * self.hidden)

    def recurrent(self, h: str, r: str) -> str:
        return str(self.p("matmul", h, r, transpose_a=False, transpose_b=True))

    def rnn(self, x: str, states: Sequence[str], r: str, bias: str | None, peepholes: str | None) -> tuple[str, ...]:
        return (self.activate(0, self.p("add", x, self.recurrent(states[0], r))),)

    def lstm(self, x: str, states: Sequence[str], r: str, bias: str | None, peepholes: str | None) -> tuple[str, ...]:
        p, (h, c) = self.p, states
        gates = p("add", x, self.recurrent(h, r))
        i, o, f, g = (self.gate(gates, index) for index in range(4))
        to_i, to_o, to_f = (None if peepholes is None else self.gate(peepholes, index) for index in range(3))
        i = self.activate(0, self._peeped(i, to_i, c))
        f = p("sub", 1.0, i) if self._coupled else self.activate(0, self._peeped(f, to_f, c))
        c = p("add", p("mul", f, c), p("mul", i, self.activate(1, g)))
        # ONNX Runtime clips what comes from the products, not the cell.
        return p("mul", self.activate(0, self._peeped(o, to_o, c)), self.activate(2, c, clipped=False)), c

    def _peeped(self, gate: str, weights: str | None, c: str) -> str:
        return gate if weights is None else str(self.p("add", gate, self.p("mul", weights, c)))

    def gru(self, x: str, states: Sequence[str], r: str, bias: str | None, peepholes: str | None) -> tuple[str, ...]:
        p, (h,) = self.p, states
        to_gates, to_new = p.part(r, 0, 0, 2 * self.hidden), p.part(r, 0, 2 * self.hidden, 3 * self.hidden)
        gates = p("add", p.part(x, 1, 0, 2 * self.hidden), self.recurrent(h, to_gates))
        own = None if bias is None else self.gate(bias, 2)
        if bias is not None:
            gates = p("add", gates, p.part(bias, 0, 0, 2 * self.hidden))
        z, reset = self.activate(0, self.gate(gates, 0)), self.activate(0, self.gate(gates, 1))
        new = self.recurrent(h if self._reset_after else p("mul", reset, h), to_new)
        new = new if own is None else p("add", new, own)
        new = p("mul", reset, new) if self._reset_after else new
        new = self.activate(1, p("add", self.gate(x, 2), new))
        return (p("add", p("mul", p("sub", 1.0, z), new), p("mul", z, h)),)


_ACTIVATE: dict[str, Callable[..., str]] = {
    "affine": lambda p, x, alpha, beta: p("add", p("mul", x, alpha), beta),
    "elu": lambda p, x, alpha: p("select", p("compare", x, 0.0, dir="ge"), x, p("mul", p("expm1", x), alpha)),
    "hardsigmoid": lambda p, x, alpha, beta: p("clamp", p("add", p("mul", x, alpha), beta), lo=0.0, hi=1.0),
    "leakyrelu": lambda p, x, alpha: p("leaky_relu", x, alpha=alpha),
    "relu": lambda p, x: p("relu", x),
    "scaledtanh": lambda p, x, alpha, beta: p("mul", p("tanh", p("mul", x, beta)), alpha),
    "sigmoid": lambda p, x: p("sigmoid", x),
    "softplus": lambda p, x: p("softplus", x, beta=1.0, threshold=None),
    "softsign": lambda p, x: p("div", x, p("add", p("abs", x), 1.0), rounding="true"),
    "tanh": lambda p, x: p("tanh", x),
    "thresholdedrelu": lambda p, x, alpha: p("select", p("compare", x, alpha, dir="gt"), x, 0.0),
}


def _scan(ctx: Context, kind: str, layer: _Layer) -> tuple[str, ...]:
    """The products with x are taken for all steps at once; a step behind the end of its sequence keeps the state and gives 0."""
    type_ = ctx.type(layer.x)
    time, batch, _ = type_.shape
    hidden, dtype = ctx.type(layer.r).shape[1], type_.dtype
    bias = layer.biases[0] if layer.biases is not None else None
    recurrent_bias = layer.biases[1] if layer.biases is not None else None
    if kind != "GRU" and layer.biases is not None:  # both are added to the same sum
        bias, recurrent_bias = ctx.step("add", layer.biases), None
    from_x = ctx.step("linear", [layer.x, layer.w, bias], weight_layout="oi")
    consts = {"r": layer.r, "bias": recurrent_bias, "peepholes": layer.peepholes}
    zeros = broadcast(ctx, ctx.scalar(0, dtype), [batch, hidden])
    carry = [zeros if state is None else state for state in layer.states]
    elements = [from_x]
    if layer.lengths is not None:
        step = ctx.step("iota", [], dtype=DType.I32.value, shape=(time, 1, 1), axis=0)
        lengths = ctx.reshape(ctx.cast(layer.lengths, DType.I32), [1, batch, 1])
        elements.append(ctx.step("compare", [step, lengths], dir="lt"))

    builder = ctx.walker.body.builder.function(f"{ctx.name}.step")
    p = Primitives(builder)
    given = {name: builder.input(name, ctx.type(value).dtype, ctx.type(value).shape) for name, value in consts.items() if value is not None}
    states = [builder.input("state", dtype, (batch, hidden)) for _ in carry]
    x, *valid = [builder.input("x", ctx.type(value).dtype, ctx.type(value).shape[1:]) for value in elements]
    cell = _Step(ctx, p, layer, hidden)
    new = {"RNN": cell.rnn, "GRU": cell.gru, "LSTM": cell.lstm}[kind](x, states, given["r"], given.get("bias"), given.get("peepholes"))
    y = new[0]
    if valid:
        y = p("select", valid[0], y, 0.0)
        new = tuple(p("select", valid[0], after, before) for after, before in zip(new, states, strict=True))
    for index, value in enumerate((*new, y)):
        builder.output(f"y{index}", value)
    attrs = {"length": time, "reverse": layer.reverse, "num_consts": len(given), "num_carry": len(carry)}
    operands = [*(value for value in consts.values() if value is not None), *carry, *elements]
    *last, sequence = ctx.step("scan", operands, body=builder.build(), **attrs)
    return sequence, *last
