"""Lowerings of ``nn.LSTM`` and ``nn.GRU``, kept whole by the decomposition table: one node per layer and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exporters.from_torch.context import ATEN, Context, RefusedError

Layer = Callable[[str, list[str], int, str], tuple[str, ...]]
"""``layer(x, parameters, index of the layer's state, direction)`` -> output sequence and last states."""


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
    if known is not None and not known.any():
        return None
    _, batch, hidden = ctx.type(states).shape
    cut = ctx.step("slice", [states], start=(index, 0, 0), limit=(index + 1, batch, hidden), strides=(1, 1, 1))
    return ctx.reshape(cut, [batch, hidden])


def _stack(ctx: Context, states: Sequence[str]) -> str:
    parts = [ctx.reshape(state, [1, *ctx.type(state).shape]) for state in states]
    return parts[0] if len(parts) == 1 else str(ctx.step("concat", parts, axis=0))
