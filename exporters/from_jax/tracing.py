"""From a function, a flax module or a Keras model and its example inputs to a graph, and to what JAX itself computes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from exporters import __version__
from exporters.errors import ExportError, UnsupportedOperatorsError, describe, import_framework
from exporters.from_jax import (  # their import fills the table
    activations,  # noqa: F401
    contraction,  # noqa: F401
    control,  # noqa: F401
    elementwise,  # noqa: F401
    group_norm,  # noqa: F401
    indexing,  # noqa: F401
    rearranging,  # noqa: F401
    recurrent,  # noqa: F401
    reduction,  # noqa: F401
)
from exporters.from_jax.context import Context, RefusedError, dtype_name
from exporters.from_jax.evaluation import evaluated
from exporters.from_jax.flattening import address, flatten, on_cpu
from exporters.from_jax.models import as_function
from exporters.from_jax.patterns import recognise
from exporters.from_jax.program import Equation, Value
from exporters.lowering import name_inputs, name_outputs
from exporters.progress import report
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder

__all__ = ["Traced"]

Inputs = Sequence[Any] | Mapping[str, Any]


class Traced:
    """A function with its arguments taken apart into named arrays; arguments as of :func:`exporters.from_jax.to_graph`.

    Attributes:
        jax: the module.
        inputs: the arrays of the example inputs by interface name.
        sizes_vary: whether what depends on sizes alone (positions) is computed at run time; as constants, sizes would be fixed.
    """

    def __init__(self, function: Callable[..., Any], example_inputs: Inputs, params: Any, input_names: Sequence[str] | None) -> None:
        self.jax = import_framework("jax")
        self.sizes_vary = False
        model = as_function(function, example_inputs) if params is None else None
        if model is not None:
            function, params = model.function, model.params
        elif params is None and isinstance(function, functools.partial) and len(function.args) == 1:
            function, params = functools.partial(function.func, **function.keywords), function.args[0]
        self._function, self._takes_params = function, params is not None
        defaults = _parameter_names(function, skip=self._takes_params) if model is None else model.input_names
        if model is not None and defaults is not None:  # those with a default value may be left out
            defaults = defaults[: len(example_inputs)]
        tree = self.jax.tree_util
        leaves, self._params_tree = tree.tree_flatten_with_path(params)
        self._leaves = [leaf for _, leaf in leaves]
        names = [tree.keystr(path, simple=True, separator=".") for path, _ in leaves]
        # One array at two places of the tree is one constant: a tied weight.
        self._arrays: dict[int, tuple[str, Any]] = {}
        for path, leaf in zip(names, self._leaves, strict=True):
            if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
                self._arrays.setdefault(id(leaf), (path or "params", leaf))
        arguments = name_inputs(example_inputs, input_names, defaults)
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

    def examples(self) -> dict[str, np.ndarray]:
        """Returns the example inputs in the element types that JAX gives them."""
        return {name: np.asarray(array) for name, array in self.inputs.items()}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what JAX computes from inputs on the CPU, by interface name."""
        with on_cpu(self.jax):
            arrays = [self.jax.numpy.asarray(array) for array in inputs.values()]
            result = self.jax.jit(self._call)([array for _, array in self._arrays.values()], arrays)
        return {name: np.asarray(value) for name, value in name_outputs(result)}

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        """Traces the function and lowers it; ``shapes``: of the inputs, where they are not those of the examples."""
        return self._lowered(name, shapes)[0]

    def intermediates(self, name: str, inputs: Mapping[str, np.ndarray], *, symbolic: bool) -> dict[str, np.ndarray]:
        """Returns what JAX has where the graph of this name has a value; ``inputs`` in the function's order."""
        shapes = dict(zip(self.inputs, (array.shape for array in inputs.values()), strict=True)) if symbolic else None
        _, equations, values, names = self._lowered(name, shapes)
        return evaluated(equations, dict(zip(values, inputs.values(), strict=True)), names)

    def _lowered(
        self, name: str, shapes: Mapping[str, Sequence[int]] | None
    ) -> tuple[Graph, list[Equation], list[Value], Mapping[Value, str]]:
        """Returns the graph; and the program before recognition, its inputs, and what its values are called in the graph."""
        arrays = [array for _, array in self._arrays.values()]
        specs = [
            self.jax.ShapeDtypeStruct(array.shape if shapes is None else tuple(shapes[key]), array.dtype)
            for key, array in self.inputs.items()
        ]
        try:
            jaxpr, results = self.jax.make_jaxpr(self._call, return_shape=True)(arrays, specs)
        except ExportError:
            raise
        except Exception as error:  # whatever a user's function raises
            rule = "JAX must be able to trace the function on the example inputs"
            said = str(error).partition("\nThe error occurred")[0]  # JAX goes on about its own frames
            raise ExportError.of(f"export of '{name}'", rule, describe(error, said)) from error
        constants = [
            _parameter(self.jax, path, array, aval) for (path, array), aval in zip(self._arrays.values(), jaxpr.in_avals, strict=False)
        ]
        report("lowering")
        inputs = [Value(tuple(spec.shape), spec.dtype, path) for path, spec in zip(self.inputs, specs, strict=True)]
        flat = flatten(jaxpr, constants + inputs, _captured(self.jax, self._function), sizes_vary=self.sizes_vary)
        equations = list(flat.equations)
        program = recognise(flat)
        builder = GraphBuilder(
            name, producer={"framework": "jax", "framework_version": self.jax.__version__, "exporter_version": __version__, "options": {}}
        )
        context = Context(builder)
        for value in inputs:
            try:
                context.bind(value, builder.input(value.name, dtype_name(value.dtype), value.shape))
            except RefusedError as error:
                raise ExportError.of(f"input '{value.name}'", str(error)) from None
        context.lower(program)
        if context.refused:
            raise UnsupportedOperatorsError(context.refused)
        named = name_outputs(results)
        if len(named) != len(program.outputs):
            raise ExportError.of(
                f"export of '{name}'", "the function must return arrays, in tuples, lists and dicts at most", type(results).__name__
            )
        for (output, _), value in zip(named, program.outputs, strict=True):
            builder.output(output, context.name(value))
        return builder.build(), equations, inputs, context.names


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
