"""The executor, through the library behind ``rml-graph-run``: its cells carry the same fields."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.base import ArmFacts

__all__ = ["RmlAdapter"]


class RmlAdapter:
    """``Executor.create(load_graph(prefix))``, then ``run`` with NumPy arrays in and out."""

    def load(self, model: str, graphs: str, threads: int) -> None:
        start = time.perf_counter_ns()
        import rml_exec

        imported = time.perf_counter_ns()
        self._executor = rml_exec.Executor.create(rml_exec.load_graph(Path(graphs) / model), threads=threads)
        loaded = time.perf_counter_ns()
        self._facts = ArmFacts(
            framework_version=rml_exec.__version__,
            import_ms=(imported - start) / 1e6,
            load_ms=(loaded - imported) / 1e6,
            options={"numerics": self._executor.numerics, "threads": self._executor.threads, "isa": rml_exec.isa_info()["name"]},
        )

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = dict(inputs)

    def call(self) -> Any:
        return self._executor.run(self._inputs)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return result

    def facts(self) -> ArmFacts:
        return self._facts
