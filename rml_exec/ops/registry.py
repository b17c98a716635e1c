"""The record of an op, and the table of all records. One op is one ``define(...)`` in its family file.

From this record come attribute checks, type inference, the reference interpreter, alias classes and memory plan, the generated
conformance tests, the micro-benchmark, the profiler's roofline column and the op table in the README. What a framework calls the op is
not here: that is known to its exporter alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rml_exec.errors import KernelError, TypeInferenceError
from rml_exec.ir.graph import Body, Function
from rml_exec.types import DType, TensorType

__all__ = ["Attr", "Callee", "Case", "Limit", "OpDef", "Rule", "Signature", "Tolerance", "all_ops", "case", "count", "define", "get_op"]


@dataclass(frozen=True, slots=True)
class Attr:
    """What an attribute may hold.

    ``kind`` is one of: "int", "float", "bool", "str", "ints" and "floats" (tuples of int and float), "pads" (tuple of (lo, hi) int pairs),
    "dtype" (a DType name), "strs" (tuple of str), "function" (name of a function of the graph), "functions" (tuple of them), "body"
    (nodes of a fused group, never in files). ``optional`` allows None, ``choices`` limits a "str".
    """

    kind: str
    choices: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The types that a function takes and gives: what ``infer`` gets for an attribute that names a function."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @classmethod
    def of(cls, body: Body) -> Signature:
        """Returns the signature of a function."""
        types = body.types()
        return cls(tuple(value.type for value in body.inputs), tuple(types[output.value] for output in body.outputs))

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"


class Callee(Protocol):
    """A function that can be run: what ``reference`` gets for an attribute that names one."""

    @property
    def signature(self) -> Signature:
        """The types of its arrays, floats in the precision of this run."""

    def __call__(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns its results."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an f32 result may be from the float64 reference rounded to f32: ``|got-want| <= atol_rms * rms(want) + rtol * |want|``.

    Both 0: exactly that, which is what one IEEE operation gives. Infinities and NaN are equal or wrong.
    """

    rtol: float = 0.0
    atol_rms: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A known gap as data: operands of ``dtype`` are refused because of ``reason``."""

    dtype: DType
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """One generated test case: operand shapes (or arrays, for indices and masks) and attributes.

    ``inputs`` holds, per operand, a TensorType (the test fills it from ``domain`` of the op), an array taken as it is, or None.
    ``functions`` are those that the attributes name.
    """

    id: str
    inputs: tuple[TensorType | np.ndarray | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)


def case(id: str, *inputs: tuple[int, ...] | TensorType | np.ndarray | None, **attrs: Any) -> Case:
    """Returns a :class:`Case`; a bare shape means f32 of that shape."""
    typed = tuple(TensorType(DType.F32, operand) if isinstance(operand, tuple) else operand for operand in inputs)
    return Case(id, typed, attrs)


Types = Sequence[TensorType | None]


@dataclass(frozen=True, slots=True)
class OpDef:
    """One op. See :func:`define` for the fields."""

    name: str
    inputs: tuple[str, ...]
    infer: Callable[..., TensorType | tuple[TensorType, ...]]
    reference: Callable[..., Any]
    doc: str
    cases: tuple[Case, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    elementwise: bool = False
    view: bool = False
    inplace: tuple[tuple[int, int], ...] = ()
    scratch: Callable[[Types, Mapping[str, Any], int], int] | None = None
    flops: Callable[[Types, tuple[TensorType, ...], Mapping[str, Any]], int] | None = None
    expand: Callable[..., Any] | None = None
    tolerance: Tolerance = Tolerance()
    domain: tuple[float, float] = (-4.0, 4.0)
    limits: tuple[Limit, ...] = ()
    internal: bool = False

    @property
    def min_inputs(self) -> int:
        """Operands that must be listed; optional ones stand as null."""
        return len(self.inputs) - (1 if self.variadic else 0)

    @property
    def variadic(self) -> bool:
        """True if the last operand repeats (written ``xs*``)."""
        return bool(self.inputs) and self.inputs[-1].endswith("*")

    def is_optional(self, index: int) -> bool:
        """True if operand ``index`` may be null (written ``bias?``)."""
        return index < len(self.inputs) and self.inputs[index].endswith("?")

    def operand_name(self, index: int) -> str:
        """Name of operand ``index`` for messages: ``x``, ``bias``, ``xs[2]``."""
        if self.variadic and index >= len(self.inputs) - 1:
            return f"{self.inputs[-1][:-1]}[{index - len(self.inputs) + 1}]"
        return self.inputs[index].rstrip("?") if index < len(self.inputs) else f"operand {index}"

    def calls(self, attrs: Mapping[str, Any]) -> Iterator[str]:
        """Yields the names of the functions that a node with these attributes calls."""
        for name, attr in self.attrs.items():
            if attr.kind == "function":
                yield attrs[name]
            elif attr.kind == "functions":
                yield from attrs[name]

    def _bound(self, attrs: Mapping[str, Any], functions: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes with what ``functions`` holds in place of the names of functions."""
        bound = dict(attrs)
        for name, attr in self.attrs.items():
            if attr.kind == "function":
                bound[name] = functions[attrs[name]]
            elif attr.kind == "functions":
                bound[name] = tuple(functions[function] for function in attrs[name])
        return bound

    def infer_types(
        self, where: str, types: Types, attrs: Mapping[str, Any], functions: Mapping[str, Function] | None = None
    ) -> tuple[TensorType, ...]:
        """Returns the output types.

        Args:
            where: what to name in an error, such as ``conv2d 'layer1.0.conv1'``.
            types: operand types, None for an absent operand.
            attrs: attributes as plain Python values.
            functions: the functions of the graph, for an op that calls some.

        Raises:
            TypeInferenceError: a wrong number of operands, a missing, unknown or ill-typed attribute, a function that does not exist, or
                types the op does not allow.
        """
        shown = {self.operand_name(i): t for i, t in enumerate(types) if t is not None}
        if len(types) < self.min_inputs or (len(types) > len(self.inputs) and not self.variadic):
            raise TypeInferenceError.of(where, f"takes operands ({', '.join(self.inputs)})", f"{len(types)} operands", shown)
        for index, operand in enumerate(types):
            if operand is None and not self.is_optional(index):
                raise TypeInferenceError.of(where, f"operand {self.operand_name(index)} must be present", "null", shown)
            for limit in self.limits:
                if operand is not None and operand.dtype is limit.dtype:
                    raise TypeInferenceError.of(where, f"{limit.dtype} is not supported: {limit.reason}", None, shown)
        self.check_attrs(where, attrs)
        called = dict.fromkeys(self.calls(attrs))
        if missing := [name for name in called if name not in (functions or {})]:
            raise TypeInferenceError.of(where, f"calls function {', '.join(map(repr, missing))}, which does not exist", None, shown)
        signatures = {name: Signature.of(functions[name]) for name in called} if functions else {}
        try:
            inferred = self.infer(*types, **self._bound(attrs, signatures))
        except Rule as broken:
            raise TypeInferenceError.of(where, broken.rule, broken.got, shown, broken.hint) from None
        return inferred if isinstance(inferred, tuple) else (inferred,)

    def check_attrs(self, where: str, attrs: Mapping[str, Any]) -> None:
        """Raises TypeInferenceError unless exactly the declared attributes are there, each of its kind."""
        if unknown := sorted(set(attrs) - set(self.attrs)):
            hint = f"{self.name} has {sorted(self.attrs) or 'none'}"
            raise TypeInferenceError.of(where, f"has no attribute {', '.join(map(repr, unknown))}", None, None, hint)
        if missing := sorted(set(self.attrs) - set(attrs)):
            raise TypeInferenceError.of(where, f"attribute {', '.join(map(repr, missing))} must be given")
        for name, attr in self.attrs.items():
            if not _fits(attr, attrs[name]):
                wanted = (f"one of {', '.join(attr.choices)}" if attr.choices else attr.kind) + (" or null" if attr.optional else "")
                raise TypeInferenceError.of(where, f"attribute '{name}' must be {wanted}", repr(attrs[name]))

    def run_reference(
        self,
        inputs: Sequence[np.ndarray | None],
        attrs: Mapping[str, Any],
        where: str | None = None,
        functions: Mapping[str, Callee] | None = None,
    ) -> tuple[np.ndarray, ...]:
        """Returns the op's results on NumPy arrays of one precision: the definition of the op. Results may be views of the inputs.

        Args:
            inputs: operand arrays of the inferred types, None for an absent operand.
            attrs: attributes as plain Python values.
            where: what to name in an error; the op's name when not given.
            functions: the functions that the attributes name, ready to be called.

        Raises:
            KernelError: operand values that the op refuses, such as an index out of range under ``oob="error"``.
        """
        try:
            with np.errstate(all="ignore"):
                result = self.reference(*inputs, **self._bound(attrs, functions or {}))
        except Rule as broken:
            raise KernelError.of(where or self.name, broken.rule, broken.got, None, broken.hint) from None
        return result if isinstance(result, tuple) else (np.asarray(result),)


