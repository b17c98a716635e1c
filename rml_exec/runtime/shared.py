"""Data in the layout of the instruction set in use, held once per process."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import derived_array

__all__ = ["shared_data"]


def shared_data(source: np.ndarray | None, key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns :func:`rml_exec.ir.derived.derived_array` of a constant, or of the key alone; the instruction set in use is part of the key."""
    return derived_array(() if source is None else (source,), (_native.current_isa(), *key), make)
