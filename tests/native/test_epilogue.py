"""What products and convolutions do to their sums before they store them: bit for bit what a second step on the stored sums does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rml_exec import _native
from rml_exec.runtime.epilogue import NO_EPILOGUE, Epilogue
from rml_exec.runtime.winograd import workspace_floats

ACTIVATIONS = {
    "none": (Epilogue(), lambda x: x),
    "relu": (Epilogue("clamp", 0.0, math.inf), lambda x: np.maximum(x, 0)),
    "clamp": (Epilogue("clamp", -0.5, 1.25), lambda x: np.clip(x, -0.5, 1.25)),
    "gelu": (Epilogue("gelu"), lambda x: x / 2 * (1 + np.vectorize(math.erf)(x * math.sqrt(0.5)))),
    "gelu_tanh": (Epilogue("gelu_tanh"), lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "silu": (Epilogue("silu"), lambda x: x / (1 + np.exp(-x))),
    "sigmoid": (Epilogue("sigmoid"), lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (Epilogue("tanh"), np.tanh),
    "hard_swish": (Epilogue("hard_swish"), lambda x: x * np.clip(x + 3, 0, 6) / 6),
}


def _draw(*shape, scale=1.0):
    return (np.random.default_rng(len(shape) + shape[-1]).standard_normal(shape) * scale).astype(np.float32)


def _packed(matrix, isa):
    k, n = matrix.shape
    panels = np.empty(_native.packed_b_floats(k, n, isa=isa), np.float32)
    _native.pack_b(panels, np.ascontiguousarray(matrix), k, n, n, 1, isa=isa)
    return panels


def _offsets(size, channels):
    y, x, ky, kx = np.ogrid[:size, :size, -1:2, -1:2]
    row, column = y + ky, x + kx
    inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
    return np.where(inside, (row * size + column) * channels, -1).astype(np.int32).reshape(size * size, 9)


def _gemm(m, n, k):
    return lambda isa: ([1, m, n, k, k, n, 0, 0, 0], (m, n), [_draw(m, k), _packed(_draw(k, n, scale=k**-0.5), isa), _draw(n)])


def _batch(isa):
    a, b = _draw(3, 7, 20), _draw(20, 37, scale=0.2)
    return [3, 7, 37, 20, 20, 37, 7 * 20, 0, 7 * 37], (3, 7, 37), [a, _packed(b, isa), None]


def _conv(isa):
    weights = _packed(_draw(9 * 40, 70, scale=0.05), isa)
    return [1, 49, 9, 40, 70, 1, 0, 70, 0], (49, 70), [_draw(49, 40), weights, _draw(70), _offsets(7, 40), np.zeros(40, np.float32)]


def _depthwise(kernel, channels):
    pad = kernel // 2
    params = [1, 7, 9, kernel, kernel, channels, 7, 9, 1, 1, pad, pad, 1, 1]
    weights = _draw(kernel * kernel, channels, scale=1 / kernel)
    return lambda isa: (params, (63, channels), [_draw(63, channels), weights, _draw(channels), np.zeros(channels, np.float32)])


def _winograd(edge):
    def case(isa):
        points, block, workers = (edge + 2) ** 2, 3, 2
        weights = np.concatenate([_packed(_draw(32, 48, scale=0.05), isa) for _ in range(points)])
        workspaces = np.full(workers * workspace_floats(edge, block, 32, 48), np.nan, np.float32)
        operands = [_draw(63, 32), weights, _draw(48), np.zeros(32, np.float32), workspaces]
        return [1, 7, 9, 32, 48, 7, 9, 1, 1, block, workers], (63, 48), operands

    return case


Case = Callable[[str], tuple[list[int], tuple[int, ...], list[np.ndarray | None]]]
CASES: dict[str, tuple[str, Case]] = {
    "gemm": ("gemm", _gemm(13, 70, 30)),
    "gemm, 16 columns": ("gemm", _gemm(13, 16, 270)),
    "gemm, 22 columns": ("gemm", _gemm(13, 22, 30)),
    "gemm long": ("gemm", _gemm(7, 130, 600)),
    "row": ("gemm", _gemm(1, 300, 300)),
    "batch": ("gemm", _batch),
    "conv": ("conv", _conv),
    "winograd4": ("winograd4", _winograd(4)),
    "winograd2": ("winograd2", _winograd(2)),
    "depthwise": ("conv_depthwise", _depthwise(3, 40)),
    "depthwise narrow": ("conv_depthwise", _depthwise(3, 3)),
    "depthwise 17x17": ("conv_depthwise", _depthwise(17, 20)),
}
WITH_RESIDUAL = {name: case for name, case in CASES.items() if case[0] != "conv_depthwise"}


def _params(epilogue, after=False):
    return [*epilogue.params[:3], int(after)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", CASES)
def test_activation_of_the_sums(run_step, isa, name, activation):
    kind, case = CASES[name]
    params, shape, operands = case(isa)
    tail = [] if kind == "conv_depthwise" else [None]
    plain = run_step(kind, [*params, *NO_EPILOGUE.params], (shape, np.float32), [*operands, *tail], isa=isa)
    epilogue, function = ACTIVATIONS[activation]
    got = run_step(kind, [*params, *epilogue.params], (shape, np.float32), [*operands, *tail], isa=isa, threads=2)
    np.testing.assert_allclose(got, function(plain.astype(np.float64)), rtol=5e-7, atol=5e-7)
    if epilogue.activation in ("none", "clamp"):
        np.testing.assert_array_equal(got, function(plain))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("activation", ["none", "clamp", "tanh"])
@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_residual_apart_and_in_place(run_step, isa, name, activation, after):
    kind, case = CASES[name]
    params, shape, operands = case(isa)
    plain = run_step(kind, [*params, *NO_EPILOGUE.params], (shape, np.float32), [*operands, None], isa=isa)
    residual = _draw(*shape)
    epilogue, function = ACTIVATIONS[activation]
    params = [*params, *_params(epilogue, after)]
    got = run_step(kind, params, (shape, np.float32), [*operands, residual], isa=isa, threads=2)
    expected = function(plain) + residual if after else function(plain + residual)
    np.testing.assert_allclose(got, expected, rtol=5e-7, atol=5e-7)

    places = [2, 0, 0]
    for index, operand in enumerate(operands):
        places += [-1, 0, 0] if operand is None else [1, index, 0]
    inputs = [np.zeros(1, np.float32) if operand is None else operand for operand in operands]
    step = (_native.step_kinds()[kind], np.array(params, np.int64), np.array([*places, 2, 0, 0], np.int64), None)
    program = _native.Program([step], [], len(inputs), 1, 0, isa=isa)
    for threads in (1, 2):
        y = residual.copy()
        program.run(bytearray(), inputs, [y], threads)
        np.testing.assert_array_equal(y.view(np.uint32), got.view(np.uint32))


@pytest.mark.parametrize("activation", ["relu", "clamp", "gelu", "silu", "hard_swish"])
def test_nan_stays(run_step, isa, activation):
    a, b = np.full((3, 5), np.nan, np.float32), np.ones((5, 20), np.float32)
    params = [1, 3, 20, 5, 5, 20, 0, 0, 0, *ACTIVATIONS[activation][0].params]
    got = run_step("gemm", params, ((3, 20), np.float32), [a, _packed(b, isa), None, None], isa=isa)
    assert np.isnan(got).all()
