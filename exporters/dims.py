"""Symbolic dims: ``--dim batch=1..64``, and one symbolic graph from static ones.

An exporter makes the static graph at several sizes of the dims; :func:`generalise` lays these over each other. What is the same everywhere
stays, an integer that varies becomes the simplest expression over the dims that gives its value at every size, and anything else that
varies is reported with its place. So lowerings see plain integers, and an expression that is wrong at a size that was tried cannot arise.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from keyword import iskeyword
from typing import Any

import numpy as np

from exporters.errors import ExportError
from rml_exec.errors import RmlError
from rml_exec.ir.dims import MAX_LENGTH, Expr, bind_graph, parse_expr
from rml_exec.ir.graph import Constant, Graph, Node, Value
from rml_exec.loading import check_graph

__all__ = ["Binding", "Dim", "axes_of", "check_sizes", "generalise", "hints", "parse_dim", "shapes_at", "share_constants", "trial_sizes"]

Binding = Mapping[str, int]
"""Dim name -> size."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dim that stays symbolic.

    Attributes:
        name: an identifier other than ``min`` and ``max``.
        low: smallest size, at least 1.
        high: largest size, None if any.
        axes: the axes that have this size: (input, axis) pairs, or one axis number that holds for every input.

    Raises:
        ExportError: another name, or an empty range.
    """

    name: str
    low: int = 1
    high: int | None = None
    axes: int | tuple[tuple[str, int], ...] = 0

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise ExportError.of("dim", "the name must be an identifier, and not min or max", repr(self.name))
        if self.low < 1 or (self.high is not None and self.high < self.low):
            high = "any" if self.high is None else self.high
            raise ExportError.of(f"dim '{self.name}'", "the range must not be empty and begin at 1 or above", f"{self.low}..{high}")


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text) and text not in ("min", "max")


def parse_dim(text: str) -> Dim:
    """Returns the dim of a command line option: ``NAME=LOW..[HIGH][@AXIS | @INPUT.AXIS,...]``.

    ``batch=1..64`` is the first axis of every input, ``tokens=2..@1`` the second of every input and of any size from 2, and
    ``tokens=2..128@ids.1,mask.1`` the second of these two.

    Raises:
        ExportError: another form, or an empty range.
    """
    match = re.fullmatch(r"(\w+)=(\d+)\.\.(\d+)?(?:@(.+))?", text)
    axes: int | tuple[tuple[str, int], ...] | None = 0
    if match and match[4]:
        pairs = re.findall(r"([^,]+)\.(\d+)(?:,|$)", match[4])
        named = tuple((name, int(axis)) for name, axis in pairs)
        axes = int(match[4]) if match[4].isdecimal() else named if len(named) == match[4].count(",") + 1 else None
    if not match or axes is None or not _is_name(match[1]):
        rule = "must be NAME=LOW..HIGH, with @AXIS or @INPUT.AXIS,... behind it where it is not the first axis"
        raise ExportError.of("--dim", rule, repr(text), hint="batch=1..64, tokens=2..@1 or tokens=2..128@ids.1,mask.1")
    try:
        return Dim(match[1], int(match[2]), int(match[3]) if match[3] else None, axes)
    except ExportError as error:
        raise ExportError(f"--dim: {error}") from None


def axes_of(dim: Dim, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns input name -> axis for the inputs that have the dim.

    Raises:
        ExportError: an input or axis that is not there, no input at all, or example inputs that have different sizes there.
    """
    where = f"dim '{dim.name}'"
    everywhere = {name: dim.axes for name, shape in shapes.items() if isinstance(dim.axes, int) and len(shape) > dim.axes}
    axes = everywhere if isinstance(dim.axes, int) else dict(dim.axes)
    for name, axis in axes.items():
        if name not in shapes or not axis < len(shapes[name]):
            raise ExportError.of(where, f"there is no axis {axis} of an input '{name}'", hint=f"inputs: {', '.join(shapes) or 'none'}")
    sizes = {shapes[name][axis] for name, axis in axes.items()}
    if len(sizes) != 1:
        raise ExportError.of(
            where, "must be one size in the example inputs", ", ".join(map(str, sorted(sizes))) or "no input with that axis"
        )
    return axes


