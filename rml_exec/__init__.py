"""A CPU graph executor: NumPy plus small, fast C kernels.

Example:
    from rml_exec import Executor, load_graph

    executor = Executor.create(load_graph("models/graphs/torch_cnn"))
    outputs = executor.run({"x": image})

The public names are loaded when they are first used (PEP 562): importing the package costs about a millisecond.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rml_exec.errors import (
        GraphFormatError,
        InputError,
        IsaError,
        KernelError,
        PassError,
        PlanError,
        RmlError,
        TypeInferenceError,
        VerifyError,
    )
    from rml_exec.ir.graph import Graph
    from rml_exec.loading import GraphBuilder, load_graph, save_graph
    from rml_exec.plan.execution_plan import ExecutionPlan
    from rml_exec.runtime.executor import Executor
    from rml_exec.runtime.isa import BufferPool, isa_info

__version__ = "0.1.0"

__all__ = [
    "BufferPool",
    "ExecutionPlan",
    "Executor",
    "Graph",
    "GraphBuilder",
    "GraphFormatError",
    "InputError",
    "IsaError",
    "KernelError",
    "PassError",
    "PlanError",
    "RmlError",
    "TypeInferenceError",
    "VerifyError",
    "__version__",
    "isa_info",
    "load_graph",
    "save_graph",
]

_HOMES = {
    "rml_exec.ir.graph": ("Graph",),
    "rml_exec.loading": ("GraphBuilder", "load_graph", "save_graph"),
    "rml_exec.plan.execution_plan": ("ExecutionPlan",),
    "rml_exec.runtime.executor": ("Executor",),
    "rml_exec.runtime.isa": ("BufferPool", "isa_info"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "_native":
        try:
            return importlib.import_module("rml_exec._native")
        except ModuleNotFoundError:
            raise ImportError(
                f"rml_exec in {__path__[0]} has no compiled extension: this is a source tree that hides the installed package, or was "
                "never built. Run from another directory, or install it in place: pip install -e ."
            ) from None
    if name not in __all__:
        raise AttributeError(f"module 'rml_exec' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF.get(name, "rml_exec.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
