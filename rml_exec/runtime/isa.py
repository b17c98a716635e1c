"""The instruction set in use, and the two native types that are public."""

from __future__ import annotations

from typing import Any

from rml_exec import _native
from rml_exec.errors import IsaError

BufferPool = _native.BufferPool


def check_isa() -> None:
    """Raises IsaError if ``RML_ISA`` asks for an instruction set that is unknown or that this machine lacks."""
    if _native.isa_error:
        raise IsaError(_native.isa_error)


def isa_info() -> dict[str, Any]:
    """Returns the instruction set in use and its numbers: ``name``, ``lanes`` (f32 per vector), ``gemm_mr``, ``gemm_nr``, ``available``."""
    check_isa()
    return _native.isa_info()
