"""Recognises composites that a model writes out as formulas, and puts the operator of torch in their place that computes the same.

Norms and activations are written so by models that keep their own copy of a layer (Llama's RMS norm, GPT-2's gelu). The node that ends the
formula becomes the call of the operator, and keeps its name, its line and its traced result; what it no longer needs is dead code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from exporters.from_torch import attention
from exporters.from_torch.matching import Found, Op, Term, in_any_order, matches, packet_of, shape_of

__all__ = ["recognise"]

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments and its keyword arguments."""

aten = torch.ops.aten


_CHECKS = re.compile(r"_assert_\w+|sym_constrain_range\w*")
"""Operators that check what the static types say already: they would be readers of what else only one node reads."""


def recognise(module: GraphModule) -> None:
    """Rewrites the formulas of a decomposed graph, and of the bodies of its loops and branches, in place; takes out checks of types."""
    for graph in (part.graph for part in module.modules() if isinstance(part, GraphModule)):
        for node in reversed(graph.nodes):
            if _CHECKS.fullmatch(packet_of(node)):
                graph.erase_node(node)
        for node in reversed(graph.nodes):
            if node.op == "call_function" and node.users:
                _rewrite(node)
        graph.eliminate_dead_code()
        attention.recognise(graph)
        graph.eliminate_dead_code()


@dataclass(frozen=True, slots=True)
class _Formula:
    """A formula and what to call in its place; None if what was found is not that after all.

    Attributes:
        term: the formula.
        call: makes the call of what was found.
        ends: the operators that it may end with.
    """

    term: Term
    call: Callable[[Found], Call | None]
    ends: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", _ends(self.term))


def _ends(term: Term) -> frozenset[str]:
    if isinstance(term, list):
        return frozenset[str]().union(*map(_ends, term))
    return term.packets if isinstance(term, Op) else frozenset()


def _rewrite(node: Node) -> None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return
    for formula in _FORMULAS:
        if packet_of(node) not in formula.ends:
            continue
        for found in matches(formula.term, node):
            call = formula.call(found) if _is_whole(node, found) and _is_like(node, found["x"]) else None
            if call is not None:
                node.target, node.args, node.kwargs = call
                return


def _is_whole(root: Node, found: Found) -> bool:
    """True if nothing else reads what is computed on the way."""
    inner = found.nodes
    return all(user in inner for node in inner if node is not root for user in node.users)


def _is_like(node: Node, x: Any) -> bool:
    source = x.meta.get("val") if isinstance(x, Node) else None
    return isinstance(source, torch.Tensor) and source.dtype == node.meta["val"].dtype and shape_of(x) == shape_of(node)


def _product(*factors: Term) -> Term:
    return in_any_order("mul", *factors)


def _one_plus(term: Term) -> Op:
    return Op("add", term, 1)


def _activation(target: Callable[..., Any], **options: Any) -> Callable[[Found], Call]:
    return lambda found: (target, (found["x"],), options)


_SQUARE: Term = [Op("pow", "x", 2), Op("mul", "x", "x")]
_CUBE: Term = [Op("pow", "x", 3), _product("x", "x", "x")]
_ROOT = math.sqrt(2 / math.pi)
_TANH_ARGUMENT: Term = [
    Op("mul", Op("add", "x", [Op("mul", _CUBE, 0.044715), _product("x", "x", "x", 0.044715)]), _ROOT),
    _product("x", _ROOT, _one_plus([Op("mul", _SQUARE, 0.044715), _product("x", "x", 0.044715)])),
]
_ERF_ARGUMENT: Term = [Op("div", "x", math.sqrt(2)), Op("mul", "x", math.sqrt(0.5))]
_RELU6: Term = Op("hardtanh clamp", Op("add", "x", 3), 0, 6)


def _over_root(numerator: Term, square: Term) -> list[Term]:
    """Returns ways to write numerator / sqrt(square + eps)."""
    sum_ = Op("add", square, "eps")
    return [
        Op("mul", numerator, Op("rsqrt", sum_)),
        Op("div", numerator, Op("sqrt", sum_)),
        Op("mul", numerator, Op("reciprocal", Op("sqrt", sum_))),
        Op("mul", numerator, Op("pow", sum_, -0.5)),
    ]


def _weighted(numerator: Term, normed: Term, square: Term) -> list[Term]:
    """Returns ways to write the product of a normed value and the weight, multiplied before or after the division."""
    return [Op("mul", normed, "weight"), *_over_root(Op("mul", numerator, "weight"), square)]


_MEAN_SQUARE = Op("mean", _SQUARE, "axes", True)
_RMS_NORMED: Term = _over_root("x", _MEAN_SQUARE)
_CENTRED = Op("sub", "x", Op("mean", "x", "axes", True))
_VARIANCE: Term = [
    Op("mean", [Op("pow", _CENTRED, 2), Op("mul", _CENTRED, _CENTRED)], "axes", True),
    Op("var", "x", "axes", False, True),
    Op("var", "x", "axes", correction=0, keepdim=True),
]
_NORMED: Term = _over_root(_CENTRED, _VARIANCE)


def _normalised_shape(found: Found) -> list[int] | None:
    """Returns the sizes of the axes that a norm is taken over; None if they are not the last ones, of a fixed size, or eps is no number."""
    shape = shape_of(found["x"])
    axes = sorted(axis % len(shape) for axis in found["axes"])
    sizes = [shape[axis] for axis in axes]
    is_last = axes == list(range(len(shape) - len(axes), len(shape)))
    if not axes or not is_last or not all(isinstance(size, int) for size in sizes) or not isinstance(found["eps"], int | float):
        return None
    like = [found.get(name) for name in ("weight", "bias")]
    of_shape = [isinstance(part, Node) and list(shape_of(part)) == sizes for part in like if part is not None]
    same_dtype = all(part.meta["val"].dtype == found["x"].meta["val"].dtype for part in like if isinstance(part, Node))
    return sizes if all(of_shape) and same_dtype else None


def _rms_norm(found: Found) -> Call | None:
    shape = _normalised_shape(found)
    return None if shape is None else (aten.rms_norm.default, (found["x"], shape, found.get("weight"), float(found["eps"])), {})


def _layer_norm(found: Found) -> Call | None:
    shape = _normalised_shape(found)
    if shape is None:
        return None
    return aten.layer_norm.default, (found["x"], shape, found.get("weight"), found.get("bias"), float(found["eps"])), {}


_FORMULAS = (
    _Formula([Op("mul", "x", Op("sigmoid", "x")), Op("div", "x", _one_plus(Op("exp", Op("neg", "x"))))], _activation(aten.silu.default)),
    _Formula(_product("x", 0.5, _one_plus(Op("tanh", _TANH_ARGUMENT))), _activation(aten.gelu.default, approximate="tanh")),
    _Formula(_product("x", 0.5, _one_plus(Op("erf", _ERF_ARGUMENT))), _activation(aten.gelu.default)),
    _Formula(
        [Op("div", Op("mul", "x", _RELU6), 6), Op("mul", "x", Op("div", _RELU6, 6)), _product("x", _RELU6, 1 / 6)],
        _activation(aten.hardswish.default),
    ),
    _Formula(_weighted("x", _RMS_NORMED, _MEAN_SQUARE), _rms_norm),
    _Formula(_RMS_NORMED, _rms_norm),
    _Formula([Op("add", _weighted(_CENTRED, _NORMED, _VARIANCE), "bias")], _layer_norm),
    _Formula(_weighted(_CENTRED, _NORMED, _VARIANCE), _layer_norm),
    _Formula(_NORMED, _layer_norm),
)
