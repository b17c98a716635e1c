"""The text form of a graph, for reading and diffing: one value per line, the same graph gives the same text. It is not parsed back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rml_exec.ir.graph import Body, Constant, Graph, Node, Value

__all__ = ["graph_text", "node_text"]

_MAX_ELEMENTS = 16


def graph_text(graph: Graph) -> str:
    """Returns the text of a graph and its functions, ending in a newline."""
    framework = " ".join(str(graph.producer[key]) for key in ("framework", "framework_version") if key in graph.producer)
    lines = [f'graph "{graph.name}"' + (f" from {framework}" if framework else "")]
    lines += [f"  {key}: {value}" for key, value in sorted(graph.metadata.items())]
    lines += _body_lines(graph)
    for name, function in graph.functions.items():
        lines += ["", f'function "{name}"', *_body_lines(function)]
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """Returns one node: ``%y: f32[1,8] = linear(%x, %w, -) {weight_layout=oi}  # fc1 from model.py:12``; the name if it adds something."""
    results = ", ".join(map(_value_text, node.outputs))
    operands = ", ".join("-" if name is None else f"%{name}" for name in node.inputs)
    attrs = ", ".join(f"{name}={_attr_text(value)}" for name, value in node.attrs.items())
    notes = [node.name] if [node.name] != [value.name for value in node.outputs] else []
    notes += [f"from {node.source['where']}"] if "where" in node.source else []
    notes += [f"{key}={value}" for key, value in sorted(node.metadata.items())]
    return f"{results} = {node.op}({operands})" + (f" {{{attrs}}}" if attrs else "") + (f"  # {' '.join(notes)}" if notes else "")


def _body_lines(body: Body) -> Iterator[str]:
    for value in body.inputs:
        yield f"  input {_value_text(value)}"
    for constant in body.constants:
        yield f"  constant {_constant_text(constant)}"
    for node in body.nodes:
        yield f"  {node_text(node)}"
    for output in body.outputs:
        yield f"  output {output.name} = %{output.value}"


def _value_text(value: Value) -> str:
    return f"%{value.name}: {value.type}" + (f" <{value.tag}>" if value.tag else "")


def _constant_text(constant: Constant) -> str:
    text = f"%{constant.name}: {constant.type}"
    if constant.key is not None:
        return f"{text} = '{constant.key}'"
    if constant.type.size > _MAX_ELEMENTS:
        return f"{text} = {constant.type.nbytes} bytes"
    return f"{text} = ({', '.join(str(item) for item in constant.data.reshape(-1).tolist())})"


def _attr_text(value: Any) -> str:
    if isinstance(value, Node):
        return node_text(value)
    if isinstance(value, tuple):
        separator = "; " if value and isinstance(value[0], Node) else ","
        return f"({separator.join(map(_attr_text, value))})"
    return str(value)
