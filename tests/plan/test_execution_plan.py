from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.errors import PlanError
from rml_exec.ir.graph import Function, Graph, Node, Output, Value
from rml_exec.loading import GraphBuilder
from rml_exec.ops import registry
from rml_exec.plan import Action, ActionKind, Event, ExecutionPlan, RunContext, annotate, execution_plan, plan_for
from rml_exec.types import DType, TensorType
from tests.plan.dags import RANDOM, inputs_of, random_graph, run_plainly, scratch_of

F4 = TensorType(DType.F32, (4,))
MATRIX = TensorType(DType.F32, (4, 4))


def chain() -> Graph:
    """y = -(exp(x) + w), its sum seen as a row: exp, add, neg over 64 bytes; the first two die, the result is a view."""
    b = GraphBuilder("chain")
    x = b.input("x", "f32", (4, 4))
    w = b.constant(np.ones((4, 4), np.float32), name="w")
    h = b.add("exp", [x], outputs=["h"])
    s = b.add("add", [h, w], outputs=["s"])
    n = b.add("neg", [s], outputs=["n"])
    b.output("out", b.add("reshape", [n], shape=(16,), outputs=["y"]))
    return b.build()


def edited(graph: Graph, edits: Mapping[str, Mapping[str, str | None]]) -> Graph:
    """The graph with metadata of named nodes changed; None drops a key."""
    nodes = []
    for node in graph.nodes:
        merged = dict(node.metadata) | dict(edits.get(node.name, {}))
        nodes.append(replace(node, metadata={key: text for key, text in merged.items() if text is not None}))
    return graph.with_nodes(tuple(nodes))


def listed(plan: ExecutionPlan) -> list[str]:
    return [str(action) for action in plan.actions]


ANNOTATED = [
    "lock_input x", "allocate_buffer h 64 B", "execute_node exp", "unlock_input x",
    "lock_constant w", "allocate_buffer s 64 B, reuses h", "execute_node add", "delete_buffer h 64 B", "unlock_constant w",
    "allocate_buffer n 64 B, reuses s", "allocate_temporary neg 96 B",
    "execute_node neg", "delete_temporary neg 96 B", "delete_buffer s 64 B",
    "allocate_buffer y, views n", "execute_node reshape",
]  # fmt: skip


def annotated_chain() -> Graph:
    return annotate(chain(), scratch=lambda node: 96 if node.op == "neg" else 0)


def test_actions_of_an_annotated_graph():
    plan = ExecutionPlan(annotated_chain())
    assert listed(plan) == ANNOTATED
    assert plan.actions[5] == Action(ActionKind.ALLOCATE_BUFFER, "s", 64, 1, reuses="h")
    assert plan.actions[-2] == Action(ActionKind.ALLOCATE_BUFFER, "y", 0, 3, views="n")
    assert [action.node_index for action in plan.actions] == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 2


def test_actions_from_topology_are_the_same_but_for_reuse_and_scratch():
    assert listed(ExecutionPlan(chain())) == [line.split(", reuses")[0] for line in ANNOTATED if "temporary" not in line]


def test_keep_of_a_graph_is_inputs_constants_and_results():
    plan = ExecutionPlan(chain())
    assert plan.keep == {"x", "w", "y"}
    assert plan.num_nodes == 4
    assert plan.nodes == chain().nodes


def test_keep_of_a_function_is_inputs_and_results():
    graph = chain()
    function = Function("f", graph.inputs, graph.outputs, graph.constants, graph.nodes)
    plan = ExecutionPlan(function)
    assert plan.keep == {"x", "y"}
    assert listed(plan) == listed(ExecutionPlan(graph))


