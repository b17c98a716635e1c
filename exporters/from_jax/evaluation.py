"""What JAX computes inside a program, equation by equation: the search for the first node that differs compares it with the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exporters.from_jax.flattening import on_cpu
from exporters.from_jax.program import Equation, Value

__all__ = ["evaluated"]


def evaluated(equations: Sequence[Equation], inputs: Mapping[Value, np.ndarray], names: Mapping[Value, str]) -> dict[str, np.ndarray]:
    """Returns, by their names in the graph, the values that JAX's own primitives give.

    Args:
        equations: the program before formulas were recognised in it.
        inputs: the program's inputs.
        names: value of the program -> value of the graph.
    """
    import jax

    found: dict[str, np.ndarray] = {}
    with on_cpu(jax):
        arrays: dict[Value, Any] = {value: jax.numpy.asarray(array) for value, array in inputs.items()}
        for equation in equations:
            eqn, operands, outputs = equation.origin
            given = [value.constant if value.constant is not None else arrays[value] for value in operands]
            results = eqn.primitive.bind(*given, **eqn.params)
            arrays.update(zip(outputs, results if eqn.primitive.multiple_results else [results], strict=True))
            found |= {names[value]: np.asarray(arrays[value]) for value in outputs if value in names}
    return found
