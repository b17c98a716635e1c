"""From a jaxpr to one flat list of equations: calls inlined, identities and dead code dropped, what constants alone determine computed.

A jaxpr nests: every ``jit``, custom derivative and checkpoint is a call with a jaxpr of its own. JAX is imported by the functions that use it.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from exporters.from_jax.expansion import expansion
from exporters.from_jax.program import Equation, Program, Value, live, scalar_value

__all__ = ["CALLS", "IDENTITIES", "address", "flatten", "on_cpu"]

_CONTROL = ("cond", "scan", "while")

CALLS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_closed_call", "remat2", "checkpoint", "composite"), "jaxpr"),
    **dict.fromkeys(("call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
}
"""Primitives that only call: name -> the parameter that holds the jaxpr."""

IDENTITIES = frozenset(
    (
        "copy",
        "copy_p",
        "dce_sink",
        "device_put",
        "layout_constraint",
        "name",
        "optimization_barrier",
        "pin",
        "pvary",
        "reshard",
        "sharding_constraint",
        "stage",
        "stop_gradient",
        "tie",
        "unpin",
    )
)
"""Primitives that hand their operands on: what they tell the compiler has no meaning here."""

_REARRANGING = frozenset(("broadcast_in_dim", "convert_element_type", "reshape", "rev", "slice", "squeeze", "transpose"))
_COMPUTED = ".folded"
"""A constant computed from named ones, by more than rearranging, is called after the first one, with this at its end."""

_FOLDED_BYTES = 1 << 20
"""A constant result may grow beyond its constant operands up to this size; larger ones (a mask made by iota) are computed at run time."""


def flatten(closed_jaxpr: Any, arguments: Sequence[Value], names: Mapping[int, str], *, sizes_vary: bool = False) -> Program:
    """Returns the live part of a jaxpr as a program.

    Args:
        closed_jaxpr: what ``jax.make_jaxpr`` returned.
        arguments: one value per variable of the jaxpr: inputs, and constants for parameters.
        names: address of the data of a captured array -> what to call it.
        sizes_vary: positions (``arange``) and parts of constants are computed at run time, for as constants they would fix the sizes.
    """
    from jax.interpreters import partial_eval

    jaxpr = closed_jaxpr.jaxpr  # what loops compute for nobody goes here, the rest below
    jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return _Flattener(names, {}, sizes_vary).program(jaxpr, closed_jaxpr.consts, arguments, "")


class _Flattener:
    def __init__(self, names: Mapping[int, str], captured: dict[int, Value], sizes_vary: bool) -> None:
        self.equations: list[Equation] = []
        self._sizes_vary = sizes_vary
        self._names = names
        self._captured = captured

    def program(self, jaxpr: Any, consts: Iterable[Any], arguments: Sequence[Value], where: str) -> Program:
        """Returns the live part of a jaxpr; those of the arguments that are no constants are its inputs."""
        outputs = self.run(jaxpr, consts, arguments, where)
        return live(Program(tuple(value for value in arguments if value.constant is None), tuple(outputs), self.equations))

    def run(self, jaxpr: Any, consts: Iterable[Any], arguments: Iterable[Value], where: str) -> list[Value]:
        """Appends the equations of a jaxpr and returns its results. ``where`` is the line of the call, for library code without one."""
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, map(self._capture, consts), strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for eqn in jaxpr.eqns:
            inputs = tuple(values[atom] if (value := _literal(atom)) is None else value for atom in eqn.invars)
            line = _source_line(eqn) or where
            values.update(zip(eqn.outvars, self._equation(eqn, inputs, line), strict=True))
        return [values[atom] if (value := _literal(atom)) is None else value for atom in jaxpr.outvars]

    def _capture(self, array: Any) -> Value:
        if id(array) not in self._captured:
            name = self._names.get(address(array), "constant")
            self._captured[id(array)] = Value(tuple(array.shape), array.dtype, name, array)
        return self._captured[id(array)]

    def _equation(self, eqn: Any, inputs: tuple[Value, ...], where: str) -> Sequence[Value]:
        primitive = eqn.primitive.name
        if primitive in IDENTITIES:
            return inputs
        if primitive in CALLS:
            return self._call(eqn.params[CALLS[primitive]], inputs, where)
        if primitive == "cond" and inputs[0].constant is not None:
            branches = eqn.params["branches"]
            return self._call(branches[min(max(int(inputs[0].array()), 0), len(branches) - 1)], inputs[1:], where)
        if (expanded := expansion(eqn, inputs)) is not None:
            return self._call(expanded, inputs, where)
        if primitive == "reshape" and eqn.params["dimensions"] is not None:
            primitive = "rml.turned_reshape"  # nothing that looks through a reshape may look through this
        outputs = tuple(Value(tuple(var.aval.shape), var.aval.dtype) for var in eqn.outvars)
        equation = Equation(primitive, inputs, outputs, eqn.params, where, origin=(eqn, inputs, outputs))
        if (same := _simplified(equation)) is not None:
            return (same,)
        for output in outputs:
            output.producer = equation
        if (self._sizes_vary and primitive in ("iota", "slice")) or not _fold(eqn, equation):
            if primitive in _CONTROL:
                return getattr(self, f"_{primitive}")(equation)
            self.equations.append(equation)
        return outputs

    def _scan(self, equation: Equation) -> Sequence[Value]:
        params, inputs, outputs = equation.params, equation.inputs, equation.outputs
        jaxpr, consts, carries = params["jaxpr"], int(params["num_consts"]), int(params["num_carry"])
        kept = [k for k in range(carries) if jaxpr.jaxpr.outvars[k] is jaxpr.jaxpr.invars[consts + k]]
        moving = [k for k in range(carries) if k not in kept]
        seen = _Bound()
        arguments = [seen.argument(value) for value in inputs[:consts]]
        arguments += [seen.argument(value) if k in kept else _like(value) for k, value in enumerate(inputs[consts : consts + carries])]
        arguments += [_like(value, value.shape[1:]) for value in inputs[consts + carries :]]
        body = self._body(jaxpr, arguments, equation.where)
        steps, results = body.outputs[:carries], body.outputs[carries:]
        given = seen.read_by(body)
        equation.bodies = (
            Program(
                (*given.values(), *(arguments[consts + k] for k in moving), *arguments[consts + carries :]),
                (*(steps[k] for k in moving), *results),
                body.equations,
            ),
        )
        equation.inputs = (*given, *(inputs[consts + k] for k in moving), *inputs[consts + carries :])
        equation.outputs = (*(outputs[k] for k in moving), *outputs[carries:])
        equation.params = {name: params[name] for name in ("length", "reverse")} | {"num_consts": len(given), "num_carry": len(moving)}
        self.equations.append(equation)
        return [inputs[consts + k] if k in kept else output for k, output in enumerate(outputs)]

    def _while(self, equation: Equation) -> Sequence[Value]:
        params, inputs, outputs = equation.params, equation.inputs, equation.outputs
        tests, consts = int(params["cond_nconsts"]), int(params["body_nconsts"])
        init, jaxpr = inputs[tests + consts :], params["body_jaxpr"]
        kept = [k for k in range(len(init)) if jaxpr.jaxpr.outvars[k] is jaxpr.jaxpr.invars[consts + k]]
        moving = [k for k in range(len(init)) if k not in kept]
        seen = _Bound()
        bound = [seen.argument(value) for value in inputs[: tests + consts]]
        carried = [seen.argument(value) if k in kept else _like(value) for k, value in enumerate(init)]
        test = self._body(params["cond_jaxpr"], [*bound[:tests], *carried], equation.where)
        body = self._body(jaxpr, [*bound[tests:], *carried], equation.where)
        given = seen.read_by(test, body)
        arguments = (*given.values(), *(carried[k] for k in moving))
        equation.bodies = (
            Program(arguments, test.outputs, test.equations),
            Program(arguments, (*given.values(), *(body.outputs[k] for k in moving)), body.equations),
        )
        equation.inputs, equation.params = (*given, *(init[k] for k in moving)), {}
        equation.outputs = (*(_like(value) for value in given), *(outputs[k] for k in moving))
        self.equations.append(equation)
        return [init[k] if k in kept else output for k, output in enumerate(outputs)]

    def _cond(self, equation: Equation) -> Sequence[Value]:
        seen = _Bound()
        arguments = [seen.argument(value) for value in equation.inputs[1:]]
        bodies = [self._body(branch, arguments, equation.where) for branch in equation.params["branches"]]
        given = seen.read_by(*bodies)
        equation.bodies = tuple(Program(tuple(given.values()), body.outputs, body.equations) for body in bodies)
        index = equation.inputs[0]
        if len(bodies) == 2 and index.producer is not None and index.producer.primitive == "convert_element_type":
            flag = index.producer.inputs[0]
            index = flag if np.dtype(flag.dtype).kind == "b" else index
        equation.inputs, equation.params = (index, *given), {}
        self.equations.append(equation)
        return equation.outputs

    def _body(self, jaxpr: Any, arguments: Sequence[Value], where: str) -> Program:
        return _Flattener(self._names, self._captured, self._sizes_vary).program(jaxpr.jaxpr, jaxpr.consts, arguments, where)

    def _call(self, jaxpr: Any, inputs: Sequence[Value], where: str) -> list[Value]:
        closed = hasattr(jaxpr, "consts")
        return self.run(jaxpr.jaxpr if closed else jaxpr, jaxpr.consts if closed else (), inputs, where)


class _Bound:
    """The values that bodies see without changing them: constants as they are, others as inputs, each value once."""

    def __init__(self) -> None:
        self._arguments: dict[Value, Value] = {}

    def argument(self, value: Value) -> Value:
        """Returns what stands for ``value`` in a body."""
        return value if value.constant is not None else self._arguments.setdefault(value, _like(value))

    def read_by(self, *programs: Program) -> dict[Value, Value]:
        """Returns value -> argument of those that some of the programs read."""
        reads = sum((program.reads() for program in programs), Counter[Value]())
        return {value: argument for value, argument in self._arguments.items() if reads[argument]}


def _like(value: Value, shape: tuple[int, ...] | None = None) -> Value:
    return Value(value.shape if shape is None else shape, value.dtype)


def on_cpu(jax: Any) -> Any:
    """Returns a context in which JAX computes on the CPU: accelerators round products of f32 otherwise."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def address(array: Any) -> int:
    """Returns where the data of an array lies; the identity of the object where JAX keeps that to itself."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    data = getattr(array, "val", None)  # JAX wraps a captured NumPy array in an object of its own
    return int(data.__array_interface__["data"][0]) if isinstance(data, np.ndarray) else id(array)


def _literal(atom: Any) -> Value | None:
    if not hasattr(atom, "val"):
        return None
    return Value(tuple(atom.aval.shape), atom.aval.dtype, constant=np.asarray(atom.val, atom.aval.dtype))


@functools.cache
def _source_info_util() -> Any:
    """Returns JAX's module of source lines, to which there is no public way, told that the lines of this package are not the model's."""
    from jax._src import source_info_util

    source_info_util.register_exclusion(os.path.join(os.path.dirname(__file__), ""))
    return source_info_util


def _source_line(eqn: Any) -> str:
    """Returns ``model.py:12 (layer)``, the innermost line that is neither JAX's nor ours; empty if there is none."""
    try:
        line = _source_info_util().summarize(eqn.source_info)
    except (ImportError, AttributeError, TypeError):
        return ""
    return "" if line == "unknown" else re.sub(r":(\d+):\d+", r":\1", os.path.basename(line))