def test_a_range_of_nodes_keeps_what_the_caller_says_and_locks_nothing():
    nodes = chain().nodes
    assert listed(ExecutionPlan(nodes, keep={"x", "w", "y", "h"})) == [
        "allocate_buffer h 64 B", "execute_node exp",
        "allocate_buffer s 64 B", "execute_node add",
        "allocate_buffer n 64 B", "execute_node neg", "delete_buffer s 64 B",
        "allocate_buffer y, views n", "execute_node reshape",
    ]  # fmt: skip
    released = [action.name for action in ExecutionPlan(nodes[1:], keep=()).actions if action.kind is ActionKind.DELETE_BUFFER]
    assert released == ["s", "n", "y"]


def test_keep_belongs_to_ranges_of_nodes_only():
    with pytest.raises(PlanError, match="says itself what is kept"):
        ExecutionPlan(chain(), keep={"x"})


def test_an_empty_plan_does_nothing():
    plan = ExecutionPlan()
    assert (plan.keep, plan.num_nodes, plan.nodes, plan.actions) == (frozenset(), 0, (), ())
    assert (plan.peak_bytes, plan.lower_bound_bytes, plan.memory.arena_bytes, plan.memory.live) == (0, 0, 0, ())


def test_an_input_that_is_a_result_is_locked_for_its_readers_only():
    b = GraphBuilder("through")
    x = b.input("x", "f32", (4,))
    unused = b.input("unused", "f32", (4,))
    y = b.add("neg", [x], outputs=["y"])
    for name, value in (("y", y), ("x", x), ("u", unused)):
        b.output(name, value)
    assert listed(ExecutionPlan(annotate(b.build()))) == ["lock_input x", "allocate_buffer y 16 B", "execute_node neg", "unlock_input x"]


def test_a_value_that_nothing_reads_is_released_at_once():
    b = GraphBuilder("unread")
    x = b.input("x", "f32", (4,))
    b.add("neg", [x], outputs=["unread"])
    b.output("y", b.add("exp", [x], outputs=["y"]))
    assert listed(ExecutionPlan(annotate(b.build())))[:4] == [
        "lock_input x", "allocate_buffer unread 16 B", "execute_node neg", "delete_buffer unread 16 B",
    ]  # fmt: skip


def test_an_input_is_unlocked_after_the_last_reader_of_its_views():
    b = GraphBuilder("views")
    t = b.add("transpose", [b.input("x", "f32", (4, 4))], perm=(1, 0), outputs=["t"])
    b.output("y", b.add("matmul", [t, t], transpose_a=False, transpose_b=False, outputs=["y"]))
    assert listed(ExecutionPlan(annotate(b.build()))) == [
        "lock_input x", "allocate_buffer t, views x", "execute_node transpose",
        "allocate_buffer y 64 B", "execute_node matmul", "delete_buffer t", "unlock_input x",
    ]  # fmt: skip


@pytest.fixture
def call_op(monkeypatch: pytest.MonkeyPatch) -> None:
    record = registry.OpDef("call", ("xs*",), lambda *types, **attrs: types[0], lambda *arrays, **attrs: arrays[0], "A call.", ())
    monkeypatch.setitem(registry._OPS, "call", record)


@pytest.mark.usefixtures("call_op")
def test_operands_of_control_flow_are_uses():
    graph = Graph(
        "caller", (Value("x", F4), Value("z", F4)), (Output("y", "y"),), (),
        (Node("neg", "neg", ("x",), (Value("h", F4),)), Node("call", "call", ("x", "h", "z"), (Value("y", F4),), {"function": "f"})),
    )  # fmt: skip
    assert listed(ExecutionPlan(annotate(graph))) == [
        "lock_input x", "allocate_buffer h 16 B", "execute_node neg",
        "lock_input z", "allocate_buffer y 16 B", "execute_node call", "delete_buffer h 16 B", "unlock_input x", "unlock_input z",
    ]  # fmt: skip


