"""When a convolution runs by Winograd's method, and its weights in that form."""

from __future__ import annotations

import math

import numpy as np

from rml_exec import _native
from rml_exec.ir.derived import Recipe
from rml_exec.runtime.places import ABSENT, INPUT, OUTPUT
from rml_exec.runtime.shared import aligned_floats, shared_data, unscaled

__all__ = ["tile_of", "tiles_at_once", "transformed_weights", "workspace_floats"]

_LANES = 16
"""Channels must be multiples of the widest vector."""
_MIN_CHANNELS = 32
_MIN_TILES = 14
_MANY_TILES = 64
_CACHED_WEIGHTS = 12 << 20
"""Bytes of transformed weights that a third-level cache keeps; more pay only if many tiles share what is read."""
_BLOCK_BYTES, _MIN_BLOCK, _MAX_BLOCK = 700 << 10, 14, 48
"""Second-level cache for the tiles between transforms, and how many there are at once; long sums take the most, for the weights' sake."""
_PADDING = 32


def tile_of(batch: int, output: tuple[int, int], ic: int, oc: int) -> int:
    """Returns the edge of the output tile for a 3x3 convolution of stride 1: 4 or 2, or 0 where the direct way is faster.

    F(4x4,3x3) computes 16 outputs with 36 products instead of 144, F(2x2,3x3) 4 with 16 instead of 36, but the transformed weights are 4 and
    1.8 times as large: small images do not use them often enough.
    """
    if ic % _LANES or oc % _LANES or min(ic, oc) < _MIN_CHANNELS:
        return 0
    tiles = {edge: batch * math.ceil(output[0] / edge) * math.ceil(output[1] / edge) for edge in (4, 2)}
    if tiles[4] >= _MANY_TILES or (tiles[4] >= _MIN_TILES and 4 * 36 * ic * oc <= _CACHED_WEIGHTS):
        return 4
    return 2 if tiles[2] >= _MIN_TILES else 0


def tiles_at_once(edge: int, tiles: int, ic: int, oc: int) -> int:
    """Returns how many tiles are taken through all three phases together."""
    fitting = _BLOCK_BYTES // (4 * (edge + 2) ** 2 * (ic + oc))
    block = _MAX_BLOCK if ic * oc >= 1 << 16 else max(_MIN_BLOCK, min(fitting, _MAX_BLOCK))
    return min(block, tiles)


def workspace_floats(edge: int, block: int, ic: int, oc: int) -> int:
    """Returns the floats that one thread needs for a block of tiles."""
    return (edge + 2) ** 2 * (block * (ic + oc) + _PADDING)


def transformed_weights(weights: np.ndarray | Recipe, edge: int, threads: int = 1) -> np.ndarray:
    """Returns OIHW weights [oc, ic, 3, 3], or what makes them, as G w G' in float64, packed per point; once per process, by so many threads."""
    return shared_data(weights, ("winograd", edge), lambda: _transformed(weights, edge, threads))


def _transformed(weights: np.ndarray | Recipe, edge: int, threads: int) -> np.ndarray:
    data, scale = unscaled(weights)
    oc, ic = data.shape[:2]
    points = aligned_floats((edge + 2) ** 2 * _native.packed_b_floats(ic, oc))
    kind = _native.step_kinds()[f"winograd{edge}_weights"]
    places = [(OUTPUT, 0, 0), (INPUT, 0, 0), (ABSENT, 0, 0) if scale is None else (INPUT, 1, 0)]
    step = (kind, np.array([ic, oc], np.int64), np.array(places, np.int64), None)
    inputs = [data] if scale is None else [data, scale]
    _native.Program([step], [], len(inputs), 1, 0).run(bytearray(), inputs, [points], threads)
    return points
