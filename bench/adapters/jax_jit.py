"""JAX, one jitted function on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.framework import CompilingAdapter, build_model, cache_directory

__all__ = ["JaxAdapter"]


class JaxAdapter(CompilingAdapter):
    """``jax.jit`` of the zoo's function, parameters closed over, device arrays in and out, waited for with ``block_until_ready``.

    No option holds JAX to a number of threads on a CPU; the worker's affinity does. Tuned: products in the highest precision, and the
    persistent compilation cache, which shows in the times of compilation alone.
    """

    framework = "JAX"
    extra = "jax"

    def start(self) -> str:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        self._jax = jax
        self.keeps_cache = self.tuned
        if self.tuned:
            jax.config.update("jax_default_matmul_precision", "highest")
            jax.config.update("jax_compilation_cache_dir", cache_directory())
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        return str(jax.__version__)

    def build(self, model: str, prefix: Path) -> None:
        self._function = self._jax.jit(build_model(model))

    def options(self) -> dict[str, Any]:
        precision = self._jax.config.jax_default_matmul_precision
        return {"mode": "jit", "platform": "cpu", "default_matmul_precision": precision, "compilation_cache": self.keeps_cache}

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [self._jax.device_put(array) for array in inputs.values()]

    def call(self) -> Any:
        return self._jax.block_until_ready(self._function(*self._inputs))

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        from exporters.lowering import name_outputs

        return {name: np.asarray(leaf) for name, leaf in name_outputs(result)}

    def forget(self) -> None:
        self._jax.clear_caches()

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.asarray(self._jax.jit(lambda left: left @ w)(x))
