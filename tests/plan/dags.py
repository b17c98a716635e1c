"""Random graphs full of views, reuse and shape tags, and a run of a memory plan that trusts nothing but the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import strategies as st

from rml_exec.ir.graph import Graph, Node
from rml_exec.loading import GraphBuilder
from rml_exec.ops import get_op
from rml_exec.plan import ActionKind, ExecutionPlan, MemoryPlan, resolve_views

# Hypothesis draws the seed only: choices drawn by it one by one cling to the simplest, and these graphs must be wild.
RANDOM = st.builds(Random, st.integers(0, 2**32 - 1))
GARBAGE = 0xC5
SCRATCH = "test.scratch"
KINDS = (
    *("relu", "add", "select", "cast", "softmax", "layer_norm", "matmul", "iota", "concat"),
    *("reshape", "transpose", "front", "slice", "reverse", "broadcast"),
)


def random_graph(rng: Random, count: int, *, window: int = 8, dims: tuple[int, ...] = (1, 2, 3, 4), tags: bool = True) -> Graph:
    """A DAG of about ``count`` nodes, each reading among the ``window`` latest values; inputs, constants, views may be results, and twice.

    ``metadata[SCRATCH]`` of a node is the scratch that a test lets it have.
    """
    b = GraphBuilder("random")
    values = [b.input(f"x{i}", "f32", _shape(rng, dims)) for i in range(rng.randint(1, 3))]
    values += [b.constant(np.full(_shape(rng, dims), 2, np.float32)) for _ in range(rng.randint(0, 2))]
    for _ in range(count):
        values.append(_add(rng, b, rng.choice(values[-window:]), values[-window:], dims))
    for index in range(rng.randint(1, 3)):
        b.output(f"y{index}", rng.choice(values[-window:]))
    graph = b.build()
    return graph.with_nodes(tuple(_decorate(rng, node, tags) for node in graph.nodes))


def _shape(rng: Random, dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rng.choice(dims) for _ in range(rng.randint(1, 3)))


def _decorate(rng: Random, node: Node, tags: bool) -> Node:
    if tags and rng.random() < 0.1:
        node = replace(node, outputs=tuple(replace(value, tag="shape") for value in node.outputs))
    return replace(node, metadata={SCRATCH: str(rng.randint(1, 300))}) if rng.random() < 0.2 else node


def _add(rng: Random, b: GraphBuilder, x: str, others: Collection[str], dims: tuple[int, ...]) -> str:
    shape = b.type(x).shape
    rank = len(shape)
    axes = range(rank)
    same = [value for value in others if b.type(value).shape == shape]
    match rng.choice(KINDS):
        case "relu":
            return b.add("relu", [x])
        case "add":
            return b.add("add", rng.sample([x, rng.choice(same)], 2))
        case "select":
            return b.add("select", [b.add("compare", [x, rng.choice(same)], dir="lt"), x, rng.choice(same)])
        case "cast":
            wide = rng.choice(("i32", "f64"))
            return b.add("cast", [b.add("cast", [x], to=wide, f2i="saturate")], to="f32", f2i="saturate")
        case "softmax":
            return b.add("softmax", [x], axis=rng.randrange(rank), fully_masked="nan")
        case "layer_norm":
            scale = next((value for value in others if b.type(value).shape == shape[-1:]), None)
            return b.add("layer_norm", [x, scale, None], axes=(rank - 1,), eps=1e-5, variance="two_pass")
        case "matmul" if rank == 2:
            return b.add("matmul", [x, x], transpose_a=False, transpose_b=True)
        case "concat":
            return b.add("concat", [x, rng.choice(same)], axis=rng.randrange(rank)) if b.type(x).size < 4096 else b.add("relu", [x])
        case "reshape":
            return b.add("reshape", [x], shape=rng.choice([(b.type(x).size,), (1, *shape), shape[::-1], (*shape, 1)]))
        case "transpose":
            return b.add("transpose", [x], perm=tuple(rng.sample(axes, rank)))
        case "front":
            return b.add("slice", [x], start=(0,) * rank, limit=(-(-shape[0] * 2 // 3), *shape[1:]), strides=(1,) * rank)
        case "slice":
            start = tuple(rng.randint(0, dim) if rng.random() < 0.1 else rng.randint(0, max(0, dim - 1)) for dim in shape)
            return b.add("slice", [x], start=start, limit=shape, strides=tuple(rng.choice((1, 1, 2)) for _ in axes))
        case "reverse":
            return b.add("reverse", [x], axes=tuple(axis for axis in axes if rng.random() < 0.5))
        case "broadcast" if rank < 4 and b.type(x).size < 4096:
            return b.add("broadcast", [x], shape=(2, *(3 if dim == 1 else dim for dim in shape)))
    return b.add("iota", [], dtype="f32", shape=_shape(rng, dims), axis=0)


def scratch_of(node: Node) -> int:
    """The scratch that :func:`random_graph` gave a node."""
    return int(node.metadata.get(SCRATCH, 0))


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {value.name: rng.integers(-5, 6, value.type.shape).astype(value.type.dtype.numpy) for value in graph.inputs}


def run_plainly(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of the graph, each in memory of its own unless its op is a view."""
    values = dict(inputs) | {constant.name: constant.data for constant in graph.constants}
    for node in graph.nodes:
        op = get_op(node.op)
        results = op.run_reference([None if name is None else values[name] for name in node.inputs], node.attrs)
        values.update((value.name, array if op.view else array.copy()) for value, array in zip(node.outputs, results, strict=True))
    return values


