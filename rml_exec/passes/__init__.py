"""Graph to graph: what happens between a verified graph and the plan."""

from rml_exec.passes.base import Pass, run_passes
from rml_exec.passes.pipeline import PIPELINE, lower_graph

__all__ = ["PIPELINE", "Pass", "lower_graph", "run_passes"]
