"""Sizes that a model leaves open: symbolic dims, fixed ones, and the report of those that must be fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx import export, parse_input_shape, parse_size, to_graph
from rml_exec import Executor
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from tests.exporters.from_onnx.text_models import ReferenceEvaluator, node_count, onnx, parsed

pytestmark = pytest.mark.onnx


def assert_all_sizes(model: onnx.ModelProto, shapes: list[dict[str, tuple[int, ...]]], **options: Any) -> Graph:
    """Asserts that one symbolic graph gives what the reference evaluator gives at all these shapes."""
    graph = to_graph(model, **options)
    executor = Executor.create(graph, threads=1)
    generator = np.random.default_rng(0)
    for given in shapes:
        inputs = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in given.items()}
        expected = ReferenceEvaluator(model).run(None, inputs)
        for (name, got), want in zip(executor.run(inputs).items(), expected, strict=True):
            assert got.shape == want.shape, name
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=name)
    return graph


def test_named_dims_stay_open() -> None:
    model = parsed(
        """g (float[batch,tokens,8] x, float[batch,tokens,8] z) => (y)
            <int64[1] minus = {-1}, int64[1] two = {2}, int64[1] four = {4}, int64 i0 = {0}, int64 i1 = {1}, int64[1] axis = {0}> {
            s = Shape(x) b = Gather(s, i0) t = Gather(s, i1) b1 = Unsqueeze(b, axis) t1 = Unsqueeze(t, axis)
            shape = Concat <axis: int = 0> (b1, t1, two, four) sum = Add(x, z)
            split = Reshape(sum, shape) heads = Transpose <perm: ints = [0, 2, 1, 3]> (split)
            flat = Concat <axis: int = 0> (b1, minus) y = Reshape(heads, flat)
        }"""
    )
    shapes = [dict.fromkeys("xz", (batch, tokens, 8)) for batch, tokens in ((1, 1), (1, 7), (3, 1), (4, 5))]
    graph = assert_all_sizes(model, shapes)
    assert graph.dims == {"batch": {"min": 1, "max": None, "hint": 1}, "tokens": {"min": 1, "max": None, "hint": 8}}


def test_numbers_that_depend_on_dims_are_computed_at_run_time() -> None:
    model = parsed(
        """g (float[batch,tokens] x) => (y, n, p) <int64 zero = {0}, int64 one = {1}, int64 i1 = {1}, float half = {0.5}> {
            s = Shape(x) t = Gather(s, i1) f = Cast <to: int = 1> (t) root = Sqrt(f) scaled = Div(x, root)
            r = Range(zero, t, one) rf = Cast <to: int = 1> (r) rh = Mul(rf, half) y = Add(scaled, rh)
            n = Cast <to: int = 1> (s) p = Range(t, zero, one_back) one_back0 = Neg(one)
        }""".replace("n = Cast", "one_back = Neg(one) n = Cast").replace(" one_back0 = Neg(one)", "")
    )
    graph = assert_all_sizes(model, [{"x": (2, 3)}, {"x": (1, 1)}, {"x": (5, 40)}])
    assert node_count(graph, "iota") >= 2


def test_sizes_after_strides_are_expressions() -> None:
    model = parsed(
        """g (float[N,3,height,width] x) => (y, m) <float[4,3,3,3] w = {1}, float[2,4,5,5] w2 = {1}> {
            a = Conv <strides: ints = [2, 2], pads: ints = [1, 1, 1, 1]> (x, w) b = Relu(a)
            m = MaxPool <kernel_shape: ints = [3, 3], strides: ints = [2, 3]> (b)
            y = Conv <strides: ints = [3, 2], pads: ints = [0, 2, 1, 2], dilations: ints = [1, 2]> (b, w2)
        }"""
    )
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(generator.standard_normal(tuple(tensor.dims)).astype(np.float32), tensor.name))
    graph = assert_all_sizes(model, [{"x": (1, 3, 40, 33)}, {"x": (2, 3, 31, 64)}])
    assert graph.dims["height"]["hint"] == 64  # eight pixels are too few
    assert graph.dims["height"]["min"] == 1


def test_paddings_that_depend_on_sizes() -> None:
    model = parsed(
        """g (float[N,2,length] x) => (y) <float[3,2,4] w = {1}> {
            y = Conv <strides: ints = [3], auto_pad: string = "SAME_UPPER"> (x, w)
        }"""
    )
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32), "w")
    )
    assert_all_sizes(model, [{"x": (1, 2, length)} for length in (4, 9, 10, 11, 12, 30)])


def test_dims_are_fixed_or_bounded() -> None:
    model = parsed("g (float[batch,tokens] x) => (y) { y = Softmax(x) }")
    assert to_graph(model, dims={"batch": 2, "tokens": 5}).inputs[0].type.shape == (2, 5)
    graph = to_graph(model, dims={"batch": 3, "tokens": (2, 16)})
    assert graph.dims == {"tokens": {"min": 2, "max": 16, "hint": 8}}
    assert graph.inputs[0].type.shape == (3, 8)
    assert to_graph(model, input_shapes={"x": (2, 7)}).inputs[0].type.shape == (2, 7)
    assert set(to_graph(model, input_shapes={"x": ("rows", 7)}).dims) == {"rows"}


def test_dims_without_a_legal_name_get_one() -> None:
    model = parsed("g (float[2,3] x, float[2,3] z) => (y) { y = Add(x, z) }")
    for value, params in zip(model.graph.input, ((None, "max"), ("batch size+1", "3d")), strict=True):
        for dim, param in zip(value.type.tensor_type.shape.dim, params, strict=True):
            dim.ClearField("value")
            if param:
                dim.dim_param = param
    with pytest.raises(ExportError) as raised:  # nothing says that both inputs have one shape
        to_graph(model)
    for name in ("x_dim0 (axis 0 of 'x')", "max_1 (axis 1 of 'x')", "batch_size_1 (axis 0 of 'z')", "dim_3d (axis 1 of 'z')"):
        assert name in str(raised.value)
    fixed = {"x_dim0": 2, "max": 3, "batch size+1": 2, "dim_3d": 3}  # names as in the file or as reported
    assert to_graph(model, dims=fixed).inputs[1].type.shape == (2, 3)


def test_dims_that_must_be_fixed_are_listed_with_their_options() -> None:
    model = parsed("g (float[batch,tokens] x) => (y) <int64[2] shape = {4, 7}> { y = Reshape(x, shape) }")
    with pytest.raises(ExportError) as raised:
        to_graph(model)
    text = str(raised.value)
    assert "batch (axis 0 of 'x'): --dim batch=1" in text
    assert "--dim tokens=" in text
    assert "--input-shape x=1," in text
    assert "reshape 'y': shape must hold" in text
    assert to_graph(model, dims={"batch": 4, "tokens": 7}).inputs[0].type.shape == (4, 7)


def test_operators_without_any_lowering_are_reported_as_such() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="TreeEnsembleUnknown"):
        to_graph(parsed("g (float[batch] x) => (y) { y = TreeEnsembleUnknown(x) }"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dims": {"other": 3}}, r"got 'other'. Hint: it leaves open batch"),
        ({"input_shapes": {"z": (1, 3)}}, "its inputs only"),
        ({"input_shapes": {"x": (1, 4)}}, r"the model says \[batch,3\]; got \[1,4\]"),
        ({"input_shapes": {"x": (1, 3, 1)}}, "the model says"),
    ],
)
def test_sizes_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        to_graph(parsed("g (float[batch,3] x) => (y) { y = Neg(x) }"), **options)


def test_options_of_the_command() -> None:
    assert parse_size("batch=1") == ("batch", 1)
    assert parse_size("a b=2..") == ("a b", (2, None))
    assert parse_size("n=2..64") == ("n", (2, 64))
    assert parse_input_shape("x=1,3,N") == ("x", (1, 3, "N"))
    assert parse_input_shape("scalar=") == ("scalar", ())
    for text in ("batch", "=3", "batch=x", "batch=5..4", "batch=0.."):
        with pytest.raises(ExportError, match="--dim"):
            parse_size(text)
    for text in ("x", "=1", "x=1,,2", "x=-1"):
        with pytest.raises(ExportError, match="--input-shape"):
            parse_input_shape(text)


def test_goldens_are_made_at_other_sizes_too(tmp_path: Path) -> None:
    model = parsed("g (float[batch,tokens,4] x) => (y) { y = Softmax <axis: int = 1> (x) }")
    export(model, tmp_path / "m", golden_from="reference")
    shapes = [read_golden(path).inputs["x"].shape for path in sorted(tmp_path.glob("m.golden*"), key=lambda path: len(path.name))]
    assert shapes[0] == (1, 8, 4)
    assert sorted(shapes[1:]) == [(1, 1, 4), (5, 19, 4)]
    assert load_graph(tmp_path / "m").bind(batch=9, tokens=2).inputs[0].type.shape == (9, 2, 4)


def test_given_inputs_are_the_hints(tmp_path: Path) -> None:
    model = parsed("g (float[batch,4] x) => (y) { y = Neg(x) }")
    export(model, tmp_path / "m", golden_from="reference", inputs={"x": np.ones((6, 4), np.float32)})
    assert load_graph(tmp_path / "m").dims["batch"]["hint"] == 6


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes_after_a_resize_by_a_fraction_are_expressions(mode: str) -> None:
    text = f'g (float[1, 2, h, 6] x) => (float[1, 2, k, 9] y) <float[4] s = {{1, 1, 0.7, 1.5}}> {{ y = Resize <mode = "{mode}"> (x, , s) }}'
    graph = to_graph(parsed(text))
    for size in (10, 13, 20, 50):
        assert graph.bind(h=size).nodes[0].outputs[0].type.shape == (1, 2, size * 7 // 10, 9)
