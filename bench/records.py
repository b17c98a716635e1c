"""The record of one cell, and the file of records: JSON lines, one cell a line. The only definition; standard library alone."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["REFERENCE", "SCHEMA_VERSION", "CellRecord", "append_record", "prepare_results", "read_records"]

SCHEMA_VERSION = 1

REFERENCE = "rml"
"""The arm that ratios refer to."""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """What happened in one cell: one model under one framework mode with one number of threads.

    Attributes:
        model: zoo name.
        framework: arm of the comparison: ``rml``, ``torch``, ``jax``, ``tf``.
        threads: threads asked for, which is also the number of cores the worker is pinned to.
        status: ``ok``; ``mismatch`` (outputs differ from the golden: nothing was timed, or a timed output was wrong); ``unavailable``
            (framework not installed, too few cores); ``failed`` (crash, timeout, error).
        reason: one sentence where the status is not ``ok``, or a remark where it is; empty where there is nothing to say.
        check: ``pass`` or ``fail`` of the outputs against the golden, first and last call of every timed block among them; None if not run.
        max_abs_error: largest absolute error of any output of any call that was checked; None where it is not finite.
        max_rel_error: largest error relative to max(|want|, rms(want)); likewise.
        iterations: timed calls.
        mean_ms: their mean; likewise the minimum and the nearest-rank percentiles.
        ratio: median over rounds of this arm's block median divided by that of ``rml`` in the same round; 1 for ``rml``.
        load_ms: for ``rml`` load + create; for a framework the building of the model, weights included.
        first_call_ms: the first call, tracing and compilation included.
        import_ms: import of the framework.
        framework_version: its version.
        options: how the arm was set up, for the reader who wants to repeat it.
        environment: facts of the machine, the same in all records of a run.
    """

    model: str
    framework: str
    threads: int
    status: str
    reason: str = ""
    check: str | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    iterations: int | None = None
    mean_ms: float | None = None
    min_ms: float | None = None
    p10_ms: float | None = None
    median_ms: float | None = None
    p90_ms: float | None = None
    ratio: float | None = None
    load_ms: float | None = None
    first_call_ms: float | None = None
    import_ms: float | None = None
    framework_version: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Returns one line of JSON, without the newline."""
        return json.dumps(asdict(self), allow_nan=False)


def append_record(path: Path, record: CellRecord) -> None:
    """Appends one line in a single write and flushes it to the disk, so that a killed run loses nothing that was finished."""
    with path.open("ab", buffering=0) as file:
        file.write(record.to_json().encode() + b"\n")
        os.fsync(file.fileno())


def prepare_results(path: Path) -> None:
    """Makes sure that records can be appended to a file: it is made if missing, and the half line that a killed run left is cut off.

    Raises:
        ValueError: the file exists and holds something other than records; it is left as it is.
        OSError: it cannot be opened for writing.
    """
    with path.open("ab") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return  # a device or a pipe has nothing to cut off
    with path.open("r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        half, start = content[end:], b'{"model": '
        if half[: len(start)] != start[: len(half)]:
            raise ValueError("last line: is not a record")
        read_records(io.StringIO(content[:end].decode(errors="replace")))
        file.truncate(end)


def read_records(lines: Iterable[str]) -> list[CellRecord]:
    """Returns the records of JSON lines; a last line without its end, as a killed run leaves it, is passed over.

    Raises:
        ValueError: a line that is no record, or one of another schema version, with its line number.
    """
    known = {entry.name for entry in fields(CellRecord)}
    records = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            found = json.loads(line)
            version = found.get("schema_version")
        except (ValueError, AttributeError):
            raise ValueError(f"line {number}: is not a record") from None
        if version != SCHEMA_VERSION:
            raise ValueError(f"line {number}: schema version must be {SCHEMA_VERSION}; got {version}")
        if set(found) - known or not {"model", "framework", "threads", "status"} <= set(found):
            raise ValueError(f"line {number}: is not a record")
        records.append(CellRecord(**found))
    return records
