import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.errors import GraphFormatError, InputError
from rml_exec.ir.dims import parse_expr
from rml_exec.ir.format import encode
from rml_exec.loading import check_graph, load_graph, save_graph


def document(shape=("batch", 6), new_shape=("batch * 2", 3), dims=None, recorded=None):
    return {
        "format": "rml-graph",
        "format_version": [1, 0],
        "name": "symbolic",
        "dims": {"batch": {"min": 1, "max": 8, "hint": 2}} if dims is None else dims,
        "inputs": [{"name": "x", "dtype": "f32", "shape": list(shape)}],
        "outputs": [{"name": "y", "value": "y"}],
        "constants": [],
        "nodes": [
            {
                "op": "reshape",
                "name": "reshape",
                "inputs": ["x"],
                "outputs": [{"name": "y", "dtype": "f32", "shape": list(recorded or new_shape)}],
                "attrs": {"shape": list(new_shape)},
            }
        ],
    }


def load(**changes):
    return load_graph(json.dumps(document(**changes)).encode())


def test_loading_binds_the_hint():
    graph = load()
    assert graph.inputs[0].type.shape == (2, 6)
    assert graph.nodes[0].attrs["shape"] == (4, 3)
    assert graph.nodes[0].outputs[0].type.shape == (4, 3)


def test_bind_evaluates_anew():
    graph = load()
    bound = graph.bind(batch=5)
    check_graph(bound)
    assert bound.nodes[0].outputs[0].type.shape == (10, 3)
    assert graph.bind(batch=2).nodes == graph.nodes
    assert (bound.dims, bound.template) == ({}, None)
    with pytest.raises(InputError, match="the graph is static"):
        bound.bind(batch=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "dim 'batch' has no value"),
        ({"batch": 0}, "dim 'batch' must be 1 to 8, got 0"),
        ({"batch": 9}, "dim 'batch' must be 1 to 8, got 9"),
        ({"batch": 2.0}, "dim 'batch' must be an integer, got 2.0"),
        ({"batch": 2, "time": 3}, "it has no dim 'time'"),
    ],
)
def test_bad_bindings(values, message):
    with pytest.raises(InputError, match=message):
        load().bind(**values)


def test_a_static_graph_has_nothing_to_bind():
    graph = load(shape=(2, 6), new_shape=("2 * 2", 3), dims={})
    assert graph.nodes[0].attrs["shape"] == (4, 3)
    with pytest.raises(InputError, match=r"it has no dim 'batch'.*the graph is static"):
        graph.bind(batch=2)


def test_a_pass_makes_a_graph_static():
    graph = load()
    assert graph.with_nodes(graph.nodes).dims == {}
    assert graph.with_nodes(graph.nodes).template is None


def test_saving_keeps_the_symbols(tmp_path):
    graph = load()
    save_graph(graph, tmp_path / "m")
    again = load_graph(tmp_path / "m")
    assert again.inputs[0].type.shape == (2, 6)
    assert again.bind(batch=7).nodes == graph.bind(batch=7).nodes
    assert encode(again) == encode(graph)
    assert json.loads(encode(graph))["nodes"][0]["attrs"]["shape"] == ["batch * 2", 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": ("time", 6)}, r"\$.inputs\[0\].shape\[0\]: there is no dim 'time'.*dims: batch"),
        ({"shape": ("batch - 5", 6)}, "a negative dim"),
        ({"new_shape": ("12 // (batch - 2)", 3)}, "divides by zero"),
        ({"shape": ("__import__('os')", 6)}, "may hold dims, integers"),
        ({"dims": {"batch": {"min": 3, "max": None, "hint": 2}}}, "min <= hint <= max"),
        ({"dims": {"batch": {"min": 1, "max": None}}}, "must have hint"),
        ({"dims": {"max": {"min": 1, "max": None, "hint": 1}}}, "identifier other than min and max"),
        ({"dims": {"batch": {"min": True, "max": None, "hint": 1}}}, "integers"),
    ],
)
def test_bad_documents(changes, message):
    with pytest.raises(GraphFormatError, match=message):
        load(**changes)


def test_the_hint_binding_is_checked_against_inference():
    with pytest.raises(Exception, match=r"recorded f32\[2,3\] but reshape gives f32\[4,3\]"):
        load(recorded=("batch", 3))


@pytest.mark.parametrize(
    ("text", "value"),
    [("a + b * 2", 13), ("(a + b) * 2", 16), ("a // 2 - b", -4), ("-a % 4", 1), ("max(a, b, 7) + min(a, b)", 10), ("min(a)", 3), ("a", 3)],
)
def test_expressions(text, value):
    assert parse_expr(text).evaluate({"a": 3, "b": 5}) == value


NO_EXPRESSIONS = """
a b|a ** 2|a / 2|a.b|a[0]|1.5|True|'a'|f(a)|min()|min(*a)|max(a, key=b)|lambda: 1|+a|[a]|a if b else c|a < b|not a|a & b|(a := 3)
"""


@pytest.mark.parametrize("text", ["", "a\0", "a" * 201, *NO_EXPRESSIONS.strip().split("|")])
def test_what_is_no_expression(text):
    with pytest.raises(ValueError, match=r"expression|may hold dims"):
        parse_expr(text)


def test_nesting_is_bounded_by_the_length():
    assert parse_expr("(" * 99 + "a" + ")" * 99).evaluate({"a": 1}) == 1
    with pytest.raises(ValueError, match="may have 200 characters; got 201"):
        parse_expr("(" * 100 + "a" + ")" * 100)


@given(st.text(max_size=30))
def test_any_text_is_an_expression_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        expression = parse_expr(text)
        assert isinstance(expression.evaluate(dict.fromkeys(expression.names, 3)), int)


def test_results_fit_64_bits():
    with pytest.raises(ValueError, match="beyond 64 bits"):
        parse_expr("a * a").evaluate({"a": 2**40})
