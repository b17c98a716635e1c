import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.passes.merge_linears import MERGE_LINEARS
from tests.passes.pass_support import normal, ops, passed

ATTENTION = {"scale": 0.5, "softcap": None, "mask": "none", "fully_masked": "zero", "kv_groups": 1}


def write(b, layout="oi", biased="qkv", own_input="", read_too="", kv_width=8):
    x = b.input("x", "f32", (2, 5, 8))
    heads = []
    for name in "qkv":
        width = 8 if name == "q" else kv_width
        source = b.add("neg", [x]) if name in own_input else x
        weight = b.constant(normal(*((width, 8) if layout == "oi" else (8, width))), f"w_{name}")
        bias = b.constant(normal(width), f"b_{name}") if name in biased else None
        y = b.add("linear", [source, weight, bias], weight_layout=layout, name=name)
        if name in read_too:
            b.output(f"{name}_too", b.add("exp", [y]))
        heads.append(b.add("transpose", [b.add("reshape", [y], shape=(2, 5, width // 4, 4))], perm=(0, 2, 1, 3)))
    groups = 8 // kv_width
    b.output("y", b.add("attention", [*heads, None], **{**ATTENTION, "kv_groups": groups}))


def merged(**case):
    return passed(lambda b: write(b, **case), MERGE_LINEARS)


@pytest.mark.parametrize("layout", ["oi", "io"])
@pytest.mark.parametrize("biased", ["qkv", ""])
@pytest.mark.parametrize("kv_width", [8, 4])
def test_the_projections_of_an_attention_become_one(layout, biased, kv_width):
    graph = merged(layout=layout, biased=biased, kv_width=kv_width)
    assert ops(graph)[:4] == ["linear", "slice", "slice", "slice"]
    assert "linear" not in ops(graph)[4:]
    assert graph.nodes[0].label == "linear+linear+linear"
    assert graph.nodes[0].covers == ("q", "k", "v")
    assert graph.types()[graph.nodes[0].inputs[1]].size == 8 * (8 + 2 * kv_width)


@pytest.mark.parametrize(
    ("case", "linears"),
    [
        ({"biased": "qv"}, 2),  # keys without bias stay alone
        ({"own_input": "k"}, 2),
        ({"read_too": "q"}, 2),
        ({"read_too": "qk"}, 3),
    ],
)
def test_what_differs_stays_alone(case, linears):
    assert ops(merged(**case)).count("linear") == linears


def test_weights_computed_at_run_time_stay():
    def build(b):
        x, w = b.input("x", "f32", (1, 4, 8)), b.input("w", "f32", (8, 8))
        q, k = (b.add("linear", [x, w, None], weight_layout="oi") for _ in range(2))
        b.output("y", b.add("attention", [q, k, k, None], **ATTENTION))

    assert ops(passed(build, MERGE_LINEARS)) == ["linear", "linear", "attention"]


def test_the_executor_gives_the_same_bits():
    b = GraphBuilder("attended")
    write(b)
    graph, x = b.build(), normal(2, 5, 8)
    results = [Executor.create(graph, fuse=fuse).run({"x": x})["y"] for fuse in (True, False)]
    np.testing.assert_array_equal(*results)
