"""Elementwise formulas: nodes that are written for the elementwise interpreter rather than read from a graph.

A lowering uses a :class:`Formula` for the arithmetic of its steps. Primitive ops that have no instruction of their own are formulas too, those
at the end of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.ir.graph import Node, Value
from rml_exec.ops import get_op
from rml_exec.ops.decompose import Primitives
from rml_exec.runtime.elementwise_program import Program, UnsupportedError, selects
from rml_exec.runtime.lower_elementwise import Tensor, elementwise_step, lower_elementwise
from rml_exec.runtime.lowering import NativeStep, Operand, lowers
from rml_exec.types import DType, TensorType

__all__ = ["Formula"]


class Formula:
    """Collects elementwise nodes that a :class:`Primitives` writes."""

    def __init__(self, types: Mapping[str, TensorType], prefix: str = "") -> None:
        """Takes the types of the values it may read, and what to begin the names of its own values with."""
        self._types, self._prefix = dict(types), prefix
        self.scalars: dict[str, float] = {}
        self.body: list[Node] = []

    def type(self, value: str) -> TensorType:
        """Returns the type of a value."""
        return self._types[value]

    def constant(self, array: np.ndarray) -> str:
        """Adds a number and returns its name."""
        name = self._new(TensorType.of(array))
        self.scalars[name] = array.item()
        return name

    def add(self, op: str, inputs: Sequence[str | None], **attrs: Any) -> str:
        """Adds a node of one result and returns the name of that."""
        (type_,) = get_op(op).infer_types(op, [None if name is None else self._types[name] for name in inputs], attrs)
        name = self._new(type_)
        self.body.append(Node(op, name, tuple(inputs), (Value(name, type_),), attrs))
        return name

    def _new(self, type_: TensorType) -> str:
        name = f"{self._prefix}%{len(self._types)}"
        self._types[name] = type_
        return name

    def step(self, tensors: Mapping[str, Tensor], results: Mapping[str, Operand]) -> NativeStep:
        """Returns the step that computes ``results``, value -> where to store it in C order; all have one shape.

        Args:
            tensors: where the values that the formula reads lie.
            results: the values to store. One may overwrite an operand that lies in C order too.
        """
        numbers = {name: Tensor(None, self._types[name], (), scalar) for name, scalar in self.scalars.items()}
        outputs = [Value(name, self._types[name]) for name in results]
        step = elementwise_step({**tensors, **numbers}, self.body, list(results), outputs)
        if step is None:
            raise AssertionError("a formula holds f32 instructions within the interpreter's limits")
        return NativeStep(step.kernel, step.params, (*results.values(), *step.operands[len(results) :]))


# ---- ops that are formulas -------------------------------------------------------------------------------------------------------------
# atan and asin follow S. L. Moshier's Cephes library (atanf.c, asinf.c): range reduction and a polynomial, relative error about 2e-7.

_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_LARGE = 1e9  # from here on x^2 + 1 is x^2 in f32


def _polynomial(p: Primitives, z: str, coefficients: Sequence[float]) -> str:
    """Horner's rule; the first coefficient belongs to the highest power, the last to power 1."""
    y: str | float = coefficients[0]
    for coefficient in coefficients[1:]:
        y = p("add", p("mul", z, y), coefficient)
    return p("mul", z, y)


def _signed(p: Primitives, x: str, y: str) -> str:
    """Returns y with the sign of x, y being 0 where x is."""
    return p("mul", p("sign", x, nan="propagate"), y)


def _atan_positive(p: Primitives, a: str) -> str:
    """Returns atan of a value that is not negative."""
    far, middle = p("compare", a, 2.414213562373095, dir="gt"), p("compare", a, 0.4142135623730950, dir="gt")
    turned = p("div", -1.0, a, rounding="true")
    shifted = p("div", p("sub", a, 1.0), p("add", a, 1.0), rounding="true")
    reduced = p("select", far, turned, p("select", middle, shifted, a))
    quarter, nothing = (p.constant(np.asarray(angle, np.float32)) for angle in (math.pi / 4, 0.0))
    base = p("select", far, math.pi / 2, p("select", middle, quarter, nothing))
    series = p("mul", _polynomial(p, p("mul", reduced, reduced), _ATAN), reduced)
    return p("add", base, p("add", series, reduced))


def _atan(p: Primitives, x: str) -> str:
    return _signed(p, x, _atan_positive(p, p("abs", x)))


def _is_negative(p: Primitives, x: str) -> str:
    """Returns where the sign bit is set, of -0.0 too."""
    bits = p("bitcast", x, to="i32")
    return p("compare", bits, p.constant(np.zeros((), np.int32)), dir="lt")


