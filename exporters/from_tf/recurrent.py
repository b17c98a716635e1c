"""Recognises the body of a loop that is an LSTM or a GRU cell, whichever way its gates are cut out of products.

What a gate's activation sees is a sum of products with constant matrices and of a bias: from the nodes of the body that sum is worked out
per operand, and the matrices are put together in the order that the op has. Whatever is not exactly a cell is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from exporters.from_tf.table import Known
from rml_exec.ir.graph import Graph, Node

__all__ = ["Cell", "find_cell"]


@dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    Attributes:
        op: ``lstm`` or ``gru``.
        states: which of the carried values are h, and for an LSTM c.
        weights: the operands w, r, bias and for a GRU recurrent_bias; None for one that is not there.
        attrs: further attributes of the op.
    """

    op: str
    states: tuple[int, ...]
    weights: tuple[Known | None, ...]
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sum:
    """A value as the sum of matrices times other values, and of a bias.

    Attributes:
        matrices: value -> [rows, its size], None for the value itself.
        bias: [rows] or one element, None if there is none.
        names: value -> the constant that its matrix is part of; that of the bias has no value ("").
    """

    matrices: Mapping[str, np.ndarray | None]
    bias: np.ndarray | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def find_cell(body: Graph, x: str, carried: Sequence[str]) -> Cell | None:
    """Returns the cell that a loop's body is.

    Args:
        body: one step as a graph; its first outputs are the next values of ``carried``.
        x: the input of the step.
        carried: the inputs that are carried from step to step.
    """
    results = [output.value for output in body.outputs[: len(carried)]]
    cell = _Body(body, x)
    if len(carried) == 1:
        return cell.gru(carried[0], results[0])
    if len(carried) == 2:
        for h, c in ((0, 1), (1, 0)):
            if (found := cell.lstm(carried[h], carried[c], results[h], results[c])) is not None:
                return Cell("lstm", (h, c), found)
    return None


