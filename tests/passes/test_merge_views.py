import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rml_exec.passes.drop_unread import DROP_UNREAD
from rml_exec.passes.merge_views import MERGE_VIEWS
from tests.passes.pass_support import passed


def merged(shape, *views):
    """Returns (op, new shape or permutation) of the nodes that views of a value of this shape become: tuples are shapes, lists permutations."""

    def build(b):
        y = b.input("x", "f32", shape)
        for view in views:
            y = b.add("reshape", [y], shape=view) if isinstance(view, tuple) else b.add("transpose", [y], perm=view)
        b.output("y", y)

    graph = passed(build, MERGE_VIEWS, DROP_UNREAD, rtol=0)
    return [(node.op, node.attrs.get("shape") or node.attrs["perm"]) for node in graph.nodes]


def test_keys_transposed_by_way_of_three_axes():
    """As torch.onnx.export swaps the last axes of [batch, heads, length, width]."""
    assert merged((2, 3, 5, 7), (6, 5, 7), [0, 2, 1], (2, 3, 7, 5)) == [("transpose", (0, 1, 3, 2))]


def test_what_undoes_another_is_nothing():
    assert merged((2, 3, 5), [2, 0, 1], [1, 2, 0]) == []
    assert merged((2, 3, 5), (6, 5), (2, 3, 5)) == []
    assert merged((2, 3), (2, 3)) == []
    assert merged((2, 1, 3), [0, 1, 2], (2, 3), (2, 1, 3)) == []


def test_reshapes_and_transposes_that_come_to_one():
    assert merged((4, 6), (2, 2, 6), (2, 12)) == [("reshape", (2, 12))]
    assert merged((2, 3, 5), [0, 2, 1], [2, 0, 1]) == [("transpose", (1, 0, 2))]
    assert merged((1, 5, 1, 3), [2, 1, 0, 3]) == [("reshape", (1, 5, 1, 3))] or merged((1, 5, 1, 3), [2, 1, 0, 3]) == []


def test_three_that_come_to_two():
    """Repeated heads of keys, transposed by way of three axes."""
    assert merged((2, 2, 3, 5, 7), (12, 5, 7), [0, 2, 1], (2, 6, 7, 5)) == [("reshape", (2, 6, 5, 7)), ("transpose", (0, 1, 3, 2))]


def test_what_comes_to_no_fewer_stays():
    views = (2, 3, 4), [0, 2, 1], (8, 3)
    assert [op for op, _ in merged((6, 4), *views)] == ["reshape", "transpose", "reshape"]
    assert [op for op, _ in merged((2, 3), [1, 0], (2, 3))] == ["transpose", "reshape"]


def test_a_view_that_is_read_too_stays():
    def build(b):
        x = b.input("x", "f32", (2, 3))
        turned = b.add("transpose", [x], perm=(1, 0))
        b.output("turned", turned)
        b.output("same", b.add("transpose", [turned], perm=(1, 0)))

    graph = passed(build, MERGE_VIEWS, DROP_UNREAD, rtol=0)
    assert [node.op for node in graph.nodes] == ["transpose"]
    assert [output.value for output in graph.outputs] == ["transpose", "x"]


def test_no_elements():
    assert [op for op, _ in merged((2, 0, 3), (0, 6), [1, 0])] == ["reshape", "transpose"]


@st.composite
def views(draw):
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    found, rank, size = [], len(shape), math.prod(shape)
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            found.append(draw(st.permutations(range(rank))))
            continue
        new, left = [], size
        while left > 1 and len(new) < 3:
            new.append(draw(st.sampled_from([k for k in range(1, left + 1) if left % k == 0])))
            left //= new[-1]
        found.append((*new, left))
        rank = len(found[-1])
    return tuple(shape), found


@settings(max_examples=100, deadline=None)
@given(views())
def test_any_chain_gives_the_same_elements(case):
    shape, chain = case
    assert len(merged(shape, *chain)) <= len(chain)


@pytest.mark.parametrize("batch", [1, 2])
def test_elements_are_where_they_were(batch):
    x = np.arange(batch * 12).reshape(batch, 3, 4)
    assert merged(x.shape, (batch, 12), (batch, 4, 3), [0, 2, 1])  # no transpose of x, though of its shape
