"""The library behind ``rml-graph-run``."""

from rml_exec.graph_run.compare import Comparison, compare, compare_with_golden
from rml_exec.graph_run.latency import Latency, measure, summarize
from rml_exec.graph_run.runner import Report, RunOptions, load_golden, run_model

__all__ = [
    "Comparison",
    "Latency",
    "Report",
    "RunOptions",
    "compare",
    "compare_with_golden",
    "load_golden",
    "measure",
    "run_model",
    "summarize",
]
