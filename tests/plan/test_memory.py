from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.errors import PlanError
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from rml_exec.plan import Action, ActionKind, ExecutionPlan, MemoryPlan, annotate, plan_memory
from tests.helpers.graphs import cnn_graph, elementwise_graph, mlp_graph
from tests.plan.dags import RANDOM, random_graph, scratch_of


class Scripted(ExecutionPlan):
    """A plan with the given actions: ``+a 64`` allocates, ``-a`` releases, ``~n 64`` is scratch; ``+b 64 reuses a``, ``+c 0 views a``."""

    script: str

    def __init__(self, script: str) -> None:
        self.script = script
        super().__init__()

    def build_actions(self) -> Sequence[Action]:
        actions = []
        for step in filter(None, (part.strip() for part in self.script.split(";"))):
            name, *rest = step[1:].split()
            if step[0] == "-":
                actions.append(Action(ActionKind.DELETE_BUFFER, name, 0, 0))
            elif step[0] == "~":
                actions.append(Action(ActionKind.ALLOCATE_TEMPORARY, name, int(rest[0]), 0))
                actions.append(Action(ActionKind.DELETE_TEMPORARY, name, int(rest[0]), 0))
            else:
                actions.append(Action(ActionKind.ALLOCATE_BUFFER, name, int(rest[0]), 0, **dict(zip(rest[1::2], rest[2::2], strict=True))))
        return actions


def test_buffers_alive_together_lie_apart_and_dead_space_is_used_again():
    memory = plan_memory(Scripted("+a 100; +b 60; -a; +c 128; -b; -c"))
    assert memory.offsets == {"a": 0, "b": 128, "c": 0}
    assert (memory.arena_bytes, memory.lower_bound_bytes, memory.peak_bytes) == (192, 192, 188)
    assert memory.live == ((0, 100), (1, 160), (2, 60), (3, 188), (4, 128), (5, 0))


def test_values_that_share_storage_share_an_offset_and_the_larger_size():
    memory = plan_memory(Scripted("+a 100; +v 0 views a; +b 200 reuses v; -a; -v; +c 64; -b; -c"))
    assert memory.offsets == {"a": 0, "b": 0, "c": 256}
    assert memory.live == ((0, 200), (5, 264), (6, 64), (7, 0))


def test_a_view_keeps_its_storage_alive():
    memory = plan_memory(Scripted("+a 64; +v 0 views a; -a; +b 64; -v; +c 64"))
    assert memory.offsets == {"a": 0, "b": 64, "c": 0}


def test_views_of_inputs_need_no_memory():
    assert plan_memory(Scripted("+v 0 views x; -v")) == MemoryPlan({}, {}, {}, 0, 0, 0, ())


def test_scratch_lies_beside_what_is_alive():
    memory = plan_memory(Scripted("+a 64; ~n 100; -a; ~m 64"))
    assert (memory.offsets, memory.scratch) == ({"a": 128}, {"n": 0, "m": 0})
    assert memory.arena_bytes == memory.lower_bound_bytes == 192


def test_the_tightest_gap_is_taken():
    # When d comes, 512 bytes are free where a lay, below q, and 384 where b lay, below p.
    memory = plan_memory(Scripted("+a 512; +q 448; +b 384; +p 320; -a; -b; +d 64"))
    assert memory.offsets == {"a": 0, "q": 512, "b": 960, "p": 1344, "d": 960}


@pytest.mark.parametrize(("order", "last"), [("-b; -c", "c"), ("-c; -b", "b")])
def test_of_equal_gaps_the_one_freed_last_is_taken(order: str, last: str):
    memory = plan_memory(Scripted(f"+a 512; +q 448; +b 384; +p 320; -a; +f 128; +c 384; {order}; +d 64"))
    assert (memory.offsets["c"], memory.offsets["b"]) == (0, 960)
    assert memory.offsets["d"] == memory.offsets[last]


def test_values_in_a_callers_buffer_take_what_shares_their_storage_with_them():
    plan = Scripted("+a 64; +v 0 views a; +y 64 reuses v; -v; -a; +b 64")
    assert plan_memory(plan, external={"y"}) == MemoryPlan({"b": 0}, {}, {"a": "y", "y": "y"}, 64, 64, 64, ((5, 64),))


