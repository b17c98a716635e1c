"""Exports the models that are missing, each framework in processes of its own, so that the supervisor never imports one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from exporters.bundle import is_finished

__all__ = ["export_missing"]


def export_missing(models: Iterable[str], graphs: Path, progress: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Exports what is not there yet and returns, for each model that could not be exported, the reason.

    Args:
        models: zoo names.
        graphs: directory to fill.
        progress: told what is being done.
    """
    failures: dict[str, str] = {}
    for model in models:
        if is_finished(graphs / model):
            continue
        progress(f"{model}: exporting")
        done = subprocess.run(
            [sys.executable, "-m", "exporters", "--models", model, "--out", str(graphs)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            failures[model] = lines[-1].removeprefix(f"{model}: ") if lines else f"export ended with exit code {done.returncode}"
    return failures
