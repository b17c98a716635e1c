from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.ir.graph import Body
from rml_exec.loading import GraphBuilder
from rml_exec.ops import all_ops, get_op
from rml_exec.plan import View, aliases, reads_contiguous, resolve_views
from tests.plan.dags import RANDOM, inputs_of, random_graph, run_plainly


@given(RANDOM, st.integers(1, 25), st.sampled_from([(1, 2, 3, 4), (1, 6), (0, 1, 3)]))
def test_every_view_is_what_numpy_sees(rng: Random, count: int, dims: tuple[int, ...]):
    graph = random_graph(rng, count, dims=dims)
    views = resolve_views(graph, graph.types())
    arrays = run_plainly(graph, inputs_of(graph))
    for name, view in views.items():
        root, array = arrays[view.root], arrays[name]
        flat = np.ascontiguousarray(root).reshape(-1)
        steps = sum((i * step for i, step in zip(np.indices(array.shape), view.strides, strict=True)), np.zeros(array.shape, int))
        np.testing.assert_array_equal(flat[view.offset + steps] if array.size else array, array)
        assert reads_contiguous(view, array.shape) == (steps.reshape(-1) == np.arange(steps.size)).all()
    for node in graph.nodes:
        result = node.outputs[0]
        if get_op(node.op).view and result.type.size:
            assert (views[result.name].root == result.name) != np.shares_memory(arrays[result.name], arrays[node.inputs[0]])


def test_every_view_op_has_a_stride_rule_and_no_other_op_has_one():
    assert set(aliases._RULES) == {op.name for op in all_ops() if op.view}


def test_a_chain_of_views_has_one_root():
    b = GraphBuilder("chain")
    x = b.input("x", "f32", (4, 6))
    t = b.add("transpose", [x], perm=(1, 0))
    s = b.add("slice", [t], start=(1, 0), limit=(6, 4), strides=(2, 1))
    r = b.add("reverse", [s], axes=(1,))
    w = b.add("broadcast", [r], shape=(5, 3, 4))
    b.output("y", w)
    graph = b.build()
    views = resolve_views(graph, graph.types())
    assert views[s] == View("x", 1, (2, 6))
    assert views[r] == View("x", 1 + 3 * 6, (2, -6))
    assert views[w] == View("x", 19, (0, 2, -6))


@pytest.mark.parametrize(("shape", "root"), [((24,), "y"), ((2, 3, 4), "x"), ((6, 2, 2), "x"), ((6, 1, 4), "x"), ((3, 8), "y")])
def test_a_reshape_of_a_transpose_is_a_view_only_where_strides_can_express_it(shape: tuple[int, ...], root: str):
    b = GraphBuilder("reshape")
    t = b.add("transpose", [b.input("x", "f32", (4, 6))], perm=(1, 0))
    y = b.add("reshape", [t], shape=shape, outputs=["y"])
    b.output("y", y)
    graph = b.build()
    assert resolve_views(graph, graph.types())[y].root == root


def test_a_reshape_of_columns_copies():
    b = GraphBuilder("columns")
    columns = b.add("slice", [b.input("x", "f32", (4, 6))], start=(0, 1), limit=(4, 5), strides=(1, 1))
    flat = b.add("reshape", [columns], shape=(16,))
    blocks = b.add("reshape", [columns], shape=(2, 2, 4))
    b.output("y", flat)
    b.output("z", blocks)
    graph = b.build()
    views = resolve_views(graph, graph.types())
    assert (views[flat].root, views[blocks]) == (flat, View("x", 1, (12, 6, 1)))


def test_a_view_of_a_value_from_outside_counts_as_a_copy():
    b = GraphBuilder("outside")
    y = b.add("transpose", [b.input("x", "f32", (4, 6))], perm=(1, 0))
    b.output("y", y)
    graph = b.build()
    body = Body("range", (), (), (), tuple(replace(node) for node in graph.nodes))
    assert resolve_views(body, body.types()) == {y: View(y, 0, (4, 1))}