def run_in_arena(graph: Graph, plan: ExecutionPlan, memory: MemoryPlan, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results, computed in one arena by replaying the actions; what is allocated or released is overwritten with garbage."""
    types, views = graph.types(), resolve_views(graph, graph.types())
    arena = np.full(memory.arena_bytes, GARBAGE, np.uint8)
    callers = {name: np.full(types[name].nbytes, GARBAGE, np.uint8) for name in set(memory.external.values())}
    outside = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in inputs.items()}
    outside |= {constant.name: np.ascontiguousarray(constant.data).reshape(-1).view(np.uint8) for constant in graph.constants}

    def look(name: str) -> np.ndarray:
        type, view = types[name], views[name]
        if view.root in outside:
            buffer, base = outside[view.root], 0
        elif view.root in memory.external:
            buffer, base = callers[memory.external[view.root]], 0
        else:
            buffer, base = arena, memory.offsets[view.root]
        item = type.dtype.itemsize
        return np.ndarray(type.shape, type.dtype.numpy, buffer, base + view.offset * item, tuple(step * item for step in view.strides))

    handed_on = {views[action.reuses].root for action in plan.actions if action.reuses}
    for action in plan.actions:
        owns = views.get(action.name) is not None and views[action.name].root == action.name
        match action.kind:
            case ActionKind.ALLOCATE_BUFFER | ActionKind.CREATE_SHAPE if owns and action.reuses is None:
                _spoil(look(action.name))
            case ActionKind.DELETE_BUFFER | ActionKind.DELETE_SHAPE if owns and action.name not in handed_on:
                _spoil(look(action.name))
            case ActionKind.ALLOCATE_TEMPORARY:
                start = memory.scratch[action.name]
                arena[start : start + action.bytes] = GARBAGE
            case ActionKind.EXECUTE_NODE:
                node = plan.nodes[action.node_index]
                if get_op(node.op).view and views[node.outputs[0].name].root != node.outputs[0].name:
                    continue
                operands = [None if name is None else look(name).copy() for name in node.inputs]
                for value, array in zip(node.outputs, get_op(node.op).run_reference(operands, node.attrs), strict=True):
                    look(value.name)[...] = array
    return {output.name: look(output.value).copy() for output in graph.outputs}


def _spoil(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint8)[...] = GARBAGE
