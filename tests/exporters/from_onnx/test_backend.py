"""Backend: the interface of onnx.backend.base."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx import Backend
from rml_exec.errors import InputError
from tests.exporters.from_onnx.onnx_support import i64, normal
from tests.exporters.from_onnx.text_models import parsed

pytestmark = pytest.mark.onnx

SUMS = "g (float[2] a, float[2] b) => (float[2] plus, float[2] minus) { plus = Add(a, b) minus = Sub(a, b) }"
A, B = normal(2), normal(2, seed=1)


def test_a_prepared_model_runs_inputs_in_order_or_by_name() -> None:
    assert isinstance(Backend(), onnx.backend.base.Backend)
    prepared = Backend.prepare(parsed(SUMS), "CPU", threads=1)
    for inputs in ([A, B], (A, B), {"b": B, "a": A}):
        results = prepared.run(inputs)
        np.testing.assert_array_equal(results[0], A + B)
        np.testing.assert_array_equal(results["minus"], A - B)
    (single,) = Backend.run_model(parsed("g (float[2] a) => (float[2] y) { y = Neg(a) }"), A)
    np.testing.assert_array_equal(single, -A)


def test_a_prepared_model_follows_the_values_that_shapes_depend_on() -> None:
    text = "g (float[2, 3] x, int64[r] shape, int64[p] pads) => (float[a, b] y) { z = Reshape(x, shape) y = Pad(z, pads) }"
    prepared = Backend.prepare(parsed(text))
    x = normal(2, 3)
    for shape, pads in (((3, 2), (0, 1, 1, 0)), ((6, -1), (0, 0, 0, 0)), ((3, 2), (1, 1, 1, 1))):
        (got,) = prepared.run([x, i64(*shape), i64(*pads)])
        np.testing.assert_array_equal(got, np.pad(x.reshape(shape), [(pads[0], pads[2]), (pads[1], pads[3])]))


def test_a_node_runs_alone() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (got,) = Backend.run_node(node, [A, np.float32(0.1)])
    np.testing.assert_array_equal(got, np.minimum(A, np.float32(0.1)))
    (by_name,) = Backend.run_node(node, {"high": np.float32(0.1), "x": A})
    np.testing.assert_array_equal(by_name, got)
    x = normal(2, 3)
    for axes in ((0,), (1,), (-1,)):
        (total,) = Backend.run_node(helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0), [x, i64(*axes)])
        np.testing.assert_allclose(total, x.sum(axes), rtol=1e-6)


def test_a_node_is_of_the_operator_set_asked_for() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    x = normal(2, 3, 4)
    for opset, flat in ((12, (2, 12)), (13, (6, 4))):
        (got,) = Backend.run_node(node, [x], opset_version=opset)
        e = np.exp(x.reshape(flat))
        np.testing.assert_allclose(got, (e / e.sum(-1, keepdims=True)).reshape(x.shape), rtol=1e-5)


def test_devices() -> None:
    assert [Backend.supports_device(device) for device in ("CPU", "CPU:0", "CUDA", "CUDA:1", "TPU")] == [True, True, False, False, False]
    with pytest.raises(ExportError, match="must be CPU; got 'CUDA'"):
        Backend.prepare(parsed(SUMS), "CUDA")


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InputError, match=r"takes 2 inputs \(a, b\); got 1"):
        Backend.prepare(parsed(SUMS)).run([A])
    with pytest.raises(InputError, match=r"takes 2 inputs \(a, b\); got 3"):
        Backend.prepare(parsed(SUMS)).run([A, B, A])
    with pytest.raises(InputError, match="'b' must be"):
        Backend.prepare(parsed(SUMS)).run([A, B.astype(np.float64)])
    with pytest.raises(UnsupportedOperatorsError, match="random numbers"):
        Backend.run_node(helper.make_node("Bernoulli", ["x"], ["y"]), [A])
    broken = parsed(SUMS)
    broken.graph.node[0].op_type = "Addd"
    with pytest.raises(onnx.checker.ValidationError):
        Backend.prepare(broken)
