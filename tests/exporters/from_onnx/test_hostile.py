"""Files that nobody would write on purpose, and what is said of them: one sentence that names the cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx import InferenceSession, to_graph
from rml_exec.errors import InputError, RmlError
from tests.exporters.from_onnx.onnx_support import i64, normal
from tests.exporters.from_onnx.text_models import parsed

pytestmark = pytest.mark.onnx


def model_of(nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str] = (2, 3), **initializers: np.ndarray) -> onnx.ModelProto:
    """Returns a model of input x and output y, which is not checked, as the parser of texts would do."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)], ir_version=10)


def node(op: str, inputs: str, outputs: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def test_nodes_are_put_into_an_order_in_which_they_can_run() -> None:
    branch = helper.make_graph([node("Neg", "inner", "out"), node("Exp", "t", "inner")], "b", [], [onnx.ValueInfoProto(name="out")])
    condition = onnx.numpy_helper.from_array(np.array(True))
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        node("Abs", "x", "t"),
        helper.make_node("Constant", [], ["c"], value=condition),
    ]
    model = model_of(nodes)
    before = model.SerializeToString()
    x = normal(2, 3)
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": x})[0], -np.exp(abs(x)), rtol=1e-6)
    assert model.SerializeToString() == before  # the caller's own


def test_an_order_that_can_run_is_kept() -> None:
    model = model_of([node("Exp", "x", "b"), node("Abs", "x", "a"), node("Add", "a b", "y")])
    assert [entry.op for entry in to_graph(model).nodes] == ["exp", "abs", "add"]


def test_functions_are_put_in_order_too() -> None:
    text = '<opset_import: ["" : 22], domain: "local"> f (x) => (y) { t = Abs(x) y = Exp(t) }'
    model = parsed("g (float[2] x) => (float[2] y) { y = local.f(x) }", local=text)
    nodes = list(model.functions[0].node)[::-1]
    del model.functions[0].node[:]
    model.functions[0].node.extend(nodes)
    assert [entry.op for entry in to_graph(model).nodes] == ["abs", "exp"]


def test_nodes_in_a_circle_are_refused() -> None:
    with pytest.raises(ExportError, match=r"in a circle; got Relu 'a', Neg 'b'\."):
        to_graph(model_of([node("Relu", "b", "a"), node("Neg", "a", "b"), node("Abs", "x", "y")]))


@pytest.mark.parametrize("nodes", [["x y", "x y"], ["x x"], ["x w"]])
def test_a_name_that_is_given_twice_is_refused(nodes: list[str]) -> None:
    made = [node("Neg", *pair.split()) for pair in nodes]
    with pytest.raises(ExportError, match=r"given once, but '[yxw]' is given again by Neg"):
        to_graph(model_of(made, w=i64(1)))


def test_functions_that_explode_are_refused_before_anything_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.from_onnx.importer.build_graph", lambda *_, **__: pytest.fail("lowered"))
    header = '<opset_import: ["" : 22, "local" : 1], domain: "local">'
    bodies = [f"{header} f{level} (x) => (y) {{ a = local.f{level + 1}(x) y = local.f{level + 1}(a) }}" for level in range(60)]
    last = f"{header} f60 (x) => (y) {{ y = Neg(x) }}"
    model = parsed("g (float[n] x) => (float[n] y) { y = local.f0(x) }", local="\n".join([*bodies, last]))
    with pytest.raises(ExportError, match=r"at most 1,000,000 nodes with its functions inlined; got about 10\^18"):
        to_graph(model)


