"""Softmax, layer normalisation, reductions and pooling: sizes, layouts, special values, in-place runs, rows independent of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rml_exec.ops import get_op
from tests.native_vector.native import run

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 513, 1009)


def floats(*shape: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def check(
    op: str, operands: list[np.ndarray | None], attrs: dict[str, Any], isa: str, rtol: float = 4e-6, atol: float = 1e-6
) -> np.ndarray:
    """Compares with the float64 reference, and the bits of one thread with those of two; returns the result."""
    want = get_op(op).run_reference([None if x is None else x.astype(np.float64) for x in operands], attrs)[0]
    (got,) = run(op, operands, attrs, isa=isa)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    assert run(op, operands, attrs, isa=isa, threads=2)[0].tobytes() == got.tobytes()
    return got


def softmax(axis: int, fully_masked: str = "nan") -> dict[str, Any]:
    return {"axis": axis, "fully_masked": fully_masked}


def reduce(kind: str, *axes: int, nan: str = "propagate") -> dict[str, Any]:
    return {"kind": kind, "axes": axes, "keepdims": False, "nan": nan, "empty": "identity"}


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_of_rows_of_every_width(width: int, isa: str) -> None:
    x = floats(11, width)
    check("softmax", [x], softmax(1), isa)
    check("log_softmax", [x], {"axis": 1}, isa, atol=4e-6)
    for op, attrs in (("softmax", softmax(1)), ("log_softmax", {"axis": 1})):
        whole = run(op, [x], attrs, isa=isa)[0]
        assert run(op, [x], attrs, isa=isa, in_place=0)[0].tobytes() == whole.tobytes()
        assert run(op, [x[3:4].copy()], attrs, isa=isa)[0].tobytes() == whole[3:4].tobytes()


@pytest.mark.parametrize("inner", [1, 2, 5, 16, 17, 64, 65, 130])
@pytest.mark.parametrize("n", [1, 2, 21])
def test_softmax_along_another_axis(inner: int, n: int, isa: str) -> None:
    x = floats(3, n, inner)
    check("softmax", [x], softmax(1), isa)
    check("log_softmax", [x], {"axis": 1}, isa, atol=4e-6)
    whole = run("softmax", [x], softmax(1), isa=isa)[0]
    assert run("softmax", [x], softmax(1), isa=isa, in_place=0)[0].tobytes() == whole.tobytes()


def test_softmax_of_a_strided_operand(isa: str) -> None:
    x = floats(70, 9)
    check("softmax", [x.T], softmax(1), isa)


@pytest.mark.parametrize("inner", [1, 7])
def test_softmax_of_special_rows(inner: int, isa: str) -> None:
    rows = floats(6, 70)
    rows[0, 3:] = -np.inf
    rows[1] = -np.inf
    rows[2, 69] = np.nan
    rows[3, 66] = np.inf
    rows[4] = 3.4e38
    rows[5] *= 1e30
    x = np.ascontiguousarray(np.repeat(rows[:, :, None], inner, 2))
    for attrs in (softmax(1), softmax(1, "zero")):
        with np.errstate(all="ignore"):
            check("softmax", [x], attrs, isa)
    with np.errstate(all="ignore"):
        check("log_softmax", [x], {"axis": 1}, isa)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_layer_norm_of_rows_of_every_width(width: int, offset: float, isa: str) -> None:
    x, scale, bias = floats(11, width) + np.float32(offset), floats(width, seed=1), floats(width, seed=2)
    attrs = {"axes": (1,), "eps": 1e-5, "variance": "two_pass"}
    atol = 3e-6 if offset == 0 else 1e-3  # a float near 1000 is only known to 6e-5
    for operands in ([x, scale, bias], [x, scale, None], [x, None, bias], [x, None, None]):
        whole = check("layer_norm", list(operands), attrs, isa, rtol=1e-5, atol=atol)
        assert run("layer_norm", list(operands), attrs, isa=isa, in_place=0)[0].tobytes() == whole.tobytes()
        assert run("layer_norm", [x[5:6].copy(), *operands[1:]], attrs, isa=isa)[0].tobytes() == whole[5:6].tobytes()


def test_layer_norm_does_not_cancel(isa: str) -> None:
    x = np.float32(4096) + np.arange(64, dtype=np.float32).reshape(1, 64) / 64
    check("layer_norm", [x, None, None], {"axes": (1,), "eps": 1e-5, "variance": "fast"}, isa, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "nan"),
    [(kind, nan) for kind in ("sum", "mean", "max", "min", "prod") for nan in ("propagate", "skip") if (kind, nan) != ("mean", "skip")],
)
def test_reduction_of_rows_and_columns(kind: str, nan: str, isa: str) -> None:
    for width in WIDTHS:
        x = floats(4, width, scale=1.0)
        x[2, width // 2] = np.nan
        check("reduce", [x], reduce(kind, 1, nan=nan), isa, rtol=2e-5, atol=2e-5)
        check("reduce", [np.ascontiguousarray(x.T)], reduce(kind, 0, nan=nan), isa, rtol=2e-5, atol=2e-5)


def test_reduction_of_long_rows_is_accurate(isa: str) -> None:
    x = np.random.default_rng(0).random((2, 300_001), np.float32)
    want = x.astype(np.float64).sum(1)
    for operand, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        np.testing.assert_allclose(run("reduce", [operand], reduce("sum", axis), isa=isa)[0], want, rtol=5e-7)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (2,), (3,), (0, 1), (0, 2), (1, 3), (1, 2), (2, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0), (0, 2, 3, 1)], ids=str)
def test_reduction_over_any_axes_of_any_layout(axes: tuple[int, ...], perm: tuple[int, ...], isa: str) -> None:
    x = floats(3, 1, 7, 5, scale=1.0).transpose(perm)
    check("reduce", [x], reduce("mean", *axes), isa, rtol=1e-5, atol=1e-6)
    check("reduce", [x], reduce("max", *axes), isa)


def pool(data_layout: str, window: tuple[int, ...], strides: tuple[int, ...], pads: Any, **others: Any) -> dict[str, Any]:
    return {"window": window, "strides": strides, "pads": pads, "data_layout": data_layout, **others}


def pooled_operand(data_layout: str, spatial: tuple[int, ...], channels: int) -> np.ndarray:
    return floats(2, *spatial, channels) if data_layout == "NHWC" else floats(2, channels, *spatial)


@pytest.mark.parametrize("data_layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("channels", [1, 3, 8, 17, 64, 70])
def test_pooling_of_every_number_of_channels(channels: int, data_layout: str, isa: str) -> None:
    x = pooled_operand(data_layout, (9, 11), channels)
    args = (data_layout, (3, 3), (2, 2), ((1, 1), (0, 1)))
    check("max_pool", [x], pool(*args, dilations=(1, 1), nan="propagate"), isa, rtol=0, atol=0)
    for divisor, value in (("window", None), ("valid", None), ("fixed", 5)):
        check("avg_pool", [x], pool(*args, divisor=divisor, divisor_value=value), isa)


@pytest.mark.parametrize("data_layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("spatial", "window", "strides", "pads", "dilations"),
    [
        ((13,), (5,), (3,), ((2, 1),), (1,)),
        ((13,), (3,), (1,), ((7, 9),), (4,)),
        ((11, 13), (3, 2), (1, 2), ((1, 0), (0, 2)), (2, 3)),
        ((5, 4, 3), (2, 3, 2), (2, 1, 1), ((0, 0), (1, 1), (0, 1)), (1, 1, 1)),
        ((2, 2), (5, 5), (1, 1), ((6, 6), (4, 4)), (1, 1)),
    ],
    ids=str,
)
def test_pooling_windows(spatial: Any, window: Any, strides: Any, pads: Any, dilations: Any, data_layout: str, isa: str) -> None:
    x = pooled_operand(data_layout, spatial, 19)
    check("max_pool", [x], pool(data_layout, window, strides, pads, dilations=dilations, nan="propagate"), isa, rtol=0, atol=0)
    if set(dilations) == {1}:
        with np.errstate(invalid="ignore"):
            check("avg_pool", [x], pool(data_layout, window, strides, pads, divisor="valid", divisor_value=None), isa)


@pytest.mark.parametrize("nan", ["propagate", "skip"])
def test_max_pooling_of_nan(nan: str, isa: str) -> None:
    x = floats(1, 8, 8, 20)
    x[0, 2, 3] = np.nan
    x[0, 5:, 5:] = np.nan
    x[0, 0, :, 4] = -np.inf
    check("max_pool", [x], pool("NHWC", (2, 2), (1, 1), ((0, 0), (0, 0)), dilations=(1, 1), nan=nan), isa, rtol=0, atol=0)


def test_pooling_of_a_channels_last_view_needs_no_copy(isa: str) -> None:
    x = floats(2, 9, 9, 6).transpose(0, 3, 1, 2)
    check("max_pool", [x], pool("NCHW", (3, 3), (2, 2), ((1, 1), (1, 1)), dilations=(1, 1), nan="propagate"), isa, rtol=0, atol=0)
