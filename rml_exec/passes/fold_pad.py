"""A pad before a convolution or max pool becomes part of its own pads: TensorFlow models, and those that follow them, pad by a node of its own."""

from __future__ import annotations

import math
from dataclasses import replace

from rml_exec.ir.graph import Graph, Node
from rml_exec.passes.base import Pass

__all__ = ["FOLD_PAD"]

_NEUTRAL = {"conv2d": 0.0, "max_pool": -math.inf}
"""Op -> the value that its own pads stand for."""


def _spatial_axes(node: Node) -> range:
    rank = node.outputs[0].type.rank
    return range(2, rank) if node.attrs["data_layout"] == "NCHW" else range(1, rank - 1)


def _folds(pad: Node, reader: Node) -> bool:
    attrs = pad.attrs
    if reader.op not in _NEUTRAL or reader.inputs[0] != pad.outputs[0].name or attrs["mode"] != "constant":
        return False
    if attrs["value"] != _NEUTRAL[reader.op] or any(attrs["interior"]) or min((*attrs["low"], *attrs["high"]), default=0) < 0:
        return False
    spatial = _spatial_axes(reader)
    return not any(attrs["low"][axis] or attrs["high"][axis] for axis in range(pad.outputs[0].type.rank) if axis not in spatial)


def _fold(graph: Graph) -> Graph:
    readers, results = graph.readers(), graph.output_values()
    folded: dict[str, Node] = {}  # value of a pad that vanishes -> the pad
    nodes: list[Node] = []
    for node in graph.nodes:
        value = node.outputs[0].name
        if node.op == "pad" and value not in results and len(found := readers.get(value, [])) == 1 and _folds(node, found[0]):
            folded[value] = node
            continue
        pad = folded.get(node.inputs[0] or "") if node.inputs else None
        if pad is not None:
            widths = zip(_spatial_axes(node), node.attrs["pads"], strict=True)
            pads = tuple((low + pad.attrs["low"][axis], high + pad.attrs["high"][axis]) for axis, (low, high) in widths)
            metadata = {**node.metadata, "rml.label": node.label, "rml.covers": ";".join((*pad.covers, *node.covers))}
            node = replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attrs={**node.attrs, "pads": pads}, metadata=metadata)
        nodes.append(node)
    return graph.with_nodes(tuple(nodes)) if folded else graph


FOLD_PAD = Pass("fold_pad", _fold, fusion=True)
"""A pad of spatial axes alone, with the value that the reader's own pads stand for (0 for conv2d, -inf for max_pool), that is no output and whose
only reader is that conv2d or max_pool: the reader pads instead. Its label stays what it is."""
