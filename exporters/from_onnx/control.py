"""Control flow: ``If``, ``Loop`` and ``Scan``. Subgraphs become functions; what they read from around them becomes an operand.

What is known at import disappears: an ``If`` on a shape is the branch that is taken, a ``Loop`` whose steps can be counted is a ``scan``,
or its steps one after the other where shapes change from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from exporters.errors import Unsupported
from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.reading import names_read
from rml_exec.ir.graph import Function
from rml_exec.types import DType, TensorType

if TYPE_CHECKING:
    from exporters.from_onnx.importer import Walker

MOST_STEPS = 256
"""A loop of more steps is not written out."""

_ENDLESS = 1 << 31
"""A trip count from here on is no limit: exporters write the largest integer where a loop ends by its condition."""

_NUMBER = TensorType(DType.I64, ())

Values = dict[str, str | None]


class _Step:
    """A subgraph that is being made a function of the graph.

    Attributes:
        values: what the names around and inside the subgraph stand for in the function.
        operands: what the node that runs the function must give it, first of all: the values of the body around that it reads.
        inputs: the function's inputs, in order.
    """

    def __init__(self, ctx: Context, graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
        """Begins the function; ``names`` are the values of the body around that it may read, by their ONNX names."""
        self._graph = graph
        self.builder = ctx.walker.body.builder.function(f"{ctx.name}.{graph.name}" if graph.name else ctx.name)
        self.walker: Walker = ctx.walker.inside(self.builder)
        self.inputs: list[str] = []
        self.operands = [value for value in dict.fromkeys(names.values()) if ctx.known(value) is None]
        inner = {value: self.input(value, ctx.type(value)) for value in self.operands}
        self.values: Values = {name: inner.get(value, value) for name, value in names.items()}

    def input(self, name: str, type_: TensorType) -> str:
        """Adds an input."""
        self.inputs.append(self.builder.input(name, type_.dtype, type_.shape))
        return self.inputs[-1]

    def results(self) -> list[str] | None:
        """Lowers the subgraph and returns the values of its outputs; None if something in it was refused."""
        results = self.walker.subgraph(self._graph, self.values)
        return None if None in results else [value for value in results if value is not None]

    def types(self, values: Sequence[str]) -> list[TensorType]:
        return [self.walker.body.type(value) for value in values]

    def failure(self, types: Sequence[TensorType], operator: Unsupported) -> list[str]:
        """Returns values of these types in place of the subgraph's; a run that comes to them fails and says what could not be imported."""
        name = f"{operator.node} does not fit the sizes of the inputs ({operator.reason})"
        found = []
        for type_ in types:
            element, beyond = (self.builder.constant(array) for array in (np.zeros(1, type_.dtype.numpy), np.array(1)))
            value = self.builder.add("take", [element, beyond], name=name, axis=0, oob="error", wrap_negative=False, fill_value=None)
            found.append(self.builder.add("broadcast", [value], shape=type_.shape))
        return found

    def build(self, results: Sequence[str]) -> Function:
        """Ends the function, which gives these values."""
        for index, value in enumerate(results):
            self.builder.output(f"y{index}", self.walker.body.operand(value))
        return self.builder.build()


def _captured(ctx: Context, *graphs: onnx.GraphProto) -> dict[str, str]:
    """Returns the values that subgraphs read from around them, by ONNX name."""
    names = dict.fromkeys(name for graph in graphs for name in names_read(graph))
    return {name: value for name in names if (value := ctx.scope[name]) is not None}


def _condition(ctx: Context, value: str | None) -> bool | None:
    """Returns a known condition, None for one that is not; an absent one is true."""
    if value is None:
        return True
    array = ctx.known(value)
    return None if array is None else bool(array.reshape(-1)[0])


def _graph(ctx: Context, name: str) -> onnx.GraphProto:
    graph = ctx.attr(name)
    if not isinstance(graph, onnx.GraphProto):
        raise RefusedError(f"it has no {name}")
    return graph


