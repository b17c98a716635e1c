"""A convolution or product followed by the add of a per-channel constant takes it as its bias: JAX and TensorFlow export a bias that way."""

from __future__ import annotations

from dataclasses import replace

from rml_exec.ir.derived import Recipe
from rml_exec.ir.graph import Constant, Graph, Node
from rml_exec.ir.names import Names
from rml_exec.passes.base import Pass
from rml_exec.types import TensorType

__all__ = ["FOLD_BIAS", "varies_along_channels_alone"]


def varies_along_channels_alone(shape: tuple[int, ...], output: tuple[int, ...], axis: int) -> bool:
    """True if a constant of this shape, broadcast to an output of shape ``output``, holds one number per index of ``axis``.

    Broadcasting aligns shapes at the right, so [O] is a bias in NHWC but varies along the width in NCHW, whatever the width is.
    """
    if len(shape) > len(output):
        return False
    aligned = (1,) * (len(output) - len(shape)) + shape
    return all(dim == (output[axis] if i == axis else 1) for i, dim in enumerate(aligned))


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = {constant.name: constant for constant in graph.constants}
        self._readers, self._results = graph.readers(), graph.output_values()
        self._names = Names(graph.types())
        self._vectors: dict[str, Constant] = {}

    def run(self) -> Graph:
        absorbed: set[str] = set()
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node.name in absorbed:
                continue
            add = self._only_reader(node)
            bias = self._bias(node, add) if add is not None and self._lacks_bias(node) else None
            if add is not None and bias is not None:
                absorbed.add(add.name)
                node = self._with_bias(node, add, bias)
            nodes.append(node)
        if not absorbed:
            return self._graph
        read = {name for node in nodes for name in node.reads()} | self._results
        constants = (*self._graph.constants, *self._vectors.values())
        return self._graph.with_nodes(tuple(nodes), tuple(c for c in constants if c.name in read or c.name not in self._readers))

    def _lacks_bias(self, node: Node) -> bool:
        if node.op == "matmul":
            weight = self._constants.get(node.inputs[1] or "")
            return weight is not None and weight.type.rank == 2 and weight.type.dtype.is_float and not node.attrs["transpose_a"]
        return node.op in ("conv2d", "linear") and node.inputs[2] is None

    def _only_reader(self, node: Node) -> Node | None:
        value = node.outputs[0].name
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self._results else None

    def _bias(self, node: Node, add: Node) -> Constant | None:
        """Returns the constant that ``add`` adds to the result of ``node``, if it can serve as its bias."""
        if add.op != "add":
            return None
        value = node.outputs[0]
        constant = self._constants.get(next(name for name in add.reads() if name != value.name))
        axis = 1 if node.attrs.get("data_layout") == "NCHW" else value.type.rank - 1
        if constant is None or not varies_along_channels_alone(constant.type.shape, value.type.shape, axis):
            return None
        return constant

    def _with_bias(self, node: Node, add: Node, bias: Constant) -> Node:
        if node.op == "matmul":  # with a matrix of weights it is a linear
            label, layout = node.label, "oi" if node.attrs["transpose_b"] else "io"
            node = replace(node, op="linear", attrs={"weight_layout": layout}, metadata={**node.metadata, "rml.label": label})
        metadata = {**node.metadata, "rml.label": f"{node.label}+add", "rml.covers": ";".join((*node.covers, *add.covers))}
        return replace(node, inputs=(*node.inputs[:2], self._vector(bias)), outputs=add.outputs, metadata=metadata)

    def _vector(self, bias: Constant) -> str:
        """Returns the name of the constant, or of a 1-D twin of it, made once."""
        if bias.type.rank == 1:
            return bias.name
        if bias.name not in self._vectors:
            flat = Recipe((bias.source,), ("reshape", (bias.type.size,)), lambda: bias.data.reshape(-1))
            type_ = TensorType(bias.type.dtype, (bias.type.size,))
            self._vectors[bias.name] = Constant(self._names.take(f"{bias.name}.bias"), type_, flat)
        return self._vectors[bias.name].name


FOLD_BIAS = Pass("fold_bias", lambda graph: _Folder(graph).run(), fusion=True)
"""A conv2d or linear without bias, or a matmul with a constant matrix on the right, whose result is no output and whose only reader is an add of a
constant that varies along the output channel axis alone, takes the constant as its bias; a matmul becomes a linear. Label ``conv2d+add``; saves
one pass over the result."""