class _Body:
    """One step of a loop."""

    def __init__(self, body: Graph, x: str) -> None:
        self._types = body.types()
        self._made = {value.name: node for node in body.nodes for value in node.outputs}
        self._constants = {constant.name: constant.data for constant in body.constants}
        self._x = x

    def _node(self, value: str, op: str) -> Node | None:
        node = self._made.get(value)
        return node if node is not None and node.op == op else None

    def _operands(self, value: str, op: str) -> list[str]:
        """Returns the operands of what made a value if it is this op, else nothing."""
        node = self._node(value, op)
        return [name for name in node.inputs if name is not None] if node is not None else []

    def _orders(self, value: str, op: str) -> Iterator[tuple[str, str]]:
        if len(operands := self._operands(value, op)) == 2:
            yield operands[0], operands[1]
            yield operands[1], operands[0]

    def lstm(self, h: str, c: str, new_h: str, new_c: str) -> tuple[Known | None, ...] | None:
        """Matches c = sigmoid(f) * c + sigmoid(i) * tanh(g), h = sigmoid(o) * tanh(c)."""
        for out, squashed in self._orders(new_h, "mul"):
            if self._operands(squashed, "tanh") != [new_c]:
                continue
            for kept, added in self._orders(new_c, "add"):
                for forget, old in self._orders(kept, "mul"):
                    for write, new in self._orders(added, "mul"):
                        activated = ((write, "sigmoid"), (forget, "sigmoid"), (new, "tanh"), (out, "sigmoid"))
                        sums = [self._sum(self._operands(gate, op)) for gate, op in activated]
                        if old == c and (found := self._joined(sums, self._x, h, "ifgo")) is not None:
                            return found
        return None

    def gru(self, h: str, new_h: str) -> Cell | None:
        """Matches h = z * h + (1 - z) * n, with the reset gate before or after the product that makes n."""
        for kept, added in self._orders(new_h, "add"):
            for update, old in self._orders(kept, "mul"):
                for rest, new in self._orders(added, "mul"):
                    one = self._operands(rest, "sub")
                    if old != h or len(one) != 2 or one[1] != update or not self._is_one(one[0]):
                        continue
                    gate, candidate = self._sum(self._operands(update, "sigmoid")), self._sum(self._operands(new, "tanh"))
                    if gate is not None and candidate is not None and (found := self._candidate(gate, candidate, h)) is not None:
                        return found
        return None

    def _candidate(self, update: _Sum, candidate: _Sum, h: str) -> Cell | None:
        """Returns the cell if the candidate reads x, and h times the reset gate."""
        products = [name for name in candidate.matrices if name != self._x]
        if len(products) != 1 or self._x not in candidate.matrices:
            return None
        (product,) = products
        for gate, other in self._orders(product, "mul"):
            reset = self._sum(self._operands(gate, "sigmoid"))
            if reset is None:
                continue
            if candidate.matrices[product] is not None:
                if other != h:
                    continue
                names = {**candidate.names, h: candidate.names[product]}
                seen = _Sum({self._x: candidate.matrices[self._x], h: candidate.matrices[product]}, candidate.bias, names)
                found = self._joined([reset, update, seen], self._x, h, "rzn")
                return None if found is None else Cell("gru", (0,), (*found, None), {"reset": "before"})
            inner = self._sum([other])
            if inner is None or set(inner.matrices) != {h}:
                continue
            seen = _Sum({self._x: candidate.matrices[self._x], h: inner.matrices[h]}, candidate.bias, {**inner.names, **candidate.names})
            found = self._joined([reset, update, seen], self._x, h, "rzn")
            if found is not None:
                return Cell("gru", (0,), (*found, self._inner_bias(inner, h)), {"reset": "after"})
        return None

    def _inner_bias(self, inner: _Sum, h: str) -> Known | None:
        """Returns the recurrent bias: what stands inside of the product with the reset gate. Those of the other gates are in the bias."""
        if inner.bias is None:
            return None
        size = self._types[h].shape[1]
        zeros = np.zeros(2 * size, inner.bias.dtype)
        return Known(np.concatenate([zeros, np.broadcast_to(inner.bias, size)]), f"{inner.names['']}.rzn")

    def _joined(self, sums: Sequence[_Sum | None], x: str, h: str, order: str) -> tuple[Known | None, ...] | None:
        """Returns w, r and bias of all gates, one after the other; None if one of them is not a sum over x and h."""
        size = self._types[h].shape[1]
        matrices: dict[str, list[np.ndarray]] = {x: [], h: []}
        biases, names = [], dict[str, str]()
        for gate in sums:
            if gate is None or set(gate.matrices) != {x, h}:
                return None
            for name, rows in matrices.items():
                matrix = gate.matrices[name]
                if matrix is None or matrix.shape != (size, self._types[name].shape[1]):
                    return None
                rows.append(matrix)
            biases.append(np.zeros(size, matrices[x][0].dtype) if gate.bias is None else np.broadcast_to(gate.bias, size))
            names = {**gate.names, **names}
        w, r = (Known(np.concatenate(rows), f"{names[name]}.{order}") for name, rows in matrices.items())
        return w, r, Known(np.concatenate(biases), f"{names['']}.{order}") if "" in names else None

    def _is_one(self, value: str) -> bool:
        constant = self._constants.get(value)
        return constant is not None and bool((constant == 1).all())

    def _sum(self, operands: Sequence[str]) -> _Sum | None:
        """Returns the one operand as a sum; None if there is not one."""
        return self._form(operands[0]) if len(operands) == 1 else None

    def _form(self, value: str) -> _Sum:
        """Returns a value as a sum; of nothing but itself where it is no such sum."""
        itself = _Sum({value: None})
        node = self._made.get(value)
        if node is None:
            constant = self._constants.get(value)
            if constant is None or constant.size != max(constant.shape, default=1):  # a vector, whatever axes of size 1 it has
                return itself
            return _Sum({}, constant.reshape(-1), {"": value})
        if node.op == "add":
            return self._added(*(self._form(name) for name in node.inputs if name is not None)) or itself
        if node.op == "linear":
            return self._product(node) or itself
        if node.op == "slice":
            return self._part(node) or itself
        if node.op == "reshape" and node.inputs[0] is not None:  # of a vector: at batch 1 Keras makes a bias of the second product
            before, after = self._types[node.inputs[0]], self._types[value]
            return (
                self._form(node.inputs[0]) if before.rank and after.rank and before.size == before.shape[-1] == after.shape[-1] else itself
            )
        return itself

    @staticmethod
    def _added(a: _Sum, b: _Sum) -> _Sum | None:
        if set(a.matrices) & set(b.matrices):
            return None
        bias = b.bias if a.bias is None else a.bias if b.bias is None else a.bias + b.bias
        return _Sum({**a.matrices, **b.matrices}, bias, {**a.names, **b.names})

    def _product(self, node: Node) -> _Sum | None:
        """Returns x @ w + bias, x being one value or several side by side."""
        x, weights, *rest = node.inputs
        matrix = self._constants.get(weights or "")
        if x is None or matrix is None:
            return None
        rows = matrix if node.attrs["weight_layout"] == "oi" else matrix.T
        joined = self._node(x, "concat")
        along = joined is not None and joined.attrs["axis"] == self._types[x].rank - 1
        parts = [name for name in joined.inputs if name is not None] if joined is not None and along else [x]
        if len(set(parts)) != len(parts):
            return None
        ends = np.cumsum([self._types[name].shape[-1] for name in parts])
        matrices = dict(zip(parts, np.split(rows, ends[:-1], axis=1), strict=True))
        product = _Sum(matrices, None, dict.fromkeys(parts, weights or ""))
        return product if not rest or rest[0] is None else self._added(product, self._form(rest[0]))

    def _part(self, node: Node) -> _Sum | None:
        """Returns a slice along the last axis."""
        (x,) = node.inputs
        shape = self._types[x or ""].shape
        start, limit = node.attrs["start"], node.attrs["limit"]
        whole = _Sum({}) if x is None else self._form(x)
        if any(start[:-1]) or limit[:-1] != shape[:-1] or set(node.attrs["strides"]) != {1} or not whole.matrices:
            return None
        matrices, rows = {}, slice(start[-1], limit[-1])
        for name, matrix in whole.matrices.items():
            if matrix is None:
                return None
            matrices[name] = matrix[rows]
        bias = whole.bias if whole.bias is None or whole.bias.size == 1 else whole.bias[rows]
        return _Sum(matrices, bias, whole.names)
