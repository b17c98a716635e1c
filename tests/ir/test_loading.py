"""Files on disk, and what only ops can check."""

import io
import json
import mmap
import pickle
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rml_exec.errors import GraphFormatError, TypeInferenceError, VerifyError
from rml_exec.ir.format import encode
from rml_exec.ir.graph import Function, Node, Value
from rml_exec.ir.text import graph_text
from rml_exec.loading import GraphBuilder, check_graph, load_graph, save_graph
from rml_exec.types import DType, TensorType
from tests.helpers.graphs import cnn_graph, elementwise_graph, mlp_graph


@pytest.fixture
def saved(tmp_path):
    save_graph(mlp_graph(), tmp_path / "mlp")
    return tmp_path / "mlp"


def test_every_kind_of_source(saved):
    content, weights = saved.with_suffix(".json").read_bytes(), saved.with_suffix(".safetensors").read_bytes()
    want = graph_text(mlp_graph())
    for source, beside in (
        (saved, None),
        (str(saved), None),
        (f"{saved}.json", None),
        (f"{saved}.json", f"{saved}.safetensors"),
        (content, weights),
        (bytearray(content), memoryview(weights)),
        (content, f"{saved}.safetensors"),
        (io.BytesIO(content), io.BytesIO(weights)),
        (io.StringIO(content.decode()), weights),
    ):
        assert graph_text(load_graph(source, beside)) == want


def test_the_path_is_remembered(saved):
    assert load_graph(saved).source_path == f"{saved}.json"
    assert load_graph(encode(elementwise_graph())).source_path is None


def test_missing_files(saved):
    with pytest.raises(
        GraphFormatError, match=r"nothing.json: cannot be read; got No such file.*Hint: a model is given by its path prefix"
    ):
        load_graph(saved.parent / "nothing")
    with pytest.raises(GraphFormatError, match="has constants in a weights file, which was not given"):
        load_graph(saved.with_suffix(".json").read_bytes())
    saved.with_suffix(".safetensors").unlink()
    with pytest.raises(GraphFormatError, match=r"mlp.safetensors: cannot be read; got No such file"):
        load_graph(saved)


def test_truncated_files_are_named(saved):
    for suffix in (".safetensors", ".json"):
        path = saved.with_suffix(suffix)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(GraphFormatError, match=f"mlp{suffix}"):
            load_graph(saved)


def test_weights_of_another_model(saved, tmp_path):
    save_graph(cnn_graph(), tmp_path / "cnn")
    with pytest.raises(GraphFormatError, match=r"mlp.json \$.constants\[0\].key: the weights hold no tensor 'fc0.weight'"):
        load_graph(saved, tmp_path / "cnn.safetensors")


def owner(array: np.ndarray) -> object:
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


def test_weights_are_views_of_one_map(saved):
    owners = {id(owner(constant.data)) for constant in load_graph(saved).constants}
    assert len(owners) == 1
    assert all(isinstance(owner(constant.data), mmap.mmap) for constant in load_graph(saved).constants)
    with pytest.raises(ValueError, match="read-only"):
        load_graph(saved).constants[0].data[:] = 0


