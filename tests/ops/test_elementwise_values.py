"""What the elementwise ops give where frameworks differ and at the edges of the number formats."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rml_exec.errors import KernelError
from tests.ops.operands import run

NAN, INF = np.nan, np.inf
TINY = np.float32(1e-45)  # the smallest denormal
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, TINY, -TINY, 1e-40, 3.4e38, -3.4e38, 1.0, -1.0, 0.5, 2.5], np.float32)
NUMPY_UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
}
NUMPY_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "pow": np.power, "max": np.maximum, "min": np.minimum}


def f32(*values):
    return np.array(values, np.float32)


def i32(*values):
    return np.array(values, np.int32)


def u8(*values):
    return np.array(values, np.uint8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", NUMPY_UNARY)
def test_unary_special_values_are_those_of_numpy(op, dtype):
    x = SPECIAL.astype(dtype)
    with np.errstate(all="ignore"):
        want = NUMPY_UNARY[op](x)
    got = run(op, x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("op", NUMPY_BINARY)
def test_binary_special_values_are_those_of_numpy(op):
    a, b = SPECIAL[:, None], SPECIAL[None, :]
    with np.errstate(all="ignore"):
        want = NUMPY_BINARY[op](a, b)
    np.testing.assert_array_equal(run(op, a, b), want)


@pytest.mark.parametrize(
    ("op", "attrs", "want"),
    [
        ("relu", {}, [NAN, INF, 0, 0, 0, TINY, 0]),
        ("sigmoid", {}, [NAN, 1, 0, 0.5, 0.5, 0.5, 0.5]),
        ("silu", {}, [NAN, INF, NAN, 0, 0, 0, 0]),
        ("gelu", {"approximate": "none"}, [NAN, INF, NAN, 0, 0, 0, 0]),
        ("gelu", {"approximate": "tanh"}, [NAN, INF, NAN, 0, 0, 0, 0]),
        ("rsqrt", {}, [NAN, 0, NAN, INF, -INF, 2.6713e22, NAN]),
        ("sign", {"nan": "propagate"}, [NAN, 1, -1, 0, 0, 1, -1]),
        ("sign", {"nan": "zero"}, [0, 1, -1, 0, 0, 1, -1]),
        ("clamp", {"lo": -2.0, "hi": 3.0}, [NAN, 3, -2, 0, 0, TINY, -TINY]),
        ("clamp", {"lo": None, "hi": 3.0}, [NAN, 3, -INF, 0, 0, TINY, -TINY]),
        ("leaky_relu", {"alpha": 2.0}, [NAN, INF, -INF, 0, 0, TINY, -2 * TINY]),
        ("erf", {}, [NAN, 1, -1, 0, 0, TINY, -TINY]),
        ("erfc", {}, [NAN, 0, 2, 1, 1, 1, 1]),
    ],
)
def test_composite_special_values(op, attrs, want):
    np.testing.assert_allclose(run(op, SPECIAL[:7], **attrs), f32(*want), rtol=1e-4, atol=1.5e-45)


def test_sigmoid_keeps_its_denormal_tail_and_does_not_overflow():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = run("sigmoid", f32(-95.0, -1000.0, 1000.0))
    assert 0 < got[0] < np.finfo(np.float32).tiny
    assert list(got[1:]) == [0, 1]


def test_gelu_forms_differ_at_one_as_measured():
    assert float(run("gelu", f32(1.0), approximate="none")[0]) == pytest.approx(0.84134, abs=5e-6)
    assert float(run("gelu", f32(1.0), approximate="tanh")[0]) == pytest.approx(0.84119, abs=5e-6)


def test_gelu_keeps_its_tail():
    x = np.array([-30.0])
    assert run("gelu", x, approximate="none")[0] == pytest.approx(-15 * 9.8134278541e-198, rel=1e-9)


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("half_even", [-2, -2, -0.0, 0, 0, 2, 2, 8388609, 1e30]),
        ("half_away", [-3, -2, -1, 0, 1, 2, 3, 8388609, 1e30]),
        ("toward_zero", [-2, -1, -0.0, 0, 0, 1, 2, 8388609, 1e30]),
    ],
)
def test_round_modes(mode, want):
    x = f32(-2.5, -1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5, 8388609, 1e30)
    got = run("round", x, mode=mode)
    np.testing.assert_array_equal(got, f32(*want))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
    np.testing.assert_array_equal(run("round", f32(NAN, INF, -INF), mode=mode), [NAN, INF, -INF])


@pytest.mark.parametrize(
    ("rounding", "want"), [("floor", [2, -3, -3, 2, -2, -(2**31)]), ("trunc", [2, -2, -2, 2, -2, -(2**31)])], ids=["floor", "trunc"]
)
def test_integer_division_modes(rounding, want):
    a, b = i32(7, -7, 7, -7, 6, -(2**31)), i32(3, 3, -3, -3, -3, -1)
    np.testing.assert_array_equal(run("div", a, b, rounding=rounding), want)
    np.testing.assert_array_equal(run("div", a.astype(np.float64), b.astype(np.float64), rounding=rounding)[:5], want[:5])


@pytest.mark.parametrize(("sign", "want"), [("divisor", [1, 2, -2, -1, 0, 0]), ("dividend", [1, -1, 1, -1, 0, 0])])
def test_remainder_signs(sign, want):
    a, b = i32(7, -7, 7, -7, 6, -(2**31)), i32(3, 3, -3, -3, -3, -1)
    np.testing.assert_array_equal(run("rem", a, b, sign=sign), want)
    np.testing.assert_array_equal(run("rem", a.astype(np.float64), b.astype(np.float64), sign=sign), want)


@pytest.mark.parametrize(("op", "attrs"), [("div", {"rounding": "floor"}), ("div", {"rounding": "trunc"}), ("rem", {"sign": "divisor"})])
def test_integer_division_by_zero_is_an_error_of_the_run(op, attrs):
    with pytest.raises(KernelError, match=f"^{op}: an integer divisor must not be 0"):
        run(op, i32(1, 2), i32(1, 0), **attrs)


def test_float_division_by_zero_is_ieee():
    np.testing.assert_array_equal(run("div", f32(1, -1, 0, NAN), f32(0, 0, 0, 1), rounding="true"), [INF, -INF, NAN, NAN])
    np.testing.assert_array_equal(run("rem", f32(1), f32(0), sign="dividend"), [NAN])


def test_float_floor_division_is_that_of_python():
    assert run("div", np.array([1.0]), np.array([0.1]), rounding="floor")[0] == 1.0 // 0.1 == 9


def test_negative_integer_exponent_is_an_error_of_the_run():
    with pytest.raises(KernelError, match="exponents must not be negative; got -1"):
        run("pow", i32(2), i32(-1))


def test_integers_wrap():
    np.testing.assert_array_equal(run("add", u8(250), u8(10)), [4])
    np.testing.assert_array_equal(run("sub", u8(1), u8(2)), [255])
    np.testing.assert_array_equal(run("mul", i32(2**30), i32(4)), [0])
    np.testing.assert_array_equal(run("neg", i32(-(2**31))), [-(2**31)])
    np.testing.assert_array_equal(run("abs", i32(-(2**31))), [-(2**31)])


def test_and_or_xor_not_are_logical_on_bool_and_bitwise_on_integers():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    assert [list(run(op, a, b)) for op in ("and", "or", "xor")] == [[True, False, False], [True, True, False], [False, True, False]]
    assert [int(run(op, i32(12), i32(10))[0]) for op in ("and", "or", "xor")] == [8, 14, 6]
    assert list(run("not", a)) == [False, False, True]
    assert list(run("not", i32(0, 5))) == [-1, -6]


@pytest.mark.parametrize(
    ("dir", "want"),
    [("eq", "00110"), ("ne", "11001"), ("lt", "01000"), ("le", "01110"), ("gt", "00000"), ("ge", "00110")],
)
def test_compare_with_nan_and_zeros(dir, want):
    got = run("compare", f32(NAN, 1, 2, -0.0, 3), f32(NAN, 2, 2, 0.0, NAN), dir=dir)
    assert "".join(str(int(value)) for value in got) == want


def test_select_takes_a_where_true_and_broadcasts():
    got = run("select", np.array([[True], [False]]), f32(1, 2, 3), np.float32(NAN))
    np.testing.assert_array_equal(got, [[1, 2, 3], [NAN, NAN, NAN]])


AWKWARD = f32(NAN, 3e9, -3e9, 300, -1, -1.9, 2.0**63, -(2.0**63), INF)
I32, I64 = -(2**31), -(2**63)


@pytest.mark.parametrize(
    ("to", "f2i", "want"),
    [
        ("i32", "saturate", [0, 2**31 - 1, I32, 300, -1, -1, 2**31 - 1, I32, 2**31 - 1]),
        ("i32", "wrap_x86", [I32, I32, I32, 300, -1, -1, I32, I32, I32]),
        ("u8", "saturate", [0, 255, 0, 255, 0, 0, 255, 0, 255]),
        ("u8", "wrap_x86", [0, 0, 0, 44, 255, 255, 0, 0, 0]),
        ("i8", "wrap_x86", [0, 0, 0, 44, -1, -1, 0, 0, 0]),
        ("u32", "wrap_x86", [0, 3000000000, 1294967296, 300, 2**32 - 1, 2**32 - 1, 0, 0, 0]),
        ("i64", "saturate", [0, 3000000000, -3000000000, 300, -1, -1, 2**63 - 1, I64, 2**63 - 1]),
        ("i64", "wrap_x86", [I64, 3000000000, -3000000000, 300, -1, -1, I64, I64, I64]),
        ("u64", "saturate", [0, 3000000000, 0, 300, 0, 0, 2**63, 0, 2**64 - 1]),
        ("u64", "wrap_x86", [2**63, 3000000000, 2**64 - 3000000000, 300, 2**64 - 1, 2**64 - 1, 2**63, 2**63, 0]),
    ],
)
def test_float_to_integer(to, f2i, want):
    for dtype in (np.float32, np.float64):
        assert [int(value) for value in run("cast", AWKWARD.astype(dtype), to=to, f2i=f2i)] == want


@pytest.mark.parametrize("value", [NAN, INF, 2.0**31, -(2.0**31) - 1])
def test_float_to_integer_error_names_the_value(value):
    with pytest.raises(KernelError, match=r"^cast: value has no i32"):
        run("cast", np.array([1.0, value]), to="i32", f2i="error")
    assert list(run("cast", np.array([2147483647.5, -2147483648.9]), to="i32", f2i="error")) == [2**31 - 1, -(2**31)]


def test_other_casts():
    assert list(run("cast", f32(NAN, 0, -0.0, 0.5), to="bool", f2i="error")) == [True, False, False, True]
    assert list(run("cast", np.array([True, False]), to="f32", f2i="error")) == [1, 0]
    assert list(run("cast", i32(-1, 300), to="u8", f2i="error")) == [255, 44]
    assert run("cast", np.array([2**24 + 1]), to="f32", f2i="error")[0] == 2**24
    assert run("cast", f32(2049, 2051, 1e6).astype(np.float64), to="f16", f2i="error").tolist() == [2048, 2052, INF]
    assert run("cast", np.array([TINY], np.float64), to="f32", f2i="error")[0] == TINY
    assert list(run("cast", np.array([65504, -1.5], np.float16), to="i64", f2i="error")) == [65504, -1]
