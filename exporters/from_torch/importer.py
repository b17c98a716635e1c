"""Walks a decomposed ``ExportedProgram`` and builds the graph: weights to constants, operators to nodes through the table of lowerings."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

import exporters
from exporters.dims import Binding
from exporters.errors import ExportError, Unsupported, UnsupportedOperatorsError
from exporters.from_torch.context import ATEN, Context, Known, RefusedError, identity_of, to_dtype
from exporters.from_torch.program import Traced
from exporters.lowering import name_outputs
from rml_exec.errors import RmlError
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from rml_exec.types import DType

__all__ = ["REFUSED", "SYMBOLIC", "Imported", "import_program"]

_DROPPED = re.compile(r"aten\.(_assert_\w+|sym_constrain_range\w*)\b")
"""Checks of what the static types say already."""

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
_UNINITIALISED = ("aten.empty", "aten.empty_strided", "aten.empty_like", "aten.new_empty")
_MEANINGLESS = {"layout", "device", "pin_memory", "memory_format", "non_blocking"}


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a traced model.

    Attributes:
        graph: its graph.
        values: name of a node of torch's program -> value of the graph that it became.
    """

    graph: Graph
    values: dict[str, str]


def import_program(traced: Traced, name: str, sizes: Binding | None = None) -> Imported:
    """Returns the graph of a traced model.

    Args:
        traced: the model.
        name: name of the graph.
        sizes: size of each symbolic dim.

    Raises:
        UnsupportedOperatorsError: operators without a lowering, and writes into buffers or inputs; all of them.
        ExportError: an output that is not a tensor.
    """
    producer = {
        "framework": "torch",
        "framework_version": torch.__version__,
        "exporter_version": exporters.__version__,
        "options": {"strict": False},
    }
    symbols = {traced.symbols[dim]: size for dim, size in (sizes or {}).items()}
    importer = _Importer(traced.program, Context(GraphBuilder(name, producer=producer), symbols))
    graph = importer.run(traced)
    return Imported(graph, {node.name: value for node, value in importer.values.items() if isinstance(value, str)})


