"""PyTorch, eager, in inference mode."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.adapters.base import ArmFacts, UnavailableError

__all__ = ["TorchAdapter"]


class TorchAdapter:
    """The zoo's own module, ``eval()``, called under ``torch.inference_mode()`` with torch tensors in and out."""

    def load(self, model: str, graphs: str, threads: int) -> None:
        start = time.perf_counter_ns()
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(f"PyTorch is not installed ({error}); pip install rml-exec[torch]") from error
        imported = time.perf_counter_ns()
        from exporters.models.zoo import get_model

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self._torch = torch
        self._module, _ = get_model(model).build()
        self._facts = ArmFacts(
            framework_version=torch.__version__,
            import_ms=(imported - start) / 1e6,
            load_ms=(time.perf_counter_ns() - imported) / 1e6,
            options={"mode": "eager", "inference_mode": True, "num_threads": torch.get_num_threads(), "num_interop_threads": 1},
        )

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [self._torch.from_numpy(array.copy()) for array in inputs.values()]

    def call(self) -> Any:
        with self._torch.inference_mode():
            return self._module(*self._inputs)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        from exporters.lowering import name_outputs

        return {name: leaf.numpy() for name, leaf in name_outputs(result)}

    def facts(self) -> ArmFacts:
        return self._facts
