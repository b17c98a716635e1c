"""Speed of the native kernels against the arithmetic peak of the core they run on: ``python -m bench.kernel_benchmark``.

Blocks of calls of all rows are interleaved, each preceded by a measurement of the peak, so that load on the machine and changes of its clock
touch numerator and denominator alike. A block's speed is that of its median call; a row shows the median of its blocks. Weights are packed
beforehand and stay the same from call to call.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rml_exec import _native

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
# (height = width, input channels, output channels) of 3x3 convolutions with stride 1 and padding 1.
CONV_SHAPES = ((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512))
# (height = width, channels) of depthwise 3x3 convolutions with stride 1 and padding 1.
DEPTHWISE_SHAPES = ((112, 32), (56, 144), (28, 192), (14, 576), (7, 960))

PEAK_SECONDS = 3e-4
PEAKS_PER_BLOCK = 9


@dataclass(frozen=True)
class Row:
    """One line of the report. ``fraction`` is the median ratio of a block's speed to the peak measured next to it, for all threads together."""

    kernel: str
    shape: str
    isa: str
    threads: int
    gflops: float
    peak_gflops: float
    fraction: float


@dataclass(frozen=True)
class Case:
    """A kernel call with its data: ``run(threads)`` makes it once, ``flops`` is what it counts for, ``shape`` its MxNxK as a matrix product."""

    kernel: str
    shape: str
    isa: str
    flops: float
    run: Callable[[int], None]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _packed(b: np.ndarray, isa: str) -> np.ndarray:
    k, n = b.shape
    packed = np.empty(_native.packed_b_floats(k, n, isa=isa), np.float32)
    _native.pack_b(packed, b, k, n, n, 1, isa=isa)
    return packed


def _caller(kind: str, params: Sequence[int], x: np.ndarray, y: np.ndarray, constants: Sequence[np.ndarray], isa: str) -> Callable[[int], None]:
    """Returns a function of the thread count that runs one step with the operands y, x, constants."""
    places = [2, 0, 0, 1, 0, 0] + [entry for i in range(len(constants)) for entry in (3, i, 0)]
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


def gemm_case(m: int, n: int, k: int, isa: str) -> Case:
    """Returns the product of [m, k] and packed [k, n] plus a bias."""
    constants = [_packed(_random(k, n), isa), _random(n)]
    run = _caller("gemm", [1, m, n, k, k, n, 0, 0, 0], _random(m, k), np.empty((m, n), np.float32), constants, isa)
    return Case("gemm_packed", f"{m}x{n}x{k}", isa, 2.0 * m * n * k, run)


def conv_case(size: int, ic: int, oc: int, isa: str) -> Case:
    """Returns a 3x3 convolution of [size, size, ic] to oc channels."""
    pixels = size * size
    constants = [_packed(_random(9 * ic, oc), isa), _random(oc), _same_offsets(size, ic), np.zeros(ic, np.float32)]
    params = [1, pixels, 9, ic, oc, 1, 0, oc, 0]
    run = _caller("conv", params, _random(pixels, ic), np.empty((pixels, oc), np.float32), constants, isa)
    return Case("conv3x3", f"{pixels}x{oc}x{9 * ic}", isa, 18.0 * pixels * ic * oc, run)


def depthwise_case(size: int, channels: int, isa: str) -> Case:
    """Returns a depthwise 3x3 convolution of [size, size, channels]."""
    pixels = size * size
    constants = [_random(9, channels), _random(channels), _same_offsets(size, channels), np.zeros(channels, np.float32)]
    run = _caller("conv_depthwise", [1, pixels, 9, channels, 0, 0], _random(pixels, channels), np.empty((pixels, channels), np.float32), constants, isa)
    return Case("depthwise3x3", f"{pixels}x{channels}x9", isa, 18.0 * pixels * channels, run)


def _cases(isas: Sequence[str], pattern: re.Pattern[str]) -> Iterator[Case]:
    for isa in isas:
        for kernel, build, shapes in (
            ("gemm_packed", gemm_case, GEMM_SHAPES),
            ("conv3x3", conv_case, CONV_SHAPES),
            ("depthwise3x3", depthwise_case, DEPTHWISE_SHAPES),
        ):
            for shape in shapes:
                case = build(*shape, isa)
                assert case.kernel == kernel
                if pattern.search(f"{case.kernel} {case.shape}"):
                    yield case