def _simplified(equation: Equation) -> Value | None:
    """Returns the operand that the equation is equal to, None if it computes something."""
    inputs, output = equation.inputs, equation.outputs[0] if equation.outputs else None
    candidate = None
    match equation.primitive:
        case "convert_element_type" | "broadcast_in_dim" | "reshape" | "squeeze":
            candidate = inputs[0]
        case "select_n" if inputs[0].constant is not None:
            choices = np.unique(inputs[0].array())
            candidate = inputs[1 + int(choices[0])] if choices.size == 1 else None
        case "sub" | "mul" | "div" | "add":
            candidate = _neutral(equation)
        case "max":  # jax.nn.softmax clamps its maximum from below by -inf, lest a reduction over nothing be undefined
            lowest = [value for value in inputs if value.constant is not None and value.size == 1 and value.array() == -np.inf]
            candidate = next((value for value in inputs if value not in lowest), None) if lowest else None
    return candidate if candidate is not None and output is not None and _same_type(candidate, output) else None


def _neutral(equation: Equation) -> Value | None:
    """Returns x of x - 0, x * 1, 1 * x and x / 1; of x + 0 only for integers, for it makes 0.0 of -0.0."""
    number, (a, b) = (0 if equation.primitive in ("add", "sub") else 1), equation.inputs
    if equation.primitive == "add" and np.dtype(a.dtype).kind == "f":
        return None
    if scalar_value(b) == number:
        return a
    return b if equation.primitive in ("add", "mul") and scalar_value(a) == number else None


