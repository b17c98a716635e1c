from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from rml_exec.ops import get_op, registry
from rml_exec.plan import ActionKind, ExecutionPlan, annotate, plan_memory
from tests.plan.dags import RANDOM, inputs_of, random_graph, run_in_arena, run_plainly, scratch_of

SMALL = (1, 2, 3, 4)


@given(RANDOM, st.integers(0, 25), st.sampled_from([SMALL, (1, 6), (0, 1, 3)]), st.booleans())
def test_a_run_in_the_arena_gives_the_plain_results(rng: Random, count: int, dims: tuple[int, ...], direct: bool):
    graph = random_graph(rng, count, dims=dims)
    plan = ExecutionPlan(annotate(graph, scratch=scratch_of))
    made = {action.name for action in plan.actions if action.kind is ActionKind.ALLOCATE_BUFFER and action.views is None}
    memory = plan_memory(plan, external=made & graph.output_values() if direct else frozenset())
    inputs = inputs_of(graph)
    wanted = run_plainly(graph, inputs)
    got = run_in_arena(graph, plan, memory, inputs)
    for output in graph.outputs:
        np.testing.assert_array_equal(got[output.name], wanted[output.value])


@given(RANDOM, st.integers(0, 20))
def test_live_values_never_overlap(rng: Random, count: int):
    graph = random_graph(rng, count)
    plan = ExecutionPlan(annotate(graph, scratch=scratch_of))
    memory = plan.memory
    owner = _owners(graph)
    size = {value.name: value.type.nbytes for node in graph.nodes for value in node.outputs}
    reused = {action.name: action.reuses for action in plan.actions if action.reuses}
    made: set[str] = set()
    for index, node in enumerate(plan.nodes):
        results = {value.name for value in node.outputs}
        later = {name for other in plan.nodes[index + 1 :] for name in other.reads()} | graph.output_values()
        # While a node runs, what it reads, what it writes and all that is read later must lie apart, but for the declared reuse.
        needed = {owner[name] for name in (made & (later | set(node.reads()))) | results} & set(size)
        ranges = {name: (memory.offsets[name], memory.offsets[name] + size[name]) for name in needed}
        if node.name in memory.scratch:
            ranges["scratch"] = (memory.scratch[node.name], memory.scratch[node.name] + scratch_of(node))
        allowed = {frozenset((name, owner[reused[name]])) for name in results if name in reused}
        for one, (low, high) in ranges.items():
            assert 0 <= low <= high <= memory.arena_bytes
            for other, (start, stop) in ranges.items():
                assert one == other or high <= start or stop <= low or low == high or start == stop or frozenset((one, other)) in allowed
        made |= results


def _owners(graph: Graph) -> dict[str, str]:
    """Value -> the value whose memory NumPy put it in; a view without elements, which NumPy cannot tell, counts as a view."""
    arrays = run_plainly(graph, inputs_of(graph))
    owner = {name: name for name in arrays}
    for node in graph.nodes:
        result, operand = node.outputs[0].name, node.inputs[0] if node.inputs else None
        if operand and get_op(node.op).view and (arrays[result].size == 0 or np.shares_memory(arrays[result], arrays[operand])):
            owner[result] = owner[operand]
    return owner


@given(RANDOM, st.integers(0, 25))
def test_values_are_released_exactly_after_the_last_reader_of_any_view(rng: Random, count: int):
    graph = annotate(random_graph(rng, count))
    owner = _owners(graph)
    kept = graph.output_values()
    released = {}
    for index, node in enumerate(graph.nodes):
        for key in ("rml.release_after", "rml.release_after_shape_tag"):
            for name in filter(None, node.metadata.get(key, "").split(";")):
                assert name not in released
                released[name] = index
    for made, node in enumerate(graph.nodes):
        for value in node.outputs:
            storage = {value.name} if owner[value.name] != value.name else {name for name, root in owner.items() if root == value.name}
            if storage & kept:
                assert value.name not in released
            else:
                assert released[value.name] == max([made, *(i for i, other in enumerate(graph.nodes) if storage & set(other.reads()))])
                tagged = "rml.release_after_shape_tag" if value.tag else "rml.release_after"
                assert value.name in graph.nodes[released[value.name]].metadata[tagged].split(";")


