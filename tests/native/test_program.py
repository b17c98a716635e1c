from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from rml_exec import _native

KINDS = _native.step_kinds()
ABSENT, ARENA, INPUT, OUTPUT, CONSTANT = -1, 0, 1, 2, 3


def _ints(*values):
    return np.array(values, np.int64)


def _copy(n, to, from_):
    return KINDS["copy"], _ints(4, 1, n, 1, 1), _ints(*to, *from_), None


def _call(function):
    return -1, None, None, function


def _chain(pack, m=9, n=70, k=300):
    """Returns a program input -> arena -> gemm -> arena -> output, its operands, and the arena's size."""
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n), (n,)))
    middle = m * k * 4
    steps = [
        _copy(m * k, (ARENA, 0, 0), (INPUT, 0, 0)),
        (
            KINDS["gemm"],
            _ints(1, m, n, k, k, n, *[0] * 7),
            _ints(ARENA, 0, middle, ARENA, 0, 0, CONSTANT, 0, 0, CONSTANT, 1, 0, ABSENT, 0, 0),
            None,
        ),
        _copy(m * n, (OUTPUT, 0, 0), (ARENA, 0, middle)),
    ]
    arena_bytes = middle + m * n * 4
    return _native.Program(steps, [pack(w), bias], 1, 1, arena_bytes), x, w, bias, arena_bytes


def _run_chain(program, x, shape, arena_bytes, threads):
    arena, y = np.full(arena_bytes // 4, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    assert program.run(arena, [x], [y], threads) is None
    return y


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_passes_values_through_the_arena(pack, threads):
    program, x, w, bias, arena_bytes = _chain(pack)
    for _ in range(20):
        y = _run_chain(program, x, (9, 70), arena_bytes, threads)
        np.testing.assert_allclose(y, x.astype(np.float64) @ w + bias, rtol=1e-4, atol=1e-4)


def test_run_from_many_python_threads_at_once_gives_the_same_bits(pack):
    program, x, _, _, arena_bytes = _chain(pack, 64, 128, 300)
    expected = _run_chain(program, x, (64, 128), arena_bytes, 1)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(_run_chain(program, x, (64, 128), arena_bytes, 2), expected):
                wrong.append(threading.get_ident())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, 2])
def test_python_steps_run_in_order_with_the_objects_of_the_run(threads):
    seen = []

    def double(arena, inputs, outputs):
        seen.append((arena, inputs, outputs))
        arena[:] = arena * 2

    steps = [_copy(4, (ARENA, 0, 0), (INPUT, 0, 0)), _call(double), _call(double), _copy(4, (OUTPUT, 0, 0), (ARENA, 0, 0))]
    program = _native.Program(steps, [], 1, 1, 16)
    arena, inputs, outputs = np.zeros(4, np.float32), (np.arange(4, dtype=np.float32),), [np.zeros(4, np.float32)]
    program.run(arena, inputs, outputs, threads)
    np.testing.assert_array_equal(outputs[0], [0, 4, 8, 12])
    assert len(seen) == 2
    assert all(a is arena and i is inputs and o is outputs for a, i, o in seen)