def test_a_view_cannot_be_written_into_a_callers_buffer():
    with pytest.raises(PlanError, match="value 'v'"):
        plan_memory(Scripted("+a 64; +v 0 views a"), external={"v"})


def test_a_callers_buffer_must_hold_all_that_shares_it():
    with pytest.raises(PlanError, match="value 'y': must not share a caller's buffer with a larger value; got 'a' of 128 bytes"):
        plan_memory(Scripted("+a 128; +y 64 reuses a; -a"), external={"y"})


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 30)), max_size=40), st.sampled_from([1, 64, 256]))
def test_random_lifetimes(blocks: list[tuple[int, int, int]], alignment: int):
    spans = {f"b{i}": (min(a, z), max(a, z), size) for i, (size, a, z) in enumerate(blocks)}
    script = []
    for time in range(31):
        script += [f"+{name} {size}" for name, (first, _, size) in spans.items() if first == time]
        script += [f"-{name}" for name, (_, last, _) in spans.items() if last == time]
    memory = plan_memory(Scripted(";".join(script)), alignment=alignment)
    for name, (first, last, size) in spans.items():
        assert memory.offsets[name] % alignment == 0
        assert memory.offsets[name] + size <= memory.arena_bytes
        for other, (start, end, length) in spans.items():
            if name != other and size and length and first <= end and start <= last:
                assert memory.offsets[name] + size <= memory.offsets[other] or memory.offsets[other] + length <= memory.offsets[name]
    alive = [[size for first, last, size in spans.values() if first <= time <= last] for time in range(31)]
    assert memory.peak_bytes == max(sum(sizes) for sizes in alive) == max((live for _, live in memory.live), default=0)
    assert memory.lower_bound_bytes == max(sum(-(-size // alignment) * alignment for size in sizes) for sizes in alive)
    assert memory.arena_bytes >= memory.lower_bound_bytes


@given(RANDOM, st.integers(0, 25))
def test_the_plan_of_a_graph_states_its_memory(rng: Random, count: int):
    plan = ExecutionPlan(annotate(random_graph(rng, count), scratch=scratch_of))
    assert plan.memory.arena_bytes >= plan.lower_bound_bytes >= plan.peak_bytes
    assert plan_memory(plan) == plan.memory


def test_the_arena_is_within_a_tenth_of_the_lower_bound_on_random_graphs():
    ratios = []
    for seed in range(200):
        rng = Random(seed)
        graph = random_graph(rng, rng.choice((60, 120, 200)), window=rng.choice((12, 24, 40)), dims=tuple(range(1, 60, 3)))
        memory = ExecutionPlan(annotate(graph, scratch=scratch_of)).memory
        ratios.append(memory.arena_bytes / max(memory.lower_bound_bytes, 1))
    # Greedy placing without a second round gets 191 and 161.
    assert sum(ratio <= 1.10 for ratio in ratios) >= 195
    assert sum(ratio == 1.0 for ratio in ratios) >= 175


MODELS = [mlp_graph(), mlp_graph(64, (512, 256, 128, 10)), cnn_graph(), cnn_graph(4, 64, "NHWC"), elementwise_graph()]


@pytest.mark.parametrize("graph", MODELS)
def test_the_arena_of_small_models_is_the_lower_bound(graph: Graph):
    memory = ExecutionPlan(annotate(graph)).memory
    assert memory.arena_bytes == memory.lower_bound_bytes > 0


def test_a_residual_chain_needs_three_buffers_however_long():
    b = GraphBuilder("residual")
    x = b.add("exp", [b.input("x", "f32", (16, 16))])
    for _ in range(50):
        h = b.add("matmul", [x, x], transpose_a=False, transpose_b=False)
        x = b.add("add", [x, b.add("matmul", [h, h], transpose_a=False, transpose_b=False)])
    b.output("y", x)
    assert ExecutionPlan(annotate(b.build())).memory.arena_bytes == 3 * 1024


def test_ten_thousand_nodes():
    graph = annotate(random_graph(Random(7), 9000, window=24, dims=(1, 3, 8, 20)), scratch=scratch_of)
    assert len(graph.nodes) >= 10_000
    memory = ExecutionPlan(graph).memory
    assert memory.lower_bound_bytes <= memory.arena_bytes <= 1.25 * memory.lower_bound_bytes
