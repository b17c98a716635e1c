"""Control flow: functions of the graph become subgraphs that see the values around them; a ``call`` is written where it stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from exporters.to_onnx.context import ELEMENT_TYPES, ONNX, Context, Held, Scope, Shape
from rml_exec.ir.dims import Expr
from rml_exec.types import DType, TensorType


def value_info(name: str, type_: TensorType, shape: Shape) -> onnx.ValueInfoProto:
    """Returns the ONNX type of a tensor; an expression over dims becomes a ``dim_param``."""
    sizes = [str(size) if isinstance(size, Expr) else size for size in shape]
    return onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[type_.dtype], sizes)


def _graph(scope: Scope, name: str, inputs: Sequence[onnx.ValueInfoProto], results: Sequence[Held]) -> onnx.GraphProto:
    """Returns the subgraph whose nodes a scope holds; its outputs are made in it and have names of their own."""
    scope.label = "results"
    outputs = [value_info(scope.emit("Identity", scope.tensor(held)), held.type, held.shape) for held in results]
    return onnx.helper.make_graph(scope.nodes, name, list(inputs), outputs)


def _parameters(ctx: Context, scope: Scope, operands: Sequence[Held], label: str) -> tuple[list[Held], list[onnx.ValueInfoProto]]:
    """Returns the values that a subgraph takes, and its inputs."""
    held, inputs = [], []
    for number, operand in enumerate(operands):
        name = ctx.model.name(f"{scope.prefix}{label}{number}")
        held.append(Held(operand.type, operand.shape, {(): name}))
        inputs.append(value_info(name, operand.type, operand.shape))
    return held, inputs


def _given(ctx: Context, first: int = 0) -> list[Held]:
    return [ctx.held(index) for index in range(first, len(ctx.operands))]


@ONNX.lowers("call")
def _call(ctx: Context, *, function: str) -> list[Held]:
    return [held.copy() for held in ctx.inline(function, _given(ctx))]


@ONNX.lowers("cond")
def _cond(ctx: Context, *, branches: tuple[str, ...]) -> list[str] | list[Held]:
    index = np.zeros((), np.int64) if len(branches) == 1 else ctx.known(0)
    if index is not None:  # ONNX Runtime 1.32 crashes on some conditions that it can fold
        chosen = branches[min(max(int(index), 0), len(branches) - 1)]
        return [held.copy() for held in ctx.inline(chosen, _given(ctx, 1))]
    results = ctx.emit("If", *_choice(ctx, ctx.scope, branches, 0), outputs=len(ctx.node.outputs), **_sides(ctx, branches))
    return [results] if len(ctx.node.outputs) == 1 else list(results)


def _choice(ctx: Context, scope: Scope, branches: tuple[str, ...], first: int) -> tuple[str]:
    """Emits the condition for branch ``first``: true for the second of two under a bool, else that the index is not above it."""
    if ctx.dtype(0) is DType.BOOL:
        return (ctx.input(0),)
    return (scope.emit("LessOrEqual", ctx.input(0), ctx.constant(first, ctx.dtype(0))),)


def _sides(ctx: Context, branches: tuple[str, ...]) -> dict[str, onnx.GraphProto]:
    operands = _given(ctx, 1)
    if ctx.dtype(0) is DType.BOOL:
        return {side: _branch(ctx, branches[at], operands, side) for at, side in enumerate(("else_branch", "then_branch"))}
    return {"then_branch": _branch(ctx, branches[0], operands, "0"), "else_branch": _rest(ctx, branches, operands, 1)}


def _branch(ctx: Context, function: str, operands: Sequence[Held], label: str) -> onnx.GraphProto:
    scope, results = ctx.subgraph(function, label, operands)
    return _graph(scope, label, [], results)


def _rest(ctx: Context, branches: tuple[str, ...], operands: Sequence[Held], first: int) -> onnx.GraphProto:
    """Returns the branch that chooses among the branches from ``first`` on; the last one takes all larger indices."""
    if first == len(branches) - 1:
        return _branch(ctx, branches[first], operands, str(first))
    scope = ctx.scope.inner(f"{ctx.node.name}/from{first}")
    sides = {"then_branch": _branch(ctx, branches[first], operands, str(first)), "else_branch": _rest(ctx, branches, operands, first + 1)}
    scope.label = "choice"
    names = scope.emit("If", *_choice(ctx, scope, branches, first), outputs=len(ctx.node.outputs), **sides)
    results = [names] if len(ctx.node.outputs) == 1 else list(names)
    held = [Held(*ctx.result(at), {(): name}) for at, name in enumerate(results)]
    return _graph(scope, f"from{first}", [], held)


@ONNX.lowers("while")
def _while(ctx: Context, *, cond: str, body: str) -> list[str]:
    carried = _given(ctx)
    (first,) = ctx.inline(cond, carried, "/first")
    scope = ctx.scope.inner(f"{ctx.node.name}/body")
    held, inputs = _parameters(ctx, scope, carried, "carried")
    results = ctx.body(body, scope, held)
    (go,) = ctx.body(cond, Scope(ctx.model, scope.nodes, f"{ctx.scope.prefix}{ctx.node.name}/cond/"), results)
    number, truth = TensorType(DType.I64, ()), TensorType(DType.BOOL, ())
    counters = [value_info(ctx.model.name(f"{scope.prefix}{name}"), type_, ()) for name, type_ in (("step", number), ("go", truth))]
    graph = _graph(scope, "body", [*counters, *inputs], [go, *results])
    condition = ctx.scope.tensor(first)
    names = ctx.emit("Loop", None, condition, *map(ctx.scope.tensor, carried), outputs=len(carried), body=graph)
    return [names] if len(carried) == 1 else list(names)


@ONNX.lowers("scan")
def _scan(ctx: Context, *, body: str, length: int | Expr, reverse: bool, num_consts: int, num_carry: int) -> list[str | Held]:
    operands = _given(ctx)
    consts, carry, scanned = operands[:num_consts], operands[num_consts : num_consts + num_carry], operands[num_consts + num_carry :]
    if length == 0:
        empty = [ctx.result(at) for at in range(num_carry, len(ctx.node.outputs))]
        made = [Held(type_, shape, array=np.zeros(type_.shape, type_.dtype.numpy)) for type_, shape in empty]
        return [*map(ctx.scope.tensor, carry), *made]
    scope = ctx.scope.inner(f"{ctx.node.name}/body")
    states, inputs = _parameters(ctx, scope, carry, "carried")
    rows = [Held(TensorType(x.type.dtype, x.type.shape[1:]), x.shape[1:]) for x in scanned]
    elements, taken = _parameters(ctx, scope, rows, "element")
    sequences = [ctx.scope.tensor(x) for x in scanned]
    if not scanned:  # Scan needs one sequence, for its length
        sequences = [ctx.emit("Expand", ctx.constant(False, DType.BOOL), ctx.ints([length]))]
        taken = [value_info(ctx.model.name(f"{scope.prefix}step"), TensorType(DType.BOOL, ()), ())]
    results = ctx.body(body, scope, [*(held.copy() for held in consts), *states, *elements])
    graph = _graph(scope, "body", [*inputs, *taken], results)
    stacked = len(ctx.node.outputs) - num_carry
    names = ctx.emit(
        "Scan",
        *map(ctx.scope.tensor, carry),
        *sequences,
        outputs=len(ctx.node.outputs),
        body=graph,
        num_scan_inputs=len(sequences),
        scan_input_directions=[1] * len(sequences) if reverse else None,
        scan_output_directions=[1] * stacked if reverse and stacked else None,
    )
    return [names] if len(ctx.node.outputs) == 1 else list(names)
