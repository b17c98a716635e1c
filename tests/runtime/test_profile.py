import pytest

from rml_exec.runtime.profile import Profile, StepTime, summarize_by_label


def test_wall_is_steps_plus_gap():
    profile = Profile((StepTime("a", 1, 30), StepTime("b", 2, 50)), 100)
    assert profile.gap_ns == 20


def test_rows_sum_by_label_over_runs_slowest_first():
    runs = [Profile((StepTime("a", 1, 1_000_000), StepTime("b", 2, 5_000_000), StepTime("a", 3, 1_000_000)), 9_000_000) for _ in range(3)]
    slow, fast = summarize_by_label(runs)
    assert (slow.label, slow.nodes, slow.calls, slow.total_ms) == ("b", 2, 3, 15)
    assert (fast.label, fast.nodes, fast.calls, fast.total_ms) == ("a", 4, 6, 6)
    assert slow.percent == pytest.approx(100 * 15 / 21)


def test_a_row_has_the_least_and_the_median_of_its_runs_and_its_work():
    runs = [Profile((StepTime("a", 1, first), StepTime("b", 1, 1), StepTime("a", 1, 10)), 100) for first in (50, 20, 30)]
    row = next(row for row in summarize_by_label(runs, [(100, 8), (1, 1), (200, None)]) if row.label == "a")
    assert (row.min_ms, row.median_ms) == (30e-6, 40e-6)
    assert (row.flops, row.bytes) == (300, None)
    assert summarize_by_label(runs)[0].flops is None


def test_no_runs_have_no_rows():
    assert summarize_by_label([]) == []
    assert summarize_by_label([Profile((), 5)]) == []
