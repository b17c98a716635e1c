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


def test_no_runs_have_no_rows():
    assert summarize_by_label([]) == []
    assert summarize_by_label([Profile((), 5)]) == []