def _same_type(a: Value, b: Value) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _fold(eqn: Any, equation: Equation) -> bool:
    """Computes an equation of constants, by JAX itself; returns False if it depends on an input or its result were too large to store."""
    import jax

    if eqn.primitive.name == "platform_index":
        platforms = equation.params["platforms"]
        equation.outputs[0].constant = np.int32(next(i for i, names in enumerate(platforms) if names is None or "cpu" in names))
        return True
    inputs, outputs = equation.inputs, equation.outputs
    if not outputs or eqn.effects or any(value.constant is None for value in inputs):
        return False
    if _bytes(outputs) > max(_bytes(inputs), _FOLDED_BYTES):
        return False
    with on_cpu(jax):
        try:
            results = eqn.primitive.bind(*(value.constant for value in inputs), **eqn.params)
        except Exception:  # one that cannot run by itself (a collective) stays, to be refused by name if an output needs it
            return False
    names = [value.name for value in inputs if value.name]
    name = names[0] if names else ""
    if name and equation.primitive not in _REARRANGING and not name.endswith(_COMPUTED):
        name += _COMPUTED
    for output, result in zip(outputs, results if eqn.primitive.multiple_results else [results], strict=True):
        output.constant, output.name = result, name
    return True


def _bytes(values: Iterable[Value]) -> int:
    return sum(value.nbytes for value in values)
