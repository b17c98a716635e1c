"""The one ordered list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rml_exec.ir.graph import Function, Graph
from rml_exec.passes.base import Pass, run_passes
from rml_exec.passes.bind_constants import BIND_CONSTANTS
from rml_exec.passes.choose_layout import CHOOSE_LAYOUT
from rml_exec.passes.drop_unread import DROP_UNREAD
from rml_exec.passes.fold_affine import FOLD_AFFINE
from rml_exec.passes.fold_bias import FOLD_BIAS
from rml_exec.passes.fold_constants import FOLD_CONSTANTS
from rml_exec.passes.fold_pad import FOLD_PAD
from rml_exec.passes.fuse_elementwise import FUSE_ELEMENTWISE
from rml_exec.passes.fuse_epilogue import FUSE_EPILOGUE
from rml_exec.passes.merge_linears import MERGE_LINEARS
from rml_exec.passes.merge_views import MERGE_VIEWS
from rml_exec.passes.share_common import SHARE_COMMON
from rml_exec.passes.simplify_nodes import SIMPLIFY_NODES

__all__ = ["PIPELINE", "lower_graph"]

PIPELINE: tuple[Pass, ...] = (
    FOLD_CONSTANTS,  # first: all others look for constant weights, statistics and indices
    SIMPLIFY_NODES,
    MERGE_VIEWS,  # what comes to the same view is the same node then
    SHARE_COMMON,
    DROP_UNREAD,  # before the foldings, which look for what is read by one node alone
    FOLD_PAD,  # it changes what the others see of no op
    FOLD_BIAS,  # before groups form: an add that becomes a bias costs nothing at all
    FOLD_AFFINE,  # after bias folding, whose adds it would take along; before layout, which moves channels
    MERGE_LINEARS,  # after the foldings, which look at one linear and what reads it
    CHOOSE_LAYOUT,  # before groups form: they should see the final shapes, and transposes between their members gone
    FUSE_EPILOGUE,  # before groups form: what a product does to its own sums costs no pass over memory
    FUSE_ELEMENTWISE,
)


def lower_graph(graph: Graph, *, fuse: bool = True, verify: Callable[[Graph], object] | None = None) -> Graph:
    """Returns the graph that the executor compiles: the pipeline's result on a verified graph, and on each of its functions.

    Before the pipeline, constants move into the functions that get them as operands: the passes see them where they are used.

    Args:
        graph: a verified graph.
        fuse: False leaves out every pass marked as a fusion.
        verify: see :func:`rml_exec.passes.base.run_passes`.
    """
    steps = [step for step in PIPELINE if fuse or not step.fusion]
    graph = run_passes(graph, [BIND_CONSTANTS], verify)
    functions = {name: _lower_function(function, graph, steps, verify) for name, function in graph.functions.items()}
    return run_passes(replace(graph, functions=functions), steps, verify)


def _lower_function(function: Function, graph: Graph, steps: Sequence[Pass], verify: Callable[[Graph], object] | None) -> Function:
    """Returns what the passes make of a function: they see it as a graph of its own that calls the same functions."""
    body = Graph(function.name, function.inputs, function.outputs, function.constants, function.nodes, functions=graph.functions)
    lowered = run_passes(body, steps, verify)
    return Function(lowered.name, lowered.inputs, lowered.outputs, lowered.constants, lowered.nodes)
