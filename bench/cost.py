"""What an arm costs beside its calls: memory, and after how many calls a slower start has paid for itself. Standard library alone."""

from __future__ import annotations

import math
from pathlib import Path

from bench.records import CellRecord

__all__ = ["break_even_calls", "peak_bytes", "resident_bytes", "start_ms"]


def resident_bytes() -> int | None:
    """Returns the resident memory of this process."""
    return _status("VmRSS")


def peak_bytes() -> int | None:
    """Returns the largest resident memory that this process had so far."""
    return _status("VmHWM")


def _status(key: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def start_ms(record: CellRecord) -> float | None:
    """Returns the time from import to the first output: import, load and first call; None if one of them is not known."""
    parts = (record.import_ms, record.load_ms, record.first_call_ms)
    return None if any(part is None for part in parts) else math.fsum(part for part in parts if part is not None)


def break_even_calls(arm: CellRecord, other: CellRecord) -> float | None:
    """Returns from which number of calls on ``arm`` has cost less time than ``other`` for good, start included: 0 if from the first output on.

    With start times C and times per call t that is (C_arm - C_other) / (t_other - t_arm). The first output belongs to the start.

    Args:
        arm: record of the one.
        other: record of the other, of the same model, threads, scenario and setup.

    Returns:
        A whole number of calls; inf if that never happens; None if start or median of one of them is not known.
    """
    starts, calls = (start_ms(arm), start_ms(other)), (arm.median_ms, other.median_ms)
    if starts[0] is None or starts[1] is None or calls[0] is None or calls[1] is None:
        return None
    behind, gain = starts[0] - starts[1], calls[1] - calls[0]
    if gain <= 0:
        return 0.0 if gain == 0 and behind < 0 else math.inf
    return 0.0 if behind < 0 else float(math.floor(behind / gain) + 1)
