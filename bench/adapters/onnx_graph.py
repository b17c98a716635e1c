"""What the arms that run the exported graph as an ONNX file have in common."""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.framework import FrameworkAdapter

__all__ = ["OnnxAdapter"]


class OnnxAdapter(FrameworkAdapter):
    """Runs the graph that ``rml`` runs, through :mod:`exporters.to_onnx`, so that it stands beside a model of any framework.

    Each thread that calls has a request of its own: what holds the inputs and outputs of one call.
    """

    extra = "peers"

    def prepare(self, prefix: Path) -> None:
        from bench.onnx_cache import model_file
        from rml_exec.ir.format import model_paths

        self._graphs, self._path = prefix.parent, model_file(prefix)
        self._names = [entry["name"] for entry in json.loads(model_paths(prefix).graph.read_bytes())["outputs"]]

    def build(self, model: str, prefix: Path) -> None:
        self.model = self.compile(self._path)

    @abstractmethod
    def compile(self, path: Path) -> Any:
        """Returns the ONNX file at a path, ready to be run."""

    @abstractmethod
    def request(self, model: Any, inputs: list[np.ndarray]) -> Any:
        """Returns what :meth:`run` needs to run a model on inputs given in order."""

    @abstractmethod
    def run(self, request: Any) -> Any:
        """Runs the model and returns its result."""

    @abstractmethod
    def arrays(self, result: Any) -> list[np.ndarray]:
        """Returns the outputs in order, as arrays that the next call does not overwrite."""

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [np.array(array) for array in inputs.values()]
        self._local = threading.local()
        self._local.request = self.request(self.model, self._inputs)

    def call(self) -> Any:
        try:
            request = self._local.request
        except AttributeError:
            request = self._local.request = self.request(self.model, self._inputs)
        return self.run(request)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return dict(zip(self._names, self.arrays(result), strict=True))

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        from bench.onnx_cache import product_file

        return self.arrays(self.run(self.request(self.compile(product_file(self._graphs)), [x])))[0]
