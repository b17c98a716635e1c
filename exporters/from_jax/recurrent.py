"""Recognises and lowers LSTM and GRU layers: a scan whose body is exactly such a cell becomes one op, any other stays a scan.

Cells are found by what they compute and not by how they are written: gates may come from one product or from several, in any order, cut by
slices or splits (:mod:`exporters.from_jax.gates`). The op has them in one order, to which the weights are rearranged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.gates import Part, Sum, gate, sum_of
from exporters.from_jax.matching import View, made_by, rearranged, view
from exporters.from_jax.program import Equation, Program, Value, replaced, scalar_value

__all__ = ["recurrent"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """A cell found in the body of a scan.

    Attributes:
        op: lstm or gru.
        states: positions of h, and of c if there is one, among the carries.
        gates: what goes into the gates, in the op's order; into the last of a gru without what comes from the state.
        inner: of a gru, what comes from the state (reset after), or from the state times the reset gate (before).
        reset: of a gru, before or after.
    """

    op: str
    states: tuple[int, ...]
    gates: tuple[Sum, ...]
    inner: Sum | None = None
    reset: str = ""


def recurrent(equation: Equation, reads: Counter[Value]) -> list[Equation] | None:
    """Matches a scan over one sequence that runs an LSTM or GRU cell and gives nothing but its states."""
    if equation.primitive != "scan" or equation.params["num_consts"] or len(equation.inputs) != equation.params["num_carry"] + 1:
        return None
    (body,), carries = equation.bodies, int(equation.params["num_carry"])
    *states, x = body.inputs
    dtypes = {np.dtype(value.dtype) for value in (*body.inputs, *body.outputs)}
    if len(dtypes) != 1 or dtypes.pop().kind != "f" or len({state.shape for state in states}) != 1 or not x.shape:
        return None
    if len(x.shape) != len(states[0].shape) or x.shape[:-1] != states[0].shape[:-1]:
        return None
    for cell in _cells(body, carries):
        h = body.outputs[cell.states[0]]
        if all(result is h for result in body.outputs[carries:]) and (found := _with_source(cell, x, equation.inputs[-1])):
            return _layer(equation, *found)
    return None


def _cells(body: Program, carries: int) -> Iterator[_Cell]:
    if carries == 1 and (found := _gru(body.inputs[0], body.inputs[1], body.outputs[0])):
        yield found
    for h, c in ((0, 1), (1, 0)) if carries == 2 else ():
        if gates := _lstm(body.inputs[h], body.inputs[c], body.inputs[2], body.outputs[h], body.outputs[c]):
            yield _Cell("lstm", (h, c), gates)


def _lstm(h: Value, c: Value, x: Value, new_h: Value, new_c: Value) -> tuple[Sum, ...] | None:
    """Returns what goes into the gates i, f, g, o of h' = sigmoid(o) * tanh(c'), c' = sigmoid(f) * c + sigmoid(i) * tanh(g)."""
    o = next((found for a, b in _both(new_h, "mul") if made_by(b, "tanh") == (new_c,) and (found := gate(a, "logistic"))), None)
    for kept, added in _both(new_c, "add"):
        f = next((found for a, b in _both(kept, "mul") if b is c and (found := gate(a, "logistic"))), None)
        for entering, candidate in _both(added, "mul"):
            gates = (gate(entering, "logistic"), f, gate(candidate, "tanh"), o)
            known = tuple(part for part in gates if part is not None and part.fits({x, h}, h.shape[-1]))
            if len(known) == 4:
                return known
    return None


def _gru(h: Value, x: Value, new_h: Value) -> _Cell | None:
    """Matches h' = (1 - z) * n + z * h, also with z and 1 - z exchanged: 1 - sigmoid(a) is sigmoid(-a)."""
    for share, candidate, turned in _mixed(h, new_h):
        z, n = gate(share, "logistic"), gate(candidate, "tanh")
        z = z.negated() if z and turned else z
        if n and z and z.fits({x, h}, h.shape[-1]) and (found := _candidate(n, z, h, x)):
            return found
    return None