def _atan2(p: Primitives, y: str, x: str) -> str:
    across, along = p("abs", y), p("abs", x)
    far = p("and", p("is_inf", x), p("is_inf", y))
    angle = p("select", far, math.pi / 4, _atan_positive(p, p("div", across, along, rounding="true")))
    angle = p("select", p("compare", across, 0.0, dir="eq"), across, angle)  # also where along is 0
    angle = p("select", _is_negative(p, x), p("sub", math.pi, angle), angle)
    return p("select", p("is_nan", x), x, p("select", _is_negative(p, y), p("neg", angle), angle))


def _asin_parts(p: Primitives, x: str) -> tuple[str, str]:
    """Returns where |x| > 1/2, and asin of |x| up to there, of sqrt((1 - |x|) / 2) beyond."""
    a = p("abs", x)
    beyond = p("compare", a, 0.5, dir="gt")
    z = p("select", beyond, p("mul", p("sub", 1.0, a), 0.5), p("mul", a, a))
    root = p("select", beyond, p("sqrt", z), a)
    return beyond, p("add", p("mul", _polynomial(p, z, _ASIN), root), root)


def _asin(p: Primitives, x: str) -> str:
    beyond, q = _asin_parts(p, x)
    return _signed(p, x, p("select", beyond, p("sub", math.pi / 2, p("mul", q, 2.0)), q))


def _acos(p: Primitives, x: str) -> str:
    beyond, q = _asin_parts(p, x)
    twice = p("mul", q, 2.0)
    far = p("select", p("compare", x, 0.0, dir="gt"), twice, p("sub", math.pi, twice))
    return p("select", beyond, far, p("sub", math.pi / 2, _signed(p, x, q)))


def _halves(p: Primitives, x: str) -> tuple[str, str]:
    """Returns e^|x| / 2, which overflows only where sinh and cosh do, and e^-|x| / 2."""
    root = p("exp", p("mul", p("abs", x), 0.5))
    return p("mul", p("mul", root, 0.5), root), p("div", 0.5, p("mul", root, root), rounding="true")


def _sinh(p: Primitives, x: str) -> str:
    up, down = _halves(p, x)
    near = p("mul", p("sub", p("expm1", x), p("expm1", p("neg", x))), 0.5)
    return p("select", p("compare", p("abs", x), 1.0, dir="lt"), near, _signed(p, x, p("sub", up, down)))


def _cosh(p: Primitives, x: str) -> str:
    return p("add", *_halves(p, x))


def _asinh(p: Primitives, x: str) -> str:
    a = p("abs", x)
    square = p("mul", a, a)
    near = p("log1p", p("add", a, p("div", square, p("add", p("sqrt", p("add", square, 1.0)), 1.0), rounding="true")))
    far = p("add", p("log", a), math.log(2))
    return _signed(p, x, p("select", p("compare", a, _LARGE, dir="gt"), far, near))


def _acosh(p: Primitives, x: str) -> str:
    t = p("sub", x, 1.0)
    near = p("log1p", p("add", t, p("sqrt", p("mul", t, p("add", t, 2.0)))))
    far = p("add", p("log", x), math.log(2))
    return p("select", p("compare", x, 1.0, dir="lt"), math.nan, p("select", p("compare", x, _LARGE, dir="gt"), far, near))


def _atanh(p: Primitives, x: str) -> str:
    a = p("abs", x)
    ratio = p("div", p("add", a, a), p("sub", 1.0, a), rounding="true")
    return _signed(p, x, p("mul", p("log1p", ratio), 0.5))


_FORMULAS: dict[str, Callable[..., str]] = {
    "log2": lambda p, x: p("mul", p("log", x), 1 / math.log(2)),
    "atan": _atan,
    "atan2": _atan2,
    "asin": _asin,
    "acos": _acos,
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
}


@selects(*_FORMULAS)
def _formula(program: Program, node: Node, operands: list[str], dtype: DType) -> None:
    if dtype is not DType.F32:
        raise UnsupportedError
    result = node.outputs[0].name
    formula = Formula({name: program.types[name] for name in node.reads()}, result)
    y = _FORMULAS[node.op](Primitives(formula), *node.inputs, **node.attrs)
    for name, value in formula.scalars.items():
        program.types[name], program.scalars[name] = formula.type(name), value
        program.same_as[name] = program.constant(value, formula.type(name).dtype)
    for part in formula.body:
        program.select(part)
    program.same_as[result] = program.resolve(y)


lowers(*_FORMULAS)(lower_elementwise)
