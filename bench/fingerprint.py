"""Which records can be compared: those that agree in everything here. Standard library alone.

The version of the arm is no part of it, for that is what comparisons are often about; neither is what only makes a measurement more or less
precise, such as the length of blocks.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from bench.records import CellRecord

__all__ = ["comparable_facts", "fingerprint"]

_MACHINE = ("cpu", "cores", "isa", "governor", "system", "python", "numpy")
_FIELDS = ("threads", "scenario", "setup", "graph_sha256", "weights_sha256", "inputs_sha256")
_SETTINGS = ("gap_s", "callers")


def comparable_facts(record: CellRecord) -> dict[str, Any]:
    """Returns all that two records must have in common, by the names of the fields they come from."""
    return {
        **{f"environment.{name}": record.environment.get(name) for name in _MACHINE},
        **{name: getattr(record, name) for name in _FIELDS},
        **{f"settings.{name}": record.settings.get(name) for name in _SETTINGS},
    }


def fingerprint(record: CellRecord) -> str:
    """Returns a hash of :func:`comparable_facts`, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(comparable_facts(record), sort_keys=True).encode()).hexdigest()[:16]
