"""``nn.LSTM`` and ``nn.GRU``: one node per layer and direction.

torch computes what shapes they give by unrolling them, which fixes the length of the sequence. So while a model is traced they are
operators of our own (``rml.lstm``), which know their shapes, and become torch's afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph

from exporters.from_torch.context import ATEN, Context, RefusedError
from exporters.from_torch.matching import packet_of

__all__ = ["as_torch_has_them", "traced_whole"]

Layer = Callable[[str, list[str], int, str], tuple[str, ...]]
"""``layer(x, parameters, index of the layer's state, direction)`` -> output sequence and last states."""


_LIBRARY = torch.library.Library("rml", "FRAGMENT")
_ARGUMENTS = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_LIBRARY.define(f"lstm(Tensor input, Tensor[] hx, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(f"gru(Tensor input, Tensor hx, {_ARGUMENTS}) -> (Tensor, Tensor)")
_LIBRARY.impl("lstm", torch.ops.aten.lstm.input, "CompositeExplicitAutograd")
_LIBRARY.impl("gru", torch.ops.aten.gru.input, "CompositeExplicitAutograd")


def _results(x: Any, states: Sequence[Any], *arguments: Any) -> tuple[Any, ...]:
    """Returns the output sequence and the states as their shapes."""
    directions = 2 if arguments[-2] else 1
    return x.new_empty(*x.shape[:2], states[0].shape[-1] * directions), *(state.new_empty(state.shape) for state in states)


torch.library.register_fake("rml::lstm", _results, lib=_LIBRARY)
torch.library.register_fake("rml::gru", lambda x, state, *arguments: _results(x, [state], *arguments), lib=_LIBRARY)


@contextlib.contextmanager
def traced_whole() -> Iterator[None]:
    """Lets ``nn.LSTM`` and ``nn.GRU`` call our operators. Packed sequences stay torch's: they have one argument more, at another place."""
    functions = torch._VF
    original = {name: getattr(functions, name) for name in ("lstm", "gru")}

    def calling(name: str) -> Callable[..., Any]:
        ours = getattr(torch.ops.rml, name)
        return lambda *arguments: (ours if isinstance(arguments[3], bool) else original[name])(*arguments)

    try:
        for name in original:
            setattr(functions, name, calling(name))
        yield
    finally:
        for name in original:
            delattr(functions, name)


def as_torch_has_them(graph: Graph) -> None:
    """Makes the operators of our own in a decomposed graph those of torch, whose arguments are the same."""
    for node in graph.nodes:
        if packet_of(node) in ("rml.lstm", "rml.gru"):
            node.target = getattr(torch.ops.aten, packet_of(node).removeprefix("rml.")).input


@ATEN.lowers("aten.lstm.input")
def _lstm(
    ctx: Context,
    x: str,
    states: Sequence[str],
    parameters: Sequence[str],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    h0, c0 = states
    if ctx.type(h0).shape[-1] != ctx.type(c0).shape[-1]:
        raise RefusedError("LSTMs with a projection are not supported")

    def layer(x: str, weights: list[str], index: int, direction: str) -> tuple[str, ...]:
        bias = ctx.step("add", weights[2:]) if has_biases else None
        start = [_state(ctx, state, index) for state in (h0, c0)]
        result: tuple[str, ...] = ctx.step("lstm", [x, weights[0], weights[1], bias, *start], direction=direction)
        return result

    return _stacked(ctx, x, parameters, layer, (4 if has_biases else 2), layers, bidirectional, batch_first)


@ATEN.lowers("aten.gru.input")
def _gru(
    ctx: Context,
    x: str,
    h0: str,
    parameters: Sequence[str],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    def layer(x: str, weights: list[str], index: int, direction: str) -> tuple[str, ...]:
        operands = [x, *weights[:2], *(weights[2:] if has_biases else [None, None]), _state(ctx, h0, index)]
        result: tuple[str, ...] = ctx.step("gru", operands, direction=direction, reset="after")
        return result

    return _stacked(ctx, x, parameters, layer, (4 if has_biases else 2), layers, bidirectional, batch_first)


def _stacked(
    ctx: Context, x: str, parameters: Sequence[str], layer: Layer, each: int, layers: int, bidirectional: bool, batch_first: bool
) -> tuple[str, ...]:
    """Returns the output of the last layer, and of each kind of state the last ones of all layers and directions."""
    directions = ("forward", "reverse") if bidirectional else ("forward",)
    x = ctx.step("transpose", [x], perm=(1, 0, 2)) if batch_first else x
    last: list[tuple[str, ...]] = []
    for _ in range(layers):
        outputs = []
        for direction in directions:
            index = len(last)
            output, *states = layer(x, list(parameters[index * each : (index + 1) * each]), index, direction)
            outputs.append(output)
            last.append(tuple(states))
        x = outputs[0] if len(outputs) == 1 else ctx.step("concat", outputs, axis=2)
    x = ctx.step("transpose", [x], perm=(1, 0, 2)) if batch_first else x
    return x, *(_stack(ctx, states) for states in zip(*last, strict=True))


def _state(ctx: Context, states: str, index: int) -> str | None:
    """Returns one layer's initial state [batch, hidden]; None if it is known to be zeros."""
    known = ctx.known(states)
    if (known is not None and not known.any()) or states in ctx.zeros:
        return None
    _, batch, hidden = ctx.type(states).shape
    cut = ctx.step("slice", [states], start=(index, 0, 0), limit=(index + 1, batch, hidden), strides=(1, 1, 1))
    return ctx.reshape(cut, [batch, hidden])


def _stack(ctx: Context, states: Sequence[str]) -> str:
    parts = [ctx.reshape(state, [1, *ctx.type(state).shape]) for state in states]
    return parts[0] if len(parts) == 1 else str(ctx.step("concat", parts, axis=0))
