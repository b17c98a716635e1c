"""Speed of the native kernels against the arithmetic peak of the core they run on: ``python -m bench.kernel_benchmark``.

Blocks of calls of all rows are interleaved, each preceded by a measurement of the peak, so that load on the machine and changes of its
clock touch numerator and denominator alike. A block's speed is that of its median call; a row shows the median of its blocks. Calls of one
thread are timed by the thread's own CPU clock, so the turns of other processes do not count; calls of several threads by the wall clock.
Weights are packed beforehand and stay the same from call to call.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rml_exec import _native
from rml_exec.command import run_command
from rml_exec.runtime import winograd
from rml_exec.runtime.epilogue import NO_EPILOGUE, Epilogue
from rml_exec.runtime.isa import check_isa

__all__ = ["Row", "main", "measure"]

GEMM_SHAPES = (
    (1, 768, 768),
    (1, 3072, 768),
    (8, 768, 768),
    (49, 512, 4608),
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (196, 512, 1024),
    (784, 128, 1152),
    (3136, 64, 576),
    (1024, 1024, 1024),
)
EPILOGUE_SHAPES = ((128, 3072, 768), (3136, 256, 64))
EPILOGUES = {
    "": NO_EPILOGUE,
    "+relu": Epilogue("clamp", 0.0, math.inf),
    "+add+relu": Epilogue("clamp", 0.0, math.inf),
    "+gelu": Epilogue("gelu"),
    "+silu": Epilogue("silu"),
}
# (height = width, input channels, output channels) of 3x3 convolutions with stride 1 and padding 1.
CONV_SHAPES = ((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512))
# (edge of the output tile, height = width, input channels, output channels) of the same by Winograd's method, in blocks as an executor has them.
WINOGRAD_SHAPES = ((4, 56, 64, 64), (4, 28, 128, 128), (4, 14, 256, 256), (2, 7, 512, 512), (4, 112, 128, 128), (4, 28, 512, 512))
# (height = width, channels, stride) of the depthwise 3x3 convolutions of MobileNetV2, padding 1.
DEPTHWISE_SHAPES = (
    (112, 32, 1),
    (112, 96, 2),
    (56, 144, 1),
    (56, 144, 2),
    (28, 192, 1),
    (28, 192, 2),
    (14, 384, 1),
    (14, 576, 1),
    (14, 576, 2),
    (7, 960, 1),
)

PEAK_SECONDS = 3e-4
PEAKS_PER_BLOCK = 9


@dataclass(frozen=True)
class Row:
    """One line of the report. ``fraction`` is the median ratio of a block's speed to the peak, of all its threads, measured next to it."""

    kernel: str
    shape: str
    isa: str
    threads: int
    gflops: float
    peak_gflops: float
    fraction: float


@dataclass(frozen=True)
class Case:
    """A kernel call with its data: ``run(threads)`` makes it once and counts for ``flops``; ``shape`` is its MxNxK as a matrix product."""

    kernel: str
    shape: str
    isa: str
    flops: float
    run: Callable[[int], None]


_POOL = _native.BufferPool()


def _empty(*shape: int) -> np.ndarray:
    """Returns an array that is aligned as the arena of an executor is."""
    return np.asarray(memoryview(_POOL.take(4 * math.prod(shape))).cast("f")).reshape(shape)


def _aligned(data: np.ndarray) -> np.ndarray:
    array = _empty(*data.shape)
    array[...] = data
    return array


