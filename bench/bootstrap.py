"""Starts a worker under another interpreter: ``PYTHON -P bench/bootstrap.py ROOT ARGUMENTS``.

ROOT holds the supervisor's ``bench`` and ``exporters``, and may be a directory full of packages for the supervisor's interpreter, of which an arm
must see none: whoever compares two versions of a framework means those that their interpreters have. So it is no entry of ``sys.path``. The
executor comes from there only if the interpreter has none of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["Packages"]


class Packages(importlib.abc.MetaPathFinder):
    """Finds some packages in a directory, and nothing else there."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self._root, self._names = root, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(fullname, [self._root]) if path is None and fullname in self._names else None


if __name__ == "__main__":
    root = sys.argv.pop(1)
    sys.meta_path.insert(0, Packages(root, ("bench", "exporters")))
    sys.meta_path.append(Packages(root, ("rml_exec",)))
    from bench.worker import main

    sys.exit(main())
