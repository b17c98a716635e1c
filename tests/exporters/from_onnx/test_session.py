"""InferenceSession: what users of ONNX Runtime write, and what it says and gives."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx import InferenceSession, SessionOptions, specialising
from rml_exec.errors import InputError, KernelError
from rml_exec.runtime.executor import Executor
from tests.exporters.from_onnx.onnx_support import i64, normal
from tests.exporters.from_onnx.text_models import parsed

pytestmark = pytest.mark.onnx

NET = """net (float[batch, 4] x, float[batch, 3] bias) => (float[batch, 3] y, float[batch] total)
<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64[1] last = {-1}> {
    product = MatMul(x, w)
    y = Add(product, bias)
    total = ReduceSum <keepdims = 0> (y, last)
}"""
TOP = "top (float[n] x, int64[1] k) => (float[m] values, int64[m] indices) { values, indices = TopK(x, k) }"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Executor]:
    """Returns the list that every executor made from now on is added to."""
    executors: list[Executor] = []
    create = Executor.create

    def record(*args: object, **options: object) -> Executor:
        executors.append(create(*args, **options))  # type: ignore[arg-type]
        return executors[-1]

    monkeypatch.setattr(specialising.Executor, "create", record)
    return executors


def feed(rows: int) -> dict[str, np.ndarray]:
    return {"x": normal(rows, 4), "bias": normal(rows, 3, seed=1)}


@pytest.mark.parametrize("form", ["path", "text", "bytes", "message"])
def test_a_model_is_opened_from_a_file_or_its_content(form: str, tmp_path: Path) -> None:
    model, path = parsed(NET), tmp_path / "net.onnx"
    onnx.save(model, path)
    source = {"path": path, "text": str(path), "bytes": path.read_bytes(), "message": model}[form]
    given = feed(2)
    y, total = InferenceSession(source).run(None, given)
    w = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(y, given["x"] @ w + given["bias"], rtol=1e-5)
    np.testing.assert_allclose(total, y.sum(1), rtol=1e-5)


def test_it_describes_its_inputs_and_outputs_as_onnxruntime_does() -> None:
    ort = pytest.importorskip("onnxruntime")
    model = parsed(NET)
    model.producer_name, model.model_version, model.doc_string, model.graph.doc_string, model.domain = "maker", 3, "text", "inner", "here"
    onnx.helper.set_model_props(model, {"author": "nobody"})
    content = model.SerializeToString()
    ours, theirs = (kind(content, providers=["CPUExecutionProvider"]) for kind in (InferenceSession, ort.InferenceSession))
    for get in ("get_inputs", "get_outputs"):
        described = [[(arg.name, arg.type, arg.shape) for arg in getattr(session, get)()] for session in (ours, theirs)]
        assert described[0] == described[1]
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map"):
        assert getattr(ours.get_modelmeta(), name) == getattr(theirs.get_modelmeta(), name), name
    assert ours.get_providers() == theirs.get_providers()
    given = feed(3)
    for names in (None, ["total"], ["total", "y"]):
        for got, want in zip(ours.run(names, given), theirs.run(names, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_element_types_have_their_onnx_names() -> None:
    names = ("float", "double", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
    inputs = ", ".join(f"{name}[2] {name}_" for name in names)
    model = parsed(f"g ({inputs}) => (float[2] y) {{ y = Identity(float_) }}")
    assert [arg.type for arg in InferenceSession(model).get_inputs()] == [f"tensor({name})" for name in names]


def test_an_output_that_the_file_does_not_describe_is_described_all_the_same() -> None:
    model = parsed(NET)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("y", "total"))
    described = [(arg.name, arg.type, arg.shape) for arg in InferenceSession(model).get_outputs()]
    assert described == [("y", "tensor(float)", ["batch", 3]), ("total", "tensor(float)", ["batch"])]


def test_one_executor_serves_all_sizes_where_the_graph_allows_it(made: list[Executor]) -> None:
    session = InferenceSession(parsed(NET))
    for rows in (1, 2, 7, 1):
        assert session.run(["y"], feed(rows))[0].shape == (rows, 3)
    assert len(made) == 1


def test_values_that_shapes_depend_on_get_their_own_executors_which_are_kept(made: list[Executor]) -> None:
    session = InferenceSession(parsed(TOP))
    assert not made
    for count in (2, 3, 2, 3):
        x = normal(5, seed=count)
        values, indices = session.run(None, {"x": x, "k": i64(count)})
        np.testing.assert_array_equal(values, np.sort(x)[::-1][:count])
        np.testing.assert_array_equal(x[indices], values)
    assert [[value.name for value in executor.graph.inputs] for executor in made[-2:]] == [["x"], ["x"]]
    before = len(made)
    session.run(None, {"x": normal(5), "k": i64(3)})
    assert len(made) == before
    session.run(None, {"x": normal(6), "k": i64(3)})
    assert len(made) == before + 1


def test_the_caller_may_write_to_inputs_that_became_constants() -> None:
    text = "g (float[20] x, bool[20] mask, bool[20] other) => (float[n] y, bool[20] both) { y = Compress(x, mask) both = And(mask, other) }"
    session = InferenceSession(parsed(text))
    x, mask, other = normal(20), np.zeros(20, bool), np.arange(20) % 2 == 0
    for size in (5, 7, 5):
        mask[:] = np.arange(20) < size
        y, both = session.run(None, {"x": x, "mask": mask, "other": other})
        np.testing.assert_array_equal(y, x[:size])
        np.testing.assert_array_equal(both, mask & other)


def test_only_the_inputs_that_matter_become_constants(made: list[Executor]) -> None:
    text = "g (float[4] x, float[1] scale, int64[1] k, int64[1] offset) => (float[m] v, int64[m] i) {"
    session = InferenceSession(parsed(text + "a = Mul(x, scale) v, j = TopK(a, k) i = Add(j, offset) }"))
    x = normal(4)
    for offset, scale in ((10, 2), (20, 3)):
        given = {"x": x, "scale": np.array([scale], np.float32), "k": i64(2), "offset": i64(offset)}
        values, indices = session.run(None, given)
        np.testing.assert_allclose(values, scale * np.sort(x)[:1:-1], rtol=1e-6)
        np.testing.assert_array_equal(x[indices - offset] * scale, values)
    assert [value.name for value in made[-1].graph.inputs] == ["x", "scale", "offset"]


def test_sizes_that_the_general_graph_cannot_have_get_their_own_executor(made: list[Executor]) -> None:
    session = InferenceSession(parsed("g (float[n, 2] a, float[n, 2] b) => (float[m, 2] y) { y = Concat<axis = 0>(a, b) }"))
    assert session.run(None, {"a": normal(3, 2), "b": normal(3, 2)})[0].shape == (6, 2)
    assert session.run(None, {"a": normal(3, 2), "b": normal(1, 2)})[0].shape == (4, 2)
    assert len(made) == 2


def test_an_input_of_unknown_rank_takes_any() -> None:
    model = parsed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    session = InferenceSession(model)
    for shape in ((), (3,), (2, 3)):
        x = normal(*shape)
        np.testing.assert_array_equal(session.run(None, {"x": np.asarray(x)})[0], -np.asarray(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": None}, "'bias' is missing"),
        ({"other": normal(1)}, "'other' is not an input"),
        ({"x": np.zeros((2, 4))}, r"'x' must be tensor\(float\), not float64"),
        ({"x": normal(2, 5)}, r"'x' must have the shape \['batch', 4\], not \[2, 5\]"),
        ({"x": normal(4)}, r"'x' must have the shape \['batch', 4\], not \[4\]"),
    ],
)
def test_inputs_that_do_not_fit_are_all_listed(change: dict[str, np.ndarray | None], message: str) -> None:
    given = {name: array for name, array in {**feed(2), **change}.items() if array is not None}
    session = InferenceSession(parsed(NET))
    with pytest.raises(InputError, match=message):
        session.run(None, given)
    with pytest.raises(InputError, match=message + ".*'more' is not an input|'more' is not an input.*" + message):
        session.run(None, {**given, "more": normal(1)})


def test_an_output_that_is_not_there() -> None:
    with pytest.raises(InputError, match="the outputs are y, total; got 'z'"):
        InferenceSession(parsed(NET)).run(["y", "z"], feed(1))


def test_options_of_onnxruntime_are_taken() -> None:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = 99  # type: ignore[attr-defined]
    session = InferenceSession(parsed(NET), options, ["CPUExecutionProvider"], [{}])
    assert session.run(["y"], feed(1), None)[0].shape == (1, 3)
    with pytest.warns(UserWarning, match="CUDAExecutionProvider: not available"):
        InferenceSession(parsed(NET), providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])


def test_a_model_that_no_inputs_make_importable_is_refused_when_it_is_opened() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="Nowhere"):
        InferenceSession(parsed("g (float[n] x) => (float[n] y) { y = local.Nowhere(x) }"))
    with pytest.raises(UnsupportedOperatorsError, match="random numbers"):
        InferenceSession(parsed("g (float[2, 3] x) => (float[2, 3] y) { y = RandomNormalLike(x) }"))
    with pytest.raises(ExportError, match=r"'x'.*string"):
        InferenceSession(parsed("g (string[n] x) => (string[n] y) { y = Identity(x) }"))


def test_a_result_whose_shape_depends_on_the_data_is_refused_at_its_run() -> None:
    session = InferenceSession(parsed("g (float[n, 2] x) => (int64[2, m] y) { y = NonZero(x) }"))
    with pytest.raises(UnsupportedOperatorsError, match="the size of its result depends on the inputs"):
        session.run(None, {"x": normal(3, 2)})


def test_an_error_of_the_data_is_no_reason_to_import_again(made: list[Executor]) -> None:
    session = InferenceSession(parsed("g (float[n, 2] x, int64[m] i) => (float[m, 2] y) { y = Gather(x, i) }"))
    with pytest.raises(KernelError):
        session.run(None, {"x": normal(3, 2), "i": i64(5)})
    assert len(made) == 1
    assert session.run(None, {"x": normal(3, 2), "i": i64(2, -1)})[0].shape == (2, 2)


def test_threads_may_run_one_session_at_once() -> None:
    session = InferenceSession(parsed(TOP), SessionOptions(intra_op_num_threads=1))
    x = normal(16)

    def run(count: int) -> np.ndarray:
        return session.run(["values"], {"x": x, "k": i64(count)})[0]

    with ThreadPoolExecutor(4) as pool:
        for index, values in enumerate(pool.map(run, [1 + index % 5 for index in range(40)])):
            np.testing.assert_array_equal(values, np.sort(x)[::-1][: 1 + index % 5])


def test_the_package_is_imported_without_onnx() -> None:
    code = "import sys, exporters.from_onnx as f; assert 'onnx' not in sys.modules; f.InferenceSession; assert 'onnx' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
