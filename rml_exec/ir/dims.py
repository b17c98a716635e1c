"""Symbolic dims: expressions such as ``"batch * 2"`` in a file, and binding them to numbers.

A graph read from a file with dims keeps its symbolic form as :attr:`Graph.template`: the same records with an :class:`Expr` in place of
some integers. Binding replaces each by its value, so whatever comes after loading sees plain integers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from rml_exec.errors import InputError
from rml_exec.types import TensorType

if TYPE_CHECKING:  # graph.py imports this module for Graph.bind
    from rml_exec.ir.graph import Graph

__all__ = ["MAX_INT", "MAX_LENGTH", "Expr", "bind_graph", "parse_expr", "substitute"]

MAX_INT = 2**63 - 1
MAX_LENGTH = 200
"""Longest text of an expression; it bounds the depth of the syntax tree too."""

_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer expression over dims, as written in the file."""

    text: str
    names: frozenset[str]

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """Returns the value; raises ValueError for a division by zero or a result beyond 64 bits."""
        try:
            value = _evaluate(ast.parse(self.text, mode="eval").body, dims)
        except ZeroDivisionError:
            raise ValueError(f"'{self.text}' divides by zero") from None
        if not -MAX_INT - 1 <= value <= 2 * MAX_INT + 1:  # i64 and u64 both fit
            raise ValueError(f"'{self.text}' is beyond 64 bits")
        return value

    def __str__(self) -> str:
        return self.text


def parse_expr(text: str) -> Expr:
    """Returns the expression; raises ValueError for anything but dims, integers, ``+ - * // %``, ``min``, ``max`` and parentheses."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression may have {MAX_LENGTH} characters; got {len(text)}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):  # ValueError: a null byte
        raise ValueError(f"'{text}' is not an expression over dims") from None
    return Expr(text, frozenset(_names(tree, text)))


def _names(tree: ast.AST, text: str) -> set[str]:
    match tree:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _names(left, text) | _names(right, text)
        case ast.Call(func=ast.Name(id=name), args=[first, *rest], keywords=[]) if name in _CALLS:
            return set().union(*(_names(argument, text) for argument in (first, *rest)))
    raise ValueError(f"'{text}' may hold dims, integers, + - * // %, min and max only")


def _evaluate(tree: ast.AST, dims: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return dims[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, dims)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, dims), _evaluate(right, dims))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            values = [_evaluate(argument, dims) for argument in arguments]
            return values[0] if len(values) == 1 else _CALLS[name](*values)
    raise AssertionError(ast.dump(tree))


def substitute(record: Any, dims: Mapping[str, int]) -> Any:
    """Returns a record (or tuple, mapping, plain value) in which every :class:`Expr` is replaced by its value.

    Raises:
        ValueError: an expression without a legal value, a negative dim of a shape.
    """
    if isinstance(record, Expr):
        return record.evaluate(dims)
    if isinstance(record, tuple):
        return tuple(substitute(item, dims) for item in record)
    if isinstance(record, dict):
        return {key: substitute(item, dims) for key, item in record.items()}
    if isinstance(record, TensorType):
        shape = substitute(record.shape, dims)
        if any(dim < 0 for dim in shape):
            raise ValueError(f"{record} becomes {TensorType(record.dtype, shape)}, a negative dim")
        return TensorType(record.dtype, shape)
    if is_dataclass(record):
        return replace(record, **{f.name: substitute(getattr(record, f.name), dims) for f in fields(record)})  # type: ignore[type-var]
    return record


def bind_graph(template: Graph, values: Mapping[str, int]) -> Graph:
    """Returns the static graph that ``template`` becomes when every dim has the given value.

    Raises:
        InputError: an unknown or missing dim, a value out of the dim's range, an expression without a legal value.
    """
    where = f"graph '{template.name}'"
    problems = [f"it has no dim '{name}'" for name in values if name not in template.dims]
    for name, dim in template.dims.items():
        low, high, value = dim["min"], dim["max"], values.get(name)
        if value is None:
            problems.append(f"dim '{name}' has no value")
        elif isinstance(value, bool) or not isinstance(value, int):
            problems.append(f"dim '{name}' must be an integer, got {value!r}")
        elif value < (low or 0) or value > (MAX_INT if high is None else high):
            problems.append(f"dim '{name}' must be {low or 0} to {'any' if high is None else high}, got {value}")
    if problems:
        hint = f"dims: {', '.join(template.dims) or 'none, the graph is static'}"
        raise InputError.of(where, "cannot be bound: " + "; ".join(problems), hint=hint)
    try:
        static: Graph = substitute(replace(template, dims={}, template=None), values)
    except ValueError as error:
        raise InputError.of(where, f"cannot be bound: {error}", dict(values)) from None
    return replace(static, dims=template.dims, template=template)
