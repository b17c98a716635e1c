"""OpenVINO, one compiled model on the CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.framework import cache_directory
from bench.adapters.onnx_graph import OnnxAdapter

__all__ = ["OpenVinoAdapter"]

_TUNED = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
_REPORTED = ("PERFORMANCE_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING", "INFERENCE_PRECISION_HINT")


class OpenVinoAdapter(OnnxAdapter):
    """A model compiled for the device ``CPU``, one infer request.

    Tuned: the hint ``LATENCY``, one stream of as many threads as granted, float32 held to (the default is bfloat16 or float16 where the CPU
    has it), no pinning (the worker is pinned, and OpenVINO would pin by core numbers of the whole machine), input tensors set once and shared,
    outputs shared. Installed: the defaults, NumPy arrays in and out.

    Telemetry is opted out of as its documentation has it, by the file that ``opt_in_out --opt_out`` writes, in a home directory of the
    worker's own: that of the user is not ours to write to.
    """

    framework = "OpenVINO"

    def start(self) -> str:
        self._cache = Path(cache_directory())
        consent = self._cache / "home" / "intel" / "openvino_telemetry"
        consent.parent.mkdir(parents=True, exist_ok=True)
        consent.write_text("0")
        os.environ["HOME"] = str(self._cache / "home")
        import openvino

        self._openvino = openvino
        self._config = {**_TUNED, "INFERENCE_NUM_THREADS": self.threads} if self.tuned else {}
        return str(openvino.__version__).partition("-")[0]

    def build(self, model: str, prefix: Path) -> None:
        begin = time.perf_counter_ns()
        super().build(model, prefix)
        self._compile_ms = (time.perf_counter_ns() - begin) / 1e6

    def compile(self, path: Path) -> Any:
        return self._openvino.Core().compile_model(str(path), "CPU", self._config)

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        """Compilation is what loading took; the cache is filled here, and used once."""
        self._config["CACHE_DIR"] = str(self._cache / "models")
        times = []
        for _ in range(2):
            begin = time.perf_counter_ns()
            self.compile(self._path)
            times.append((time.perf_counter_ns() - begin) / 1e6)
        del self._config["CACHE_DIR"]
        return self._compile_ms, times[1]

    def options(self) -> dict[str, Any]:
        found = {name: self.model.get_property(name) for name in _REPORTED}
        known = {name: value if isinstance(value, (bool, int, str)) else _plain(value) for name, value in found.items()}
        return {
            "device": "CPU",
            "build": self._openvino.__version__,
            **known,
            "shared": self.tuned,
            "onnx_file": self._path.name,
            "telemetry": "opted out",
        }

    def request(self, model: Any, inputs: list[np.ndarray]) -> Any:
        request = model.create_infer_request()
        if not self.tuned:
            return request, inputs
        for number, array in enumerate(inputs):
            request.set_input_tensor(number, self._openvino.Tensor(array, shared_memory=True))
        return request, None

    def run(self, request: Any) -> Any:
        infer_request, inputs = request
        return infer_request.infer(inputs, share_inputs=self.tuned, share_outputs=self.tuned)

    def arrays(self, result: Any) -> list[np.ndarray]:
        return [np.array(result[number]) for number in range(len(result))]


def _plain(value: Any) -> str:
    """Returns the name of a property's value: ``f32`` of a type, ``LATENCY`` of an enumeration."""
    return value.get_type_name() if hasattr(value, "get_type_name") else getattr(value, "name", str(value))
