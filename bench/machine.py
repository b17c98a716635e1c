"""Facts of the machine that a reader of a table needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import rml_exec

__all__ = ["describe_machine"]

_PACKAGES = ("torch", "jax", "jaxlib", "tensorflow", "tensorflow-cpu", "onnxruntime", "openvino")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model name", "Hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


def _installed(package: str) -> str | None:
    """Returns the version of a package without importing it, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_machine() -> dict[str, Any]:
    """Returns CPU, cores granted, instruction set in use, governor, load and time at the start, system and versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": rml_exec.isa_info()["name"],
        "governor": _governor(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rml_exec": rml_exec.__version__,
        "packages": {name: version for name in _PACKAGES if (version := _installed(name)) is not None},
    }
