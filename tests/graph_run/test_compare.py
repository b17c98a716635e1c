import math

import numpy as np
import pytest

from rml_exec.graph_run import compare, compare_with_golden
from rml_exec.ir.golden import Golden

WANT = np.array([1.0, -2.0, 0.0, 4.0], np.float32)


def test_equal_arrays_pass_without_error():
    found = compare(WANT, WANT, rtol=0, atol=0)
    assert (found.passed, found.max_abs_error, found.max_rel_error, found.reason) == (True, 0, 0, "")


def test_the_rule_is_absolute_plus_relative():
    got = WANT + np.array([0.01, 0, 0, 0], np.float32)
    assert compare(got, WANT, rtol=0.02, atol=0).passed
    assert not compare(got, WANT, rtol=0.005, atol=0).passed
    assert compare(got, WANT, rtol=0.005, atol=0.006).passed


def test_the_worst_element_is_named():
    got = WANT.copy()
    got[2] = 1
    got[3] = 4.5
    found = compare(got, WANT, rtol=1e-5, atol=1e-5)
    assert "2 of 4 elements" in found.reason
    assert "[2]: got 1.0, want 0.0" in found.reason
    assert found.max_abs_error == 1


def test_the_relative_error_is_relative_to_the_value_or_the_rms():
    got = WANT.copy()
    got[2] = 0.5
    assert compare(got, WANT, rtol=1, atol=1).max_rel_error == pytest.approx(0.5 / math.sqrt(21 / 4))
    got = WANT.copy()
    got[3] = 5
    assert compare(got, WANT, rtol=1, atol=1).max_rel_error == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("got", "want", "passed"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.inf, 1.0, False),
        (1.0, np.inf, False),
        (-np.inf, np.inf, False),
        (0.0, -0.0, True),
    ],
)
def test_special_values(got, want, passed):
    found = compare(np.array([got, 2], np.float32), np.array([want, 2], np.float32), rtol=1e-3, atol=1e-3)
    assert found.passed == passed
    assert found.max_abs_error == (0 if passed else math.inf)


def test_dtype_and_shape_must_be_equal():
    assert not compare(WANT.astype(np.float64), WANT, rtol=1, atol=1).passed
    assert "f32[4]" in compare(WANT.reshape(2, 2), WANT, rtol=1, atol=1).reason


def test_empty_arrays_pass():
    assert compare(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32), rtol=0, atol=0).passed


def test_a_zero_output_has_no_infinite_tolerance():
    assert not compare(np.array([1e-3], np.float32), np.array([0], np.float32), rtol=1e-5, atol=0).passed


def test_the_golden_brings_the_tolerance_of_each_output():
    golden = Golden({}, {"a": WANT, "n": np.array([3])}, {"rtol.a": "0.0", "atol.a": "0.1", "rtol.n": "0.0", "atol.n": "0.0"})
    outputs = {"a": WANT + np.float32(0.05), "n": np.array([3])}
    assert compare_with_golden(outputs, golden).passed
    assert not compare_with_golden(outputs, golden, atol=0.01).passed
    assert not compare_with_golden({**outputs, "n": np.array([4])}, golden).passed
    assert "output 'n' is missing" in compare_with_golden({"a": WANT}, golden).reason
