"""Runs single native steps on guarded memory.

Every buffer ends at a page that may not be touched and begins behind bytes that are checked afterwards: a kernel that reads or writes past
the end crashes the test run (pytest names the test), one that writes before the beginning fails an assertion. Outputs start as NaN.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rml_exec import _native

_LIBC = ctypes.CDLL(None, use_errno=True)
_FRONT = bytes(range(1, 65))  # 64 bytes keep the alignment of what follows


class Guarded:
    """A copy of an array between guard bytes and a forbidden page. ``array`` is the copy."""

    def __init__(self, array: np.ndarray) -> None:
        page = mmap.PAGESIZE
        body = (array.nbytes + len(_FRONT) + page - 1) // page * page
        memory = mmap.mmap(-1, body + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert _LIBC.mprotect(ctypes.c_void_p(address + body), ctypes.c_size_t(page), 0) == 0
        begin = body - array.nbytes
        self._front = np.frombuffer(memory, np.uint8, len(_FRONT), begin - len(_FRONT))
        self._front[:] = np.frombuffer(_FRONT, np.uint8)
        self.array = np.frombuffer(memory, array.dtype, array.size, begin).reshape(array.shape)
        self.array[...] = array

    def check(self) -> None:
        assert self._front.tobytes() == _FRONT


def _nan_filled(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(b"\xff" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def _run_step(
    kind: str,
    params: Sequence[int],
    result: tuple[Sequence[int], type],
    operands: Sequence[np.ndarray | None],
    *,
    isa: str | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Returns the one output of a step, of the shape and dtype given, whose other operands are inputs (None: absent)."""
    output = Guarded(_nan_filled(result[0], np.dtype(result[1])))
    inputs = [Guarded(np.ascontiguousarray(operand)) for operand in operands if operand is not None]
    places, index = [(2, 0, 0)], 0
    for operand in operands:
        places.append((-1, 0, 0) if operand is None else (1, index, 0))
        index += operand is not None
    step = (_native.step_kinds()[kind], np.array(params, np.int64), np.array(places, np.int64), None)
    program = _native.Program([step], [], len(inputs), 1, 0, isa=isa)
    program.run(bytearray(), [guarded.array for guarded in inputs], [output.array], threads)
    for guarded in [output, *inputs]:
        guarded.check()
    return output.array.copy()


def _pack(b: np.ndarray, isa: str | None = None) -> np.ndarray:
    """Returns the packed form of a [k, n] array with any strides."""
    k, n = b.shape
    packed = Guarded(_nan_filled((_native.packed_b_floats(k, n, isa=isa),), np.dtype(np.float32)))
    base = np.ascontiguousarray(b if b.flags.c_contiguous else b.T)
    strides = (n, 1) if b.flags.c_contiguous else (1, k)
    _native.pack_b(packed.array, Guarded(base).array, k, n, *strides, isa=isa)
    packed.check()
    return packed.array.copy()


@pytest.fixture(scope="session")
def run_step() -> Callable[..., np.ndarray]:
    return _run_step


@pytest.fixture(scope="session")
def pack() -> Callable[..., np.ndarray]:
    return _pack


@pytest.fixture(params=_native.isa_names())
def isa(request: pytest.FixtureRequest) -> str:
    return request.param
