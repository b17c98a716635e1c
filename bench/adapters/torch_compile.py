"""PyTorch, compiled by TorchInductor."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.base import UnavailableError
from bench.adapters.framework import CompilingAdapter, cache_directory
from bench.adapters.torch_eager import TorchAdapter

__all__ = ["TorchCompileAdapter"]

_REASON_CHARACTERS = 300
_SMALL = "import torch; torch.compile(lambda x: (2 * x + 1).sum(-1))(torch.ones(64, 64))"


class TorchCompileAdapter(TorchAdapter, CompilingAdapter):
    """``torch.compile`` of what :class:`TorchAdapter` calls.

    Tuned: ``freezing``, which makes weights constants and packs them, as PyTorch's documentation has it for inference on a CPU. Not
    ``max-autotune``, which measures kernels as it compiles and so takes minutes.

    What TorchInductor finds out about the machine's C++ compiler before it compiles anything, and keeps, is made once per machine and belongs
    to no model's costs.
    """

    keeps_cache = True

    def start(self) -> str:
        self._cache = os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache_directory()
        version = super().start()
        if self._needs_compiler():
            raise UnavailableError("torch.compile needs a C++ compiler, and finds none; install g++, or set CXX")
        return version

    def _needs_compiler(self) -> bool:
        from torch._inductor import exc
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except exc.InvalidCxxCompiler:
            return True
        return False

    def prepare(self, prefix: Path) -> None:
        own = f"bench_frameworks.torchinductor.{os.getuid()}.{self._torch.__version__}"
        known = Path(tempfile.gettempdir(), own)
        if not known.exists():
            with tempfile.TemporaryDirectory(prefix=own) as folder:
                filled = Path(folder, "cache")
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(filled)}
                done = subprocess.run([sys.executable, "-P", "-c", _SMALL], check=False, capture_output=True, env=environment)
                if done.returncode == 0:  # else the model will not compile either, and the row says why
                    with contextlib.suppress(OSError):  # another process was faster
                        filled.rename(known)
        if known.exists() and not os.listdir(self._cache):
            shutil.copytree(known, self._cache, dirs_exist_ok=True)

    def build(self, model: str, prefix: Path) -> None:
        super().build(model, prefix)
        self._module = self._compile(self._module)
        self._compiled = False

    def _compile(self, module: Any) -> Any:
        return self._torch.compile(module, options={"freezing": True} if self.tuned else None)

    def options(self) -> dict[str, Any]:
        from torch._dynamo.utils import counters

        breaks = sum(counters["graph_break"].values())
        return {**super().options(), "mode": "compile", "backend": "inductor", "freezing": self.tuned, "graph_breaks": breaks}

    def call(self) -> Any:
        if self._compiled:
            return super().call()
        try:
            result = super().call()
        except Exception as error:  # the compiler's exceptions quote all that it was told
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise RuntimeError(f"torch.compile: {text[:_REASON_CHARACTERS]}") from error
        self._compiled = True
        return result

    def forget(self) -> None:
        self._torch._dynamo.reset()

    def make_linear(self, w: np.ndarray) -> Any:
        return self._compile(super().make_linear(w))
