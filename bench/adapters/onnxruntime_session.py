"""ONNX Runtime, one session on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.onnx_graph import OnnxAdapter

__all__ = ["OnnxRuntimeAdapter"]


class OnnxRuntimeAdapter(OnnxAdapter):
    """An ``InferenceSession`` of the CPU provider.

    Tuned: as many threads within an operator as granted, one operator at a time, all graph optimisations, and inputs bound once
    (``IOBinding``); threads spin while they wait, which is the default and best for latency. Installed: the defaults, NumPy arrays in and out.
    """

    framework = "ONNX Runtime"

    def start(self) -> str:
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        import onnxruntime

        self._ort = onnxruntime
        return str(onnxruntime.__version__)

    def compile(self, path: Path) -> Any:
        options = self._ort.SessionOptions()
        if self.tuned:
            options.intra_op_num_threads = self.threads
            options.inter_op_num_threads = 1
            options.execution_mode = self._ort.ExecutionMode.ORT_SEQUENTIAL
            options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        return self._ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def options(self) -> dict[str, Any]:
        options = self.model.get_session_options()
        return {
            "providers": self.model.get_providers(),
            "intra_op_num_threads": options.intra_op_num_threads,
            "inter_op_num_threads": options.inter_op_num_threads,
            "execution_mode": options.execution_mode.name,
            "graph_optimization_level": options.graph_optimization_level.name,
            "io_binding": self.tuned,
            "onnx_file": self._path.name,
            "ORT_DISABLE_TELEMETRY": os.environ["ORT_DISABLE_TELEMETRY"],
        }

    def request(self, model: Any, inputs: list[np.ndarray]) -> Any:
        names = [entry.name for entry in model.get_inputs()]
        if not self.tuned:
            return model, dict(zip(names, inputs, strict=True))
        binding = model.io_binding()
        for name, array in zip(names, inputs, strict=True):
            binding.bind_ortvalue_input(name, self._ort.OrtValue.ortvalue_from_numpy(array))
        for output in model.get_outputs():
            binding.bind_output(output.name, "cpu")
        return model, binding

    def run(self, request: Any) -> Any:
        model, fed = request
        if not self.tuned:
            return model.run(None, fed)
        model.run_with_iobinding(fed)
        return fed.get_outputs()

    def arrays(self, result: Any) -> list[np.ndarray]:
        return [one.numpy() if self.tuned else np.asarray(one) for one in result]
