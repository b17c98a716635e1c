"""Resampling, sampling at run-time positions and putting windows together, against ONNX's reference implementation and ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from exporters.errors import UnsupportedOperatorsError
from tests.exporters.from_onnx.onnx_support import check, i64, imported, normal, run

IMAGE = normal(1, 2, 5, 6)


def f32(*elements: float) -> np.ndarray:
    return np.array(elements, np.float32)


@pytest.mark.parametrize("coord", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("scales", "sizes"),
    [(None, (1, 2, 9, 4)), (None, (1, 2, 3, 13)), ((1, 1, 2, 0.5), None), ((1, 1, 0.6, 1.7), None), ((1, 2, 1, 3), None)],
)
def test_resize(coord: str, mode: str, scales: tuple[float, ...] | None, sizes: tuple[int, ...] | None) -> None:
    """Also of the channels, and with scales that give no whole size."""
    inputs = [IMAGE, None, None if scales is None else f32(*scales), None if sizes is None else i64(*sizes)]
    check("Resize", inputs, known=[2, 3], mode=mode, coordinate_transformation_mode=coord, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("coord", ["half_pixel", "align_corners", "half_pixel_symmetric"])
@pytest.mark.parametrize("sizes", [(3, 4), (2, 11)])
def test_antialias(mode: str, exclude_outside: int, coord: str, sizes: tuple[int, int]) -> None:
    attrs = {"mode": mode, "exclude_outside": exclude_outside, "coordinate_transformation_mode": coord, "axes": [2, 3]}
    check("Resize", [IMAGE, None, None, i64(*sizes)], known=[3], antialias=1, rtol=1e-4, atol=1e-5, **attrs)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(7, 8), (3, 9), (4, 4)])
def test_the_aspect_ratio_is_kept(policy: str, sizes: tuple[int, int]) -> None:
    attrs = {"keep_aspect_ratio_policy": policy, "mode": "linear", "axes": [2, 3]}
    check("Resize", [IMAGE, None, None, i64(*sizes)], known=[3], rtol=1e-4, atol=1e-5, **attrs)


@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("sizes", [(10, 3), (2, 12)])
def test_nearest_modes(nearest_mode: str, sizes: tuple[int, int]) -> None:
    for x in (IMAGE, (IMAGE * 50).astype(np.int8)):
        check("Resize", [x, None, None, i64(1, 2, *sizes)], known=[3], mode="nearest", nearest_mode=nearest_mode)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_region_is_cropped_and_resized(mode: str) -> None:
    roi = f32(0, 0, 0.3, -0.2, 1, 1, 0.9, 1.3)
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5, "mode": mode}
    check("Resize", [IMAGE, roi, None, i64(1, 2, 4, 7)], known=[1, 3], rtol=1e-4, atol=1e-5, **attrs)
    with pytest.raises(UnsupportedOperatorsError, match="roi depends on the inputs"):
        imported("Resize", [IMAGE, roi, None, i64(1, 2, 4, 7)], known=[3], **attrs)


def test_an_image_with_channels_last_is_one_resize() -> None:
    x = normal(1, 5, 6, 3)
    for sizes in ((1, 9, 4, 3), (1, 5, 12, 3)):
        graph = check("Resize", [x, None, None, i64(*sizes)], known=[3], mode="linear", rtol=1e-4, atol=1e-5)
        assert [node.op for node in graph.nodes] == ["resize"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.5, 1.5), (1, 1, 0.6, 0.6)])
def test_upsample_and_the_first_resize(mode: str, scales: tuple[float, ...]) -> None:
    """Until opset 10 nearest takes the element behind where an axis becomes smaller, per axis."""
    check("Resize", [IMAGE, f32(*scales)], known=[1], mode=mode, opset=10, peer="ort", rtol=1e-4, atol=1e-5)
    if min(scales) >= 1:
        check("Upsample", [IMAGE, f32(*scales)], known=[1], mode=mode, opset=9, peer="ort", rtol=1e-4, atol=1e-5)
        check("Upsample", [IMAGE], scales=[float(scale) for scale in scales], mode=mode, opset=7, peer="ort", rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coord", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "floor", "ceil", "round_prefer_floor"])
def test_scales_count_in_single_precision(coord: str, mode: str) -> None:
    """10 * 0.7 is 7, and at 0.6 element 3 is at 5: in float64 both fall short of that."""
    attrs = {"mode": "linear"} if mode == "linear" else {"mode": "nearest", "nearest_mode": mode}
    for scale, size in itertools.product((0.7, 0.6, 0.3, 1.7, 4 / 3), (7, 10, 20, 35, 100)):
        if coord == "align_corners" and abs(scale * size - round(scale * size)) > 1e-4:
            continue  # ONNX's definition counts parts of an element there, ONNX Runtime does not
        x = normal(1, 1, 2, size, seed=size)
        check("Resize", [x, None, f32(1, 1, 1, scale)], known=[2], peer="ort", coordinate_transformation_mode=coord, atol=1e-4, **attrs)


def test_a_resize_at_a_fraction_is_one_node() -> None:
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    graph = check("Resize", [IMAGE, None, f32(1, 1, 0.6, 4 / 3)], known=[2], peer="ort", **attrs)
    assert [(node.op, node.attrs["scales"]) for node in graph.nodes] == [("resize", (0.6, 4 / 3))]


def test_integers_are_resized_in_floats() -> None:
    x = np.arange(24, dtype=np.uint8).reshape(1, 1, 4, 6) * 10
    (y,) = run(imported("Resize", [x, None, None, i64(1, 1, 8, 12)], known=[3], mode="linear"), [x])
    (want,) = run(
        imported("Resize", [x.astype(np.float32), None, None, i64(1, 1, 8, 12)], known=[3], mode="linear"), [x.astype(np.float32)]
    )
    np.testing.assert_array_equal(y, want.astype(np.uint8))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    """Also of points far outside, and on volumes."""
    attrs: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": corners, "rtol": 1e-4, "atol": 1e-5}
    check("GridSample", [normal(2, 3, 4, 5), normal(2, 3, 7, 2, seed=1) * 2], **attrs)
    check("GridSample", [normal(1, 2, 3, 4, 5), normal(1, 2, 3, 2, 3, seed=1)], **attrs)


def test_grid_sample_before_opset_20() -> None:
    for mode in ("bilinear", "bicubic", "nearest"):
        check("GridSample", [normal(1, 3, 4, 5), normal(1, 3, 7, 2, seed=1)], mode=mode, opset=16, peer="ort", rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 4, 5)])
def test_affine_grid(corners: int, size: tuple[int, ...]) -> None:
    rank = len(size) - 2
    check("AffineGrid", [normal(2, rank, rank + 1), i64(*size)], known=[1], align_corners=corners)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, transformation: str) -> None:
    """Regions that leave the image, and one of no size."""
    x = normal(2, 3, 8, 9)
    rois = np.array([[0, 0, 8, 7], [2.3, 1.1, 5.7, 6.2], [-4, -3, 12, 20], [3, 3, 3, 3]], np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": transformation, "output_height": 2, "output_width": 3}
    check("RoiAlign", [x, rois, i64(0, 1, 1, 0)], sampling_ratio=2, spatial_scale=0.75, opset=16, peer="ort", **attrs)
    with pytest.raises(UnsupportedOperatorsError, match="sampling_ratio 0"):
        imported("RoiAlign", [x, rois, i64(0, 1, 1, 0)], sampling_ratio=0, **attrs)


def test_roi_align_before_opset_16() -> None:
    inputs = [normal(1, 2, 6, 6), np.array([[1, 1, 1.2, 4]], np.float32), i64(0)]
    check("RoiAlign", inputs, sampling_ratio=3, output_height=2, output_width=2, opset=10, peer="ort")


def test_max_roi_pool() -> None:
    rois = np.array([[0, 0, 0, 7, 6], [1, 2, 1, 5, 6], [1, 6, 5, 20, 12], [0, 3, 3, 3, 3], [0, 12, 12, 15, 15]], np.float32)
    for scale in (1.0, 0.5):
        check("MaxRoiPool", [normal(2, 3, 8, 9), rois], pooled_shape=[2, 3], spatial_scale=scale, opset=20, peer="ort")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("offset_groups", [1, 2])
@pytest.mark.parametrize("mask", [True, False])
def test_deform_conv(groups: int, offset_groups: int, mask: bool) -> None:
    x, w = normal(2, 4, 6, 7), normal(6, 4 // groups, 3, 2, seed=1)
    offset = normal(2, offset_groups * 6 * 2, 3, 8, seed=2)
    inputs = [x, w, offset, normal(6, seed=3), normal(2, offset_groups * 6, 3, 8, seed=4) if mask else None]
    attrs = {
        "group": groups,
        "offset_group": offset_groups,
        "kernel_shape": [3, 2],
        "strides": [2, 1],
        "pads": [1, 1, 1, 2],
        "dilations": [1, 2],
    }
    check("DeformConv", inputs, rtol=1e-4, atol=1e-5, **attrs)


def test_max_unpool() -> None:
    x, places = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), i64(5, 7, 13, 15).reshape(1, 1, 2, 2)
    check("MaxUnpool", [x, places], kernel_shape=[2, 2], strides=[2, 2])
    check("MaxUnpool", [x, places, i64(1, 1, 5, 6)], known=[2], kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize(
    ("image", "block", "columns", "attrs"),
    [
        ((5, 5), (2, 3), 12, {}),
        ((5, 5), (3, 3), 25, {"pads": [1, 1, 1, 1]}),
        ((6, 7), (2, 2), 9, {"strides": [2, 3], "pads": [0, 1, 0, 1]}),
        ((6, 6), (2, 2), 16, {"dilations": [2, 2]}),
        ((4, 4, 4), (2, 2, 2), 8, {"strides": [2, 2, 2]}),
    ],
)
def test_col2im(image: tuple[int, ...], block: tuple[int, ...], columns: int, attrs: dict[str, Any]) -> None:
    rows = 2 * int(np.prod(block))
    check("Col2Im", [normal(2, rows, columns), i64(*image), i64(*block)], known=[1, 2], peer="ort", **attrs)
