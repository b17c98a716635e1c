"""The one ordered list of passes."""

from __future__ import annotations

from collections.abc import Callable

from rml_exec.ir.graph import Graph
from rml_exec.passes.base import Pass, run_passes
from rml_exec.passes.choose_layout import CHOOSE_LAYOUT
from rml_exec.passes.fold_conv_bias import FOLD_CONV_BIAS
from rml_exec.passes.fuse_elementwise import FUSE_ELEMENTWISE

__all__ = ["PIPELINE", "lower_graph"]

PIPELINE: tuple[Pass, ...] = (
    FOLD_CONV_BIAS,  # before groups form: an add that becomes a bias costs nothing at all
    CHOOSE_LAYOUT,  # before groups form: they should see the final shapes, and transposes between their members gone
    FUSE_ELEMENTWISE,
)


def lower_graph(graph: Graph, *, fuse: bool = True, verify: Callable[[Graph], object] | None = None) -> Graph:
    """Returns the graph that the executor compiles: the pipeline's result on a verified graph.

    Args:
        graph: a verified graph.
        fuse: False leaves out every pass marked as a fusion.
        verify: see :func:`rml_exec.passes.base.run_passes`.
    """
    return run_passes(graph, (step for step in PIPELINE if fuse or not step.fusion), verify)
