"""Golden inputs, several sets of them, and the first node that differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import count_flops, is_finished, write_export
from exporters.errors import ExportError, describe
from exporters.golden_sets import GoldenSet, draw_inputs, first_difference, golden_sets, input_sets, remarks_on
from rml_exec.graph_run import RunOptions, run_model
from rml_exec.graph_run.main import main as graph_run
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
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


def doubling(shape: tuple[int, ...] = (2, 3), dtype: str = "f32") -> Graph:
    b = GraphBuilder("doubling")
    x = b.input("x", dtype, shape)
    b.output("y", b.add("add", [x, x]))
    return b.build()


@pytest.mark.parametrize(
    ("output", "remark"),
    [
        (np.zeros((2, 3), np.float32), "output 'y' is 0 everywhere"),
        (np.full((2, 3), 2.5, np.float32), "output 'y' is 2.5 everywhere"),
        (np.full((2, 3), np.nan, np.float32), "output 'y' has no finite element"),
        (np.float32([[np.nan, np.inf, -np.inf]]), "output 'y' has no finite element"),
        (np.zeros((0, 3), np.float32), "output 'y' has no elements"),
        (np.float32(0), "output 'y' is 0 everywhere"),
        (np.zeros(4, np.int64), "output 'y' is 0 everywhere"),
        (np.zeros(4, np.bool_), "output 'y' is 0 everywhere"),
        (np.float32([0, 1]), ""),
        (np.float32([np.nan, 1]), ""),
        (np.float32(7), ""),
        (np.int64(0), ""),
        (np.full(4, 7), ""),
    ],
)
def test_an_output_that_proves_little_is_remarked_on(output: np.ndarray, remark: str) -> None:
    found = remarks_on(doubling(), [GoldenSet({"x": np.ones((2, 3), np.float32)}, {"y": output}, 0)])
    assert found == [[remark] if remark else []]


def test_inputs_without_elements_are_remarked_on_where_they_occur() -> None:
    full, empty = np.float32([1, 2]), np.float32([])
    sets = [GoldenSet({"x": x}, {"y": x + x}, 0) for x in (full, empty)]
    assert remarks_on(doubling(), sets) == [[], ["input 'x' has no elements", "output 'y' has no elements"]]


def test_outputs_that_do_not_depend_on_the_inputs_are_remarked_on() -> None:
    b = GraphBuilder("deaf")
    x = b.input("x", "f32", (3,))
    b.output("fixed", b.add("exp", [b.constant(np.float32([1, 2, 3]))]))
    b.output("cancels", b.add("add", [b.add("sub", [x, x]), b.constant(np.float32([1, 2, 3]))]))
    b.output("same", x)
    graph = b.build()
    sets = [
        GoldenSet(inputs, run_reference(graph, inputs, precision="f32"), 0) for inputs in ({"x": np.float32([1, 2, k])} for k in (3, 4))
    ]
    fixed, cancels = "output 'fixed' does not depend on the inputs", "output 'cancels' is the same in all 2 golden sets"
    assert remarks_on(graph, sets) == [[fixed, cancels]] * 2
    assert remarks_on(graph, sets[:1]) == [[fixed]]


def test_a_remark_is_part_of_the_summary_and_of_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, inputs = doubling((4,)), {"x": np.zeros(4, np.float32)}
    run = {"outputs": {"y": inputs["x"]}, "framework": "f", "framework_version": "1", "seed": 0, "threads": 1}
    summary = write_export(graph, tmp_path / "m", inputs=inputs, **run)
    said = "the golden proves little, for output 'y' is 0 everywhere"
    assert summary.remarks == ("output 'y' is 0 everywhere",)
    assert str(summary).endswith(f"golden error 0.0e+00 of rms. Remark: {said}.")
    assert run_model(tmp_path / "m", RunOptions(check=True)).remark == "output 'y' is 0 everywhere"
    assert graph_run([str(tmp_path / "m"), "--check"]) == 0
    assert said in capsys.readouterr().err
    assert graph_run([str(tmp_path / "m")]) == 0
    assert capsys.readouterr().err == ""
    inputs, run["outputs"] = {"x": np.arange(4, dtype=np.float32)}, {"y": np.arange(0, 8, 2, dtype=np.float32)}
    assert "Remark" not in str(write_export(graph, tmp_path / "m", inputs=inputs, **run))
    assert "remark" not in read_golden(tmp_path / "m.golden.safetensors").metadata


def test_a_model_that_fails_on_its_golden_inputs_is_one_sentence() -> None:
    def run(inputs: Any) -> Any:
        return inputs["x"][7]

    with pytest.raises(
        ExportError, match=r"run in torch on inputs drawn with seed 3; got IndexError: .* at test_golden_sets.py:\d+\. Inputs: x="
    ):
        golden_sets("torch", [(3, {"x": np.float32([1])})], run)


def test_a_framework_that_cannot_run_in_pieces_leaves_the_message_whole(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]
) -> None:
    def intermediates(inputs: Any) -> Any:
        raise RuntimeError("no such piece")

    outputs = small_run["outputs"] | {"y": small_run["outputs"]["y"] + 1}
    with pytest.raises(ExportError, match=r"output 'y': .*The first node that differs could not be found: RuntimeError: no such piece at"):
        write_export(small_graph, tmp_path / "small", **small_run | {"outputs": outputs}, intermediates=intermediates)


AUTOGRAPH = """in user code:

    File "/usr/lib/python3.11/site-packages/keras/src/layer.py", line 122, in call  **
        raise e
    File "/home/me/model.py", line 57, in build  *
        return f(x)

    ValueError: Cannot
    reshape."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\n two. ", "ValueError: one two"),
        ("", "ValueError"),
        (AUTOGRAPH, "ValueError: Cannot reshape at model.py:57"),
        ('node at:\n  File "/home/me/model.py", line 9, in f\n\nindex 7\n\t [[{{node G}}]] [Op:x]', "ValueError: index 7 at model.py:9"),
        ("x" * 300 + " " + "y" * 300, "ValueError: " + "x" * 300 + " ..."),
    ],
)
def test_what_foreign_code_raised_is_told_in_one_line(text: str, said: str) -> None:
    assert describe(ValueError(text)) == said


def test_the_line_told_is_the_innermost_outside_of_the_frameworks() -> None:
    with pytest.raises(ValueError, match="Expecting property name") as caught:
        json.loads("{")
    line = Path(__file__).read_text().splitlines().index('        json.loads("{")') + 1
    assert describe(caught.value).endswith(f"at test_golden_sets.py:{line}")
