"""How supervisor and worker talk: one JSON object a line, over two pipes that the worker inherits. Frameworks may print what they like."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from typing import Any, BinaryIO

__all__ = ["WorkerGoneError", "receive", "send"]


class WorkerGoneError(Exception):
    """The other end is gone, has sent no JSON, or is silent for too long; the message says which."""


def send(pipe: BinaryIO, message: Mapping[str, Any]) -> None:
    """Writes one message; raises WorkerGoneError if nobody reads."""
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()
    except (BrokenPipeError, ValueError) as error:
        raise WorkerGoneError("ended before its work was done") from error


def receive(pipe: BinaryIO, timeout_s: float | None = None) -> dict[str, Any]:
    """Returns the next message, sleeping until it comes.

    Args:
        pipe: an unbuffered or line-read pipe with one writer.
        timeout_s: how long to wait; None means for ever.

    Raises:
        WorkerGoneError: end of the pipe, garbage, or the timeout.
    """
    if timeout_s is not None and not select.select([pipe], [], [], max(timeout_s, 0))[0]:
        raise WorkerGoneError(f"gave no answer within {timeout_s:.0f} s")
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise WorkerGoneError("ended before its work was done")
    try:
        message = json.loads(line)
    except ValueError:
        raise WorkerGoneError(f"sent something that is no message: {line[:80]!r}") from None
    if not isinstance(message, dict):
        raise WorkerGoneError(f"sent something that is no message: {line[:80]!r}")
    return message


def open_pipe(descriptor: int, mode: str) -> BinaryIO:
    """Returns an unbuffered file over an inherited descriptor."""
    return os.fdopen(descriptor, mode, buffering=0)  # type: ignore[return-value]
