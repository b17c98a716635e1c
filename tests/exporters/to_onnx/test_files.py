"""The files: names, metadata, dims, external data, checks, the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from exporters import __main__ as command  # noqa: E402
from exporters.bundle import write_export  # noqa: E402
from exporters.dims import Dim, generalise, trial_sizes  # noqa: E402
from exporters.errors import ExportError, UnsupportedOperatorsError  # noqa: E402
from exporters.to_onnx import DEFAULT_OPSET, to_model, to_onnx  # noqa: E402
from rml_exec import GraphBuilder  # noqa: E402
from rml_exec.ir.golden import Golden, read_golden, write_golden  # noqa: E402
from rml_exec.ir.graph import Graph  # noqa: E402
from rml_exec.loading import check_graph  # noqa: E402
from rml_exec.runtime.reference import run_reference  # noqa: E402
from tests.exporters.to_onnx.onnx_runs import operators, run_model  # noqa: E402


@pytest.fixture
def prefix(tmp_path: Path, small_graph: Graph, small_run: dict[str, Any]) -> Path:
    write_export(small_graph, tmp_path / "small", **small_run)
    return tmp_path / "small"


def test_an_export_is_written_checked_and_compared_with_its_golden(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    summary = to_onnx(prefix, tmp_path / "out" / "small.onnx")
    assert (summary.golden, summary.opset, summary.external) == ("pass", DEFAULT_OPSET, None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.onnx"]
    model = onnx.load(summary.path)
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["y", "n"]
    assert {tensor.name for tensor in model.graph.initializer} == {"weight", "bias"}
    assert operators(model) == ["Gemm", "Relu", "ArgMax"]
    assert {entry.key: entry.value for entry in model.metadata_props}["rml.framework"] == "numpy"
    assert "3 nodes" in str(summary)


def test_a_golden_that_differs_leaves_no_file(prefix: Path, tmp_path: Path) -> None:
    path = prefix.with_name("small.golden.safetensors")
    golden = read_golden(path)
    outputs = {name: array + 1 for name, array in golden.outputs.items()}
    write_golden(path, Golden({name: np.array(array) for name, array in golden.inputs.items()}, outputs, golden.metadata))
    with pytest.raises(ExportError, match="ONNX Runtime must give the golden's outputs"):
        to_onnx(prefix, tmp_path / "wrong.onnx")
    assert not list(tmp_path.glob("*wrong*"))
    assert to_onnx(prefix, tmp_path / "wrong.onnx", check=False).golden == "not checked"


def test_large_weights_go_into_a_file_beside_it(tmp_path: Path) -> None:
    b = GraphBuilder("large")
    x = b.input("x", "f32", (2, 300))
    weight = np.random.default_rng(0).standard_normal((7, 300)).astype(np.float32)
    b.output("y", b.add("linear", [x, b.constant(weight, "w", key="w"), None], weight_layout="oi"))
    summary = to_onnx(b.build(), tmp_path / "large.onnx", external_data=True)
    assert summary.external == tmp_path / "large.onnx.data"
    assert summary.external.stat().st_size == weight.nbytes
    assert summary.path.stat().st_mode == summary.external.stat().st_mode
    assert summary.golden == "absent"
    ones = np.ones((2, 300), np.float32)
    (y,) = onnxruntime.InferenceSession(str(summary.path)).run(None, {"x": ones})
    np.testing.assert_allclose(y, ones @ weight.T, rtol=1e-4)
    assert to_onnx(b.build(), tmp_path / "small.onnx").external is None


@pytest.mark.parametrize("opset", [16, 1000])
def test_an_opset_out_of_range_says_which_there_are(opset: int, small_graph: Graph) -> None:
    with pytest.raises(ExportError, match=rf"opset must be 17 to \d+, the newest of the installed onnx; got {opset}"):
        to_model(small_graph, opset=opset)


def test_nodes_keep_names_metadata_and_source() -> None:
    b = GraphBuilder("named")
    x = b.input("x", "f32", (2, 3))
    y = b.add("rsqrt", [x], name="norm/rsqrt", metadata={"note": "kept"}, source={"op": "rsqrt", "where": "model.py:7"}, outputs=["r"])
    b.output("y", b.add("relu", [y], name="act"))
    model = to_model(b.build())
    inner, last, act = model.graph.node
    assert (inner.name, last.name, act.name) == ("norm/rsqrt/Sqrt", "norm/rsqrt", "act")
    assert list(last.output) == ["r"]
    assert {entry.key: entry.value for entry in last.metadata_props} == {"note": "kept"}
    assert [node.doc_string for node in model.graph.node] == ["model.py:7", "model.py:7", ""]
    assert model.ir_version >= 10  # the first with metadata of nodes


def test_outputs_may_be_inputs_constants_and_one_value_twice() -> None:
    b = GraphBuilder("outputs")
    x = b.input("x", "f32", (3,))
    y = b.add("relu", [x], outputs=["second"])
    b.output("first", y)
    b.output("second", y)
    b.output("given", x)
    b.output("fixed", b.constant(np.float32([1, 2]), "c"))
    model = to_model(b.build())
    onnx.checker.check_model(model, full_check=True)
    results = run_model(model, {"x": np.float32([-1, 0, 2])})
    assert [value.name for value in model.graph.output] == ["first", "second", "given", "fixed"]
    assert [result.tolist() for result in results] == [[0, 0, 2], [0, 0, 2], [-1, 0, 2], [1, 2]]


def test_an_output_called_like_an_input_gets_a_name_of_its_own() -> None:
    b = GraphBuilder("clash")
    b.output("x", b.add("relu", [b.input("x", "f32", (3,))]))
    model = to_model(b.build())
    assert [value.name for value in model.graph.output] == ["x_out"]
    assert {entry.key: entry.value for entry in model.metadata_props} == {"rml.output_names": "x"}
    assert run_model(model, {"x": np.float32([-1, 0, 2])})[0].tolist() == [0, 0, 2]


def tokens_graph(sizes: dict[str, int]) -> Graph:
    """Attention over tokens, with reshapes, masks, positions and a pooled result, at some sizes of its dims."""
    batch, tokens = sizes["batch"], sizes["tokens"]
    b = GraphBuilder("tokens")
    x, scale = b.input("x", "f32", (batch, tokens, 8)), b.input("scale", "f32", ())
    position = b.add("iota", [], dtype="f32", shape=(tokens, 1), axis=0)
    x = b.add("add", [x, b.add("broadcast", [position], shape=(batch, tokens, 8))])
    heads = b.add("transpose", [b.add("reshape", [x], shape=(batch, tokens, 2, 4))], perm=(0, 2, 1, 3))
    y = b.add("attention", [heads] * 3 + [None], scale=0.5, softcap=None, mask="causal", fully_masked="nan", kv_groups=1)
    y = b.add("reshape", [b.add("transpose", [y], perm=(0, 2, 1, 3))], shape=(batch * tokens, 8))
    y = b.add("mul", [y, b.add("broadcast", [scale], shape=(batch * tokens, 8))])
    half = b.add("slice", [y], start=(batch, 0), limit=(batch * tokens, 8), strides=(1, 1))
    b.output("y", y)
    b.output("half", half)
    b.output("scales", b.add("broadcast", [scale], shape=(tokens // 2 + 1, batch)))
    b.output("padded", b.add("pad", [x], mode="constant", low=(0, tokens, 0), high=(0, 0, 1), interior=(0, 0, 0), value=2.0))
    return b.build()


TOKENS = [Dim("batch", 1, 9, (("x", 0),)), Dim("tokens", 2, 64, (("x", 1),))]
HINT = {"batch": 2, "tokens": 6}


def symbolic(build: Any) -> Graph:
    return generalise([(sizes, build(sizes)) for sizes in trial_sizes(TOKENS, HINT)], TOKENS, HINT, ["tokens // 2 + 1"])


def test_dims_become_dim_params_and_the_file_runs_at_any_size() -> None:
    graph = symbolic(tokens_graph)
    model = to_model(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [size.dim_param or size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", "tokens", 8]
    assert [size.dim_param or size.dim_value for size in model.graph.output[2].type.tensor_type.shape.dim] == ["tokens // 2 + 1", "batch"]
    for sizes in (HINT, {"batch": 1, "tokens": 2}, {"batch": 7, "tokens": 31}):
        bound = graph.bind(**sizes)
        check_graph(bound)
        x = np.random.default_rng(3).standard_normal((sizes["batch"], sizes["tokens"], 8)).astype(np.float32)
        inputs = {"x": x, "scale": np.array(1.5, np.float32)}
        wanted = run_reference(bound, inputs, precision="f32")
        for name, got in zip(wanted, run_model(model, inputs), strict=True):
            np.testing.assert_allclose(got, wanted[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} at {sizes}")


def test_an_attribute_that_depends_on_dims_is_refused_by_name() -> None:
    def build(sizes: dict[str, int]) -> Graph:
        b = GraphBuilder("pooled")
        x = b.input("x", "f32", (sizes["batch"], sizes["tokens"], 8))
        window = {"window": (sizes["tokens"],), "strides": (1,), "pads": ((0, 0),), "data_layout": "NHWC"}
        b.output("y", b.add("avg_pool", [x], divisor="window", divisor_value=None, **window))
        return b.build()

    with pytest.raises(UnsupportedOperatorsError, match="its attribute 'window' depends on dims"):
        to_model(symbolic(build))


def test_the_command_writes_a_file_and_says_what_it_is(prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.onnx"
    assert command.main(["--to-onnx", str(prefix), str(path), "--opset", "17", "--external-data"]) == 0
    assert "opset 17, 3 nodes" in capsys.readouterr().err
    assert onnx.load(path).opset_import[0].version == 17
    assert command.main(["--to-onnx", str(tmp_path / "nothing"), str(path)]) == 2
    for folder in (f"{prefix}.json", tmp_path / "missing"):
        assert command.main(["--to-onnx", str(prefix), f"{folder}/x.onnx"]) == 2
    assert not (tmp_path / "missing").exists()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert "cannot be read" in said[0]
    assert all("its directory must be there" in line for line in said[1:])


def test_onnx_is_imported_by_the_first_call_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys, exporters.to_onnx, exporters.__main__; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert command.main(["--to-onnx", "any", "any.onnx"]) == 5
    assert "pip install rml-exec[onnx]" in capsys.readouterr().err
