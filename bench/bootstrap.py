"""Starts a worker under another interpreter: ``PYTHON -P bench/bootstrap.py ROOT NATIVE ARGUMENTS``.

ROOT holds the supervisor's ``bench`` and ``exporters``, and may be a directory full of packages for the supervisor's interpreter, of which an arm
must see none: whoever compares two versions of a framework means those that their interpreters have. So it is no entry of ``sys.path``. The
executor comes from there only if the interpreter has none of its own, with NATIVE, the file of its extension, whatever Python that was built for:
it keeps to the stable interface.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["Extension", "Packages"]


class Packages(importlib.abc.MetaPathFinder):
    """Finds some packages in a directory, and nothing else there."""

    def __init__(self, root: str, names: Sequence[str]) -> None:
        self._root, self._names = root, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(fullname, [self._root]) if path is None and fullname in self._names else None


class Extension(importlib.abc.MetaPathFinder):
    """Finds one extension module in its file, where the package that it belongs to has none."""

    def __init__(self, name: str, file: str) -> None:
        self._name, self._file = name, file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(fullname, self._file) if fullname == self._name and self._file else None


if __name__ == "__main__":
    root, native = sys.argv.pop(1), sys.argv.pop(1)
    sys.meta_path.insert(0, Packages(root, ("bench", "exporters")))
    sys.meta_path += [Packages(root, ("rml_exec",)), Extension("rml_exec._native", native)]
    from bench.worker import main

    sys.exit(main())
