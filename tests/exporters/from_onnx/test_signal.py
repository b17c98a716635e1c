"""Fourier transforms, windows and mel filters, against NumPy and ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from exporters.errors import UnsupportedOperatorsError
from tests.exporters.from_onnx.onnx_support import check, i64, imported, normal, run


@pytest.mark.parametrize("length", [None, 5, 6, 9, 16])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, -2])
def test_dft(length: int | None, parts: int, axis: int) -> None:
    """A length below the signal's cuts it, a longer one fills it up with zeros."""
    x = normal(2, 9, 3, parts)
    given = [None if length is None else np.array(length), np.array(axis)]
    for inverse in (0, 1):
        check("DFT", [x, *given], known=[1, 2], inverse=inverse, atol=1e-5)
    if parts == 1:
        check("DFT", [x, *given], known=[1, 2], onesided=1, atol=1e-5)


@pytest.mark.parametrize("length", [1, 8, 9])
def test_a_real_signal_comes_back_from_half_its_spectrum(length: int) -> None:
    x = normal(2, length, 1)
    spectrum = run(imported("DFT", [x, None, np.array(1)], known=[2], onesided=1), [x])[0]
    assert spectrum.shape == (2, length // 2 + 1, 2)
    back = [spectrum, np.array(length), np.array(1)]
    np.testing.assert_allclose(run(imported("DFT", back, known=[1, 2], onesided=1, inverse=1), back)[0], x, atol=1e-6)


def test_dft_before_opset_20() -> None:
    check("DFT", [normal(2, 8, 1)], opset=17, axis=1, onesided=1, atol=1e-5)
    check("DFT", [normal(2, 8, 2)], opset=17, inverse=1, atol=1e-5)


@pytest.mark.parametrize(("axis", "reason"), [(-1, "real and imaginary"), (4, "out of range")])
def test_a_wrong_axis_is_refused(axis: int, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=reason):
        imported("DFT", [normal(2, 8, 1), None, np.array(axis)], known=[2])


def test_a_transform_that_is_too_long_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="too large"):
        imported("DFT", [np.zeros((1, 1 << 14, 1), np.float32), None, np.array(1)], known=[2])


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("known", [(1, 3), (1, 2, 3)])
def test_stft(onesided: int, window: bool, known: tuple[int, ...]) -> None:
    """The window may depend on the inputs."""
    shape = np.hanning(16).astype(np.float32) if window else None
    inputs = [normal(2, 67, 1), np.array(5), shape, np.array(16)]
    check("STFT", inputs, known=[index for index in known if inputs[index] is not None], onesided=onesided, atol=1e-5)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(name: str, periodic: int) -> None:
    check(name, [np.array(9)], known=[0], periodic=periodic)
    check(name, [np.array(8)], known=[0], periodic=periodic, output_datatype=11)


def test_mel_weights() -> None:
    inputs = [np.array(20), np.array(512), np.array(16000), np.array(20.0, np.float32), np.array(7600.0, np.float32)]
    check("MelWeightMatrix", inputs, known=range(5))
    inputs[4] = np.array(12000.0, np.float32)
    with pytest.raises(UnsupportedOperatorsError, match="does not reach"):
        imported("MelWeightMatrix", inputs, known=range(5))


def test_the_parameters_must_be_known() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="size depends on the inputs"):
        imported("HannWindow", [np.array(9)])
    with pytest.raises(UnsupportedOperatorsError, match="frame_step depends on the inputs"):
        imported("STFT", [normal(1, 32, 1), np.array(4), None, i64(8)], known=[3])
