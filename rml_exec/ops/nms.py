"""Non-maximum suppression with a fixed number of results."""

from __future__ import annotations

from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, Rule, case, define
from rml_exec.ops.rules import FLOATS, NO_BF16, dtype_in, same_dtype
from rml_exec.types import DType, TensorType


def _infer_nms(
    boxes: TensorType, scores: TensorType, *, max_outputs: int, iou_threshold: float, score_threshold: float | None, index_dtype: str
) -> tuple[TensorType, TensorType]:
    dtype_in(same_dtype(boxes, scores), FLOATS)
    if boxes.rank != 2 or boxes.shape[1] != 4:
        raise Rule("boxes must have the shape [n, 4]", list(boxes.shape))
    if scores.shape != boxes.shape[:1]:
        raise Rule(f"scores must have the shape [{boxes.shape[0]}]", list(scores.shape))
    if max_outputs < 0:
        raise Rule("max_outputs must be at least 0", max_outputs)
    return TensorType(DType(index_dtype), (max_outputs,)), TensorType(DType(index_dtype), ())


def _nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    *,
    max_outputs: int,
    iou_threshold: float,
    score_threshold: float | None,
    index_dtype: str,
) -> tuple[np.ndarray, np.ndarray]:
    wide = boxes.astype(np.float64)
    low, high = np.minimum(wide[:, :2], wide[:, 2:]), np.maximum(wide[:, :2], wide[:, 2:])
    areas = np.prod(high - low, 1)
    kept = ~np.isnan(scores) if score_threshold is None else scores > score_threshold
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    waiting = order[kept[order]]
    chosen: list[int] = []
    while waiting.size and len(chosen) < max_outputs:
        best, waiting = waiting[0], waiting[1:]
        chosen.append(int(best))
        sides = np.minimum(high[waiting], high[best]) - np.maximum(low[waiting], low[best])
        shared = np.prod(np.maximum(sides, 0), 1)
        # Cross-multiplied: two boxes without area, whose ratio is 0/0, do not suppress each other.
        waiting = waiting[~(shared > iou_threshold * (areas[waiting] + areas[best] - shared))]
    target = DType(index_dtype).numpy
    indices = np.full(max_outputs, -1, target)
    indices[: len(chosen)] = chosen
    return indices, np.asarray(len(chosen), target)


def _attrs(max_outputs: int, iou_threshold: float = 0.5, score_threshold: float | None = None, index_dtype: str = "i64") -> dict[str, Any]:
    return {"max_outputs": max_outputs, "iou_threshold": iou_threshold, "score_threshold": score_threshold, "index_dtype": index_dtype}


_BOXES = np.array([[0, 0, 2, 2], [0, 1, 2, 3], [5, 5, 6, 6], [2, 2, 0, 0], [0, 0, 2, 1], [7, 7, 7, 7], [7, 7, 7, 7]], np.float32)
_SCORES = np.array([0.9, 0.9, 0.1, 0.8, np.nan, 0.25, 0.375], np.float32)

define(
    name="nms",
    inputs=("boxes", "scores"),
    outputs=("indices", "count"),
    attrs={
        "max_outputs": Attr("int"),
        "iou_threshold": Attr("float"),
        "score_threshold": Attr("float", optional=True),
        "index_dtype": Attr("str", ("i32", "i64")),
    },
    infer=_infer_nms,
    reference=_nms,
    limits=NO_BF16,
    cases=(
        case("strict", _BOXES, _SCORES, **_attrs(7, 1 / 3)),
        case("scores", _BOXES, _SCORES, **_attrs(5, 0.3, 0.25)),
        case("few", _BOXES, _SCORES, **_attrs(1, index_dtype="i32")),
        case("none", _BOXES, _SCORES, **_attrs(0)),
        case("no-boxes", (0, 4), (0,), **_attrs(3)),
        case("many", (65, 4), (65,), **_attrs(33)),
        case("f64", TensorType(DType.F64, (7, 4)), TensorType(DType.F64, (7,)), **_attrs(5)),
    ),
    doc="indices = the boxes that stay, best score first, when each box that stays removes every later one whose intersection over union with "
    "it is above iou_threshold; count = how many, at most max_outputs; the places behind them hold -1. Both comparisons are strict: a box "
    "at exactly the threshold stays (torch, tf, ONNX), a score at exactly score_threshold does not. Among equal scores the lowest index "
    "comes first; a NaN score is never taken. A box is two opposite corners, in either order. The overlap is computed in float64.",
)
