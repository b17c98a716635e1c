"""The results file: records as JSON lines, and beside it the raw block data. One supervisor at a time writes to it, and may be killed any time.

A cell is done when its line is there whole. The block data of a cell reach the disk before its line does, and both files lose the half line
that a killed run left when the next run opens them. Block data whose ``run`` no record has are what a killed run measured for nothing.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.records import CellRecord, read_records

__all__ = ["ResultsFile", "blocks_path"]

_LOCK_WAIT_S = 1.0
"""A run that was killed a moment ago may have a child between fork and exec, which still holds the lock."""

_RECORD, _BLOCK = b'{"model": ', b'{"run": '
"""How every line of the two files begins."""


def blocks_path(results: Path) -> Path:
    """Returns where the block data of a results file lie: ``FILE.blocks.jsonl``."""
    return results.with_name(results.name + ".blocks.jsonl")


class ResultsFile:
    """A results file that is open for appending; a context manager.

    Args:
        path: the file, which is made if missing; a device or a pipe is written to without lock, repair and block data.

    Attributes:
        records: what the file held when it was opened.
        blocks_name: name of the file of block data; None if there is none.

    Raises:
        ValueError: the file exists and holds something other than records, or another run has it open; it is left as it is.
        OSError: it cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.records: list[CellRecord] = []
        self.blocks_name: str | None = None
        self._file = path.open("ab", buffering=0)
        self._blocks: io.FileIO | None = None
        try:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._open_regular(path)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _open_regular(self, path: Path) -> None:
        _lock(self._file)
        whole = _check_end(path, _RECORD)
        with path.open("rb") as file:
            self.records = read_records(io.StringIO(file.read(whole).decode(errors="replace"), newline="\n"))
        beside = blocks_path(path)
        self._blocks = beside.open("ab", buffering=0)
        self._blocks.truncate(_check_end(beside, _BLOCK))
        self._file.truncate(whole)
        self.blocks_name = beside.name

    def append(self, records: Iterable[CellRecord], blocks: Iterable[Mapping[str, Any]] = ()) -> None:
        """Appends block data, then records, and waits until they are on the disk.

        Raises:
            OSError: they cannot be written.
        """
        if self._blocks is not None:
            _write(self._blocks, "".join(json.dumps(block, allow_nan=False) + "\n" for block in blocks))
        _write(self._file, "".join(record.to_json() + "\n" for record in records))

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if self._blocks is not None:
            self._blocks.close()


def _lock(file: io.FileIO) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ValueError("a file that another run has open") from None
            time.sleep(0.05)


def _check_end(path: Path, start: bytes) -> int:
    """Returns the number of bytes in whole lines.

    Raises:
        ValueError: the half line behind them does not begin as our lines do.
    """
    with path.open("rb") as file:
        position = end = file.seek(0, os.SEEK_END)
        tail = b""
        while position and b"\n" not in tail:
            position = max(0, position - (1 << 20))
            file.seek(position)
            tail = file.read(end - position)
    half = tail[tail.rfind(b"\n") + 1 :]
    if half[: len(start)] != start[: len(half)]:
        raise ValueError("last line: is not a record")
    return end - len(half)


def _write(file: io.FileIO, text: str) -> None:
    """Writes everything or raises OSError, and then takes back what it wrote of it, where that can be done: a full disk leaves no half line."""
    before = os.fstat(file.fileno()).st_size
    data = memoryview(text.encode())
    try:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # a device or a pipe cannot be waited for
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(before)
        raise
