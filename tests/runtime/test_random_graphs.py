"""Properties of the executor on random graphs of every kind of op."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rml_exec import Executor
from rml_exec.plan.aliases import resolve_views
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import random_inputs
from tests.helpers.strategies import mixed_graphs

SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]}


@settings(max_examples=150, **SLOW)
@given(mixed_graphs(), st.sampled_from([True, False]))
def test_executor_plan_and_reference_agree(graph, fuse):
    inputs = {name: array * np.float32(0.5) for name, array in random_inputs(graph).items()}
    want = run_reference(graph, inputs, precision="f64")
    executor = Executor.create(graph, fuse=fuse, threads=1)
    got = executor.run(inputs)
    for name, array in want.items():
        finite = np.isfinite(array)
        scale = np.sqrt(np.mean(np.square(array[finite]))) if finite.any() else 0.0
        if scale > 1e30:  # exp of exp: f32 overflows where f64 does not
            continue
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4 * scale + 1e-30)
    again = executor.run(inputs)
    assert all(got[name].tobytes() == again[name].tobytes() for name in got)


@settings(max_examples=60, **SLOW)
@given(mixed_graphs())
def test_fusion_changes_no_bit_unless_a_bias_was_folded(graph):
    inputs = random_inputs(graph)
    assume(all(node.op != "conv2d" for node in graph.nodes))  # a folded bias is added first, not last
    fused, plain = (Executor.create(graph, fuse=fuse, threads=1, numerics="exact").run(inputs) for fuse in (True, False))
    for name, array in fused.items():
        np.testing.assert_array_equal(array, plain[name])


@settings(max_examples=150, **SLOW)
@given(mixed_graphs(max_nodes=24))
def test_buffers_that_live_at_once_do_not_overlap(graph):
    executor = Executor.create(graph, threads=1)
    lowered = executor.lowered
    types, views = lowered.types(), resolve_views(lowered, lowered.types())
    memory = executor.memory
    last = {}
    for index, node in enumerate(lowered.nodes):
        for name in node.reads():
            last[views[name].root] = index
    for output in lowered.outputs:
        last[views[output.value].root] = len(lowered.nodes)
    alive: dict[str, tuple[int, int]] = {}
    for index, node in enumerate(lowered.nodes):
        ending = {root for root in alive if last.get(root, -1) == index}
        made = {}
        for value in node.outputs:
            if value.name in memory.offsets and types[value.name].nbytes:
                made[value.name] = (memory.offsets[value.name], memory.offsets[value.name] + types[value.name].nbytes)
        scratch = memory.scratch.get(node.name)
        for name, (low, high) in made.items():
            others = [(other, place) for other, place in (*alive.items(), *made.items()) if other != name and other not in ending]
            for other, (start, end) in others:  # one that ends here may be overwritten in place
                assert high <= start or end <= low, f"{name} overlaps {other} at {node.name}"
        if scratch is not None:
            for other, (start, end) in (*alive.items(), *made.items()):
                assert not start <= scratch < end, f"scratch of {node.name} lies in {other}"
        alive = {root: place for root, place in {**alive, **made}.items() if last.get(root, index) > index}


@settings(max_examples=100, **SLOW)
@given(mixed_graphs(max_nodes=24))
def test_the_arena_is_close_to_the_lower_bound(graph):
    memory = Executor.create(graph, threads=1).memory
    assert memory.arena_bytes >= memory.lower_bound_bytes
    assert memory.arena_bytes <= 1.5 * memory.lower_bound_bytes + 64
