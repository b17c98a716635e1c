"""Data in the layout of the instruction set in use, held once per process."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import Recipe, ScaledWeights, array_of, derived_array

__all__ = ["aligned_floats", "shared_data", "unscaled"]


def shared_data(source: np.ndarray | Recipe | None, key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns :func:`rml_exec.ir.derived.derived_array` of a constant, or of the key alone; the instruction set in use is part of the key."""
    return derived_array(() if source is None else (source,), (_native.current_isa(), *key), make)


def aligned_floats(*shape: int) -> np.ndarray:
    """Returns uninitialised f32 memory for kernels: at a cache line, which NumPy's own misses by 16 bytes, and on huge pages from 2 MB on."""
    floats = math.prod(shape)
    block = _native.BufferPool().take(max(floats, 1) * np.dtype(np.float32).itemsize)
    return np.frombuffer(memoryview(block), np.float32, floats).reshape(shape)


def unscaled(weights: np.ndarray | Recipe) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns weights in C order and the factors of their output channels that are still to be multiplied in, f64, or None."""
    if isinstance(weights, ScaledWeights):
        return np.ascontiguousarray(weights.weights), weights.scale
    return np.ascontiguousarray(array_of(weights)), None