@ONNX.lowers("If")
def _if(ctx: Context, node: onnx.NodeProto) -> Sequence[str | None]:
    """A branch whose operators cannot take the sizes at hand is not refused but fails when it is taken: models choose so by a size."""
    graphs = [_graph(ctx, "else_branch"), _graph(ctx, "then_branch")]
    taken = _condition(ctx, ctx.need(0))
    if taken is not None:
        return ctx.walker.subgraph(graphs[taken], dict(ctx.scope))
    captured = _captured(ctx, *graphs)
    steps = [_Step(ctx, graph, captured) for graph in graphs]
    refused = ctx.walker.shared.unsupported
    before = len(refused)
    results = [step.results() for step in steps]
    if results.count(None) == 1 and all(ONNX.get(operator.op) for operator in refused[before:]):
        broken = results.index(None)
        results[broken] = steps[broken].failure(steps[1 - broken].types(results[1 - broken] or []), refused[before])
        del refused[before:]
    given = [values for values in results if values is not None]
    if len(given) < len(steps):
        return [None] * len(node.output)
    types = [step.types(values) for step, values in zip(steps, given, strict=True)]
    if types[0] != types[1]:
        shown = " or ".join(", ".join(map(str, found)) for found in reversed(types))
        raise RefusedError(f"its branches give different types: {shown}")
    branches = [step.build(values) for step, values in zip(steps, given, strict=True)]
    operands = [ctx.reshape(ctx.need(0), ()), *steps[0].operands]
    return ctx.call("cond", operands, node.output, branches=branches)


@ONNX.lowers("Loop")
def _loop(ctx: Context, node: onnx.NodeProto) -> Sequence[str | None]:
    return _Loop(ctx, node).lower()


