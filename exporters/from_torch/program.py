"""From a model and example inputs to a decomposed ``ExportedProgram``, and the model's own results for the golden file."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch._decomp import get_decompositions
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from exporters.dims import Dim, axes_of, hints, shapes_at
from exporters.errors import ExportError, describe
from exporters.from_torch import attention, elementwise, indexing, networks, recurrent, reductions, sampling, shapes
from exporters.from_torch.context import ATEN
from exporters.from_torch.contraction import products
from exporters.from_torch.formulas import recognise
from exporters.golden_sets import draw_inputs
from exporters.lowering import name_inputs, name_outputs
from rml_exec.ir.dims import parse_expr

__all__ = ["DECOMPOSED", "Traced", "run_eagerly", "run_nodes", "symbolic_sizes", "trace"]

_LOWERINGS = (attention, elementwise, indexing, networks, recurrent, reductions, sampling, shapes)
"""Imported for what they add to ATEN."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced model.

    Attributes:
        program: functional, decomposed, verified by torch.
        module: the model; a function is wrapped in a module.
        arguments: top-level name -> what the model is called with: tensors, nested containers of them, other Python values.
        positional: how many of the arguments are positional; the rest are passed by keyword.
        inputs: interface name -> example tensor, in the order of the program's user inputs; other leaves of the arguments are not inputs.
        symbols: dim name -> its symbol in the program's shapes, if dims were kept symbolic.
    """

    program: ExportedProgram
    module: torch.nn.Module
    arguments: dict[str, Any]
    positional: int
    inputs: dict[str, torch.Tensor]
    symbols: dict[str, sympy.Symbol]

    def examples(self) -> dict[str, np.ndarray]:
        """Returns the example inputs as arrays."""
        return {name: tensor.detach().numpy() for name, tensor in self.inputs.items()}


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


def trace(
    model: Any, example_inputs: Sequence[Any] | Mapping[str, Any], input_names: Sequence[str] | None, dims: Sequence[Dim] = ()
) -> Traced:
    """Returns the traced model.

    Raises:
        ExportError: it is in training mode, not on the CPU, or cannot be traced; or torch needs a fixed size for one of the dims.
    """
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
    values = _apart(pytree.tree_map(_tensor, example_inputs))
    named = name_inputs(values, input_names, defaults)
    arguments = dict(zip(example_inputs, named.values(), strict=True)) if by_name else named
    positional = 0 if by_name else len(named)
    inputs = {leaf_name: leaf for name, value in named.items() for leaf_name, leaf in _leaves(name, value)}
    for name, tensor in inputs.items():
        if tensor.device.type != "cpu":
            raise ExportError.of(where, f"input '{name}' must be on the CPU", tensor.device)

    args, kwargs = _call(arguments, positional)
    dynamic = None
    if dims:
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        args, kwargs, dynamic = _with_dims(module, dims, shapes, inputs, args, kwargs)
    try:
        with torch.no_grad(), warnings.catch_warnings(), _without_partial_graph(), _masks_as_they_are(), recurrent.traced_whole():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
            if products(program.graph):
                program.graph_module.recompile()
            program = program.run_decompositions(_decompositions())
    except Exception as error:  # whatever the model or the tracer raises
        rule, hint = "torch.export must be able to trace the model", _CACHE_HINT if "DynamicCache" in str(error) else None
        raise ExportError.of(where, rule, describe(error, _told(error)), hint=hint) from error
    recurrent.as_torch_has_them(program.graph)
    recognise(program.graph_module)
    return Traced(program, module, arguments, positional, inputs, _symbols(program, inputs, dims, where))


_CACHE_HINT = "export without the cache of generated tokens: model.config.use_cache = False"


def _with_dims(
    module: torch.nn.Module,
    dims: Sequence[Dim],
    shapes: dict[str, tuple[int, ...]],
    inputs: dict[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Returns arguments to trace with, and torch's ``dynamic_shapes`` for them. A symbolic size must be 2 or more while tracing."""
    sizes = {name: max(size, 2) for name, size in hints(dims, shapes).items()}
    tried = shapes_at(dims, shapes, sizes)
    symbols = {dim.name: torch.export.Dim(dim.name, min=dim.low, max=dim.high) for dim in dims}
    specs: dict[str, dict[int, Any]] = {name: {} for name in inputs}
    for dim in dims:
        for name, axis in axes_of(dim, shapes).items():
            specs[name][axis] = symbols[dim.name]
    arrays = draw_inputs({name: tensor.detach().numpy() for name, tensor in inputs.items()}, 0, tried)
    names = {id(tensor): name for name, tensor in inputs.items()}
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    dynamic = pytree.tree_map(lambda leaf: specs[names[id(leaf)]] or None if isinstance(leaf, torch.Tensor) else None, bound)
    resized = pytree.tree_map(
        lambda leaf: torch.from_numpy(arrays[names[id(leaf)]]) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
    )
    return *resized, dynamic


