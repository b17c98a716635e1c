import pytest

from rml_exec import InputError
from rml_exec.runtime import threads
from rml_exec.runtime.threads import available_cpus, thread_count


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Returns a function that sets affinity and cgroup quota (the text of cpu.max)."""
    monkeypatch.delenv("RML_NUM_THREADS", raising=False)

    def describe(cpus, quota=None):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(cpus)))
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(threads, "_CGROUP", tmp_path)

    return describe


@pytest.mark.parametrize(
    ("cpus", "quota", "want"),
    [
        (8, None, 8),
        (8, "max 100000\n", 8),
        (8, "250000 100000\n", 2),  # rounded down
        (8, "50000 100000\n", 1),  # never 0
        (2, "800000 100000\n", 2),
        (8, "nonsense\n", 8),
        (8, "100000 0\n", 8),
    ],
)
def test_affinity_and_quota_limit_the_threads(machine, cpus, quota, want):
    machine(cpus, quota)
    assert available_cpus() == want
    assert thread_count() == want


def test_cgroup_v1_is_read_too(machine, tmp_path):
    machine(8)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cpus() == 3
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cpus() == 8


def test_what_is_asked_for_wins_over_the_variable_and_is_capped(machine, monkeypatch):
    machine(4)
    monkeypatch.setenv("RML_NUM_THREADS", "2")
    assert thread_count() == 2
    assert thread_count(3) == 3
    assert thread_count(100) == 4
    monkeypatch.setenv("RML_NUM_THREADS", "100")
    assert thread_count() == 4


@pytest.mark.parametrize("asked", [0, -1])
def test_fewer_than_one_thread_is_refused(machine, asked):
    machine(4)
    with pytest.raises(InputError, match="at least 1"):
        thread_count(asked)


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5"])
def test_a_variable_that_is_no_thread_count_is_refused(machine, monkeypatch, text):
    machine(4)
    monkeypatch.setenv("RML_NUM_THREADS", text)
    with pytest.raises(InputError, match="RML_NUM_THREADS"):
        thread_count()
