"""Data made from constants at creation, held once per process: packed weights, offset tables.

Two executors of one graph, or two bindings of a graph with dims, pack a weight once. An entry lives as long as a program uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

import numpy as np

from rml_exec import _native

__all__ = ["is_table", "shared_data"]


class _SharedArray(np.ndarray):
    """An array that keeps what it was made from alive: else another constant might come to lie at the same address under the same key."""

    source: np.ndarray | None


_entries: weakref.WeakValueDictionary[Hashable, _SharedArray] = weakref.WeakValueDictionary()


def shared_data(source: np.ndarray | None, key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns what ``make`` gives, from the process's store if it is there.

    Args:
        source: the constant it is made from; None if the key says everything.
        key: how it is made. The instruction set in use is part of the key by itself.
        make: makes the array; called twice at worst when two threads ask at once, which is harmless.
    """
    place = None if source is None else (source.__array_interface__["data"][0], source.shape, source.strides, source.dtype.str)
    whole = (_native.current_isa(), place, *key)
    found = _entries.get(whole)
    if found is None:
        found = np.ascontiguousarray(make()).view(_SharedArray)
        found.source = source
        found.flags.writeable = False
        _entries[whole] = found
    return found


def is_table(data: np.ndarray) -> bool:
    """True for shared data that was made from nothing but numbers: an offset table, a row of zeros."""
    return isinstance(data, _SharedArray) and data.source is None
