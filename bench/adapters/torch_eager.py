"""PyTorch, eager."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.framework import FrameworkAdapter, build_model

__all__ = ["TorchAdapter"]


class TorchAdapter(FrameworkAdapter):
    """The zoo's own module, ``eval()``, with torch tensors in and out.

    Tuned: under ``torch.inference_mode()``, as many threads as granted, float32 products in float32, and weights and pictures
    ``channels_last``, all as PyTorch's performance tuning guide has it. Installed: called, and nothing else.
    """

    framework = "PyTorch"
    extra = "torch"

    def start(self) -> str:
        import torch

        self._torch = torch
        if self.tuned:
            torch.set_num_threads(self.threads)
            torch.set_num_interop_threads(1)
            torch.set_float32_matmul_precision("highest")
        return str(torch.__version__)

    def build(self, model: str, prefix: Path) -> None:
        self._module = build_model(model)
        self._pictures = False
        if self.tuned and isinstance(self._module, self._torch.nn.Module):
            self._pictures = any(isinstance(layer, self._torch.nn.Conv2d) for layer in self._module.modules())
            if self._pictures:
                self._module = self._module.to(memory_format=self._torch.channels_last)

    def options(self) -> dict[str, Any]:
        torch = self._torch
        return {
            "mode": "eager",
            "inference_mode": self.tuned,
            "channels_last": self._pictures,
            "num_threads": torch.get_num_threads(),
            "num_interop_threads": torch.get_num_interop_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        tensors = [self._torch.from_numpy(array.copy()) for array in inputs.values()]
        last = self._torch.channels_last
        self._inputs = [one.contiguous(memory_format=last) if self._pictures and one.dim() == 4 else one for one in tensors]

    def call(self) -> Any:
        with self._mode():
            return self._module(*self._inputs)

    def _mode(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.inference_mode() if self.tuned else contextlib.nullcontext()

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        from exporters.lowering import name_outputs

        return {name: leaf.detach().numpy() for name, leaf in name_outputs(result)}

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        with self._mode():
            return self.make_linear(w)(self._torch.from_numpy(x)).detach().numpy()

    def make_linear(self, w: np.ndarray) -> Any:
        """Returns a module that multiplies by a matrix [in, out]."""
        layer = self._torch.nn.Linear(*w.shape, bias=False).eval()
        with self._torch.no_grad():
            layer.weight.copy_(self._torch.from_numpy(w.T.copy()))
        return layer
