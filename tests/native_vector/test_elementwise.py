"""The elementwise interpreter: sizes, layouts, in-place runs, fused groups, and the agreement of its two instruction lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rml_exec
from rml_exec.ir.graph import Node, Value
from rml_exec.ops import get_op
from rml_exec.runtime.elementwise_program import INSTRUCTIONS
from rml_exec.types import TensorType
from tests.native_vector.native import ISAS, NotLoweredError, lower, run

SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1009, 4099)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def group(operands: list[np.ndarray], steps: list[tuple[Any, ...]], results: list[int]) -> dict[str, Any]:
    """Returns the attributes of a fused node on x0, x1...; step i, (op, operand names, attributes), makes v{i}."""
    types = {f"x{i}": TensorType.of(x) for i, x in enumerate(operands)}
    body = []
    for number, (op, names, *attrs) in enumerate(steps):
        given_attrs = attrs[0] if attrs else {}
        (type_,) = get_op(op).infer_types(op, [types[name] for name in names], given_attrs)
        types[f"v{number}"] = type_
        body.append(Node(op, f"n{number}", tuple(names), (Value(f"v{number}", type_),), given_attrs))
    return {"params": tuple(f"x{i}" for i in range(len(operands))), "body": tuple(body), "results": tuple(f"v{i}" for i in results)}


def check_fused(operands: list[np.ndarray], attrs: dict[str, Any], isa: str, rtol: float = 3e-6, atol: float = 1e-6) -> None:
    wanted = get_op("fused").run_reference([x.astype(np.float64) if x.dtype == np.float32 else x for x in operands], attrs)
    for threads in (1, 2):
        for got, want in zip(run("fused", operands, attrs, isa=isa, threads=threads), wanted, strict=True):
            np.testing.assert_allclose(got, want.astype(got.dtype), rtol=rtol, atol=atol)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_and_its_neighbours(size: int, isa: str) -> None:
    x, y = floats(size, seed=1), floats(size, seed=2)
    np.testing.assert_array_equal(run("add", [x, y], isa=isa)[0], x + y)
    np.testing.assert_array_equal(run("compare", [x, y], {"dir": "lt"}, isa=isa, threads=2)[0], x < y)
    np.testing.assert_array_equal(run("select", [x < y, x, y], isa=isa)[0], np.minimum(x, y))
    np.testing.assert_array_equal(run("not", [x < y], isa=isa)[0], x >= y)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((7, 17), (17,)),
        ((7, 17), (7, 1)),
        ((7, 1), (1, 17)),
        ((300, 3), (3,)),
        ((300, 3), (300, 1)),
        ((513, 64), (64,)),
        ((5, 768), (768,)),
        ((5, 1000), (5, 1)),
        ((2, 3, 5, 7), (3, 1, 1)),
        ((2, 1, 9, 9), (1, 4, 9, 1)),
        ((4, 197, 197), (1, 197, 197)),
        ((1, 1), (130, 1)),
        ((3, 1, 256), (1, 5, 256)),
        ((), (257,)),
    ],
    ids=str,
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...], isa: str) -> None:
    x, y = floats(*a, seed=1), floats(*b, seed=2)
    for threads in (1, 2):
        np.testing.assert_array_equal(run("sub", [x, y], isa=isa, threads=threads)[0], x - y)
        np.testing.assert_array_equal(run("compare", [y, x], {"dir": "ge"}, isa=isa, threads=threads)[0], y >= x)
    mask = y > 0
    np.testing.assert_array_equal(run("select", [mask, x, y], isa=isa)[0], np.where(mask, x, y))


@pytest.mark.parametrize("threads", [1, 2])
def test_strided_operands_are_read_where_they_lie(threads: int, isa: str) -> None:
    base = floats(12, 30, 70)
    dense = floats(30, 70, 12, seed=3)
    for view in (
        base.transpose(1, 2, 0),
        base[:, ::-1].transpose(1, 2, 0),
        np.broadcast_to(base[:1, :, :], (12, 30, 70)).transpose(1, 2, 0),
    ):
        np.testing.assert_array_equal(run("add", [view, dense], isa=isa, threads=threads)[0], view + dense)
    part = base[2:9, ::3, 5:60:2]
    np.testing.assert_array_equal(run("mul", [part, part[:1]], isa=isa, threads=threads)[0], part * part[:1])
    flags = (base > 0).transpose(2, 0, 1)
    flags = np.ascontiguousarray(flags).transpose(1, 2, 0)
    np.testing.assert_array_equal(run("not", [flags], isa=isa, threads=threads)[0], ~flags)


@pytest.mark.parametrize("size", [5, 64, 1000, 40_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_in_place(size: int, threads: int, isa: str) -> None:
    x, y = floats(size, seed=1), floats(size, seed=2)
    for number, want in ((0, x - y), (1, x - y)):
        np.testing.assert_array_equal(run("sub", [x, y], isa=isa, threads=threads, in_place=number)[0], want)
    np.testing.assert_array_equal(run("relu", [x], isa=isa, threads=threads, in_place=0)[0], np.maximum(x, 0))
    np.testing.assert_array_equal(run("select", [y > 0, x, y], isa=isa, threads=threads, in_place=2)[0], np.where(y > 0, x, y))
    row = floats(1, size, seed=4)
    np.testing.assert_array_equal(run("add", [row, floats(1, 1)], isa=isa, threads=threads, in_place=0)[0], row + floats(1, 1))


@pytest.mark.parametrize("size", [33, 1000])
def test_a_result_may_lie_on_an_operand_that_is_read_later(size: int, isa: str) -> None:
    x, y = floats(size), floats(size, seed=1)
    # v0 is ready first, but x0 is read once more after it: storing v0 at once would change v1 where v0 lies on x0.
    attrs = group([x, y], [("add", ("x0", "x1")), ("mul", ("x1", "x1")), ("sub", ("v1", "x0"))], [0, 2])
    got = run("fused", [x, y], attrs, isa=isa, in_place=0)
    np.testing.assert_array_equal(got[0], x + y)
    np.testing.assert_array_equal(got[1], y * y - x)


def test_values_that_are_used_again_wait_in_slots(isa: str) -> None:
    x, y = floats(3, 70), floats(70, seed=1)
    steps: list[tuple[Any, ...]] = [("tanh", ("x0",))]
    steps += [("add", ("x1", "v0"))]  # v1
    steps += [("mul", ("v0", "v1")), ("sub", ("v1", "v2")), ("exp", ("v3",)), ("div", ("v0", "v4"), {"rounding": "true"})]
    steps += [("add", ("v5", "v1")), ("mul", ("v6", "v2")), ("sub", ("v3", "v7")), ("mul", ("v8", "v8")), ("add", ("v9", "v9"))]
    check_fused([x, y], group([x, y], steps, [2, 10, 5]), isa)


def test_truth_values_inside_a_group(isa: str) -> None:
    x, y = floats(2, 130), floats(2, 1, seed=1)
    flags = floats(2, 130, seed=2) > 0
    steps: list[tuple[Any, ...]] = [
        ("compare", ("x0", "x1"), {"dir": "lt"}),
        ("and", ("v0", "x2")),
        ("not", ("x2",)),
        ("or", ("v2", "v0")),
        ("xor", ("v3", "v1")),
        ("select", ("v4", "x0", "x1")),
        ("select", ("x2", "v5", "x0")),
        ("select", ("v1", "x1", "v6")),
        ("cast", ("v3",), {"to": "f32", "f2i": "error"}),
        ("add", ("v8", "v7")),
        ("compare", ("v0", "x2"), {"dir": "le"}),
        ("compare", ("v10", "x2"), {"dir": "eq"}),
        ("is_nan", ("v9",)),
        ("select", ("v11", "v11", "v12")),
    ]
    check_fused([x, y, flags], group([x, y, flags], steps, [1, 4, 9, 10, 11, 13, 2]), isa)


def test_integers_inside_a_group(isa: str) -> None:
    a = np.array([2**31 - 1, -(2**31), -5, 0, 7] * 30, np.int32)
    b = np.array([3, -1, 2, 9, 7] * 30, np.int32)
    steps: list[tuple[Any, ...]] = [
        ("add", ("x0", "x1")),
        ("mul", ("v0", "x1")),
        ("sub", ("x1", "v1")),
        ("abs", ("v2",)),
        ("max", ("v3", "x0")),
        ("min", ("v4", "x1")),
        ("neg", ("v5",)),
        ("clamp", ("v6",), {"lo": -3.0, "hi": 100.0}),
        ("relu", ("v7",)),
        *[("compare", ("v8", "x1"), {"dir": direction}) for direction in ("eq", "ne", "lt", "le", "gt", "ge")],
        ("cast", ("v4",), {"to": "f32", "f2i": "error"}),
        ("cast", ("v8",), {"to": "bool", "f2i": "error"}),
        ("xor", ("x0", "v2")),
    ]
    check_fused([a, b], group([a, b], steps, [*range(len(steps))]), isa, rtol=0, atol=0)


def test_a_result_that_is_an_operand_unchanged(isa: str) -> None:
    x = floats(70)
    same = {"to": "f32", "f2i": "error"}
    attrs = group([x], [("cast", ("x0",), same), ("neg", ("x0",)), ("cast", ("v1",), same)], [0, 1, 2])
    got = run("fused", [x], attrs, isa=isa)
    for result, want in zip(got, (x, -x, -x), strict=True):
        np.testing.assert_array_equal(result, want)


_UNARY = [("tanh", {}), ("neg", {}), ("abs", {}), ("sigmoid", {}), ("relu", {}), ("floor", {}), ("clamp", {"lo": -1.0, "hi": None})]
_BINARY = [("add", {}), ("sub", {}), ("mul", {}), ("max", {}), ("min", {}), ("rem", {"sign": "dividend"})]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draws operands of shapes that broadcast together, one of them full, and a group of up to 12 nodes on them and on each other."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 33, 130]), min_size=1, max_size=3)))
    operands = [floats(*shape)]
    for seed in range(draw(st.integers(0, 3))):
        squeezed = tuple(1 if draw(st.booleans()) else dim for dim in shape)
        operands.append(floats(*squeezed[draw(st.integers(0, len(shape))) :], seed=seed + 1))
    steps: list[tuple[Any, ...]] = [("add", ("x0", "x0"))]
    for _ in range(draw(st.integers(0, 11))):
        made = [f"v{i}" for i in range(len(steps))]
        known = [*made, *(f"x{i}" for i in range(len(operands)))]
        if draw(st.booleans()):
            op, attrs = draw(st.sampled_from(_UNARY))
            steps.append((op, (draw(st.sampled_from(made)),), attrs))
        else:
            op, attrs = draw(st.sampled_from(_BINARY))
            pair = (draw(st.sampled_from(made)), draw(st.sampled_from(known)))
            steps.append((op, pair if draw(st.booleans()) else pair[::-1], attrs))
    results = draw(st.sets(st.integers(0, len(steps) - 1), min_size=1, max_size=4))
    return operands, group(operands, steps, sorted(results))


@given(groups(), st.sampled_from(ISAS), st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_a_random_group_is_its_nodes_one_by_one(drawn: tuple[list[np.ndarray], dict[str, Any]], isa: str, threads: int) -> None:
    operands, attrs = drawn
    known = dict(zip(attrs["params"], operands, strict=True))
    for node in attrs["body"]:
        known[node.outputs[0].name] = run(node.op, [known[name] for name in node.inputs], node.attrs, isa=isa)[0]
    fused = run("fused", operands, attrs, isa=isa, threads=threads)
    for name, got in zip(attrs["results"], fused, strict=True):
        np.testing.assert_array_equal(got, known[name])


@pytest.mark.parametrize("width", [2, 30, 31, 40])
def test_a_wide_group_runs_natively_up_to_the_limit_of_operands(width: int, isa: str) -> None:
    operands = [floats(70, seed=i) for i in range(width)]
    steps: list[tuple[Any, ...]] = [("add", ("x0", "x1"))]
    steps += [("add", (f"v{i - 2}", f"x{i}")) for i in range(2, width)]
    attrs = group(operands, steps, [len(steps) - 1])
    if width < 32:
        check_fused(operands, attrs, isa, rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(NotLoweredError):
            lower("fused", operands, attrs, (), 1, "exact")


def test_both_instruction_lists_are_the_same() -> None:
    source = Path(rml_exec.__file__).parent / "native" / "kernels" / "elementwise.def"
    listed = []
    for kind, name in re.findall(r"^(LOAD|STORE|UNARY|LONG|LONG_OR|BINARY|LONG_BINARY|TERNARY)\((\w+),", source.read_text(), re.MULTILINE):
        listed += [name, f"{name}_s"] if kind.endswith("BINARY") else [name]
    assert listed == list(INSTRUCTIONS)
