"""The executor, as ``rml-graph-run`` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.adapters.framework import FrameworkAdapter

__all__ = ["RmlAdapter"]


class RmlAdapter(FrameworkAdapter):
    """``Executor.create(load_graph(prefix))``, then ``run`` with NumPy arrays in and out."""

    framework = "rml-exec"
    numerics: ClassVar[str] = "fast"

    def start(self) -> str:
        import rml_exec

        self._rml = rml_exec
        self._executor_class, self._load_graph = rml_exec.Executor, rml_exec.load_graph  # naming them is what imports them
        return rml_exec.__version__

    def build(self, model: str, prefix: Path) -> None:
        self._executor = self._create(self._load_graph(prefix))

    def _create(self, graph: Any) -> Any:
        return self._executor_class.create(graph, threads=self.threads if self.tuned else None, numerics=self.numerics)

    def options(self) -> dict[str, Any]:
        return {"numerics": self._executor.numerics, "threads": self._executor.threads, "isa": self._rml.isa_info()["name"]}

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = dict(inputs)

    def call(self) -> Any:
        return self._executor.run(self._inputs)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return result

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        builder = self._rml.GraphBuilder("product")
        left = builder.input("x", "f32", x.shape)
        right = builder.constant(w, name="w", key="w")
        builder.output("y", builder.add("matmul", [left, right], transpose_a=False, transpose_b=False))
        return self._create(builder.build()).run({"x": x})["y"]
