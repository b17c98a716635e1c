"""Break-even calls and memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.cost import break_even_calls, peak_bytes, resident_bytes, start_ms
from bench.records import CellRecord


def record(start: float | None, median: float | None) -> CellRecord:
    parts = {} if start is None else {"import_ms": start - 3.0, "load_ms": 2.0, "first_call_ms": 1.0}
    return CellRecord("m", "a", 1, "ok", median_ms=median, **parts)


@pytest.mark.parametrize(
    ("arm", "other", "calls"),
    [
        ((100.0, 1.0), (10.0, 2.0), 91.0),  # after 90 calls they are even
        ((100.5, 1.0), (10.0, 2.0), 91.0),
        ((10.0, 1.0), (100.0, 2.0), 0.0),
        ((10.0, 1.0), (10.0, 2.0), 1.0),
        ((10.0, 2.0), (100.0, 1.0), math.inf),
        ((100.0, 2.0), (10.0, 2.0), math.inf),
        ((10.0, 2.0), (100.0, 2.0), 0.0),
        ((10.0, 2.0), (10.0, 2.0), math.inf),
        ((None, 2.0), (10.0, 2.0), None),
        ((10.0, 2.0), (10.0, None), None),
    ],
)
def test_break_even(arm, other, calls):
    assert break_even_calls(record(*arm), record(*other)) == calls


def test_a_start_is_import_load_and_first_call():
    assert start_ms(record(50.0, None)) == 50.0
    assert start_ms(record(None, None)) is None


def test_memory_is_that_of_this_process():
    before = resident_bytes()
    held = np.ones(32 << 20, np.uint8)
    assert resident_bytes() - before > held.nbytes // 2
    assert peak_bytes() >= resident_bytes() - (1 << 20)
