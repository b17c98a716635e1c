"""A sample of the references against PyTorch, in float64 where both compute the same formula."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.operands import run

pytestmark = pytest.mark.torch

NAN, INF = np.nan, np.inf
RANDOM = np.random.default_rng(11)


def normal(*shape):
    return RANDOM.normal(size=shape)


def tensors(*arrays):
    import torch

    return [None if array is None else torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def same(got, want, rtol=1e-11):
    np.testing.assert_allclose(got, want.numpy(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("stride", "pads", "dilation", "groups"),
    [((1, 1), ((1, 1), (1, 1)), (1, 1), 1), ((2, 3), ((0, 1), (2, 0)), (1, 2), 2), ((1, 2), ((2, 2), (3, 1)), (2, 1), 6)],
)
def test_conv2d(stride, pads, dilation, groups):
    from torch.nn import functional

    x, w, bias = normal(2, 6, 11, 13), normal(12, 6 // groups, 3, 2), normal(12)
    tx, tw, tbias = tensors(x, w, bias)
    padded = functional.pad(tx, (*pads[1], *pads[0]))
    want = functional.conv2d(padded, tw, tbias, stride, 0, dilation, groups)
    same(run("conv2d", x, w, bias, strides=stride, pads=pads, dilations=dilation, groups=groups, data_layout="NCHW"), want)


def test_max_pool():
    from torch.nn import functional

    x = normal(2, 3, 11, 13)
    x[0, 0, 3, 3] = NAN
    want = functional.max_pool2d(tensors(x)[0], (3, 2), (2, 3), (1, 1), (2, 1))
    attrs = {"window": (3, 2), "strides": (2, 3), "pads": ((1, 1), (1, 1)), "dilations": (2, 1), "data_layout": "NCHW"}
    same(run("max_pool", x, **attrs, nan="propagate"), want)


@pytest.mark.parametrize(("count_include_pad", "override"), [(True, None), (False, None), (True, 5)])
def test_avg_pool(count_include_pad, override):
    from torch.nn import functional

    x = normal(2, 3, 11, 13)
    want = functional.avg_pool2d(tensors(x)[0], (3, 2), (2, 3), 1, False, count_include_pad, override)
    divisor = "fixed" if override else "window" if count_include_pad else "valid"
    attrs = {"window": (3, 2), "strides": (2, 3), "pads": ((1, 1), (1, 1)), "data_layout": "NCHW"}
    same(run("avg_pool", x, **attrs, divisor=divisor, divisor_value=override), want)


def test_avg_pool_ceil_mode_is_pad_then_valid():
    from torch.nn import functional

    x = normal(1, 1, 6)
    want = functional.avg_pool1d(tensors(x)[0], 3, 3, 1, ceil_mode=True)
    padded = run("pad", x, mode="constant", low=(0, 0, 1), high=(0, 0, 1), interior=(0, 0, 0), value=0.0)
    attrs = {"window": (3,), "strides": (3,), "pads": ((0, 1),), "data_layout": "NCHW", "divisor": "valid", "divisor_value": None}
    same(run("avg_pool", padded, **attrs), want)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    from torch.nn import functional

    x = np.concatenate([np.linspace(-5, 5, 1001), [NAN, INF, -INF, -0.0]])
    want = functional.gelu(tensors(x)[0], approximate=approximate)
    same(run("gelu", x, approximate=approximate), want)


def test_silu_sigmoid_softmax_and_norms():
    import torch
    from torch.nn import functional

    x, scale, bias = normal(4, 5, 6), normal(5, 6), normal(5, 6)
    x[0, 0] = -INF
    tx, tscale, tbias = tensors(x, scale, bias)
    same(run("silu", x), functional.silu(tx))
    same(run("sigmoid", x), torch.sigmoid(tx))
    same(run("softmax", x, axis=2, fully_masked="nan"), torch.softmax(tx, 2))
    same(run("log_softmax", x, axis=1), torch.log_softmax(tx, 1))
    x[0, 0] = 1
    tx = tensors(x)[0]
    want = functional.layer_norm(tx, (5, 6), tscale, tbias, 1e-5)
    same(run("layer_norm", x, scale, bias, axes=(1, 2), eps=1e-5, variance="two_pass"), want)
    statistics = RANDOM.uniform(0.5, 2, (4, 5))
    tmean, tvariance, tfactor, toffset = tensors(*statistics)
    want = functional.batch_norm(tx, tmean, tvariance, tfactor, toffset, eps=1e-3)
    same(run("batch_norm", x, statistics[2], statistics[3], statistics[0], statistics[1], eps=1e-3, axis=1), want)


@pytest.mark.parametrize("mask", ["none", "bool", "additive", "causal"])
def test_attention(mask):
    from torch.nn import functional

    q, k, v = normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 4)
    allowed = RANDOM.random((2, 1, 5, 7)) < 0.5
    allowed[0, 0, 2] = False
    operand = {"bool": allowed, "additive": np.where(allowed, 0.5, -INF)}.get(mask)
    tq, tk, tv, tmask = tensors(q, k, v, operand)
    want = functional.scaled_dot_product_attention(tq, tk, tv, tmask, is_causal=mask == "causal", scale=0.3)
    same(run("attention", q, k, v, operand, scale=0.3, softcap=None, mask=mask, fully_masked="zero", kv_groups=1), want)


def test_grouped_attention():
    from torch.nn import functional

    q, k, v = normal(2, 6, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 4)
    want = functional.scaled_dot_product_attention(*tensors(q, k, v), scale=0.3, enable_gqa=True)
    same(run("attention", q, k, v, None, scale=0.3, softcap=None, mask="none", fully_masked="zero", kv_groups=3), want)


def test_rounding_division_and_remainder():
    import torch

    a = np.array([7.5, -7.5, 7.5, -7.5, 1.0, 5, -0.0, 3], np.float64)
    b = np.array([2, 2, -2, -2, 0.1, 0, 3, INF], np.float64)
    ta, tb = tensors(a, b)
    for rounding in ("floor", "trunc"):
        same(run("div", a, b, rounding=rounding), torch.div(ta, tb, rounding_mode=rounding))
        integers = np.array([7, -7, 7, -7, 6]), np.array([3, 3, -3, -3, -3])
        same(run("div", *integers, rounding=rounding), torch.div(*tensors(*integers), rounding_mode=rounding))
    finite = np.isfinite(b)
    same(run("rem", a[finite], b[finite], sign="divisor"), torch.remainder(ta[finite], tb[finite]))
    same(run("rem", a, b, sign="dividend"), torch.fmod(ta, tb))
    x = np.array([-2.5, -0.5, 0.5, 1.5, 2.5])
    same(run("round", x, mode="half_even"), torch.round(tensors(x)[0]))
    same(run("round", x, mode="toward_zero"), torch.trunc(tensors(x)[0]))


@pytest.mark.parametrize("to", ["i8", "u8", "i32", "i64"])
def test_float_to_integer_in_range_of_the_register(to):
    import torch

    x = np.array([300, -1, -1.9, 0.5, -70000, 2147483000], np.float32)
    want = tensors(x)[0].to({"i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}[to])
    np.testing.assert_array_equal(run("cast", x, to=to, f2i="wrap_x86"), want.numpy())


def test_argmax_max_and_clamp_with_nan():
    import torch

    x = np.array([[1, NAN, 3, 3, NAN], [3, 1, 3, 1, 2]])
    (tx,) = tensors(x)
    attrs = {"axis": 1, "keepdims": False, "tie": "first", "nan": "first", "index_dtype": "i64"}
    np.testing.assert_array_equal(run("argreduce", x, kind="max", **attrs), torch.argmax(tx, 1).numpy())
    same(run("reduce", x, kind="max", axes=(1,), keepdims=False, nan="propagate", empty="error"), torch.amax(tx, 1))
    same(run("clamp", x, lo=1.5, hi=2.5), torch.clamp(tx, 1.5, 2.5))
    same(run("clamp", x, lo=2.5, hi=1.5), torch.clamp(tx, 2.5, 1.5))
    same(run("sign", x, nan="zero"), torch.sign(tx))
    same(run("relu", x), torch.relu(tx))
