"""JAX to graph: ``jax.make_jaxpr``, one flat program, formulas recognised, one lowering per primitive.

JAX is imported when an export begins, not with this package.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporters import __version__
from exporters.bundle import ExportSummary, write_export
from exporters.errors import ExportError, UnsupportedOperatorsError, import_framework
from exporters.from_jax import contraction, control, elementwise, indexing, rearranging, reduction  # their import fills the table  # noqa: F401
from exporters.from_jax.context import Context, dtype_name
from exporters.from_jax.patterns import recognise
from exporters.from_jax.program import Value, address, flatten, on_cpu
from exporters.lowering import name_inputs, name_outputs
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder

__all__ = ["export", "to_graph"]

Inputs = Sequence[Any] | Mapping[str, Any]


def export(
    function: Callable[..., Any],
    example_inputs: Inputs,
    path_prefix: str | Path,
    *,
    params: Any = None,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
) -> ExportSummary:
    """Exports a JAX function to ``PREFIX.json``, ``PREFIX.safetensors`` and ``PREFIX.golden.safetensors``.

    Args:
        function: as for :func:`to_graph`.
        example_inputs: as for :func:`to_graph`; they become the golden inputs, in the element types that JAX gives them (f64 is f32 unless
            ``jax_enable_x64`` is set).
        path_prefix: path without suffix.
        params: as for :func:`to_graph`.
        name: name of the graph; the last part of ``path_prefix`` if None.
        input_names: as for :func:`to_graph`.
        seed: recorded in the golden file: the seed that the example inputs were drawn with.

    Raises:
        UnsupportedOperatorsError: primitives without a lowering, all of them at once.
        ExportError: JAX is not installed, the function fails on the example inputs, or the graph does not give what JAX gives.
    """
    traced = _Traced(function, example_inputs, params, input_names)
    graph = traced.graph(name or Path(path_prefix).name)
    return write_export(
        graph,
        path_prefix,
        inputs={value.name: np.asarray(array) for value, array in zip(graph.inputs, traced.inputs.values(), strict=True)},
        outputs={name: np.asarray(value) for name, value in traced.run().items()},
        framework="jax",
        framework_version=traced.jax.__version__,
        seed=seed,
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def to_graph(
    function: Callable[..., Any], example_inputs: Inputs, *, params: Any = None, name: str, input_names: Sequence[str] | None = None
) -> Graph:
    """Returns a JAX function as a graph.

    Args:
        function: ``function(params, *inputs)``, or ``function(*inputs)`` where ``params`` is None. ``functools.partial(function, params)``
            counts as the former. Arrays it captures become constants under the names of the variables that hold them.
        example_inputs: arrays (or nested containers of them) in call order, or a mapping from the function's parameter names.
        params: any pytree; its arrays become constants named by their path (``layers.0.weight``), an array at two places one constant.
            Leaves that are no arrays (numbers, strings, None) keep their values while tracing.
        name: name of the graph.
        input_names: interface names; the function's parameter names if None.

    Raises:
        UnsupportedOperatorsError: primitives without a lowering, all of them at once.
        ExportError: JAX is not installed, or the function fails on the example inputs.
    """
    return _Traced(function, example_inputs, params, input_names).graph(name)


class _Traced:
    """A function with its arguments taken apart into named arrays.

    Attributes:
        jax: the module.
        inputs: the arrays of the example inputs by interface name.
    """

    def __init__(self, function: Callable[..., Any], example_inputs: Inputs, params: Any, input_names: Sequence[str] | None) -> None:
        self.jax = import_framework("jax")
        if params is None and isinstance(function, functools.partial) and len(function.args) == 1:
            function, params = functools.partial(function.func, **function.keywords), function.args[0]
        self._function, self._takes_params = function, params is not None
        tree = self.jax.tree_util
        leaves, self._params_tree = tree.tree_flatten_with_path(params)
        self._leaves = [leaf for _, leaf in leaves]
        names = [tree.keystr(path, simple=True, separator=".") for path, _ in leaves]
        # One array at two places of the tree is one constant: a tied weight.
        self._arrays: dict[int, tuple[str, Any]] = {}
        for path, leaf in zip(names, self._leaves, strict=True):
            if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
                self._arrays.setdefault(id(leaf), (path or "params", leaf))
        arguments = name_inputs(example_inputs, input_names, _parameter_names(function, skip=self._takes_params))
        self._by_name = isinstance(example_inputs, Mapping)
        self._keywords = list(example_inputs) if isinstance(example_inputs, Mapping) else []
        leaves, self._inputs_tree = tree.tree_flatten_with_path(list(arguments.values()))
        self.inputs = {}
        for path, leaf in leaves:
            argument = list(arguments)[path[0].idx]
            inner = tree.keystr(path[1:], simple=True, separator=".")
            with on_cpu(self.jax):
                self.inputs[f"{argument}.{inner}" if inner else argument] = self.jax.numpy.asarray(leaf)

    def _call(self, arrays: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Calls the function on arrays for the parameters and for the inputs."""
        tree = self.jax.tree_util
        values = tree.tree_unflatten(self._inputs_tree, inputs)
        traced = dict(zip(self._arrays, arrays, strict=True))
        params = tree.tree_unflatten(self._params_tree, [traced.get(id(leaf), leaf) for leaf in self._leaves])
        leading = [params] if self._takes_params else []
        if self._by_name:
            return self._function(*leading, **dict(zip(self._keywords, values, strict=True)))
        return self._function(*leading, *values)

    def run(self) -> dict[str, Any]:
        """Returns what JAX computes from the inputs on the CPU, by interface name."""
        with on_cpu(self.jax):
            result = self.jax.jit(self._call)([array for _, array in self._arrays.values()], list(self.inputs.values()))
        return dict(name_outputs(result))

    def graph(self, name: str) -> Graph:
        """Traces the function and lowers it."""
        arrays = [array for _, array in self._arrays.values()]
        try:
            jaxpr, shapes = self.jax.make_jaxpr(self._call, return_shape=True)(arrays, list(self.inputs.values()))
        except Exception as error:  # whatever a user's function raises
            rule, got = "JAX must be able to trace the function on the example inputs", f"{type(error).__name__}: {error}".rstrip(".")
            raise ExportError.of(f"export of '{name}'", rule, got) from error
        constants = [
            _parameter(self.jax, path, array, aval) for (path, array), aval in zip(self._arrays.values(), jaxpr.in_avals, strict=False)
        ]
        inputs = [Value(tuple(array.shape), array.dtype, path) for path, array in self.inputs.items()]
        program = recognise(flatten(jaxpr, constants + inputs, _captured(self.jax, self._function)))
        builder = GraphBuilder(
            name, producer={"framework": "jax", "framework_version": self.jax.__version__, "exporter_version": __version__, "options": {}}
        )
        context = Context(builder)
        for value in inputs:
            context.bind(value, builder.input(value.name, dtype_name(value.dtype), value.shape))
        context.lower(program)
        if context.refused:
            raise UnsupportedOperatorsError(context.refused)
        named = name_outputs(shapes)
        if len(named) != len(program.outputs):
            raise ExportError.of(
                f"export of '{name}'", "the function must return arrays, in tuples, lists and dicts at most", type(shapes).__name__
            )
        for (output, _), value in zip(named, program.outputs, strict=True):
            builder.output(output, context.name(value))
        return builder.build()


def _parameter(jax: Any, path: str, array: Any, aval: Any) -> Value:
    """Returns the constant of a parameter in the element type that JAX computes in, which differs for f64 unless x64 is enabled."""
    return Value(tuple(aval.shape), aval.dtype, path, array if array.dtype == aval.dtype else jax.numpy.asarray(array))


def _parameter_names(function: Callable[..., Any], *, skip: bool) -> list[str] | None:
    """Returns the names of a function's positional parameters, without the first where that takes the parameter tree."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names[1:] if skip else names


def _captured(jax: Any, function: Any) -> dict[int, str]:
    """Returns, by address of its data, the name of every array that a function captures or reads from its module."""
    function = function.func if isinstance(function, functools.partial) else function
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    found = {}
    for variable, value in {**variables.globals, **variables.nonlocals}.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
                inner = jax.tree_util.keystr(path, simple=True, separator=".")
                found[address(leaf)] = f"{variable}.{inner}" if inner else variable
    return found