def hints(dims: Sequence[Dim], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns the sizes that the example inputs have; raises ExportError for one out of its range, and as :func:`axes_of`."""
    found = {}
    for dim in dims:
        (name, axis), *_ = axes_of(dim, shapes).items()
        size = found[dim.name] = shapes[name][axis]
        if size < dim.low or size > (size if dim.high is None else dim.high):
            high = "any" if dim.high is None else dim.high
            raise ExportError.of(f"dim '{dim.name}'", f"the example inputs must be within {dim.low}..{high}", size)
    if len(found) != len(dims):
        raise ExportError.of("export", "dims must have different names", ", ".join(dim.name for dim in dims))
    return found


def shapes_at(dims: Sequence[Dim], shapes: Mapping[str, Sequence[int]], binding: Binding) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the inputs at other sizes of the dims."""
    found = {name: list(shape) for name, shape in shapes.items()}
    for dim in dims:
        for name, axis in axes_of(dim, shapes).items():
            found[name][axis] = binding[dim.name]
    return {name: tuple(shape) for name, shape in found.items()}


def trial_sizes(dims: Sequence[Dim], hint: Binding) -> list[dict[str, int]]:
    """Returns the sizes to make static graphs at: each dim takes up to four sizes of at least 2 where its range allows, in all pairs; one
    alone takes up to six, the last far from the others, so that quotients come apart.

    Sizes of 1 are left out where possible: frameworks and broadcasting treat them specially.
    """
    choices = []
    for dim in dims:
        high = dim.high if dim.high is not None else max(dim.low, hint[dim.name]) + 24
        start = min(max(dim.low, 2), high)
        sizes = {start, start + 1, start + 3, start + 8, hint[dim.name] if hint[dim.name] > 1 else start, high if high < 64 else start}
        chosen = sorted(size for size in sizes if size <= high)[:4]
        further = [start + 8, min(start + 29, high - 1)] if len(dims) == 1 else []  # at the very highest graphs lose a slice
        choices.append(sorted({*chosen, *(size for size in further if start <= size <= high)}))
    if len(dims) == 1:
        return [{dims[0].name: size} for size in choices[0]]
    base = {dim.name: sizes[0] for dim, sizes in zip(dims, choices, strict=True)}
    trials = [base | {dim.name: size} for dim, sizes in zip(dims, choices, strict=True) for size in sizes]
    for (a, a_sizes), (b, b_sizes) in itertools.combinations(list(zip(dims, choices, strict=True)), 2):
        trials += [base | {a.name: a_sizes[-1], b.name: b_sizes[-1]}, base | {a.name: a_sizes[-1], b.name: b_sizes[len(b_sizes) // 2]}]
    return [dict(pairs) for pairs in dict.fromkeys(tuple(trial.items()) for trial in trials)]


def check_sizes(dims: Sequence[Dim], hint: Binding) -> list[dict[str, int]]:
    """Returns sizes to compare with the framework at beside the hints: two where the ranges hold so many, the smallest first."""

    def within(dim: Dim, size: int) -> int:
        return max(dim.low, size if dim.high is None else min(size, dim.high))

    choices = (lambda _: 1, lambda n: 2 * n + 3, lambda n: n + 1, lambda n: n // 2 + 1)
    wishes = [{dim.name: within(dim, size(hint[dim.name])) for dim in dims} for size in choices]
    found = [dict(sizes) for sizes in dict.fromkeys(tuple(wish.items()) for wish in wishes) if dict(sizes) != dict(hint)]
    return found[:2]


def share_constants(graph: Graph, graphs: Sequence[tuple[Binding, Graph]]) -> Graph:
    """Returns the graph with the data of the first of ``graphs`` in place of its own where they are equal: else weights that an exporter
    rearranged would be held once per size.
    """
    if not graphs:
        return graph
    known = {constant.name: constant for constant in graphs[0][1].constants}
    same = (known.get(constant.name, constant) for constant in graph.constants)
    return replace(graph, constants=tuple(k if _same(k, c) else c for k, c in zip(same, graph.constants, strict=True)))


def generalise(graphs: Sequence[tuple[Binding, Graph]], dims: Sequence[Dim], hint: Binding, candidates: Sequence[str] = ()) -> Graph:
    """Returns the symbolic graph that becomes each of the given ones at its sizes; bound to the hints.

    Args:
        graphs: (sizes, graph) for all of :func:`trial_sizes`.
        dims: the dims.
        hint: the sizes of the example inputs.
        candidates: expressions over the dims that occur in the framework's own symbolic shapes, such as ``(height - 1) // 2 + 1``.

    Raises:
        ExportError: graphs that differ in more than integers, or in an integer that no simple expression gives.
    """
    fit = _Fit([binding for binding, _ in graphs], dims, candidates)
    try:
        template = fit.merge([graph for _, graph in graphs], "the graph")
    except _VariesError as error:
        raise ExportError.of(
            f"symbolic export of '{graphs[0][1].name}'",
            "the graph must be the same for all sizes of the dims, integers apart",
            str(error),
            hint="give this dim a fixed size, or rewrite that line of the model",
        ) from None
    declared = {dim.name: {"min": dim.low, "max": dim.high, "hint": hint[dim.name]} for dim in dims}
    template = replace(template, dims=declared)
    try:
        graph = bind_graph(template, hint)
        check_graph(graph)
    except RmlError as error:
        raise ExportError.of(
            f"symbolic export of '{template.name}'", "the graph must hold for the example inputs too", str(error)
        ) from error
    return graph


_MAX_MULTIPLE, _MAX_DIVISOR = 4, 64
"""Of the quotients that are looked for."""

_TRIED_SIZES = 1024
"""At how many sizes above a dim's smallest two quotients must be the same to count as one."""


class _VariesError(Exception):
    """Says what varies."""


class _Fit:
    """Finds expressions: for a value at each binding, the text that gives them all."""

    def __init__(self, bindings: Sequence[Binding], dims: Sequence[Dim], candidates: Sequence[str]) -> None:
        self._bindings, self._dims = bindings, dims
        names = [dim.name for dim in dims]
        texts = [*names, *(f"{a} * {b}" for a, b in itertools.combinations_with_replacement(names, 2))]
        simple = {text: parse_expr(text) for text in texts}
        self._bases: dict[tuple[int, ...], str] = {}  # of equal ones the simplest
        self._add_bases(self._bases, [*simple, *candidates, *_products(itertools.combinations_with_replacement(candidates, 2))])
        halves = [f"{top} // 2" for name in names for top in (name, f"({name} + 1)", f"({name} - 1)")]  # strides of 2, any parity
        self._quotients: dict[tuple[int, ...], str] = {}
        self._add_bases(self._quotients, [*halves, *_products(itertools.combinations_with_replacement([*names, *halves], 2))])
        self._terms = [np.array(self._values(simple[text])) for text in texts]
        self._term_texts = texts
        self._found: dict[tuple[int, ...], Expr] = {}

    def _add_bases(self, bases: dict[tuple[int, ...], str], texts: Iterable[str]) -> None:
        for text in texts:
            bases.setdefault(self._values(parse_expr(text)), text)

    def _values(self, expression: Expr) -> tuple[int, ...]:
        return tuple(expression.evaluate(binding) for binding in self._bindings)

    def merge(self, items: Sequence[Any], where: str) -> Any:
        """Returns the record that becomes each of ``items``; raises _VariesError."""
        first = items[0]
        if isinstance(first, Constant):
            if not all(_same(first, item) for item in items[1:]):
                raise _VariesError(f"constant '{first.name}', computed at export, depends on them")
            return first
        if isinstance(first, Node | Value):
            where = f"{first.op} '{first.name}'" if isinstance(first, Node) else where
            origin = first.source.get("where") if isinstance(first, Node) else None
            where += f" ({origin})" if origin else ""
        if is_dataclass(first) and not isinstance(first, type):
            if any(type(item) is not type(first) for item in items):
                raise _VariesError(where)
            places = {f.name: f"{f.name} of {where}" if isinstance(first, Graph) else where for f in fields(first) if f.init}
            merged = {name: self.merge([getattr(item, name) for item in items], place) for name, place in places.items()}
            return replace(first, **merged)
        if isinstance(first, tuple):
            if len({len(item) for item in items}) > 1:
                raise _VariesError(f"{where}: {', '.join(str(len(item)) for item in items)} of them")
            return tuple(self.merge(list(parts), where) for parts in zip(*items, strict=True))
        if isinstance(first, Mapping):
            if any(item.keys() != first.keys() for item in items):
                raise _VariesError(f"{where}: the names of things")
            return {key: self.merge([item[key] for item in items], f"{where} {key}") for key in first}
        if all(type(item) is type(first) and (item == first or (item != item and first != first)) for item in items):  # NaN too
            return first
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return self._expression(tuple(items), where)
        raise _VariesError(f"{where}: {', '.join(dict.fromkeys(map(str, items)))}")

    def _expression(self, values: tuple[int, ...], where: str) -> Expr:
        if values not in self._found:
            text = self._scaled(values, self._bases) or self._sum(values) or self._scaled(values, self._quotients) or self._quotient(values)
            if text is None:
                sizes = "; ".join(", ".join(f"{name}={size}" for name, size in binding.items()) for binding in self._bindings)
                raise _VariesError(f"{where}: {', '.join(map(str, values))} at {sizes}, which is no simple expression")
            self._found[values] = parse_expr(text)
        return self._found[values]

    def _scaled(self, values: tuple[int, ...], bases: Mapping[tuple[int, ...], str]) -> str | None:
        """Returns ``factor * base + offset``."""
        if values in bases:
            return bases[values]
        for base, text in bases.items():
            pair = next((pair for pair in itertools.combinations(range(len(base)), 2) if base[pair[0]] != base[pair[1]]), None)
            if pair is None:
                continue
            factor, rest = divmod(values[pair[1]] - values[pair[0]], base[pair[1]] - base[pair[0]])
            offset = values[pair[0]] - factor * base[pair[0]]
            if not rest and all(factor * b + offset == value for b, value in zip(base, values, strict=True)):
                return _term(factor, text) + (f" + {offset}" if offset > 0 else f" - {-offset}" if offset else "")
        return None

    def _quotient(self, values: tuple[int, ...]) -> str | None:
        """Returns ``factor * ((multiple * dim + shift) // divisor) + offset``, if what fits is the same at all sizes of the dim.

        Quotients rounded down or up go first, then these plus a number. What is found is a base, times a dim too, for the values to come.
        """
        factor = math.gcd(*(value - values[0] for value in values))
        offset = values[0] % factor if factor else 0
        for dim, multiple in itertools.product(self._dims, range(1, _MAX_MULTIPLE + 1) if factor else ()):
            sizes = [multiple * binding[dim.name] for binding in self._bindings]
            fitting = []
            for divisor in range(2, _MAX_DIVISOR + 1):
                edges = [divisor * ((value - offset) // factor) - size for value, size in zip(values, sizes, strict=True)]
                shifts = range(max(edges), min(edges) + divisor)
                fitting += [(shift, divisor) for shift in shifts]
            if not fitting:
                continue
            ranks = [0 if s in (0, d - 1) else 1 if s % d in (0, d - 1) else 2 for s, d in fitting]
            plain = [form for form, rank in zip(fitting, ranks, strict=True) if rank == min(ranks)]
            high = dim.low + _TRIED_SIZES if dim.high is None else min(dim.high, dim.low + _TRIED_SIZES)
            tried = multiple * np.arange(dim.low, high + 1)
            shift, divisor = plain[0]
            if any(not np.array_equal((tried + s) // d, (tried + shift) // divisor) for s, d in plain):
                return None
            top = _term(multiple, dim.name) + (f" + {shift}" if shift > 0 else f" - {-shift}" if shift else "")
            text = f"({top}) // {divisor}"
            self._add_bases(self._quotients, [text, *_products((text, other) for other in (*(dim.name for dim in self._dims), text))])
            return self._scaled(values, self._quotients)
        return None

    def _sum(self, values: tuple[int, ...]) -> str | None:
        """Returns a polynomial of degree two with whole coefficients, if it has fewer of them than there are bindings."""
        matrix = np.stack([*self._terms, np.ones(len(values))], axis=1).astype(np.float64)
        if np.linalg.matrix_rank(matrix) >= len(values):
            return None
        coefficients = [round(c) for c in np.linalg.lstsq(matrix, np.array(values, np.float64), rcond=None)[0]]
        if any(int(row) != value for row, value in zip(matrix @ np.array(coefficients, np.float64), values, strict=True)):
            return None
        texts = [_term(c, text) for c, text in zip(coefficients, self._term_texts, strict=False) if c]
        return " + ".join([*texts, *([str(coefficients[-1])] if coefficients[-1] else [])]) or "0"


def _same(a: Constant, b: Constant) -> bool:
    if (a.name, a.type, a.key) != (b.name, b.type, b.key):
        return False
    return a.data.__array_interface__ == b.data.__array_interface__ or np.array_equal(
        a.data.reshape(-1).view(np.uint8), b.data.reshape(-1).view(np.uint8)
    )


def _products(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [text for a, b in pairs if len(text := f"({a}) * ({b})") <= MAX_LENGTH]


def _term(factor: int, text: str) -> str:
    return text if factor == 1 else f"{factor} * {text}" if text.isidentifier() else f"{factor} * ({text})"
