from __future__ import annotations

import threading

import numpy as np
import pytest

from rml_exec import _native

MEGABYTE = 1 << 20


def _address(buffer) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def test_take_gives_aligned_writable_memory_of_the_size_asked_for():
    pool = _native.BufferPool()
    for nbytes in (1, 63, 64, 4096, 3 * MEGABYTE + 5):
        buffer = pool.take(nbytes)
        view = memoryview(buffer)
        assert (view.nbytes, len(buffer), view.readonly) == (nbytes, nbytes, False)
        assert _address(buffer) % (2 * MEGABYTE if nbytes >= 2 * MEGABYTE else 64) == 0
        np.frombuffer(buffer, np.uint8)[:] = 7
    assert len(pool.take(0)) == 0


def test_memory_comes_back_with_the_last_reference_and_serves_the_same_size():
    pool = _native.BufferPool()
    buffer = pool.take(1000)
    address = _address(buffer)
    array = np.frombuffer(buffer, np.float32)
    del buffer
    assert (pool.bytes_in_use, pool.bytes_held) == (1024, 0)
    del array
    assert (pool.bytes_in_use, pool.bytes_held) == (0, 1024)
    other = pool.take(5000)
    assert (pool.hits, pool.misses) == (0, 2)
    again = pool.take(1000)
    assert _address(again) == address
    assert (pool.hits, pool.misses, pool.bytes_held) == (1, 2, 0)
    assert pool.bytes_in_use == 1024 + 5056
    del other, again
    pool.trim()
    assert (pool.bytes_held, pool.bytes_in_use) == (0, 0)
    pool.take(1000)
    assert pool.misses == 3


def test_buffers_outlive_the_name_of_their_pool():
    buffer = _native.BufferPool().take(64)
    np.frombuffer(buffer, np.uint8)[:] = 1
    assert bytes(buffer) == b"\x01" * 64


def test_buffers_taken_at_once_are_distinct_and_counters_add_up():
    pool = _native.BufferPool()
    overlaps = []

    def work(mark: int) -> None:
        for _ in range(200):
            array = np.frombuffer(pool.take(256), np.uint8)
            array[:] = mark
            if not (array == mark).all():
                overlaps.append(mark)

    workers = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert overlaps == []
    assert pool.hits + pool.misses == 800
    assert pool.bytes_in_use == 0
    assert pool.bytes_held == pool.misses * 256


def test_take_rejects_impossible_sizes():
    pool = _native.BufferPool()
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        pool.take(-1)
    with pytest.raises(MemoryError):
        pool.take(1 << 62)
    with pytest.raises(TypeError):
        pool.take("64")
    assert (pool.hits, pool.misses, pool.bytes_in_use) == (0, 0, 0)