class _Loop:
    """One ``Loop``: its trip count and condition, the values it carries, and which of them steps change."""

    def __init__(self, ctx: Context, node: onnx.NodeProto) -> None:
        self._ctx = ctx
        self._graph = _graph(ctx, "body")
        self._start = [ctx.need(index) for index in range(2, len(ctx.inputs))]
        carried = len(self._start)
        if len(self._graph.input) != carried + 2 or len(self._graph.output) <= carried:
            raise RefusedError("its body must take and give what it carries")
        self._counter, self._going, *self._names = (value.name for value in self._graph.input)
        self._changing = [k for k in range(carried) if _origin(self._graph, self._graph.output[1 + k].name) != self._names[k]]
        invariant = {name: self._start[k] for k, name in enumerate(self._names) if k not in self._changing}
        self._around = {**_captured(ctx, self._graph), **invariant}
        self._condition = _condition(ctx, ctx.input(1))
        limit = ctx.known(ctx.input(0))
        self._limit = None if limit is None else int(limit.reshape(-1)[0])
        self._endless = ctx.input(0) is None or (self._limit or 0) >= _ENDLESS
        if self._condition is False:
            self._limit, self._condition, self._endless = 0, True, False
        names = [node.output[index] if ctx.output_wanted(index) else "" for index in range(len(self._graph.output) - 1)]
        self._carried_names, self._stacked_names = [names[k] for k in self._changing], names[carried:]

    def lower(self) -> Sequence[str | None]:
        """Tries a scan, a while loop, and the steps one after the other; reports what was in the way of the first."""
        refused = self._ctx.walker.shared.unsupported
        before, first = len(refused), list[Unsupported]()
        for way in (self._scan, self._while, self._written_out):
            results = way()
            if results is not None:
                return results
            first = first or refused[before:]
            del refused[before:]
        if not first:
            raise RefusedError("how many steps it takes, and so the shape of its result, depends on data")
        refused += first
        return [None] * len(self._start + self._stacked_names)

    def _results(self, carried: Sequence[str], stacked: Sequence[str]) -> list[str | None]:
        last = dict(zip(self._changing, carried, strict=True))
        return [*(last.get(k, value) for k, value in enumerate(self._start)), *stacked]

    def _step(self, kept: Mapping[str, TensorType]) -> tuple[_Step, list[TensorType]]:
        """Returns the body as a function of ``kept`` and the values that steps change, after what it reads from around; and their types."""
        ctx, step = self._ctx, _Step(self._ctx, self._graph, self._around)
        for name, type_ in kept.items():
            step.values[name] = step.input(name, type_)
        types = [ctx.type(self._start[k]) for k in self._changing]
        for k, type_ in zip(self._changing, types, strict=True):
            step.values[self._names[k]] = step.input(self._names[k], type_)
        step.values[self._going] = ctx.constant(np.array(True))  # or the step would not run
        return step, types

    def _scan(self) -> list[str | None] | None:
        """Lowers a loop whose steps are counted and which its condition never ends."""
        if self._limit is None or self._endless or self._condition is not True:
            return None
        ctx = self._ctx
        step, types = self._step({})
        step.values[self._counter] = step.input(self._counter, _NUMBER)
        results = step.results()
        if results is None or _condition(ctx, results[0]) is not True:
            return None
        last, stacked = [results[1 + k] for k in self._changing], results[1 + len(self._start) :]
        if step.types(last) != types:
            return None
        counts = ctx.step("iota", [], dtype="i64", shape=(max(self._limit, 0),), axis=0)
        given = ctx.call(
            "scan",
            [*step.operands, *(self._start[k] for k in self._changing), counts],
            self._carried_names + self._stacked_names,
            body=step.build([*last, *stacked]),
            length=max(self._limit, 0),
            reverse=False,
            num_consts=len(step.operands),
            num_carry=len(last),
        )
        return self._results(given[: len(last)], given[len(last) :])

    def _while(self) -> list[str | None] | None:
        """Lowers a loop that stacks nothing. It carries what it reads from around, its limit, the count of steps, and whether it goes on."""
        if any(self._stacked_names):
            return None
        ctx = self._ctx
        step, types = self._step({"limit of steps": _NUMBER, self._counter: _NUMBER, "goes on": TensorType(DType.BOOL, ())})
        results = step.results()
        if results is None:
            return None
        last = [results[1 + k] for k in self._changing]
        if step.types(last) != types:
            return None
        around = len(step.operands)
        limit, count, _ = step.inputs[around : around + 3]
        after = step.builder.add("add", [count, step.walker.body.operand(ctx.scalar(1, DType.I64))])
        again = step.walker.body.operand(results[0])
        again = step.builder.add("reshape", [again], shape=()) if step.builder.type(again).shape else again
        body = step.build([*step.inputs[:around], limit, after, again, *last])
        test = ctx.walker.body.builder.function(f"{ctx.name}.condition")
        inner = [test.input(value.name, value.type.dtype, value.type.shape) for value in body.inputs]
        below = test.add("compare", [inner[around + 1], inner[around]], dir="lt")
        test.output("goes on", test.add("and", [below, inner[around + 2]]))
        most = ctx.scalar(np.iinfo(np.int64).max, DType.I64) if self._endless else ctx.reshape(ctx.need(0), ())
        begin = ctx.constant(np.array(True)) if ctx.input(1) is None else ctx.reshape(ctx.need(1), ())
        state = [*step.operands, most, ctx.scalar(0, DType.I64), begin]
        wished = [""] * len(state) + self._carried_names
        given = ctx.call("while", [*state, *(self._start[k] for k in self._changing)], wished, cond=test.build(), body=body)
        return self._results(given[len(state) :], [""] * len(self._stacked_names))

    def _written_out(self) -> list[str | None] | None:
        """Lowers the steps one after the other, where each can tell whether there is another one.

        They are tried in a function that is not built, for what was added to a body cannot be taken back.
        """
        trial = _Step(self._ctx, self._graph, {**self._around, **{f"\0{k}": value for k, value in enumerate(self._start)}})
        if self._steps(trial.walker, trial.values, [trial.values[f"\0{k}"] for k in range(len(self._start))]) is None:
            return None
        ctx = self._ctx
        taken = self._steps(ctx.walker, dict(ctx.scope), list(self._start))
        assert taken is not None
        carried, steps = taken
        stacked: list[str | None] = []
        for pieces in zip(*steps, strict=True):
            rows = [ctx.reshape(piece, (1, *ctx.type(piece).shape)) for piece in pieces]
            stacked.append(ctx.step("concat", rows, axis=0) if len(rows) > 1 else rows[0])
        return [*carried, *(stacked or [None] * len(self._stacked_names))]

    def _steps(self, walker: Walker, around: Values, start: Sequence[str | None]) -> tuple[list[str | None], list[list[str]]] | None:
        """Returns the carried values after the last step, and what each step stacks; None if it cannot be told when the loop ends."""
        ctx, carried, stacked = self._ctx, list(start), list[list[str]]()
        most = MOST_STEPS if self._endless else self._limit
        if most is None or most > MOST_STEPS:
            return None
        condition = self._condition
        for number in range(most):
            if condition is not True:
                break
            values = {**around, self._counter: ctx.scalar(number, DType.I64), self._going: ctx.constant(np.array(True))}
            values.update(zip(self._names, carried, strict=True))
            results = walker.inside(walker.body.builder, f"{ctx.name}/{number}/").subgraph(self._graph, values)
            if None in results:
                return None
            condition = _condition(ctx, results[0])
            carried = list(results[1 : 1 + len(start)])
            stacked.append([value for value in results[1 + len(start) :] if value is not None])
        return None if condition is None or (condition and self._endless) else (carried, stacked)


def _origin(graph: onnx.GraphProto, name: str) -> str:
    """Returns the value that a value of a graph is a copy of."""
    copies = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity" and node.domain in ("", "ai.onnx")}
    for _ in range(len(copies)):
        name = copies.get(name, name)
    return name


@ONNX.lowers("Scan")
def _scan(ctx: Context, node: onnx.NodeProto) -> Sequence[str | None]:
    return _lower_batch_scan(ctx, node) if ctx.opset < 9 else _lower_scan(ctx, node)


