import pytest

from rml_exec.graph_run import measure, summarize
from rml_exec.graph_run.latency import nearest_rank


@pytest.mark.parametrize(("percent", "want"), [(1, 1), (10, 1), (11, 2), (50, 5), (51, 6), (90, 9), (91, 10), (100, 10)])
def test_nearest_rank_gives_a_value_that_was_measured(percent, want):
    assert nearest_rank(range(1, 11), percent) == want


def test_nearest_rank_of_one_value():
    assert nearest_rank([7.0], 10) == nearest_rank([7.0], 90) == 7.0


def test_the_summary_is_in_milliseconds():
    found = summarize([3_000_000, 1_000_000, 2_000_000, 10_000_000])
    assert (found.iterations, found.mean_ms, found.min_ms, found.p10_ms, found.median_ms, found.p90_ms) == (4, 4, 1, 1, 2, 10)


def test_warm_up_calls_are_not_timed():
    calls = []
    times = measure(lambda: calls.append(1), iterations=5, warmup=3)
    assert len(calls) == 8
    assert len(times) == 5
    assert all(time >= 0 for time in times)