class Rule(Exception):  # noqa: N818  (never leaves this package: OpDef turns it into an error)
    """The rule that operands break: their types when an ``infer`` function raises it, their values when a ``reference`` does.

    :class:`OpDef` turns it into a TypeInferenceError or a KernelError that says where.
    """

    def __init__(self, rule: str, got: object = None, hint: str | None = None) -> None:
        super().__init__(rule)
        self.rule, self.got, self.hint = rule, got, hint


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fits(attr: Attr, value: object) -> bool:
    if value is None:
        return attr.optional
    match attr.kind:
        case "int":
            return _is_int(value)
        case "float":
            return isinstance(value, float) or _is_int(value)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str) and (not attr.choices or value in attr.choices)
        case "ints":
            return isinstance(value, tuple) and all(map(_is_int, value))
        case "floats":
            return isinstance(value, tuple) and all(isinstance(item, float) or _is_int(item) for item in value)
        case "strs" | "functions":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        case "pads":
            return isinstance(value, tuple) and all(isinstance(p, tuple) and len(p) == 2 and all(map(_is_int, p)) for p in value)
        case "dtype":
            return isinstance(value, str) and value in DType._value2member_map_
        case "function":
            return isinstance(value, str)
        case "body":
            return isinstance(value, tuple)
    raise AssertionError(attr.kind)


