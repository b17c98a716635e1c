"""Formulas that a file spells out and the graph has an op for: silu, gelu, layer and RMS norm, attention, and the bias of a ``linear``.

Exporters to ONNX take composites apart where the operator set of the file had no operator for them. They are found again by what is
computed, never by names. What another node reads too stays as written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from rml_exec.ir.graph import Body, Constant, Function, Graph, Node, Value
from rml_exec.ir.names import Names
from rml_exec.types import TensorType

__all__ = ["simplified"]

AnyBody = TypeVar("AnyBody", bound=Body)

_GELU_TANH = 0.044715
_CLOSE = 1e-3
"""How far a number of a formula may be from its own, relatively: files round it, to float16 too."""

_MOST_FACTORS = 8
_MASKED = -1e30
"""What a mask adds to a score that does not count; a softmax makes 0 of it."""


def simplified(graph: Graph) -> Graph:
    """Returns the graph with the formulas in it and in its functions replaced, and without what nothing reads any more."""
    functions: dict[str, Function] = {name: _Rewriter(function).rewritten(function) for name, function in graph.functions.items()}
    return replace(_Rewriter(graph).rewritten(graph), functions=functions)


@dataclass(slots=True)
class _Match:
    """What a rule found: the node in place of the root, those before it, and the values inside, which nothing else may read."""

    op: str
    inputs: tuple[str | None, ...]
    attrs: Mapping[str, Any]
    inside: set[str]
    before: list[Node] = field(default_factory=list)


_Product = tuple[float, tuple[str, ...]]
"""A number and the values that are multiplied with it, sorted."""


class _Rewriter:
    def __init__(self, body: Body) -> None:
        self._types = body.types()
        self._made: dict[str, Node] = {}
        self._products: dict[str, _Product] = {}
        self._constants: dict[str, Constant] = {constant.name: constant for constant in body.constants}
        self._readers: dict[str, set[str]] = {output.value: {""} for output in body.outputs}
        for node in body.nodes:
            for name in node.reads():
                self._readers.setdefault(name, set()).add(node.outputs[0].name)
        self._value_names = Names(self._types)
        self._node_names = Names(node.name for node in body.nodes)

    def rewritten(self, body: AnyBody) -> AnyBody:
        nodes: list[Node] = []
        for node in body.nodes:
            match = next((found for rule in _RULES.get(node.op, ()) if (found := rule(self, node)) and self._is_closed(node, found)), None)
            if match is not None:
                nodes += match.before
                node = replace(node, op=match.op, inputs=match.inputs, attrs=match.attrs)
            nodes.append(node)
            self._remember(node)
        needed = {output.value for output in body.outputs}
        kept: list[Node] = []
        for node in reversed(nodes):
            if any(value.name in needed for value in node.outputs):
                kept.append(node)
                needed.update(node.reads())
        constants = tuple(constant for constant in body.constants if constant.name in needed)
        return replace(body, nodes=tuple(reversed(kept)), constants=constants)

    def _is_closed(self, root: Node, match: _Match) -> bool:
        inside = match.inside | {root.outputs[0].name}
        return all(self._readers.get(value, set()) <= inside for value in match.inside)

    def _node(self, value: str | None, op: str) -> Node | None:
        node = self._made.get(value or "")
        return node if node is not None and node.op == op else None

    def _number(self, value: str | None) -> float | None:
        constant = self._constants.get(value or "")
        if constant is None or constant.type.size != 1 or not constant.type.dtype.is_float:
            return None
        return float(constant.data.reshape(-1)[0])

    def _shape(self, value: str) -> tuple[int, ...]:
        return self._types[value].shape

    def _remember(self, node: Node) -> None:
        """Makes a node known to the rules for those behind it."""
        self._made.update((value.name, node) for value in node.outputs)
        if node.op == "mul":
            (a, first), (b, second) = (self._product_of(name) for name in node.reads())
            product = a * b, tuple(sorted(first + second))
        elif node.op == "div" and (divisor := self._number(node.inputs[1])):
            a, first = self._product_of(node.inputs[0] or "")
            product = a / divisor, first
        else:
            return
        if len(product[1]) <= _MOST_FACTORS:
            self._products[node.outputs[0].name] = product

    def _product_of(self, value: str) -> _Product:
        number = self._number(value)
        return (number, ()) if number is not None else self._products.get(value, (1.0, (value,)))

    def _product(self, value: str, inside: dict[str, _Product]) -> _Product:
        """Returns what multiplications a value consists of; ``inside`` gets the values on the way and what they are."""
        pending = [value]
        while pending:
            name = pending.pop()
            if name in self._products and name not in inside:
                inside[name] = self._products[name]
                pending += self._made[name].reads()
        return self._product_of(value)

    def _plus(self, value: str, inside: set[str]) -> tuple[str, str] | None:
        """Returns the operands of a sum."""
        node = self._node(value, "add")
        if node is None:
            return None
        inside.add(value)
        a, b = node.reads()
        return a, b

    def silu(self, root: Node) -> _Match | None:
        a, b = root.reads()
        for x, gate in ((a, b), (b, a)):
            node = self._node(gate, "sigmoid")
            if node is not None and node.inputs[0] == x:
                return _Match("silu", (x,), {}, {gate})
        return None

    def gelu(self, root: Node) -> _Match | None:
        inside: dict[str, _Product] = {}
        (a, first), (b, second) = (self._product(name, inside) for name in root.reads())
        factor, values = a * b, tuple(sorted(first + second))
        for gate in set(values):
            sums: set[str] = set()
            terms = self._plus(gate, sums)
            if terms is None or not math.isclose(factor, 0.5, rel_tol=_CLOSE):
                continue
            rest = list(values)
            rest.remove(gate)
            for one, curve in (terms, terms[::-1]):
                node = self._made.get(curve)
                if self._number(one) != 1.0 or node is None or node.op not in ("erf", "tanh"):
                    continue
                sums.add(curve)
                fits = self._is_erf if node.op == "erf" else self._is_tanh
                if fits(node.inputs[0] or "", tuple(rest), inside, sums):
                    x = rest[0] if len(rest) == 1 else next((name for name, made in inside.items() if made == (1.0, tuple(rest))), None)
                    if x is not None:
                        used = (sums | set(inside)) - {x, root.outputs[0].name}
                        return _Match("gelu", (x,), {"approximate": "none" if node.op == "erf" else "tanh"}, used)
        return None

    def _is_erf(self, value: str, x: tuple[str, ...], inside: dict[str, _Product], sums: set[str]) -> bool:
        factor, values = self._product(value, inside)
        return values == x and math.isclose(factor, math.sqrt(0.5), rel_tol=_CLOSE)

    def _is_tanh(self, value: str, x: tuple[str, ...], inside: dict[str, _Product], sums: set[str]) -> bool:
        """True for sqrt(2/pi) * (x + 0.044715 x^3), also with one x before the bracket."""
        factor, values = self._product(value, inside)
        bracket = Counter(values) - Counter(x)
        outside = len(values) > 1
        if not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=_CLOSE) or len(values) != (len(x) + 1 if outside else 1):
            return False
        if outside and bracket.total() != 1:
            return False
        terms = self._plus(next(iter(bracket)) if outside else values[0], sums)
        if terms is None:
            return False
        power = 2 if outside else 3
        small, large = sorted((self._product(term, inside) for term in terms), key=lambda product: len(product[1]))
        return (
            small == (1.0, () if outside else x)
            and large[1] == tuple(sorted(x * power))
            and math.isclose(large[0], _GELU_TANH, rel_tol=_CLOSE)
        )

    def norm(self, root: Node) -> _Match | None:
        """(x - mean) / sqrt(mean of squares + eps), or the same without the mean."""
        a, b = root.inputs[0] or "", root.inputs[1] or ""
        for top, below in ((a, b), (b, a)) if root.op == "mul" else ((a, b),):
            inside: set[str] = set()
            squares = self._under_root(below, root.op, inside)
            if squares is None:
                continue
            mean, eps = squares
            power = self._mean(mean, inside)
            square = self._node(power[0], "mul") if power else None
            if power is None or square is None or square.inputs != (top, top):
                continue
            inside.add(power[0])
            axes = power[1]
            apart = self._node(top, "sub")
            middle = self._mean(apart.inputs[1] or "", set()) if apart is not None else None
            if apart is not None and middle == (apart.inputs[0], axes):
                attrs: dict[str, Any] = {"axes": axes, "eps": eps, "variance": "two_pass"}
                return _Match("layer_norm", (apart.inputs[0], None, None), attrs, inside | {top, apart.inputs[1] or ""})
            return _Match("rms_norm", (top, None), {"axes": axes, "eps": eps}, inside)
        return None

    def _under_root(self, value: str, op: str, inside: set[str]) -> tuple[str, float] | None:
        """Returns (mean of squares, eps) of the root that a norm divides by, or multiplies with the inverse of."""
        node = self._made.get(value)
        if node is not None and op == "mul" and node.op == "div" and self._number(node.inputs[0]) == 1.0:
            inside.add(value)
            value, op = node.inputs[1] or "", "div"
            node = self._made.get(value)
        if node is None or node.op != ("sqrt" if op == "div" else "rsqrt"):
            return None
        inside.add(value)
        terms = self._plus(node.inputs[0] or "", inside)
        for mean, eps in (terms, terms[::-1]) if terms else ():
            number = self._number(eps)
            if number is not None:
                return mean, number
        return None

    def _mean(self, value: str, inside: set[str]) -> tuple[str, tuple[int, ...]] | None:
        """Returns (operand, axes) of a mean over the last axes that keeps them."""
        node = self._node(value, "reduce")
        if node is None or node.attrs["kind"] != "mean" or not node.attrs["keepdims"]:
            return None
        operand, axes = node.inputs[0] or "", tuple(sorted(node.attrs["axes"]))
        rank = len(self._shape(operand))
        if not axes or axes != tuple(range(rank - len(axes), rank)):
            return None
        inside.add(value)
        return operand, axes

    def scale(self, root: Node) -> _Match | None:
        return self._completed(root, 1, ("layer_norm", "rms_norm"))

    def shift(self, root: Node) -> _Match | None:
        return self._completed(root, 2, ("layer_norm",))

    def _completed(self, root: Node, place: int, ops: Sequence[str]) -> _Match | None:
        """A norm and the scale or bias behind it."""
        a, b = root.reads()
        for y, factor in ((a, b), (b, a)):
            node = self._made.get(y)
            if node is None or node.op not in ops or any(node.inputs[place:]):
                continue
            normalised = tuple(self._shape(y)[axis] for axis in node.attrs["axes"])
            if self._shape(factor) == normalised:
                return _Match(node.op, (*node.inputs[:place], factor, *node.inputs[place + 1 :]), node.attrs, {y})
        return None

    def bias(self, root: Node) -> _Match | None:
        a, b = root.reads()
        for y, bias in ((a, b), (b, a)):
            node = self._node(y, "linear")
            if node is not None and node.inputs[2] is None and bias in self._constants and self._shape(bias) == self._shape(y)[-1:]:
                return _Match("linear", (*node.inputs[:2], bias), node.attrs, {y})
        return None

    def attention(self, root: Node) -> _Match | None:
        if root.attrs["transpose_a"] or root.attrs["transpose_b"]:
            return None
        weights, values = root.inputs[0] or "", root.inputs[1] or ""
        inside = {weights}
        guard = self._node(weights, "select")
        if guard is not None:  # rows of which every score is masked
            test, zero, weights = (name or "" for name in guard.inputs)
            strange = self._node(test, "is_nan")
            if strange is None or strange.inputs[0] != weights or self._number(zero) != 0.0:
                return None
            inside |= {test, weights}
        softmax = self._node(weights, "softmax")
        if softmax is None or softmax.attrs["axis"] != len(self._shape(weights)) - 1:
            return None
        scores, mask, kind = self._masked(softmax.inputs[0] or "", inside)
        factors: dict[str, _Product] = {}
        scale, rest = self._product(scores, factors)
        product = self._node(rest[0], "matmul") if len(rest) == 1 else None
        if product is None or product.attrs["transpose_a"] or self._shape(scores) != self._shape(weights):
            return None
        inside |= {rest[0], *factors}
        (query_scale, query), (key_scale, key) = (self._scaled(name or "", inside) for name in product.inputs)
        before: list[Node] = []
        if not product.attrs["transpose_b"]:
            key, before = self._turned(key, root)
        leading = {self._shape(name)[:-2] for name in (query, key, values)}
        if len(leading) > 1 or len(self._shape(query)) < 3 or self._shape(query)[-1] != self._shape(key)[-1]:
            return None
        attrs = {
            "scale": scale * query_scale * key_scale,
            "softcap": None,
            "mask": kind,
            "fully_masked": "zero" if guard is not None or kind in ("none", "causal") else softmax.attrs["fully_masked"],
            "kv_groups": 1,
        }
        return _Match("attention", (query, key, values, mask), attrs, inside, before)

    def _masked(self, scores: str, inside: set[str]) -> tuple[str, str | None, str]:
        """Returns scores before their mask, the mask and its kind."""
        inside.add(scores)
        node = self._made.get(scores)
        if node is not None and node.op == "add":
            a, b = node.reads()
            for inner, mask in ((a, b), (b, a)):
                if self._is_product(inner) and self._shape(inner) == self._shape(scores):
                    inside.add(inner)
                    known = self._constants.get(mask)
                    kind = "additive" if known is None else _kind(known.data <= _MASKED, known.data, self._types[scores], "additive")
                    return inner, mask if kind == "additive" else None, kind
        if node is not None and node.op == "select" and self._number(node.inputs[2]) == -math.inf:
            mask, inner = node.inputs[0] or "", node.inputs[1] or ""
            if self._is_product(inner) and self._shape(inner) == self._shape(scores):
                inside.add(inner)
                known = self._constants.get(mask)
                kind = "bool" if known is None else _kind(~known.data, np.zeros(1), self._types[scores], "bool")
                return inner, mask if kind == "bool" else None, kind
        return scores, None, "none"

    def _is_product(self, value: str) -> bool:
        _, rest = self._product(value, {})
        return len(rest) == 1 and self._node(rest[0], "matmul") is not None

    def _scaled(self, value: str, inside: set[str]) -> tuple[float, str]:
        """Returns a number and the value that it is multiplied with, if a value is that."""
        factors: dict[str, _Product] = {}
        factor, rest = self._product(value, factors)
        if len(rest) != 1:
            return 1.0, value
        inside |= set(factors)
        return factor, rest[0]

    def _turned(self, value: str, root: Node) -> tuple[str, list[Node]]:
        """Returns a value with its last two axes exchanged, and the node that does it where there must be one."""
        node = self._node(value, "transpose")
        source, perm = (
            (node.inputs[0] or "", list(node.attrs["perm"])) if node is not None else (value, list(range(len(self._shape(value)))))
        )
        perm[-2:] = perm[:-3:-1]
        if perm == sorted(perm):
            return source, []
        shape = self._shape(value)
        type_ = TensorType(self._types[value].dtype, (*shape[:-2], shape[-1], shape[-2]))
        result = Value(self._value_names.take(f"{root.name}.keys"), type_)
        self._types[result.name] = type_
        turn = Node("transpose", self._node_names.take(result.name), (source,), (result,), {"perm": tuple(perm)}, {}, dict(root.source))
        return result.name, [turn]


def _kind(hidden: np.ndarray, added: np.ndarray, scores: TensorType, otherwise: str) -> str:
    """Returns ``none`` for a known mask that hides nothing, ``causal`` for one that hides just what comes later, else ``otherwise``.

    Args:
        hidden: true where a score does not count.
        added: what is added to the others.
        scores: the scores' type.
        otherwise: the kind of any other mask.
    """
    if np.any(added[added > _MASKED]):
        return otherwise
    if not hidden.any():
        return "none"
    rows, columns = scores.shape[-2:]
    later = ~np.tri(rows, columns, dtype=bool)
    return "causal" if hidden.shape[-2:] == later.shape and bool((hidden == later).all()) else otherwise


_Rule = Callable[[_Rewriter, Node], _Match | None]
_RULES: Mapping[str, Sequence[_Rule]] = {
    "mul": (_Rewriter.silu, _Rewriter.gelu, _Rewriter.norm, _Rewriter.scale),
    "div": (_Rewriter.norm,),
    "add": (_Rewriter.shift, _Rewriter.bias),
    "matmul": (_Rewriter.attention,),
}
