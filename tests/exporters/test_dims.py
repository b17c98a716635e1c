"""Symbolic dims: the option's text, sizes to try, one symbolic graph from static ones; and a few models of the zoo at three sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.dims import Dim, axes_of, check_sizes, generalise, hints, parse_dim, shapes_at, share_constants, trial_sizes
from exporters.errors import ExportError
from exporters.models.zoo import export_model
from rml_exec import Executor
from rml_exec.graph_run import compare_with_golden
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder, check_graph, load_graph, save_graph

SHAPES = {"ids": (2, 7), "mask": (2, 7), "scale": ()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=1..64", Dim("batch", 1, 64, 0)),
        ("batch=2..", Dim("batch", 2, None, 0)),
        ("tokens=1..9@1", Dim("tokens", 1, 9, 1)),
        ("t=3..3@ids.1,state.0.h.2", Dim("t", 3, 3, (("ids", 1), ("state.0.h", 2)))),
    ],
)
def test_the_option_is_read(text: str, expected: Dim) -> None:
    assert parse_dim(text) == expected


@pytest.mark.parametrize(
    "text", ["b", "b=4", "b=1..64@", "=1..2", "b=9..2", "b=0..4", "min=1..4", "1b=1..4", "b=1..4@ids", "b=1..4@ids.1,x"]
)
def test_an_option_that_is_no_dim_is_one_sentence(text: str) -> None:
    with pytest.raises(ExportError, match=r"^--dim: ") as caught:
        parse_dim(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", [("b", 4, 1), ("b", 0, 2), ("b", 0), ("", 1, 2), ("a b", 1, 2), ("min",), ("if",), ("a+b",)])
def test_a_dim_without_a_name_or_a_range_cannot_be_made(arguments: Any) -> None:
    with pytest.raises(ExportError, match=r"^dim.*: the (name must be an identifier|range must not be empty)"):
        Dim(*arguments)


def test_axes_are_the_first_of_every_input_or_those_named() -> None:
    assert axes_of(Dim("b"), SHAPES) == {"ids": 0, "mask": 0}
    assert axes_of(Dim("t", axes=1), SHAPES) == {"ids": 1, "mask": 1}
    assert axes_of(Dim("t", axes=(("mask", 1),)), SHAPES) == {"mask": 1}
    assert hints([Dim("b"), Dim("t", axes=1)], SHAPES) == {"b": 2, "t": 7}
    assert shapes_at([Dim("b")], SHAPES, {"b": 5}) == {"ids": (5, 7), "mask": (5, 7), "scale": ()}


@pytest.mark.parametrize(
    ("dim", "message"),
    [
        (Dim("b", axes=(("nothing", 0),)), "there is no axis 0 of an input 'nothing'. Hint: inputs: ids, mask, scale"),
        (Dim("b", axes=(("ids", 2),)), "there is no axis 2 of an input 'ids'"),
        (Dim("b", axes=3), "must be one size in the example inputs; got no input with that axis"),
        (Dim("b", axes=(("ids", 0), ("mask", 1))), "must be one size in the example inputs; got 2, 7"),
        (Dim("b", 3), "the example inputs must be within 3..any; got 2"),
        (Dim("b", 1, 1), "the example inputs must be within 1..1; got 2"),
    ],
)
def test_a_dim_that_the_example_inputs_do_not_have_is_refused(dim: Dim, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        hints([dim], SHAPES)


def test_dims_have_different_names() -> None:
    with pytest.raises(ExportError, match="different names; got b, b"):
        hints([Dim("b"), Dim("b", axes=1)], SHAPES)


def test_sizes_are_within_their_ranges() -> None:
    for low, high in ((1, 64), (1, None), (5, 6), (1, 2), (3, 3), (1, 1), (100, 4000)):
        dims = [Dim("b", low, high), Dim("t", 2, 9, 1)]
        hint = {"b": low, "t": 4}
        for sizes in [*trial_sizes(dims, hint), *check_sizes(dims, hint)]:
            assert low <= sizes["b"] <= (high or sizes["b"])
            assert 2 <= sizes["t"] <= 9
    assert check_sizes([Dim("b", 1, 64)], {"b": 1}) == [{"b": 5}, {"b": 2}]
    assert check_sizes([Dim("b", 1, 64)], {"b": 8}) == [{"b": 1}, {"b": 19}]
    assert check_sizes([Dim("b", 2, 2)], {"b": 2}) == []
    assert check_sizes([Dim("b", 2, 12)], {"b": 12}) == [{"b": 2}, {"b": 7}]
    assert all(sizes["b"] > 1 for sizes in trial_sizes([Dim("b", 1, 64)], {"b": 1}))


def build(make: Callable[[GraphBuilder, str, int, int], str], b: int, t: int) -> Graph:
    builder = GraphBuilder("made", producer={"framework": "numpy", "framework_version": "2", "exporter_version": "0", "options": {}})
    builder.output("y", make(builder, builder.input("x", "f32", (b, t)), b, t))
    return builder.build()


DIMS = [Dim("b", 1, 64), Dim("t", 2, 64, 1)]
HINT = {"b": 1, "t": 5}


def symbolic(make: Callable[[GraphBuilder, str, int, int], str], candidates: Any = ()) -> Graph:
    return generalise([(sizes, build(make, sizes["b"], sizes["t"])) for sizes in trial_sizes(DIMS, HINT)], DIMS, HINT, candidates)


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x, b, t: g.add("relu", [x]),
        lambda g, x, b, t: g.add("reshape", [x], shape=(b * t,)),
        lambda g, x, b, t: g.add("broadcast", [x], shape=(t, b, t)),
        lambda g, x, b, t: g.add("reshape", [g.add("concat", [x] * 4, axis=1)], shape=(2, 2 * b * t)),
        lambda g, x, b, t: g.add("pad", [x], mode="constant", low=(0, 3), high=(t - 2, 2 * b + t), interior=(0, 0), value=0.0),
        lambda g, x, b, t: g.add("slice", [x], start=(0, 1), limit=(b, t - 1), strides=(1, 1)),
        lambda g, x, b, t: g.add("iota", [], dtype="i64", shape=(t * t, b), axis=0),
    ],
)
def test_the_symbolic_graph_becomes_every_static_one(make: Any, tmp_path: Any) -> None:
    graph = symbolic(make)
    assert dict(graph.dims) == {"b": {"min": 1, "max": 64, "hint": 1}, "t": {"min": 2, "max": 64, "hint": 5}}
    save_graph(graph, tmp_path / "made")
    loaded = load_graph(tmp_path / "made")
    for b, t in ((1, 5), (7, 3), (64, 64), (1, 2), (13, 31)):
        bound, wanted = loaded.bind(b=b, t=t), build(make, b, t)
        check_graph(bound)
        assert bound.nodes == wanted.nodes
        assert bound.inputs == wanted.inputs


def test_a_framework_can_name_expressions_that_are_no_polynomial() -> None:
    def less(g: GraphBuilder, x: str, b: int, t: int) -> str:
        return str(g.add("slice", [x], start=(0, 0), limit=(b, min(t, 6)), strides=(1, 1)))

    with pytest.raises(ExportError, match=r"slice 'slice'.*is no simple expression.*Hint: give this dim a fixed size"):
        symbolic(less)
    assert symbolic(less, ["min(t, 6)"]).bind(b=3, t=10).nodes == build(less, 3, 10).nodes


def strided(step: int, first: int = 0) -> Any:
    return lambda g, x, b, t: g.add("slice", [x], start=(0, first), limit=(b, t), strides=(1, step))


@pytest.mark.parametrize(
    "make",
    [
        strided(2),
        strided(3),
        strided(4),
        strided(5, 1),
        strided(7),
        lambda g, x, b, t: g.add("reshape", [strided(2)(g, x, b, t)], shape=(b * ((t + 1) // 2),)),
        lambda g, x, b, t: g.add("reshape", [strided(3)(g, x, b, t)], shape=(b * ((t + 2) // 3),)),
        lambda g, x, b, t: g.add("slice", [x], start=(0, 0), limit=(b, 2 * t // 3), strides=(1, 1)),
    ],
)
def test_quotients_are_found(make: Any) -> None:
    dims, hint = [Dim("t", 3, 40, 1)], {"t": 7}
    graph = generalise([(sizes, build(make, 2, sizes["t"])) for sizes in trial_sizes(dims, hint)], dims, hint)
    for t in range(3, 41):
        assert graph.bind(t=t).nodes == build(make, 2, t).nodes


def test_a_quotient_that_could_be_several_is_refused() -> None:
    dims, hint = [Dim("t", 3, 40, 1)], {"t": 7}
    with pytest.raises(ExportError, match="is no simple expression"):
        generalise([(sizes, build(strided(30), 2, sizes["t"])) for sizes in trial_sizes(dims, hint)], dims, hint)


def test_quotients_of_one_of_two_dims_are_found_and_multiplied() -> None:
    def flat(g: GraphBuilder, x: str, b: int, t: int) -> str:
        return str(g.add("reshape", [strided(2)(g, x, b, t)], shape=(b * ((t + 1) // 2),)))

    assert symbolic(flat).bind(b=3, t=10).nodes == build(flat, 3, 10).nodes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, x, b, t: g.add("add", [x, g.constant(np.float32(t), "count")]), "constant 'count', computed at export, depends on them"),
        (lambda g, x, b, t: g.add("relu" if t > 4 else "abs", [x]), "relu, abs|abs, relu"),
        (lambda g, x, b, t: g.add("concat", [x] * t, axis=0), "concat 'concat': 2, 3, 5, 10 of them|concat 'concat': .* of them"),
        (lambda g, x, b, t: g.add("clamp", [x], lo=0.0, hi=float(t)), r"clamp 'clamp' hi: 2\.0, 3\.0"),
    ],
)
def test_what_is_more_than_an_integer_is_refused_with_its_place(make: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        symbolic(make)


def test_nan_is_the_same_at_all_sizes() -> None:
    def fill(g: GraphBuilder, x: str, b: int, t: int) -> str:
        indices = g.constant(np.array([0, 9]), "indices")
        return str(g.add("take", [x, indices], axis=1, oob="fill", wrap_negative=False, fill_value=float("nan")))

    assert np.isnan(symbolic(fill).nodes[0].attrs["fill_value"])


def test_constants_of_several_sizes_share_their_data() -> None:
    def add(g: GraphBuilder, x: str, b: int, t: int) -> str:
        return str(g.add("add", [g.add("add", [x, g.constant(np.ones((1, 1), np.float32), "same")]), g.constant(np.float32(t), "other")]))

    one, other = build(add, 1, 2), build(add, 1, 3)
    shared = share_constants(other, [({"b": 1, "t": 2}, one)])
    assert [a.data is b.data for a, b in zip(one.constants, shared.constants, strict=True)] == [True, False]
    assert share_constants(one, []) is one
    assert shared.constants[1].data == 3


ZOO = [
    ("torch_mlp", "batch=1..64"),
    ("torch_transformer", "tokens=2..64@1"),
    ("jax_cnn", "batch=1..64"),
    ("jax_transformer-tiny", "batch=1..8"),
    ("jax_transformer-tiny", "tokens=2..12@1"),
    ("tf_cnn", "batch=1..64"),
    ("tf_transformer-tiny", "tokens=2..64@1"),
]


@pytest.mark.parametrize(
    ("name", "text"), [pytest.param(*case, marks=getattr(pytest.mark, case[0].partition("_")[0]), id="-".join(case)) for case in ZOO]
)
def test_a_zoo_model_runs_at_three_sizes_as_in_its_framework(name: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(name.partition("_")[0], name.partition("_")[0]))
    pytest.importorskip("flax" if name.startswith("jax_transformer") else "numpy")
    export_model(name, tmp_path, dims=[parse_dim(text)])
    graph, shapes = load_graph(tmp_path / name), set()
    for executor in (Executor.create(graph, threads=1), Executor.create(graph, threads=1, fuse=False)):
        for suffix in ("", ".1", ".2"):
            golden = read_golden(tmp_path / f"{name}.golden{suffix}.safetensors")
            shapes.add(next(iter(golden.inputs.values())).shape)
            assert compare_with_golden(executor.run(golden.inputs), golden).passed
    assert len(shapes) == 3
