"""ONNX files where a model is expected: ``load_graph("model.onnx")`` and ``rml-graph-run model.onnx``, imported once into the user's cache."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import exporters.from_onnx.cache as cache
from exporters.errors import ExportError
from rml_exec import Executor, load_graph
from rml_exec.errors import GraphFormatError
from rml_exec.graph_run.main import main
from rml_exec.loading import find_model
from tests.exporters.from_onnx.test_reading import external_model, written
from tests.exporters.from_onnx.text_models import parsed

pytestmark = pytest.mark.onnx


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs the importer, as the wheel's metadata do, with an empty cache; returns the folder of the cache."""
    site = tmp_path / "site" / "hook-1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: hook\nVersion: 1\n")
    (site / "entry_points.txt").write_text("[rml_exec.importers]\nonnx = exporters.from_onnx.cache:import_file\n")
    monkeypatch.syspath_prepend(str(site.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rml-exec" / "imports"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    return written(folder, parsed("g (float[batch,3] x) => (float[batch,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"))


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object], str]:
    code = main(list(arguments))
    shown = capfd.readouterr()
    return code, json.loads(shown.out) if shown.out else {}, shown.err


def test_the_entry_point_is_the_packages_own() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '[project.entry-points."rml_exec.importers"]\nonnx = "exporters.from_onnx.cache:import_file"' in text


def test_load_graph_takes_an_onnx_file(imports: Path, model: Path) -> None:
    for source in (model, str(model)):
        graph = load_graph(source)
        x = np.ones((4, 3), np.float32)
        np.testing.assert_array_equal(Executor.create(graph, threads=1).run({"x": x})["y"], x * [1, 2, 3])
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]  # nothing is written beside the model


def test_rml_graph_run_takes_an_onnx_file(imports: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, report, errors = run(capfd, str(model), "--bench", "3")
    assert (code, report["model"], report["iterations"], errors) == (0, "model", 3, "")
    code, report, errors = run(capfd, str(model), "--check")
    assert (code, report["check"], errors) == (0, "pass", "")


def test_a_file_is_imported_once(imports: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.import_file(model)
    monkeypatch.setattr("exporters.from_onnx.reading.read_model", lambda *_: pytest.fail("read again"))
    assert cache.import_file(model) == first
    assert first.parents[2] == imports


def test_another_content_is_another_import(imports: Path, model: Path) -> None:
    first = cache.import_file(model)
    written(model.parent, parsed("g (float[batch,3] x) => (float[batch,3] y) { y = Neg(x) }"))
    second = cache.import_file(model)
    assert first != second
    assert [node.op for node in load_graph(second).nodes] == ["neg"]


def test_another_importer_is_another_import(imports: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.import_file(model)
    monkeypatch.setattr(cache, "_code", lambda: b"changed")
    assert cache.import_file(model) != first


def test_changed_external_data_are_noticed(imports: Path, tmp_path: Path) -> None:
    data = tmp_path / "w.bin"
    data.write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    model = written(tmp_path, external_model("w.bin"))
    assert load_graph(model).constants[0].data.tolist() == [1, 2, 3]
    data.write_bytes(np.array([4, 5, 6], np.float32).tobytes())
    os.utime(data, ns=(1, 1))
    assert load_graph(model).constants[0].data.tolist() == [4, 5, 6]


def test_an_interrupted_import_is_done_again(imports: Path, model: Path) -> None:
    prefix = cache.import_file(model)
    (prefix.parent / "import.json").unlink()
    Path(f"{prefix}.json").write_text("half")
    assert load_graph(model).name == "model"


@pytest.mark.parametrize("suffix", [".json", ".golden.safetensors"])
def test_a_damaged_import_is_replaced(imports: Path, model: Path, suffix: str, capfd: pytest.CaptureFixture[str]) -> None:
    prefix = cache.import_file(model, golden=True)
    for damage in (lambda path: path.write_bytes(path.read_bytes()[:20]), Path.unlink):
        damage(Path(f"{prefix}{suffix}"))
        assert run(capfd, str(model), "--check")[:1] == (0,)
    assert sorted(path.name for path in prefix.parents[1].iterdir()) == [prefix.parent.name]  # no rubbish is left


def test_an_import_that_is_there_is_not_touched(imports: Path, model: Path) -> None:
    plain = cache.import_file(model)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in plain.parent.iterdir()}
    checked = cache.import_file(model, golden=True)
    assert checked.parent != plain.parent
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in plain.parent.iterdir()} == before
    assert cache.import_file(model) == checked  # which serves both


def test_imports_at_once_do_not_meet(imports: Path, model: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        prefixes = list(pool.map(lambda index: cache.import_file(model, golden=index % 2 == 0), range(12)))
    for prefix in prefixes:
        assert load_graph(prefix).name == "model"
        assert (prefix.parent / "model.golden.safetensors").is_file()
    assert len({prefix.parent for prefix in prefixes}) <= 2
    assert not list(imports.glob("*/.part*"))


def test_external_data_that_are_missing_are_named(imports: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path, external_model("gone.bin"))
    code, _, errors = run(capfd, str(model))
    assert code == 2
    assert "gone.bin: No such file" in errors
    assert "output" not in errors


def test_a_file_that_is_missing_is_named_as_it_was_given(imports: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capfd, str(tmp_path / "nope.onnx"))
    assert code == 2
    assert "nope.onnx: cannot be read; got no such file" in errors
    assert "json" not in errors


def test_options_of_the_import_are_those_of_another_command(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(model), "--dim", "batch=2"])
    assert f"python -m exporters --from onnx {model} --out PREFIX --dim batch=2" in capfd.readouterr().err


def test_memory_that_there_is_not_ends_the_command_with_a_sentence(
    imports: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "g (float[1] x) => (float[n] y) <int64[1] s = {1099511627776}> { t = Tile(x, s) y = Neg(t) }"
    code, _, errors = run(capfd, str(written(tmp_path, parsed(text))))
    assert (code, errors.count("\n")) == (2, 1)
    assert "must fit into memory" in errors


def test_an_exported_model_of_that_name_comes_first(imports: Path, model: Path) -> None:
    assert find_model(model) != model
    Path(f"{model}.json").write_text("{}")
    assert find_model(model) == model


def test_a_cache_that_cannot_be_written(tmp_path: Path, model: Path, imports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(ExportError, match="must be writable"):
        load_graph(model)
    assert stat.S_ISREG(blocked.stat().st_mode)


def test_files_that_no_importer_takes(imports: Path, tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "model.pdf"
    other.write_text("x")
    with pytest.raises(GraphFormatError, match=r"importers are installed for: \.onnx"):
        load_graph(other)
    with pytest.raises(GraphFormatError, match="cannot be read"):
        load_graph(tmp_path / "missing.onnx")
    model.write_bytes(b"broken")
    code, _, errors = run(capfd, str(model))
    assert code == 2
    assert errors.count("\n") == 1
    assert "is no ONNX model" in errors
