"""erf, erfc and the half-precision rule for references: the numerics that NumPy lacks.

erf and erfc follow W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969),
631-637, with the coefficients published with his SPECFUN package (ACM TOMS algorithm 715). The relative error is a few float64 ulps, in
the tail of erfc too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["erf", "erfc", "half_in_single"]

# Highest power first, as np.polyval takes them. erf(x) = x * NEAR(x^2) for |x| <= 0.46875.
_NEAR_NUMERATOR = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3)
_NEAR_DENOMINATOR = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
# erfc(x) = exp(-x^2) * MIDDLE(x) for 0.46875 < x <= 4.
_MIDDLE_NUMERATOR = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_MIDDLE_DENOMINATOR = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
# erfc(x) = exp(-x^2) / x * (1/sqrt(pi) - FAR(1/x^2) / x^2) for x > 4.
_FAR_NUMERATOR = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_FAR_DENOMINATOR = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3)
_ONE_OVER_SQRT_PI = 5.6418958354775628695e-1
_NEAR = 0.46875
_VANISHES = 27.3  # erfc is below the smallest denormal from here on


def _near(x: np.ndarray) -> np.ndarray:
    """Returns erf for |x| <= 0.46875."""
    square = x * x
    return x * (np.polyval(_NEAR_NUMERATOR, square) / np.polyval(_NEAR_DENOMINATOR, square))


def _tail(size: np.ndarray) -> np.ndarray:
    """Returns erfc for x > 0.46875 (float64, at least 1-d)."""
    result = np.empty_like(size)
    middle = size <= 4.0
    x = size[middle]
    result[middle] = np.polyval(_MIDDLE_NUMERATOR, x) / np.polyval(_MIDDLE_DENOMINATOR, x)
    x = np.minimum(size[~middle], _VANISHES)
    inverse = 1.0 / (x * x)
    far = inverse * (np.polyval(_FAR_NUMERATOR, inverse) / np.polyval(_FAR_DENOMINATOR, inverse))
    result[~middle] = (_ONE_OVER_SQRT_PI - far) / x
    # exp(-x^2) with x^2 rounded would lose digits: split x so that the square of its head is exact.
    x = np.minimum(size, _VANISHES)
    head = np.floor(x * 16.0) / 16.0
    return np.exp(-head * head) * np.exp(-(x - head) * (x + head)) * result


def _piecewise(x: np.ndarray, near: Callable[[np.ndarray], np.ndarray], far: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    wide = np.atleast_1d(x).astype(np.float64)
    result = wide.copy()  # NaN stays
    size = np.abs(wide)
    inside, outside = size <= _NEAR, size > _NEAR
    result[inside] = near(wide[inside])
    result[outside] = far(wide[outside])
    return result.astype(x.dtype).reshape(x.shape)


def erf(x: np.ndarray) -> np.ndarray:
    """Returns the error function of a float array of any shape, computed in float64 and rounded to the dtype of ``x``."""
    return _piecewise(x, _near, lambda far: np.copysign(1.0 - _tail(np.abs(far)), far))


def erfc(x: np.ndarray) -> np.ndarray:
    """Returns ``1 - erf(x)`` without cancellation, computed in float64 and rounded to the dtype of ``x``."""
    return _piecewise(x, lambda near: 1.0 - _near(near), lambda far: np.where(far > 0, _tail(np.abs(far)), 2.0 - _tail(np.abs(far))))


def half_in_single(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a reference compute f16 operands in float32 and round its results once, instead of rounding each intermediate to f16.

    Of several results all are floats.
    """

    @functools.wraps(reference)
    def computed(*operands: np.ndarray | None, **attrs: Any) -> Any:
        if not any(operand is not None and operand.dtype == np.float16 for operand in operands):
            return reference(*operands, **attrs)
        single = (x.astype(np.float32) if x is not None and x.dtype == np.float16 else x for x in operands)
        result = reference(*single, **attrs)
        if isinstance(result, tuple):
            return tuple(array.astype(np.float16) for array in result)
        return np.asarray(result).astype(np.float16)

    return computed
