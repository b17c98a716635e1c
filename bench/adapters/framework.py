"""What the arms have in common: the phases of loading, timed and weighed, and what they report."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.adapters.base import ArmFacts, UnavailableError
from bench.cost import resident_bytes
from bench.own_models import entry_of
from bench.processes import CACHE_VARIABLE

__all__ = ["CompilingAdapter", "FrameworkAdapter", "build_model", "cache_directory"]


class FrameworkAdapter(ABC):
    """Loads in two phases, ``start`` and ``build``.

    Attributes:
        framework: its name as its makers write it.
        extra: the extra of rml-exec that installs it; none for rml-exec itself.
        threads: threads granted.
        tuned: whether to set it up as its documentation says is best for latency on a CPU; else it is left as it comes.
    """

    framework: ClassVar[str]
    extra: ClassVar[str] = ""
    threads: int
    tuned: bool

    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        self.threads, self.tuned = threads, setup == "tuned"
        if self.tuned:
            os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "STRICT"  # half the frameworks are built on oneDNN; float32 means float32
        begin = time.perf_counter_ns()
        try:
            self._version = self.start()
        except ImportError as error:
            package = f"rml-exec[{self.extra}]" if self.extra else "rml-exec"
            raise UnavailableError(f"{self.framework} is not installed ({error}); pip install {package}") from error
        self._import_ms = (time.perf_counter_ns() - begin) / 1e6
        self._rss_after_import = resident_bytes()
        self.prepare(Path(graphs) / model)
        begin = time.perf_counter_ns()
        self.build(model, Path(graphs) / model)
        self._load_ms = (time.perf_counter_ns() - begin) / 1e6
        self._rss_after_load = resident_bytes()

    @abstractmethod
    def start(self) -> str:
        """Imports the framework, sets it up, and returns its version; raises ImportError if it is not installed."""

    def prepare(self, prefix: Path) -> None:  # noqa: B027  (most need nothing)
        """Makes files of ours that the framework reads; belongs to no phase."""

    @abstractmethod
    def build(self, model: str, prefix: Path) -> None:
        """Makes the model ready to be called.

        Args:
            model: its name in the zoo.
            prefix: path prefix of the exported model.
        """

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Returns how the arm was set up, after the first call."""

    @abstractmethod
    def bind(self, inputs: Mapping[str, np.ndarray]) -> None: ...

    @abstractmethod
    def call(self) -> Any: ...

    @abstractmethod
    def outputs(self, result: Any) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray: ...

    def facts(self) -> ArmFacts:
        return ArmFacts(
            framework_version=self._version,
            import_ms=self._import_ms,
            load_ms=self._load_ms,
            options=self.options(),
            rss_after_import_bytes=self._rss_after_import,
            rss_after_load_bytes=self._rss_after_load,
        )

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        return None, None


class CompilingAdapter(FrameworkAdapter):
    """An arm that compiles in the first call: compilation took what the first call took more than the one after it."""

    keeps_cache: bool = False
    """Whether compiled code goes into :func:`cache_directory`."""

    def forget(self) -> None:
        """Drops the compiled code of the model from memory; asked only of an arm that keeps it on disk."""

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        usual = self._timed_call()
        if not self.keeps_cache:
            return max(0.0, first_call_ms - usual), None
        self.forget()
        again = self._timed_call()
        return max(0.0, first_call_ms - usual), max(0.0, again - usual)

    def _timed_call(self) -> float:
        begin = time.perf_counter_ns()
        self.call()
        return (time.perf_counter_ns() - begin) / 1e6


def build_model(model: str) -> Any:
    """Returns the zoo's model, or what the user's build function gives.

    Raises:
        UnavailableError: a package that it is made of is not installed.
    """
    from exporters.entry import build_entry
    from exporters.errors import MissingFrameworkError
    from exporters.models.zoo import get_model

    try:
        entry = entry_of(model)
        return get_model(model).build()[0] if entry is None else build_entry(entry)[0]
    except MissingFrameworkError as error:
        raise UnavailableError(str(error)) from error


def cache_directory() -> str:
    """Returns where to keep compiled code: empty when the first worker of a cell begins; without a supervisor, until this process ends."""
    if (given := os.environ.get(CACHE_VARIABLE)) is not None:
        return given
    own = tempfile.mkdtemp(prefix="bench_frameworks.cache.")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own
