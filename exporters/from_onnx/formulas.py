"""Formulas that a file spells out and the graph has an op for: activations, norms, attention, and the bias of a ``linear``.

Exporters to ONNX take composites apart where the operator set of the file had no operator for them. They are found again by what is
computed, never by names. What another node reads too stays as written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from exporters.from_onnx.attention_formulas import attention
from exporters.from_onnx.matching import Match, Matcher, Product
from rml_exec.ir.graph import Body, Function, Graph, Node
from rml_exec.passes.merge_views import MERGE_VIEWS
from rml_exec.types import TensorType

__all__ = ["simplified"]

AnyBody = TypeVar("AnyBody", bound=Body)

_GELU_TANH = 0.044715
_CLOSE = 1e-3
"""How far a number of a formula may be from its own, relatively: files round it, to float16 too."""


def simplified(graph: Graph) -> Graph:
    """Returns the graph with the formulas in it and in its functions replaced, and without what nothing reads any more.

    Views are merged first: PyTorch's exporter swaps the axes of keys by way of another shape.
    """
    graph = MERGE_VIEWS.run(graph)
    functions: dict[str, Function] = {name: _Rewriter(function).rewritten(function) for name, function in graph.functions.items()}
    return replace(_Rewriter(graph).rewritten(graph), functions=functions)


class _Rewriter(Matcher):
    def rewritten(self, body: AnyBody) -> AnyBody:
        nodes: list[Node] = []
        for node in body.nodes:
            match = next((found for rule in _RULES.get(node.op, ()) if (found := rule(self, node)) and self.is_closed(node, found)), None)
            if match is not None:
                nodes += match.before
                node = replace(node, op=match.op, inputs=match.inputs, attrs=match.attrs)
            nodes.append(node)
            self.remember(node)
        needed = {output.value for output in body.outputs}
        kept: list[Node] = []
        for node in reversed(nodes):
            if any(value.name in needed for value in node.outputs):
                kept.append(node)
                needed.update(node.reads())
        constants = tuple(constant for constant in body.constants if constant.name in needed)
        return replace(body, nodes=tuple(reversed(kept)), constants=constants)

    def silu(self, root: Node) -> Match | None:
        a, b = root.reads()
        for x, gate in ((a, b), (b, a)):
            node = self.node(gate, "sigmoid")
            if node is not None and node.inputs[0] == x:
                return Match("silu", (x,), {}, {gate})
        return None

    def gelu(self, root: Node) -> Match | None:
        inside: dict[str, Product] = {}
        (a, first), (b, second) = (self.product(name, inside) for name in root.reads())
        factor, values = a * b, tuple(sorted(first + second))
        for gate in set(values):
            sums: set[str] = set()
            terms = self.plus(gate, sums)
            if terms is None or not math.isclose(factor, 0.5, rel_tol=_CLOSE):
                continue
            rest = list(values)
            rest.remove(gate)
            for one, curve in (terms, terms[::-1]):
                node = self.made.get(curve)
                if self.number(one) != 1.0 or node is None or node.op not in ("erf", "tanh"):
                    continue
                sums.add(curve)
                fits = self._is_erf if node.op == "erf" else self._is_tanh
                if fits(node.inputs[0] or "", tuple(rest), inside, sums):
                    x = rest[0] if len(rest) == 1 else next((name for name, made in inside.items() if made == (1.0, tuple(rest))), None)
                    if x is not None:
                        used = (sums | set(inside)) - {x, root.outputs[0].name}
                        return Match("gelu", (x,), {"approximate": "none" if node.op == "erf" else "tanh"}, used)
        return None

    def _is_erf(self, value: str, x: tuple[str, ...], inside: dict[str, Product], sums: set[str]) -> bool:
        factor, values = self.product(value, inside)
        return values == x and math.isclose(factor, math.sqrt(0.5), rel_tol=_CLOSE)

    def _is_tanh(self, value: str, x: tuple[str, ...], inside: dict[str, Product], sums: set[str]) -> bool:
        """True for sqrt(2/pi) * (x + 0.044715 x^3), also with one x before the bracket."""
        factor, values = self.product(value, inside)
        bracket = Counter(values) - Counter(x)
        outside = len(values) > 1
        if not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=_CLOSE) or len(values) != (len(x) + 1 if outside else 1):
            return False
        if outside and bracket.total() != 1:
            return False
        terms = self.plus(next(iter(bracket)) if outside else values[0], sums)
        if terms is None:
            return False
        power = 2 if outside else 3
        small, large = sorted((self.product(term, inside) for term in terms), key=lambda product: len(product[1]))
        return (
            small == (1.0, () if outside else x)
            and large[1] == tuple(sorted(x * power))
            and math.isclose(large[0], _GELU_TANH, rel_tol=_CLOSE)
        )

    def hard_swish(self, root: Node) -> Match | None:
        """X * min(max(x + 3, 0), 6) / 6."""
        inside: dict[str, Product] = {}
        factor, values = self.product(root.inputs[0] or "", inside)
        if root.op == "div":
            factor /= self.number(root.inputs[1]) or math.inf
        else:
            more, others = self.product(root.inputs[1] or "", inside)
            factor, values = factor * more, values + others
        for x, gate in (values, values[::-1]) if len(values) == 2 else ():
            node, sums = self.made.get(gate), {gate}
            if node is None:
                continue
            if node.op == "hard_sigmoid":
                fits = node.inputs[0] == x and math.isclose(node.attrs["alpha"], 1 / 6, rel_tol=_CLOSE) and node.attrs["beta"] == 0.5
                wanted = 1.0
            else:
                terms = self.plus(node.inputs[0] or "", sums) if node.op == "clamp" else None
                numbers = [self.number(term) for term in terms or () if term != x]
                fits = terms is not None and x in terms and numbers == [3.0] and (node.attrs["lo"], node.attrs["hi"]) == (0, 6)
                wanted = 1 / 6
            if fits and math.isclose(factor, wanted, rel_tol=_CLOSE):
                return Match("hard_swish", (x,), {}, (sums | set(inside)) - {x, root.outputs[0].name})
        return None

    def softplus(self, root: Node) -> Match | None:
        """Softplus up to a threshold, x from there on."""
        test, x, curve = (name or "" for name in root.inputs)
        above, node = self.node(test, "compare"), self.node(curve, "softplus")
        if above is None or node is None or above.inputs[0] != x or node.inputs[0] != x or above.attrs["dir"] != "gt":
            return None
        threshold = self.number(above.inputs[1])
        if threshold is None or node.attrs != {"beta": 1.0, "threshold": None}:
            return None
        return Match("softplus", (x,), {"beta": 1.0, "threshold": threshold}, {test, curve})

    def norm(self, root: Node) -> Match | None:
        """(x - mean) / sqrt(mean of squares + eps), or the same without the mean."""
        a, b = root.inputs[0] or "", root.inputs[1] or ""
        for top, below in ((a, b), (b, a)) if root.op == "mul" else ((a, b),):
            inside: set[str] = set()
            squares = self._under_root(below, root.op, inside)
            if squares is None:
                continue
            mean, eps = squares
            power = self._mean(mean, inside)
            square = self.node(power[0], "mul") if power else None
            if power is None or square is None or square.inputs != (top, top):
                continue
            inside.add(power[0])
            axes = power[1]
            apart = self.node(top, "sub")
            middle = self._mean(apart.inputs[1] or "", set()) if apart is not None else None
            if apart is not None and middle == (apart.inputs[0], axes):
                attrs: dict[str, Any] = {"axes": axes, "eps": eps, "variance": "two_pass"}
                return Match("layer_norm", (apart.inputs[0], None, None), attrs, inside | {top, apart.inputs[1] or ""})
            return Match("rms_norm", (top, None), {"axes": axes, "eps": eps}, inside)
        return None

    def _under_root(self, value: str, op: str, inside: set[str]) -> tuple[str, float] | None:
        """Returns (mean of squares, eps) of the root that a norm divides by, or multiplies with the inverse of."""
        node = self.made.get(value)
        if node is not None and op == "mul" and node.op == "div" and self.number(node.inputs[0]) == 1.0:
            inside.add(value)
            value, op = node.inputs[1] or "", "div"
            node = self.made.get(value)
        if node is None or node.op != ("sqrt" if op == "div" else "rsqrt"):
            return None
        inside.add(value)
        terms = self.plus(node.inputs[0] or "", inside)
        for mean, eps in (terms, terms[::-1]) if terms else ():
            number = self.number(eps)
            if number is not None:
                return mean, number
        return None

    def _mean(self, value: str, inside: set[str]) -> tuple[str, tuple[int, ...]] | None:
        """Returns (operand, axes) of a mean over the last axes that keeps them."""
        node = self.node(value, "reduce")
        if node is None or node.attrs["kind"] != "mean" or not node.attrs["keepdims"]:
            return None
        operand, axes = node.inputs[0] or "", tuple(sorted(node.attrs["axes"]))
        rank = len(self.shape(operand))
        if not axes or axes != tuple(range(rank - len(axes), rank)):
            return None
        inside.add(value)
        return operand, axes

    def scale(self, root: Node) -> Match | None:
        return self._completed(root, 1, ("layer_norm", "rms_norm"))

    def shift(self, root: Node) -> Match | None:
        return self._completed(root, 2, ("layer_norm",))

    def _completed(self, root: Node, place: int, ops: Sequence[str]) -> Match | None:
        """A norm and the scale or bias behind it."""
        a, b = root.reads()
        for y, factor in ((a, b), (b, a)):
            node = self.made.get(y)
            if node is None or node.op not in ops or any(node.inputs[place:]):
                continue
            normalised = tuple(self.shape(y)[axis] for axis in node.attrs["axes"])
            if self.shape(factor) == normalised:
                return Match(node.op, (*node.inputs[:place], factor, *node.inputs[place + 1 :]), node.attrs, {y})
        return None

    def bias(self, root: Node) -> Match | None:
        a, b = root.reads()
        for y, bias in ((a, b), (b, a)):
            node = self.node(y, "linear")
            if node is not None and node.inputs[2] is None and bias in self.constants and self.shape(bias) == self.shape(y)[-1:]:
                return Match("linear", (*node.inputs[:2], bias), node.attrs, {y})
        return None

    def group_norm(self, root: Node) -> Match | None:
        """An instance norm of groups without scale and bias of its own, and scale and bias per channel behind it."""
        terms = list(root.reads())
        for scaled, bias in (terms, terms[::-1]):
            node = self.node(scaled, "mul")
            factors = list(node.reads()) if node is not None else []
            for y, scale in (factors, factors[::-1]) if factors else ():
                inside = {scaled, y}
                x, norm = self._instance_norm(y, inside)
                if norm is None or not all(self._is_per_channel(value, self.shape(y)) for value in (scale, bias)):
                    continue
                before: list[Node] = []
                vector = TensorType(self.types[y].dtype, self.shape(y)[1:2])
                own = [
                    self.new(before, root, "reshape", [value], vector, name, shape=vector.shape)
                    for value, name in ((scale, "scale"), (bias, "bias"))
                ]
                attrs = {"groups": norm.attrs["groups"], "axis": 1, "eps": norm.attrs["eps"]}
                return Match("group_norm", (x, *own), attrs, inside, before)
        return None

    def _instance_norm(self, y: str, inside: set[str]) -> tuple[str, Node | None]:
        """Returns the operand and the node of an instance norm without scale and bias, which may work on groups joined by reshapes."""
        joined = self.node(y, "reshape")
        norm = self.node(joined.inputs[0] if joined is not None else y, "group_norm")
        if norm is None or norm.attrs["axis"] != 1 or not self._is_plain(norm):
            return "", None
        x, groups = norm.inputs[0] or "", norm.attrs["groups"]
        if joined is not None:
            apart = self.node(x, "reshape")
            inside |= {norm.outputs[0].name, x}
            if apart is None or self.shape(x)[:2] != (self.shape(y)[0], groups) or self.shape(apart.inputs[0]) != self.shape(y):
                return "", None
            x = apart.inputs[0] or ""
        return x, norm

    def _is_plain(self, norm: Node) -> bool:
        """True if all scales are 1 and all biases 0."""
        for name, neutral in zip(norm.inputs[1:], (1, 0), strict=True):
            constant = self.constants.get(name or "")
            if name is not None and (constant is None or not bool((constant.data == neutral).all())):
                return False
        return True

    def _is_per_channel(self, value: str, shape: tuple[int, ...]) -> bool:
        """True for a constant that, against a value of this shape, has one number for each index of axis 1."""
        own = self.shape(value)
        wide = (1,) * (len(shape) - len(own)) + own
        return value in self.constants and wide == (1, shape[1], *(1 for _ in shape[2:]))


_Rule = Callable[[_Rewriter, Node], Match | None]
_RULES: Mapping[str, Sequence[_Rule]] = {
    "mul": (_Rewriter.silu, _Rewriter.gelu, _Rewriter.hard_swish, _Rewriter.norm, _Rewriter.scale),
    "add": (_Rewriter.shift, _Rewriter.bias, _Rewriter.group_norm),
    "div": (_Rewriter.norm, _Rewriter.hard_swish),
    "select": (_Rewriter.softplus,),
    "matmul": (attention,),
}
