"""How a model becomes a graph: known values, functions, names, metadata, goldens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.__main__ import main
from exporters.bundle import is_finished
from exporters.errors import ExportError, MissingFrameworkError
from exporters.from_onnx import export, to_graph
from rml_exec import ExecutionPlan, Executor, load_graph
from rml_exec.errors import PlanError
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.plan.lifetimes import INPLACE_REUSE, NOT_USED_AFTER, PEAK_MEMORY, RELEASE_AFTER, annotate
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.text_models import assert_matches, node_count, onnx, parsed

pytestmark = pytest.mark.onnx

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def test_what_is_known_is_computed_at_import() -> None:
    model = parsed(
        """g (float[2,3] x) => (float[3,2] y, int64[3] n) <int64 i = {0}, int64 j = {1}, int64[1] zero = {0}> {
            s = Shape(x) a = Gather(s, j) b = Gather(s, i) a1 = Unsqueeze(a, zero) b1 = Unsqueeze(b, zero)
            t = Concat <axis: int = 0> (a1, b1) y = Reshape(x, t) n = Concat <axis: int = 0> (a1, b1, zero)
        }"""
    )
    graph = assert_matches(model, {"x": X})
    assert [node.op for node in graph.nodes] == ["reshape"]
    assert [constant.data.tolist() for constant in graph.constants] == [[3, 2, 0]]


def test_known_inputs_are_constants() -> None:
    model = parsed("g (float[2,3] x, int64[2] shape) => (y) { y = Reshape(x, shape) }")
    graph = assert_matches(model, {"x": X, "shape": np.array([3, 2])}, known={"shape": np.array([3, 2])})
    assert [value.name for value in graph.inputs] == ["x"]
    with pytest.raises(Exception, match="depends on the inputs"):
        to_graph(model)


def test_repeated_elements_and_transposed_weights_are_stored_once() -> None:
    model = parsed(
        """g (float[64,64] x) => (float[64,64] y, float[64,64] z) <float one = {1.5}, int64[2] shape = {64, 64}, float[64,64] w = {1}> {
            e = Expand(one, shape) y = Add(x, e) t = Transpose(w) u = MatMul(x, w) v = MatMul(u, t) c = ConstantOfShape(shape) z = Mul(v, c)
        }"""
    )
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    graph = assert_matches(model, {"x": np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)})
    assert [constant.key for constant in graph.constants if constant.type.size > 1] == ["w"]
    assert [node.attrs["weight_layout"] for node in graph.nodes if node.op == "linear"] == ["io", "oi"]
    assert node_count(graph, "broadcast") == 2


def test_names_are_the_models_where_they_are_legal() -> None:
    model = parsed('g (float[2] "in:0") => (float[2] "out:0", float[2] h) { "a/b" = Neg("in:0") h = Abs("a/b") "out:0" = Exp(h) }')
    model.graph.node[0].name = "first"
    graph = to_graph(model)
    assert [value.name for value in graph.inputs] == ["in_0"]
    assert [(output.name, output.value) for output in graph.outputs] == [("out_0", "out_0"), ("h", "h")]
    assert [(node.name, node.outputs[0].name) for node in graph.nodes] == [("first", "a/b"), ("h", "h"), ("out_0", "out_0")]
    assert graph.nodes[0].source == {"op": "Neg"}


def test_old_files_list_initializers_among_the_inputs() -> None:
    model = parsed("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", opset=8, ir_version=3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    assert [value.name for value in to_graph(model).inputs] == ["x"]


def test_operators_that_nothing_needs_are_left_out() -> None:
    graph = to_graph(parsed("g (float[2] x, float[2] unused) => (float[2] y) <float[2] w = {1, 1}> { y = Neg(x) z = Frobnicate(x, w) }"))
    assert [node.op for node in graph.nodes] == ["neg"]
    assert not graph.constants


def test_outputs_may_be_inputs_constants_or_the_same_value() -> None:
    model = parsed(
        "g (float[2] x) => (float[2] x, float[2] w, float[2] a, float[2] b) <float[2] w = {1, 2}> { a = Neg(x) b = Identity(a) }"
    )
    graph = to_graph(model)
    results = run_reference(graph, {"x": X[0, :2]}, precision="f32")
    assert list(results) == ["x", "w", "a", "b"]
    np.testing.assert_array_equal(results["b"], -X[0, :2])


LOCAL = """
<opset_import: ["" : 22], domain: "local"> twice (x) => (y) { y = Add(x, x) }
<opset_import: ["" : 22, "local" : 1], domain: "local"> scaled <factor, offset: float = 1.0> (x, extra) => (y, z) {
    f = Constant <value_float: float = @factor> ()
    o = Constant <value_float: float = @offset> ()
    m = Mul(x, f) a = Add(m, o) z = local.twice(a) y = Clip(z, extra)
}
"""


def test_functions_of_the_model_are_inlined() -> None:
    model = parsed(
        """g (float[2,3] x, float low) => (float[2,3] y, float[2,3] w) {
            y = local.scaled <factor: float = 3.0> (x)
            w, v = local.scaled <factor: float = 0.5, offset: float = 2.0> (x, low)
        }""",
        local=LOCAL,
    )
    model.graph.node[0].name = "first"
    graph = to_graph(model)
    results = run_reference(graph, {"x": X, "low": np.array(3, np.float32)}, precision="f32")
    np.testing.assert_allclose(results["y"], 2 * (3 * X + 1))
    np.testing.assert_allclose(results["w"], np.maximum(2 * (0.5 * X + 2), 3))
    assert {"first/m", "first/a"} <= {value.name for node in graph.nodes for value in node.outputs}


def test_a_function_of_the_model_comes_before_an_operator_of_that_name() -> None:
    local = '<opset_import: ["" : 22], domain: "local"> Neg (x) => (y) { y = Abs(x) }'
    graph = to_graph(parsed("g (float[2] x) => (float[2] y) { y = local.Neg(x) }", local=local))
    assert [node.op for node in graph.nodes] == ["abs"]


def test_operators_with_a_function_body_are_expanded() -> None:
    from exporters.from_onnx.context import ONNX

    assert ONNX.get("LinearAttention") is None
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("SwiGLU", ["a", "b"], ["y"], alpha=0.5)],
            "g",
            [onnx.helper.make_tensor_value_info(name, 1, [2, 3]) for name in "ab"],
            [onnx.helper.make_tensor_value_info("y", 1, [2, 3])],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 28)],
        ir_version=13,
    )
    assert_matches(model, {"a": X, "b": X + 1})


def test_where_a_node_comes_from() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    trace = 'File "/home/a/model.py", line 12, in forward\\n  File "/lib/site-packages/torch/nn.py", line 3, in call'
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    model.graph.node[0].metadata_props.add(key="note", value="kept")
    (node,) = to_graph(model).nodes
    assert node.source == {"op": "Neg", "where": "model.py:12"}
    assert node.metadata["note"] == "kept"


CHAIN = """g (float[2,3] x) => (float[3,2] y) <float[3] w = {1, 2, 3}, int64[2] shape = {3, 2}, float two = {2}> {
    k = Mul(w, two) a = Mul(x, k) r = Relu(a) b = Neg(r) q = Reshape(b, shape) c = Exp(q) m = Mish(c) y = Add(m, m)
}"""


def annotated_model(extra: dict[str, dict[str, str]]) -> onnx.ModelProto:
    """Returns the chain with annotations by the first output of the node: theirs are complete but for ``extra``."""
    model = parsed(CHAIN)
    found: dict[str, dict[str, str]] = {
        "k": {"not_used_after": "w;two"},
        "a": {"release_after": "k", "not_used_after": "x"},
        "r": {"release_after": "a", "inplace_reuse": "r:a:equal"},
        "b": {"release_after": "r", "inplace_reuse": "b:r:equal"},
        "q": {"release_after": "b", "not_used_after": "shape"},
        "c": {"release_after": "q", "inplace_reuse": "c:q:equal"},
        "m": {"release_after": "c", "inplace_reuse": "m:c:equal", "peak_memory": "128"},
        "y": {"release_after": "m"},
    }
    for node in model.graph.node:
        for key, value in {**found[node.output[0]], **extra.get(node.output[0], {})}.items():
            if value:
                node.metadata_props.add(key=f"onnx_light.{key}", value=value)
    return model


def test_lifetime_annotations_become_the_plans() -> None:
    graph = to_graph(annotated_model({}))
    assert ExecutionPlan(graph).num_nodes == len(graph.nodes)
    by_output = {node.outputs[0].name: node for node in graph.nodes}
    assert by_output["r"].metadata[INPLACE_REUSE] == "r:a:equal"
    assert by_output["b"].metadata == {INPLACE_REUSE: "b:r:equal", RELEASE_AFTER: "r"}
    assert "k" in by_output["a"].metadata[NOT_USED_AFTER]  # computed at import, k is a constant that is unlocked
    assert INPLACE_REUSE not in by_output["c"].metadata  # what was a copy is a view here
    assert by_output["m"].metadata[PEAK_MEMORY] == "128"
    assert by_output["m"].metadata[INPLACE_REUSE] == "m:c:equal"  # Mish is three of our nodes, the last one gives its result
    released = {name for node in graph.nodes for name in node.metadata.get(RELEASE_AFTER, "").split(";")}
    assert released - {""} == {value.name for node in graph.nodes for value in node.outputs} - {"y"}


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"b": {"release_after": ""}}, "'r' is never released"),
        ({"a": {"not_used_after": ""}}, "'x' has its last use here and is never unlocked"),
        ({"r": {"inplace_reuse": "r:a:greater"}}, "is equal for 'r'"),
        ({"m": {"peak_memory": "much"}}, "number of bytes"),
    ],
)
def test_wrong_lifetime_annotations_are_found_by_the_plan(extra: dict[str, dict[str, str]], match: str) -> None:
    graph = to_graph(annotated_model(extra))
    with pytest.raises(PlanError, match=match):
        ExecutionPlan(graph)


def test_annotations_of_our_own_come_back(small_graph: Graph) -> None:
    model = parsed("g (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Neg(a) c = Abs(b) y = Add(c, x) }")
    plain = annotate(to_graph(model))
    for theirs, ours in zip(model.graph.node, plain.nodes, strict=True):
        for key, text in ours.metadata.items():
            theirs.metadata_props.add(key=key.replace("rml.", "onnx_light."), value=text)
    again = to_graph(model)
    assert [set(node.metadata.items()) for node in again.nodes] == [set(node.metadata.items()) for node in plain.nodes]
    assert ExecutionPlan(again).peak_bytes == ExecutionPlan(plain).peak_bytes


@pytest.mark.parametrize("source", ["reference", "onnxruntime"])
def test_export_writes_a_golden(tmp_path: Path, source: str) -> None:
    if source == "onnxruntime":
        pytest.importorskip("onnxruntime")
    model = parsed(
        """g (float[2,3] x, int64[4] ids) => (float[2,3] y, float[4,2] rows) <float[5,2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            y = Softmax(x) rows = Gather(table, ids)
        }"""
    )
    summary = export(model, tmp_path / "m", golden_from=source, goldens=2)
    assert summary.golden_error < 1e-5
    assert is_finished(tmp_path / "m", goldens=2)
    golden = read_golden(tmp_path / "m.golden.safetensors")
    assert golden.metadata["framework"] == ("onnx" if source == "reference" else source)
    assert set(golden.inputs["ids"]) <= set(range(5))
    results = Executor.create(load_graph(tmp_path / "m"), threads=1).run(golden.inputs)
    np.testing.assert_allclose(results["rows"], golden.outputs["rows"])


def test_golden_from_files(tmp_path: Path) -> None:
    model = parsed('g (float[2,3] "x:0") => (float[2,3] y) { y = Neg("x:0") }')
    np.savez(tmp_path / "both.npz", **{"x:0": X, "y": -X})
    export(model, tmp_path / "a", golden_from=str(tmp_path / "both.npz"))
    golden = read_golden(tmp_path / "a.golden.safetensors")
    np.testing.assert_array_equal(golden.inputs["x_0"], X)
    for number in (0, 1):
        folder = tmp_path / "data" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        for name, array in (("input_0", X + number), ("output_0", -X - number)):
            (folder / f"{name}.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    export(model, tmp_path / "b", golden_from=str(tmp_path / "data"))
    assert read_golden(tmp_path / "b.golden.1.safetensors").outputs["y"][0, 0] == 1.5
    np.savez(tmp_path / "wrong.npz", **{"x:0": X, "y": X})
    with pytest.raises(ExportError, match="must give what the framework gives"):
        export(model, tmp_path / "c", golden_from=str(tmp_path / "wrong.npz"))
    assert not is_finished(tmp_path / "c")


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"z": X}, "named as the model's"),
        ({"y": X}, "all inputs of the model; got none for x"),
        ({"x": X, "a": X}, "all outputs of the model or none"),
    ],
)
def test_incomplete_golden_files(tmp_path: Path, arrays: dict[str, Any], match: str) -> None:
    np.savez(tmp_path / "set.npz", **arrays)
    model = parsed("g (float[2,3] x) => (float[2,3] y, float[2,3] a) { a = Abs(x) y = Neg(x) }")
    with pytest.raises(ExportError, match=match):
        export(model, tmp_path / "m", golden_from=str(tmp_path / "set.npz"))


def test_golden_from_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }")
    with pytest.raises(ExportError, match="must be onnxruntime, reference, or a file"):
        export(model, tmp_path / "m", golden_from="magic")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingFrameworkError, match="pip install rml-exec"):
        export(model, tmp_path / "m", golden_from="onnxruntime")
    export(model, tmp_path / "m")
    assert read_golden(tmp_path / "m.golden.safetensors").metadata["framework"] == "onnx"


def test_a_wrong_result_names_the_first_node_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporters.from_onnx.context import ONNX

    monkeypatch.setitem(ONNX._functions, "Abs", lambda ctx, node: ctx.add("neg", [ctx.need(0)]))
    model = parsed("g (float[2,3] x) => (float[2,3] y) { a = Exp(x) n = Neg(a) b = Abs(n) c = Abs(x) y = Add(b, c) }")
    with pytest.raises(ExportError, match="First node that differs: neg 'c'"):
        export(model, tmp_path / "m", golden_from="reference")


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parsed("g (float[batch,3] x) => (float[batch,3] y) { y = Softmax(x) }").SerializeToString())
    out = str(tmp_path / "out")
    command = ["--from", "onnx", str(path), "--out", out, "--golden-from", "reference"]
    assert main([*command, "--dim", "batch=4"]) == 0
    assert load_graph(out).inputs[0].type.shape == (4, 3)
    assert main([*command, "--input-shape", "x=5,3"]) == 0
    assert load_graph(out).inputs[0].type.shape == (5, 3)
    assert main([*command, "--dim", "batch=2..9"]) == 0
    assert load_graph(out).dims["batch"] == {"min": 2, "max": 9, "hint": 2}
    capfd.readouterr()
    for wrong in (["--dim", "other=4"], ["--dim", "batch"], ["--input-shape", "x"], ["--input-shape", "z=1"], ["--input-shape", "x=5,4"]):
        assert main([*command, *wrong]) == 2
        assert capfd.readouterr().err.count("\n") == 1
    assert main(["--from", "onnx", "--out", out]) == 2
    assert main(["--from", "torch", str(path), "--out", out]) == 2
    assert os.path.exists(out + ".json")
