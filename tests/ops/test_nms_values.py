"""Non-maximum suppression: strict comparisons, ties, and boxes without area."""

from __future__ import annotations

import numpy as np

from rml_exec.ops import get_op

BOXES = [[0, 0, 2, 2], [0, 1, 2, 3], [0, 0, 2, 1]]  # 0 and 1 share 2 of 6, 0 and 2 share 2 of 4, 1 and 2 touch


def nms(boxes, scores, iou_threshold, score_threshold=None, max_outputs=4):
    attrs = {"max_outputs": max_outputs, "iou_threshold": iou_threshold, "score_threshold": score_threshold, "index_dtype": "i64"}
    indices, count = get_op("nms").run_reference([np.asarray(boxes, np.float64), np.asarray(scores, np.float64)], attrs)
    assert list(indices[count:]) == [-1] * (max_outputs - count)
    return list(indices[:count])


def test_a_box_at_the_threshold_stays():
    assert nms(BOXES, [0.9, 0.8, 0.7], 0.5) == [0, 1, 2]
    assert nms(BOXES, [0.9, 0.8, 0.7], 0.49) == [0, 1]
    assert nms(BOXES, [0.9, 0.8, 0.7], 0.3) == [0]
    assert nms(BOXES, [0.9, 0.8, 0.95], 0.3) == [2, 1]  # 2 removes 0, which can then not remove 1


def test_scores_at_the_threshold_and_nan_are_left_out():
    apart = [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert nms(apart, [0.5, 0.9, np.nan], 0.5, 0.5) == [1]
    assert nms(apart, [0.5, np.inf, np.nan], 0.5) == [1, 0]
    assert nms(apart, [0.5, 0.5, 0.5], 0.5) == [0, 1, 2]
    assert nms(apart, [0.5, 0.6, 0.7], 0.5, max_outputs=2) == [2, 1]


def test_corners_in_either_order_and_boxes_without_area():
    assert nms([[0, 0, 2, 2], [2, 2, 0, 0]], [0.5, 0.6], 0.5) == [1]
    assert nms([[7, 7, 7, 7], [7, 7, 7, 7]], [0.5, 0.6], 0.5) == [1, 0]
