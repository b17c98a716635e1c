"""The worker's commands, without its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.worker import Session
from rml_exec import GraphBuilder, save_graph
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import random_inputs


def session(graphs: Path, cls: str, model: str = "tiny_mlp") -> Session:
    return Session({"adapter": f"tests.bench.fake_arms:{cls}", "model": model, "graphs": str(graphs), "threads": 1})


def test_a_block_times_every_call(graphs):
    made = session(graphs, "Honest")
    assert made.load()["check"] == "pass"
    found = made.block(5)
    assert len(found["times_ns"]) == 5
    assert min(found["times_ns"]) > 0
    assert found["check"] == "pass"


def test_warm_up_makes_one_call_at_least(graphs):
    made = session(graphs, "Honest")
    made.load()
    assert made.warm_up(0.0)["call_s"] > 0
    assert made._adapter.number == 2


# The call of load() is the first, the second brings the caches back; a block of three times calls 3 to 5.
@pytest.mark.parametrize(("cls", "check"), [("WrongAtOne", "pass"), ("WrongAtFour", "pass"), ("WrongAtFive", "fail")])
def test_a_block_checks_its_last_output(graphs, cls, check):
    made = session(graphs, cls)
    assert made.load()["check"] == ("fail" if cls == "WrongAtOne" else "pass")
    assert made.block(3)["check"] == check


def test_a_block_checks_its_first_output(graphs):
    made = session(graphs, "WrongAtFour")
    made.load()
    assert made.block(1)["check"] == "pass"  # a block of one has no call before it
    found = made.block(3)  # calls 4 to 6
    assert found["check"] == "fail"
    assert found["max_abs_error"] is None
    assert "nan" in found["check_reason"]


def test_a_block_checks_any_other_output_it_is_asked_to(graphs):
    made = session(graphs, "WrongAtFour")
    made.load()
    assert made.block(3, check=[0, -1, 1])["check"] == "fail"


def test_of_equal_golden_sets_each_is_compared_with_its_own(graphs):
    golden = read_golden(graphs / "tiny_mlp.golden.safetensors")
    path = graphs / "tiny_mlp.golden.1.safetensors"
    write_golden(path, Golden(golden.inputs, {name: array + 1 for name, array in golden.outputs.items()}, golden.metadata))
    made = Session(
        {"adapter": "tests.bench.fake_arms:Honest", "model": "tiny_mlp", "graphs": str(graphs), "threads": 1, "goldens": [str(path)]}
    )
    assert made.load()["shapes"] == [0, 0]
    assert made.block(3, inputs=[0])["check"] == "pass"
    assert made.block(3, inputs=[1])["check"] == "fail"


def test_inputs_are_bound_in_the_order_of_the_models_parameters(tmp_path):
    b = GraphBuilder("order")
    late, early = b.input("z", "f32", (2,)), b.input("a", "f32", (2,))
    b.output("y", b.add("sub", [late, early]))
    graph = b.build()
    save_graph(graph, tmp_path / "order")
    inputs = random_inputs(graph)
    outputs = run_reference(graph, inputs, precision="f32")
    write_golden(tmp_path / "order.golden.safetensors", Golden(inputs, outputs, graph_hashes(tmp_path / "order")))
    assert session(tmp_path, "Honest", "order").load()["facts"]["options"]["inputs"] == ["z", "a"]
