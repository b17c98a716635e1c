from dataclasses import replace

import numpy as np

from rml_exec.ir.graph import Function, Node, Value
from rml_exec.ir.text import graph_text, node_text
from rml_exec.loading import GraphBuilder, load_graph, save_graph
from rml_exec.types import DType, TensorType
from tests.helpers.graphs import cnn_graph, elementwise_graph, mlp_graph


def test_text_of_a_graph():
    b = GraphBuilder("example", producer={"framework": "torch", "framework_version": "2.13.0"}, metadata={"k": "v"})
    x = b.input("x", "f32", (1, 4))
    w = b.constant(np.zeros((8, 4), np.float32), name="w", key="fc.weight")
    two = b.constant(np.float32(2), name="two")
    y = b.add("linear", [x, w, None], weight_layout="oi", name="fc", source={"where": "model.py:12"})
    y = b.add("reshape", [b.add("mul", [y, two], outputs=["scaled"])], shape=(2, 4))
    b.output("y", y)
    assert graph_text(b.build()) == (
        'graph "example" from torch 2.13.0\n'
        "  k: v\n"
        "  input %x: f32[1,4]\n"
        "  constant %w: f32[8,4] = 'fc.weight'\n"
        "  constant %two: f32[] = (2.0)\n"
        "  %fc: f32[1,8] = linear(%x, %w, -) {weight_layout=oi}  # from model.py:12\n"
        "  %scaled: f32[1,8] = mul(%fc, %two)  # mul\n"
        "  %reshape: f32[2,4] = reshape(%scaled) {shape=(2,4)}\n"
        "  output y = %reshape\n"
    )


def test_functions_follow_the_graph():
    body = mlp_graph()
    function = Function("f", body.inputs, body.outputs, body.constants, body.nodes)
    text = graph_text(replace(elementwise_graph(), functions={"f": function}))
    assert '\n\nfunction "f"\n  input %x: f32[2,8]\n' in text


def test_a_fused_node_shows_its_body():
    f32 = TensorType(DType.F32, (2,))
    body = (Node("add", "add", ("a", "b"), (Value("s", f32),)), Node("relu", "relu", ("s",), (Value("r", f32),)))
    fused = Node(
        "fused", "fused", ("x", "y"), (Value("z", f32, "shape"),), {"params": ("a", "b"), "body": body, "results": ("r",)}, {"m": "1"}
    )
    assert node_text(fused) == (
        "%z: f32[2] <shape> = fused(%x, %y) {params=(a,b), "
        "body=(%s: f32[2] = add(%a, %b)  # add; %r: f32[2] = relu(%s)  # relu), results=(r)}  # fused m=1"
    )


def test_the_text_of_a_graph_survives_its_file(tmp_path):
    graph = cnn_graph()
    save_graph(graph, tmp_path / "g")
    assert graph_text(load_graph(tmp_path / "g")) == graph_text(graph)
