"""The executor with numerics that give the same bits on every machine."""

from __future__ import annotations

from bench.adapters.rml import RmlAdapter

__all__ = ["RmlExactAdapter"]


class RmlExactAdapter(RmlAdapter):
    """``Executor.create(..., numerics="exact")``."""

    numerics = "exact"
