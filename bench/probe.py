"""A product of matrices that shows in which precision an arm computes float32, and whether it flushes denormal numbers to zero.

The entries of the operands need all 24 bits of a float32. Where an arm rounds them to fewer before it multiplies, the result lies close to that
of the rounded operands and far from the true one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["PRECISIONS", "SIZE", "Finding", "examine", "operands", "round_to"]

SIZE = 64
PRECISIONS = {"f32": 23, "tf32": 10, "bf16": 7}
"""Name -> bits of the fraction."""

_LARGE = 2.0**17  # a float16 overflows; the other formats hold it exactly
_SMALL = 2.0**-65  # its square is a denormal number in float32 and in bfloat16


@dataclass(frozen=True, slots=True)
class Finding:
    """What a product shows.

    Attributes:
        precision: ``f32``, ``tf32``, ``bf16``, ``f16``, or ``other`` where it is none of these.
        flush_denormals: whether a denormal result became zero.
    """

    precision: str
    flush_denormals: bool


def operands() -> tuple[np.ndarray, np.ndarray]:
    """Returns x and w, float32 [64, 64] each: always the same. The last row of x and column of w hold a large and a small number alone."""
    generator = np.random.default_rng(20)
    x, w = ((generator.uniform(1, 2, (SIZE, SIZE)) * generator.choice((-1, 1), (SIZE, SIZE))).astype(np.float32) for _ in range(2))
    x[-2:], w[:, -2:] = 0, 0
    x[-2, 0], w[0, -2] = _LARGE, 1
    x[-1, 1], w[1, -1] = _SMALL, _SMALL
    return x, w


def round_to(array: np.ndarray, bits: int) -> np.ndarray:
    """Returns float32 numbers rounded to so many bits of fraction, half to even."""
    drop = 23 - bits
    if drop == 0:
        return array.copy()
    raw = array.view(np.uint32).astype(np.uint64)
    raw += (1 << (drop - 1)) - 1 + ((raw >> drop) & 1)
    return ((raw >> drop) << drop).astype(np.uint32).view(np.float32)


def examine(product: np.ndarray) -> Finding:
    """Returns what the product of :func:`operands` shows.

    Args:
        product: float32 [64, 64], as an arm computed it.
    """
    x, w = operands()
    flushed = bool(product[-1, -1] == 0)
    if not np.isfinite(product[-2, -2]):
        return Finding("f16", flushed)
    inner = np.asarray(product, np.float64)[:-2, :-2]
    rounded = {
        name: (round_to(x, bits).astype(np.float64) @ round_to(w, bits).astype(np.float64))[:-2, :-2] for name, bits in PRECISIONS.items()
    }
    distances = {name: _distance(inner, wanted) for name, wanted in rounded.items()}
    nearest = min(distances, key=distances.__getitem__)
    # Sums of another order are far nearer than that; sums that are themselves rounded to bfloat16 are just so near.
    limit = _distance(rounded["f32"], rounded["tf32"]) / 2 if nearest == "f32" else _distance(rounded["f32"], rounded[nearest])
    return Finding(nearest if distances[nearest] < limit else "other", flushed)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))
