"""What an arm of the comparison is to its worker. One file per arm; a framework is imported inside its own adapter, in its own process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

__all__ = ["ADAPTERS", "Adapter", "UnavailableError", "make_adapter"]

ADAPTERS: dict[str, str] = {
    "rml": "bench.adapters.rml:RmlAdapter",
    "torch": "bench.adapters.torch_eager:TorchAdapter",
    "jax": "bench.adapters.jax_jit:JaxAdapter",
    "tf": "bench.adapters.tf_function:TensorFlowAdapter",
}
"""Arm -> module:class. ``rml`` runs every model; the others run the models of their own framework."""


class UnavailableError(Exception):
    """The arm cannot run here; the message says why and what to do."""


class Adapter(Protocol):
    """One arm. The worker calls the methods in this order: ``load``, ``bind``, then ``call`` many times, ``outputs`` now and then."""

    def load(self, model: str, graphs: str, threads: int) -> None:
        """Imports the framework, and makes the model ready to be called with ``threads`` threads.

        Args:
            model: zoo name.
            graphs: directory of the exported models.
            threads: threads to use.

        Raises:
            UnavailableError: the framework is not installed.
        """

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Takes the inputs and converts them to what the framework likes best; not timed."""

    def call(self) -> Any:
        """Runs the model once on the bound inputs and returns when the result is there."""

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        """Returns a call's result by output name, as NumPy arrays."""

    def facts(self) -> dict[str, Any]:
        """Returns ``framework_version``, ``import_ms``, ``load_ms`` and ``options``, after ``load``."""


def make_adapter(name: str) -> Adapter:
    """Returns a new adapter of an arm."""
    module, _, cls = ADAPTERS[name].partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), cls)()
    return adapter
