"""From a model and example inputs to a decomposed ``ExportedProgram``, and the model's own results for the golden file."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from exporters.errors import ExportError
from exporters.lowering import golden_inputs, name_inputs, name_outputs

__all__ = ["Traced", "run_eagerly", "trace"]


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced model.

    Attributes:
        program: functional, decomposed, verified by torch.
        module: the model; a function is wrapped in a module.
        arguments: top-level name -> what the model is called with: tensors, nested containers of them, other Python values.
        positional: how many of the arguments are positional; the rest are passed by keyword.
        inputs: interface name -> example tensor, in the order of the program's user inputs; other leaves of the arguments are not inputs.
    """

    program: ExportedProgram
    module: torch.nn.Module
    arguments: dict[str, Any]
    positional: int
    inputs: dict[str, torch.Tensor]


class _Function(torch.nn.Module):
    """A function as the module that ``torch.export`` asks for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(function, FunctionType):  # torch records the source lines of functions called "forward" only
            code = function.__code__.replace(co_name="forward")
            renamed = FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
            renamed.__kwdefaults__ = function.__kwdefaults__
            function = renamed
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def trace(model: Any, example_inputs: Sequence[Any] | Mapping[str, Any], input_names: Sequence[str] | None) -> Traced:
    """Returns the traced model; raises ExportError if it is in training mode, not on the CPU, or cannot be traced."""
    if not isinstance(model, torch.nn.Module) and not callable(model):
        raise ExportError.of("torch export", "the model must be a torch.nn.Module or a function", type(model).__name__)
    forward = model.forward if isinstance(model, torch.nn.Module) else model
    module = model if isinstance(model, torch.nn.Module) else _Function(model).eval()
    where = f"torch export of {type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, '__name__', 'a function')}"
    _check_mode(module, where)

    parameters = _parameters(forward)
    if by_name := isinstance(example_inputs, Mapping):  # torch.export orders keyword arguments as the signature does
        order = [parameter.name for parameter in parameters]
        example_inputs = dict(sorted(example_inputs.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    elif isinstance(example_inputs, torch.Tensor | np.ndarray):
        example_inputs = [example_inputs]
    defaults = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(example_inputs)]
    values = pytree.tree_map(_tensor, example_inputs)
    named = name_inputs(values, input_names, defaults)
    arguments = dict(zip(example_inputs, named.values(), strict=True)) if by_name else named
    positional = 0 if by_name else len(named)
    inputs = {leaf_name: leaf for name, value in named.items() for leaf_name, leaf in _leaves(name, value)}
    for name, tensor in inputs.items():
        if tensor.device.type != "cpu":
            raise ExportError.of(where, f"input '{name}' must be on the CPU", tensor.device)

    args, kwargs = _call(arguments, positional)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs).run_decompositions(_decompositions())
    except Exception as error:  # whatever the model or the tracer raises
        raise ExportError.of(
            where, "torch.export must be able to trace the model", f"{type(error).__name__}: {_first_line(error)}"
        ) from error
    return Traced(program, module, arguments, positional, inputs)


def _check_mode(module: torch.nn.Module, where: str) -> None:
    if training := [name or "the model" for name, child in module.named_modules() if child.training]:
        shown = ", ".join(training[:3]) + (f" and {len(training) - 3} more" if len(training) > 3 else "")
        raise ExportError.of(where, "the model must be in evaluation mode", f"{shown} in training mode", hint="call model.eval() first")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ExportError.of(where, "the model must be on the CPU", f"'{name}' on {tensor.device}", hint="call model.cpu() first")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a function; none for a built-in one, whose signature is unknown."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def _tensor(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value


def _leaves(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of an argument: ``name``, or ``name.0.key`` for those within containers."""
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield ".".join([name, *(str(getattr(step, "idx", getattr(step, "key", step))) for step in path)]), leaf


def _call(arguments: dict[str, Any], positional: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    items = list(arguments.items())
    return tuple(value for _, value in items[:positional]), dict(items[positional:])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions without those of the composites that the executor has as ops of their own."""
    table = torch.export.default_decompositions()
    aten = torch.ops.aten
    for kept in (aten.layer_norm.default, aten.linear.default, aten.scaled_dot_product_attention.default, aten.silu.default):
        table.pop(kept)
    return table


def run_eagerly(traced: Traced, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns golden inputs and the model's own outputs for them, by interface name; on one thread, so that exports repeat bit for bit."""
    inputs = golden_inputs({name: tensor.detach().numpy() for name, tensor in traced.inputs.items()}, seed)
    remaining = iter(inputs.values())

    def golden(leaf: Any) -> Any:
        return torch.from_numpy(np.array(next(remaining))) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = _call({name: pytree.tree_map(golden, value) for name, value in traced.arguments.items()}, traced.positional)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            result = traced.module(*args, **kwargs)
    finally:
        torch.set_num_threads(threads)
    outputs = {name: leaf.detach().contiguous().numpy() for name, leaf in name_outputs(result) if isinstance(leaf, torch.Tensor)}
    return inputs, outputs
