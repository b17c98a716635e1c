import numpy as np
import pytest

from rml_exec.errors import TypeInferenceError, VerifyError
from rml_exec.loading import GraphBuilder
from rml_exec.types import DType, TensorType


def test_names_are_made_legal_and_unique():
    b = GraphBuilder("g")
    assert b.input("serving:0;x\n", "f32", (2,)) == "serving_0_x_"
    assert b.input("", "f32", (2,)) == "_"
    assert [b.add("relu", ["_"]) for _ in range(3)] == ["relu", "relu_1", "relu_2"]
    assert b.constant(np.zeros(3, np.float32), name="relu_1") == "relu_1_1"
    assert b.add("relu", ["_"], name="größe", outputs=["ausgabe"]) == "ausgabe"
    nodes = b.build().nodes
    assert [node.name for node in nodes] == ["relu", "relu_1", "relu_2", "größe"]


def test_types_are_inferred_at_once_and_attributes_become_plain():
    b = GraphBuilder("g")
    x = b.input("x", DType.F32, [2, 3])
    y = b.add("reshape", [x], shape=[np.int64(3), 2])
    assert b.type(y) == TensorType(DType.F32, (3, 2))
    z = b.add("cast", [y], to=DType.I32, f2i="saturate")
    b.output("z", z)
    graph = b.build()
    assert graph.nodes[0].attrs == {"shape": (3, 2)}
    assert type(graph.nodes[0].attrs["shape"][0]) is int
    assert graph.nodes[1].attrs == {"to": "i32", "f2i": "saturate"}


def test_an_operand_may_be_absent():
    b = GraphBuilder("g")
    x = b.input("x", "f32", (2, 3))
    w = b.constant(np.ones((4, 3), np.float32), name="w")
    assert b.type(b.add("linear", [x, w, None], weight_layout="oi")).shape == (2, 4)


def test_inference_errors_name_node_and_source():
    b = GraphBuilder("g")
    x, y = b.input("x", "f32", (2, 3)), b.input("y", "f32", (4,))
    with pytest.raises(TypeInferenceError, match=r"^add 'sum' \(model.py:12\): .* Inputs: a=f32\[2,3\] b=f32\[4\]"):
        b.add("add", [x, y], name="sum", source={"op": "aten.add.Tensor", "where": "model.py:12"})
    with pytest.raises(TypeInferenceError, match=r"^reluu 'reluu': there is no op 'reluu' \(similar: relu"):
        b.add("reluu", [x])
    with pytest.raises(TypeInferenceError, match="has no attribute 'axis'"):
        b.add("relu", [x], axis=0)
    with pytest.raises(VerifyError, match=r"relu 'relu.*': reads value 'nowhere', which is not defined"):
        b.add("relu", ["nowhere"])
    with pytest.raises(VerifyError, match="has 1 outputs; got 2 names"):
        b.add("relu", [x], outputs=["a", "b"])


def test_small_constants_stand_inline_and_large_ones_get_their_name_as_key():
    b = GraphBuilder("g")
    small, large, tied = np.zeros(16, np.float32), np.zeros(17, np.float32), np.zeros(2, np.float32)
    for array, name, key in ((small, "small", None), (large, "large", None), (tied, "tied", "embedding")):
        b.constant(array, name=name, key=key)
    assert [constant.key for constant in b.build().constants] == [None, "large", "embedding"]


def test_a_constant_is_read_only_and_not_copied():
    b = GraphBuilder("g")
    array = np.zeros((4, 5), np.float32)
    b.constant(array, name="a")
    b.constant(array.T, name="transposed")
    shared, copied = (constant.data for constant in b.build().constants)
    assert np.shares_memory(shared, array)
    assert not shared.flags.writeable
    assert array.flags.writeable
    assert copied.flags.c_contiguous
    assert copied.shape == (5, 4)


def test_bf16_constants():
    b = GraphBuilder("g")
    b.constant(np.array([0x3F80, 0x4000], np.uint16), name="bits", dtype="bf16")
    assert b.type("bits") == TensorType(DType.BF16, (2,))
    with pytest.raises(VerifyError, match="constant 'bad': data must be uint16 to be bf16; got float32"):
        b.constant(np.zeros(2, np.float32), name="bad", dtype="bf16")
    with pytest.raises(VerifyError, match="element type must be one of the format's; got complex64"):
        b.constant(np.zeros(2, np.complex64))


def test_build_verifies():
    b = GraphBuilder("g")
    b.output("y", "nothing")
    b.output("y", b.input("x", "f32", ()))
    with pytest.raises(VerifyError, match=r"(?s)2 problems.*value 'nothing', which nothing defines.*two outputs are called 'y'"):
        b.build()
