"""flax.nnx modules and Keras models as functions of their parameters; neither is imported here unless a model came from it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporters.errors import ExportError

__all__ = ["Model", "as_function"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model taken apart.

    Attributes:
        function: ``function(params, *inputs)``.
        params: a dict, nested or not, of arrays; its paths are the names of the weights.
        input_names: names of its inputs, in order, for as many as are given; None if they have none.
    """

    function: Callable[..., Any]
    params: Any
    input_names: Sequence[str] | None


def as_function(model: Any, example_inputs: Sequence[Any] | Mapping[str, Any]) -> Model | None:
    """Returns a flax.nnx module or a Keras layer as a function of its parameters, None for anything else.

    Raises:
        ExportError: it is in training mode, or not on the JAX backend.
    """
    nnx, keras = sys.modules.get("flax.nnx"), sys.modules.get("keras")
    if nnx is not None and isinstance(model, nnx.Module):
        return _nnx_model(nnx, model)
    if keras is not None and isinstance(model, keras.layers.Layer):
        return _keras_model(keras, model, example_inputs)
    return None


def _nnx_model(nnx: Any, model: Any) -> Model:
    training = [".".join(map(str, path)) or type(module).__name__ for path, module in nnx.iter_modules(model) if _trains(module)]
    if training:
        raise ExportError.of(
            f"model {type(model).__name__}",
            "must be in evaluation mode",
            f"{', '.join(training)} in training mode",
            hint="call model.eval() before the export",
        )
    graphdef, state = nnx.split(model)
    variables = {".".join(map(str, path)): (path, variable) for path, variable in nnx.to_flat_state(state)}

    def function(params: Mapping[str, Any], *inputs: Any, **named: Any) -> Any:
        flat = [(path, variable.replace(params[name])) for name, (path, variable) in variables.items()]
        merged = nnx.merge(graphdef, nnx.from_flat_state(flat))
        result = merged(*inputs, **named)
        after = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(nnx.state(merged))}
        written = [name for name, variable in after.items() if _is_written(nnx, variable, params.get(name))]
        if written:
            hint = "pass what changes as an input and return it"
            raise ExportError.of(f"model {type(model).__name__}", "must not write its own state", ", ".join(sorted(written)), hint=hint)
        return result

    parameters = inspect.signature(model).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return Model(function, {name: variable.get_value() for name, (_, variable) in variables.items()}, names)


def _is_written(nnx: Any, variable: Any, before: Any) -> bool:
    """True if a variable does not hold what it held before; the counters of random streams may count."""
    return not issubclass(variable.type, nnx.RngState) and variable.get_value() is not before


def _trains(module: Any) -> bool:
    """True if a module's result depends on random numbers or on the statistics of its batch."""
    drops = max((getattr(module, rate, None) or 0.0 for rate in ("rate", "dropout_rate")), default=0.0) > 0
    return (drops and not getattr(module, "deterministic", True)) or getattr(module, "use_running_average", None) is False


def _keras_model(keras: Any, model: Any, example_inputs: Sequence[Any] | Mapping[str, Any]) -> Model:
    if keras.backend.backend() != "jax":
        raise ExportError.of(
            f"model {model.name}", "must be on Keras's JAX backend", keras.backend.backend(), hint="set KERAS_BACKEND=jax, or --from tf"
        )
    if not model.built:
        model(*example_inputs) if not isinstance(example_inputs, Mapping) else model(**example_inputs)
    names: dict[int, str] = {}
    for variable in model.variables:
        taken = set(names.values())
        name = variable.path
        names[id(variable)] = name if name not in taken else next(n for k in range(1, len(taken) + 1) if (n := f"{name}_{k}") not in taken)
    params = {names[id(variable)]: variable.value for variable in model.variables}
    groups = [[names[id(variable)] for variable in group] for group in (model.trainable_variables, model.non_trainable_variables)]
    tensors = getattr(model, "inputs", None) or []

    def function(params: Mapping[str, Any], *inputs: Any, **named: Any) -> Any:
        values = [[params[name] for name in group] for group in groups]
        given = [list(inputs)] if len(tensors) > 1 and inputs else list(inputs)
        given, named = ([named], {}) if tensors and named else (given, named)
        result, _ = model.stateless_call(*values, *given, training=False, **named)
        return result

    return Model(function, params, [tensor.name for tensor in tensors] if tensors else None)
