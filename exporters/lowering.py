"""What the exporters share on the way into the graph: the table from operator names to lowerings, and the names of inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from exporters.errors import ExportError

__all__ = ["LoweringTable", "golden_inputs", "name_inputs", "name_outputs"]

F = TypeVar("F", bound=Callable[..., Any])


class LoweringTable:
    """Framework operator name -> function that adds the operator's nodes to the graph being built. Each exporter owns one."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def lowers(self, *names: str) -> Callable[[F], F]:
        """Registers the decorated function for the operators of these names; a name taken already is a ValueError."""

        def register(function: F) -> F:
            for name in names:
                if name in self._functions:
                    raise ValueError(f"lowering of {name} is defined twice")
                self._functions[name] = function
            return function

        return register

    def get(self, name: str) -> Callable[..., Any] | None:
        """Returns the lowering of an operator, None if there is none."""
        return self._functions.get(name)

    def names(self) -> tuple[str, ...]:
        """Returns all operator names that have a lowering, sorted."""
        return tuple(sorted(self._functions))


def name_inputs(
    example_inputs: Sequence[Any] | Mapping[str, Any], input_names: Sequence[str] | None, defaults: Sequence[str] | None = None
) -> dict[str, Any]:
    """Returns the example inputs by interface name, in call order.

    Names come from ``input_names``; else from the mapping's keys; else from ``defaults`` (the parameters of the model's signature) where
    they are as many as the inputs; else they are ``x`` for one input, ``x0``, ``x1``... for several.

    Raises:
        ExportError: as many names as inputs are needed, all different.
    """
    if isinstance(example_inputs, Mapping):
        values, given = list(example_inputs.values()), list(example_inputs)
    else:
        values, given = list(example_inputs), list(defaults) if defaults is not None and len(defaults) == len(example_inputs) else []
    numbered = ["x"] if len(values) == 1 else [f"x{index}" for index in range(len(values))]
    names = list(input_names) if input_names is not None else given or numbered
    if len(names) != len(values) or len(set(names)) != len(names):
        raise ExportError.of("export", f"{len(values)} inputs need as many different names", ", ".join(map(repr, names)) or "none")
    return dict(zip(names, values, strict=True))


def name_outputs(result: object) -> list[tuple[str, Any]]:
    """Returns (interface name, leaf) of what a model returned, in order.

    One tensor is ``y``; the elements of a tuple or list are ``y0``, ``y1``... (a single one ``y``); a dict gives its keys. Nested
    containers join their names with a dot (``y1.hidden``). None is left out.
    """
    leaves = list(_leaves(result, ""))
    if len(leaves) == 1 and not isinstance(result, Mapping):
        return [("y", leaves[0][1])]
    return [(name if isinstance(result, Mapping) else "y" + name, leaf) for name, leaf in leaves]


def _leaves(result: object, name: str) -> Iterable[tuple[str, Any]]:
    if result is None:
        return
    if isinstance(result, Mapping | tuple | list):
        entries = result.items() if isinstance(result, Mapping) else enumerate(result)
        for key, value in entries:
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, result


def golden_inputs(examples: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Returns the inputs of a golden file: the examples, which a user chose within his model's domain.

    Only a float input of several elements that are all equal (zeros, ones) says nothing about a model: it is replaced by N(0, 1) numbers
    drawn with ``seed``.
    """
    generator = np.random.default_rng(seed)
    inputs = {}
    for name, example in examples.items():
        drawn = generator.standard_normal(example.shape)
        constant = example.dtype.kind == "f" and example.size > 1 and bool((example == example.flat[0]).all())
        inputs[name] = drawn.astype(example.dtype) if constant else np.ascontiguousarray(example).reshape(example.shape)
    return inputs