def tagged_chain(*tagged: str) -> Graph:
    graph = chain()
    nodes = []
    for node in graph.nodes:
        outputs = tuple(replace(value, tag="shape" if value.name in tagged else None) for value in node.outputs)
        nodes.append(replace(node, outputs=outputs))
    return annotate(graph.with_nodes(tuple(nodes)))


def test_shapes_are_created_and_deleted():
    assert listed(ExecutionPlan(tagged_chain("h", "y"))) == [
        "lock_input x", "create_shape h 64 B", "execute_node exp", "unlock_input x",
        "lock_constant w", "allocate_buffer s 64 B", "execute_node add", "delete_shape h 64 B", "unlock_constant w",
        "allocate_buffer n 64 B, reuses s", "execute_node neg", "delete_buffer s 64 B",
        "create_shape y, views n", "execute_node reshape",
    ]  # fmt: skip


# Annotations that are wrong: with lock annotations every gap is named.

MALFORMED = "neg 'neg': rml.inplace_reuse must list 'output:operand:equal' or '...:greater'; got"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"add": {"rml.release_after": None}}, "exp 'exp': value 'h' is never released. Hint: its last use is add 'add'."),
        ({"exp": {"rml.not_used_after": None}}, "exp 'exp': input 'x' has its last use here and is never unlocked."),
        ({"add": {"rml.not_used_after": None}}, "add 'add': constant 'w' has its last use here and is never unlocked."),
        ({"neg": {"rml.release_after_shape_tag": "s"}}, "neg 'neg': shape 's' is released but was never created."),
        ({"neg": {"rml.release_after_shape_tag": "ghost"}}, "neg 'neg': shape 'ghost' is released but was never created."),
        ({"neg": {"rml.peak_memory": "-1"}}, "neg 'neg': rml.peak_memory must be a number of bytes; got '-1'."),
        ({"neg": {"rml.inplace_reuse": "n:s"}}, f"{MALFORMED} 'n:s'."),
        ({"neg": {"rml.inplace_reuse": "n:x:equal"}}, f"{MALFORMED} 'n:x:equal'."),
        ({"neg": {"rml.inplace_reuse": "n:s:greater"}}, "neg 'neg': the buffer of 's' is equal for 'n'; got 'n:s:greater'."),
        ({"exp": {"rml.inplace_reuse": "h:x:equal"}}, "exp 'exp': 'h' must not reuse 'x': its storage is not made by a node."),
        ({"add": {"rml.inplace_reuse": "s:w:equal"}}, "add 'add': 's' must not reuse 'w': its storage is not made by a node."),
        (
            {"reshape": {"rml.inplace_reuse": "y:n:equal"}},
            "reshape 'reshape': 'y' must not reuse 'n': reshape does not work in place on this operand.",
        ),
    ],
)  # fmt: skip
def test_wrong_annotations_are_named(edits: Mapping[str, Mapping[str, str | None]], message: str):
    with pytest.raises(PlanError) as caught:
        ExecutionPlan(edited(annotated_chain(), edits))
    assert str(caught.value) == message


def both(first: str, second: str, op: str = "neg") -> Graph:
    """h = exp(x); a = OP(first); b = OP(second): annotated from topology, without reuse."""
    b = GraphBuilder("both")
    b.add("exp", [b.input("x", "f32", (4, 4))], outputs=["h"])
    b.add("transpose", ["h"], perm=(1, 0), outputs=["t"])
    b.add(op, [first], outputs=["a"])
    b.output("p", b.add(op, [second], outputs=["b"]))
    b.output("q", "a")
    return edited(annotate(b.build()), {"neg": {"rml.inplace_reuse": None}, "neg_1": {"rml.inplace_reuse": None}})


