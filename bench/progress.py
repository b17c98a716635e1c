"""What the user sees while it runs, on standard error: in a terminal one line that is written over, elsewhere one line per task."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import TextIO

__all__ = ["Progress"]


class Progress:
    """Says what is being done; as a context manager it leaves a clean line behind."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._task = ""

    def task(self, text: str) -> None:
        """Begins a task, such as the measurement of a model."""
        self._task = text
        if self._live:
            self._overwrite(text)
        else:
            print(f"bench_frameworks: {text}", file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Says what the task is at; shown in a terminal only."""
        if self._live:
            self._overwrite(f"{self._task}: {text}")

    def _overwrite(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._overwrite("")
