"""Operators that move, cut, join or create elements, against ONNX's reference implementation, on the odd cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.errors import KernelError
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.onnx_support import OPSET, check, i64, imported, normal, run

X = normal(3, 4, 5)
NONE = np.zeros((0, 3), np.float32)
INT_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("x", "shape", "attrs"),
    [
        (X, i64(0, -1), {}),
        (X, i64(-1), {}),
        (X, i64(5, 0, -1), {}),
        (NONE, i64(3, 0), {"allowzero": 1}),
        (np.array(2, np.float32), i64(), {}),
        (np.array(2, np.float32), i64(1, 1), {}),
    ],
)
def test_reshape(x: np.ndarray, shape: np.ndarray, attrs: dict[str, int]) -> None:
    check("Reshape", [x, shape], known=[1], **attrs)


@pytest.mark.parametrize("shape", [i64(7, -1), i64(-1, -1), i64(0, 0, 0, 0)])
def test_a_shape_that_does_not_fit_is_refused(shape: np.ndarray) -> None:
    with pytest.raises(UnsupportedOperatorsError, match="Reshape"):
        imported("Reshape", [X, shape], known=[1])


def test_a_shape_that_depends_on_the_inputs_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="shape depends on the inputs"):
        imported("Reshape", [X, i64(60)])


@pytest.mark.parametrize("axis", [-3, -1, 0, 2, 3])
def test_flatten(axis: int) -> None:
    check("Flatten", [X], axis=axis)


def test_squeeze_and_unsqueeze() -> None:
    x = normal(1, 3, 1)
    check("Squeeze", [x])
    check("Squeeze", [x, i64(-1)], known=[1])
    check("Squeeze", [x], axes=[0, 2], opset=11)
    check("Unsqueeze", [X, i64(-1, 0, 2)], known=[1])
    check("Unsqueeze", [X], axes=[0, 4], opset=11)
    with pytest.raises(UnsupportedOperatorsError, match="size 1"):
        imported("Squeeze", [x, i64(1)], known=[1])
    with pytest.raises(UnsupportedOperatorsError, match="named twice"):
        imported("Unsqueeze", [X, i64(0, -5)], known=[1])


@pytest.mark.parametrize("attrs", [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 99}, {"start": 2, "end": 1}])
def test_shape(attrs: dict[str, int]) -> None:
    check("Shape", [X], **attrs)


@pytest.mark.parametrize("shape", [i64(), i64(1), i64(2, 1, 1, 5), i64(3, 1, 1)])
def test_expand_goes_both_ways(shape: np.ndarray) -> None:
    check("Expand", [normal(3, 1, 5), shape], known=[1])


@pytest.mark.parametrize("repeats", [i64(2, 1, 3), i64(1, 1, 1), i64(0, 2, 1)])
def test_tile(repeats: np.ndarray) -> None:
    check("Tile", [X, repeats], known=[1])


def test_concat_of_one_and_of_empty_parts() -> None:
    check("Concat", [X], axis=0)
    check("Concat", [NONE, normal(2, 3), NONE], axis=-2)


@pytest.mark.parametrize(
    ("inputs", "outputs", "attrs"),
    [
        ([normal(7, 2)], 3, {"num_outputs": 3}),
        ([normal(2, 6)], 3, {"axis": -1, "num_outputs": 3}),
        ([normal(7, 2), i64(0, 5, 2)], 3, {}),
        ([normal(7, 2)], 2, {"split": [3, 4], "opset": 11}),
        ([normal(6, 2)], 2, {"opset": 13}),
        ([NONE], 2, {"num_outputs": 2}),
    ],
)
def test_split(inputs: list[np.ndarray], outputs: int, attrs: dict[str, Any]) -> None:
    check("Split", inputs, known=[1] if len(inputs) > 1 else [], outputs=outputs, **attrs)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [INT_MAX], [1], None),
        ([-2], [-1], [-1], None),
        ([INT_MAX], [-INT_MAX - 1], [0], [-1]),
        ([3], [-INT_MAX], [1], [-2]),
        ([-1], [0], [2], [-3]),
        ([4], [1], [2], [1]),
        ([0], [5], [2], [9]),
        ([5], [2], [0], [-1]),
        ([1, 2], [2, -1], None, None),
        ([0, 0, 1], [3, 4, 5], [0, 1, 2], [2, -1, 3]),
    ],
)
def test_slice(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> None:
    given = [None if array is None else i64(*array) for array in (starts, ends, axes, steps)]
    check("Slice", [X, *given], known=[1, 2, 3, 4])


def test_slice_with_attributes() -> None:
    check("Slice", [X], starts=[1, -3], ends=[INT_MAX, -1], axes=[0, 2], opset=9)


def test_slice_along_an_empty_axis() -> None:
    check("Slice", [NONE, i64(0), i64(5), i64(0), i64(-1)], known=[1, 2, 3, 4])


def _moving_slice(ends: list[onnx.NodeProto], x: np.ndarray) -> onnx.ModelProto:
    """Returns a model that slices axes 1 and 0 of ``x`` from the run-time numbers i (steps of 2) and 1."""
    nodes = [
        helper.make_node("Unsqueeze", ["i", "zero"], ["from"]),
        *ends,
        helper.make_node("Concat", ["from", "one"], ["starts"], axis=0),
        helper.make_node("Concat", ["to", "many"], ["ends"], axis=0),
        helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]),
    ]
    constants = {"zero": [0], "one": [1], "three": [3], "many": [99], "axes": [1, 0], "steps": [2, 1]}
    graph = helper.make_graph(
        nodes,
        "moving",
        [helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("i", 7, [])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(i64(*numbers), name) for name, numbers in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def test_a_window_that_moves_at_run_time() -> None:
    """Its size is known, for its end is computed from its start; one that leaves the axis is an error of the run."""
    x = normal(3, 7)
    graph = to_graph(_moving_slice([helper.make_node("Add", ["from", "three"], ["to"])], x))
    for start in (0, 2, 4):
        (y,) = run_reference(graph, {"x": x, "i": np.array(start)}, precision="f32").values()
        np.testing.assert_array_equal(y, x[1:, start : start + 3 : 2])
    for start in (-1, 5):
        with pytest.raises(KernelError, match="range"):
            run_reference(graph, {"x": x, "i": np.array(start)}, precision="f32")


def test_a_window_of_unknown_size_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="size of its result"):
        to_graph(_moving_slice([helper.make_node("Mul", ["from", "three"], ["to"])], normal(3, 7)))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [[0, 1, 2, 2], [1, 2, 7, 8], [0, 0, 0, 0]])
def test_pad(mode: str, pads: list[int]) -> None:
    """Also by more than the axis has: it is repeated as often as needed."""
    check("Pad", [normal(3, 4), i64(*pads)], known=[1], mode=mode)


@pytest.mark.parametrize("pads", [[-1, 0, 0, -2], [-1, 2, 1, -1], [-3, 0, 0, 0]])
def test_negative_pads_crop(pads: list[int]) -> None:
    check("Pad", [normal(3, 4), i64(*pads), np.array(1.5, np.float32)], known=[1, 2], peer="ort")


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_an_axis_is_cropped_before_it_is_repeated(mode: str) -> None:
    x = normal(3, 6)
    graph = imported("Pad", [x, i64(0, -2, 0, 3)], known=[1], mode=mode)
    np.testing.assert_array_equal(run(graph, [x])[0], np.pad(x[:, 2:], [(0, 0), (0, 3)], mode=mode))


def test_pad_of_chosen_axes_with_a_value() -> None:
    check("Pad", [X, i64(1, 2), np.array(-np.inf, np.float32), i64(-1)], known=[1, 2, 3])
    check("Pad", [X, i64(1, 2, 0, 1), np.array(3.5, np.float32), i64(2, 0)], known=[1, 3])
    check("Pad", [np.array([True, False]), i64(1, 1), np.array(True)], known=[1, 2])
    check("Pad", [normal(2, 2)], pads=[0, 1, 1, 0], value=2.5, opset=10)


@pytest.mark.parametrize("shape", [[10, 7, 3], [11, 4, 3], [1, 9, 2]])
def test_center_crop_pad(shape: list[int]) -> None:
    check("CenterCropPad", [normal(6, 7, 3), i64(*shape)], known=[1])
    check("CenterCropPad", [normal(6, 7, 3), i64(*shape[:2])], known=[1], axes=[-3, 1])


def test_constant_of_shape() -> None:
    check("ConstantOfShape", [i64(2, 0, 3)], known=[0])
    check("ConstantOfShape", [i64()], known=[0])


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0, 5, 1), (10, 4, -2), (5, 5, 1), (5, 1, 1), (3, 9, 4), (np.float32(1), np.float32(2), np.float32(0.3))],
)
def test_range(start: Any, limit: Any, delta: Any) -> None:
    check("Range", [np.asarray(number).reshape(()) for number in (start, limit, delta)], known=[0, 1, 2])


def test_a_range_up_to_an_input_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="size of its result"):
        imported("Range", [np.array(0), np.array(5), np.array(1)], known=[0, 2])


@pytest.mark.parametrize("k", [-9, -2, 0, 1, 9])
def test_triangles_and_diagonals(k: int) -> None:
    for upper in (0, 1):
        check("Trilu", [normal(2, 3, 5), np.array(k)], known=[1], upper=upper)
        check("Trilu", [np.arange(6).reshape(2, 3), np.array(k)], upper=upper)
    check("EyeLike", [normal(3, 4)], k=k, dtype=1)
    check("EyeLike", [np.ones((3, 2), np.int32)], k=k)


def test_a_triangle_takes_no_nan_from_the_other_one() -> None:
    (y,) = run(imported("Trilu", [np.full((2, 2), np.nan, np.float32)]), [np.full((2, 2), np.nan, np.float32)])
    np.testing.assert_array_equal(y, [[np.nan, np.nan], [0, np.nan]])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    check("DepthToSpace", [normal(2, 12, 3, 2)], blocksize=2, mode=mode)


def test_what_is_known_leaves_no_node() -> None:
    graph = imported("Reshape", [normal(6), i64(2, 3)], known=[0, 1])
    assert not graph.nodes