@pytest.mark.parametrize(
    ("graph", "edits", "reason"),
    [
        (both("h", "t"), {"neg": {"rml.inplace_reuse": "a:h:equal"}}, "the storage of 'h' is still read by node 'neg_1'"),
        (both("t", "h"), {"neg_1": {"rml.inplace_reuse": "b:h:equal"}}, None),
        (both("h", "t"), {"neg_1": {"rml.inplace_reuse": "b:t:equal"}}, "it is a strided view"),
        (both("h", "a"), {"neg_1": {"rml.inplace_reuse": "b:a:equal"}}, "the storage of 'a' is needed to the end"),
    ],
)
def test_a_reuse_that_would_destroy_something_is_refused(graph: Graph, edits: Mapping[str, Mapping[str, str]], reason: str | None):
    if reason is None:
        assert "allocate_buffer b 64 B, reuses h" in listed(ExecutionPlan(edited(graph, edits)))
        return
    with pytest.raises(PlanError, match=reason):
        ExecutionPlan(edited(graph, edits))


def test_a_reuse_that_would_destroy_something_is_refused_without_lock_annotations_too():
    graph = edited(both("h", "t"), {"exp": {"rml.not_used_after": None}, "neg": {"rml.inplace_reuse": "a:h:equal"}})
    assert not any("rml.not_used_after" in node.metadata for node in graph.nodes)
    with pytest.raises(PlanError, match="still read by node 'neg_1'"):
        ExecutionPlan(graph)


def test_an_output_takes_over_one_operand_only():
    b = GraphBuilder("two")
    x = b.input("x", "f32", (4,))
    b.output("y", b.add("add", [b.add("exp", [x], outputs=["h"]), b.add("neg", [x], outputs=["k"])], outputs=["y"]))
    with pytest.raises(PlanError, match=r"add 'add': rml.inplace_reuse must list .* got 'y:k:equal'"):
        ExecutionPlan(edited(annotate(b.build()), {"add": {"rml.inplace_reuse": "y:h:equal;y:k:equal"}}))


def test_an_operand_named_twice_is_overwritten_if_one_of_its_places_allows_it():
    b = GraphBuilder("select")
    m = b.add("not", [b.input("x", "bool", (4,))], outputs=["m"])
    b.output("y", b.add("select", [m, m, b.input("z", "bool", (4,))], outputs=["y"]))
    assert "allocate_buffer y 4 B, reuses m" in listed(ExecutionPlan(annotate(b.build())))


def test_partial_annotations_are_completed():
    gap = {"rml.not_used_after": None, "rml.release_after": None}
    partial = edited(annotated_chain(), {"exp": gap, "add": gap, "neg": {"rml.release_after_shape_tag": "ghost"}})
    assert listed(ExecutionPlan(partial)) == ANNOTATED


def test_an_unlock_that_stands_too_early_waits_for_the_last_use():
    b = GraphBuilder("early")
    x = b.input("x", "f32", (4,))
    h = b.add("exp", [x], outputs=["h"])
    b.output("y", b.add("add", [x, h], outputs=["y"]))
    gap = {"rml.not_used_after": None, "rml.release_after": None}
    early = edited(annotate(b.build()), {"exp": {"rml.not_used_after": "x", "rml.release_after": "h"}, "add": gap})
    assert listed(ExecutionPlan(early))[-3:] == ["execute_node add", "delete_buffer h 16 B", "unlock_input x"]


def test_a_release_and_an_unlock_that_stand_late_happen_late():
    late = {"rml.not_used_after": "x", "rml.release_after": "h"}
    late = edited(annotated_chain(), {"exp": {"rml.not_used_after": None}, "add": {"rml.release_after": None}, "reshape": late})
    assert listed(ExecutionPlan(late))[-3:] == ["execute_node reshape", "delete_buffer h 64 B", "unlock_input x"]


def test_a_kept_value_is_not_released_whatever_the_annotations_say():
    graph = edited(annotated_chain(), {"reshape": {"rml.release_after": "y;n;x"}})
    assert listed(ExecutionPlan(graph)) == ANNOTATED


# Runs.