@pytest.mark.parametrize("threads", [1, 2])
def test_exception_of_a_python_step_ends_the_run_and_leaves_the_program_usable(threads):
    calls = []

    def first(arena, inputs, outputs):
        calls.append("first")
        if inputs[0][0] < 0:
            raise ZeroDivisionError("negative")

    steps = [_call(first), _call(lambda *_: calls.append("second")), _copy(2, (OUTPUT, 0, 0), (INPUT, 0, 0))]
    program = _native.Program(steps, [], 1, 1, 0)
    y = np.zeros(2, np.float32)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError, match="negative"):
            program.run(bytearray(), [np.float32([-1, 2])], [y], threads)
    assert calls == ["first"] * 10
    np.testing.assert_array_equal(y, [0, 0])
    program.run(bytearray(), [np.float32([1, 2])], [y], threads)
    assert calls[10:] == ["first", "second"]
    np.testing.assert_array_equal(y, [1, 2])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_python_runs_a_step_that_its_kernel_declines(threads, last):
    """The kernel takes rows by index; an index out of range is not for it, whichever thread meets it."""
    rows, width = 4096, 8

    def host(arena, inputs, outputs):
        called.append(True)
        if (np.asarray(inputs[1]) > rows).any():
            raise ZeroDivisionError("far out")
        np.asarray(outputs[0])[:] = inputs[0][np.asarray(inputs[1]) % rows]

    take = (KINDS["take"], _ints(4, 1, rows, width, rows, 8, 1, 0, 0), _ints(OUTPUT, 0, 0, INPUT, 0, 0, INPUT, 1, 0), host)
    copy = (KINDS["copy"], _ints(4, 1, rows * width, 1, 1), _ints(OUTPUT, 1, 0, OUTPUT, 0, 0), None)
    program = _native.Program([take] if last else [take, copy, take, copy], [], 2, 1 if last else 2, 0)
    x, indices = np.arange(rows * width, dtype=np.float32).reshape(rows, width), np.arange(rows)[::-1].copy()
    for at, value, calls in [(0, 0, 0), (0, rows, 1), (rows - 1, rows, 1), (rows // 2, -1, 0), (7, rows + 1, None)]:
        called, given, outputs = [], indices.copy(), [np.empty_like(x) for _ in range(1 if last else 2)]
        given[at] = value
        if calls is None:
            with pytest.raises(ZeroDivisionError, match="far out"):
                program.run(bytearray(0), [x, given], outputs, threads)
            continue
        program.run(bytearray(0), [x, given], outputs, threads)
        assert len(called) == calls * (1 if last else 2)
        for got in outputs:
            np.testing.assert_array_equal(got, x[given % rows])


def test_a_python_step_may_run_another_program(pack):
    inner, x, w, bias, arena_bytes = _chain(pack)
    program = _native.Program([_call(lambda *_: results.append(_run_chain(inner, x, (9, 70), arena_bytes, 2)))], [], 0, 0, 0)
    results: list[np.ndarray] = []
    program.run(bytearray(), [], [], 2)
    np.testing.assert_allclose(results[0], x.astype(np.float64) @ w + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_run_profiled_gives_the_time_of_every_step(pack, threads):
    program, x, _, _, arena_bytes = _chain(pack)
    times, y = np.full(3, -1, np.int64), np.zeros((9, 70), np.float32)
    program.run_profiled(np.zeros(arena_bytes, np.uint8), [x], [y], threads, times)
    assert (times >= 0).all()
    np.testing.assert_array_equal(y, _run_chain(program, x, (9, 70), arena_bytes, 1))
    with pytest.raises(ValueError, match="must hold 3 values; got 2"):
        program.run_profiled(np.zeros(arena_bytes, np.uint8), [x], [y], threads, times[:2])


@pytest.mark.parametrize("threads", [1, 2])
def test_flush_denormals_holds_during_the_run_only(pack, isa, threads):
    tiny = np.float32(2.0**-140)
    one = np.ones((1, 1), np.float32)
    step = KINDS["gemm"], _ints(1, 4, 1, 1, 1, 1, *[0] * 7), _ints(OUTPUT, 0, 0, INPUT, 0, 0, CONSTANT, 0, 0, *[ABSENT, 0, 0] * 2), None
    for flush, expected in ((False, tiny), (True, np.float32(0))):
        program = _native.Program([step], [pack(one, isa)], 1, 1, 0, isa=isa, flush_denormals=flush)
        y = np.ones((4, 1), np.float32)
        program.run(bytearray(), [np.full((4, 1), tiny)], [y], threads)
        np.testing.assert_array_equal(y, np.full((4, 1), expected))
        assert np.float32(2.0**-130) * np.float32(2.0**-5) > 0


def test_many_operands_need_no_more_than_the_heap():
    n = 40
    steps = [_copy(1, (OUTPUT, i, 0), (INPUT, n - 1 - i, 0)) for i in range(n)]
    program = _native.Program(steps, [], n, n, 0)
    inputs, outputs = [np.float32([i]) for i in range(n)], [np.zeros(1, np.float32) for _ in range(n)]
    program.run(bytearray(), inputs, outputs, 1)
    assert [float(y[0]) for y in outputs] == list(range(n - 1, -1, -1))


GOOD = _copy(4, (OUTPUT, 0, 0), (INPUT, 0, 0))
BAD_STEPS = {
    "not a tuple": ([1, 2, 3, 4], "step 0 must be a tuple"),
    "unknown kind": ((10**6, GOOD[1], GOOD[2], None), "step 0: kind must be -1 or in"),
    "negative kind": ((-2, GOOD[1], GOOD[2], None), "step 0: kind must be -1 or in"),
    "kernel with a number": ((KINDS["copy"], GOOD[1], GOOD[2], 7), "of kind 0 must have a callable or None"),
    "host step without callable": ((-1, GOOD[1], GOOD[2], None), "of kind -1 must have a callable"),
    "host step with a number": ((-1, GOOD[1], GOOD[2], 7), "of kind -1 must have a callable"),
    "params of floats": (
        (KINDS["copy"], np.ones(5), GOOD[2], None),
        "must be a buffer of int64; got items of format 'd'",
    ),
    "params of bytes": ((KINDS["copy"], bytes(40), GOOD[2], None), "must be a buffer of int64; got items of format 'B'"),
    "too few params": ((KINDS["copy"], _ints(4), GOOD[2], None), r"step 0 \(copy\): needs at least 2 parameters; got 1"),
    "wrong number of params": ((KINDS["gemm"], _ints(1, 2), GOOD[2], None), r"step 0 \(gemm\): needs 13 parameters; got 2"),
    "wrong number of operands": ((KINDS["copy"], GOOD[1], _ints(2, 0, 0), None), r"step 0 \(copy\): needs 2 operands; got 1"),
    "half a triple": ((KINDS["copy"], GOOD[1], _ints(2, 0, 0, 1), None), "places must be triples"),
    "unknown space": (_copy(4, (4, 0, 0), (INPUT, 0, 0)), r"operand 0 lies outside .* got \(space 4, index 0, offset 0\)"),
    "input out of range": (_copy(4, (OUTPUT, 0, 0), (INPUT, 1, 0)), "operand 1 lies outside"),
    "negative input": (_copy(4, (OUTPUT, 0, 0), (INPUT, -1, 0)), "operand 1 lies outside"),
    "output out of range": (_copy(4, (OUTPUT, 1, 0), (INPUT, 0, 0)), "operand 0 lies outside"),
    "negative offset": (_copy(4, (OUTPUT, 0, -4), (INPUT, 0, 0)), "operand 0 lies outside"),
    "behind the arena": (_copy(4, (ARENA, 0, 65), (INPUT, 0, 0)), "operand 0 lies outside of 64 arena bytes"),
    "constant out of range": (_copy(4, (OUTPUT, 0, 0), (CONSTANT, 1, 0)), "operand 1 lies outside of .* 1 constants"),
    "behind a constant": (_copy(4, (OUTPUT, 0, 0), (CONSTANT, 0, 17)), "operand 1 lies outside"),
}


@pytest.mark.parametrize(("step", "message"), BAD_STEPS.values(), ids=BAD_STEPS)
def test_program_rejects_bad_steps(step, message):
    with pytest.raises(ValueError, match=message):
        _native.Program([step], [np.zeros(4, np.float32)], 1, 1, 64)


def test_program_rejects_bad_arguments():
    with pytest.raises(ValueError, match="out of range; got -1"):
        _native.Program([], [], -1, 0, 0)
    with pytest.raises(ValueError, match=r"must be one that this machine has.*got 'mmx'"):
        _native.Program([], [], 0, 0, 0, isa="mmx")
    with pytest.raises(ValueError, match="contiguous"):
        _native.Program([], [np.zeros((4, 4))[:, ::2]], 0, 0, 0)
    with pytest.raises(TypeError):
        _native.Program(7, [], 0, 0, 0)


def test_run_rejects_bad_arguments():
    program = _native.Program([GOOD, _copy(1, (ARENA, 0, 12), (INPUT, 0, 12))], [], 1, 1, 16)
    arena, x, y = bytearray(16), np.zeros(4, np.float32), np.zeros(4, np.float32)
    program.run(arena, [x], [y], 1)
    with pytest.raises(TypeError, match="got 3 arguments"):
        program.run(arena, [x], [y])
    for threads in (0, -1, 257):
        with pytest.raises(ValueError, match="threads must be in"):
            program.run(arena, [x], [y], threads)
    with pytest.raises(ValueError, match="takes 1 inputs; got 2"):
        program.run(arena, [x, x], [y], 1)
    with pytest.raises(ValueError, match="takes 1 outputs; got 0"):
        program.run(arena, [x], [], 1)
    with pytest.raises(ValueError, match="arena 0 must have at least 16 bytes; got 15"):
        program.run(bytearray(15), [x], [y], 1)
    with pytest.raises(ValueError, match="input 0 must have at least 12 bytes; got 8"):
        program.run(arena, [x[:2]], [y], 1)
    with pytest.raises(ValueError, match="read-only"):
        program.run(arena, [x], [np.frombuffer(bytes(16), np.float32)], 1)
    with pytest.raises(ValueError, match="contiguous"):
        program.run(arena, [np.zeros(8, np.float32)[::2]], [y], 1)


def test_constants_stay_alive_and_are_let_go():
    constant = bytearray(np.float32([1, 2, 3, 4]).tobytes())
    program = _native.Program([_copy(4, (OUTPUT, 0, 0), (CONSTANT, 0, 0))], [constant], 0, 1, 0)
    with pytest.raises(BufferError):
        constant.append(0)
    y = np.zeros(4, np.float32)
    program.run(bytearray(), [], [y], 1)
    np.testing.assert_array_equal(y, [1, 2, 3, 4])
    del program
    constant.append(0)


def test_a_program_in_a_reference_cycle_is_collected():
    class Step:
        def __call__(self, *_):
            pass

    step = Step()
    step.program = _native.Program([_call(step)], [], 0, 0, 0)
    alive = weakref.ref(step)
    del step
    gc.collect()
    assert alive() is None


def test_steps_and_arguments_are_not_leaked():
    x, y, function = np.zeros(4, np.float32), np.zeros(4, np.float32), lambda *_: None
    before = [sys.getrefcount(item) for item in (x, y, function)]
    for _ in range(10):
        program = _native.Program([GOOD, _call(function)], [x], 1, 1, 0)
        program.run(bytearray(), [x], [y], 2)
        with pytest.raises(ValueError, match="takes 1 inputs"):
            program.run(bytearray(), [], [y], 1)
        with pytest.raises(ValueError, match="kind"):
            _native.Program([_call(function), (99999, GOOD[1], GOOD[2], None)], [x], 1, 1, 0)
    del program
    assert [sys.getrefcount(item) for item in (x, y, function)] == before
