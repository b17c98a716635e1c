"""Accuracy and special values of the elementary functions in vmath.h. The bounds here are the ones that its head comment states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rml_exec.ops.special import erf, erfc
from tests.native_vector.native import ISAS, run

Function = Callable[[np.ndarray], np.ndarray]
_TINY = np.float32(2.0**-126)

# name: (reference in float64, bound in ULP with FMA, bound on the baseline)
_IN_ULP: dict[str, tuple[Function, float, float]] = {
    "exp": (np.exp, 0.9, 1.2),
    "expm1": (np.expm1, 1.55, 1.65),
    "log": (np.log, 1.4, 1.6),
    "log1p": (np.log1p, 1.4, 1.6),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "tanh": (np.tanh, 1.3, 1.3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.45, 2.45),
    "erf": (erf, 1.8, 1.8),
    "erfc": (erfc, 3.3, 3.5),
    "sin": (np.sin, 1.6, 1.6),
    "cos": (np.cos, 1.6, 1.6),
}
# op, attributes: (reference, bound of the absolute error over |x|)
_OVER_X: dict[tuple[str, str], tuple[Function, float]] = {
    ("gelu", "none"): (lambda x: x * erfc(x * -np.sqrt(0.5)) / 2, 1.3e-7),
    ("gelu", "tanh"): (lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), 1.4e-7),
    ("silu", ""): (lambda x: x / (1 + np.exp(-x)), 1.4e-7),
}


def _sample(stride: int) -> np.ndarray:
    """Returns every ``stride``-th float: all magnitudes, both signs, denormals, infinities, NaN."""
    return np.arange(0, 2**32, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)


def _evaluate(function: Function, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return function(x.astype(np.float64))


def _ulp(want: np.ndarray) -> np.ndarray:
    """Size of the last place of the float32 numbers near ``want``, down to the denormals."""
    exponent = np.frexp(np.maximum(np.abs(want), float(_TINY)))[1]
    return np.ldexp(1.0, exponent - 24)


def _worst_ulp(got: np.ndarray, want: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(rounded) & np.isfinite(got)
    largest = np.float32(np.finfo(np.float32).max)
    same = (got == rounded) | ((np.abs(got) == largest) & np.isinf(rounded)) | (np.isinf(got) & (np.abs(rounded) == largest))
    assert np.all(finite | np.isnan(want) | same), "an infinity where the function is finite, or the other way round"
    return float(np.max(np.abs(got[finite] - want[finite]) / _ulp(want[finite])))


def _check_ulp(name: str, isa: str, stride: int) -> None:
    reference, with_fma, without = _IN_ULP[name]
    x = _sample(stride)
    got = run(name, [x], isa=isa)[0]
    with np.errstate(invalid="ignore"):
        worst = _worst_ulp(got.astype(np.float64), _evaluate(reference, x))
    assert worst <= (without if isa == "baseline" else with_fma)


@pytest.mark.parametrize("name", _IN_ULP)
def test_error_in_ulp(name: str, isa: str) -> None:
    _check_ulp(name, isa, stride=10007)


@pytest.mark.slow
@pytest.mark.parametrize("name", _IN_ULP)
def test_error_in_ulp_on_many_floats(name: str, isa: str) -> None:
    _check_ulp(name, isa, stride=503)


def _between(low: float, high: float, stride: int) -> np.ndarray:
    """Returns every ``stride``-th float from ``low`` to ``high``, both positive."""
    first, last = np.array([low, high], np.float32).view(np.uint32)
    return np.arange(first, last + 1, stride, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize(("name", "low", "high"), [("log", 0.6, 1.4), ("log1p", 1e-3, 0.4), ("tanh", 0.01, 9.4)])
def test_error_in_ulp_where_segments_meet(name: str, low: float, high: float, isa: str) -> None:
    reference, with_fma, without = _IN_ULP[name]
    x = _between(low, high, 61)
    for operand in (x, -x) if name == "tanh" else (x,):
        got = run(name, [operand], isa=isa)[0].astype(np.float64)
        assert _worst_ulp(got, _evaluate(reference, operand)) <= (without if isa == "baseline" else with_fma)


def test_logarithm_of_a_number_does_not_depend_on_its_neighbours(isa: str) -> None:
    alone = np.concatenate([_between(2.0**-126, 3.4e38, 100_003), _between(0.9, 1.1, 1009)])
    alone = alone[: alone.size // 128 * 128]  # whole steps, which are all normal
    others = np.array([0, -0.0, 1e-45, 1e-38, -1, np.inf, -np.inf, np.nan], np.float32)
    mixed = np.insert(alone, np.arange(0, alone.size, 3), np.resize(others, (alone.size + 2) // 3))
    normal = np.insert(np.ones(alone.size, bool), np.arange(0, alone.size, 3), False)
    (want,), (got,) = run("log", [alone], isa=isa), run("log", [mixed], isa=isa)
    assert got[normal].tobytes() == want.tobytes()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got[~normal], np.log(mixed[~normal]), rtol=2e-7)


@pytest.mark.parametrize("other", [0, 2.0**-149, np.nextafter(np.float32(2.0**-126), np.float32(0)), -1, -np.inf, np.inf, np.nan])
def test_one_lane_of_a_step_of_logarithms_is_no_normal_number(other: float, isa: str) -> None:
    for place in (0, 17, 63, 127):
        x = np.full(128, 2, np.float32)
        x[place] = other
        (got,) = run("log", [x], isa=isa)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, np.log(x), rtol=2e-7)


@pytest.mark.parametrize("name", _OVER_X, ids="-".join)
def test_error_of_an_activation_over_its_argument(name: tuple[str, str], isa: str) -> None:
    reference, bound = _OVER_X[name]
    x = _sample(10007)
    x = x[np.isfinite(x) & (x != 0)]
    want, got = _evaluate(reference, x), run(name[0], [x], {"approximate": name[1]} if name[1] else {}, isa=isa)[0]
    assert np.all(np.isfinite(got))
    assert np.max(np.abs(got - want) / np.abs(x.astype(np.float64)) * (np.abs(x) > 1e-30)) <= bound


def test_sine_and_cosine_of_large_arguments(isa: str) -> None:
    x = np.array([6.5e4, 65536.0, 65537.0, -1e5, 1e7, -3.0e20, 3.4e38], np.float32)
    np.testing.assert_allclose(run("sin", [x], isa=isa)[0], np.sin(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(run("cos", [x], isa=isa)[0], np.cos(x.astype(np.float64)), rtol=1e-6)


def test_clamped_arguments_saturate_exactly(isa: str) -> None:
    x = np.array([1e10, 30.0, 9.2, 10.0], np.float32)
    for name in ("tanh", "erf"):
        np.testing.assert_array_equal(run(name, [x], isa=isa)[0], 1)
        np.testing.assert_array_equal(run(name, [-x], isa=isa)[0], -1)
    for approximate in ("none", "tanh"):
        np.testing.assert_array_equal(run("gelu", [x], {"approximate": approximate}, isa=isa)[0], x)
    np.testing.assert_array_equal(run("gelu", [-x], {"approximate": "none"}, isa=isa)[0], 0)
    near = run("tanh", [_between(8.5, 9.5, 11)], isa=isa)[0]
    assert near.max() == 1
    assert np.all(np.diff(near) >= 0)
    np.testing.assert_array_equal(run("erfc", [np.concatenate([x, -x])], isa=isa)[0][[0, 1, 4, 5]], [0, 0, 2, 2])


_SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1.0, -1.0, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan], np.float32)
_UNARY: list[tuple[str, dict[str, Any], Function]] = [
    *[(name, {}, getattr(np, name)) for name in ("floor", "ceil", "abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos")],
    ("neg", {}, np.negative),
    ("sign", {"nan": "propagate"}, np.sign),
    ("sign", {"nan": "zero"}, lambda x: np.nan_to_num(np.sign(x))),
    ("round", {"mode": "half_even"}, np.rint),
    ("round", {"mode": "toward_zero"}, np.trunc),
    ("is_nan", {}, np.isnan),
    ("is_inf", {}, np.isinf),
    ("relu", {}, lambda x: np.where(np.isnan(x), x, np.fmax(x, 0))),
]


@pytest.mark.parametrize(("name", "attrs", "reference"), _UNARY, ids=lambda value: value if isinstance(value, str) else None)
def test_special_values_are_those_of_numpy(name: str, attrs: dict[str, Any], reference: Function, isa: str) -> None:
    with np.errstate(all="ignore"):
        want = reference(_SPECIAL)
    (got,) = run(name, [_SPECIAL], attrs, isa=isa)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-45)
    if name != "relu" and got.dtype == np.float32:
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


def test_rounding_half_away_from_zero(isa: str) -> None:
    x = np.array([0.5, -0.5, 0.49999997, -0.49999997, 1.5, 2.5, -2.5, 8388609.0, 8388607.5, -0.0, 0.2], np.float32)
    want = np.array([1, -1, 0, -0.0, 2, 3, -3, 8388609, 8388608, -0.0, 0], np.float32)
    (got,) = run("round", [x], {"mode": "half_away"}, isa=isa)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_power_of_special_values_is_that_of_c(isa: str) -> None:
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5, 1e-40, 3e38, -3e38, 16777215.0, -16777217.0]
    values += [np.inf, -np.inf, np.nan, 127.0, 128.0, -149.0, -150.0, 1e10]
    a, b = (side.ravel().copy() for side in np.meshgrid(np.array(values, np.float32), np.array(values, np.float32)))
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    (got,) = run("pow", [a, b], isa=isa)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-45)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


def test_power_is_accurate_over_the_whole_range(isa: str) -> None:
    rng = np.random.default_rng(0)
    a = np.exp(rng.uniform(-80, 80, 200_000)).astype(np.float32)
    b = (rng.uniform(-87, 87, a.size) / np.log(a.astype(np.float64))).astype(np.float32)
    want = np.power(a.astype(np.float64), b.astype(np.float64))
    assert _worst_ulp(run("pow", [a, b], isa=isa)[0].astype(np.float64), want) <= 1.75


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_power_with_a_constant_exponent(exponent: float, isa: str) -> None:
    x = np.array([-0.0, 0.0, -3.0, 2.5, 1e-30, 1e30, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x, np.full_like(x, exponent))
    np.testing.assert_allclose(run("pow", [x, np.float32([exponent])], isa=isa, constants=(1,))[0], want, rtol=2e-7)


@pytest.mark.parametrize("op", ["div", "rem"])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_quotients_and_remainders_of_special_values(op: str, mode: str, isa: str) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, 7.5, -7.5, 0.1, 1e-40, 3e38, np.inf, -np.inf, np.nan], np.float32)
    a, b = (side.ravel().copy() for side in np.meshgrid(values, values))
    attrs = {"rounding": mode} if op == "div" else {"sign": "divisor" if mode == "floor" else "dividend"}
    reference = {
        ("div", "floor"): np.floor_divide,
        ("div", "trunc"): lambda x, y: np.trunc(x / y),
        ("rem", "floor"): np.remainder,
        ("rem", "trunc"): np.fmod,
    }[op, mode]
    with np.errstate(all="ignore"):
        want = reference(a, b)
    np.testing.assert_array_equal(run(op, [a, b], attrs, isa=isa)[0], want)


def test_the_same_bits_with_and_without_wide_vectors() -> None:
    x = _sample(100_003)
    for name in (*_IN_ULP, "silu"):
        results = {run(name, [x], isa=isa)[0].tobytes() for isa in ISAS if isa != "baseline"}
        assert len(results) <= 1, name