@given(RANDOM, st.integers(0, 25))
def test_reuse_comes_from_declared_pairs_and_dying_storage(rng: Random, count: int):
    graph = annotate(random_graph(rng, count))
    outside = {value.name for value in graph.inputs} | {constant.name for constant in graph.constants}
    owner, types = _owners(graph), graph.types()
    buffer = {name: types[name].nbytes for name in types}
    for index, node in enumerate(graph.nodes):
        for item in filter(None, node.metadata.get("rml.inplace_reuse", "").split(";")):
            result, operand, fit = item.split(":")
            assert (node.outputs[0].name, len(node.outputs)) == (result, 1)
            assert any((0, place) in get_op(node.op).inplace for place, name in enumerate(node.inputs) if name == operand)
            alive = {name for other in graph.nodes[index + 1 :] for name in other.reads()} | graph.output_values() | outside
            assert owner[operand] not in {owner[name] for name in alive}
            buffer[result] = buffer[owner[operand]]
            assert (fit == "equal") == (buffer[result] == types[result].nbytes)
            assert buffer[result] >= types[result].nbytes


@given(RANDOM, st.integers(0, 25))
def test_inputs_and_constants_are_not_used_after_the_node_that_says_so(rng: Random, count: int):
    graph = annotate(random_graph(rng, count))
    owner = _owners(graph)
    said: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        said.update((name, index) for name in node.metadata.get("rml.not_used_after", "").split(";"))
    for name in [value.name for value in graph.inputs] + [constant.name for constant in graph.constants]:
        uses = [index for index, node in enumerate(graph.nodes) if name in {owner[read] for read in node.reads()}]
        assert said.get(name) == (uses[-1] if uses else None)


def _reuse(b: GraphBuilder, *outputs: str) -> dict[str, str]:
    for index, value in enumerate(outputs):
        b.output(f"y{index}", value)
    return {node.name: node.metadata["rml.inplace_reuse"] for node in annotate(b.build()).nodes if "rml.inplace_reuse" in node.metadata}


def _start(shape: tuple[int, ...] = (4, 4)) -> tuple[GraphBuilder, str, str]:
    """A builder, its input x, and h, an intermediate."""
    b = GraphBuilder("reuse")
    x = b.input("x", "f32", shape)
    return b, x, b.add("exp", [x], outputs=["h"])


def test_a_dying_operand_is_overwritten():
    b, x, h = _start()
    assert _reuse(b, b.add("add", [x, h], outputs=["y"])) == {"add": "y:h:equal"}


def test_a_value_may_meet_itself_in_place():
    b, _, h = _start()
    assert _reuse(b, b.add("add", [h, h], outputs=["y"])) == {"add": "y:h:equal"}


def test_a_reshaped_value_is_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("neg", [b.add("reshape", [h], shape=(16,), outputs=["flat"])], outputs=["y"])) == {"neg": "y:flat:equal"}


def test_a_piece_at_the_front_of_a_larger_buffer_is_overwritten_and_passes_its_buffer_on():
    b, _, h = _start()
    piece = b.add("slice", [h], start=(0, 0), limit=(3, 4), strides=(1, 1), outputs=["piece"])
    n = b.add("neg", [piece], outputs=["n"])
    m = b.add("exp", [n], outputs=["m"])
    assert _reuse(b, b.add("concat", [m, m], axis=0)) == {"neg": "n:piece:greater", "exp_1": "m:n:greater"}


def test_an_input_is_not_overwritten():
    b = GraphBuilder("reuse")
    assert _reuse(b, b.add("neg", [b.input("x", "f32", (4,))])) == {}


def test_a_constant_is_not_overwritten():
    b = GraphBuilder("reuse")
    assert _reuse(b, b.add("neg", [b.constant(np.ones(4, np.float32))])) == {}


def test_a_result_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, h, b.add("neg", [h])) == {}


def test_what_a_result_looks_into_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("transpose", [h], perm=(1, 0)), b.add("neg", [h])) == {}


def test_a_value_read_later_is_not_overwritten():
    b, _, h = _start()
    n = b.add("matmul", [b.add("neg", [h]), h], transpose_a=False, transpose_b=False)
    assert _reuse(b, n) == {}


def test_a_value_with_a_view_read_later_is_not_overwritten():
    b, _, h = _start()
    t = b.add("transpose", [h], perm=(1, 0))
    assert _reuse(b, b.add("matmul", [b.add("neg", [h]), t], transpose_a=False, transpose_b=False)) == {}


def test_a_view_whose_storage_is_read_later_is_not_overwritten():
    b, _, h = _start()
    n = b.add("neg", [b.add("reshape", [h], shape=(16,))])
    assert _reuse(b, n, b.add("matmul", [h, h], transpose_a=False, transpose_b=False)) == {}


def test_an_operand_of_which_a_row_is_read_too_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("add", [h, b.add("slice", [h], start=(0, 0), limit=(1, 4), strides=(1, 1))])) == {}


