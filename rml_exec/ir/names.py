"""What a name may look like, and how one is made legal and unique."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Names", "is_legal_name"]

# ":" and ";" separate names in plan metadata; lone surrogates cannot be written as UTF-8.
_ILLEGAL = re.compile("[:;\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_legal_name(name: str) -> bool:
    """True if ``name`` may name a value, node or function: not empty, without ``:`` ``;`` and control characters."""
    return bool(name) and not _ILLEGAL.search(name)


class Names:
    """One namespace, in which some names may be taken from the start. :meth:`take` hands out each name once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """Returns ``wish``, its illegal characters as "_" and, where it is taken, with a number: ``relu``, ``relu_1``, ``relu_2``."""
        base = name = _ILLEGAL.sub("_", wish) or "_"
        while name in self._taken:
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._taken.add(name)
        return name
