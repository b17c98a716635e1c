import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml_exec.graph_run.main import main
from rml_exec.ir.golden import Golden, read_golden, write_golden

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def model(tmp_path):
    for path in DATA.glob("tiny_mlp.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "tiny_mlp"


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments):
    """Returns the one sentence of a refusal: nothing on standard output, exit code 2."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:  # argparse
        code = error.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    return err


def golden_file(model):
    return model.with_name("tiny_mlp.golden.safetensors")


def test_standard_output_is_one_line_of_json_with_the_fields_in_order(model, capsys):
    code, out, err = run(capsys, model, "--check", "--bench", 7, "--warmup", 2, "--threads", 1, "--profile")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert list(found) == ["model", "threads", "load_ms", "check", "max_abs_error", "max_rel_error", "iterations", "mean_ms", "min_ms", "p10_ms",
                           "median_ms", "p90_ms", "profile", "profile_total"]  # fmt: skip
    assert (found["model"], found["threads"], found["check"], found["iterations"]) == ("tiny_mlp", 1, "pass", 7)
    assert found["min_ms"] <= found["p10_ms"] <= found["median_ms"] <= found["p90_ms"]


def test_without_options_it_loads_and_runs_once(model, capsys):
    code, out, _ = run(capsys, model)
    assert code == 0
    assert set(json.loads(out)) == {"model", "threads", "load_ms"}


def test_the_json_file_names_the_model_too(model, capsys):
    assert json.loads(run(capsys, model.with_name("tiny_mlp.json"), "--check")[1])["check"] == "pass"


def test_the_profile_sums_by_label_and_covers_every_node(model, capsys):
    rows = json.loads(run(capsys, model, "--bench", 3, "--profile", "--no-fuse")[1])["profile"]
    assert {row["label"]: (row["nodes"], row["calls"]) for row in rows} == {"linear": (2, 6), "relu": (1, 3)}
    assert sum(row["percent"] for row in rows) == pytest.approx(100)
    assert [row["total_ms"] for row in rows] == sorted((row["total_ms"] for row in rows), reverse=True)
    assert list(rows[0]) == ["label", "nodes", "calls", "total_ms", "percent", "min_ms", "median_ms", "flops", "bytes"]
    assert {row["label"]: (row["flops"], row["bytes"]) for row in rows} == {
        "linear": (2 * (2 * 8 * 16 + 2 * 16 * 4), 4 * (2 * 8 + 16 * 8 + 16 + 2 * 16 + 2 * 16 + 4 * 16 + 4 + 2 * 4)),
        "relu": (2 * 16, 4 * 2 * 2 * 16),
    }
    assert all(row["min_ms"] <= row["median_ms"] for row in rows)


def test_the_profile_adds_up(model, capsys):
    total = json.loads(run(capsys, model, "--bench", 5, "--profile")[1])["profile_total"]
    assert list(total) == ["runs", "wall_ms", "steps_ms", "gap_ms", "overhead_ms", "plain_ms"]
    assert total["runs"] == 5
    assert total["wall_ms"] == pytest.approx(total["steps_ms"] + total["gap_ms"] + total["overhead_ms"])
    assert 0 < total["steps_ms"] < total["wall_ms"]


def test_a_wrong_golden_fails_the_check(model, capsys):
    golden = read_golden(golden_file(model))
    outputs = {name: array + np.float32(0.5) for name, array in golden.outputs.items()}
    write_golden(golden_file(model), Golden(golden.inputs, outputs, golden.metadata))
    code, out, err = run(capsys, model, "--check")
    assert code == 1
    assert json.loads(out)["check"] == "fail"
    assert json.loads(out)["max_abs_error"] == pytest.approx(0.5, rel=1e-3)
    assert "elements differ" in err
    assert run(capsys, model, "--check", "--atol", 1)[0] == 0


def test_nan_against_a_number_is_null_in_json(model, capsys):
    golden = read_golden(golden_file(model))
    write_golden(golden_file(model), Golden(golden.inputs, {n: a * np.float32(np.nan) for n, a in golden.outputs.items()}, golden.metadata))
    code, out, _ = run(capsys, model, "--check")
    assert code == 1
    assert json.loads(out)["max_abs_error"] is None


def test_a_golden_of_another_model_is_refused(model, capsys):
    golden = read_golden(golden_file(model))
    write_golden(golden_file(model), Golden(golden.inputs, golden.outputs, {**golden.metadata, "graph_sha256": "0" * 64}))
    assert "golden of another model" in refused(capsys, model, "--check")


def test_inputs_come_from_the_file_given(model, capsys, tmp_path):
    golden = read_golden(golden_file(model))
    other = tmp_path / "inputs.safetensors"
    write_golden(other, Golden({name: array * 2 for name, array in golden.inputs.items()}, {}, {}))
    assert run(capsys, model, "--inputs", other)[0] == 0
    assert "must hold every output" in refused(capsys, model, "--inputs", other, "--check")


def test_without_a_golden_inputs_are_random_and_a_check_says_how_to_get_one(model, capsys):
    golden_file(model).unlink()
    code, _, err = run(capsys, model, "--bench", 2)
    assert code == 0
    assert err.endswith("tiny_mlp: has no golden, so its inputs are random numbers\n")
    assert run(capsys, model, "--bisect")[0] == 0
    said = refused(capsys, model, "--check")
    assert "there is no golden" in said
    assert "Hint: export the model again" in said
    assert said.count("\n") == 1


def test_an_npz_file_is_told_apart(model, capsys, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8), np.float32))
    assert "must be a safetensors file" in refused(capsys, model, "--inputs", tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "'x' is missing"),
        ({"x": np.zeros((2, 8), np.float64)}, "'x' must be f32"),
        ({"x": np.zeros((3, 3), np.float32)}, "'x' must be f32"),
        ({"x": None, "z": np.zeros(1, np.float32)}, "'z' is not an input"),
    ],
)
def test_inputs_that_do_not_fit_are_named(model, capsys, tmp_path, inputs, text):
    given = read_golden(golden_file(model)).inputs
    inputs = {name: given[name] if array is None else array for name, array in inputs.items()}
    other = tmp_path / "inputs.safetensors"
    write_golden(other, Golden(inputs, {}, {}))
    assert text in refused(capsys, model, "--inputs", other)


@pytest.mark.parametrize(
    "arguments",
    [["--threads", "0"], ["--threads", "two"], ["--bench", "-1"], ["--bench", "0"], ["--warmup", "-1"], ["--rtol", "-1"], ["--atol", "nan"],
     ["--numerics", "sloppy"], ["--nonsense"]],
)  # fmt: skip
def test_bad_options_are_refused(model, capsys, arguments):
    assert "rml-graph-run: error" in refused(capsys, model, *arguments)


@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".golden.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage"])
def test_a_damaged_file_is_one_sentence(model, capsys, suffix, damage):
    path = model.with_name(model.name + suffix)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "garbage": b"\xff" * 64}[damage])
    assert str(path) in refused(capsys, model, "--check")


def test_a_missing_model_is_one_sentence(capsys, tmp_path):
    assert "cannot be read" in refused(capsys, tmp_path / "nothing")


def test_as_a_module_it_writes_nothing_but_its_line(model):
    before = sorted(path.name for path in model.parent.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "rml_exec.graph_run", str(model), "--check"],
        capture_output=True,
        text=True,
        check=True,
        cwd=model.parent,
        env=os.environ,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["check"] == "pass"
    assert sorted(path.name for path in model.parent.iterdir()) == before


def test_an_instruction_set_that_the_machine_lacks_is_exit_code_5(model):
    done = subprocess.run(
        [sys.executable, "-m", "rml_exec.graph_run", str(model)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RML_ISA": "mmx"},
    )
    assert done.returncode == 5
    assert "RML_ISA" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".golden.safetensors"])
@pytest.mark.parametrize("option", ["--events", "--trace"])
def test_a_file_that_is_read_is_never_written(model, capsys, option, suffix):
    path = model.with_name(model.name + suffix)
    content = path.read_bytes()
    assert "must name a file of its own" in refused(capsys, model, option, path)
    assert path.read_bytes() == content


def test_two_outputs_are_two_files(model, capsys, tmp_path):
    assert "must name a file of its own" in refused(capsys, model, "--events", tmp_path / "x", "--trace", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_open_stream_is_no_file(model, capsys):
    assert "must be a file of its own" in refused(capsys, model, "--events", "/dev/stdout")