def test_an_operand_read_in_another_order_too_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("add", [h, b.add("transpose", [h], perm=(1, 0))])) == {}


def test_a_row_kernel_does_not_overwrite_what_it_reads_twice():
    b, _, h = _start((4,))
    assert _reuse(b, b.add("layer_norm", [h, h, None], axes=(0,), eps=1e-5, variance="two_pass")) == {}


def test_a_strided_view_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("neg", [b.add("transpose", [h], perm=(1, 0))])) == {}


def test_a_view_that_starts_inside_is_not_overwritten():
    b, _, h = _start()
    n = b.add("neg", [b.add("slice", [h], start=(1, 0), limit=(4, 4), strides=(1, 1))])
    assert _reuse(b, b.add("concat", [n, n], axis=0)) == {}


def test_a_broadcast_operand_is_not_overwritten():
    b, x, _ = _start()
    assert _reuse(b, b.add("add", [x, b.add("exp", [b.input("row", "f32", (4,))])])) == {}


def test_another_element_size_is_not_overwritten():
    b, _, h = _start()
    assert _reuse(b, b.add("is_nan", [h])) == {}


def test_a_much_larger_buffer_is_not_held_for_a_small_value():
    b, _, h = _start()
    n = b.add("neg", [b.add("slice", [h], start=(0, 0), limit=(1, 4), strides=(1, 1))])
    assert _reuse(b, b.add("concat", [n, n], axis=0)) == {}


def test_a_result_is_not_put_into_a_larger_buffer():
    b, _, h = _start()
    assert _reuse(b, b.add("neg", [b.add("slice", [h], start=(0, 0), limit=(3, 4), strides=(1, 1))])) == {}


def test_the_smallest_fitting_buffer_is_taken():
    b, _, h = _start()
    piece = b.add("slice", [h], start=(0, 0), limit=(3, 4), strides=(1, 1))
    other = b.add("exp", [b.input("z", "f32", (3, 4))], outputs=["other"])
    s = b.add("add", [piece, other], outputs=["s"])
    assert _reuse(b, b.add("concat", [s, s], axis=0)) == {"add": "s:other:equal"}


def test_two_outputs_of_a_node_do_not_take_the_same_storage(monkeypatch: pytest.MonkeyPatch):
    record = replace(get_op("neg"), name="twice", infer=lambda x: (x, x), outputs=("y", "z"), inplace=((0, 0), (1, 0)))
    monkeypatch.setitem(registry._OPS, "twice", record)
    b, _, h = _start()
    assert _reuse(b, *b.add("twice", [h], outputs=["y", "z"])) == {"twice": "y:h:equal"}


def test_annotations_are_written_afresh_and_other_metadata_stays():
    b, _, h = _start()
    stale = {"rml.release_after": "nothing", "rml.peak_memory": "7", "rml.label": "mine"}
    b.output("y", b.add("neg", [h], metadata=stale, outputs=["y"]))
    graph = annotate(b.build())
    assert graph.nodes[0].metadata == {"rml.not_used_after": "x"}
    assert graph.nodes[1].metadata == {"rml.label": "mine", "rml.inplace_reuse": "y:h:equal", "rml.release_after": "h"}
    assert annotate(graph) == graph


def test_scratch_is_what_the_caller_says():
    b, _, h = _start()
    b.output("y", b.add("neg", [h]))
    graph = annotate(b.build(), scratch=lambda node: 640 if node.op == "neg" else 0)
    assert [node.metadata.get("rml.peak_memory") for node in graph.nodes] == [None, "640"]


@pytest.mark.parametrize("tagged", ["h", "y"])
def test_shapes_are_not_reused_and_released_under_their_own_key(tagged: str):
    b, _, h = _start()
    y = b.add("neg", [h], outputs=["y"])
    b.output("z", b.add("concat", [y, y], axis=0))
    graph = b.build()
    tags = tuple(
        replace(node, outputs=tuple(replace(v, tag="shape" if v.name == tagged else None) for v in node.outputs)) for node in graph.nodes
    )
    nodes = annotate(graph.with_nodes(tags)).nodes
    assert all("rml.inplace_reuse" not in node.metadata for node in nodes)
    shapes = [node.metadata.get("rml.release_after_shape_tag") for node in nodes]
    buffers = [node.metadata.get("rml.release_after") for node in nodes]
    assert (shapes, buffers) == (([None, "h", None], [None, None, "y"]) if tagged == "h" else ([None, None, "y"], [None, "h", None]))
