"""The JSON form: what goes round, and what is refused with the path of the fault."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rml_exec.errors import GraphFormatError
from rml_exec.ir.format import encode, model_paths, weights_of
from rml_exec.ir.graph import Function, Graph
from rml_exec.ir.reading import decode
from rml_exec.ir.text import graph_text
from rml_exec.ir.weights import Tensor
from rml_exec.loading import GraphBuilder, check_graph, load_graph, save_graph
from rml_exec.types import DType, TensorType
from tests.helpers.graphs import cnn_graph, elementwise_graph, mlp_graph
from tests.helpers.strategies import graphs


def assert_same(got: Graph, want: Graph) -> None:
    for field in ("name", "inputs", "outputs", "nodes", "producer", "metadata"):
        assert getattr(got, field) == getattr(want, field), field
    assert [(c.name, c.type) for c in got.constants] == [(c.name, c.type) for c in want.constants]
    for ours, theirs in zip(got.constants, want.constants, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data, strict=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs())
def test_random_graphs_go_round(tmp_path, graph):
    save_graph(graph, tmp_path / "g")
    again = load_graph(tmp_path / "g")
    assert_same(again, graph)
    assert graph_text(again) == graph_text(graph)
    assert encode(again) == (tmp_path / "g.json").read_bytes()


@pytest.mark.parametrize("graph", [mlp_graph(), cnn_graph(), cnn_graph(layout="NHWC"), elementwise_graph()], ids=lambda graph: graph.name)
def test_models_go_round_and_give_the_same_bytes_each_time(tmp_path, graph):
    save_graph(graph, tmp_path / "a")
    again = load_graph(tmp_path / "a")
    assert_same(again, graph)
    save_graph(again, tmp_path / "b")
    for suffix in (".json", ".safetensors"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def inline(array: np.ndarray, dtype: str | None = None) -> tuple[list, np.ndarray]:
    """The JSON data of an inline constant, and what is read back."""
    b = GraphBuilder("g")
    b.output("y", b.constant(array, dtype=dtype))
    content = encode(b.build())
    return json.loads(content)["constants"][0]["data"], load_graph(content).constants[0].data


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 2)])
def test_inline_constants_of_every_dtype(dtype, shape):
    array = np.arange(math.prod(shape)).astype(dtype.numpy).reshape(shape)
    _, got = inline(array, dtype.value)
    np.testing.assert_array_equal(got, array, strict=True)
    assert not got.flags.writeable


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_inline_floats_are_exact(dtype):
    info = np.finfo(dtype)
    array = np.array([info.max, info.tiny, info.smallest_subnormal, -0.0, math.pi, math.inf, -math.inf, math.nan], dtype)
    data, got = inline(array)
    assert data[3:4] + data[5:] == ["-0x0.0p+0", "inf", "-inf", "nan"]
    np.testing.assert_array_equal(got, array, strict=True)
    assert np.signbit(got[3])


def test_inline_bf16_is_exact():
    bits = np.array([0x3F80, 0xC049, 0x7F80, 0x0001, 0x8000], np.uint16)
    data, got = inline(bits, "bf16")
    assert data[0] == "0x1.0000000000000p+0"
    assert data[2] == "inf"
    np.testing.assert_array_equal(got, bits, strict=True)


def test_integers_beyond_2_to_the_53_are_strings():
    data, got = inline(np.array([2**53, 2**53 + 1, 2**64 - 1], np.uint64))
    assert data == [2**53, str(2**53 + 1), str(2**64 - 1)]
    assert got.tolist() == [2**53, 2**53 + 1, 2**64 - 1]
    data, got = inline(np.array([-(2**63), 2**63 - 1], np.int64))
    assert data == [str(-(2**63)), str(2**63 - 1)]
    assert got.tolist() == [-(2**63), 2**63 - 1]


def test_float_attributes_may_be_infinite():
    b = GraphBuilder("g")
    y = b.add("clamp", [b.input("x", "f32", (2,))], lo=-math.inf, hi=1.5)
    y = b.add("leaky_relu", [y], alpha=math.nan)
    b.output("y", b.add("clamp", [y], lo=None, hi=math.inf))
    content = encode(b.build())
    assert [node["attrs"] for node in json.loads(content)["nodes"]] == [
        {"lo": "-inf", "hi": 1.5},
        {"alpha": "nan"},
        {"lo": None, "hi": "inf"},
    ]
    first, second, third = (node.attrs for node in load_graph(content).nodes)
    assert (first, third) == ({"lo": -math.inf, "hi": 1.5}, {"lo": None, "hi": math.inf})
    assert math.isnan(second["alpha"])


def test_a_float_attribute_may_be_written_as_an_integer():
    b = GraphBuilder("g")
    b.output("y", b.add("leaky_relu", [b.input("x", "f32", (2,))], alpha=1))
    assert type(load_graph(encode(b.build())).nodes[0].attrs["alpha"]) is float


def test_names_keep_their_characters(tmp_path):
    b = GraphBuilder("größe/模型 \U0001f642")
    x = b.input("eingabe/ä", "f32", (2,))
    b.output("出力", b.add("relu", [x], source={"where": 'módulo "x".py:3\n'}))
    save_graph(b.build(), tmp_path / "g")
    assert "出力".encode() in (tmp_path / "g.json").read_bytes()
    assert_same(load_graph(tmp_path / "g"), b.build())


def test_tags_sources_and_metadata_are_kept():
    graph = mlp_graph()
    node = graph.nodes[0]
    tagged = replace(
        node, outputs=(replace(node.outputs[0], tag="shape"),), metadata={"rml.peak_memory": "12"}, source={"op": "o", "where": "w"}
    )
    graph = replace(graph.with_nodes((tagged, *graph.nodes[1:])), metadata={"k": "v"})
    assert_same(load_graph(encode(graph), weights=weights_bytes(graph)), graph)


def weights_bytes(graph: Graph) -> bytes:
    header, data = {}, b""
    for key, tensor in weights_of(graph).items():
        content = tensor.data.tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[key] = {"dtype": tensor.type.dtype.value.upper(), "shape": list(tensor.type.shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_functions_are_kept(tmp_path):
    body = mlp_graph()
    function = Function("inner ü", body.inputs, body.outputs, body.constants, body.nodes)
    graph = replace(elementwise_graph(), functions={function.name: function})
    save_graph(graph, tmp_path / "g")
    again = load_graph(tmp_path / "g").functions[function.name]
    assert (again.inputs, again.outputs, again.nodes) == (function.inputs, function.outputs, function.nodes)
    np.testing.assert_array_equal(again.constants[0].data, function.constants[0].data)


def test_tied_weights_share_one_array(tmp_path):
    b = GraphBuilder("g")
    table = np.arange(32, dtype=np.float32).reshape(8, 4)
    first, second = (b.constant(table, name=name, key="embedding") for name in ("encoder", "decoder"))
    b.output("y", b.add("add", [first, second]))
    save_graph(b.build(), tmp_path / "g")
    encoder, decoder = load_graph(tmp_path / "g").constants
    assert np.shares_memory(encoder.data, decoder.data)
    assert (tmp_path / "g.safetensors").stat().st_size < 2 * table.nbytes + 100


def test_one_key_cannot_stand_for_two_arrays(tmp_path):
    b = GraphBuilder("g")
    for index in range(2):
        b.constant(np.full(20, index, np.float32), name=f"c{index}", key="k")
    with pytest.raises(GraphFormatError, match="constant 'c1': key 'k' already stands for other data"):
        save_graph(b.build(), tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_a_large_constant_of_a_pass_gets_its_name_as_key(tmp_path):
    graph = mlp_graph()
    graph = graph.with_nodes(graph.nodes, tuple(replace(constant, key=None) for constant in graph.constants))
    save_graph(graph, tmp_path / "g")
    assert [constant.key for constant in load_graph(tmp_path / "g").constants] == ["fc0.weight", None, "fc1.weight", None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"producer": {"compiler": "x"}}, r"\$.producer: has unknown key 'compiler'"),
        ({"producer": {"options": {"x": math.nan}}}, "cannot be written as JSON"),
        ({"producer": {"options": {"x": DType.F32}}}, "cannot be written as JSON"),
        ({"metadata": {"x": 3}}, r'\$.metadata\["x"\]: must be a string; got 3'),
        ({"metadata": {"x": "\ud800"}}, "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_read_is_not_written(tmp_path, change, message):
    with pytest.raises(GraphFormatError, match=message):
        save_graph(replace(mlp_graph(), **change), tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def set_at(path, value):
    def change(document):
        *parents, last = path
        for key in parents:
            document = document[key]
        document[last] = value

    return change


def remove(*path):
    def change(document):
        *parents, last = path
        for key in parents:
            document = document[key]
        del document[last]

    return change


NODE = ("nodes", 0)
BAD_DOCUMENTS = [
    (set_at(["format"], "onnx"), r'\$.format: must be "rml-graph"; got "onnx"'),
    (set_at(["format_version"], [1, 1]), r"\$.format_version: must be \[1, 0\].*; got \[1, 1\]"),
    (set_at(["format_version"], "1.0"), r'\$.format_version: .*; got "1.0"'),
    (remove("format_version"), r"\$.format_version: .*; got null"),
    (remove("nodes"), r"\$: must have nodes"),
    (set_at(["extra"], 1), r"\$: has unknown key 'extra'"),
    (set_at(["name"], 3), r"\$.name: must be a string; got 3"),
    (set_at(["nodes"], {}), r"\$.nodes: must be a list; got {}"),
    (set_at(["inputs", 0], []), r"\$.inputs\[0\]: must be an object"),
    (set_at(["inputs", 0, "dtype"], "float32"), r'\$.inputs\[0\].dtype: must be one of f32 .*; got "float32"'),
    (set_at(["inputs", 0, "dtype"], None), r"\$.inputs\[0\].dtype: must be one of"),
    (set_at(["inputs", 0, "shape"], [-1]), r"\$.inputs\[0\].shape\[0\]: must not be negative; got -1"),
    (set_at(["inputs", 0, "shape"], [2.0]), r"\$.inputs\[0\].shape\[0\]: must be an integer; got 2.0"),
    (set_at(["inputs", 0, "shape"], [True]), r"\$.inputs\[0\].shape\[0\]: must be an integer; got true"),
    (set_at(["inputs", 0, "shape"], ["batch"]), r"\$.inputs\[0\].shape\[0\]: there is no dim 'batch'"),
    (set_at(["inputs", 0, "shape"], [10**30]), r"\$.inputs\[0\].shape\[0\]: must fit 64 bits"),
    (set_at(["inputs", 0, "tag"], "shape"), r"\$.inputs\[0\]: has unknown key 'tag'"),
    (set_at(["outputs", 0, "value"], None), r"\$.outputs\[0\].value: must be a string; got null"),
    (set_at([*NODE, "op"], "linea"), r"\$.nodes\[0\].op: there is no op 'linea' \(similar: .*linear"),
    (set_at([*NODE, "op"], "fused"), r"\$.nodes\[0\].op: op 'fused' is made by passes and cannot stand in a file"),
    (set_at([*NODE, "attrs", "bias"], True), r"\$.nodes\[0\].attrs.bias: linear has no such attribute.*linear has weight_layout"),
    (set_at([*NODE, "attrs"], None), r"\$.nodes\[0\].attrs: must be an object"),
    (set_at([*NODE, "attrs", "weight_layout"], {}), r"\$.nodes\[0\].attrs.weight_layout: must be str; got an object"),
    (set_at([*NODE, "inputs", 0], 3), r"\$.nodes\[0\].inputs\[0\]: must be a string; got 3"),
    (set_at([*NODE, "outputs", 0, "tag"], "data"), r'\$.nodes\[0\].outputs\[0\].tag: must be "shape"; got "data"'),
    (set_at([*NODE, "colour"], "red"), r"\$.nodes\[0\]: has unknown key 'colour'"),
    (set_at([*NODE, "source"], {"line": 3}), r'\$.nodes\[0\].source\["line"\]: must be a string'),
    (remove(*NODE, "name"), r"\$.nodes\[0\]: must have name"),
    (set_at(["constants", 0, "data"], []), r"\$.constants\[0\]: constant 'fc0.weight' must have either key or data; got both"),
    (remove("constants", 0, "key"), r"\$.constants\[0\]: .* must have either key or data; got neither"),
    (set_at(["constants", 0, "key"], "nope"), r"\$.constants\[0\].key: the weights hold no tensor 'nope'; got 4 tensors"),
    (
        set_at(["constants", 0, "shape"], [8, 16]),
        r"'fc0.weight' is recorded as f32\[8,16\], but the weights hold 'fc0.weight' as f32\[16,8\]",
    ),
    (set_at(["constants", 0, "dtype"], "i32"), r"'fc0.weight' is recorded as i32\[16,8\], but the weights hold"),
    (set_at(["functions"], {"f": {}}), r'\$.functions\["f"\]: must have inputs, outputs, constants, nodes'),
    (set_at(["producer", "framework"], 3), r'\$.producer\["framework"\]: must be a string'),
]


@pytest.mark.parametrize(("change", "message"), BAD_DOCUMENTS)
def test_bad_documents(change, message):
    graph = mlp_graph()
    document = json.loads(encode(graph))
    original = copy.deepcopy(document)
    change(document)
    assert document != original
    with pytest.raises(GraphFormatError, match=message):
        load_graph(json.dumps(document).encode(), weights=weights_bytes(graph))


@pytest.mark.parametrize(
    ("dtype", "data", "message"),
    [
        ("f32", ["0x1.0p+0"], r"of f32\[2\] must have 2 elements, at most 16; got 1"),
        ("f32", ["0x1.0p+0", 1.0], r"data\[1\]: must be a hexadecimal float .*; got 1.0"),
        ("f32", ["0x1.0p+0", "1.5"], r"data\[1\]: must be a hexadecimal float"),
        ("f32", ["0x1.0p+0", "infinity"], r"data\[1\]: must be a hexadecimal float"),
        ("f32", ["0x1.0p+0", "0x1.0p+128"], r"data\[1\]: must be a value of f32"),
        ("f32", ["0x1.0p+0", "0x1.0000001p+0"], r"data\[1\]: must be a value of f32"),
        ("f64", ["0x1.0p+0", "0x1.0p+1024"], r"data\[1\]: must be a value of f64"),
        ("f16", ["0x1.0p+0", "0x1.0p+16"], r"data\[1\]: must be a value of f16"),
        ("bf16", ["0x1.0p+0", "0x1.01p+0"], r"data\[1\]: must be a value of bf16"),
        ("bool", [True, 1], r"data\[1\]: must be true or false; got 1"),
        ("u8", [1, 256], r"data\[1\]: must be an integer of u8; got 256"),
        ("i8", [1, -129], r"data\[1\]: must be an integer of i8"),
        ("i32", [1, 1.0], r"data\[1\]: must be an integer; got 1.0"),
        ("i32", [1, "x"], r"data\[1\]: there is no dim 'x'"),
    ],
)
def test_bad_inline_data(dtype, data, message):
    b = GraphBuilder("g")
    b.output("y", b.constant(np.zeros(2, np.float32)))
    document = json.loads(encode(b.build()))
    document["constants"][0] |= {"dtype": dtype, "data": data}
    with pytest.raises(GraphFormatError, match=message):
        load_graph(json.dumps(document).encode())


def test_at_most_16_elements_stand_inline():
    b = GraphBuilder("g")
    b.output("y", b.constant(np.zeros(16, np.float32)))
    document = json.loads(encode(b.build()))
    document["constants"][0] |= {"shape": [17], "data": ["0x0.0p+0"] * 17}
    with pytest.raises(GraphFormatError, match="must have 17 elements, at most 16"):
        load_graph(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("leaky_relu", {"alpha": "0.5"}, r'attrs.alpha: must be a number or "inf", "-inf", "nan"; got "0.5"'),
        ("leaky_relu", {"alpha": 10**400}, "attrs.alpha: must be a finite number"),
        ("leaky_relu", {"alpha": [1.0]}, r"'alpha' must be float; got \(1.0,\)"),
        ("reshape", {"shape": "x"}, "attrs.shape: there is no dim 'x'"),
        ("reshape", {"shape": [2, [3]]}, r"'shape' must be ints; got \(2, \(3,\)\)"),
        ("reshape", {"shape": [2.0, 3]}, r"'shape' must be ints; got \(2.0, 3\)"),
        ("reshape", {}, "attribute 'shape' must be given"),
        ("transpose", {"perm": None}, "'perm' must be ints; got None"),
        ("sign", {"nan": "maybe"}, "'nan' must be one of propagate, zero; got 'maybe'"),
    ],
)
def test_bad_attributes(op, attrs, message):
    b = GraphBuilder("g")
    b.output("y", b.add("relu", [b.input("x", "f32", (2, 3))]))
    document = json.loads(encode(b.build()))
    document["nodes"][0] |= {"op": op, "attrs": attrs}
    with pytest.raises(Exception, match=rf"\$.nodes\[0\].*{message}"):
        load_graph(json.dumps(document).encode())


@pytest.mark.parametrize("length", [0, 1, 50, 300, -3])
def test_truncated_json(length):
    content = encode(elementwise_graph())[:length]
    with pytest.raises(GraphFormatError, match=r"graph: must be JSON.*may be truncated"):
        load_graph(content)


def test_json_of_another_kind():
    for content in (b"[]", b"3", b'"rml-graph"', b"{}"):
        with pytest.raises(GraphFormatError, match=r'\$.format: must be "rml-graph"'):
            load_graph(content)
    with pytest.raises(GraphFormatError, match="key 'format' stands twice"):
        load_graph(b'{"format": "rml-graph", "format": "rml-graph"}')


def test_paths_of_a_model():
    assert model_paths("m/resnet.v2") == model_paths("m/resnet.v2.json")
    assert [path.name for path in model_paths("m/resnet.v2")] == ["resnet.v2.json", "resnet.v2.safetensors", "resnet.v2.golden.safetensors"]
    assert model_paths("m/resnet.v2").name == "resnet.v2"


def test_a_scalar_and_an_empty_tensor_go_round(tmp_path):
    b = GraphBuilder("g")
    scalar, empty = b.input("scalar", "f64", ()), b.input("empty", "i32", (0, 3))
    b.output("s", b.add("add", [scalar, b.constant(np.float64(0.1))]))
    b.output("e", b.add("reshape", [empty], shape=(3, 0)))
    b.output("w", b.constant(np.zeros((0, 4), np.float32), name="w", key="w"))
    save_graph(b.build(), tmp_path / "g")
    graph = load_graph(tmp_path / "g")
    assert_same(graph, b.build())
    assert graph.types()["w"] == TensorType(DType.F32, (0, 4))


def test_the_example_of_the_readme_loads():
    readme = (Path(__file__).parents[2] / "rml_exec/ir/README.md").read_text()
    example = readme.split("```json\n")[1].split("```")[0].encode()
    weights = {"fc.weight": Tensor(TensorType(DType.F32, (8, 4)), np.zeros((8, 4), np.float32))}
    graph = decode(example, lambda: weights, lambda op: {"linear": {"weight_layout": "str"}, "mul": {}}[op], "README.md")
    check_graph(graph)
    check_graph(graph.bind(batch=5))
