"""The temporary folder of a measurement. A supervisor that is killed leaves its own behind; the next one takes it away."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_folder"]

_PREFIX = "bench_frameworks.scratch."
_SETTLED_S = 60.0
"""A folder younger than this may not be locked yet."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the length of the block, after those of supervisors that are gone have been removed.

    It is locked while it is in use: a lock ends with its process, however that ends, and tells processes of other containers apart as well.
    """
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        lock = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _sweep(directory: Path) -> None:
    for folder in directory.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone already, or somebody else's
            continue
        try:
            facts = os.fstat(handle)
            if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > _SETTLED_S:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # in use
            pass
        finally:
            os.close(handle)