def _symbols(program: ExportedProgram, inputs: dict[str, torch.Tensor], dims: Sequence[Dim], where: str) -> dict[str, sympy.Symbol]:
    """Returns the symbol of each dim; raises ExportError for one that torch gave a fixed size after all."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = [placeholders[spec.arg.name].meta["val"] for spec in specs]
    traced = dict(zip(inputs, (value for value in values if isinstance(value, torch.Tensor)), strict=True))
    found = {}
    for dim in dims:
        (name, axis), *_ = axes_of(dim, {name: tuple(tensor.shape) for name, tensor in inputs.items()}).items()
        size = traced[name].shape[axis]
        expression = size.node.expr if isinstance(size, torch.SymInt) else size
        if not isinstance(expression, sympy.Symbol):
            raise ExportError.of(where, f"dim '{dim.name}' must stay symbolic", f"{expression} for axis {axis} of '{name}'")
        found[dim.name] = expression
    return found


def symbolic_sizes(traced: Traced) -> list[str]:
    """Returns the sizes that occur in a traced program's shapes, as expressions over the dims; those the format cannot hold are left out."""
    names = {symbol: sympy.Symbol(dim, integer=True, positive=True) for dim, symbol in traced.symbols.items()}
    found: dict[str, None] = {}
    for node in traced.program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols - names.keys():
                text = str(size.node.expr.xreplace(names)).replace("Max(", "max(").replace("Min(", "min(")
                with contextlib.suppress(ValueError):
                    found[parse_expr(ast.unparse(ast.parse(text, mode="eval"))).text] = None
    return list(found)


def _check_mode(module: torch.nn.Module, where: str) -> None:
    if training := [name or "the model" for name, child in module.named_modules() if child.training]:
        shown = ", ".join(training[:3]) + (f" and {len(training) - 3} more" if len(training) > 3 else "")
        raise ExportError.of(where, "the model must be in evaluation mode", f"{shown} in training mode", hint="call model.eval() first")
    weights = [*module.named_parameters(), *module.named_buffers()]
    if halves := [name for name, tensor in weights if tensor.dtype == torch.bfloat16]:
        rest = f" and {len(halves) - 1} more" if len(halves) > 1 else ""
        rule = "the weights must be of an element type that NumPy has"
        raise ExportError.of(where, rule, f"'{halves[0]}'{rest} in bfloat16", hint="call model.float() first, and take float32 inputs")
    for name, tensor in weights:
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


def _apart(values: Any) -> Any:
    """Copies tensors that occur again: torch.export takes one tensor for one input, and would read the others nowhere."""
    seen: set[int] = set()

    def apart(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.clone()

    return pytree.tree_map(apart, values)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of an argument: ``name``, or ``name.0.key`` for those within containers."""
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield ".".join([name, *(str(getattr(step, "idx", getattr(step, "key", step))) for step in path)]), leaf


def _call(arguments: dict[str, Any], positional: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    items = list(arguments.items())
    return tuple(value for _, value in items[:positional]), dict(items[positional:])


@contextlib.contextmanager
def _masks_as_they_are() -> Iterator[None]:
    """Keeps ``nn.Transformer`` from looking into masks whether they are causal, which a traced tensor cannot tell; it applies them anyway."""
    layers = torch.nn.modules.transformer
    detect = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = detect


@contextlib.contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Keeps torch from printing the graph it has so far when it fails; what the model's own code writes comes at the end."""
    written = io.StringIO()
    graph = ""
    try:
        with contextlib.redirect_stderr(written):
            yield
    except Exception as error:
        graph = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        text = written.getvalue()
        sys.stderr.write(text.replace(graph, "") if graph.strip() else text)


def _told(error: Exception) -> str:
    """Returns what an exception says: its first line, or of a list of violated constraints the entries."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    said = [line.removeprefix("- ") for line in lines if line.startswith("- ")] or lines[:1]
    advice = " If you're using mark_dynamic"  # and more about functions that the user has not called
    return "; ".join(line.partition(advice)[0].rstrip(".") for line in said)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions: without those of what has a lowering, and with some of its own that are no default."""
    table = torch.export.default_decompositions()
    for name in ATEN.names():
        if not name.startswith("aten."):
            continue
        packet, _, overload = name.removeprefix("aten.").partition(".")
        for kept in [overload] if overload else getattr(torch.ops.aten, packet).overloads():
            table.pop(getattr(getattr(torch.ops.aten, packet), kept), None)
    table.update(get_decompositions([getattr(torch.ops.aten, name.removeprefix("aten.")) for name in sorted(DECOMPOSED)]))
    return table


DECOMPOSED = {f"aten.{name}" for name in ("grid_sampler_2d", "col2im", "addmv", "addbmm", "dist")}
"""Operators that torch can decompose, but does not by default."""


def run_eagerly(traced: Traced, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the model's own outputs by interface name; on one thread, so that exports repeat bit for bit."""
    remaining = iter(inputs.values())

    def golden(leaf: Any) -> Any:
        return torch.from_numpy(np.array(next(remaining))) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = _call({name: pytree.tree_map(golden, value) for name, value in traced.arguments.items()}, traced.positional)
    with _one_thread():
        result = traced.module(*args, **kwargs)
    return {name: leaf.detach().contiguous().numpy() for name, leaf in name_outputs(result) if isinstance(leaf, torch.Tensor)}


def run_nodes(traced: Traced, values: Mapping[str, str], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the traced program node by node and returns what torch has where the graph has a value.

    Args:
        traced: the model.
        values: name of a node of the program -> value of the graph.
        inputs: inputs by interface name.
    """
    found: dict[str, np.ndarray] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result = super().run_node(node)
            if node.op == "call_function" and node.name in values and isinstance(result, torch.Tensor):
                found.setdefault(values[node.name], result.detach().contiguous().numpy().copy())
            return result

    program, arrays, arguments = traced.program, iter(inputs.values()), []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            is_tensor = isinstance(spec.arg, TensorArgument)
            arguments.append(torch.from_numpy(np.array(next(arrays))) if is_tensor else spec.arg.value)
        else:
            target = str(spec.target)
            arguments.append(program.state_dict[target] if target in program.state_dict else program.constants[target])
    with _one_thread():
        Recorder(program.graph_module).run(*arguments, enable_io_processing=False)
    return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
