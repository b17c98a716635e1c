"""What a native product or convolution does to its sums before it stores them: ``native/kernels/epilogue.h``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rml_exec.ir.graph import Node
from rml_exec.runtime.lowering import LowerContext, Operand, float_bits

__all__ = ["NO_EPILOGUE", "Epilogue"]

_NUMBERS = ("none", "clamp", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hard_swish")
"""In the order of epilogue.h."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """y = activation(sum + residual), or activation(sum) + residual."""

    activation: str = "none"
    lo: float = 0.0
    hi: float = 0.0
    residual: Operand = None
    residual_after: bool = False

    @classmethod
    def of(cls, chain: tuple[Node, ...], residual: str | None, ctx: LowerContext) -> Epilogue:
        """Returns the epilogue of a chain of elementwise nodes: one activation at most, and one add if there is a residual."""
        activation, lo, hi, position = "none", 0.0, 0.0, {}
        for index, node in enumerate(chain):
            position["add" if node.op == "add" else "activation"] = index
            match node.op:
                case "add":
                    continue
                case "relu":
                    activation, lo, hi = "clamp", 0.0, math.inf
                case "clamp":
                    lo, hi = node.attrs["lo"], node.attrs["hi"]
                    activation, lo, hi = "clamp", -math.inf if lo is None else lo, math.inf if hi is None else hi
                case "gelu":
                    activation = "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu"
                case _:
                    activation = node.op
        after = position.get("add", 0) > position.get("activation", 0)
        return cls(activation, lo, hi, None if residual is None else ctx.contiguous(residual), after)

    @property
    def params(self) -> tuple[int, int, int, int]:
        """The four parameters at the end of a step's."""
        return _NUMBERS.index(self.activation), float_bits(self.lo), float_bits(self.hi), int(self.residual_after)


NO_EPILOGUE = Epilogue()
