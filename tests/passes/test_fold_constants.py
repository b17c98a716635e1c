import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder, check_graph
from rml_exec.passes.base import run_passes
from rml_exec.passes.drop_unread import DROP_UNREAD
from rml_exec.passes.fold_constants import FOLD_CONSTANTS
from tests.passes.pass_support import normal, ops, passed

TAKE = {"axis": 0, "oob": "error", "wrap_negative": False, "fill_value": None}


def folded(build):
    return passed(build, FOLD_CONSTANTS, DROP_UNREAD, rtol=1e-6)  # a constant is rounded to float32


def test_what_constants_alone_give_becomes_a_constant():
    def build(b):
        x = b.input("x", "f32", (2, 4))
        rows = b.add("take", [b.constant(normal(9, 4), "table"), b.constant(np.array([3, 1]), "rows")], **TAKE)
        b.output("y", b.add("add", [x, b.add("mul", [rows, b.constant(normal(4), "scale")])]))

    graph = folded(build)
    assert ops(graph) == ["add"]
    assert [constant.name for constant in graph.constants] == ["mul"]


def test_views_of_constants_become_constants_and_a_broadcast_stays_one():
    def build(b):
        x = b.input("x", "f32", (600, 700))
        turned = b.add("transpose", [b.constant(normal(5, 700), "w")], perm=(1, 0))
        y = b.add("linear", [x, turned, None], weight_layout="io")
        wide = b.add("broadcast", [b.constant(normal(5), "v")], shape=(600, 5))
        b.output("y", b.add("add", [y, wide]))
        b.output("z", b.add("add", [y, b.add("neg", [wide])]))

    graph = folded(build)
    assert ops(graph) == ["linear", "broadcast", "add", "add"]  # the neg of the broadcast is 12 kB, and a constant
    assert {constant.name for constant in graph.constants} == {"transpose", "v", "neg"}


def test_a_large_result_of_little_is_computed_when_the_graph_runs():
    def build(b):
        x = b.input("x", "f32", (1024, 1024))
        wide = b.add("broadcast", [b.constant(normal(1024), "v")], shape=(1024, 1024))
        b.output("y", b.add("add", [x, b.add("neg", [wide])]))

    assert ops(folded(build)) == ["broadcast", "neg", "add"]


def test_refused_values_are_refused_when_the_graph_runs():
    b = GraphBuilder("refused")
    x = b.input("x", "f32", (1, 4))
    b.output("y", b.add("add", [x, b.add("take", [b.constant(normal(3, 4), "table"), b.constant(np.array([3]), "rows")], **TAKE)]))
    assert ops(run_passes(b.build(), [FOLD_CONSTANTS], check_graph)) == ["take", "add"]


def test_a_constant_may_be_an_output():
    def build(b):
        b.input("x", "f32", (1,))
        b.output("y", b.add("exp", [b.constant(normal(3), "c")]))

    assert ops(folded(build)) == []


@pytest.mark.parametrize("fuse", [True, False])
def test_executors_run_what_was_folded(fuse):
    b = GraphBuilder("lstm_bias")
    first, second, x = normal(4), normal(4), normal(3, 4)
    bias = b.add("add", [b.constant(first, "b1"), b.constant(second, "b2")])
    b.output("y", b.add("add", [b.input("x", "f32", (3, 4)), bias]))
    executor = Executor.create(b.build(), fuse=fuse)
    assert len(executor.steps) == (1 if fuse else 2)
    np.testing.assert_array_equal(executor.run({"x": x})["y"], x + (first + second))


def test_what_nothing_reads_is_left_out():
    def build(b):
        x = b.input("x", "f32", (3,))
        b.add("exp", [b.add("neg", [x])])
        b.add("mul", [x, b.constant(normal(3), "unread")])
        b.output("y", b.add("abs", [x]))

    graph = passed(build, DROP_UNREAD)
    assert ops(graph) == ["abs"]
    assert not graph.constants


def test_scalars_are_folded_too():
    def build(b):
        x = b.input("x", "f32", (2, 2))
        b.output("y", b.add("mul", [x, b.add("sqrt", [b.constant(np.array(2.25, np.float32), "s")])]))

    graph = folded(build)
    assert ops(graph) == ["mul"]
    assert graph.constants[0].data.shape == ()
