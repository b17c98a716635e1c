"""Makes a graph of a decomposed ``ExportedProgram``: weights to constants, its nodes through the walker, its results to outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

import exporters
from exporters.dims import Binding
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_torch.context import Context, Known, RefusedError, identity_of, to_dtype
from exporters.from_torch.program import Traced
from exporters.from_torch.walker import Walker
from exporters.lowering import name_outputs
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder

__all__ = ["Imported", "import_program"]


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
    builder = GraphBuilder(name, producer=producer)
    importer = _Importer(traced.program, builder, Walker(Context(builder, symbols)))
    graph = importer.run(traced)
    nodes = traced.program.graph.nodes
    return Imported(graph, {node.name: value for node in nodes if isinstance(value := importer.values.get(node), str)})


class _Importer:
    def __init__(self, program: ExportedProgram, builder: GraphBuilder, walker: Walker) -> None:
        self.program = program
        self.builder = builder
        self.walker = walker
        self.ctx = walker.ctx
        self.values = walker.values

    def run(self, traced: Traced) -> Graph:
        self._bind_placeholders(traced)
        self.walker.walk(self.program.graph)
        self._check_mutations()
        if self.walker.unsupported:
            raise UnsupportedOperatorsError(self.walker.unsupported)
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
                self.walker.refuse(node, spec.kind.name, "only tensors can be constants")

    def _input(self, name: str, node: torch.fx.Node) -> str:
        value = node.meta["val"]
        try:
            return self.builder.input(name, to_dtype(value.dtype), self.ctx.shape_of(value))
        except RefusedError as reason:
            raise ExportError.of(f"input '{name}'", str(reason)) from None

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
                self.walker.refuse(node, str(node.target), f"it writes into {written[spec.kind]} '{spec.target}': a graph has no state")

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


def _without_dead_code(graph: Graph) -> Graph:
    """Returns the graph without nodes and constants that no output needs: results of a lowering that the model does not use."""
    live = graph.output_values()
    nodes = []
    for node in reversed(graph.nodes):
        if any(value.name in live for value in node.outputs):
            live.update(node.reads())
            nodes.append(node)
    return graph.with_nodes(tuple(reversed(nodes)), tuple(constant for constant in graph.constants if constant.name in live))
