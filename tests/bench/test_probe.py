"""The probe: what products of other precisions look like."""

from __future__ import annotations

import numpy as np
import pytest

from bench.probe import PRECISIONS, examine, operands, round_to


def rounded_product(bits: int) -> np.ndarray:
    x, w = operands()
    return round_to(x, bits) @ round_to(w, bits)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounded_operands_are_recognised(precision):
    assert examine(rounded_product(PRECISIONS[precision])).precision == precision


def test_sums_of_another_order_are_still_float32():
    x, w = operands()
    total = np.zeros((64, 64), np.float32)
    for k in reversed(range(64)):
        total += np.outer(x[:, k], w[k])
    assert examine(total).precision == "f32"


def test_sums_rounded_to_bfloat16_themselves_are_recognised():
    assert examine(round_to(rounded_product(7), 7)).precision == "bf16"


def test_float16_overflows():
    x, w = operands()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)
    assert examine(product).precision == "f16"


def test_anything_else_is_other():
    x, w = operands()
    assert examine(np.round(x * 4) / 4 @ w).precision == "other"
    assert examine(np.zeros((64, 64), np.float32)).precision == "other"


def test_a_flushed_denormal_is_seen():
    product = rounded_product(23)
    assert 0 < product[-1, -1] < np.finfo(np.float32).tiny
    assert examine(product).flush_denormals is False
    product[-1, -1] = 0
    assert examine(product).flush_denormals is True


def test_rounding_is_half_to_even():
    ulp = 2.0**-7
    numbers = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 0.75 * ulp, -(1 + 0.25 * ulp)], np.float32)
    assert round_to(numbers, 7).tolist() == [1.0, 1 + 2 * ulp, 1 + ulp, -1.0]
