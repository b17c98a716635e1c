"""What an arm of the comparison is to its worker. One file per arm; a framework is imported inside its own adapter, in its own process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np  # not before a worker has pinned itself: NumPy's BLAS sizes its pool by the mask

__all__ = ["ARMS", "Adapter", "Arm", "ArmFacts", "UnavailableError", "find_arm", "interpreter_of", "make_adapter"]

_ALL = ("torch", "jax", "tf", "file")


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
    "rml": Arm("bench.adapters.rml:RmlAdapter", _ALL),
    "rml-exact": Arm("bench.adapters.rml_exact:RmlExactAdapter", _ALL),
    "torch": Arm("bench.adapters.torch_eager:TorchAdapter", ("torch",)),
    "torch-compile": Arm("bench.adapters.torch_compile:TorchCompileAdapter", ("torch",)),
    "jax": Arm("bench.adapters.jax_jit:JaxAdapter", ("jax",)),
    "tf": Arm("bench.adapters.tf_function:TensorFlowAdapter", ("tf",)),
    "tf-xla": Arm("bench.adapters.tf_xla:TensorFlowXlaAdapter", ("tf",)),
    "onnxruntime": Arm("bench.adapters.onnxruntime_session:OnnxRuntimeAdapter", _ALL),
    "openvino": Arm("bench.adapters.openvino_model:OpenVinoAdapter", _ALL),
}
"""Every arm by name, in the order of the table's columns."""


def find_arm(name: str) -> Arm:
    """Returns the arm of a name such as ``onnxruntime`` or ``onnxruntime@/path/to/python``.

    Raises:
        KeyError: there is none.
    """
    return ARMS[name.partition("@")[0]]


def interpreter_of(name: str) -> str | None:
    """Returns the path of the interpreter that a name asks for, such as that of ``onnxruntime@/path/to/python``; None for this one."""
    return name.partition("@")[2] or None


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
        rss_after_import_bytes: resident memory after the import.
        rss_after_load_bytes: resident memory once the model is ready to be called.
    """

    framework_version: str
    import_ms: float
    load_ms: float
    options: dict[str, Any] = field(default_factory=dict)
    rss_after_import_bytes: int | None = None
    rss_after_load_bytes: int | None = None


class Adapter(Protocol):
    """One arm. The worker calls ``load`` and ``bind``, then ``call`` many times, ``outputs`` now and then, and the others in between.

    :class:`bench.adapters.framework.FrameworkAdapter` has all of it but what differs from arm to arm.
    """

    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        """Imports the framework, and makes the model ready to be called with ``threads`` threads.

        Args:
            model: name of an exported model.
            graphs: directory of the exported models.
            threads: threads to use.
            setup: one of :data:`bench.records.SETUPS`.

        Raises:
            UnavailableError: the framework, or something it needs, is not installed.
        """

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Takes the inputs, in the order of the model's parameters, and converts them to what the framework likes best; not timed."""

    def call(self) -> Any:
        """Runs the model once on the bound inputs and returns when the result is there. The first call traces and compiles."""

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        """Returns a call's result by output name, as NumPy arrays that the next call does not overwrite; called before it."""

    def facts(self) -> ArmFacts:
        """Returns what there is to say about the arm, after the first call."""

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        """Returns what compilation took, in ms, with the caches on disk empty and with them filled; called once, after the first call.

        None where the arm does not compile as it runs, or keeps nothing on disk.

        Args:
            first_call_ms: time of the first call.
        """

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Returns ``x @ w`` of float32 matrices, computed by the framework as it is set up: the probe of :mod:`bench.probe`.

        ``w`` may be taken as a constant: it is the same in every call.
        """


def make_adapter(target: str) -> Adapter:
    """Returns a new adapter of the class at ``module:class``."""
    module, _, cls = target.partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), cls)()
    return adapter