def _random(*shape: int) -> np.ndarray:
    return _aligned(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def _packed(b: np.ndarray, isa: str) -> np.ndarray:
    k, n = b.shape
    packed = _empty(_native.packed_b_floats(k, n, isa=isa))
    _native.pack_b(packed, b, k, n, n, 1, isa=isa)
    return packed


def _caller(
    kind: str, params: Sequence[int], x: np.ndarray, y: np.ndarray, operands: Sequence[np.ndarray | None], isa: str
) -> Callable[[int], None]:
    """Returns a function of the thread count that runs one step with the operands y, x, and these, constants or absent."""
    places = [2, 0, 0, 1, 0, 0]
    constants: list[np.ndarray] = []
    for operand in operands:
        places += [-1, 0, 0] if operand is None else [3, len(constants), 0]
        constants += [] if operand is None else [operand]
    step = (_native.step_kinds()[kind], np.array(params, np.int64), np.array(places, np.int64), None)
    program = _native.Program([step], constants, 1, 1, 0, isa=isa)
    arena = bytearray()

    def run(threads: int) -> None:
        program.run(arena, (x,), (y,), threads)

    return run


def _same_offsets(size: int, channels: int) -> np.ndarray:
    """Returns the [pixels, 9] offset table of a 3x3 convolution with stride 1 and padding 1 over [size, size, channels]."""
    y, x, ky, kx = np.ogrid[:size, :size, -1:2, -1:2]
    row, column = y + ky, x + kx
    inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
    return np.where(inside, (row * size + column) * channels, -1).astype(np.int32).reshape(size * size, 9)


def gemm_case(m: int, n: int, k: int, epilogue: str, isa: str) -> Case:
    """Returns the product of [m, k] and packed [k, n] plus a bias, finished as ``epilogue`` says: a key of EPILOGUES."""
    residual = _random(m, n) if "add" in epilogue else None
    constants = [_packed(_random(k, n), isa), _random(n), residual]
    params = [1, m, n, k, k, n, 0, 0, 0, *EPILOGUES[epilogue].params]
    run = _caller("gemm", params, _random(m, k), _empty(m, n), constants, isa)
    return Case("gemm_packed" + epilogue, f"{m}x{n}x{k}", isa, 2.0 * m * n * k, run)


def conv_case(size: int, ic: int, oc: int, isa: str) -> Case:
    """Returns a 3x3 convolution of [size, size, ic] to oc channels."""
    pixels = size * size
    constants = [_packed(_random(9 * ic, oc), isa), _random(oc), _same_offsets(size, ic), np.zeros(ic, np.float32), None]
    params = [1, pixels, 9, ic, oc, 1, 0, oc, 0, *NO_EPILOGUE.params]
    run = _caller("conv", params, _random(pixels, ic), _empty(pixels, oc), constants, isa)
    return Case("conv3x3", f"{pixels}x{oc}x{9 * ic}", isa, 18.0 * pixels * ic * oc, run)


def winograd_case(edge: int, size: int, ic: int, oc: int, isa: str, threads: int) -> Case:
    """Returns a 3x3 convolution by Winograd's method, whose flops are those of the direct one: its fraction of the peak may exceed 1."""
    pixels, points, tiles = size * size, (edge + 2) ** 2, math.ceil(size / edge) ** 2
    block = winograd.tiles_at_once(edge, tiles, ic, oc)
    weights = np.concatenate([_packed(_random(ic, oc), isa) for _ in range(points)])
    workspaces = _empty(threads, winograd.workspace_floats(edge, block, ic, oc))
    params = [1, size, size, ic, oc, size, size, 1, 1, block, threads, *NO_EPILOGUE.params]
    constants = [_aligned(weights), _random(oc), np.zeros(ic, np.float32), workspaces, None]
    run = _caller(f"winograd{edge}", params, _random(pixels, ic), _empty(pixels, oc), constants, isa)
    return Case(f"winograd{edge}", f"{pixels}x{oc}x{9 * ic}", isa, 18.0 * pixels * ic * oc, run)


def depthwise_case(size: int, channels: int, stride: int, isa: str) -> Case:
    """Returns a depthwise 3x3 convolution of [size, size, channels]."""
    out = (size - 1) // stride + 1
    constants = [_random(9, channels), _random(channels), np.zeros(channels, np.float32)]
    params = [1, out, out, 3, 3, channels, size, size, stride, stride, 1, 1, 1, 1, *NO_EPILOGUE.params]
    run = _caller("conv_depthwise", params, _random(size * size, channels), _empty(out * out, channels), constants, isa)
    return Case(f"depthwise3x3s{stride}", f"{out * out}x{channels}x9", isa, 18.0 * out * out * channels, run)


def _cases(isas: Sequence[str], pattern: re.Pattern[str], threads: int) -> list[Case]:
    cases = []
    for isa in isas:
        cases += [gemm_case(*shape, "", isa) for shape in GEMM_SHAPES]
        cases += [gemm_case(*shape, epilogue, isa) for epilogue in EPILOGUES if epilogue for shape in EPILOGUE_SHAPES]
        cases += [conv_case(*shape, isa) for shape in CONV_SHAPES]
        cases += [winograd_case(*shape, isa, threads) for shape in WINOGRAD_SHAPES]
        cases += [depthwise_case(*shape, isa) for shape in DEPTHWISE_SHAPES]
    return [case for case in cases if pattern.search(f"{case.kernel} {case.shape}")]


def _peak(isa: str) -> float:
    """Returns FLOP/s of one core: the median of short runs, so that a moment of other load does not count."""
    return statistics.median(_native.peak_flops(PEAK_SECONDS, isa=isa) for _ in range(PEAKS_PER_BLOCK))


def _block(case: Case, threads: int, seconds: float) -> float:
    """Returns the median seconds of one call, from calls that fill about so many seconds."""
    clock_ns = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    case.run(threads)
    times: list[int] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = clock_ns()
        case.run(threads)
        times.append(clock_ns() - begin)
    return statistics.median(times) * 1e-9


def measure(cases: Sequence[Case], threads: Sequence[int], *, repeat: int, block_seconds: float) -> list[Row]:
    """Returns one row per case and thread count, from ``repeat`` interleaved blocks each.

    The process is pinned to as many cores as a block has threads, and put back afterwards.
    """
    cores = sorted(os.sched_getaffinity(0))
    arms = [(case, count) for count in threads for case in cases]
    blocks: dict[int, list[tuple[float, float]]] = {index: [] for index in range(len(arms))}
    try:
        for _ in range(repeat):
            for index, (case, count) in enumerate(arms):
                os.sched_setaffinity(0, cores[:count])
                peak = _peak(case.isa) * count
                blocks[index].append((case.flops / _block(case, count, block_seconds), peak))
    finally:
        os.sched_setaffinity(0, cores)
    rows = []
    for index, (case, count) in enumerate(arms):
        speed = statistics.median(flops for flops, _ in blocks[index])
        peak = statistics.median(peak for _, peak in blocks[index])
        fraction = statistics.median(flops / peak for flops, peak in blocks[index])
        rows.append(Row(case.kernel, case.shape, case.isa, count, round(speed / 1e9, 1), round(peak / 1e9, 1), round(fraction, 3)))
    return rows


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kernel", "MxNxK", "isa")
    for heading in ("threads", "GFLOP/s", "peak", "fraction"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.kernel, row.shape, row.isa, str(row.threads), f"{row.gflops:.1f}", f"{row.peak_gflops:.1f}", f"{row.fraction:.2f}"
        )
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernel_benchmark", description="Speed of the native kernels as a fraction of the FMA peak."
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--filter", type=_pattern, default=re.compile(""), metavar="RE", help="rows whose 'kernel MxNxK' matches")
    parser.add_argument("--threads", default="1", metavar="N,...", help="thread counts (default: 1)")
    parser.add_argument(
        "--isa", default=_native.current_isa(), metavar="NAME,...", help="instruction sets, or 'all' (default: the current one)"
    )
    parser.add_argument("--repeat", type=_positive(int), default=7, help="interleaved blocks per row (default: 7)")
    parser.add_argument("--block-ms", type=_positive(float), default=20, help="length of a block (default: 20)")
    options = parser.parse_args(argv)
    return run_command("kernel_benchmark", lambda: _run(parser, options))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression: {error}") from None


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
        return value

    return parse


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    check_isa()
    names = _native.isa_names()
    isas = names if options.isa == "all" else options.isa.split(",")
    unknown = [isa for isa in isas if isa not in names]
    if unknown:
        parser.error(f"--isa: must be among {', '.join(names)}; got {', '.join(unknown)}")
    available = len(os.sched_getaffinity(0))
    threads = [int(count) if count.isdigit() else 0 for count in options.threads.split(",")]
    if not all(1 <= count <= available for count in threads):
        parser.error(f"--threads: must be in [1, {available}], the cores this process may use; got {options.threads}")
    rows = measure(_cases(isas, options.filter, max(threads)), threads, repeat=options.repeat, block_seconds=options.block_ms / 1e3)
    if not rows:
        parser.error(f"--filter: no row matches {options.filter.pattern!r}")
    if options.format == "json":
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    else:
        _print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
