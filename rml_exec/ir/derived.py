"""Arrays made from constants, held once per process: folded weights, packed weights, tables.

Two executors of one graph, or two bindings of a graph with dims, make such an array once. An entry lives as long as somebody uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence

import numpy as np

__all__ = ["derived_array", "is_table"]


class _Derived(np.ndarray):
    """An array that keeps what it was made from alive: else another constant might come to lie at the same address under the same key."""

    sources: tuple[np.ndarray, ...]


_entries: weakref.WeakValueDictionary[Hashable, _Derived] = weakref.WeakValueDictionary()


def derived_array(sources: Sequence[np.ndarray], key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns what ``make`` gives, C-contiguous and read-only, from the process's store if it is there.

    Args:
        sources: the constants it is made from, told apart by where they lie; empty if the key says everything.
        key: how it is made.
        make: makes the array; called twice at worst when two threads ask at once, which is harmless.
    """
    places = tuple((source.__array_interface__["data"][0], source.shape, source.strides, source.dtype.str) for source in sources)
    found = _entries.get((places, key))
    if found is None:
        found = np.ascontiguousarray(make()).view(_Derived)
        found.sources = tuple(sources)
        found.flags.writeable = False
        _entries[places, key] = found
    return found


def is_table(data: np.ndarray) -> bool:
    """True for an array that was made from nothing but its key: an offset table, a row of zeros."""
    return isinstance(data, _Derived) and not data.sources
