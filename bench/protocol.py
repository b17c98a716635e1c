"""How supervisor and worker talk: one JSON object a line, over two pipes that the worker inherits. Frameworks may print what they like."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["Channel", "WorkerGoneError"]

_MAX_MESSAGE_BYTES = 64 << 20


class WorkerGoneError(Exception):
    """The other end is gone, has sent no JSON, or is silent for too long; the message says which."""


class Channel:
    """One end of the conversation.

    Args:
        reads: descriptor to read from.
        writes: descriptor to write to.
        peer: pidfd of the other process, if it is to be noticed that it has ended while a child of it holds its pipe open.
    """

    def __init__(self, reads: int, writes: int, peer: int | None = None) -> None:
        self._reads, self._writes = reads, writes
        self._watched = [reads] if peer is None else [reads, peer]
        self._pending = bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        """Writes one message; raises WorkerGoneError if nobody reads."""
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._writes, data) :]
        except BrokenPipeError as error:
            raise WorkerGoneError("ended before its work was done") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Returns the next message, sleeping until all of it is there.

        Args:
            timeout_s: how long to wait; None means for ever.

        Raises:
            WorkerGoneError: end of the pipe, garbage, or the timeout.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        searched = 0
        while (end := self._pending.find(b"\n", searched)) < 0:
            searched = len(self._pending)
            if searched > _MAX_MESSAGE_BYTES:
                raise WorkerGoneError(f"sent something that is no message: {bytes(self._pending[:80])!r}")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select(self._watched, [], [], left)[0]
            if not ready:
                raise WorkerGoneError(f"gave no answer within {timeout_s:g} s")
            chunk = os.read(self._reads, 1 << 16) if self._reads in ready else b""
            if not chunk:
                raise WorkerGoneError("ended before its work was done")
            self._pending += chunk
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise WorkerGoneError(f"sent something that is no message: {line[:80]!r}")
        return message

    def close(self) -> None:
        """Closes both pipes."""
        os.close(self._reads)
        os.close(self._writes)