_OPS: dict[str, OpDef] = {}


def define(**fields: Any) -> OpDef:
    """Adds an op to the table and returns its record.

    Fields:
        name: snake_case, as written in files.
        inputs: operand names; ``bias?`` is optional, ``xs*`` repeats.
        attrs: attribute name -> :class:`Attr`.
        outputs: result names.
        infer: ``infer(*operand_types, **attrs)`` -> output TensorType or tuple of them; raises :class:`Rule` with the reason. An attribute
            that names a function arrives as its :class:`Signature`.
        reference: ``reference(*operands, **attrs)`` on NumPy arrays -> array or tuple. Works in any float precision: run in float64 it is
            the oracle. It computes in the precision of its operands, writes to none of them, and returns arrays of exactly the inferred
            dtypes and shapes; values that the op refuses raise :class:`Rule`. A function arrives as a :class:`Callee`.
        elementwise: every output element depends on the broadcast operand elements at its own position only.
        view: output 0 is operand 0 seen through another shape and strides; the reference returns a NumPy view wherever NumPy can.
        inplace: (output, operand) pairs: the output may overwrite the operand's buffer when their sizes agree.
        scratch: (operand types, attrs, threads) -> bytes that a native kernel needs while it runs.
        flops: (operand types, output types, attrs) -> floating-point operations.
        expand: for a composite op, its normative decomposition: ``expand(p, *operand_names, **attrs)`` writes it through a
            :class:`rml_exec.ops.decompose.Primitives` and returns the name of its result or a tuple of them.
        tolerance: bound that tests and users may rely on for native f32.
        domain: range that tests draw floats from.
        cases: generated test cases, at least one; sizes 0, 1 and odd ones among them.
        limits: known gaps as data.
        internal: made by passes only; a file that names it is refused.
        doc: one paragraph: formula, shapes, semantics where frameworks differ.
    """
    op = OpDef(**fields)
    if not op.doc or not op.cases:
        raise ValueError(f"op {op.name}: a record needs doc and cases")
    if op.name in _OPS:
        raise ValueError(f"op {op.name}: defined twice")
    _OPS[op.name] = op
    return op


def get_op(name: str) -> OpDef:
    """Returns the record of an op; raises KeyError for an unknown name."""
    return _OPS[name]


def all_ops() -> tuple[OpDef, ...]:
    """Returns every record, in the order of definition."""
    return tuple(_OPS.values())


def count(types: Sequence[TensorType]) -> int:
    """Returns the number of elements of all the types together."""
    return sum(math.prod(t.shape) for t in types)
