import pytest

from rml_exec.graph_run.profiling import profile_total
from rml_exec.graph_run.work import work_of_steps
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.profile import Profile, StepTime
from tests.helpers.control_graphs import loop_graph, rnn_graph
from tests.helpers.graphs import elementwise_graph
from tests.helpers.step_graphs import STEP_GRAPHS


def test_the_parts_of_the_wall_time_add_up():
    profiles = [Profile((StepTime("a", 1, first), StepTime("b", 1, 50)), wall) for first, wall in ((100, 200), (110, 260), (90, 210))]
    total = profile_total(profiles, [180, 200, 150])
    assert (total.runs, total.wall_ms, total.steps_ms, total.overhead_ms, total.plain_ms) == (3, 210e-6, 150e-6, 60e-6, 180e-6)
    assert total.gap_ms == pytest.approx(0)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", STEP_GRAPHS)
def test_every_step_has_work(name, fuse):
    executor = Executor.create(STEP_GRAPHS[name](), fuse=fuse)
    work = work_of_steps(executor)
    assert len(work) == len(executor.steps)
    for step, found in zip(executor.steps, work, strict=True):
        if step.label == "while":
            assert (found.flops, found.bytes) == (None, None)
        else:
            assert found.flops is not None
            assert found.bytes is not None
            assert found.bytes > 0


def test_fusing_saves_bytes_and_no_operations():
    fused, unfused = (work_of_steps(Executor.create(STEP_GRAPHS["chain"](), fuse=fuse)) for fuse in (True, False))
    assert sum(work.flops for work in fused) == sum(work.flops for work in unfused) == 12 * 16
    assert [work.bytes for work in fused] == [2 * 64]
    assert sum(work.bytes for work in unfused) > 12 * 2 * 64


def test_a_scan_does_its_body_so_many_times():
    short, long = (work_of_steps(Executor.create(rnn_graph(length=length)))[0] for length in (5, 10))
    assert long.flops == 2 * short.flops > 0
    assert long.bytes == 2 * short.bytes > 0


def test_an_output_that_is_copied_counts_as_a_copy():
    executor = Executor.create(elementwise_graph())
    copies = [work for step, work in zip(executor.steps, work_of_steps(executor), strict=True) if step.label == "output"]
    assert [(work.flops, work.bytes) for work in copies] == [(0, 2 * 60)] * len(copies)
    assert copies


def test_a_loop_depends_on_its_data():
    loop = work_of_steps(Executor.create(loop_graph()))[0]
    assert (loop.flops, loop.bytes) == (None, None)