def test_release_after_removes_what_dies_and_logs_tensors_only():
    plan = ExecutionPlan(annotated_chain())
    context = RunContext({"x": 1, "w": 2, "h": 3, "y": 4}, {"s": [5]}, events=[])
    for node in plan.nodes:
        plan.release_after(node, context)
    assert context.values == {"x": 1, "w": 2, "y": 4}
    assert context.sequences == {}
    assert context.events == [Event("remove", "h")]


def test_release_after_without_log():
    plan = ExecutionPlan(annotated_chain())
    context = RunContext({"h": 3})
    plan.release_after(plan.nodes[1], context)
    assert (context.values, context.events) == ({}, None)


def test_release_after_an_unknown_node_has_no_effect():
    plan = ExecutionPlan(annotated_chain())
    context = RunContext({"h": 3}, events=[])
    plan.release_after(replace(plan.nodes[1]), context)
    assert (context.values, context.events) == ({"h": 3}, [])


def test_shapes_are_released_too():
    plan = ExecutionPlan(tagged_chain("h"))
    context = RunContext({"h": 3}, events=[])
    plan.release_after(plan.nodes[1], context)
    assert context.events == [Event("remove", "h")]


@given(RANDOM, st.integers(0, 25), st.booleans())
def test_a_run_that_releases_as_it_goes_finds_every_operand(rng: Random, count: int, with_annotations: bool):
    graph = random_graph(rng, count)
    plan = ExecutionPlan(annotate(graph, scratch=scratch_of) if with_annotations else graph)
    everything = run_plainly(graph, inputs_of(graph))
    context = RunContext(dict(inputs_of(graph)) | {constant.name: constant.data for constant in graph.constants}, events=[])
    for node in plan.nodes:
        assert set(node.reads()) <= set(context.values)
        context.values.update((value.name, everything[value.name]) for value in node.outputs)
        plan.release_after(node, context)
    assert plan.keep <= set(context.values)
    assert len({event.name for event in context.events or ()}) == len(context.events or ())
    kinds = [action.kind for action in plan.actions]
    assert kinds.count(ActionKind.LOCK_INPUT) == kinds.count(ActionKind.UNLOCK_INPUT)
    assert kinds.count(ActionKind.LOCK_CONSTANT) == kinds.count(ActionKind.UNLOCK_CONSTANT)
    assert kinds.count(ActionKind.ALLOCATE_TEMPORARY) == kinds.count(ActionKind.DELETE_TEMPORARY)
    assert kinds.count(ActionKind.EXECUTE_NODE) == plan.num_nodes


def test_a_subclass_may_build_other_actions_and_they_drive_releases():
    class Keeping(ExecutionPlan):
        calls = 0

        def build_actions(self) -> Sequence[Action]:
            self.calls += 1
            assert self.num_nodes == 4
            assert self.keep == {"x", "w", "y"}
            return [action for action in super().build_actions() if action.name != "h"]

    plan = Keeping(annotated_chain())
    assert plan.calls == 1
    assert listed(plan) == [line for line in ANNOTATED if line.split()[1].rstrip(",") != "h"]
    context = RunContext({"h": 3, "s": 4})
    for node in plan.nodes:
        plan.release_after(node, context)
    assert context.values == {"h": 3}


def test_one_plan_per_body_that_holds_neither_the_body_nor_its_weights():
    graph, same = annotated_chain(), annotated_chain()
    plan = plan_for(graph)
    assert plan_for(graph) is plan
    assert plan_for(same) is not plan
    gone, data = weakref.ref(graph), weakref.ref(graph.constants[0].data)
    del graph
    gc.collect()
    assert gone() is None
    assert data() is None
    assert listed(plan) == ANNOTATED


def test_dead_bodies_leave_nothing_in_the_cache():
    gc.collect()
    before = len(execution_plan._plans)
    for _ in range(10):
        graph = chain()
        assert plan_for(graph).nodes is graph.nodes
    assert len(execution_plan._plans) == before + 1
