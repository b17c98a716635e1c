from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_PRELUDE = """
    import os, sys
    import numpy as np
    from rml_exec import _native

    KIND = _native.step_kinds()["copy"]
    N = 1 << 20
    steps = [(KIND, np.array([4, 1, N, 1, 1]), np.array([2, 0, 0, 1, 0, 0]), None)] * 3
    program = _native.Program(steps, [], 1, 1, 0)
    x = np.arange(N, dtype=np.float32)

    def check(threads):
        y = np.zeros(N, np.float32)
        program.run(bytearray(), [x], [y], threads)
        assert np.array_equal(x, y)

    def in_child(work):
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def _python(body: str) -> None:
    """Runs code in a process of its own: a deadlock ends this test, not the test run."""
    code = textwrap.dedent(_PRELUDE) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_child_of_fork_starts_its_own_workers(threads):
    _python(f"""
        check({threads})
        in_child(lambda: [check(2) for _ in range(20)])
        in_child(lambda: in_child(lambda: check(3)))
        check({threads})
    """)


def test_a_child_forked_while_another_thread_runs_is_not_locked_out():
    _python("""
        import threading
        stop = threading.Event()

        def work():
            while not stop.is_set():
                check(2)

        runner = threading.Thread(target=work)
        runner.start()
        for _ in range(10):
            in_child(lambda: check(2))
        stop.set()
        runner.join()
    """)


def test_thread_counts_may_change_from_run_to_run():
    _python("""
        for threads in [2, 5, 1, 3, 2, 8, 2, 3] * 20:
            check(threads)
    """)


def test_one_core_serves_many_threads():
    _python("""
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for _ in range(20):
            check(4)
    """)


def test_workers_that_slept_are_woken():
    _python("""
        import time
        for _ in range(10):
            check(2)
            time.sleep(0.01)
    """)
