"""Elementwise operators from ONNX, against ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.text_models import assert_matches, node_count, parsed

pytestmark = pytest.mark.onnx

X = np.array([[-2.5, -1.0, -0.5, 0.0], [0.5, 1.0, 1.5, 3.0]], np.float32)
POSITIVE = np.abs(X) + 0.25
UNIT = X / 4


@pytest.mark.parametrize(
    ("expression", "x"),
    [
        *((f"{op}(x)", X) for op in ("Abs", "Neg", "Ceil", "Floor", "Round", "Sign", "Exp", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh")),
        *((f"{op}(x)", X) for op in ("Erf", "Sigmoid", "Relu", "Softplus", "Softsign", "HardSwish", "Mish", "Asinh", "Atan", "Reciprocal")),
        *((f"{op}(x)", POSITIVE) for op in ("Log", "Sqrt")),
        *((f"{op}(x)", UNIT) for op in ("Asin", "Acos", "Atanh")),
        ("Acosh(x)", POSITIVE + 1),
        ("LeakyRelu <alpha: float = 0.3> (x)", X),
        ("LeakyRelu(x)", X),
        ("Elu <alpha: float = 0.7> (x)", X),
        ("Celu <alpha: float = 0.7> (x)", X),
        ("Selu(x)", X),
        ("Selu <alpha: float = 2.0, gamma: float = 0.5> (x)", X),
        ("HardSigmoid(x)", X),
        ("HardSigmoid <alpha: float = 0.3, beta: float = 0.4> (x)", X),
        ("Gelu(x)", X),
        ('Gelu <approximate: string = "tanh"> (x)', X),
        ("ThresholdedRelu <alpha: float = 0.6> (x)", X),
        ("Shrink <bias: float = 0.3, lambd: float = 0.6> (x)", X),
    ],
)
def test_operators_of_one_operand(expression: str, x: np.ndarray) -> None:
    if expression.startswith("Reciprocal"):
        x = x + 0.1
    assert_matches(parsed(f"g (float[2,4] x) => (float[2,4] y) {{ y = {expression} }}"), {"x": x})


def test_swish_of_newer_operator_sets() -> None:
    for attribute, ops in (("", {"silu"}), ("<alpha: float = 0.5>", {"mul", "sigmoid"})):
        model = parsed(f"g (float[2,4] x) => (float[2,4] y) {{ y = Swish {attribute} (x) }}", opset=24, ir_version=11)
        assert {node.op for node in assert_matches(model, {"x": X}).nodes} == ops


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Less", "Equal", "GreaterOrEqual"])
def test_operators_of_two_operands_broadcast(op: str) -> None:
    result = "bool" if op in ("Less", "Equal", "GreaterOrEqual") else "float"
    model = parsed(f"g (float[2,4] x, float[2,1] z) => ({result}[2,4] y) {{ y = {op}(x, z) }}")
    assert_matches(model, {"x": X, "z": np.array([[-0.5], [1.5]], np.float32)})


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 3])
def test_variadic_operators(op: str, count: int) -> None:
    names = [f"x{index}" for index in range(count)]
    inputs = ", ".join(f"float[2,4] {name}" for name in names)
    model = parsed(f"g ({inputs}) => (float[2,4] y) {{ y = {op}({', '.join(names)}) }}")
    assert_matches(model, {name: X * (index - 1) for index, name in enumerate(names)})


def test_integers_are_divided_toward_zero() -> None:
    model = parsed(
        "g (int32[4] a, int32[4] b) => (int32[4] q, int32[4] m, int32[4] f) { q = Div(a, b) m = Mod(a, b) f = Mod <fmod: int = 1> (a, b) }"
    )
    graph = to_graph(model)
    inputs = {"a": np.array([7, -7, 7, -7], np.int32), "b": np.array([2, 2, -2, -2], np.int32)}
    results = run_reference(graph, inputs, precision="f32")
    assert results["q"].tolist() == [3, -3, -3, 3]  # what ONNX says; its evaluator rounds down
    assert results["m"].tolist() == [1, 1, -1, -1]
    assert results["f"].tolist() == [1, -1, 1, -1]


@pytest.mark.parametrize(("kind", "want"), [("int8", [-4, -1, 64]), ("uint8", [124, 127, 64])])
def test_shifts_keep_the_sign_of_signed_integers(kind: str, want: list[int]) -> None:
    model = parsed(f'g ({kind}[3] x, {kind}[3] n) => ({kind}[3] y) {{ y = BitShift <direction: string = "RIGHT"> (x, n) }}')
    x = np.array([-8, -1, 127], np.int8).view(kind)
    got = run_reference(to_graph(model), {"x": x, "n": np.ones(3, kind)}, precision="f32")["y"]
    assert got.tolist() == [*want[:2], 63]


@pytest.mark.parametrize(
    ("exponent", "ops"), [(1, set()), (2, {"mul"}), (3, {"mul"}), (0.5, {"sqrt"}), (-0.5, {"rsqrt"}), (-1, {"div"}), (2.5, {"pow"})]
)
def test_usual_powers_need_no_pow(exponent: float, ops: set[str]) -> None:
    model = parsed(f"g (float[2,4] x) => (float[2,4] y) <float e = {{{exponent}}}> {{ y = Pow(x, e) }}")
    assert {node.op for node in assert_matches(model, {"x": POSITIVE}).nodes} == ops


@pytest.mark.parametrize(("base", "exponent"), [("int32", "float"), ("float", "int64"), ("int64", "int32")])
def test_powers_have_the_type_of_the_base(base: str, exponent: str) -> None:
    model = parsed(f"g ({base}[3] x, {exponent}[3] e) => ({base}[3] y) {{ y = Pow(x, e) }}")
    kinds = {"float": np.float32}
    assert_matches(model, {"x": np.array([1, 2, 3], kinds.get(base, base)), "e": np.array([4, 5, 6], kinds.get(exponent, exponent))})


def test_a_power_of_greater_rank_broadcasts() -> None:
    model = parsed("g (float[4] x) => (float[1,4] y) <float[1,1] e = {2}> { y = Pow(x, e) }")
    assert_matches(model, {"x": X[0]})


@pytest.mark.parametrize(("negative", "positive"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_infinities(negative: int, positive: int) -> None:
    attrs = f"<detect_negative: int = {negative}, detect_positive: int = {positive}>"
    model = parsed(f"g (float[4] x) => (bool[4] y) {{ y = IsInf {attrs} (x) }}")
    assert_matches(model, {"x": np.array([np.inf, -np.inf, np.nan, 1], np.float32)})


@pytest.mark.parametrize("bounds", ["low, high", "low", '"", high', ""])
def test_clip_by_known_bounds_is_one_op(bounds: str) -> None:
    model = parsed(
        f"g (float[2,4] x) => (float[2,4] y) <float low = {{-1}}, float high = {{1.25}}> {{ y = Clip(x, {bounds}) }}".replace("x, )", "x)")
    )
    assert len(assert_matches(model, {"x": X}).nodes) == (1 if bounds else 0)


def test_clip_by_attributes_and_by_operands() -> None:
    old = parsed("g (float[2,4] x) => (float[2,4] y) { y = Clip <min: float = -1.0, max: float = 0.75> (x) }", opset=10)
    assert_matches(old, {"x": X})
    model = parsed("g (float[2,4] x, float low, float high) => (float[2,4] y) { y = Clip(x, low, high) }")
    assert_matches(model, {"x": X, "low": np.array(-1, np.float32), "high": np.array(0.5, np.float32)})


def test_clip_of_large_integers_is_exact() -> None:
    high = 2**53 + 1
    model = parsed(f"g (int64[2] x) => (int64[2] y) <int64 low = {{0}}, int64 high = {{{high}}}> {{ y = Clip(x, low, high) }}")
    got = run_reference(to_graph(model), {"x": np.array([-5, 2**60])}, precision="f32")["y"]
    assert got.tolist() == [0, high]


@pytest.mark.parametrize("slopes", [1, 4])
def test_prelu(slopes: int) -> None:
    model = parsed(
        f"g (float[2,4] x) => (float[2,4] y) <float[{slopes}] s = {{{', '.join(['0.2', '-1', '3', '0'][:slopes])}}}> {{ y = PRelu(x, s) }}"
    )
    graph = assert_matches(model, {"x": X})
    assert node_count(graph, "leaky_relu") == (slopes == 1)


@pytest.mark.parametrize("kind", [1, 6, 7, 9, 10, 11])
def test_casts(kind: int) -> None:
    model = parsed(f"g (float[2,4] x) => (y) {{ y = Cast <to: int = {kind}> (x) }}")
    assert_matches(model, {"x": X})


def test_cast_like_and_bit_cast() -> None:
    model = parsed(
        "g (float[4] x, int32 like) => (int32[4] y, int32[4] z) { y = CastLike(x, like) z = BitCast <to: int = 6> (x) }",
        opset=26,
        ir_version=13,
    )
    results = run_reference(to_graph(model), {"x": X[0], "like": np.array(0, np.int32)}, precision="f32")
    np.testing.assert_array_equal(results["y"], X[0].astype(np.int32))
    np.testing.assert_array_equal(results["z"], X[0].view(np.int32))


def test_where_and_logic() -> None:
    model = parsed(
        "g (bool[4] a, bool[4] b, float[4] x) => (float[4] y) { c = And(a, b) d = Or(a, b) n = Not(d) e = Xor(c, n) m = Neg(x) y = Where(e, x, m) }"
    )
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert_matches(model, {"a": a, "b": b, "x": X[1]})


def test_constants_of_every_kind() -> None:
    model = parsed(
        """g (float[2] x) => (float[2] y) {
            a = Constant <value_float: float = 2.0> ()
            b = Constant <value_floats: floats = [1.0, -1.0]> ()
            i = Constant <value_ints: ints = [3, 4]> ()
            j = Constant <value_int: int = 5> ()
            k = Add(i, j)
            f = Cast <to: int = 1> (k)
            p = Mul(a, b)
            q = Add(p, f)
            y = Add(x, q)
        }"""
    )
    graph = assert_matches(model, {"x": X[0, :2]})
    assert len(graph.nodes) == 1
    assert graph.constants[0].data.tolist() == [10.0, 7.0]


def test_strings_are_refused() -> None:
    model = parsed('g (float[2] x) => (float[2] x2) { s = Constant <value_string: string = "a"> () x2 = CastLike(x, s) }')
    with pytest.raises(UnsupportedOperatorsError, match="strings are not tensors"):
        to_graph(model)