class _Importer:
    def __init__(self, program: ExportedProgram, ctx: Context) -> None:
        self.program = program
        self.builder = ctx.builder
        self.ctx = ctx
        self.values: dict[torch.fx.Node, Any] = {}
        self.unsupported: list[Unsupported] = []

    def run(self, traced: Traced) -> Graph:
        graph = self.program.graph
        graph.eliminate_dead_code()
        self._bind_placeholders(traced)
        for node in graph.nodes:
            if node.op == "call_function":
                self._lower(node)
            elif node.op not in ("placeholder", "output"):
                self._refuse(node, str(node.target), "higher-order operators are not supported")
        self._check_mutations()
        if self.unsupported:
            raise UnsupportedOperatorsError(self.unsupported)
        self._bind_outputs()
        return _without_dead_code(self.builder.build())

    def _bind_placeholders(self, traced: Traced) -> None:
        names = iter(traced.inputs)
        weights = [*traced.module.named_parameters(), *traced.module.named_buffers()]
        tied = {identity_of(tensor): name for name, tensor in reversed(weights)}  # all of them go by the name of the first
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            node = placeholders[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, TensorArgument):
                    self.values[node] = self._input(next(names), node)
                elif isinstance(spec.arg, ConstantArgument):
                    self.values[node] = spec.arg.value
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                target = str(spec.target)
                tensor = self.program.state_dict[target] if target in self.program.state_dict else self.program.constants[target]
                name = tied.get(identity_of(tensor), target) if tensor.numel() else target
                key = None if spec.kind is InputKind.CONSTANT_TENSOR else name
                self.values[node] = Known(name, tensor, key, foldable=spec.kind is not InputKind.PARAMETER)
            else:
                self._refuse(node, spec.kind.name, "only tensors can be constants")

    def _input(self, name: str, node: torch.fx.Node) -> str:
        value = node.meta["val"]
        try:
            return self.builder.input(name, to_dtype(value.dtype), self.ctx.shape_of(value))
        except RefusedError as reason:
            raise ExportError.of(f"input '{name}'", str(reason)) from None

    def _lower(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            producer, index = node.args
            self.values[node] = self.values[producer][index]
            if self.values[node] is None:
                self._refuse(producer, str(producer.target), f"its result number {index} cannot be computed")
                self.values[node] = self._stand_in(node.meta["val"])
            return
        if _DROPPED.match(str(node.target)):
            return
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) and "_local_scalar_dense" not in str(node.target):
            self.values[node] = self.ctx.number(value)  # None if it depends on data: whatever needs it is refused
            return
        self.ctx.node = node
        self.ctx.source = {"op": str(node.target), "where": _where(node)}
        try:
            self.values[node] = self._value_of(node)
        except (RefusedError, RmlError) as reason:
            self._refuse(node, str(node.target), str(reason))
            val = node.meta.get("val")
            self.values[node] = tuple(map(self._stand_in, val)) if isinstance(val, tuple | list) else self._stand_in(val)

    def _value_of(self, node: torch.fx.Node) -> Any:
        """Returns a node's value: folded where all it reads is known and no parameter is among it, lowered else."""
        if not isinstance(node.target, torch._ops.OpOverload):
            raise RefusedError("only tensor operators are supported")
        packet = str(node.target.overloadpacket)
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

    def _fold(self, node: torch.fx.Node) -> Any:
        def real(value: torch.fx.Node) -> Any:
            known = self.values[value]
            return known.tensor if isinstance(known, Known) else known

        assert isinstance(node.target, torch._ops.OpOverload)
        with torch.no_grad():
            result = node.target(*torch.fx.map_arg(node.args, real), **torch.fx.map_arg(node.kwargs, real))
        if str(node.target.overloadpacket) in _UNINITIALISED:
            result.zero_()
        if isinstance(result, torch.Tensor):
            return Known(node.name, result)
        if isinstance(result, tuple | list):
            return tuple(Known(f"{node.name}.{index}", item) for index, item in enumerate(result))
        return result

    def _arguments(self, node: torch.fx.Node) -> list[Any]:
        """Returns all arguments of the operator's schema, defaults filled in; see ATEN for what a lowering is called with."""

        def lowered(value: torch.fx.Node) -> Any:
            known = self.values[value]
            return self.ctx.constant(known) if isinstance(known, Known) else known

        arguments = []
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.name not in _MEANINGLESS:
                given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
                arguments.append(torch.fx.map_arg(given, lowered))
        return arguments

    def _refuse(self, node: torch.fx.Node, op: str, reason: str) -> None:
        self.unsupported.append(Unsupported(op, node.name, _where(node), reason))

    def _stand_in(self, value: Any) -> Any:
        """Returns a value for a refused result, so that the nodes behind it can be tried too; the graph is not built then."""
        if not isinstance(value, torch.Tensor):
            return None
        try:
            dtype = to_dtype(value.dtype)
        except RefusedError:
            dtype = DType.F32
        return self.builder.input(
            "refused", dtype, [int(self.ctx.number(dim) or 1) if not isinstance(dim, int) else dim for dim in value.shape]
        )

    def _check_mutations(self) -> None:
        nodes = {node.name: node for node in self.program.graph.nodes}
        written = {
            OutputKind.BUFFER_MUTATION: "buffer",
            OutputKind.USER_INPUT_MUTATION: "input",
            OutputKind.PARAMETER_MUTATION: "parameter",
        }
        for spec in self.program.graph_signature.output_specs:
            if spec.kind in written:
                node = nodes[spec.arg.name]
                self._refuse(node, str(node.target), f"it writes into {written[spec.kind]} '{spec.target}': a graph has no state")

    def _bind_outputs(self) -> None:
        results = next(node for node in self.program.graph.nodes if node.op == "output").args[0]
        leaves = pytree.tree_unflatten(list(range(len(results))), self.program.call_spec.out_spec)
        for name, index in name_outputs(leaves):
            value = self.values.get(results[index]) if isinstance(results[index], torch.fx.Node) else results[index]
            if isinstance(value, Known):
                value = self.ctx.constant(value)
            if isinstance(value, str):
                self.builder.output(name, value)
            elif value is not None:
                raise ExportError.of(f"output '{name}'", "must be a tensor", repr(value), hint="return tensors only")


def _is_symbolic(value: Any) -> bool:
    """True if a traced tensor has a dim whose size is not a number."""
    return isinstance(value, torch.Tensor) and not all(isinstance(dim, int) for dim in value.shape)


def _without_dead_code(graph: Graph) -> Graph:
    """Returns the graph without nodes and constants that no output needs: results of a lowering that the model does not use."""
    live = graph.output_values()
    nodes = []
    for node in reversed(graph.nodes):
        if any(value.name in live for value in node.outputs):
            live.update(node.reads())
            nodes.append(node)
    return graph.with_nodes(tuple(reversed(nodes)), tuple(constant for constant in graph.constants if constant.name in live))


def _where(node: torch.fx.Node) -> str:
    """Returns ``file.py:line`` of the code that made a node: the innermost frame outside torch, or within it where there is no other."""
    frames = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if PurePath(frame[0]).parent != PurePath(__file__).parent]
    outside = [frame for frame in frames if "torch" not in PurePath(frame[0]).parts]
    path, line = (outside or frames or [("", "")])[-1]
    return f"{PurePath(path).name}:{line}" if path else ""
