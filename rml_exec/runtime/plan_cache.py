"""The compiled plans of an executor: one for a static graph, one per input shape for a graph with dims, the latest kept within a byte limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["PlanCache"]

T = TypeVar("T")


class PlanCache(Generic[T]):
    """Least recently used entries are dropped when the sum of their sizes exceeds ``limit_bytes``; the newest always stays. Thread-safe."""

    def __init__(self, limit_bytes: int, size_of: Callable[[T], int]) -> None:
        self._limit, self._size_of = limit_bytes, size_of
        self._entries: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the entry of a key; makes it, outside the lock, if it is not there."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        made = make()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = made
                self.bytes += self._size_of(made)
            while self.bytes > self._limit and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self.bytes -= self._size_of(dropped)
            return self._entries.get(key, made)
