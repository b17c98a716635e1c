"""Values inside a lowered graph as further outputs of it, for ``run(want=...)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rml_exec.errors import InputError
from rml_exec.ir.graph import Graph, Node, Output, Value
from rml_exec.passes.choose_layout import LAYOUT_OF, TO_NCHW

__all__ = ["with_intermediates"]


def with_intermediates(lowered: Graph, want: Sequence[str], exported: Graph) -> Graph:
    """Returns the lowered graph with more outputs, each under its value's name.

    Args:
        lowered: result of the pass pipeline; its steps stay what they are, only lifetimes change.
        want: names of values of the exported graph.
        exported: the graph before the passes.

    Raises:
        InputError: a name that the graph lacks or that is an output's name for another value, or a value that a step swallowed.
    """
    types, known = lowered.types(), exported.types()
    results = {output.name: output.value for output in lowered.outputs}
    twins = {name: value for node in lowered.nodes if (name := node.metadata.get(LAYOUT_OF)) for value in node.outputs}
    outputs, nodes = list(lowered.outputs), list(lowered.nodes)
    for name in dict.fromkeys(want):
        if results.get(name) == name:
            continue
        if name in results:
            raise InputError.of(f"run(want=['{name}'])", f"'{name}' names an output, which is the value '{results[name]}'")
        if name not in known:
            raise InputError.of(f"run(want=['{name}'])", f"graph '{exported.name}' has no such value")
        if name in types:
            outputs.append(Output(name, name))
        elif name in twins:
            nodes.append(_back_to_nchw(twins[name], Value(name, known[name])))
            outputs.append(Output(name, name))
        else:
            raise InputError.of(f"run(want=['{name}'])", _swallowed(name, lowered, exported), hint="create the executor with fuse=False")
    return replace(lowered, outputs=tuple(outputs), nodes=tuple(nodes))


def _back_to_nchw(twin: Value, value: Value) -> Node:
    return Node("transpose", f"{value.name}.wanted", (twin.name,), (value,), {"perm": TO_NCHW}, {"rml.covers": ""})


def _swallowed(name: str, lowered: Graph, exported: Graph) -> str:
    maker = next((node.name for node in exported.nodes for value in node.outputs if value.name == name), None)
    step = next((node for node in lowered.nodes if maker in node.covers), None)
    if step is None:
        return f"no step produces '{name}' any more"
    return f"no step produces '{name}' any more: step '{step.name}' ({step.label}) computes it on the way"
