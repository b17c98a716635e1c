"""What is expected of rounding is enough for every op and for whole graphs, on what the executor really computes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rml_exec.graph_run.bisect import FACTOR, bisect_steps
from rml_exec.runtime.executor import Executor
from tests.helpers.control_graphs import control_graphs
from tests.helpers.graphs import random_inputs
from tests.helpers.strategies import mixed_graphs
from tests.runtime.test_conformance import CASES, graph_of

BY_OP: dict = {}
for _op, _case in (parameters.values for parameters in CASES):
    if not _op.internal:  # passes name the members of a group as its own results, the cases do not
        BY_OP.setdefault(_op.name, []).append((_op, _case))


def worst(graph, inputs, threads=1):
    """Returns the largest error of any step in relation to what is expected of it; none may differ in the run."""
    errors = [found.error for found in bisect_steps(Executor.create(graph, threads=threads), inputs)]
    assert not [error for error in errors if error.differs_in_run]
    return max((max(error.excess, error.rewrite_excess) for error in errors), default=0.0)


@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("name", BY_OP)
def test_every_op_stays_well_below_the_limit(name, constant):
    for op, case in BY_OP[name]:
        graph, _, inputs = graph_of(op, case, constant)
        given = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
        assert worst(graph, given) < FACTOR / 2, case.id


@settings(max_examples=60, deadline=None)
@given(graph=mixed_graphs(), threads=st.integers(1, 3))
def test_random_graphs_have_no_wrong_step(graph, threads):
    assert worst(graph, random_inputs(graph), threads) < FACTOR


@settings(max_examples=60, deadline=None)
@given(graph=control_graphs())
def test_random_control_flow_has_no_wrong_step(graph):
    assert worst(graph, random_inputs(graph)) < FACTOR
