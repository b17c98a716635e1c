"""Lowerings of torch's higher-order operators: bodies of loops and branches become functions of the graph.

What a body needs from outside are operands of torch's operator. Weights and other known tensors stand in the function as its own constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from exporters.from_torch.context import Known, RefusedError

if TYPE_CHECKING:
    from exporters.from_torch.walker import Walker

__all__ = ["CONTROL"]


def _cond(walker: Walker, predicate: Any, true: GraphModule, false: GraphModule, operands: Sequence[Any]) -> Sequence[Any]:
    """A branch known at export is inlined."""
    if isinstance(predicate, Known):
        predicate = bool(predicate.tensor)
    if isinstance(predicate, bool):
        return walker.inline(true if predicate else false, operands)
    if not isinstance(predicate, str):
        raise RefusedError("the condition must be a tensor")
    ctx = walker.ctx
    inputs = [index for index, operand in enumerate(operands) if isinstance(operand, str)]
    types = _types(walker, operands)
    branches = [walker.function(f"{ctx.node.name}_{name}", body, types, inputs) for name, body in (("false", false), ("true", true))]
    return _listed(ctx.add("cond", [ctx.reshape(predicate, []), *(operands[index] for index in inputs)], branches=branches))


def _while_loop(walker: Walker, test: GraphModule, body: GraphModule, carried: Sequence[Any], additional: Sequence[Any]) -> Sequence[Any]:
    """What both functions read from outside is carried along, unchanged."""
    ctx = walker.ctx
    operands = [*_tensors(walker, carried), *additional]
    inputs = [index for index, operand in enumerate(operands) if isinstance(operand, str)]
    types = _types(walker, operands)
    functions = {
        "cond": walker.function(f"{ctx.node.name}_test", test, types, inputs),
        "body": walker.function(f"{ctx.node.name}_body", body, types, inputs, passed=inputs[len(carried) :]),
    }
    return _listed(ctx.add("while", [operands[index] for index in inputs], **functions))[: len(carried)]


def _scan(walker: Walker, body: GraphModule, start: Sequence[Any], scanned: Sequence[Any], additional: Sequence[Any]) -> Sequence[Any]:
    ctx = walker.ctx
    carry, xs = _tensors(walker, start), _tensors(walker, scanned)
    operands = [*carry, *xs, *additional]
    first = len(carry) + len(xs)
    consts = [index for index in range(first, len(operands)) if isinstance(operands[index], str)]
    types = _types(walker, operands)
    for index in range(len(carry), first):  # a step sees one element
        types[index] = type(types[index])(types[index].dtype, types[index].shape[1:])
    function = walker.function(f"{ctx.node.name}_body", body, types, [*consts, *range(first)])
    attrs = {"length": ctx.type(xs[0]).shape[0], "reverse": False, "num_consts": len(consts), "num_carry": len(carry)}
    return _listed(ctx.add("scan", [*(operands[index] for index in consts), *carry, *xs], body=function, **attrs))


def _map(walker: Walker, body: GraphModule, mapped: Sequence[Any], additional: Sequence[Any]) -> Sequence[Any]:
    return _scan(walker, body, [], mapped, additional)


def _tensors(walker: Walker, values: Sequence[Any]) -> list[str]:
    if not all(isinstance(value, str | Known) for value in values):
        raise RefusedError("a loop can carry tensors only")
    return [walker.ctx.value(value) for value in values]


def _types(walker: Walker, operands: Sequence[Any]) -> list[Any]:
    """Returns operands as a function gets them: the types of those that are computed, what is known as it is."""
    return [walker.ctx.type(operand) if isinstance(operand, str) else operand for operand in operands]


def _listed(results: str | tuple[str, ...]) -> list[str]:
    return [results] if isinstance(results, str) else list(results)


CONTROL: dict[str, Callable[..., Sequence[Any]]] = {
    "cond": _cond,
    "map_impl": _map,
    "scan": _scan,
    "while_loop": _while_loop,
}
"""Higher-order operator -> ``lowering(walker, *arguments)``, which returns what its results became. Tensors are given as the walker has them."""