def _mixed(h: Value, new_h: Value) -> Iterator[tuple[Value, Value, bool]]:
    """Yields (share, candidate, turned) of what mixes h and a candidate; ``turned`` if the share is the candidate's and not h's."""
    for first, second in _both(new_h, "add"):
        for share, candidate in _both(first, "mul"):
            for other, state in _both(second, "mul"):
                if state is h and _is_rest(share, other):
                    yield other, candidate, False
                if state is h and _is_rest(other, share):
                    yield share, candidate, True
        for share, difference in _both(second, "mul"):  # n + z * (h - n)
            operands = made_by(difference, "sub")
            if operands and operands[1] is first and h in (operands[0], first):
                yield (share, first, False) if operands[0] is h else (share, operands[0], True)


def _candidate(n: Sum, z: Sum, h: Value, x: Value) -> _Cell | None:
    """Takes what goes into tanh apart into what comes from x, and what comes from h by way of the reset gate."""
    others = [value for value in (*n.products, *n.plain) if value is not x]
    width = h.shape[-1]
    if len(others) != 1 or others[0].shape != h.shape:
        return None
    (gated,), from_x = others, n.only(x)
    for reset, value in _both(gated, "mul"):
        r = gate(reset, "logistic")
        before = gated in n.products
        inner = (Sum({h: n.products[gated]}) if value is h else None) if before else sum_of(value)
        if not before and n.plain[gated] != (0, width):
            continue
        if r is None or inner is None or set(inner.products) != {h} or not r.fits({x, h}, width) or not inner.fits({h}, width):
            continue
        if from_x.fits({x}, width) and not inner.plain:
            return _Cell("gru", (0,), (r, z, from_x), inner, "before" if before else "after")
    return None


def _both(value: Value, primitive: str) -> Iterator[tuple[Value, Value]]:
    """Yields the operands of a sum or a product in both orders."""
    if operands := made_by(value, primitive):
        yield from ((operands[0], operands[1]), (operands[1], operands[0]))


def _is_rest(value: Value, share: Value) -> bool:
    """True for 1 - share."""
    operands = made_by(value, "sub")
    return operands is not None and scalar_value(operands[0]) == 1 and operands[1] is share


def _with_source(cell: _Cell, x: Value, sequence: Value) -> tuple[_Cell, View] | None:
    """Returns the cell and the sequence that it reads, with products by it in every gate.

    Where all gates take their columns of x as they are, the product is looked for outside of the scan: Keras multiplies the whole sequence
    at once.
    """
    plain = [x in part.plain for part in cell.gates]
    if not any(plain):
        return cell, View(sequence, tuple(range(len(sequence.shape))))
    seen = view(sequence, repeats=False)
    projection = sum_of(seen.source, apart=False) if seen.source.constant is None else None
    if not all(plain) or projection is None or projection.plain or len(projection.products) != 1:
        return None
    (data,), last = projection.products, len(sequence.shape) - 1
    if len(data.shape) != len(sequence.shape) or seen.axes[last] != last:
        return None
    gates = []
    for part in cell.gates:
        taken = projection.columns(*part.plain[x])
        bias = taken.bias.plus(part.bias) if taken.bias else part.bias
        gates.append(Sum(part.products | {x: taken.products[data]}, bias))
    return dataclasses.replace(cell, gates=tuple(gates)), View(data, (*seen.axes[:last], last if data.shape[last] != 1 else None))


