"""Primitives that JAX can write in terms of others: reductions by any function, loops under ``vmap``, scatters that apply a function.

An expansion is a JAX function that computes what an equation does; its jaxpr stands in the equation's place. JAX is imported by the
functions that use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from exporters.from_jax.program import Value

__all__ = ["EXPANSIONS", "expansion"]

_MOST_WINDOW_STEPS = 512
"""Windows are unrolled, one axis after the other, up to this many elements on all axes together."""

_OPERATORS = {"add": "add", "mul": "mul", "max": "max", "min": "min", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def expansion(eqn: Any, inputs: Sequence[Value]) -> Any:
    """Returns a closed jaxpr that computes what an equation does by other primitives; None for an equation that stays as it is."""
    import jax

    build = EXPANSIONS.get(eqn.primitive.name)
    function = build(eqn, inputs) if build else None
    if function is None:
        return None
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars))


Function = Callable[..., Any]


def _while(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    """Under ``vmap`` every row of a loop has a condition of its own: the loop goes on for any, and rows that have ended stay."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    tests, consts = int(eqn.params["cond_nconsts"]), int(eqn.params["body_nconsts"])
    test, body = (jaxpr_as_fun(eqn.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    if eqn.params["cond_jaxpr"].out_avals[0].shape == ():
        return None

    def loop(*operands: Any) -> Any:
        bound, captured = operands[:tests], operands[tests : tests + consts]

        def step(carry: Sequence[Any]) -> list[Any]:
            (running,) = test(*bound, *carry)
            rows = [running.reshape(running.shape + (1,) * (old.ndim - running.ndim)) for old in carry]
            return [jax.numpy.where(row, new, old) for row, new, old in zip(rows, body(*captured, *carry), carry, strict=True)]

        return jax.lax.while_loop(lambda carry: test(*bound, *carry)[0].any(), step, list(operands[tests + consts :]))

    return loop


def _monoid(eqn: Any) -> str:
    """Returns the primitive that a reduction's function is, empty if it is more than one."""
    jaxpr = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
    if len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2 or list(jaxpr.eqns[0].outvars) != list(jaxpr.outvars):
        return ""
    operands, name = list(jaxpr.eqns[0].invars), str(jaxpr.eqns[0].primitive.name)
    return name if name in _OPERATORS and list(jaxpr.invars) in (operands, operands[::-1]) else ""


def _neutral(primitive: str, dtype: Any) -> Any:
    """Returns the number that a reduction by the primitive begins with."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.bool_(primitive in ("and", "min", "mul"))
    lowest, highest = (-math.inf, math.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    every = highest if dtype.kind == "u" else -1
    return dtype.type({"mul": 1, "max": lowest, "min": highest, "and": every}.get(primitive, 0))


def _starts_neutral(primitive: str, start: Value) -> bool:
    return bool(primitive) and start.constant is not None and start.array().item() == _neutral(primitive, start.dtype)


def _combining(eqn: Any, primitive: str, rank: int) -> Function:
    """Returns the reduction's function for arrays: of (a, b) for one operand, of (*a, *b) for several."""
    import jax
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    if primitive:
        operator = getattr(jax.lax, _OPERATORS[primitive])
        return lambda a, b: [operator(a, b)]
    jaxpr = eqn.params["jaxpr"]
    function = jaxpr_as_fun(jaxpr if hasattr(jaxpr, "jaxpr") else ClosedJaxpr(jaxpr, eqn.params.get("consts", ())))
    for _ in range(rank):
        function = jax.vmap(function)
    return function


def _reduce(eqn: Any, inputs: Sequence[Value]) -> Function:
    """A known function from its neutral number is a primitive of its own, which starts at another number afterwards; others are a scan."""
    import jax

    primitive, axes = _monoid(eqn), tuple(map(int, eqn.params["dimensions"]))
    if primitive:
        operator, neutral = getattr(jax.lax, _OPERATORS[primitive]), _neutral(primitive, inputs[0].dtype)
        if _starts_neutral(primitive, inputs[1]):
            return lambda x, start: jax.lax.reduce(x, neutral, operator, axes)
        return lambda x, start: operator(jax.lax.reduce(x, neutral, operator, axes), start)
    rank = len(inputs[0].shape) - len(axes)
    return lambda *operands: _scanned(_combining(eqn, "", rank), axes, operands[: len(operands) // 2], operands[len(operands) // 2 :])


def _reduce_bits(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    if np.dtype(inputs[0].dtype).kind == "b" and eqn.primitive.name != "reduce_xor":
        return None
    primitive, axes = eqn.primitive.name.removeprefix("reduce_"), tuple(map(int, eqn.params["axes"]))
    combine = _combining(eqn, primitive, 0)
    return lambda x: _scanned(combine, axes, [x], [_neutral(primitive, x.dtype)])[0]


def _scanned(combine: Function, axes: Sequence[int], xs: Sequence[Any], starts: Sequence[Any]) -> list[Any]:
    """Reduces arrays along some axes, element after element."""
    import jax

    rows = [jax.numpy.moveaxis(x, axes, range(len(axes))) for x in xs]
    rows = [row.reshape(-1, *row.shape[len(axes) :]) for row in rows]
    carry = [jax.numpy.broadcast_to(start, row.shape[1:]) for start, row in zip(starts, rows, strict=True)]
    return list(jax.lax.scan(lambda carry, row: (combine(*carry, *row), None), carry, rows)[0])


def _reduce_window(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    """A known function from its neutral number is a primitive of its own where it is a sum or an extremum; others are unrolled."""
    import jax

    primitive, neutral = _monoid(eqn), False
    if (
        primitive
        and (neutral := _starts_neutral(primitive, inputs[1]))
        and primitive in ("add", "max", "min")
        and inputs[0].dtype != np.bool_
    ):
        operator, start = getattr(jax.lax, _OPERATORS[primitive]), _neutral(primitive, inputs[0].dtype)
        options = {name: eqn.params[name] for name in _WINDOW}
        return lambda x, _: jax.lax.reduce_window(x, start, operator, **options)
    combine = _combining(eqn, primitive, len(inputs[0].shape))
    half = len(inputs) // 2
    return _unrolled(eqn.params, combine, lambda operands: (operands[:half], operands[half:]), neutral)


_WINDOW = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def _known_window(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    """Sums and extrema over windows that no pool has: of more than three axes, over a dilated operand; sums of dilated windows; sums and
    minima of integers.
    """
    kind, floats = eqn.primitive.name.removeprefix("reduce_window_"), np.dtype(inputs[0].dtype).kind == "f"
    dilated = kind == "sum" and set(eqn.params["window_dilation"]) != {1}
    many = sum(size != 1 for size in eqn.params["window_dimensions"]) > 3
    if set(eqn.params["base_dilation"]) == {1} and not dilated and not many and (floats or kind == "max"):
        return None
    primitive = {"sum": "add"}.get(kind, kind)
    start = _neutral(primitive, inputs[0].dtype)
    return _unrolled(eqn.params, _combining(eqn, primitive, 0), lambda operands: (operands, [start]), True)


def _unrolled(params: Mapping[str, Any], combine: Function, parted: Function, neutral: bool) -> Function | None:
    """Slides a window axis by axis, the last one first, so that elements are combined in their order."""
    from jax import lax

    sizes, strides, padding, spread, dilation = (params[name] for name in _WINDOW)
    if sum(sizes) - len(sizes) > _MOST_WINDOW_STEPS:
        return None

    def slide(*operands: Any) -> Any:
        xs, starts = parted(operands)
        config = [(int(low), int(high), int(step) - 1) for (low, high), step in zip(padding, spread, strict=True)]
        xs = [lax.pad(x, start, config) for x, start in zip(xs, starts, strict=True)]
        for axis in reversed(range(len(sizes))):
            reach = (sizes[axis] - 1) * dilation[axis]
            count = max(0, (xs[0].shape[axis] - reach - 1) // strides[axis] + 1)
            begins = [step * dilation[axis] for step in range(sizes[axis])]
            last = max(0, (count - 1) * strides[axis] + 1)
            parts = [[lax.slice_in_dim(x, begin, begin + last, strides[axis], axis) for x in xs] for begin in begins]
            xs = parts[0]
            for part in parts[1:]:
                xs = combine(*xs, *part)
        return xs if neutral else combine(*(lax.full_like(x, start) for x, start in zip(xs, starts, strict=True)), *xs)

    return slide


def _scatter(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    """A function applied to what stands at known positions, none of them twice: read, apply, write."""
    import jax
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    jaxpr, numbers = eqn.params["update_jaxpr"], eqn.params["dimension_numbers"]
    x, indices, updates = inputs
    if jaxpr is None or not getattr(jaxpr, "jaxpr", jaxpr).eqns or eqn.params["mode"].name == "CLIP" or indices.constant is None:
        return None
    rows = indices.array().reshape(-1, indices.shape[-1])
    if len(np.unique(rows, axis=0)) != len(rows) or numbers.operand_batching_dims:
        return None
    window = [axis for axis in range(len(x.shape)) if axis not in numbers.inserted_window_dims]
    sizes = [1] * len(x.shape)
    for axis, position in zip(window, numbers.update_window_dims, strict=True):
        sizes[axis] = updates.shape[position]
    if len(rows) > 1 and any(sizes[axis] != 1 for axis in numbers.scatter_dims_to_operand_dims):
        return None  # windows may overlap
    reading = jax.lax.GatherDimensionNumbers(numbers.update_window_dims, numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims)
    function = jaxpr_as_fun(jaxpr if hasattr(jaxpr, "jaxpr") else ClosedJaxpr(jaxpr, eqn.params["update_consts"]))
    for _ in updates.shape:
        function = jax.vmap(function)

    def apply(x: Any, indices: Any, updates: Any) -> Any:
        old = jax.lax.gather(x, indices, reading, sizes, mode="fill", fill_value=0)
        return jax.lax.scatter(x, indices, function(old, updates)[0], numbers, mode=eqn.params["mode"])

    return apply


def _ragged_dot(eqn: Any, inputs: Sequence[Value]) -> Function | None:
    """Rows [m, k] in groups, each with a matrix of its own [groups, k, n]: all rows by every matrix, the other groups' set to 0."""
    import jax

    params, numbers = eqn.params, eqn.params["ragged_dot_dimension_numbers"]
    plain = tuple(map(tuple, numbers.dot_dimension_numbers[0])) == ((1,), (1,)) and not any(map(tuple, numbers.dot_dimension_numbers[1]))
    if not plain or tuple(numbers.lhs_ragged_dimensions) != (0,) or tuple(numbers.rhs_group_dimensions) != (0,) or len(inputs) != 3:
        return None

    def multiply(rows: Any, matrices: Any, sizes: Any) -> Any:
        ends = jax.numpy.cumsum(sizes)
        group = (jax.numpy.arange(rows.shape[0])[:, None] >= ends).sum(1)
        parts = [
            jax.lax.dot(
                jax.numpy.where((group == number)[:, None], rows, 0), matrix, preferred_element_type=params["preferred_element_type"]
            )
            for number, matrix in enumerate(matrices)
        ]
        return sum(parts[1:], parts[0])

    return multiply


EXPANSIONS: Mapping[str, Callable[[Any, Sequence[Value]], Function | None]] = {
    "while": _while,
    "reduce": _reduce,
    **dict.fromkeys(("reduce_and", "reduce_or", "reduce_xor"), _reduce_bits),
    "reduce_window": _reduce_window,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _known_window),
    "scatter": _scatter,
    "ragged_dot_general": _ragged_dot,
}
"""Primitive -> ``build(eqn, inputs)``, which returns the function that computes the same, None where the equation stays as it is."""
