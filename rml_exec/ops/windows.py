"""Sliding windows for the references of convolution and pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

__all__ = ["channels_first", "channels_last", "taps"]


def channels_first(x: np.ndarray, data_layout: str) -> np.ndarray:
    """Returns x [batch, channels, spatial...] seen from either layout."""
    return x if data_layout == "NCHW" else np.moveaxis(x, -1, 1)


def channels_last(y: np.ndarray, data_layout: str) -> np.ndarray:
    """Undoes :func:`channels_first`."""
    return y if data_layout == "NCHW" else np.moveaxis(y, 1, -1)


def taps(
    x: np.ndarray,
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    counts: Sequence[int],
    fill: float | int,
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yields, for each position within a window, that position and what all windows see there.

    Args:
        x: [batch, channels, spatial...].
        window: extent per spatial axis.
        strides: per spatial axis.
        pads: (low, high) per spatial axis.
        dilations: per spatial axis.
        counts: windows per spatial axis, as :func:`rml_exec.ops.rules.window_counts` gives them.
        fill: value of the padding.

    Yields:
        (position, view [batch, channels, counts...]), the last spatial axis fastest.
    """
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill) if any(map(any, pads)) else x
    for position in itertools.product(*map(range, window)):
        view = tuple(
            slice(offset * dilation, offset * dilation + (count - 1) * stride + 1 if count else offset * dilation, stride)
            for offset, dilation, stride, count in zip(position, dilations, strides, counts, strict=True)
        )
        yield position, padded[(slice(None), slice(None), *view)]