def _lower_scan(ctx: Context, node: onnx.NodeProto) -> Sequence[str | None]:
    count = ctx.attr("num_scan_inputs", 0)
    values = [ctx.need(index) for index in range(len(ctx.inputs))]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    results = len(node.output) - len(state)
    axes, out_axes = ctx.attr("scan_input_axes") or [0] * count, ctx.attr("scan_output_axes") or [0] * results
    back, out_back = ctx.attr("scan_input_directions") or [0] * count, ctx.attr("scan_output_directions") or [0] * results
    ready = [_turned(ctx, _moved(ctx, x, axis, 0), turn) for x, axis, turn in zip(scanned, axes, back, strict=True)]
    given = _run_scan(ctx, state, ready, list(node.output))
    if given is None:
        return [None] * len(node.output)
    stacked = zip(given[len(state) :], out_axes, out_back, strict=True)
    return [*given[: len(state)], *(_moved(ctx, _turned(ctx, y, turn), 0, axis) for y, axis, turn in stacked)]


def _lower_batch_scan(ctx: Context, node: onnx.NodeProto) -> Sequence[str | None]:
    """Lowers the form of operator set 8: every operand has a batch axis in front, and rows may have different numbers of steps."""
    count = ctx.attr("num_scan_inputs", 0)
    values = [ctx.need(index) for index in range(1, len(ctx.inputs))]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    back = ctx.attr("directions") or [0] * count
    batch, length = ctx.type(scanned[0]).shape[:2]
    lengths = ctx.integers(0, "sequence lengths") or [length] * batch
    rows: list[tuple[str, ...]] = []
    for row, steps in enumerate(lengths):
        ready = [_turned(ctx, _part(ctx, x, row, steps), turn) for x, turn in zip(scanned, back, strict=True)]
        given = _run_scan(ctx, [_part(ctx, x, row, None) for x in state], ready, [""] * len(node.output))
        if given is None:
            return [None] * len(node.output)
        rows.append((*given[: len(state)], *(_lengthened(ctx, y, length) for y in given[len(state) :])))
    stacked = [[ctx.reshape(value, (1, *ctx.type(value).shape)) for value in column] for column in zip(*rows, strict=True)]
    return [ctx.add("concat", column, axis=0) for column in stacked]


def _run_scan(ctx: Context, state: Sequence[str], scanned: Sequence[str], names: Sequence[str]) -> tuple[str, ...] | None:
    """Returns what a scan over leading axes gives; None if something in its body was refused."""
    graph = _graph(ctx, "body")
    if len(graph.input) != len(state) + len(scanned) or not scanned:
        raise RefusedError("its body must take what it carries and scans")
    lengths = {ctx.type(x).shape[0] for x in scanned}
    if len(lengths) != 1:
        raise RefusedError(f"it scans {', '.join(map(str, sorted(lengths)))} elements side by side")
    step = _Step(ctx, graph, _captured(ctx, graph))
    types = [ctx.type(x) for x in state] + [TensorType(ctx.type(x).dtype, ctx.type(x).shape[1:]) for x in scanned]
    for value, type_ in zip(graph.input, types, strict=True):
        step.values[value.name] = step.input(value.name, type_)
    results = step.results()
    if results is None:
        return None
    return ctx.call(
        "scan",
        [*step.operands, *state, *scanned],
        names,
        body=step.build(results),
        length=lengths.pop(),
        reverse=False,
        num_consts=len(step.operands),
        num_carry=len(state),
    )


def _turned(ctx: Context, x: str, turn: int) -> str:
    return ctx.step("reverse", [x], axes=(0,)) if turn else x


def _moved(ctx: Context, x: str, source: int, target: int) -> str:
    """Returns a value with one axis at another place."""
    rank = ctx.type(x).rank
    source, target = ctx.axis(source, rank), ctx.axis(target, rank)
    perm = [axis for axis in range(rank) if axis != source]
    perm.insert(target, source)
    return x if source == target else ctx.step("transpose", [x], perm=perm)


def _part(ctx: Context, x: str, row: int, length: int | None) -> str:
    """Returns one row of a batch, up to a length of its next axis."""
    shape = ctx.type(x).shape
    limit = (row + 1, *shape[1:]) if length is None else (row + 1, length, *shape[2:])
    part = ctx.step("slice", [x], start=(row, *(0 for _ in shape[1:])), limit=limit, strides=(1,) * len(shape))
    return ctx.reshape(part, limit[1:])


def _lengthened(ctx: Context, x: str, length: int) -> str:
    """Returns a value with zeros behind it, up to a length of its first axis."""
    type_ = ctx.type(x)
    if type_.shape[0] == length:
        return x
    none = (0,) * type_.rank
    high = (length - type_.shape[0], *none[1:])
    return ctx.step("pad", [x], mode="constant", low=none, high=high, interior=none, value=0.0)
