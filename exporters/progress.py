"""What a long export is doing: stages say so with :func:`report`, a command shows it with :func:`shown_on`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

__all__ = ["listener", "report", "shown_on"]

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def report(stage: str) -> None:
    """Tells whoever listens what is done next, such as ``tracing``."""
    if (listen := _LISTENER.get()) is not None:
        listen(stage)


@contextlib.contextmanager
def listener(listen: Callable[[str], None]) -> Iterator[None]:
    """Calls ``listen`` with every stage reported inside the ``with``."""
    token = _LISTENER.set(listen)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextlib.contextmanager
def shown_on(stream: TextIO, name: str) -> Iterator[None]:
    """Shows the stages of the export of ``name`` in one line that is wiped at the end; on a terminal only, so that logs stay clean."""
    if not stream.isatty():
        yield
        return

    def show(stage: str) -> None:
        stream.write(f"\r\x1b[K{name}: {stage} ...")
        stream.flush()

    try:
        with listener(show):
            yield
    finally:
        stream.write("\r\x1b[K")
        stream.flush()
