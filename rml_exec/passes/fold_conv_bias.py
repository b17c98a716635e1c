"""conv2d followed by the add of a per-channel constant becomes one conv2d with a bias: JAX and TensorFlow export a bias that way."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from rml_exec.ir.graph import Constant, Graph, Node
from rml_exec.ir.names import Names
from rml_exec.passes.base import Pass
from rml_exec.types import TensorType

__all__ = ["FOLD_CONV_BIAS", "varies_along_channels_alone"]


def varies_along_channels_alone(shape: tuple[int, ...], output: tuple[int, ...], axis: int) -> bool:
    """True if a constant of this shape, broadcast to an output of shape ``output``, holds one number per index of ``axis``.

    Broadcasting aligns shapes at the right, so [O] is a bias in NHWC but varies along the width in NCHW, whatever the width is.
    """
    if len(shape) > len(output):
        return False
    aligned = (1,) * (len(output) - len(shape)) + shape
    return all(dim == (output[axis] if i == axis else 1) for i, dim in enumerate(aligned))


def _bias_operand(conv: Node, add: Node, constants: dict[str, Constant]) -> Constant | None:
    """Returns the constant that ``add`` adds to the result of ``conv``, if it can serve as its bias."""
    if add.op != "add" or conv.outputs[0].name not in add.inputs:
        return None
    other = add.inputs[1] if add.inputs[0] == conv.outputs[0].name else add.inputs[0]
    constant = constants.get(other) if other is not None else None
    axis = 1 if conv.attrs["data_layout"] == "NCHW" else 3
    if constant is None or not varies_along_channels_alone(constant.type.shape, conv.outputs[0].type.shape, axis):
        return None
    return constant


def _fold(graph: Graph) -> Graph:
    constants = {constant.name: constant for constant in graph.constants}
    readers, results = graph.readers(), graph.output_values()
    names = Names(graph.types())
    added: dict[str, Constant] = {}
    nodes: list[Node] = []
    folded = False
    for node, following in zip_longest(graph.nodes, graph.nodes[1:]):
        if folded:
            folded = False
            continue
        if node.op == "conv2d" and following is not None and node.inputs[2] is None:
            value = node.outputs[0].name
            if value not in results and readers.get(value) == [following] and (bias := _bias_operand(node, following, constants)):
                name = bias.name
                if bias.type.rank != 1:
                    name = _as_vector(bias, names, added)
                metadata = {**node.metadata, "rml.label": f"{node.label}+add", "rml.covers": ";".join((*node.covers, *following.covers))}
                nodes.append(replace(node, inputs=(*node.inputs[:2], name), outputs=following.outputs, metadata=metadata))
                folded = True
                continue
        nodes.append(node)
    read = {name for node in nodes for name in node.reads()} | results
    kept = tuple(constant for constant in (*graph.constants, *added.values()) if constant.name in read or constant.name not in readers)
    return graph.with_nodes(tuple(nodes), kept)


def _as_vector(bias: Constant, names: Names, added: dict[str, Constant]) -> str:
    """Returns the name of a 1-D twin of the constant, made once and sharing its memory."""
    if bias.name not in added:
        name = names.take(f"{bias.name}.bias")
        added[bias.name] = Constant(name, TensorType(bias.type.dtype, (bias.type.size,)), bias.data.reshape(-1))
    return added[bias.name].name


FOLD_CONV_BIAS = Pass("fold_conv_bias", _fold, fusion=True)
"""A conv2d without bias, whose result is no output and whose only reader is the next node, an add of a constant that varies along the output
channel axis alone, takes the constant as its bias. Label ``conv2d+add``; saves one pass over the convolution's output."""
