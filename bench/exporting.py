"""Exports the models that are missing, each framework's in one process of its own, so that the supervisor never imports a framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.own_models import OwnModel
from bench.processes import child_environment, die_with_parent
from exporters.bundle import is_finished
from exporters.models.zoo import ZooModel

__all__ = ["ExportFailure", "export_missing"]

_COMMAND = (sys.executable, "-P", "-m", "exporters")
_UNAVAILABLE = 5


@dataclass(frozen=True, slots=True)
class ExportFailure:
    """Why a model could not be exported.

    Attributes:
        status: ``unavailable`` if its framework is not installed, else ``failed``.
        reason: one sentence.
    """

    status: str
    reason: str


def export_missing(
    models: Sequence[ZooModel | OwnModel],
    graphs: Path,
    *,
    timeout_s: float,
    progress: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = _COMMAND,
) -> dict[str, ExportFailure]:
    """Exports what is not there, half-written, or of other weights than its golden, and returns the models for which that failed.

    Args:
        models: what is needed.
        graphs: directory to fill.
        timeout_s: longest time for one model.
        progress: told what is being done.
        command: how to call ``python -m exporters``.
    """
    missing: dict[str, list[str]] = {}
    failures: dict[str, ExportFailure] = {}
    for model in models:
        if isinstance(model, OwnModel):
            if model.export and (failure := _export_own(model, graphs, timeout_s, progress, command)) is not None:
                failures[model.name] = failure
        elif not is_finished(graphs / model.name):
            missing.setdefault(model.framework, []).append(model.name)
    for names in missing.values():
        pending = names
        while pending:  # a crash takes the models behind it down with it: they get another process
            progress(f"exporting {', '.join(pending)}")
            code, lines = _run([*command, "--models", ",".join(pending), "--out", str(graphs)], timeout_s * len(pending))
            blamed = False
            remaining: list[str] = []
            for name in pending:
                if is_finished(graphs / name):
                    continue
                own = next((line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")), None)
                if own is not None:
                    failures[name] = ExportFailure("unavailable" if code == _UNAVAILABLE else "failed", own)
                elif not blamed:
                    failures[name] = ExportFailure("failed", f"the export ended with exit code {code}{': ' + lines[-1] if lines else ''}")
                    blamed = True
                else:
                    remaining.append(name)
            pending = remaining
    return failures


def _export_own(
    model: OwnModel, graphs: Path, timeout_s: float, progress: Callable[[str], None], command: Sequence[str]
) -> ExportFailure | None:
    """Exports a model that may have changed since it was last exported; returns why that failed, or None."""
    progress(f"exporting {model.name}")
    prefix = graphs / model.name
    prefix.parent.mkdir(parents=True, exist_ok=True)
    code, lines = _run([*command, *model.export, "--out", str(prefix)], timeout_s)
    if code == 0 and is_finished(prefix):
        return None
    reason = lines[-1] if lines else f"the export ended with exit code {code}"
    return ExportFailure("unavailable" if code == _UNAVAILABLE else "failed", reason.removeprefix(f"{prefix.name}: "))


def _run(command: Sequence[str], timeout_s: float) -> tuple[int, list[str]]:
    """Returns exit code and lines of standard error; 124, as of ``timeout``, if it took too long."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            env=child_environment(),
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        code, text = done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = 124, (error.stderr or b"") + f"\nit took more than {timeout_s:g} s".encode()
    return code, text.decode(errors="replace").strip().splitlines()
