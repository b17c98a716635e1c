"""Arrays made from constants, held once per process: folded weights, packed weights, tables.

Two executors of one graph, or two bindings of a graph with dims, make such an array once. An entry lives as long as somebody uses it; a
:class:`Recipe` makes its array again when it is gone. So folded weights exist while they are packed, and not one after the other all at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np

__all__ = ["Recipe", "ScaledWeights", "array_of", "derived_array", "held_bytes", "is_table", "roots_of"]

_Identity: TypeAlias = tuple[Hashable, ...]
"""What tells an array apart: where it lies, or what it is made from and how."""


class _Derived(np.ndarray):
    """An array that knows what it was made from, and keeps that alive: else another constant might come to lie at the same address."""

    identity: _Identity
    roots: tuple[np.ndarray, ...]


_entries: weakref.WeakValueDictionary[Hashable, _Derived] = weakref.WeakValueDictionary()


class Recipe:
    """How to make an array from constants; it is made when it is asked for, and again if nobody kept it.

    Args:
        sources: the constants it is made from.
        key: how it is made.
        make: makes the array.
    """

    def __init__(self, sources: Sequence[np.ndarray | Recipe], key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> None:
        self.identity: _Identity = (tuple(_identity(source) for source in sources), key)
        self.roots = tuple(root for source in sources for root in roots_of(source))
        self._make = make

    def array(self) -> np.ndarray:
        """Returns the array, C-contiguous and read-only; made twice at worst when two threads ask at once, which is harmless."""
        found = _entries.get(self.identity)
        if found is None:
            found = np.asarray(self._make(), order="C").view(_Derived)  # not ascontiguousarray: that has no 0-d arrays
            found.identity, found.roots = self.identity, self.roots
            found.flags.writeable = False
            _entries[self.identity] = found
        return found


class ScaledWeights(Recipe):
    """Weights times a factor per output channel, formed in float64 and rounded once. Whoever packs them may scale on the way.

    Args:
        weights: the weights, f32, or how to make them.
        scale: f64, one factor per output channel.
        axis: the axis of the output channels.
        sources: what the weights and the scale are made from.
        key: how.
    """

    def __init__(
        self,
        weights: np.ndarray | Recipe,
        scale: np.ndarray,
        axis: int,
        sources: Sequence[np.ndarray | Recipe],
        key: tuple[Hashable, ...],
    ) -> None:
        self._weights, self.scale, self._axis = weights, scale, axis
        super().__init__(sources, key, self._product)

    @property
    def weights(self) -> np.ndarray:
        """The weights without the factors."""
        return array_of(self._weights)

    def _product(self) -> np.ndarray:
        """Returns the product without a float64 copy of the weights."""
        weights = self.weights
        product = np.empty(weights.shape, np.float32)
        scale = np.expand_dims(self.scale, [axis for axis in range(product.ndim) if axis != self._axis])
        return np.multiply(weights, scale, out=product, dtype=np.float64, casting="same_kind")


def array_of(source: np.ndarray | Recipe) -> np.ndarray:
    """Returns an array, or what a recipe makes."""
    return source if isinstance(source, np.ndarray) else source.array()


def derived_array(sources: Sequence[np.ndarray | Recipe], key: tuple[Hashable, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns what ``make`` gives, C-contiguous and read-only, from the process's store if it is there.

    Args:
        sources: the constants it is made from, told apart by where they lie, or by how they were made; empty if the key says everything.
        key: how it is made.
        make: makes the array.
    """
    return Recipe(sources, key, make).array()


def roots_of(source: np.ndarray | Recipe) -> tuple[np.ndarray, ...]:
    """Returns the arrays at the beginning: those that a derived array or a recipe goes back to, or the array itself."""
    return source.roots if isinstance(source, _Derived | Recipe) else (source,)


def held_bytes() -> int:
    """Returns the bytes of all derived arrays that somebody in this process uses now."""
    return sum(array.nbytes for array in list(_entries.values()))


def is_table(data: np.ndarray) -> bool:
    """True for an array that was made from nothing but its key: an offset table, a row of zeros."""
    return isinstance(data, _Derived) and not data.roots


def _identity(source: np.ndarray | Recipe) -> _Identity:
    if isinstance(source, _Derived | Recipe):
        return source.identity
    return (source.__array_interface__["data"][0], source.shape, source.strides, source.dtype.str)
