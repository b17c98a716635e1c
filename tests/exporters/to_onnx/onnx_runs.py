"""Runs ONNX models for the tests: in ONNX Runtime, or in ONNX's reference evaluator where that lacks a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = (17, NEWEST)

onnxruntime.set_default_logger_severity(4)


def run_model(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, trusted: bool = True) -> list[np.ndarray]:
    """Returns the outputs in order; bf16 goes in and out as its bits.

    ``trusted`` is false for operands that ONNX Runtime does not survive.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    if trusted and onnx.TensorProto.BFLOAT16 not in types.values():
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            return list(session.run(None, dict(inputs)))
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error) and "does not support double yet" not in str(error):
                raise
    given: dict[str, Any] = dict(inputs)
    for name, array in inputs.items():
        if types[name] == onnx.TensorProto.BFLOAT16:
            given[name] = array.view(ml_dtypes.bfloat16)
    results = map(np.asarray, ReferenceEvaluator(model).run(None, given))
    return [result.view(np.uint16) if result.dtype == ml_dtypes.bfloat16 else result for result in results]


def operators(model: onnx.ModelProto) -> list[str]:
    """Returns the operators of the main graph, in order."""
    return [node.op_type for node in model.graph.node]
