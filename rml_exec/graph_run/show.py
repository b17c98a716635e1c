"""What an executor is made of, in text for people and in plain data for programs: graph, steps, plan, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rml_exec.ir.text import graph_text
from rml_exec.runtime.executor import Executor

__all__ = ["SHOWN", "show_data", "show_text"]


def _graph_data(executor: Executor) -> dict[str, Any]:
    graph = executor.graph
    return {
        "name": graph.name,
        "inputs": {value.name: str(value.type) for value in graph.inputs},
        "outputs": {output.name: output.value for output in graph.outputs},
        "constants": {constant.name: str(constant.type) for constant in graph.constants},
        "nodes": [
            {
                "op": node.op,
                "name": node.name,
                "inputs": list(node.inputs),
                "outputs": {value.name: str(value.type) for value in node.outputs},
            }
            for node in graph.nodes
        ],
    }


def _steps_data(executor: Executor) -> dict[str, Any]:
    rows = [
        {"step": index, "label": step.label, "kernel": step.kernel, "native": step.native, "node": step.node, "covers": list(step.covers)}
        for index, step in enumerate(executor.steps)
    ]
    return {"threads": executor.threads, "numerics": executor.numerics, "steps": rows}


def _plan_data(executor: Executor) -> dict[str, Any]:
    rows = []
    for action in executor.plan.actions:
        row = {"action": str(action.kind), "name": action.name, "bytes": action.bytes, "node_index": action.node_index}
        row.update({key: value for key, value in (("reuses", action.reuses), ("views", action.views)) if value})
        rows.append(row)
    return {"keep": sorted(executor.plan.keep), "actions": rows}


def _memory_data(executor: Executor) -> dict[str, Any]:
    memory = executor.memory
    sizes = {action.name: action.bytes for action in executor.plan.actions if str(action.kind) in ("allocate_buffer", "create_shape")}
    scratch = {action.name: action.bytes for action in executor.plan.actions if str(action.kind) == "allocate_temporary"}
    buffers = [{"name": name, "offset": offset, "bytes": sizes[name], "kind": "value"} for name, offset in memory.offsets.items()]
    buffers += [{"name": name, "offset": offset, "bytes": scratch[name], "kind": "scratch"} for name, offset in memory.scratch.items()]
    return {
        "arena_bytes": memory.arena_bytes,
        "peak_bytes": memory.peak_bytes,
        "lower_bound_bytes": memory.lower_bound_bytes,
        "buffers": buffers,
        "in_outputs": dict(memory.external),
        "live": [list(point) for point in memory.live],
    }


def _graph_text(executor: Executor) -> str:
    return graph_text(executor.graph)


def _steps_text(executor: Executor) -> str:
    rows = [(str(index), step.label, step.kernel, ", ".join(step.covers)) for index, step in enumerate(executor.steps)]
    return _columns(("step", "label", "kernel", "graph nodes"), rows)


def _plan_text(executor: Executor) -> str:
    return "".join(f"{action}\n" for action in executor.plan.actions)


def _memory_text(executor: Executor) -> str:
    found = _memory_data(executor)
    rows = [
        (str(buffer["offset"]), str(buffer["bytes"]), buffer["kind"], buffer["name"])
        for buffer in sorted(found["buffers"], key=lambda buffer: (buffer["offset"], buffer["name"]))
    ]
    head = f"arena {found['arena_bytes']} bytes; most alive at once {found['peak_bytes']}, lower bound {found['lower_bound_bytes']}\n"
    direct = "".join(f"{name} lies in the caller's array of output value {owner}\n" for name, owner in found["in_outputs"].items())
    return head + direct + _columns(("offset", "bytes", "kind", "name"), rows)


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    return "".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) + "\n" for row in (head, *rows)
    )


_TEXT: Mapping[str, Callable[[Executor], str]] = {"graph": _graph_text, "steps": _steps_text, "plan": _plan_text, "memory": _memory_text}
_DATA: Mapping[str, Callable[[Executor], dict[str, Any]]] = {
    "graph": _graph_data,
    "steps": _steps_data,
    "plan": _plan_data,
    "memory": _memory_data,
}
SHOWN = tuple(_TEXT)


def show_text(executor: Executor, what: str) -> str:
    """Returns ``graph``, ``steps``, ``plan`` or ``memory`` as text that ends with a newline."""
    return _TEXT[what](executor)


def show_data(executor: Executor, what: str) -> dict[str, Any]:
    """Returns ``graph``, ``steps``, ``plan`` or ``memory`` as plain data for JSON."""
    return _DATA[what](executor)
