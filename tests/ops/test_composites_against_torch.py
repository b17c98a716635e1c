"""The composites, convolutions and ordering ops against PyTorch, in float64 where both compute the same formula."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ops import get_op
from tests.ops.operands import run

pytestmark = pytest.mark.torch

NAN, INF = np.nan, np.inf
RANDOM = np.random.default_rng(12)
X = np.concatenate([np.linspace(-8, 8, 201), [-0.0, 40.0, -40.0, INF, NAN]])


def tensor(array):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def same(got, want, rtol=1e-11):
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("op", "attrs", "name", "arguments"),
    [
        ("elu", {"alpha": 0.7, "scale": 1.0, "input_scale": 1.0}, "elu", {"alpha": 0.7}),
        ("elu", {"alpha": 1.6732632423543772, "scale": 1.0507009873554805, "input_scale": 1.0}, "selu", {}),
        ("elu", {"alpha": 2.0, "scale": 1.0, "input_scale": 0.5}, "celu", {"alpha": 2.0}),
        ("softplus", {"beta": 1.0, "threshold": 20.0}, "softplus", {}),
        ("softplus", {"beta": 2.0, "threshold": 3.0}, "softplus", {"beta": 2.0, "threshold": 3.0}),
        ("hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}, "hardsigmoid", {}),
        ("hard_swish", {}, "hardswish", {}),
    ],
)
def test_activations(op, attrs, name, arguments):
    from torch.nn import functional

    same(run(op, X, **attrs), getattr(functional, name)(tensor(X), **arguments))


@pytest.mark.parametrize("op", ["tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2"])
def test_functions(op):
    import torch

    same(run(op, X), getattr(torch, op)(tensor(X)))


def test_atan2_and_shifts():
    import torch

    a, b = RANDOM.normal(size=(2, 50))
    a[:4], b[:4] = [0.0, -0.0, 0.0, -0.0], [1.0, 1.0, -1.0, -1.0]
    same(run("atan2", a, b), torch.atan2(tensor(a), tensor(b)))
    values, by = np.array([-7, 100, 2**30, -1], np.int32), np.array([1, 3, 1, 31], np.int32)
    np.testing.assert_array_equal(run("shift", values, by, dir="left", arithmetic=False), (tensor(values) << tensor(by)).numpy())
    np.testing.assert_array_equal(run("shift", values, by, dir="right", arithmetic=True), (tensor(values) >> tensor(by)).numpy())


@pytest.mark.parametrize(
    ("stride", "pad", "extra", "dilation", "groups"),
    [((1, 1), (0, 0), (0, 0), (1, 1), 1), ((2, 3), (1, 2), (1, 0), (1, 2), 2), ((3, 2), (0, 1), (2, 1), (2, 1), 4)],
)
def test_conv2d_transpose(stride, pad, extra, dilation, groups):
    from torch.nn import functional

    x, w, bias = RANDOM.normal(size=(2, 4, 5, 7)), RANDOM.normal(size=(4, 3, 3, 2)), RANDOM.normal(size=3 * groups)
    want = functional.conv_transpose2d(tensor(x), tensor(w), tensor(bias), stride, pad, extra, groups, dilation)
    attrs = {"strides": stride, "pads": tuple((p, p) for p in pad), "output_padding": extra, "dilations": dilation, "groups": groups}
    same(run("conv2d_transpose", x, w, bias, **attrs, data_layout="NCHW"), want)


def test_conv3d():
    from torch.nn import functional

    x, w, bias = RANDOM.normal(size=(2, 4, 5, 7, 6)), RANDOM.normal(size=(6, 2, 3, 2, 1)), RANDOM.normal(size=6)
    want = functional.conv3d(tensor(x), tensor(w), tensor(bias), (2, 1, 3), (1, 0, 2), (1, 2, 1), 2)
    attrs = {"strides": (2, 1, 3), "pads": ((1, 1), (0, 0), (2, 2)), "dilations": (1, 2, 1), "groups": 2}
    same(run("conv3d", x, w, bias, **attrs, data_layout="NCHW"), want)


def resize(x, sizes, mode, coord, **changed):
    attrs = {
        "nearest_round": "floor" if mode == "nearest" else None,
        "cubic_a": -0.75 if mode == "cubic" else None,
        "exclude_outside": False,
        "antialias": False,
        "scales": None,
        "data_layout": "NCHW",
    }
    return run("resize", x, mode=mode, coord=coord, sizes=sizes, **{**attrs, **changed})


@pytest.mark.parametrize("sizes", [(9, 12), (3, 4), (5, 1), (1, 14), (10, 3)])
def test_resize(sizes):
    from torch.nn.functional import interpolate

    x = RANDOM.normal(size=(2, 3, 5, 7))
    for mode, name in (("linear", "bilinear"), ("cubic", "bicubic")):
        for coord, corners in (("half_pixel", False), ("align_corners", True)):
            same(resize(x, sizes, mode, coord), interpolate(tensor(x), sizes, mode=name, align_corners=corners))
        # torch's anti-aliased cubic takes a = -0.5
        smooth = {"antialias": True, "exclude_outside": True} | ({"cubic_a": -0.5} if mode == "cubic" else {})
        want = interpolate(tensor(x), sizes, mode=name, align_corners=False, antialias=True)
        same(resize(x, sizes, mode, "half_pixel", **smooth), want, 1e-6)
    same(resize(x, sizes, "nearest", "asymmetric"), interpolate(tensor(x), sizes, mode="nearest"))
    same(resize(x, sizes, "nearest", "tf_half_pixel_for_nn"), interpolate(tensor(x), sizes, mode="nearest-exact"))


def test_resize_by_given_scales():
    from torch.nn.functional import interpolate

    x = RANDOM.normal(size=(1, 2, 5, 7))
    want = interpolate(tensor(x), scale_factor=(1.7, 1.3), mode="bilinear", align_corners=False)
    same(resize(x, tuple(want.shape[2:]), "linear", "half_pixel", scales=(1.7, 1.3)), want)


def test_norms():
    from torch.nn import functional

    x, scale, bias = RANDOM.normal(size=(3, 6, 4, 5)), RANDOM.normal(size=6), RANDOM.normal(size=6)
    want = functional.group_norm(tensor(x), 3, tensor(scale), tensor(bias), 1e-4)
    same(run("group_norm", x, scale, bias, groups=3, axis=1, eps=1e-4), want)
    same(run("group_norm", x, None, None, groups=6, axis=1, eps=1e-5), functional.instance_norm(tensor(x)))
    last = RANDOM.normal(size=5)
    same(run("rms_norm", x, last, axes=(3,), eps=1e-6), functional.rms_norm(tensor(x), (5,), tensor(last), 1e-6))


@pytest.mark.parametrize("batch", [1, 3])
def test_lstm_in_both_directions(batch):
    import torch

    layer = torch.nn.LSTM(4, 5, bidirectional=True, dtype=torch.float64)
    x, h0, c0 = RANDOM.normal(size=(7, batch, 4)), RANDOM.normal(size=(2, batch, 5)), RANDOM.normal(size=(2, batch, 5))
    want, (h, c) = layer(tensor(x), (tensor(h0), tensor(c0)))
    weights = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    for index, (direction, end) in enumerate((("forward", ""), ("reverse", "_reverse"))):
        w, r, bias, more = (weights[f"{name}_l0{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        y, last_h, last_c = get_op("lstm").run_reference([x, w, r, bias + more, h0[index], c0[index]], {"direction": direction})
        same(y, want[:, :, 5 * index : 5 * index + 5])
        same(last_h, h[index])
        same(last_c, c[index])


def test_gru():
    import torch

    layer = torch.nn.GRU(4, 5, dtype=torch.float64)
    x, h0 = RANDOM.normal(size=(7, 2, 4)), RANDOM.normal(size=(1, 2, 5))
    want, last = layer(tensor(x), tensor(h0))
    w, r, bias, recurrent_bias = (value.detach().numpy() for value in layer.parameters())
    attrs = {"direction": "forward", "reset": "after"}
    y, h = get_op("gru").run_reference([x, w, r, bias, recurrent_bias, h0[0]], attrs)
    same(y, want)
    same(h, last[0])


@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_topk_with_ties_and_nan(descending):
    import torch

    x = RANDOM.integers(0, 5, (4, 33)).astype(np.float64)
    x[1, 3] = x[1, 9] = NAN
    want = torch.sort(tensor(x), dim=1, descending=descending, stable=True)
    attrs = {"axis": 1, "descending": descending, "stable": True, "index_dtype": "i64"}
    values, indices = get_op("sort").run_reference([x], attrs)
    same(values, want.values)
    np.testing.assert_array_equal(indices, want.indices.numpy())
    attrs = {"k": 7, "axis": 1, "largest": descending, "sorted": True, "index_dtype": "i64"}
    same(get_op("topk").run_reference([x], attrs)[0], torch.topk(tensor(x), 7, 1, descending).values)


def test_running_reductions():
    import torch

    x = RANDOM.normal(size=(5, 7))
    x[2, 3] = NAN
    for kind, name in (("sum", "cumsum"), ("prod", "cumprod"), ("logsumexp", "logcumsumexp")):
        same(run("cumulative", x, kind=kind, axis=1, exclusive=False, reverse=False), getattr(torch, name)(tensor(x), 1))
    for kind, name in (("max", "cummax"), ("min", "cummin")):
        same(run("cumulative", x, kind=kind, axis=0, exclusive=False, reverse=False), getattr(torch, name)(tensor(x), 0).values)


@pytest.mark.parametrize(("reduce", "name"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")])
def test_gather_and_scatter(reduce, name):
    x, indices, updates = RANDOM.normal(size=(5, 7)), RANDOM.integers(0, 5, (4, 6)), RANDOM.normal(size=(4, 6))
    want = tensor(x).gather(0, tensor(indices))
    same(run("take_along_axis", x, indices, axis=0, oob="error", wrap_negative=False, fill_value=None), want)
    want = tensor(x).scatter_reduce(0, tensor(indices), tensor(updates), name)
    same(run("scatter_along_axis", x, indices, updates, axis=0, reduce=reduce, oob="error", wrap_negative=False), want)


def test_index_put():
    x, rows, columns, updates = RANDOM.normal(size=(5, 7)), np.array([0, -1, 0]), np.array([6, 2, 6]), RANDOM.normal(size=3)
    want = tensor(x).index_put((tensor(rows), tensor(columns)), tensor(updates), accumulate=True)
    same(run("scatter_nd", x, np.stack([rows, columns], 1), updates, reduce="add", oob="error", wrap_negative=True), want)
