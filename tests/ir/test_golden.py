import numpy as np
import pytest

from rml_exec.errors import GraphFormatError
from rml_exec.ir.format import model_paths
from rml_exec.ir.golden import Golden, graph_hashes, read_golden, write_golden
from rml_exec.ir.weights import read_tensors, write_tensors
from rml_exec.loading import load_graph, save_graph
from rml_exec.types import DType, TensorType
from tests.helpers.graphs import cnn_graph, mlp_graph
from tests.helpers.tiny_models import DATA, TINY_MODELS, write_tiny_models


def test_round_trip(tmp_path):
    golden = Golden(
        {"x": np.ones((2, 3), np.float32), "in.mask": np.array(True)}, {"y": np.array([], np.int64)}, {"seed": "0", "rtol.y": "2e-05"}
    )
    write_golden(tmp_path / "g", golden)
    again = read_golden(tmp_path / "g")
    assert again.metadata == golden.metadata
    for got, want in ((again.inputs, golden.inputs), (again.outputs, golden.outputs)):
        assert set(got) == set(want)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array, strict=True)


def test_bf16_needs_its_type(tmp_path):
    bits = np.array([0x3F80], np.uint16)
    write_golden(tmp_path / "g", Golden({"x": bits}, {"y": bits}), {"in.x": TensorType(DType.BF16, (1,))})
    tensors, _ = read_tensors(tmp_path / "g")
    assert [str(tensors[key].type) for key in ("in.x", "out.y")] == ["bf16[1]", "u16[1]"]


def test_strange_keys_and_missing_files(tmp_path):
    with pytest.raises(GraphFormatError, match="g: cannot be read"):
        read_golden(tmp_path / "g")
    write_tensors(tmp_path / "g", {"x": read_tensors(DATA / "tiny_mlp.safetensors")[0]["fc0.bias"]})
    with pytest.raises(GraphFormatError, match=r"keys of a golden file must begin with in., out. or undecided.; got x"):
        read_golden(tmp_path / "g")


def test_undecided_elements_have_the_shape_of_their_output(tmp_path):
    x, mask = np.zeros(3, np.int32), np.bool_([True, False, False])
    write_golden(tmp_path / "g", Golden({"x": x}, {"y": x}, {}, {"y": mask}))
    np.testing.assert_array_equal(read_golden(tmp_path / "g").undecided["y"], mask)
    for name, wrong in (("z", mask), ("y", mask[:2]), ("y", x)):
        write_golden(tmp_path / "g", Golden({"x": x}, {"y": x}, {}, {name: wrong}))
        with pytest.raises(GraphFormatError, match=f"undecided.{name} must be bool of the shape of out.{name}"):
            read_golden(tmp_path / "g")


def test_hashes_tell_models_apart(tmp_path):
    save_graph(mlp_graph(), tmp_path / "a")
    save_graph(cnn_graph(), tmp_path / "b")
    first = graph_hashes(tmp_path / "a.json")
    assert set(first) == {"graph_sha256", "weights_sha256"}
    assert first == graph_hashes(tmp_path / "a")
    assert not set(first.values()) & set(graph_hashes(tmp_path / "b.json").values())
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(GraphFormatError, match=r"a.safetensors: cannot be read"):
        graph_hashes(tmp_path / "a.json")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_committed_models_are_what_the_code_writes_today(name, tmp_path):
    write_tiny_models(tmp_path)
    ours, theirs = model_paths(tmp_path / name), model_paths(DATA / name)
    assert ours.graph.read_bytes() == theirs.graph.read_bytes()
    assert ours.weights.read_bytes() == theirs.weights.read_bytes()
    new, old = read_golden(ours.golden), read_golden(theirs.golden)
    assert {key: new.metadata[key] for key in graph_hashes(theirs.graph)} == graph_hashes(theirs.graph)
    np.testing.assert_allclose(new.outputs["y"], old.outputs["y"], float(old.metadata["rtol.y"]), float(old.metadata["atol.y"]))


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_committed_goldens_fit_their_graphs(name):
    graph, golden = load_graph(DATA / name), read_golden(model_paths(DATA / name).golden)
    assert {value.name: value.type for value in graph.inputs} == {key: TensorType.of(array) for key, array in golden.inputs.items()}
    assert {output.name for output in graph.outputs} == set(golden.outputs)
    assert float(golden.metadata["rms_error.y"]) < float(golden.metadata["atol.y"])