_RESIDENT = """
import sys
from rml_exec.loading import load_graph
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
load_graph(sys.argv[1])  # warms the code
before = resident()
graph = load_graph(sys.argv[2])
loaded = resident()
total = sum(float(constant.data.max()) for constant in graph.constants)
print(loaded - before, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts resident pages as Linux tells them")
def test_loading_does_not_read_the_weights(saved, tmp_path):
    b = GraphBuilder("big")
    b.output("y", b.constant(np.zeros((16, 1024, 1024), np.float32), name="w"))
    save_graph(b.build(), tmp_path / "big")
    command = [sys.executable, "-c", _RESIDENT, str(saved), str(tmp_path / "big")]
    root = Path(__file__).parents[2]
    loaded, read = map(int, subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout.split())
    assert read > 60 * 1024  # KiB: the measure does see the pages once they are touched
    assert loaded < 4 * 1024


def test_saving_replaces_a_model_that_is_in_use(saved):
    graph = load_graph(saved)
    before = [constant.data.copy() for constant in graph.constants]
    save_graph(cnn_graph(), saved)
    for constant, data in zip(graph.constants, before, strict=True):
        np.testing.assert_array_equal(constant.data, data)
    assert load_graph(saved).name == "cnn"


def test_saving_over_the_files_it_was_loaded_from(saved):
    content = saved.with_suffix(".safetensors").read_bytes()
    save_graph(load_graph(saved), saved)
    assert saved.with_suffix(".safetensors").read_bytes() == content


@pytest.mark.parametrize(("limit", "fails_at"), [(1100, "safetensors"), (1200, "json")])  # mlp has 1168 bytes of weights, 1249 of JSON
def test_a_full_disk_leaves_the_old_model(tmp_path, limit, fails_at):
    prefix = tmp_path / "m"
    save_graph(elementwise_graph(), prefix)
    json_before = prefix.with_suffix(".json").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(GraphFormatError, match=f"m.{fails_at}: cannot be written; got File too large"):
            save_graph(mlp_graph(), prefix)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert prefix.with_suffix(".json").read_bytes() == json_before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.safetensors"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(GraphFormatError, match=r"g.safetensors: cannot be written; got No such file or directory"):
        save_graph(mlp_graph(), tmp_path / "no" / "g")


def changed(saved: Path, change) -> Path:
    path = saved.with_suffix(".json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return saved


def test_a_wrong_recorded_shape(saved):
    changed(saved, lambda document: document["nodes"][0]["outputs"][0].update(shape=[2, 15]))
    with pytest.raises(TypeInferenceError) as caught:
        load_graph(saved)
    text = str(caught.value)
    assert "mlp.json: " in text
    assert (
        "$.nodes[0] linear 'fc0': the recorded type of an output must be the inferred one; got recorded f32[2,15] but linear gives" in text
    )
    assert "2 problems" in text  # relu0 and its recorded type disagree too
    assert ">     0 %fc0: f32[2,15] = linear(%x, %fc0.weight, %fc0.bias)" in text


def test_a_wrong_recorded_dtype(saved):
    changed(saved, lambda document: document["nodes"][2]["outputs"][0].update(dtype="f64"))
    with pytest.raises(TypeInferenceError, match=r"got recorded f64\[2,4\] but linear gives f32\[2,4\]"):
        load_graph(saved)


def test_a_wrong_number_of_outputs(saved):
    changed(saved, lambda document: document["nodes"][2]["outputs"].append({"name": "extra", "dtype": "f32", "shape": []}))
    with pytest.raises(TypeInferenceError, match=r"got recorded f32\[2,4\], f32\[\] but linear gives f32\[2,4\]"):
        load_graph(saved)


def test_structure_faults_name_the_file(saved):
    changed(saved, lambda document: document["nodes"].reverse())
    with pytest.raises(VerifyError, match=r"mlp.json: 2 problems:\n  linear 'fc1': reads value 'relu0' before node 'relu0' defines it"):
        load_graph(saved)


def test_a_cycle(saved):
    changed(saved, lambda document: document["nodes"][0]["inputs"].__setitem__(0, "fc1"))
    with pytest.raises(VerifyError, match="linear 'fc0': reads its own result: a cycle through fc0 -> relu0 -> fc1 -> fc0"):
        load_graph(saved)


def test_an_absent_operand_that_must_be_present(saved):
    changed(saved, lambda document: document["nodes"][0]["inputs"].__setitem__(1, None))
    with pytest.raises(TypeInferenceError, match=r"\$.nodes\[0\] linear 'fc0': operand w.* must be present"):
        load_graph(saved)


def test_all_nodes_at_fault_are_listed():
    f32 = TensorType(DType.F32, (2,))
    graph = replace(elementwise_graph(), nodes=(), outputs=())
    nodes = tuple(Node(op, op, ("x",), (Value(op, f32),)) for op in ("relu", "nonsense", "tanh"))
    with pytest.raises(TypeInferenceError, match=r"(?s)3 problems.*recorded f32\[2\].*no op 'nonsense'.*tanh gives f32\[3,5\]"):
        check_graph(graph.with_nodes(nodes))


def test_functions_are_checked_too(saved):
    graph = mlp_graph()
    wrong = replace(graph.nodes[1], outputs=(replace(graph.nodes[1].outputs[0], type=TensorType(DType.F32, (1,))),))
    function = Function("f", graph.inputs, graph.outputs, graph.constants, (graph.nodes[0], wrong, graph.nodes[2]))
    with pytest.raises(TypeInferenceError, match=r"\$.functions\['f'\].nodes\[1\] relu 'relu0'"):
        check_graph(replace(elementwise_graph(), functions={"f": function}))


def test_a_graph_pickles(saved):
    graph = load_graph(saved)
    again = pickle.loads(pickle.dumps(graph))
    assert graph_text(again) == graph_text(graph)
    np.testing.assert_array_equal(again.constants[0].data, graph.constants[0].data)
