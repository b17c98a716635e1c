"""Reads the graph's JSON form: :func:`decode`, the inverse of :func:`rml_exec.ir.format.encode`.

Reading is strict: an unknown key, op, attribute or version is an error that names the place (``NAME.json $.nodes[17].attrs.strides``).
Structure and types are checked afterwards, by :mod:`rml_exec.ir.verify` and :mod:`rml_exec.loading`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from rml_exec.errors import GraphFormatError, InputError
from rml_exec.ir.builder import INLINE_ELEMENTS
from rml_exec.ir.dims import MAX_INT, Expr, bind_graph, parse_expr
from rml_exec.ir.format import FORMAT_VERSION
from rml_exec.ir.graph import Constant, Function, Graph, Node, Output, Value
from rml_exec.ir.weights import Tensor, parse_json
from rml_exec.types import DType, TensorType

__all__ = ["AttrKinds", "decode"]

AttrKinds = Callable[[str], Mapping[str, str]]
"""``attr_kinds(op)`` -> kind of each attribute ("int", "ints", "pads", "float", ...); raises LookupError, with the reason, for an op that
may not stand in a file. Injected, because ops are not known here; the kind tells an expression or an infinity from a string."""

_HEX_FLOAT = re.compile(r"-?0x[0-9a-f]+(\.[0-9a-f]+)?p[+-][0-9]+")
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def decode(content: bytes, weights: Callable[[], Mapping[str, Tensor]], attr_kinds: AttrKinds, where: str) -> Graph:
    """Returns the graph of a JSON document, bound to the hints of its dims.

    Args:
        content: the document, UTF-8.
        weights: gives the tensors by key; called at most once, and only if a constant has a key.
        attr_kinds: see :data:`AttrKinds`.
        where: what to call the document in errors.

    Raises:
        GraphFormatError: anything that does not follow the format.
    """
    return _Reader(where, weights, attr_kinds).graph(parse_json(content, where))


class _Reader:
    """Turns parsed JSON into records. ``path`` is always that of ``value``."""

    def __init__(self, where: str, weights: Callable[[], Mapping[str, Tensor]], attr_kinds: AttrKinds) -> None:
        self._where, self._open_weights, self._attr_kinds = where, weights, attr_kinds
        self._weights: Mapping[str, Tensor] | None = None
        self._dims: dict[str, dict[str, int | None]] = {}

    def fail(self, path: str, rule: str, got: object = None, hint: str | None = None) -> NoReturn:
        raise GraphFormatError.of(f"{self._where} {path}", rule, got, hint=hint)

    def graph(self, document: Any) -> Graph:
        if not isinstance(document, dict) or document.get("format") != "rml-graph":
            self.fail("$.format", 'must be "rml-graph"', _shown(document.get("format") if isinstance(document, dict) else document))
        version = document.get("format_version")
        if version != list(FORMAT_VERSION):
            self.fail("$.format_version", f"must be {list(FORMAT_VERSION)}, the version that this rml_exec reads", _shown(version))
        keys = ("format", "format_version", "name", "inputs", "outputs", "constants", "nodes")
        self.object(document, "$", keys, ("producer", "functions", "metadata", "dims"))
        self._dims = self.dims(document.get("dims", {}), "$.dims")
        functions = self.object(document.get("functions", {}), "$.functions")
        graph = Graph(
            **self.body(document, "$", self.string(document["name"], "$.name")),
            producer=self.producer(document.get("producer", {}), "$.producer"),
            functions={name: self.function(name, function, f"$.functions[{_shown(name)}]") for name, function in functions.items()},
            metadata=self.strings(document.get("metadata", {}), "$.metadata"),
            dims=self._dims,
        )
        if not self._dims:
            return graph
        try:
            return bind_graph(graph, {name: dim["hint"] for name, dim in self._dims.items()})  # type: ignore[misc]
        except InputError as error:
            raise GraphFormatError(f"{self._where} $.dims: {error}") from None

    def function(self, name: str, value: Any, path: str) -> Function:
        return Function(**self.body(self.object(value, path, ("inputs", "outputs", "constants", "nodes")), path, name))

    def body(self, document: dict[str, Any], path: str, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "inputs": tuple(self.value(value, place) for value, place in self.items(document["inputs"], f"{path}.inputs")),
            "outputs": tuple(self.output(value, place) for value, place in self.items(document["outputs"], f"{path}.outputs")),
            "constants": tuple(self.constant(value, place) for value, place in self.items(document["constants"], f"{path}.constants")),
            "nodes": tuple(self.node(value, place) for value, place in self.items(document["nodes"], f"{path}.nodes")),
        }

    def value(self, value: Any, path: str, optional: tuple[str, ...] = ()) -> Value:
        self.object(value, path, ("name", "dtype", "shape"), optional)
        tag = value.get("tag")
        if "tag" in value and tag != "shape":
            self.fail(f"{path}.tag", 'must be "shape"', _shown(tag))
        return Value(self.string(value["name"], f"{path}.name"), self.type(value, path), tag)

    def type(self, value: dict[str, Any], path: str) -> TensorType:
        name = value["dtype"]
        if not isinstance(name, str) or name not in DType._value2member_map_:
            self.fail(f"{path}.dtype", f"must be one of {' '.join(dtype.value for dtype in DType)}", _shown(name))
        shape = tuple(self.integer(dim, place) for dim, place in self.items(value["shape"], f"{path}.shape"))
        for index, dim in enumerate(shape):
            if isinstance(dim, int) and dim < 0:
                self.fail(f"{path}.shape[{index}]", "must not be negative", dim)
        return TensorType(DType(name), shape)  # type: ignore[arg-type]  # expressions are replaced when the graph is bound

    def output(self, value: Any, path: str) -> Output:
        self.object(value, path, ("name", "value"))
        return Output(self.string(value["name"], f"{path}.name"), self.string(value["value"], f"{path}.value"))

    def constant(self, value: Any, path: str) -> Constant:
        self.object(value, path, ("name", "dtype", "shape"), ("key", "data"))
        name, type_ = self.string(value["name"], f"{path}.name"), self.type(value, path)
        if not all(isinstance(dim, int) for dim in type_.shape):
            self.fail(f"{path}.shape", "of a constant must not depend on dims", _shown(value["shape"]))
        if ("key" in value) == ("data" in value):
            self.fail(path, f"constant '{name}' must have either key or data", "both" if "key" in value else "neither")
        if "data" in value:
            return Constant(name, type_, self.inline(value["data"], type_, f"{path}.data"))
        key = self.string(value["key"], f"{path}.key")
        if self._weights is None:
            self._weights = self._open_weights()
        tensor = self._weights.get(key)
        if tensor is None:
            self.fail(f"{path}.key", f"the weights hold no tensor '{key}'", f"{len(self._weights)} tensors")
        if tensor.type != type_:
            self.fail(path, f"constant '{name}' is recorded as {type_}, but the weights hold '{key}' as {tensor.type}")
        return Constant(name, type_, tensor.data, key)

    def inline(self, value: Any, type_: TensorType, path: str) -> np.ndarray:
        items = list(self.items(value, path))
        if len(items) > INLINE_ELEMENTS or len(items) != type_.size:
            self.fail(path, f"of {type_} must have {type_.size} elements, at most {INLINE_ELEMENTS}", len(items))
        data = np.array([self.element(item, type_.dtype, place) for item, place in items], type_.dtype.numpy).reshape(type_.shape)
        data.flags.writeable = False
        return data

    def element(self, value: Any, dtype: DType, path: str) -> Any:
        if dtype is DType.BOOL:
            if not isinstance(value, bool):
                self.fail(path, "must be true or false", _shown(value))
            return value
        if dtype.is_integer:
            number = self.integer(value, path)
            limits = np.iinfo(dtype.numpy)
            if not isinstance(number, int) or not limits.min <= number <= limits.max:
                self.fail(path, f"must be an integer of {dtype}", _shown(value))
            return number
        if not isinstance(value, str) or not (value in _NON_FINITE or _HEX_FLOAT.fullmatch(value)):
            self.fail(path, 'must be a hexadecimal float such as "0x1.8p+1", or "inf", "-inf", "nan"', _shown(value))
        try:
            exact = _NON_FINITE[value] if value in _NON_FINITE else float.fromhex(value)
        except OverflowError:
            self.fail(path, f"must be a value of {dtype}", _shown(value))
        with np.errstate(over="ignore"):
            stored = np.array(exact, np.float32 if dtype is DType.BF16 else dtype.numpy)
        bits = int(stored.view(np.uint32)) if dtype is DType.BF16 else 0
        if not math.isnan(exact) and (float(stored) != exact or bits & 0xFFFF):
            self.fail(path, f"must be a value of {dtype}", _shown(value))
        return bits >> 16 if dtype is DType.BF16 else stored

    def node(self, value: Any, path: str) -> Node:
        self.object(value, path, ("op", "name", "inputs", "outputs", "attrs"), ("metadata", "source"))
        op = self.string(value["op"], f"{path}.op")
        try:
            kinds = self._attr_kinds(op)
        except LookupError as error:
            self.fail(f"{path}.op", error.args[0])
        operands = self.items(value["inputs"], f"{path}.inputs")
        attrs = self.object(value["attrs"], f"{path}.attrs")
        for name in attrs:
            if name not in kinds:
                self.fail(f"{path}.attrs.{name}", f"{op} has no such attribute", hint=f"{op} has {', '.join(kinds) or 'none'}")
        return Node(
            op=op,
            name=self.string(value["name"], f"{path}.name"),
            inputs=tuple(None if operand is None else self.string(operand, place) for operand, place in operands),
            outputs=tuple(self.value(output, place, ("tag",)) for output, place in self.items(value["outputs"], f"{path}.outputs")),
            attrs={name: self.attr(attr, kinds[name], f"{path}.attrs.{name}") for name, attr in attrs.items()},
            metadata=self.strings(value.get("metadata", {}), f"{path}.metadata"),
            source=self.strings(value.get("source", {}), f"{path}.source"),
        )

    def attr(self, value: Any, kind: str, path: str) -> Any:
        """Gives JSON its Python form; whether the op allows the value is for the op's record to say."""
        if isinstance(value, list):
            return tuple(self.attr(item, kind, f"{path}[{index}]") for index, item in enumerate(value))
        if isinstance(value, dict):
            self.fail(path, f"must be {kind}", "an object")
        if kind in ("int", "ints", "pads") and (isinstance(value, str) or _is_int(value)):
            return self.integer(value, path)
        if kind == "float" and isinstance(value, str):
            if value not in _NON_FINITE:
                self.fail(path, 'must be a number or "inf", "-inf", "nan"', _shown(value))
            return _NON_FINITE[value]
        if kind == "float" and (_is_int(value) or isinstance(value, float)):
            if abs(value) > sys.float_info.max:
                self.fail(path, 'must be a finite number or "inf", "-inf", "nan"')
            return float(value)
        return value

    def integer(self, value: Any, path: str) -> int | Expr:
        """An integer: a number, digits in a string, or an expression over the dims of the file."""
        if isinstance(value, str):
            try:
                expression = parse_expr(value)
                if unknown := expression.names - set(self._dims):
                    raise ValueError(f"there is no dim {', '.join(map(repr, sorted(unknown)))}")
                if expression.names:
                    return expression
                value = expression.evaluate({})
            except ValueError as error:
                self.fail(path, str(error), hint=f"dims: {', '.join(self._dims) or 'none'}")
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(path, "must be an integer" + (" or an expression over dims" if self._dims else ""), _shown(value))
        if abs(value) > 2 * MAX_INT + 1:
            self.fail(path, "must fit 64 bits", value if abs(value) < 2**128 else None)
        return value

    def dims(self, value: Any, path: str) -> dict[str, dict[str, int | None]]:
        found = self.object(value, path)
        for name, dim in found.items():
            place = f"{path}.{name}"
            if not name.isidentifier() or name in ("min", "max"):
                self.fail(place, "the name of a dim must be an identifier other than min and max", _shown(name))
            self.object(dim, place, ("min", "max", "hint"))
            low, high, hint = dim["min"], dim["max"], dim["hint"]
            whole = all(map(_is_int, (low, hint, 0 if high is None else high)))
            if not whole or not 0 <= low <= hint <= (MAX_INT if high is None else high):
                self.fail(place, "must have integers 0 <= min <= hint <= max, max may be null", _shown(dim))
        return found

    def producer(self, value: Any, path: str) -> dict[str, Any]:
        keys = ("framework", "framework_version", "exporter_version")
        found = self.object(value, path, (), (*keys, "options"))
        self.strings({key: found[key] for key in keys if key in found}, path)
        return found

    def strings(self, value: Any, path: str) -> dict[str, str]:
        found = self.object(value, path)
        for key, item in found.items():
            self.string(item, f"{path}[{_shown(key)}]")
        return found

    def string(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            self.fail(path, "must be a string", _shown(value))
        return value

    def items(self, value: Any, path: str) -> Iterable[tuple[Any, str]]:
        if not isinstance(value, list):
            self.fail(path, "must be a list", _shown(value))
        return ((item, f"{path}[{index}]") for index, item in enumerate(value))

    def object(self, value: Any, path: str, required: tuple[str, ...] | None = None, optional: tuple[str, ...] = ()) -> dict[str, Any]:
        """An object with these keys; with any keys if ``required`` is None."""
        if not isinstance(value, dict):
            self.fail(path, "must be an object", _shown(value))
        if required is not None:
            if missing := [key for key in required if key not in value]:
                self.fail(path, f"must have {', '.join(missing)}", f"keys {', '.join(value) or 'none'}")
            if unknown := [key for key in value if key not in required and key not in optional]:
                self.fail(path, f"has unknown key {', '.join(map(repr, unknown))}", hint=f"keys: {', '.join((*required, *optional))}")
        return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