@pytest.mark.parametrize(
    ("nodes", "initializers"),
    [
        ([node("ConstantOfShape", "s", "h"), node("Add", "x h", "y")], {"s": i64(1 << 20, 1 << 22, 1)}),
        ([node("Tile", "w s", "h"), node("Add", "x h", "y")], {"w": np.ones(100, np.float32), "s": i64(1 << 40)}),
        ([node("Pad", "x s", "y")], {"s": i64(1 << 42, 0)}),
        ([node("Range", "a b c", "h"), node("Mul", "h x", "y")], {"a": np.float32(0), "b": np.float32(1 << 42), "c": np.float32(1)}),
    ],
)
def test_results_beyond_all_memory_end_with_one_sentence(nodes: list[onnx.NodeProto], initializers: dict[str, np.ndarray]) -> None:
    with pytest.raises(RmlError, match="must fit into memory") as raised:
        InferenceSession(model_of(nodes, (1,), **initializers)).run(None, {"x": normal(1)})
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_what_fails_at_fixed_sizes_too_is_no_matter_of_dims() -> None:
    with pytest.raises(RmlError) as raised:
        to_graph(model_of([node("Conv", "x w", "y", strides=[0, 0])], ("n", 3, "h", "w"), w=normal(4, 3, 3, 3)))
    assert "strides must be at least 1" in str(raised.value)
    assert "the model is malformed" in str(raised.value)
    assert "--dim" not in str(raised.value)


def test_the_options_that_fix_dims_are_shown_with_their_command() -> None:
    with pytest.raises(RmlError, match=r"options of: python -m exporters --from onnx model --out PREFIX\n  n \(axis 0 of 'x'\): --dim n="):
        to_graph(model_of([node("Mul", "x x", "t"), node("Reshape", "t s", "y")], ("n",), s=i64(1, 1)))


def test_what_no_lowering_can_take_is_named() -> None:
    lstm = helper.make_node("DynamicQuantizeLSTM", ["x"], ["a"], domain="com.microsoft")
    with pytest.raises(UnsupportedOperatorsError) as raised:
        to_graph(model_of([lstm, node("Foo", "a", "b"), node("Relu", "b", "c"), node("Bar", "c", "y")]))
    text = str(raised.value)
    assert "3 operators in 3 nodes" in text  # also those behind others; Relu is none of them
    assert "com.microsoft.DynamicQuantizeLSTM (1x): contrib operator without a lowering" in text
    assert "Bar (1x)" in text


@pytest.mark.parametrize("k", [-1, 9])
def test_a_count_that_is_wrong_is_said_to_be_wrong(k: int) -> None:
    session = InferenceSession(parsed("g (float[n] x, int64[1] k) => (float[m] v, int64[m] i) { v, i = TopK(x, k) }"))
    with pytest.raises(RmlError, match=rf"its k must be one number from 0 to 5, the size of axis 0, not \[{k}\]"):
        session.run(None, {"x": normal(5), "k": i64(k)})


def test_counts_are_whole_numbers() -> None:
    with pytest.raises(RmlError, match=r"its shape must be whole numbers, not \[1\.5\]"):
        to_graph(model_of([node("ConstantOfShape", "s", "h"), node("Add", "x h", "y")], s=np.array([1.5], np.float32)))


def test_negative_sizes_are_unknown_ones() -> None:
    session = InferenceSession(model_of([node("Relu", "x", "y")], (-5, 3)))
    assert [arg.shape for arg in session.get_inputs()] == [[None, 3]]
    assert session.run(None, {"x": normal(2, 3)})[0].shape == (2, 3)
    with pytest.raises(InputError, match="shape"):
        session.run(None, {"x": normal(2, 4)})


def test_an_output_without_a_shape_gets_one() -> None:
    model = model_of([node("Relu", "x", "y")], ("n", 3))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert [arg.shape for arg in InferenceSession(model).get_outputs()] == [["n", 3]]


def test_an_output_of_unknown_rank_has_that_of_the_first_result() -> None:
    model = model_of([node("Reshape", "x s", "y")], ("n", 3))
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, ["r"]))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    session = InferenceSession(model)
    assert session.get_outputs()[0].shape == []
    session.run(None, {"x": normal(2, 3), "s": i64(3, 1, 2)})
    assert session.get_outputs()[0].shape == [None, None, None]


def test_an_output_that_is_listed_twice_is_given_twice() -> None:
    model = model_of([node("Neg", "x", "y")])
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    x = normal(2, 3)
    for names in (None, ["y", "y"]):
        first, second = InferenceSession(model).run(names, {"x": x})
        np.testing.assert_array_equal(first, -x)
        np.testing.assert_array_equal(second, -x)
