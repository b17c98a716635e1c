"""What an export leaves on disk: tolerances, hashes, and nothing that looks finished but is not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters import bundle
from exporters.bundle import ExportSummary, check_prefix, count_flops, derive_tolerances, is_finished, write_export
from exporters.errors import ExportError
from exporters.golden_sets import undecided_elements
from rml_exec.graph_run import RunOptions, run_model
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder, load_graph
from rml_exec.runtime.reference import run_reference

SUFFIXES = (".json", ".safetensors", ".golden.safetensors")


class CrashError(BaseException):
    """A kill: no handler for errors runs its clean-up because of it."""


class Crasher:
    """Raises CrashError at the n-th file operation below a directory. An audit hook stays for good, so there is one, and it is armed."""

    def __init__(self) -> None:
        self.directory, self.left = "", -1
        sys.addaudithook(self._see)

    def arm(self, directory: Path, at: int) -> None:
        self.directory, self.left = str(directory), at

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if self.left < 0 or event not in ("open", "os.rename", "os.remove", "os.mkdir") or not str(args[0]).startswith(self.directory):
            return
        self.left -= 1
        if self.left < 0:
            raise CrashError(event)


@pytest.fixture(scope="module")
def crasher() -> Crasher:
    return Crasher()


def test_an_export_is_finished_and_says_what_it_wrote(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    prefix = tmp_path / "new" / "small.v2"
    summary = write_export(small_graph, prefix, **small_run)
    assert is_finished(prefix)
    assert sorted(path.name for path in prefix.parent.iterdir()) == sorted("small.v2" + suffix for suffix in SUFFIXES)
    assert (summary.name, summary.nodes, summary.parameters, summary.weight_bytes) == ("small", 3, 40, 160)
    assert 0 < summary.golden_error < 1e-6

    golden = read_golden(f"{prefix}.golden.safetensors")
    np.testing.assert_array_equal(golden.inputs["x"], small_run["inputs"]["x"])
    np.testing.assert_array_equal(golden.outputs["y"], small_run["outputs"]["y"])
    y = small_run["outputs"]["y"].astype(np.float64)
    rms = float(np.sqrt((y**2).mean()))
    error = y - run_reference(load_graph(prefix), small_run["inputs"], precision="f64")["y"]
    assert float(golden.metadata["rtol.y"]) == 2e-5
    assert float(golden.metadata["atol.y"]) == pytest.approx(2e-5 * rms)
    assert float(golden.metadata["rms_error.y"]) == pytest.approx(np.sqrt((error**2).mean()))
    assert (golden.metadata["rtol.n"], golden.metadata["atol.n"]) == ("0.0", "0.0")
    assert {key: golden.metadata[key] for key in ("graph_sha256", "weights_sha256")} == graph_hashes(prefix)
    expected = {"framework": "numpy", "framework_version": "2", "seed": "0", "threads": "1"}
    assert expected.items() <= golden.metadata.items()


def test_exports_of_one_model_are_equal_byte_for_byte(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    for directory in ("a", "b"):
        write_export(small_graph, tmp_path / directory / "small", **small_run)
    for suffix in SUFFIXES:
        assert (tmp_path / f"a/small{suffix}").read_bytes() == (tmp_path / f"b/small{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_truncated_or_changed_file_is_not_finished(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any], suffix: str
) -> None:
    prefix = tmp_path / "small"
    write_export(small_graph, prefix, **small_run)
    path = tmp_path / f"small{suffix}"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert not is_finished(prefix)
    if suffix != ".golden.safetensors":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert not is_finished(prefix)
    path.unlink()
    assert not is_finished(prefix)
    path.write_bytes(whole)
    assert is_finished(prefix)


@pytest.mark.parametrize("over", ["nothing", "an earlier export"])
def test_a_kill_at_any_moment_leaves_nothing_that_looks_finished(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any], crasher: Crasher, over: str
) -> None:
    whole = {("small", "0")} if over == "nothing" else {("small", "0"), ("earlier", "1")}
    for moment in range(1000):
        prefix = tmp_path / str(moment) / "small"
        if over != "nothing":
            write_export(replace(small_graph, name="earlier"), prefix, **small_run | {"seed": 1})
        crasher.arm(tmp_path, moment)
        crashed = False
        try:
            write_export(small_graph, prefix, **small_run)
        except CrashError:
            crashed = True
        crasher.arm(tmp_path, -1)
        if is_finished(prefix):  # then graph and golden belong together
            assert (load_graph(prefix).name, read_golden(f"{prefix}.golden.safetensors").metadata["seed"]) in whole
        if not crashed:
            break
        write_export(small_graph, prefix, **small_run)
        assert is_finished(prefix)
    assert is_finished(prefix)
    assert moment >= 10  # at the least three files opened, moved, and read again


@pytest.mark.parametrize("step", ["save_graph", "write_golden"])
def test_a_full_disk_is_one_sentence_and_leaves_no_file(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_export(small_graph, tmp_path / "small", **small_run)
    monkeypatch.setattr(bundle, step, full)
    with pytest.raises(ExportError, match="No space left on device") as caught:
        write_export(small_graph, tmp_path / "small", **small_run)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="its directory must be writable"):
        write_export(small_graph, tmp_path / "file" / "small", **small_run)


def test_a_golden_of_an_earlier_export_goes_with_all_its_sets(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    for name in ("small.golden.1.safetensors", "small.json.golden", "smaller.golden.safetensors"):
        (tmp_path / name).write_text("")
    write_export(small_graph, tmp_path / "small", **small_run)
    assert not (tmp_path / "small.golden.1.safetensors").exists()
    assert (tmp_path / "smaller.golden.safetensors").exists()


def test_results_that_differ_are_refused_and_leave_no_file(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    outputs = dict(small_run["outputs"])
    outputs["y"] = outputs["y"] * np.float32(1.001)
    with pytest.raises(ExportError, match="output 'y': the graph must give what the framework gives up to rounding"):
        write_export(small_graph, tmp_path / "small", **small_run | {"outputs": outputs})
    assert not list(tmp_path.iterdir())


def test_outputs_of_other_names_or_dtypes_are_refused(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> None:
    y, n = small_run["outputs"]["y"], small_run["outputs"]["n"]
    with pytest.raises(ExportError, match="must have the same outputs; got y, n and y, m"):
        write_export(small_graph, tmp_path / "small", **small_run | {"outputs": {"y": y, "m": n}})
    with pytest.raises(ExportError, match="output 'n': the graph must have the framework's dtype; got int64 for int32"):
        write_export(small_graph, tmp_path / "small", **small_run | {"outputs": {"y": y, "n": n.astype(np.int32)}})


def export_integers(dtype: str, got: Callable[[np.ndarray], np.ndarray], path: Path) -> ExportSummary:
    """Exports the whole part of a million times 300 floats, or three times 300 integers, for a framework that computes ``got``."""
    b = GraphBuilder("integers")
    x = b.input("x", dtype, (300,))
    if dtype == "f32":
        values = np.random.default_rng(0).standard_normal(300).astype(np.float32)
        b.output("y", b.add("cast", [b.add("mul", [x, b.constant(np.float32(1e6))])], to="i32", f2i="saturate"))
    else:
        values = np.arange(300, dtype=np.int32)
        b.output("y", b.add("mul", [x, b.constant(np.int32(3))]))
    run: dict[str, Any] = {"framework": "f", "framework_version": "1", "seed": 0, "threads": 1}
    return write_export(b.build(), path, inputs={"x": values}, outputs={"y": got(values)}, **run)


def test_integers_that_rounding_decides_are_not_compared(tmp_path: Path) -> None:
    summary = export_integers("f32", lambda x: (x * np.float32(1e6)).astype(np.int32), tmp_path / "t")
    path = tmp_path / "t.golden.safetensors"
    golden = read_golden(path)
    undecided = golden.undecided["y"]
    assert 0 < undecided.sum() < 30
    assert summary.remarks == (f"rounding decides {undecided.sum()} of 300 elements of output 'y'",)
    assert golden.metadata["remark"] == summary.remarks[0]
    for where, passes in ((undecided, True), (~undecided, False)):
        y = golden.outputs["y"] + where.astype(np.int32)
        write_golden(path, Golden(golden.inputs, {"y": y}, golden.metadata, golden.undecided))
        assert run_model(tmp_path / "t", RunOptions(check=True)).passed is passes


@pytest.mark.parametrize(
    ("dtype", "got", "message"),
    [
        (
            "f32",
            lambda x: np.floor(x * np.float32(1e6)).astype(np.int32),
            r"1\d\d of 300 elements that differ, where float32 and float64 differ in",
        ),
        ("i32", lambda x: 3 * x + (x == 7), "1 of 300 elements that differ"),
    ],
)
def test_integers_that_rounding_does_not_explain_are_refused(tmp_path: Path, dtype: str, got: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_integers(dtype, got, tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_a_few_systematic_differences_are_no_rounding() -> None:
    wide = np.zeros(1000, np.int64)
    got = wide.copy()
    got[:3] = 1
    with pytest.raises(ExportError, match="3 of 1000 elements that differ"):
        undecided_elements("y", got, wide, wide)
    assert undecided_elements("y", got, np.where(np.arange(1000) == 5, 1, wide), wide).sum() == 4


def test_a_tolerance_stretches_to_four_times_the_frameworks_own_error() -> None:
    reference = np.array([1.0, -1.0, 1.0, -1.0])
    got = reference.astype(np.float32) + np.float32([0, 1e-4, 0, 0])
    tolerances = derive_tolerances("y", got, reference)
    assert tolerances.rtol == 2e-5
    assert tolerances.atol == pytest.approx(4e-4, rel=1e-3)
    assert tolerances.rms_error == pytest.approx(5e-5, rel=1e-3)


@pytest.mark.parametrize(
    ("got", "reference", "message"),
    [
        (np.float32([1, 2]), np.array([[1.0, 2.0]]), r"shape \[1, 2\] for \[2\]"),
        (np.int64([1, 2]), np.int64([1, 3]), "1 of 2 elements that differ"),
        (np.int64([1, 2]), np.int32([1, 2]), "int32 for int64"),
        (np.bool_([True]), np.bool_([False]), "1 of 1 elements that differ"),
        (np.float32([1, np.nan]), np.array([1.0, 2.0]), "1 of 2 elements that are NaN or infinite on one side only"),
        (np.float32([1, np.inf]), np.array([1.0, -np.inf]), "1 of 2 elements that are NaN or infinite on one side only"),
        (np.float32([1] * 1000 + [1.01]), np.ones(1001), "a largest error of 0.01"),
        (np.float32([1.001] * 10), np.ones(10), "an rms error of 0.001"),
        (np.float32([0, 1e-20]), np.zeros(2), "a largest error of 1e-20"),
    ],
)
def test_what_rounding_cannot_explain_is_refused(got: np.ndarray, reference: np.ndarray, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        derive_tolerances("y", got, reference)


@pytest.mark.parametrize(
    "got",
    [
        np.float32([np.nan, np.inf, -np.inf, 1]),
        np.float32([]),
        np.float32(3),
        np.zeros(3, np.float32),
        np.float16([0.1, 0.2]),
        np.int8([1]),
    ],
)
def test_equal_results_have_no_error(got: np.ndarray) -> None:
    tolerances = derive_tolerances("y", got, got.astype(np.float64) if got.dtype.kind == "f" else got)
    assert (tolerances.rms_error, tolerances.relative_rms_error) == (0.0, 0.0)


def test_activations_that_vanish_in_float32_are_no_difference() -> None:
    tolerances = derive_tolerances("y", np.float32([0, 1e-42]), np.array([1e-50, 0]))
    assert tolerances.rms_error == 0.0


def test_work_inside_functions_is_counted() -> None:
    b = GraphBuilder("loop")
    f = b.function("step")
    h, x = f.input("h", "f32", (1, 4)), f.input("x", "f32", (1, 4))
    w = f.constant(np.eye(4, dtype=np.float32), name="w", key="w")
    f.output("h", f.add("add", [f.add("linear", [h, w, None], weight_layout="oi"), x]))
    step = f.build()
    xs, start = b.input("xs", "f32", (5, 1, 4)), b.input("start", "f32", (1, 4))
    b.output("y", b.add("scan", [start, xs], body=step, length=5, reverse=False, num_consts=0, num_carry=1))
    assert count_flops(b.build()) == 5 * (2 * 4 * 4 + 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m.json", "path without suffix: NAME.json"),
        (".json", "path without suffix: NAME.json"),
        ("m.safetensors", "path without suffix: NAME.json"),
        ("m.golden", "path without suffix: NAME.json"),
        ("m.golden.1", "path without suffix: NAME.json"),
        ("", "not a directory"),
        (".", "not a directory"),
        ("..", "not a directory"),
        ("k/..", "not a directory"),
        ("k/", "not a directory"),
        ("there", "not a directory. Hint: .*there/NAME"),
    ],
)
def test_a_prefix_that_is_no_name_is_refused_before_anything_is_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ExportError, match=message) as caught:
        write_export(
            GraphBuilder("g").build(), f"{tmp_path}/{name}", inputs={}, outputs={}, framework="f", framework_version="1", seed=0, threads=1
        )
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("name", ["m", "m.v2", "m.golden.old", "json", "golden"])
def test_dots_in_a_name_are_no_suffix(tmp_path: Path, name: str) -> None:
    assert check_prefix(tmp_path / name) == tmp_path / name


def test_weights_that_the_caller_gave_away_are_gone_during_the_check(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [replace(small_graph, constants=tuple(replace(c, source=c.data.copy()) for c in small_graph.constants))]
    weights, alive = [weakref.ref(constant.data) for constant in graphs[0].constants], []

    def load(prefix: Path) -> Graph:
        alive.append([weight() is not None for weight in weights])
        return load_graph(prefix)

    monkeypatch.setattr(bundle, "load_graph", load)
    given, outputs = small_run["inputs"], small_run["outputs"]
    write_export(graphs.pop(), tmp_path / "m", inputs=given, outputs=outputs, framework="f", framework_version="1", seed=0, threads=1)
    assert alive == [[False, False]]


def test_a_graph_without_outputs_is_refused(tmp_path: Path) -> None:
    b = GraphBuilder("silent")
    b.input("x", "f32", (1,))
    with pytest.raises(ExportError, match="export of 'silent': the model must return at least one tensor; got none"):
        write_export(b.build(), tmp_path / "m", inputs={}, outputs={}, framework="f", framework_version="1", seed=0, threads=1)


def test_an_interrupted_export_leaves_no_file(
    tmp_path: Path, small_graph: Graph, small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "write_golden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_export(small_graph, tmp_path / "small", **small_run)
    assert not list(tmp_path.iterdir())


LIMITED = """
import resource, sys
import numpy as np
from exporters.bundle import write_export
from exporters.errors import ExportError
from rml_exec.loading import GraphBuilder
b = GraphBuilder("big")
x = b.input("x", "f32", (64,))
b.output("y", b.add("add", [x, b.constant(np.ones((256, 64), np.float32), "w")]))
graph, given = b.build(), np.zeros(64, np.float32)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    outputs = {"y": np.ones((256, 64), np.float32)}
    write_export(graph, sys.argv[1], inputs={"x": given}, outputs=outputs, framework="f", framework_version="1", seed=0, threads=1)
except ExportError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [0, 1000, 66000])  # for nothing; for some of the weights; for all but the golden
def test_a_file_that_the_system_cuts_short_leaves_no_file(tmp_path: Path, room: int) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "big"), str(room)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert "its directory must be writable and have room" in ended.stdout
    assert "File too large" in ended.stdout
    assert ended.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_read_only_directory_is_one_sentence(small_graph: Graph, small_run: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:  # its parents can be entered by everybody, other than those of tmp_path
        os.chmod(directory, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # the superuser may write everywhere
        try:
            with pytest.raises(ExportError, match=r"must be writable and have room; got .*Permission denied"):
                write_export(small_graph, Path(directory) / "small", **small_run)
        finally:
            os.seteuid(user)
        assert os.listdir(directory) == []
