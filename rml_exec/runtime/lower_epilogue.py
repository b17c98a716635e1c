"""Lowering of products and convolutions with an epilogue: the steps of the product, told how to finish its sums."""

from __future__ import annotations

from dataclasses import replace

from rml_exec.ir.graph import Node
from rml_exec.runtime.epilogue import Epilogue
from rml_exec.runtime.lower_conv import conv2d_steps
from rml_exec.runtime.lower_linear import linear_steps, matmul_steps
from rml_exec.runtime.lowering import LowerContext, NativeStep, lowers


@lowers("epilogue")
def lower_epilogue(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """The product's own lowering; an add of a vector right after a product without bias becomes its bias."""
    operand_of = dict(zip(node.attrs["params"], node.inputs, strict=True))
    product, *chain = node.attrs["body"]
    operands = tuple(None if name is None else operand_of[name] for name in product.inputs)
    bias = operands[2] if len(operands) > 2 else None
    first = chain[0]
    if first.op == "add" and node.attrs["params"][0] not in first.inputs:
        bias = next(operand_of[name] for name in first.inputs if name != product.outputs[0].name)
        chain = chain[1:]
    product = replace(product, inputs=operands, outputs=node.outputs)
    epilogue = Epilogue.of(tuple(chain), node.inputs[0], ctx)
    match product.op:
        case "linear":
            return linear_steps(product, ctx, bias, epilogue)
        case "matmul":
            return matmul_steps(product, ctx, bias, epilogue)
    return conv2d_steps(product, ctx, epilogue)