def _layer(equation: Equation, cell: _Cell, source: View) -> list[Equation]:
    """Returns the equations of the op and of what brings its operands and results into shape: any axes of rows become one."""
    (body,), carries = equation.bodies, len(cell.states)
    h, x = body.inputs[cell.states[0]], body.inputs[-1]
    time, rows, hidden = int(equation.params["length"]), math.prod(h.shape[:-1]), h.shape[-1]
    features = source.source.shape[-1]
    made, sequence, backwards = _turned(equation, source, (time, *h.shape[:-1], features))

    def shaped(value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        result = Value(shape, value.dtype)
        made.extend(replaced(Equation("", (), (result,), {}, equation.where), "reshape", value))
        return result

    states = [equation.inputs[at] for at in cell.states]
    given = [None if _is_zero(state) else shaped(state, (rows, hidden)) for state in states]
    operands = (shaped(sequence, (time, rows, features)), *(state for state in given if state is not None))
    results = (Value((time, rows, hidden), h.dtype), *(Value((rows, hidden), h.dtype) for _ in states))
    forward = bool(equation.params["reverse"]) == backwards
    params = _weights(cell, h, x, features) | {"given": [state is not None for state in given]}
    params |= {"direction": "forward" if forward else "reverse"} | ({"reset": cell.reset} if cell.reset else {})
    made += replaced(Equation("", (), results, {}, equation.where), f"rml.{cell.op}", *operands, **params)
    last = dict(zip(cell.states, results[1:], strict=True))
    for position, output in enumerate(equation.outputs):
        defined = Equation("", (), (output,), {}, equation.where)
        value = last[position] if position < carries else shaped(results[0], output.shape)
        turns = backwards and position >= carries
        made += replaced(defined, "rev", value, dimensions=(0,)) if turns else replaced(defined, "reshape", value)
    return made


def _is_zero(state: Value) -> bool:
    return scalar_value(state) == 0 or (state.constant is not None and not state.array().any())


def _turned(equation: Equation, source: View, shape: tuple[int, ...]) -> tuple[list[Equation], Value, bool]:
    """Returns the sequence as the op reads it, the equations that make it, and whether the scan was given it backwards."""
    inner = view(source.source, repeats=False)
    axes = tuple(None if axis is None else inner.axes[axis] for axis in source.axes)
    seen, turn = source, inner.source.producer
    if backwards := turn is not None and bool(made_by(inner.source, "rev")) and tuple(turn.params["dimensions"]) == axes[:1]:
        assert turn is not None
        seen = View(turn.inputs[0], axes)
    if seen.source.shape == shape and all(axis in (None, at) for at, axis in enumerate(seen.axes)):
        return [], seen.source, backwards
    result = Value(shape, source.source.dtype)
    return rearranged(Equation("", (), (result,), {}, equation.where), seen), result, backwards


def _weights(cell: _Cell, h: Value, x: Value, features: int) -> dict[str, object]:
    """Returns the matrices and vectors of the op, one of each for every gate; None for vectors that are zero for every gate."""
    hidden = h.shape[-1]
    matrices = {"w": [part.products.get(x) for part in cell.gates], "r": [part.products.get(h) for part in cell.gates]}
    vectors = {"bias": [part.bias for part in cell.gates]}
    if cell.inner is not None:
        matrices["r"][2] = cell.inner.products[h]
        vectors["recurrent_bias"] = [None, None, cell.inner.bias]
    empty = {"w": np.zeros((features, hidden), h.dtype), "r": np.zeros((hidden, hidden), h.dtype)}
    found: dict[str, object] = {role: [part or Part(empty[role], ()) for part in parts] for role, parts in matrices.items()}
    for role, parts in vectors.items():
        found[role] = [part or Part(np.zeros(hidden, h.dtype), ()) for part in parts] if any(parts) else None
    return found


@TABLE.lowers("rml.lstm", "rml.gru")
def _recurrent(ctx: Context, eqn: Equation) -> list[str]:
    params, (x, *states) = dict(eqn.params), eqn.inputs
    weights = [_stacked(ctx, role, params.pop(role)) for role in ("w", "r", "bias", "recurrent_bias") if role in params]
    remaining = iter(states)
    given = [next(remaining) if known else None for known in params.pop("given")]
    return list(ctx.add(eqn.primitive.removeprefix("rml."), x, *weights, *given, **params))


def _stacked(ctx: Context, role: str, parts: Sequence[Part] | None) -> str | None:
    """Returns one constant of the parts of all gates, [outputs, inputs] if they are matrices."""
    if parts is None:
        return None
    array = np.concatenate([part.array.T for part in parts])
    sources = list(dict.fromkeys(source for part in parts for source in part.sources))
    names = list(dict.fromkeys(source.name for source in sources if source.name))
    shared = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*(name.split(".") for name in names), strict=False))
    name = names[0] if len(names) == 1 else ".".join([*(steps[0] for steps in shared), role])
    return ctx.constant(array, name, of=sources[0] if sources else None, form=f"{role} {hashlib.sha256(array.tobytes()).hexdigest()}")
