"""What an arm of the comparison is to its worker. One file per arm; a framework is imported inside its own adapter, in its own process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np  # not before a worker has pinned itself: NumPy's BLAS sizes its pool by the mask

__all__ = ["ARMS", "Adapter", "Arm", "ArmFacts", "UnavailableError", "make_adapter"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One column of the table.

    Attributes:
        adapter: ``module:class`` of its adapter.
        runs: the frameworks whose models it can run.
    """

    adapter: str
    runs: tuple[str, ...]


ARMS: dict[str, Arm] = {
    "rml": Arm("bench.adapters.rml:RmlAdapter", ("torch", "jax", "tf")),
    "torch": Arm("bench.adapters.torch_eager:TorchAdapter", ("torch",)),
    "jax": Arm("bench.adapters.jax_jit:JaxAdapter", ("jax",)),
    "tf": Arm("bench.adapters.tf_function:TensorFlowAdapter", ("tf",)),
}
"""Every arm by name, in the order of the table's columns."""


class UnavailableError(Exception):
    """Something that this machine lacks: an arm's framework, the libraries of the table; the message says what, and what to do."""


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """What an arm tells about itself once it is loaded.

    Attributes:
        framework_version: version of the framework.
        import_ms: time of its import.
        load_ms: time from then until the model is ready to be called.
        options: how it was set up, for the reader who wants to repeat it; JSON values.
    """

    framework_version: str
    import_ms: float
    load_ms: float
    options: dict[str, Any] = field(default_factory=dict)


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
        """Takes the inputs, in the order of the model's parameters, and converts them to what the framework likes best; not timed."""

    def call(self) -> Any:
        """Runs the model once on the bound inputs and returns when the result is there. The first call traces and compiles."""

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        """Returns a call's result by output name, as NumPy arrays."""

    def facts(self) -> ArmFacts:
        """Returns what there is to say about the arm, after ``load``."""


def make_adapter(target: str) -> Adapter:
    """Returns a new adapter of the class at ``module:class``."""
    module, _, cls = target.partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), cls)()
    return adapter
