"""Golden inputs, several sets of them, and the first node that differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import count_flops, is_finished, write_export
from exporters.errors import ExportError
from exporters.golden_sets import GoldenSet, draw_inputs, first_difference, input_sets
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.runtime.reference import run_reference

EXAMPLES = {
    "ids": np.array([[3, 5, 9]]),
    "small": np.array([7, 7], np.uint8),
    "mask": np.array([True, True, True]),
    "image": np.random.default_rng(0).uniform(2, 3, (4, 5)).astype(np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "level": np.array(0.5),
}


def test_inputs_are_drawn_within_the_domain_of_the_examples() -> None:
    drawn = draw_inputs(EXAMPLES, 1, {"ids": (50, 40)})
    assert {name: (array.dtype, array.shape) for name, array in drawn.items()} == {
        name: (array.dtype, (50, 40) if name == "ids" else array.shape) for name, array in EXAMPLES.items()
    }
    assert (drawn["ids"].min(), drawn["ids"].max()) == (3, 9)
    assert (drawn["small"] == 7).all()
    assert drawn["mask"].all()
    assert drawn["image"].min() >= EXAMPLES["image"].min()
    assert drawn["image"].std() > 0.1
    again = draw_inputs(EXAMPLES, 1, {"ids": (50, 40)})
    assert all((drawn[name] == again[name]).all() for name in drawn)
    assert (draw_inputs(EXAMPLES, 2)["image"] != drawn["image"]).any()


def test_the_first_set_is_the_examples_and_the_others_have_the_next_seeds() -> None:
    sets = input_sets(EXAMPLES, goldens=3, seed=5, others=[{"ids": (2, 3)}])
    assert [seed for seed, _ in sets] == [5, 6, 7, 8]
    np.testing.assert_array_equal(sets[0][1]["image"], EXAMPLES["image"])
    assert (sets[1][1]["image"] != sets[2][1]["image"]).any()
    assert [inputs["ids"].shape for _, inputs in sets] == [(1, 3)] * 3 + [(2, 3)]
    with pytest.raises(ExportError, match="at least one golden set; got 0"):
        input_sets(EXAMPLES, goldens=0, seed=0)


def further_sets(graph: Graph, run: dict[str, Any], count: int) -> list[GoldenSet]:
    drawn = [draw_inputs(run["inputs"], seed) for seed in range(1, count + 1)]
    return [GoldenSet(inputs, run_reference(graph, inputs, precision="f32"), seed) for seed, inputs in enumerate(drawn, 1)]


def test_further_sets_are_written_with_tolerances_of_their_own(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    write_export(small_graph, tmp_path / "small", **small_run, further=further_sets(small_graph, small_run, 2))
    assert is_finished(tmp_path / "small", goldens=3)
    assert not is_finished(tmp_path / "small", goldens=4)
    goldens = [read_golden(tmp_path / f"small.golden{number}.safetensors") for number in ("", ".1", ".2")]
    assert [golden.metadata["seed"] for golden in goldens] == ["0", "1", "2"]
    assert len({golden.metadata["atol.y"] for golden in goldens}) == 3
    assert len({golden.metadata["graph_sha256"] for golden in goldens}) == 1
    write_export(small_graph, tmp_path / "small", **small_run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.golden.safetensors", "small.json", "small.safetensors"]


def test_a_further_set_that_differs_leaves_no_file(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    good, bad = further_sets(small_graph, small_run, 2)
    bad = replace(bad, outputs=dict(bad.outputs) | {"y": bad.outputs["y"] + 1})
    with pytest.raises(ExportError, match="output 'y'"):
        write_export(small_graph, tmp_path / "small", **small_run, further=[good, bad])
    assert not list(tmp_path.iterdir())


def test_a_mismatch_names_the_first_node_that_differs(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    outputs = {"y": small_run["outputs"]["y"] * 2, "n": small_run["outputs"]["n"]}
    linear, relu = small_graph.nodes[0].outputs[0].name, small_graph.nodes[1].outputs[0].name
    values = run_reference(small_graph, small_run["inputs"], precision="f32", want=[linear])
    asked = []

    def intermediates(inputs: Any) -> Any:
        asked.append(inputs)
        return {linear: values[linear], relu: outputs["y"]}

    with pytest.raises(ExportError, match=r"output 'y': .* First node that differs: relu 'relu': an rms error of"):
        write_export(small_graph, tmp_path / "small", **small_run | {"outputs": outputs}, intermediates=intermediates)
    assert len(asked) == 1
    write_export(small_graph, tmp_path / "small", **small_run, intermediates=intermediates)
    assert len(asked) == 1


def test_the_first_difference_tells_the_origin_and_passes_over_what_is_unknown(small_graph: Graph, small_run: dict[str, Any]) -> None:
    first, *rest = small_graph.nodes
    origin = {"op": "aten.linear.default", "where": "model.py:3"}
    graph = small_graph.with_nodes((replace(first, source=origin), *rest))
    value = first.outputs[0].name
    right = run_reference(graph, small_run["inputs"], precision="f64", want=[value])[value]
    wrong = right.astype(np.float32)
    wrong[0, 0] = np.nan
    text = first_difference(graph, small_run["inputs"], {value: wrong, "unknown": wrong})
    expected = "1 of 10 elements that are NaN or infinite on one side only"
    assert text == f"First node that differs: linear '{first.name}' (aten.linear.default, model.py:3): {expected}."
    assert (
        first_difference(graph, small_run["inputs"], {value: right})
        == "None of the 1 values that could be compared inside the graph differs."
    )


def test_flops_are_those_of_the_ops(small_graph: Graph) -> None:
    assert count_flops(small_graph) == 2 * 2 * 8 * 5 + 2 * 5 + 2 * 5  # product, relu, argmax
