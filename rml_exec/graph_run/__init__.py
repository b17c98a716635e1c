"""The library behind ``rml-graph-run``."""

from rml_exec.graph_run.bisect import StepError
from rml_exec.graph_run.compare import Comparison, compare, compare_with_golden
from rml_exec.graph_run.culprit import Bisection, bisect_model
from rml_exec.graph_run.latency import Latency, measure, summarize
from rml_exec.graph_run.runner import Report, RunOptions, load_golden, run_model

__all__ = [
    "Bisection",
    "Comparison",
    "Latency",
    "Report",
    "RunOptions",
    "StepError",
    "bisect_model",
    "compare",
    "compare_with_golden",
    "load_golden",
    "measure",
    "run_model",
    "summarize",
]
