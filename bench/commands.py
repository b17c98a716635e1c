"""The commands beside the measurement itself: ``bench_frameworks NAME ...``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "find_command"]

COMMANDS: dict[str, str] = {
    "profile": "bench.profile_model:main",
    "report": "bench.report:main",
    "compare": "bench.compare:main",
    "bundle": "bench.bundle:bundle_main",
    "verify-bundle": "bench.bundle:verify_main",
}
"""Name -> ``module:main``; ``main`` takes the arguments after the name and returns the exit code. Imported when called, not before."""


def find_command(arguments: Sequence[str]) -> Callable[[Sequence[str]], int] | None:
    """Returns the command that the first argument names, None if it names none."""
    if not arguments or arguments[0] not in COMMANDS:
        return None
    module, _, name = COMMANDS[arguments[0]].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), name)
    return command
