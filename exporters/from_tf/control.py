"""Control flow: branches become ``cond``; loops become ``scan`` where export can count their steps, else ``while``.

What a loop's condition depends on is often known at export: a counter and a limit. Then these are run at export, which gives the number of
steps and, for every step, the counters and the positions that lists are read and written at. A list that is read at known positions is
scanned; one that is written at known positions becomes results of the ``scan``, stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from exporters.from_tf.evaluation import Evaluation, body_of, origin, sources
from exporters.from_tf.lists import element, stack, written
from exporters.from_tf.recurrent import find_cell
from exporters.from_tf.table import Context, Known, RefusalError, TensorList, Value, Variable
from rml_exec.ir.builder import FunctionBuilder
from rml_exec.types import DType

if TYPE_CHECKING:
    from exporters.from_tf.walk import Walker

__all__ = ["LOWERINGS"]

T = TypeVar("T")

MOST_STEPS = 5_000
"""A loop with more steps is not counted: running its counters would take seconds."""

_MOST_ELEMENTS = 16
"""A larger tensor is not run with the counters."""


def _used(op: Any) -> list[int]:
    """Returns which outputs of an operation something reads."""
    returned = {tensor.name for tensor in getattr(op.graph, "outputs", ())}
    return [index for index, tensor in enumerate(op.outputs) if tensor.consumers() or tensor.name in returned]


class _Operands:
    """The operands of a function that is being built: what its body needs from outside."""

    def __init__(self, ctx: Context, builder: FunctionBuilder) -> None:
        self._ctx = ctx
        self._builder = builder
        self._inner: dict[str, str] = {}
        self.names: list[str] = []

    def pass_in(self, value: Value) -> Value:
        """Returns what an outer value is inside: known ones themselves, others an input that is added the first time."""
        if isinstance(value, TensorList):
            return replace(value, stacked=self._tensor(value.stacked), items=tuple(map(self._tensor, value.items)))
        return value if isinstance(value, Variable) else self._tensor(value)

    def _tensor(self, value: T) -> T | str:
        if not isinstance(value, str):
            return value
        if value not in self._inner:
            self._inner[value] = self.add(value)
        return self._inner[value]

    def add(self, value: Value, *, scanned: bool = False) -> str:
        """Adds an input for an outer value (for its elements if it is ``scanned``) and returns its name."""
        type_ = self._ctx.type(value)
        self.names.append(self._ctx.operand(value))
        return self._builder.input(f"x{len(self.names) - 1}", type_.dtype, type_.shape[1:] if scanned else type_.shape)


def _lower_if(walker: Walker, ctx: Context, operands: Sequence[Value], prefix: str) -> list[Value | None]:
    condition, *arguments = operands
    then_branch, else_branch = ctx.attr("then_branch"), ctx.attr("else_branch")
    if isinstance(condition, Known):
        return walker.inline(ctx.op, then_branch if condition.array.any() else else_branch, arguments, prefix, ctx.xla)
    if ctx.type(condition).dtype is not DType.BOOL:
        condition = ctx.add("compare", condition, ctx.scalar(0, condition), dir="ne")
    return _choose(walker, ctx, condition, [else_branch, then_branch], arguments, prefix)


def _lower_case(walker: Walker, ctx: Context, operands: Sequence[Value], prefix: str) -> list[Value | None]:
    """An index out of range, also a negative one, takes the last branch."""
    index, *arguments = operands
    branches = ctx.attr("branches")
    last = len(branches) - 1
    if isinstance(index, Known):
        chosen = int(index.array)
        return walker.inline(ctx.op, branches[chosen if 0 <= chosen <= last else last], arguments, prefix, ctx.xla)
    negative = ctx.add("compare", index, ctx.scalar(0, index), dir="lt")
    return _choose(walker, ctx, ctx.add("select", negative, ctx.scalar(last, index), index), branches, arguments, prefix)


def _choose(
    walker: Walker, ctx: Context, index: Value, branches: Sequence[Any], arguments: Sequence[Value], prefix: str
) -> list[Value | None]:
    """Adds a ``cond`` whose branches take all runtime values among ``arguments``."""
    used, functions, names = _used(ctx.op), [], []
    for branch in branches:
        graph = body_of(ctx.op, branch)
        builder, inner = walker.function(f"{prefix}{ctx.op.name}")
        operands = _Operands(ctx, builder)
        bound: dict[str, Value | None] = {
            tensor.name: operands.pass_in(value) for tensor, value in zip(graph.inputs, arguments, strict=True)
        }
        results = inner.walk(graph, bound, [graph.outputs[output] for output in used], prefix="", xla=ctx.xla)
        if None not in results:
            for output, result in zip(used, results, strict=True):
                builder.output(f"y{output}", inner.operand(result))
            functions.append(builder.build())
        names = operands.names
    found: list[Value | None] = [None] * len(ctx.op.outputs)
    if len(functions) == len(branches):
        for output, name in zip(used, ctx.add_all("cond", index, *names, branches=functions), strict=True):
            found[output] = name
    return found


@dataclass
class _Steps:
    """What is known about a loop that was counted.

    Attributes:
        count: number of steps.
        history: name of a tensor of the body -> its value in each step.
        last: loop variable -> its value after the last step.
    """

    count: int = 0
    history: dict[str, list[np.ndarray]] = field(default_factory=dict)
    last: dict[int, np.ndarray] = field(default_factory=dict)


class _Loop:
    """A loop being lowered. Its variables are counted: operand, input and output ``i`` of the body belong together.

    Attributes:
        constant: the variables that the body never changes.
        counters: other variables whose value in every step is known at export.
        steps: what is known about all steps, None if their number is not.
    """

    def __init__(self, tf: Any, walker: Walker, ctx: Context, operands: Sequence[Value], prefix: str) -> None:
        self._tf = tf
        self._walker = walker
        self._ctx = ctx
        self._operands = list(operands)
        self._prefix = f"{prefix}{ctx.op.name}"
        self._cond, self._body = (body_of(ctx.op, ctx.attr(name)) for name in ("cond", "body"))
        self._position = {tensor.name: index for index, tensor in enumerate(self._body.inputs)}
        self._results = [origin(tensor) for tensor in self._body.outputs]
        self.constant = {index for index, result in enumerate(self._results) if self._position.get(result.name) == index}
        self.counters = self._find_counters()
        self.steps = self._count()

    def _known_inputs(self, indices: Iterable[int], graph: Any) -> dict[str, np.ndarray]:
        known = {index: self._operands[index] for index in indices}
        return {graph.inputs[index].name: value.array for index, value in known.items() if isinstance(value, Known)}

    def _find_counters(self) -> set[int]:
        """Finds the variables that depend on each other and on constants alone."""
        small = {i for i, value in enumerate(self._operands) if isinstance(value, Known) and value.array.size <= _MOST_ELEMENTS}
        counters = small - self.constant
        while True:
            known = self._known_inputs(self.constant | counters, self._body)
            lost = {index for index in counters if not Evaluation.possible(self._results[index], known)}
            if not lost:
                return counters
            counters -= lost

    def _count(self) -> _Steps | None:
        condition = self._cond.outputs[0]
        if not Evaluation.possible(condition, self._known_inputs(self.constant | self.counters, self._cond)):
            return None
        fixed_cond, fixed_body = (self._known_inputs(self.constant, graph) for graph in (self._cond, self._body))
        inputs = self._known_inputs(self.constant | self.counters, self._body)
        indices = [op.inputs[1] for op in self._body.get_operations() if op.type in ("TensorListGetItem", "TensorListSetItem")]
        followed = {tensor.name: tensor for tensor in indices if Evaluation.possible(tensor, inputs)}
        followed |= {self._body.inputs[index].name: self._body.inputs[index] for index in self.counters}
        steps = _Steps(history={name: [] for name in followed})
        steps.last = {index: self._operands[index].array for index in self.counters}  # type: ignore[union-attr]
        cond_constants: dict[str, np.ndarray] = {}
        body_constants: dict[str, np.ndarray] = {}
        while True:
            values = {self._cond.inputs[index].name: array for index, array in steps.last.items()}
            if not Evaluation(self._tf, fixed_cond | values, cond_constants).of(condition):
                return steps
            if steps.count == MOST_STEPS:
                return None
            values = {self._body.inputs[index].name: array for index, array in steps.last.items()}
            evaluation = Evaluation(self._tf, fixed_body | values, body_constants)
            for name, tensor in followed.items():
                steps.history[name].append(evaluation.of(tensor))
            steps.last = {index: evaluation.of(self._results[index]) for index in self.counters}
            steps.count += 1

    def _needed(
        self, variables: Iterable[int], roots: Callable[[int], Any | None], stop: Iterable[str], more: Iterable[Any] = ()
    ) -> set[int]:
        """Returns the variables that ``variables`` need, themselves included; ``roots`` gives what a variable's next value is made of."""
        stop = list(stop)
        needed = set(variables)
        needed |= {self._position[name] for name in sources(more, stop)}
        while True:
            tensors = [tensor for index in needed if (tensor := roots(index)) is not None]
            found = needed | {self._position[name] for name in sources(tensors, stop)}
            if found == needed:
                return needed
            needed = found

    def _carried_list(self, index: int) -> Value:
        """Returns a list that steps read and write, as one value."""
        tensors = self._operands[index]
        assert isinstance(tensors, TensorList)
        write = self._results[index].op
        if tensors.shape is None and write.type == "TensorListSetItem" and write.inputs[2].shape.is_fully_defined():
            tensors = replace(tensors, shape=tuple(write.inputs[2].shape.as_list()))
        return stack(self._ctx, tensors)

    def lower_while(self) -> list[Value | None]:
        ctx, used = self._ctx, _used(self._ctx.op)
        names = {tensor.name: self._body.inputs[index] for index, tensor in enumerate(self._cond.inputs)}
        tested = [names[name] for name in sources([self._cond.outputs[0]])]
        needed = sorted(self._needed(used, lambda index: self._results[index], (), tested))
        passed = [index for index in needed if index not in self.constant or self._is_runtime(index)]
        outer = [self._carried_list(index) if isinstance(self._operands[index], TensorList) else self._operands[index] for index in passed]
        bodies: list[Any] = []
        for graph, wanted in ((self._cond, [self._cond.outputs[0]]), (self._body, [self._results[index] for index in passed])):
            builder, inner = self._walker.function(self._prefix)
            operands = _Operands(ctx, builder)
            bound: dict[str, Value | None] = {
                graph.inputs[index].name: value for index, value in enumerate(self._operands) if index not in passed
            }
            for index, value in zip(passed, outer, strict=True):
                bound[graph.inputs[index].name] = self._as_list(index, operands.add(value))
            results = inner.walk(graph, bound, wanted, prefix="", xla=ctx.xla)
            if None in results:
                return [None] * len(self._operands)
            for number, result in enumerate(results):
                builder.output(f"y{number}", self._result(inner, result))
            bodies.append(builder.build())
        found: list[Value | None] = list(self._operands)
        for index, name in zip(passed, ctx.add_all("while", *operands.names, cond=bodies[0], body=bodies[1]), strict=True):
            found[index] = self._as_list(index, name)
        return found

    def _result(self, inner: Walker, value: Value | None) -> str:
        """Returns the name of a result of a body; a list is one value."""
        if isinstance(value, TensorList):
            value = stack(inner.context(self._ctx.op, self._prefix, self._ctx.xla), value)
        return inner.operand(value)

    def _is_runtime(self, index: int) -> bool:
        return isinstance(self._operands[index], str | TensorList)

    def _as_list(self, index: int, stacked: str) -> Value:
        """Returns a value that was passed to a function, or came back, as the list it is if it is one."""
        tensors = self._operands[index]
        if not isinstance(tensors, TensorList):
            return stacked
        return TensorList(tensors.length, tensors.dtype, tensors.shape, stacked=stacked)

    def _reads(self) -> dict[str, tuple[int, list[int]]]:
        """Returns the reads of unchanged lists at known positions: name of the element -> (variable, position in each step)."""
        assert self.steps is not None
        found = {}
        for op in self._body.get_operations():
            if op.type == "TensorListGetItem" and op.inputs[1].name in self.steps.history:
                index = self._position.get(origin(op.inputs[0]).name, -1)
                if index in self.constant:
                    found[op.outputs[0].name] = index, [int(position) for position in self.steps.history[op.inputs[1].name]]
        return found

    def _writes(self) -> dict[int, tuple[Any, list[int]]]:
        """Returns the lists that are written at known positions and not read: variable -> (element, position in each step)."""
        assert self.steps is not None
        found = {}
        for index, result in enumerate(self._results):
            op = result.op
            if op.type != "TensorListSetItem" or op.inputs[1].name not in self.steps.history:
                continue
            others = [tensor for tensor in self._results if tensor is not result]
            read = sources([op.inputs[2], *others])
            if self._position.get(origin(op.inputs[0]).name) == index and self._body.inputs[index].name not in read:
                found[index] = op.inputs[2], [int(position) for position in self.steps.history[op.inputs[1].name]]
        return found

    def lower_scan(self) -> list[Value | None]:
        ctx, steps = self._ctx, self.steps
        assert steps is not None
        found: list[Value | None] = list(self._operands)
        for index, array in steps.last.items():
            found[index] = ctx.constant(array)
        if not steps.count:
            return found
        reads, writes = self._reads(), self._writes()

        def root(index: int) -> Any:
            if index in self.constant | self.counters:
                return None
            return writes[index][0] if index in writes else self._results[index]

        needed = sorted(self._needed(_used(ctx.op), root, reads))
        carried = [index for index in needed if index not in self.constant | self.counters | set(writes)]
        filled = [index for index in needed if index in writes]
        kept = {self._results[index].name: index for index in carried}
        counters = {self._body.inputs[index].name for index in self.counters}
        last_only = {  # every step writes the same place, what a carried value is too: Keras without return_sequences
            index: kept[origin(item).name]
            for index in filled
            for item, positions in (writes[index],)
            if len(set(positions)) == 1 and origin(item).name in kept
            if steps.count > 1 or not counters & sources([self._results[index].op.inputs[1]])
        }
        stacked = [index for index in filled if index not in last_only]
        if not carried and not stacked:
            return found
        made_of = [root(index) for index in carried + stacked]
        as_cell = self._lower_cell(carried, stacked, made_of, reads)
        by_index = as_cell or self._lower_body(needed, carried, stacked, made_of, reads)
        if by_index is None:
            return [None] * len(self._operands)
        for index in carried:
            found[index] = self._as_list(index, by_index[index])
        for index in filled:
            rows_of = by_index[last_only[index]] if index in last_only else by_index[index]
            found[index] = self._written(index, writes[index][1], rows_of, index in last_only)
        return found

    def _lower_cell(
        self, carried: Sequence[int], stacked: Sequence[int], made_of: Sequence[Any], reads: Mapping[str, tuple[int, list[int]]]
    ) -> dict[int, str] | None:
        """Returns what the loop carried, and the rows that it wrote, if it is an LSTM or a GRU: it reads one sequence and writes h."""
        ctx, inputs, steps = self._ctx, self._body.inputs, self.steps
        assert steps is not None
        read = [tensor.name for tensor in _tensors(made_of, reads) if tensor.name in reads]
        states = [self._operands[index] for index in carried]
        if len(read) != 1 or any(isinstance(state, TensorList) or len(ctx.shape(state)) != 2 for state in states):
            return None
        sequence, positions = reads[read[0]]
        rows = self._rows(sequence, positions)
        builder, inner = self._walker.scratch(self._prefix)
        bound: dict[str, Value | None] = {
            inputs[index].name: self._operands[index] for index in self.constant if not self._is_runtime(index)
        }
        names = []
        for index, value in zip(carried, states, strict=True):
            names.append(builder.input(f"h{index}", ctx.type(value).dtype, ctx.shape(value)))
            bound[inputs[index].name] = names[-1]
        bound[read[0]] = x = builder.input("x", ctx.type(rows).dtype, ctx.shape(rows)[1:])
        results = inner.walk(self._body, bound, made_of, prefix="", xla=ctx.xla)
        if None in results or inner.unsupported or len(ctx.shape(rows)) != 3:
            return None
        for number, result in enumerate(results):
            builder.output(f"y{number}", inner.operand(result))
        cell = find_cell(body := builder.build(), x, names)
        if cell is None or any(output.value != body.outputs[cell.states[0]].value for output in body.outputs[len(carried) :]):
            return None
        initial = [None if self._is_zero(carried[state]) else states[state] for state in cell.states]
        y, *last = ctx.add_all(cell.op, rows, *cell.weights, *initial, direction="forward", **cell.attrs)
        return {**{carried[state]: name for state, name in zip(cell.states, last, strict=True)}, **dict.fromkeys(stacked, y)}

    def _is_zero(self, index: int) -> bool:
        """True if a variable begins as zeros."""
        value, maker = self._operands[index], origin(self._ctx.op.inputs[index]).op
        if isinstance(value, Known):
            return not value.array.any()
        if maker.type == "Fill":
            return bool(self._tf.get_static_value(maker.inputs[1]) == 0)
        return bool(maker.type == "ZerosLike")

    def _lower_body(
        self,
        needed: Sequence[int],
        carried: Sequence[int],
        stacked: Sequence[int],
        made_of: Sequence[Any],
        reads: Mapping[str, tuple[int, list[int]]],
    ) -> dict[int, str] | None:
        """Adds a ``scan`` and returns what it carried, and the rows that it wrote; None if something in its body was refused."""
        ctx, steps = self._ctx, self.steps
        assert steps is not None
        builder, inner = self._walker.function(self._prefix)
        operands = _Operands(ctx, builder)
        bound: dict[str, Value | None] = {}
        inputs = self._body.inputs
        for index in needed:
            if index in self.constant:
                value = self._operands[index]
                if isinstance(value, TensorList):
                    value = replace(value, stacked=ctx.operand(stack(ctx, value)), items=())
                bound[inputs[index].name] = operands.pass_in(value)
        consts = len(operands.names)
        for index in carried:
            is_list = isinstance(self._operands[index], TensorList)
            bound[inputs[index].name] = self._as_list(index, operands.add(self._carried_list(index) if is_list else self._operands[index]))
        reached = sources(made_of, reads)
        for index in sorted(self.counters):
            if inputs[index].name in reached:
                rows = np.stack(steps.history[inputs[index].name])
                bound[inputs[index].name] = operands.add(ctx.constant(rows), scanned=True)
        wanted = {tensor.name for tensor in _tensors(made_of, reads)}
        for name, (index, positions) in reads.items():
            if name in wanted:
                bound[name] = operands.add(self._rows(index, positions), scanned=True)
        results = inner.walk(self._body, bound, made_of, prefix="", xla=ctx.xla)
        if None in results:
            return None
        for number, result in enumerate(results):
            builder.output(f"y{number}", self._result(inner, result))
        attrs = {"length": steps.count, "reverse": False, "num_consts": consts, "num_carry": len(carried)}
        names = ctx.add_all("scan", *operands.names, body=builder.build(), **attrs)
        return dict(zip([*carried, *stacked], names, strict=True))

    def _rows(self, index: int, positions: Sequence[int]) -> Value:
        """Returns the elements of a list in the order in which steps read them."""
        ctx, tensors = self._ctx, self._operands[index]
        assert isinstance(tensors, TensorList)
        if min(positions) < 0 or max(positions) >= tensors.length:
            raise RefusalError(f"the loop reads a list of {tensors.length} elements at positions from {min(positions)} to {max(positions)}")
        rows, first = stack(ctx, tensors), positions[0]
        shape = ctx.shape(rows)
        if list(positions) == list(range(first, first + len(positions))):
            return ctx.slice(rows, [first, *(0 for _ in shape[1:])], [first + len(positions), *shape[1:]])
        return ctx.add(
            "take", rows, ctx.constant(np.asarray(positions, np.int32)), axis=0, oob="error", wrap_negative=False, fill_value=None
        )

    def _written(self, index: int, positions: Sequence[int], rows: str, is_last: bool) -> Value:
        """Returns a list after the loop: step ``t`` wrote row ``t`` at ``positions[t]`` (``is_last``: ``rows`` is what the last step wrote)."""
        ctx, before = self._ctx, self._operands[index]
        assert isinstance(before, TensorList)
        length = before.length
        if self._results[index].op.get_attr("resize_if_index_out_of_bounds"):
            length = max(length, max(positions) + 1)
        if min(positions) < 0 or max(positions) >= length:
            raise RefusalError(f"the loop writes a list of {length} elements at positions from {min(positions)} to {max(positions)}")
        shape = ctx.shape(rows) if is_last else ctx.shape(rows)[1:]
        after = TensorList(length, before.dtype, shape)
        first, end = min(positions), max(positions) + 1
        if not is_last and sorted(positions) == list(range(first, end)):
            if list(positions) != sorted(positions):
                order = ctx.constant(np.argsort(positions).astype(np.int32))
                rows = ctx.add("take", rows, order, axis=0, oob="error", wrap_negative=False, fill_value=None)
            ends = [self._part(before, shape, *part) for part in ((0, first), (end, length))]
            parts = [ends[0], rows, ends[1]]
            kept = [part for part in parts if part is not None]
            return replace(after, stacked=rows if len(kept) == 1 else ctx.add("concat", *kept, axis=0))
        all_rows = TensorList(len(positions), before.dtype, shape, stacked=rows)
        last = {position: step for step, position in enumerate(positions)}
        items: list[Any] = []
        for position in range(length):
            if position not in last:
                items.append(written(ctx, before, position))
            else:
                items.append(rows if is_last else element(ctx, all_rows, last[position]))
        return replace(after, items=tuple(items))

    def _part(self, tensors: TensorList, shape: tuple[int, ...], first: int, end: int) -> Value | None:
        """Returns elements ``first`` to ``end`` of a list along a leading axis, None if these are none; beyond its end are zeros."""
        if first == end:
            return None
        items: list[Any] = [written(self._ctx, tensors, index) for index in range(first, end)]
        return stack(self._ctx, TensorList(end - first, tensors.dtype, shape, items=tuple(items)))


def _tensors(roots: Iterable[Any], stop: Iterable[str]) -> list[Any]:
    """Returns all tensors that ``roots`` depend on, those in ``stop`` but nothing behind them included."""
    ends, seen, pending = set(stop), {}, list(roots)
    while pending:
        tensor = pending.pop()
        if tensor.name not in seen:
            seen[tensor.name] = tensor
            if tensor.name not in ends:
                pending += tensor.op.inputs
    return list(seen.values())


def _lower_while(walker: Walker, ctx: Context, operands: Sequence[Value], prefix: str) -> list[Value | None]:
    loop = _Loop(walker.tf, walker, ctx, operands, prefix)
    return loop.lower_while() if loop.steps is None else loop.lower_scan()


LOWERINGS: Mapping[str, Callable[[Walker, Context, Sequence[Value], str], list[Value | None]]] = {
    **dict.fromkeys(("If", "StatelessIf"), _lower_if),
    **dict.fromkeys(("Case", "StatelessCase"), _lower_case),
    **dict.fromkeys(("While", "StatelessWhile"), _lower_while),
}
"""Operators that call functions: ``lower(walker, context, operands, prefix)`` gives the value of each output."""
