"""JAX to graph: ``jax.make_jaxpr``, one flat program, formulas recognised, one lowering per primitive.

JAX is imported when an export begins, not with this package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporters.bundle import ExportSummary, write_export
from exporters.dims import Binding, Dim, check_sizes, generalise, hints, shapes_at, share_constants, trial_sizes
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_jax.tracing import Traced
from exporters.golden_sets import draw_inputs, golden_sets, input_sets
from exporters.progress import report
from rml_exec.ir.graph import Graph

__all__ = ["export", "to_graph"]

Inputs = Sequence[Any] | Mapping[str, Any]


def export(
    model: Callable[..., Any],
    example_inputs: Inputs,
    path_prefix: str | Path,
    *,
    params: Any = None,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    seed: int = 0,
    goldens: int = 1,
    dims: Sequence[Dim] = (),
) -> ExportSummary:
    """Exports a JAX function or model to ``PREFIX.json``, ``PREFIX.safetensors`` and ``PREFIX.golden.safetensors``.

    Args:
        model: as for :func:`to_graph`.
        example_inputs: as for :func:`to_graph`; they become the golden inputs, in the element types that JAX gives them (f64 is f32 unless
            ``jax_enable_x64`` is set). A float input whose elements are all equal is replaced by N(0, 1) numbers there.
        path_prefix: path without suffix.
        params: as for :func:`to_graph`.
        name: name of the graph; the last part of ``path_prefix`` if None.
        input_names: as for :func:`to_graph`.
        seed: seed of the numbers drawn for golden files.
        goldens: number of golden sets: the example inputs, then sets drawn like them.
        dims: as for :func:`to_graph`; two further golden sets are made at other sizes.

    Raises:
        UnsupportedOperatorsError: primitives without a lowering, all of them at once.
        ExportError: JAX is not installed, a model in training mode, a function that fails on the example inputs, a graph that does not give
            what JAX gives or does not hold for all sizes of the dims, an unwritable path.
    """
    report("tracing")
    traced = Traced(model, example_inputs, params, input_names)
    name = name or Path(path_prefix).name
    graphs = [_graph(traced, name, dims)]  # a list, to give the graph away: its weights go once they are written
    names = [value.name for value in graphs[0].inputs]  # without the characters that the format does not allow
    examples = traced.examples()
    drawn = input_sets(examples, goldens=goldens, seed=seed)
    shapes = {key: array.shape for key, array in examples.items()}
    sizes = check_sizes(dims, hints(dims, shapes)) if dims else []
    drawn += [(seed, draw_inputs(examples, seed, shapes_at(dims, shapes, binding))) for binding in sizes]
    report("running the model")
    sets = [
        replace(golden, inputs=dict(zip(names, golden.inputs.values(), strict=True))) for golden in golden_sets("JAX", drawn, traced.run)
    ]
    return write_export(
        graphs.pop(),
        path_prefix,
        inputs=sets[0].inputs,
        outputs=sets[0].outputs,
        framework="jax",
        framework_version=traced.jax.__version__,
        seed=seed,
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        further=sets[1:],
        intermediates=lambda inputs: traced.intermediates(name, inputs, symbolic=bool(dims)),
    )


def to_graph(
    model: Callable[..., Any],
    example_inputs: Inputs,
    *,
    params: Any = None,
    name: str,
    input_names: Sequence[str] | None = None,
    dims: Sequence[Dim] = (),
) -> Graph:
    """Returns a JAX function or model as a graph.

    Args:
        model: ``function(params, *inputs)``, or ``function(*inputs)`` where ``params`` is None. ``functools.partial(function, params)``
            counts as the former. Arrays it captures become constants under the names of the variables that hold them. Or a
            ``flax.nnx.Module`` in evaluation mode, or a Keras layer or model on the JAX backend, which runs with ``training=False``.
        example_inputs: arrays (or nested containers of them) in call order, or a mapping from the function's parameter names.
        params: any pytree; its arrays become constants named by their path (``layers.0.weight``), an array at two places one constant.
            Leaves that are no arrays (numbers, strings, None) keep their values while tracing.
        name: name of the graph.
        input_names: interface names; the function's parameter names if None.
        dims: axes of the inputs that stay symbolic: the function is traced at several of their sizes.

    Raises:
        UnsupportedOperatorsError: primitives without a lowering, all of them at once.
        ExportError: JAX is not installed, a model in training mode, a function that fails on the example inputs, or a graph that is not the
            same for all sizes of the dims.
    """
    return _graph(Traced(model, example_inputs, params, input_names), name, dims)


def _graph(traced: Traced, name: str, dims: Sequence[Dim]) -> Graph:
    if not dims:
        return traced.graph(name)
    shapes = {key: array.shape for key, array in traced.inputs.items()}
    hint = hints(dims, shapes)
    try:
        return _at_all_sizes(traced, name, dims, shapes, hint)
    except UnsupportedOperatorsError:
        raise
    except ExportError:  # some constant depends on a size
        traced.sizes_vary = True
        return _at_all_sizes(traced, name, dims, shapes, hint)


def _at_all_sizes(traced: Traced, name: str, dims: Sequence[Dim], shapes: Mapping[str, Sequence[int]], hint: Binding) -> Graph:
    graphs: list[tuple[Binding, Graph]] = []
    for binding in trial_sizes(dims, hint):
        report("tracing at " + ", ".join(f"{dim}={size}" for dim, size in binding.items()))
        graphs.append((binding, share_constants(traced.graph(name, shapes_at(dims, shapes, binding)), graphs)))
    return generalise(graphs, dims, hint)
