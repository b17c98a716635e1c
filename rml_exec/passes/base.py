"""What a pass is, and the runner that holds every pass to its promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rml_exec.errors import PassError, RmlError, sentence
from rml_exec.ir.graph import Graph

__all__ = ["Pass", "run_passes"]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function from a verified graph to a verified graph with the same inputs, outputs and results.

    ``fusion`` marks those that ``fuse=False`` leaves out.
    """

    name: str
    run: Callable[[Graph], Graph]
    fusion: bool = False


def run_passes(graph: Graph, passes: Iterable[Pass], verify: Callable[[Graph], object] | None = None) -> Graph:
    """Returns the graph after all passes, in order.

    Args:
        graph: a verified graph.
        passes: what to run.
        verify: called with the graph after each pass; its RmlError becomes a PassError that names the pass.

    Raises:
        PassError: a pass left a graph that does not verify, which is a bug in rml_exec.
    """
    for step in passes:
        graph = step.run(graph)
        if verify is not None:
            try:
                verify(graph)
            except RmlError as broken:
                raise PassError(
                    sentence(f"pass '{step.name}'", "left a graph that does not verify", str(broken), hint="this is a bug in rml_exec")
                ) from broken
    return graph
