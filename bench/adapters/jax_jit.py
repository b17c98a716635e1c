"""JAX, one jitted function on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.adapters.base import ArmFacts, UnavailableError

__all__ = ["JaxAdapter"]


class JaxAdapter:
    """``jax.jit`` of the zoo's function, parameters closed over, device arrays in and out, waited for with ``block_until_ready``.

    No option holds JAX to a number of threads on a CPU; the worker's affinity does.
    """

    def load(self, model: str, graphs: str, threads: int) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        start = time.perf_counter_ns()
        try:
            import jax
        except ImportError as error:
            raise UnavailableError(f"JAX is not installed ({error}); pip install rml-exec[jax]") from error
        imported = time.perf_counter_ns()
        from exporters.models.zoo import get_model

        self._jax = jax
        function, _ = get_model(model).build()
        self._function = jax.jit(function)
        self._facts = ArmFacts(
            framework_version=jax.__version__,
            import_ms=(imported - start) / 1e6,
            load_ms=(time.perf_counter_ns() - imported) / 1e6,
            options={"mode": "jit", "platform": "cpu"},
        )

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [self._jax.device_put(array) for array in inputs.values()]

    def call(self) -> Any:
        return self._jax.block_until_ready(self._function(*self._inputs))

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        from exporters.lowering import name_outputs

        return {name: np.asarray(leaf) for name, leaf in name_outputs(result)}

    def facts(self) -> ArmFacts:
        return self._facts
