"""Comparing outputs with a golden: the one rule that the runner, the exporters' tests and the benchmark use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rml_exec.ir.golden import Golden
from rml_exec.types import TensorType

__all__ = ["Comparison", "compare", "compare_with_golden"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far one output, or the worst of several, is from what is wanted.

    Attributes:
        passed: every element within ``|got - want| <= atol + rtol * |want|``, NaN equal to NaN, dtype and shape equal.
        max_abs_error: largest ``|got - want|``; inf where one side is NaN or infinite and the other is not.
        max_rel_error: largest ``|got - want| / max(|want|, rms(want))``.
        reason: what is wrong, empty when passed.
    """

    passed: bool
    max_abs_error: float
    max_rel_error: float
    reason: str = ""


def compare(got: np.ndarray, want: np.ndarray, *, rtol: float, atol: float, undecided: np.ndarray | None = None) -> Comparison:
    """Returns the comparison of two arrays; integers and booleans go by the same tolerances, which are 0 for them in a golden.

    Where ``undecided`` is True elements are not compared.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return Comparison(False, math.inf, math.inf, f"must be {TensorType.of(want)}, got {TensorType.of(got)}")
    if want.size == 0:
        return Comparison(True, 0.0, 0.0)
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
    if undecided is not None:
        same |= undecided
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(wide_got - wide_want))
        error[np.isnan(error)] = np.inf
        finite = wide_want[np.isfinite(wide_want)]
        rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
        scale = np.maximum(np.abs(wide_want), rms)
        relative = np.divide(error, scale, out=np.where(error > 0, np.inf, 0.0), where=np.isfinite(scale) & (scale > 0))
        allowed = np.where(np.isfinite(wide_want), atol + rtol * np.abs(wide_want), 0.0)
    bad = np.flatnonzero(error > allowed)
    reason = ""
    if bad.size:
        worst = int(bad[np.argmax(error.ravel()[bad])])
        index = ",".join(str(int(i)) for i in np.unravel_index(worst, want.shape))
        reason = f"{bad.size} of {want.size} elements differ, most at [{index}]: got {got.ravel()[worst]}, want {want.ravel()[worst]}"
    return Comparison(not bad.size, float(error.max()), float(relative.max()), reason)


def compare_with_golden(
    outputs: Mapping[str, np.ndarray], golden: Golden, *, rtol: float | None = None, atol: float | None = None
) -> Comparison:
    """Returns the worst comparison over all outputs of a golden.

    Args:
        outputs: what the executor or a framework computed, by output name.
        golden: inputs, wanted outputs and, in its metadata, ``rtol.NAME`` and ``atol.NAME``.
        rtol: overrides the golden's own, for every output.
        atol: overrides the golden's own, for every output.

    Elements that the golden calls undecided are not compared.
    """
    passed, worst_abs, worst_rel, reasons = True, 0.0, 0.0, []
    for name, want in golden.outputs.items():
        if name not in outputs:
            return Comparison(False, math.inf, math.inf, f"output '{name}' is missing")
        found = compare(
            outputs[name],
            want,
            rtol=float(golden.metadata.get(f"rtol.{name}", 0.0)) if rtol is None else rtol,
            atol=float(golden.metadata.get(f"atol.{name}", 0.0)) if atol is None else atol,
            undecided=golden.undecided.get(name),
        )
        passed &= found.passed
        worst_abs, worst_rel = max(worst_abs, found.max_abs_error), max(worst_rel, found.max_rel_error)
        if found.reason:
            reasons.append(f"output '{name}': {found.reason}")
    return Comparison(passed, worst_abs, worst_rel, "; ".join(reasons))
