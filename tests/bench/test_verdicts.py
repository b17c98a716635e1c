"""What the whole harness makes of arms of which it is known how they differ, on this machine as it is now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records import CellRecord
from bench.settings import Settings
from bench.supervisor import run_cells

pytestmark = pytest.mark.slow


@pytest.fixture
def judge(graphs: Path, use_arms: Callable[..., list[str]]) -> Callable[..., CellRecord]:
    """Returns a function that measures a fake arm against ``Busy`` and returns its record."""
    names = use_arms(rml="Busy", equal="Busy", slower="BusySlower")

    def judge(other: str, settings: Settings) -> CellRecord:
        assert other in names
        record = run_cells("tiny_mlp", 1, ["rml", other], graphs=str(graphs), settings=settings, environment={}).records[1]
        assert record.status == "ok", record.reason
        return record

    return judge


def test_of_100_short_cells_of_equal_arms_at_most_9_have_a_false_verdict(judge):
    short = {"warm_up_s": 0.1, "min_time_s": 0.05, "precision": 0.03, "budget_s": 3.0, "idle_s": 0.01}
    found = Counter(judge("equal", Settings(seed=seed, **short)).verdict for seed in range(100))
    assert found["faster"] + found["slower"] <= 9, found


def test_a_slowdown_of_5_percent_is_found_in_19_of_20_runs(judge):
    found = Counter(judge("slower", Settings(seed=seed)).verdict for seed in range(20))
    assert found["slower"] >= 19, found
