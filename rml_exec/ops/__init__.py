"""The table of ops: importing this package fills it.

One op is one :func:`rml_exec.ops.registry.define` record in its family's module; README.md beside this file lists them and says how to
add one.
"""

# In the order of the README table; fused and epilogue are last because they run the ops before them.
from rml_exec.ops import unary, activation, cast, binary, shape, index, scatter, reduce, sort, linear, conv, pool, resize  # noqa: I001, F401
from rml_exec.ops import norm, attention, recurrent, nms, control, fused, epilogue  # noqa: F401
from rml_exec.ops.registry import Attr, Callee, Case, Limit, OpDef, Rule, Signature, Tolerance, all_ops, case, count, define, get_op

__all__ = ["Attr", "Callee", "Case", "Limit", "OpDef", "Rule", "Signature", "Tolerance", "all_ops", "case", "count", "define", "get_op"]
