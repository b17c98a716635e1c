import numpy as np
import pytest

from rml_exec.passes.drop_unread import DROP_UNREAD
from rml_exec.passes.merge_views import MERGE_VIEWS
from rml_exec.passes.simplify_nodes import SIMPLIFY_NODES
from tests.passes.pass_support import ops, passed

READ = {"oob": "error", "wrap_negative": True, "fill_value": None}


def simplified(build, rtol=0.0):
    return ops(passed(build, SIMPLIFY_NODES, MERGE_VIEWS, DROP_UNREAD, rtol=rtol))


def taken(indices, axis=1, **attrs):
    def build(b):
        x = b.input("x", "f32", (3, 6, 2))
        b.output("y", b.add("take", [x, b.constant(np.array(indices), "i")], axis=axis, **{**READ, **attrs}))

    return simplified(build)


def test_a_take_of_a_range_is_a_slice():
    assert taken([1, 2, 3]) == ["slice"]
    assert taken([[1, 2], [3, 4]]) == ["slice", "reshape"]
    assert taken(4) == ["slice", "reshape"]
    assert taken([-2, -1]) == ["slice"]
    assert taken(range(6)) == []
    assert taken([0, 1], axis=2) == []


def test_a_take_of_other_indices_stays():
    assert taken([2, 1]) == ["take"]
    assert taken([0, 2]) == ["take"]
    assert taken([5, 6], oob="clamp") == ["take"]
    assert taken([-1, 0], wrap_negative=False, oob="clamp") == ["take"]
    assert taken(np.zeros((0,), np.int64)) == ["take"]


def gathered(points, **attrs):
    def build(b):
        x = b.input("x", "f32", (2, 3, 4))
        b.output("y", b.add("gather_nd", [x, b.constant(np.array(points), "i")], **{"batch_dims": 0, **READ, **attrs}))

    return simplified(build)


def test_a_gather_of_all_points_is_a_view():
    every = [[[row, column] for column in range(3)] for row in range(2)]
    assert gathered(every) == []
    assert gathered([every]) == ["reshape"]
    assert gathered([[0, 1], [0, 2], [1, -3]]) == ["reshape", "slice"]


def test_a_gather_of_known_points_is_a_take():
    assert gathered([[1, 1], [0, 2]]) == ["reshape", "take"]
    assert gathered([[1], [0]]) == ["take"]
    assert gathered([[[1, 1]], [[0, 2]]], batch_dims=1) == ["gather_nd"]
    assert gathered([[1, 3]], oob="clamp") == ["gather_nd"]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_pool_of_one_window_is_a_mean(layout):
    def pooled(window, pads=((0, 0), (0, 0)), divisor="valid", strides=None):
        def build(b):
            x = b.input("x", "f32", (2, 3, 4, 5) if layout == "NCHW" else (2, 4, 5, 3))
            attrs = {"window": window, "strides": strides or window, "pads": pads, "data_layout": layout}
            b.output("y", b.add("avg_pool", [x], divisor=divisor, divisor_value=None, **attrs))

        return simplified(build, rtol=1e-12)

    assert pooled((4, 5)) == ["reduce"]
    assert pooled((4, 5), divisor="window") == ["reduce"]
    assert pooled((9, 9), pads=((0, 5), (0, 4))) == ["reduce"]
    assert pooled((9, 9), pads=((0, 5), (0, 4)), divisor="window") == ["avg_pool"]
    assert pooled((5, 5), pads=((1, 0), (0, 0))) == ["avg_pool"]
    assert pooled((4, 4), strides=(1, 1)) == ["avg_pool"]


def test_a_concat_of_one_value_and_a_resize_to_its_size_are_nothing():
    def build(b):
        x = b.input("x", "f32", (1, 2, 3, 4))
        empty = b.add("slice", [x], start=(0, 0, 0, 4), limit=(1, 2, 3, 4), strides=(1, 1, 1, 1))
        y = b.add("concat", [b.add("neg", [x]), empty], axis=3)
        attrs = {"mode": "linear", "nearest_round": None, "cubic_a": None, "exclude_outside": False, "antialias": False}
        attrs |= {"scales": None, "data_layout": "NCHW"}
        b.output("y", b.add("resize", [y], coord="half_pixel", sizes=(3, 4), **attrs))
        b.output("z", b.add("resize", [y], coord="tf_half_pixel_for_nn", sizes=(3, 4), **attrs))
        b.output("w", b.add("concat", [y, y], axis=0))

    assert simplified(build, rtol=1e-12) == ["neg", "resize", "concat"]
