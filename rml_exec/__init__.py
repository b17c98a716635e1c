"""A CPU graph executor: NumPy plus small, fast C kernels.

from rml_exec import Executor, load_graph

executor = Executor.create(load_graph("models/graphs/torch_cnn"))
outputs = executor.run({"x": image})
"""

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
