"""Walks the nodes of a traced graph, or of the body of a loop or branch: what is known is computed, the rest goes through the table of lowerings."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from exporters.errors import Unsupported
from exporters.from_torch.context import ATEN, COMPOSITES, Context, Known, RefusedError, to_dtype
from exporters.from_torch.control import CONTROL
from exporters.from_torch.matching import packet_of
from rml_exec.errors import RmlError
from rml_exec.ir.graph import Function
from rml_exec.types import DType

__all__ = ["REFUSED", "SYMBOLIC", "Walker"]

_REFUSALS = {
    "it draws random numbers: the graph would not give the same result twice": "bernoulli exponential multinomial native_dropout normal "
    "poisson rand rand_like randint randint_like randn randn_like randperm rrelu_with_noise uniform",
    "shapes or control flow that depend on data are not supported": "_local_scalar_dense _unique2 bincount equal histc masked_select "
    "nonzero repeat_interleave.Tensor unique_consecutive unique_dim",
    "it belongs to training": "_native_batch_norm_legit.default _native_batch_norm_legit_functional native_batch_norm "
    "_adaptive_avg_pool2d_backward avg_pool2d_backward convolution_backward embedding_dense_backward max_pool2d_with_indices_backward "
    "native_group_norm_backward native_layer_norm_backward",
    "complex numbers are not supported": "_fft_c2c _fft_c2r _fft_r2c complex polar",
    "bags of different sizes are not supported": "_embedding_bag",
    "it changes the memory of a tensor": "resize_",
    "distances of all pairs are not supported": "_pdist_forward",
    "sequences of different lengths (PackedSequence) are not supported": "lstm.data gru.data",
}
REFUSED = {f"aten.{name}": reason for reason, names in _REFUSALS.items() for name in names.split()}
"""Operator -> why no graph can have it."""

SYMBOLIC = {"aten.sym_is_contiguous", "aten.sym_numel", "aten.sym_size", "aten.sym_storage_offset", "aten.sym_stride"}
"""Operators that give a size: their values are known from the traced shapes."""

_DATA_DEPENDENT = next(reason for reason in _REFUSALS if "control flow" in reason)
_UNINITIALISED = ("empty", "empty_strided", "empty_like", "new_empty")
_MEANINGLESS = {"layout", "device", "pin_memory", "memory_format", "non_blocking"}


class Walker:
    """Lowers the nodes of a graph into the builder of a graph or of a function.

    Attributes:
        ctx: what lowerings see.
        values: node -> what it became: the name of a value, a :class:`Known`, a number, a tuple of these, or None for what depends on data.
        unsupported: what could not be lowered so far, in functions too.
    """

    def __init__(self, ctx: Context, unsupported: list[Unsupported] | None = None, where: str = "") -> None:
        """Takes ``where`` as the source line of nodes that have none."""
        self.ctx = ctx
        self.values: dict[Node, Any] = {}
        self.unsupported = [] if unsupported is None else unsupported
        self._place = where

    def walk(self, graph: Graph) -> None:
        """Lowers every node; those of placeholders must have their values."""
        for node in graph.nodes:
            if node.op == "get_attr":
                self.values[node] = operator.attrgetter(str(node.target))(graph.owning_module)
            elif node.op == "call_function":
                self._lower(node)

    def inline(self, module: GraphModule, operands: Sequence[Any]) -> list[Any]:
        """Lowers a body where it is called and returns what it gives."""
        graph = module.graph
        self.values.update(zip((node for node in graph.nodes if node.op == "placeholder"), operands, strict=True))
        self.walk(graph)
        results = next(node for node in graph.nodes if node.op == "output").args[0]
        listed = results if isinstance(results, tuple | list) else [results]
        return [self.values[result] if isinstance(result, Node) else result for result in listed]

    def function(
        self, name: str, module: GraphModule, operands: Sequence[Any], inputs: Sequence[int], passed: Sequence[int] = ()
    ) -> Function:
        """Makes a function of a body.

        Args:
            name: wished name.
            module: the body.
            operands: what the body is given: a TensorType for an input of the function, anything else as it is.
            inputs: which operands are inputs, in the order that the function takes them.
            passed: which of them the function hands on, after the body's results.
        """
        builder = self.ctx.builder.function(name)
        inner = Walker(self.ctx.within(builder, f"{name}."), self.unsupported, self.ctx.source["where"])
        values = list(operands)
        for number, index in enumerate(inputs):
            values[index] = builder.input(f"x{number}", operands[index].dtype, operands[index].shape)
        results = [*inner.inline(module, values), *(values[index] for index in passed)]
        for number, result in enumerate(results):
            if not isinstance(result, str | Known):
                raise RefusedError("loops and branches can give tensors only")
            builder.output(f"y{number}", inner.ctx.value(result))
        return builder.build()

    def _lower(self, node: Node) -> None:
        if node.target is operator.getitem:
            producer, index = node.args
            self.values[node] = self.values[producer][index]
            if self.values[node] is None:
                self.refuse(producer, str(producer.target), f"its result number {index} cannot be computed")
                self.values[node] = self._stand_in(node.meta["val"])
            return
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) and "_local_scalar_dense" not in str(node.target):
            self.values[node] = self.ctx.number(value)  # None if it depends on data: whatever needs it is refused
            return
        self.ctx.node = node
        self.ctx.source = {"op": str(node.target), "where": _where(node) or self._place}
        try:
            self.values[node] = self._value_of(node)
        except (RefusedError, RmlError) as reason:
            self.refuse(node, str(node.target), str(reason))
            val = node.meta.get("val")
            self.values[node] = tuple(map(self._stand_in, val)) if isinstance(val, tuple | list) else self._stand_in(val)

    def _value_of(self, node: Node) -> Any:
        """Returns a node's value: folded where all it reads is known and no parameter is among it, lowered else."""
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._control(node)
        if isinstance(node.target, torch._ops.OpOverload):
            packet = str(node.target.overloadpacket)
        elif node.target in COMPOSITES:
            packet = COMPOSITES[node.target]
        else:
            raise RefusedError("only tensor operators are supported")
        if reason := REFUSED.get(packet) or REFUSED.get(str(node.target)):
            raise RefusedError(reason)
        operands = [self.values[operand] for operand in node.all_input_nodes]
        if any(operand is None for operand in operands):
            raise RefusedError(_DATA_DEPENDENT)
        known = not any(isinstance(operand, str) or (isinstance(operand, Known) and not operand.foldable) for operand in operands)
        if known and not _is_symbolic(node.meta.get("val")):
            return self._fold(node)
        lowering = ATEN.get(str(node.target)) or ATEN.get(packet)
        if lowering is None:
            self.ctx.result()  # a dtype or shape that no graph has is the better reason
            raise RefusedError("")
        return lowering(self.ctx, *self._arguments(node))

    def _control(self, node: Node) -> tuple[Any, ...]:
        assert isinstance(node.target, torch._ops.HigherOrderOperator)
        lowering = CONTROL.get(node.target.name())
        if lowering is None:
            raise RefusedError("this higher-order operator is not supported")
        return tuple(lowering(self, *torch.fx.map_arg(node.args, self.values.__getitem__)))

    def _fold(self, node: Node) -> Any:
        def real(value: Node) -> Any:
            known = self.values[value]
            return known.tensor if isinstance(known, Known) else known

        assert callable(node.target)
        with torch.no_grad():
            result = node.target(*torch.fx.map_arg(node.args, real), **torch.fx.map_arg(node.kwargs, real))
        if packet_of(node) in _UNINITIALISED:
            result.zero_()
        if isinstance(result, torch.Tensor):
            return Known(node.name, result)
        if isinstance(result, tuple | list):
            return tuple(Known(f"{node.name}.{index}", item) for index, item in enumerate(result))
        return result

    def _arguments(self, node: Node) -> list[Any]:
        """Returns all arguments of the operator's schema, defaults filled in; see ATEN for what a lowering is called with."""

        def lowered(value: Node) -> Any:
            return self.ctx.value(self.values[value])

        if node.target in COMPOSITES:
            return [torch.fx.map_arg(argument, lowered) for argument in node.args]
        arguments = []
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.name not in _MEANINGLESS:
                given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
                arguments.append(torch.fx.map_arg(given, lowered))
        return arguments

    def refuse(self, node: Node, op: str, reason: str) -> None:
        """Lists a node as one that cannot be lowered."""
        self.unsupported.append(Unsupported(op, node.name, _where(node) or self._place, reason))

    def _stand_in(self, value: Any) -> Any:
        """Returns a value for a refused result, so that the nodes behind it can be tried too; the graph is not built then."""
        if not isinstance(value, torch.Tensor):
            return None
        try:
            dtype = to_dtype(value.dtype)
        except RefusedError:
            dtype = DType.F32
        return self.ctx.builder.input(
            "refused", dtype, [int(self.ctx.number(dim) or 1) if not isinstance(dim, int) else dim for dim in value.shape]
        )


def _is_symbolic(value: Any) -> bool:
    """True if a traced tensor has a dim whose size is not a number."""
    return isinstance(value, torch.Tensor) and not all(isinstance(dim, int) for dim in value.shape)


def _where(node: Node) -> str:
    """Returns ``file.py:line`` of the code that made a node: the innermost frame outside torch, or within it where there is no other."""
    frames = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if PurePath(frame[0]).parent != PurePath(__file__).parent and not frame[0].startswith("<")]
    outside = [frame for frame in frames if "torch" not in PurePath(frame[0]).parts]
    path, line = (outside or frames or [("", "")])[-1]
    return f"{PurePath(path).name}:{line}" if path else ""
