"""Lifetimes, execution plan and memory plan of a graph. See README.md in this folder."""

from rml_exec.plan.actions import Action, ActionKind
from rml_exec.plan.aliases import View, reads_contiguous, resolve_views
from rml_exec.plan.execution_plan import Event, ExecutionPlan, RunContext, plan_for
from rml_exec.plan.lifetimes import annotate
from rml_exec.plan.memory import MemoryPlan, plan_memory

__all__ = [
    "Action",
    "ActionKind",
    "Event",
    "ExecutionPlan",
    "MemoryPlan",
    "RunContext",
    "View",
    "annotate",
    "plan_for",
    "plan_memory",
    "reads_contiguous",
    "resolve_views",
]
