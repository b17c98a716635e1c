"""Products and convolutions finish their own sums: activation and residual, instead of another pass over memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rml_exec.ir.graph import Graph, Node
from rml_exec.passes.base import Pass
from rml_exec.types import DType

__all__ = ["FUSE_EPILOGUE"]

_ACTIVATIONS = ("relu", "clamp", "gelu", "silu", "sigmoid", "tanh", "hard_swish")


@dataclass(slots=True)
class _Chain:
    """A product and the nodes that follow it, each the only reader of the one before: a bias right away, then one activation and one residual."""

    product: Node
    members: list[Node] = field(default_factory=list)
    residual: str | None = None
    activated: bool = False

    @property
    def value(self) -> str:
        return (self.members or [self.product])[-1].outputs[0].name

    def take(self, node: Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Appends the node if the kernel can do its work; False if not."""
        if node.outputs[0].type != self.product.outputs[0].type:
            return False
        if node.op in _ACTIVATIONS and not self.activated:
            self.activated = True
        elif node.op != "add" or not self._take_operand(next(name for name in node.reads() if name != self.value), shapes):
            return False
        self.members.append(node)
        return True

    def _take_operand(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        shape, result = shapes[name], self.product.outputs[0].type.shape
        if shape == result:
            if self.residual is not None or _is_depthwise(self.product, shapes):
                return False
            self.residual = name
            return True
        lacks_bias = self.product.op == "matmul" or (self.product.op == "linear" and self.product.inputs[2] is None)
        return not self.members and lacks_bias and shape in [(1,) * leading + result[-1:] for leading in range(len(result))]


def _is_depthwise(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return node.op == "conv2d" and node.attrs["groups"] > 1 and shapes[node.inputs[1] or ""][:2] == (node.attrs["groups"], 1)


def _is_product(node: Node, constants: set[str]) -> bool:
    if node.op not in ("linear", "matmul", "conv2d") or node.outputs[0].type.dtype is not DType.F32:
        return False
    return node.op != "conv2d" or (node.attrs["data_layout"] == "NHWC" and node.inputs[1] in constants)


def _fused(chain: _Chain) -> Node:
    product, members = chain.product, chain.members
    inside = {product.outputs[0].name, *(member.outputs[0].name for member in members)}
    read = dict.fromkeys(name for node in (product, *members) for name in node.reads() if name not in inside)
    if chain.residual is not None and chain.residual not in product.reads():
        read.pop(chain.residual)  # it is an operand of its own; the product's operands stay, so that nothing overwrites them
    nodes = (product, *members)
    metadata = {
        **members[-1].metadata,
        "rml.label": "+".join(node.label for node in nodes),
        "rml.covers": ";".join(name for node in nodes for name in node.covers),
    }
    attrs = {"params": (chain.residual or "", *read), "body": nodes}
    return Node("epilogue", product.name, (chain.residual, *read), members[-1].outputs, attrs, metadata, product.source)


def _fuse(graph: Graph) -> Graph:
    shapes = {name: type_.shape for name, type_ in graph.types().items()}
    constants = {constant.name for constant in graph.constants}
    readers, results = graph.readers(), graph.output_values()
    absorbed: set[str] = set()
    ends: dict[str, _Chain] = {}  # last node of a chain -> the chain
    for node in graph.nodes:
        if not _is_product(node, constants):
            continue
        chain = _Chain(node)
        while chain.value not in results and len(found := readers.get(chain.value, [])) == 1:
            if found[0].name in absorbed or not chain.take(found[0], shapes):
                break
        if chain.members:
            absorbed.update(member.name for member in (node, *chain.members))
            ends[chain.members[-1].name] = chain
    # A fused node stands where its last member stood, after all that it reads.
    kept = (
        _fused(ends[node.name]) if node.name in ends else node for node in graph.nodes if node.name in ends or node.name not in absorbed
    )
    return graph.with_nodes(tuple(kept)) if ends else graph


FUSE_EPILOGUE = Pass("fuse_epilogue", _fuse, fusion=True)
"""A linear, matmul or conv2d (NHWC, constant weights) takes in the elementwise nodes that follow it, each the only reader of the one before:
the add of a vector to a product without bias, an activation, and the add of a value of the result's type (not after a depthwise
convolution). Becomes an ``epilogue`` node; label ``conv2d+add+relu``."""
