from rml_exec.passes.share_common import SHARE_COMMON
from tests.passes.pass_support import normal, ops, passed


def test_what_is_computed_twice_is_computed_once():
    def build(b):
        x = b.input("x", "f32", (3, 4))
        w = b.constant(normal(4), "w")
        first = b.add("exp", [b.add("mul", [x, w])])
        second = b.add("exp", [b.add("mul", [x, w])])
        b.output("y", b.add("sub", [first, second]))
        b.output("z", second)

    graph = passed(build, SHARE_COMMON)
    assert ops(graph) == ["mul", "exp", "sub"]
    assert graph.nodes[2].inputs == ("exp", "exp")
    assert [output.value for output in graph.outputs] == ["sub", "exp"]


def test_other_attributes_or_operands_are_another_computation():
    def build(b):
        x = b.input("x", "f32", (3, 3))
        b.output("a", b.add("softmax", [x], axis=0, fully_masked="nan"))
        b.output("b", b.add("softmax", [x], axis=1, fully_masked="nan"))
        b.output("c", b.add("softmax", [b.add("neg", [x])], axis=1, fully_masked="nan"))

    assert ops(passed(build, SHARE_COMMON)) == ["softmax", "softmax", "neg", "softmax"]


def test_nodes_with_several_results_are_shared_too():
    def build(b):
        x = b.input("x", "f32", (3, 5))
        for name in "ab":
            values, places = b.add("topk", [x], k=2, axis=1, largest=True, sorted=True, index_dtype="i64")
            b.output(name, values)
            b.output(f"{name}_places", places)

    assert ops(passed(build, SHARE_COMMON)) == ["topk"]
