"""Every lowering of a torch operator, run through torch and compared with the reference interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from exporters.lowering import name_outputs

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

pytestmark = pytest.mark.torch


def f32(*shape: int, seed: int = 0, scale: float = 2.0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1)) * scale


def positive(*shape: int) -> Any:
    return f32(*shape).abs() + 0.1


def i64(*shape: int, low: int = -7, high: int = 8) -> Any:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(5))


def bools(*shape: int) -> Any:
    return f32(*shape, seed=3) > 0


AWKWARD = torch.tensor([float("nan"), float("inf"), -float("inf"), -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.0, -0.0])
NAN = float("nan")

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]

ELEMENTWISE: list[Case] = [
    *((name, getattr(torch, name), (f32(3, 5),)) for name in ("abs", "ceil", "cos", "erf", "erfc", "exp", "expm1", "floor", "neg", "relu")),
    *((name, getattr(torch, name), (f32(3, 5),)) for name in ("sigmoid", "sin", "tan", "tanh", "trunc", "square", "isfinite")),
    *((name, getattr(torch, name), (positive(3, 5),)) for name in ("log", "log1p", "log2", "log10", "rsqrt", "sqrt", "reciprocal")),
    *((f"{name}-awkward", getattr(torch, name), (AWKWARD,)) for name in ("sign", "round", "isnan", "isinf", "relu", "trunc", "floor")),
    *(
        (f"{name}-integers", getattr(torch, name), (i64(9),))
        for name in ("abs", "sign", "floor", "round", "exp", "isnan", "neg", "sigmoid")
    ),
    ("sign-bool", torch.sign, (bools(9),)),
    ("round-decimals", lambda x: torch.round(x, decimals=2), (f32(17),)),
    ("round-tens", lambda x: torch.round(x * 100, decimals=-1), (f32(17),)),
    ("gelu", F.gelu, (f32(17),)),
    ("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), (f32(17),)),
    ("silu", F.silu, (f32(17),)),
    ("leaky-relu", lambda x: F.leaky_relu(x, 0.2), (f32(17),)),
    ("elu", lambda x: F.elu(x, 0.7), (f32(17),)),
    ("selu", F.selu, (f32(17),)),
    ("hardswish", F.hardswish, (f32(17, scale=4.0),)),
    ("hardsigmoid", F.hardsigmoid, (f32(17, scale=4.0),)),
    *((name, getattr(torch, name), (f32(3, 5),)) for name in ("sinh", "cosh", "asinh", "atan", "exp2")),
    *((name, lambda x, name=name: getattr(torch, name)(x.tanh()), (f32(3, 5),)) for name in ("asin", "acos", "atanh")),
    ("acosh", lambda x: torch.acosh(x + 1), (positive(3, 5),)),
    ("atan-integers", torch.atan, (i64(9),)),
    ("atan2", torch.atan2, (f32(9), f32(9, seed=1))),
    ("fmax-nan", torch.fmax, (AWKWARD, AWKWARD.flip(0))),
    ("fmin-integers", torch.fmin, (i64(9), i64(9).flip(0))),
    ("bitwise-shifts", lambda a, b: torch.bitwise_left_shift(a, b) - torch.bitwise_right_shift(a, b), (i64(9), i64(9, low=0, high=5))),
    ("sgn", torch.sgn, (AWKWARD,)),
    ("special-erfc", torch.special.erfc, (f32(9),)),
    ("clamp-max", lambda x: x.clamp_max(0.5), (f32(9),)),
    ("copy", lambda x, y: torch.ops.aten.copy(x, y), (f32(3, 5), i64(5))),
    ("alias", lambda x: torch.ops.aten.alias(x) + 1, (f32(3),)),
    ("shift-left", lambda a, b: a << b, (i64(9), i64(9, low=0, high=5))),
    ("shift-right", lambda a: a >> 2, (i64(9, low=-100, high=100),)),
    ("celu", lambda x: F.celu(x, 1.3), (f32(17),)),
    ("softplus", F.softplus, (f32(17, scale=20.0),)),
    ("mish", F.mish, (f32(17),)),
    ("relu6", F.relu6, (f32(17, scale=5.0),)),
    ("softsign", F.softsign, (f32(17),)),
    ("logsigmoid", F.logsigmoid, (f32(17),)),
    ("threshold", lambda x: F.threshold(x, 0.1, -3.0), (f32(17),)),
    ("logical-not", torch.logical_not, (torch.tensor([0.0, -0.0, NAN, 2.0]),)),
    ("logical-not-bool", torch.logical_not, (bools(9),)),
    ("bitwise-not", torch.bitwise_not, (i64(9),)),
    ("to-int", lambda x: x.to(torch.int32), (torch.tensor([NAN, 3e9, -3e9, -1.9, 1.9]),)),
    ("to-uint8", lambda x: x.to(torch.uint8), (torch.tensor([300.0, -1.0, 7.9]),)),
    ("to-bool", lambda x: x.bool(), (torch.tensor([NAN, 0.0, -0.0, 0.5]),)),
    ("to-double", lambda x: x.double() * 0.1, (f32(9),)),
    ("to-half", lambda x: x.half(), (f32(9),)),
    ("to-same", lambda x: x.float(), (f32(9),)),
    ("add-broadcast", torch.add, (f32(3, 1, 5), f32(4, 1, seed=1))),
    ("add-alpha", lambda a, b: torch.add(a, b, alpha=0.3), (f32(5), f32(5, seed=1))),
    ("add-scalar", lambda a: a + 0.1, (f32(5),)),
    ("add-integer-float", torch.add, (i64(5), f32(5))),
    ("add-integer-scalar", lambda a: a + 1.5, (i64(5),)),
    ("add-bool", torch.add, (bools(9), bools(9).flip(0))),
    ("add-bool-integer", torch.add, (bools(9), i64(9))),
    ("add-half-zero-dim", lambda a, b: a + b, (f32(5).half(), f32(1, seed=1)[0])),
    ("sub-alpha", lambda a, b: torch.sub(a, b, alpha=2), (i64(5), i64(5).flip(0))),
    ("rsub", lambda a: 1.0 - a, (f32(5),)),
    ("rsub-alpha", lambda a, b: torch.rsub(a, b, alpha=3), (f32(5), f32(5, seed=1))),
    ("mul", torch.mul, (f32(3, 5), f32(5, seed=1))),
    ("mul-bool", torch.mul, (bools(9), bools(9).flip(0))),
    ("mul-int32-int64", torch.mul, (i64(5).int(), i64(5))),
    ("div", torch.div, (f32(5), f32(5, seed=1))),
    ("div-integers", torch.div, (i64(5), i64(5, low=1))),
    ("div-floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), (f32(17, scale=9.0), f32(17, seed=1))),
    ("div-trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc"), (f32(17, scale=9.0), f32(17, seed=1))),
    ("div-floor-integers", lambda a: torch.div(a, 3, rounding_mode="floor"), (torch.arange(-7, 8),)),
    ("div-trunc-integers", lambda a: torch.div(a, -3, rounding_mode="trunc"), (torch.arange(-7, 8),)),
    ("floor-divide", lambda a: a // -3, (torch.arange(-7, 8),)),
    ("remainder", lambda a: a % 3, (torch.arange(-7, 8),)),
    ("remainder-float", torch.remainder, (f32(17, scale=9.0), f32(17, seed=1))),
    ("fmod", lambda a: torch.fmod(a, 3), (torch.arange(-7, 8),)),
    ("fmod-float", torch.fmod, (f32(17, scale=9.0), f32(17, seed=1))),
    *((f"pow-{exponent}", lambda a, e=exponent: a**e, (positive(9),)) for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.7)),
    ("pow-tensor", torch.pow, (positive(9), f32(9, seed=1))),
    ("pow-base", lambda a: torch.pow(2.0, a), (f32(9),)),
    ("pow-integers", lambda a: a**2, (i64(9),)),
    ("pow-integers-4", lambda a: a**4, (i64(9),)),
    ("maximum", torch.maximum, (torch.tensor([1.0, NAN, 3.0]), torch.tensor([2.0, 1.0, NAN]))),
    ("minimum-integers", torch.minimum, (i64(9), i64(9).flip(0))),
    ("maximum-bool", torch.maximum, (bools(9), bools(9).flip(0))),
    ("clamp", lambda a: a.clamp(-0.5, 0.5), (torch.cat([f32(9), torch.tensor([NAN])]),)),
    ("clamp-low", lambda a: a.clamp(min=-0.5), (f32(9),)),
    ("clamp-integers", lambda a: a.clamp(-2, 3), (i64(9),)),
    ("clamp-integers-float", lambda a: a.clamp(-2.5, 3), (i64(9),)),
    ("clamp-tensors", torch.clamp, (f32(9), f32(9, seed=1) - 1, f32(9, seed=2) + 1)),
    ("clamp-min-tensor", lambda a, b: torch.clamp(a, min=b), (f32(9), f32(9, seed=1))),
    *((f"compare-{name}", getattr(torch, name), (i64(9).float(), i64(9).flip(0))) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    ("compare-scalar", lambda a: a > 0.5, (i64(9),)),
    ("compare-nan", lambda a: a != a, (AWKWARD,)),
    *((f"logical-{name}", getattr(torch, f"logical_{name}"), (i64(9, low=0, high=2), f32(9))) for name in ("and", "or", "xor")),
    *((f"bitwise-{name}", getattr(torch, f"bitwise_{name}"), (i64(9), i64(9).flip(0))) for name in ("and", "or", "xor")),
    ("bitwise-bool", lambda a, b: a & b | (a ^ b), (bools(9), bools(9).flip(0))),
    ("where", torch.where, (bools(3, 5), f32(3, 5), f32(5, seed=1))),
    ("where-scalar", lambda c, a: torch.where(c, a, 0.25), (bools(5), f32(5))),
    ("where-promotes", torch.where, (bools(5), i64(5), f32(5))),
    ("masked-fill", lambda a, m: a.masked_fill(m, -1e9), (f32(3, 5), bools(5))),
    ("lerp", lambda a, b: torch.lerp(a, b, 0.3), (f32(9), f32(9, seed=1))),
    ("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), (f32(9), f32(9, seed=1), f32(9, seed=2))),
]

REDUCTIONS: list[Case] = [
    *((f"{name}-all", getattr(torch, name), (f32(3, 5),)) for name in ("sum", "mean", "prod", "amax", "amin", "max", "min", "var", "std")),
    *(
        (f"{name}-axis", lambda x, name=name: getattr(torch, name)(x, 1), (f32(3, 5, 2),))
        for name in ("sum", "mean", "prod", "amax", "var", "std")
    ),
    ("mean-axes", lambda x: x.mean((-1, 0), keepdim=True), (f32(3, 5, 2),)),
    ("sum-empty-axes", lambda x: x.sum(()), (f32(3, 5),)),
    ("sum-scalar", lambda x: (x * 2).sum(), (f32(1)[0],)),
    ("sum-integers", torch.sum, (i64(9).int(),)),
    ("sum-bool", torch.sum, (bools(9),)),
    ("sum-uint8", lambda x: x.to(torch.uint8).sum(0), (i64(300, low=0, high=255),)),
    ("sum-dtype", lambda x: x.sum(0, dtype=torch.float64), (f32(3, 5),)),
    ("sum-to-integer", lambda x: x.sum(0, dtype=torch.int64), (torch.tensor([NAN, 2.9]),)),
    ("mean-nan", torch.mean, (AWKWARD,)),
    ("amax-nan", lambda x: x.amax(0), (AWKWARD,)),
    ("max-dim", lambda x: x.max(1), (f32(3, 5),)),
    ("max-values-only", lambda x: x.max(1, keepdim=True).values, (f32(3, 5),)),
    ("min-dim", lambda x: tuple(x.min(0)), (i64(3, 5),)),
    ("argmax", lambda x: x.argmax(1), (f32(3, 5),)),
    ("argmax-nan", torch.argmax, (torch.tensor([1.0, NAN, 3.0, 3.0, NAN]),)),
    ("argmax-ties", lambda x: x.argmax(0), (torch.tensor([1.0, 3.0, 3.0]),)),
    ("argmax-all", torch.argmax, (f32(3, 5),)),
    ("argmin-keepdim", lambda x: x.argmin(1, keepdim=True), (f32(3, 5),)),
    ("any", torch.any, (bools(3, 5),)),
    ("any-axis", lambda x: (x > 1).any(1), (f32(3, 5),)),
    ("all-axis", lambda x: (x > -2).all(0, keepdim=True), (f32(3, 5),)),
    ("any-float", lambda x: x.any(0), (torch.tensor([[0.0, NAN], [0.0, 0.0]]),)),
    ("all-integers", torch.all, (i64(9),)),
    ("var-of-dim", lambda x: torch.ops.aten.var.dim(x, [1], False), (f32(3, 5),)),
    ("var-uncorrected", lambda x: x.var(0, correction=0), (f32(3, 5),)),
    ("var-mean", lambda x: torch.var_mean(x, (0, 1), keepdim=True), (f32(3, 5),)),
    ("norm", lambda x: torch.linalg.vector_norm(x, dim=1), (f32(3, 5),)),
    ("normalize", lambda x: F.normalize(x, dim=1), (f32(3, 5),)),
    ("logsumexp", lambda x: torch.logsumexp(x, 1), (f32(3, 5),)),
]

SHAPES: list[Case] = [
    ("view", lambda x: x.view(5, -1), (f32(2, 5, 3),)),
    ("reshape-transposed", lambda x: x.t().reshape(15), (f32(3, 5),)),
    ("flatten", lambda x: x.flatten(1), (f32(2, 3, 5),)),
    ("permute", lambda x: x.permute(2, 0, -2), (f32(2, 3, 5),)),
    ("transpose", lambda x: x.transpose(-1, 0), (f32(2, 3, 5),)),
    ("unsqueeze", lambda x: x.unsqueeze(-1), (f32(2, 3),)),
    ("squeeze", lambda x: x.squeeze(), (f32(1, 3, 1),)),
    ("squeeze-dim", lambda x: x.squeeze(0).squeeze(1), (f32(1, 3, 1),)),
    ("expand", lambda x: x.expand(4, -1, 5), (f32(3, 1),)),
    ("expand-as", lambda x, y: x.expand_as(y) + y, (f32(3, 1), f32(3, 5))),
    ("slice", lambda x: x[1:, -3:-1, ::2], (f32(3, 5, 7),)),
    ("slice-beyond", lambda x: x[:, 2:100], (f32(3, 5),)),
    ("slice-empty", lambda x: x[3:2], (f32(5),)),
    ("select", lambda x: x[:, -1], (f32(3, 5),)),
    ("narrow", lambda x: x.narrow(1, 2, 2), (f32(3, 5),)),
    ("cat", lambda a, b: torch.cat([a, b, a], -1), (f32(3, 5), f32(3, 2))),
    ("cat-promotes", lambda a, b: torch.cat([a, b]), (i64(3), f32(2))),
    ("cat-legacy-empty", lambda a: torch.cat([torch.empty(0), a]), (f32(3, 2),)),
    ("stack", lambda a, b: torch.stack([a, b], -1), (f32(3, 5), f32(3, 5, seed=1))),
    ("split", lambda x: x.split(2, 1), (f32(3, 5),)),
    ("split-sizes-copy", lambda x: torch.split_with_sizes_copy(x, [1, 4], 1)[1], (f32(3, 5),)),
    ("split-sizes", lambda x: x.split([1, 4], 1)[1], (f32(3, 5),)),
    ("chunk", lambda x: x.chunk(3, -1), (f32(3, 6),)),
    ("unbind", lambda x: x.unbind(1), (f32(3, 2),)),
    ("repeat", lambda x: x.repeat(2, 1, 3), (f32(3, 5),)),
    ("tile", lambda x: x.tile(2), (f32(3, 5),)),
    ("repeat-interleave", lambda x: x.repeat_interleave(3, 1), (f32(3, 5),)),
    ("flip", lambda x: x.flip(0, -1), (f32(3, 5),)),
    ("roll", lambda x: x.roll((1, -2), (0, 1)), (f32(3, 5),)),
    ("roll-flat", lambda x: x.roll(4), (f32(3, 5),)),
    ("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), (f32(2, 3, 5),)),
    ("pad-crop", lambda x: F.pad(x, (-1, 2)), (f32(3, 5),)),
    ("pad-infinite", lambda x: F.pad(x, (1, 1), value=float("-inf")), (f32(3, 5),)),
    ("pad-reflect", lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), (f32(1, 2, 4, 5),)),
    ("pad-replicate", lambda x: F.pad(x, (2, 1), mode="replicate"), (f32(1, 2, 5),)),
    ("pad-reflect-line", lambda x: F.pad(x, (2, 1), mode="reflect"), (f32(1, 2, 5),)),
    ("pad-reflect-volume", lambda x: F.pad(x, (1, 1, 2, 0, 0, 1), mode="reflect"), (f32(1, 2, 3, 4, 5),)),
    ("pad-replicate-image", lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (f32(1, 2, 3, 5),)),
    ("pad-replicate-volume", lambda x: F.pad(x, (1, 1, 2, 0, 0, 1), mode="replicate"), (f32(1, 2, 3, 4, 5),)),
    ("pixel-shuffle", lambda x: F.pixel_shuffle(x, 2), (f32(1, 8, 3, 5),)),
    ("zeros-like", lambda x: torch.zeros_like(x) + x.new_full((2,), 3.0)[0] + torch.ones_like(x), (f32(3, 5),)),
    ("fill", lambda x: (x * 2).fill_(3.5) + x, (f32(3, 5),)),
    ("full-like", lambda x: torch.full_like(x, 2.5) * x, (f32(3, 5),)),
    ("arange", lambda x: x + torch.arange(0, 10, 2), (f32(3, 5),)),
    ("tril", lambda x: x.masked_fill(torch.ones(5, 5).tril() == 0, -1.0), (f32(5, 5),)),
    ("big-constant", lambda x: x + torch.zeros(40, 40), (f32(40, 40),)),
    ("constant-output", lambda x: (x + 1, torch.arange(40)), (f32(3),)),
    ("slice-scatter", lambda x, s: torch.slice_scatter(x, s, 1, 1, 3), (f32(3, 5), f32(3, 2, seed=1))),
    ("select-scatter", lambda x, s: torch.select_scatter(x, s, 1, -1), (f32(3, 5), f32(3, seed=1))),
    ("embedding", lambda i, w: F.embedding(i, w, padding_idx=0), (i64(2, 3, low=0, high=7), f32(7, 5))),
    ("index-select", lambda x: x.index_select(1, torch.tensor([2, 0, 2])), (f32(3, 5),)),
    ("index-wraps", lambda x, i: x[i], (f32(5, 3), torch.tensor([[0, -1], [-5, 4]]))),
    ("index-second-axis", lambda x, i: x[:, i], (f32(5, 3), torch.tensor([2, 0]))),
    ("index-int32", lambda x, i: x[i], (f32(5, 3), torch.tensor([2, 0], dtype=torch.int32))),
    ("contiguous", lambda x: x.t().contiguous().clone().detach(), (f32(3, 5),)),
    ("empty-tensor", lambda x: torch.cat([x[:0], x]) * 2, (f32(3, 5),)),
]

INDEXING: list[Case] = [
    ("gather", lambda x, i: x.gather(1, i), (f32(3, 5), i64(3, 2, low=0, high=5))),
    ("gather-smaller", lambda x, i: x.gather(0, i), (f32(4, 5), i64(2, 3, low=0, high=4))),
    ("gather-scalar", lambda x, i: x[0].gather(0, i[0]), (f32(2), i64(2, low=0, high=1))),
    ("take-along-dim", lambda x, i: torch.take_along_dim(x, i, 1), (f32(3, 5), i64(1, 2, low=0, high=5))),
    ("index-two", lambda x, i, j: x[i, j], (f32(4, 5, 3), i64(2, 3, low=-4, high=4), i64(3, low=-5, high=5))),
    ("index-two-inner", lambda x, i, j: x[:, i, j], (f32(2, 4, 5, 3), i64(6, low=0, high=4), i64(6, low=-5, high=5))),
    ("index-two-apart", lambda x, i, j: x[i, :, j], (f32(4, 2, 5), i64(2, 3, low=0, high=4), i64(3, low=0, high=5))),
    ("index-merged", lambda x: x[:, torch.tensor([[0], [-1]]), torch.tensor([1, 2, 0])], (f32(2, 3, 4, 5),)),
    ("index-apart", lambda x: x[torch.tensor([0, 1]), :, torch.tensor([2, -1])], (f32(2, 3, 4),)),
    ("index-put", lambda x, i, v: torch.index_put(x, (i,), v), (f32(5, 3), torch.tensor([0, -1]), f32(2, 3, seed=1))),
    ("index-put-one", lambda x, i: torch.index_put(x, (i,), torch.tensor(7.0)), (f32(5, 3), torch.tensor([0, -1]))),
    (
        "index-put-axis",
        lambda x, i, v: torch.ops.aten.index_put(x, [None, i], v),
        (f32(2, 5, 3), i64(4, low=0, high=5).unique(), f32(1, 3)),
    ),
    ("index-put-two", lambda x, i, j, v: torch.index_put(x, (i, j), v), (f32(4, 5), torch.tensor([0, 3]), torch.tensor([1, -1]), f32(2))),
    (
        "index-put-apart",
        lambda x, i, j, v: torch.ops.aten.index_put(x, [i, None, j], v),
        (f32(4, 2, 5), torch.tensor([0, 3]), torch.tensor([1, -1]), f32(2, 2)),
    ),
    (
        "index-put-add",
        lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
        (f32(5, 3), torch.tensor([0, 2, 0]), f32(3, 3, seed=1)),
    ),
    ("mask-put", lambda x: torch.index_put(x, (x > 0,), torch.tensor(-1.0)), (f32(4, 5),)),
    ("mask-put-rows", lambda x, m, v: torch.index_put(x, (m,), v), (f32(4, 5), bools(4), f32(5, seed=1))),
    ("mask-put-add", lambda x, m: torch.index_put(x, (m,), torch.tensor(1.5), accumulate=True), (f32(4, 5), bools(4, 5))),
    ("index-add", lambda x, i, v: x.index_add(0, i, v), (f32(5, 3), torch.tensor([0, 4, 0]), f32(3, 3, seed=1))),
    ("index-copy", lambda x, i, v: x.index_copy(1, i, v), (f32(5, 3), torch.tensor([0, 2]), f32(5, 2, seed=1))),
    ("index-fill", lambda x, i: x.index_fill(1, i, 9.0), (f32(5, 3), torch.tensor([0, 2]))),
    ("scatter", lambda x, i, s: x.scatter(1, i, s), (f32(3, 5), torch.tensor([[0, 4], [3, 1], [2, 0]]), f32(3, 4, seed=1))),
    ("scatter-value", lambda x, i: x.scatter(0, i, 2.5), (f32(3, 5), i64(2, 3, low=0, high=3))),
    ("scatter-add", lambda x, i, s: x.scatter_add(1, i, s), (f32(3, 5), i64(3, 4, low=0, high=5), f32(3, 4, seed=1))),
    ("scatter-reducing", lambda x, i, s: x.scatter(1, i, s, reduce="add"), (f32(3, 5), i64(3, 4, low=0, high=5), f32(3, 4, seed=1))),
    ("unsafe-index", lambda x, i: torch.ops.aten._unsafe_index(x, [None, i]), (f32(3, 5), torch.tensor([0, -1]))),
    ("scatter-multiply", lambda x, i: x.scatter(1, i, 2.0, reduce="multiply"), (f32(3, 5), i64(3, 4, low=0, high=5))),
    *(
        (
            f"scatter-{kind}-{'self' if own else 'alone'}",
            lambda x, i, s, kind=kind, own=own: x.scatter_reduce(1, i, s, kind, include_self=own),
            (f32(3, 5), i64(3, 4, low=0, high=5), f32(3, 4, seed=1)),
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    ("masked-scatter", torch.masked_scatter, (f32(3, 5), bools(3, 5), f32(15, seed=1))),
    ("diagonal", lambda x: x.diagonal(1, 0, 2), (f32(3, 4, 5),)),
    ("diagonal-below", lambda x: x.diagonal(-1), (f32(5, 4),)),
    ("diag-embed", lambda x: torch.diag_embed(x, 1), (f32(2, 3),)),
    ("as-strided", lambda x: x.as_strided((3, 2), (1, 4), 2), (f32(3, 5),)),
    ("unfold", lambda x: x.unfold(1, 3, 2), (f32(2, 8, 3),)),
    ("image-unfold", lambda x: F.unfold(x, (2, 3), padding=1), (f32(1, 2, 5, 6),)),
    ("image-fold", lambda x: F.fold(x, (4, 5), (2, 2)), (f32(1, 8, 12),)),
    ("one-hot", lambda i: F.one_hot(i, 6), (i64(2, 3, low=0, high=6),)),
    ("grid-sample", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (f32(1, 2, 4, 5), f32(1, 3, 2, 2))),
]

SORTING: list[Case] = [
    ("sort", lambda x: tuple(torch.sort(x, 1)), (f32(3, 7),)),
    ("sort-descending", lambda x: tuple(torch.sort(x, 0, descending=True)), (f32(7, 2),)),
    ("sort-stable", lambda x: tuple(torch.sort(x, stable=True)), (i64(20, low=0, high=3),)),
    ("sort-nan", lambda x: torch.sort(x).values, (AWKWARD,)),
    ("sort-scalar", lambda x: tuple(torch.sort(x[0])), (f32(1),)),
    ("argsort", lambda x: x.argsort(1), (f32(3, 7),)),
    ("topk", lambda x: tuple(x.topk(3, 1)), (f32(2, 7),)),
    ("topk-smallest", lambda x: tuple(x.topk(2, 0, largest=False)), (f32(5, 3),)),
    ("topk-nan", lambda x: tuple(x.topk(3)), (torch.tensor([0.0, NAN, 2.0, 1.0]),)),
    ("kthvalue", lambda x: tuple(x.kthvalue(2, 1, keepdim=True)), (f32(3, 5),)),
    ("cumsum", lambda x: x.cumsum(1), (f32(3, 7),)),
    ("cumsum-integers", lambda x: x.int().cumsum(0), (i64(9),)),
    ("cumsum-bool", lambda x: x.cumsum(-1), (bools(3, 5),)),
    ("cumprod", lambda x: x.cumprod(0), (f32(4, 3),)),
    ("cummax", lambda x: x.cummax(1).values, (f32(3, 7),)),
    ("cummin", lambda x: x.cummin(1).values, (f32(3, 7),)),
    ("logcumsumexp", lambda x: x.logcumsumexp(1), (f32(3, 7),)),
]

IMAGE = f32(1, 2, 4, 6)
SAMPLING: list[Case] = [
    *(
        (
            f"{mode}-{'corners' if corners else 'half'}",
            lambda x, m=mode, c=corners: F.interpolate(x, (7, 9), mode=m, align_corners=c),
            (IMAGE,),
        )
        for mode in ("bilinear", "bicubic")
        for corners in (False, True)
    ),
    ("bilinear-smaller", lambda x: F.interpolate(x, (3, 2), mode="bilinear"), (IMAGE,)),
    ("bilinear-antialias", lambda x: F.interpolate(x, (3, 2), mode="bilinear", antialias=True), (IMAGE,)),
    ("bicubic-antialias", lambda x: F.interpolate(x, (3, 3), mode="bicubic", antialias=True), (IMAGE,)),
    ("bilinear-scale", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (IMAGE,)),
    ("bilinear-scale-recomputed", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), (IMAGE,)),
    ("bilinear-one", lambda x: F.interpolate(x, (1, 1), mode="bilinear"), (IMAGE,)),
    ("resize-linear", lambda x: F.interpolate(x, 7, mode="linear"), (f32(1, 2, 4),)),
    ("trilinear", lambda x: F.interpolate(x, (3, 5, 4), mode="trilinear"), (f32(1, 2, 2, 3, 4),)),
    *((f"nearest-{size}", lambda x, size=size: F.interpolate(x, (size, 7)), (IMAGE,)) for size in (3, 4, 8, 11)),
    ("nearest-exact-line", lambda x: F.interpolate(x, 7, mode="nearest-exact"), (f32(1, 2, 4),)),
    ("nearest-exact-volume", lambda x: F.interpolate(x, (3, 4, 5), mode="nearest-exact"), (f32(1, 2, 2, 3, 4),)),
    ("nearest-exact", lambda x: F.interpolate(x, (7, 9), mode="nearest-exact"), (IMAGE,)),
    ("nearest-scale", lambda x: F.interpolate(x, scale_factor=(1.3, 2.6)), (IMAGE,)),
    ("nearest-volume", lambda x: F.interpolate(x, scale_factor=2), (f32(1, 2, 2, 3, 4),)),
    ("nearest-line", lambda x: F.interpolate(x, 10), (f32(1, 2, 4),)),
]

SERIES = f32(5, 2, 4)  # time, batch, features
RECURRENT: list[Case] = [
    ("lstm", nn.LSTM(4, 3), (SERIES,)),
    ("lstm-batch-first", nn.LSTM(4, 3, batch_first=True), (f32(2, 5, 4),)),
    ("lstm-deep", nn.LSTM(4, 3, num_layers=2, bidirectional=True), (SERIES,)),
    ("lstm-no-bias", nn.LSTM(4, 3, bias=False), (SERIES,)),
    ("lstm-state", nn.LSTM(4, 3), (SERIES, (f32(1, 2, 3, seed=1), f32(1, 2, 3, seed=2)))),
    ("lstm-unbatched", nn.LSTM(4, 3), (f32(5, 4),)),
    ("lstm-cell", nn.LSTMCell(4, 3), (f32(2, 4),)),
    ("gru", nn.GRU(4, 3), (SERIES,)),
    ("gru-deep", nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True), (f32(2, 5, 4),)),
    ("gru-state", nn.GRU(4, 3, bias=False), (SERIES, f32(1, 2, 3, seed=1))),
    ("rnn", nn.RNN(4, 3, nonlinearity="relu"), (SERIES,)),
    ("multihead", nn.MultiheadAttention(8, 2, batch_first=True), (f32(2, 5, 8), f32(2, 3, 8, seed=1), f32(2, 3, 8, seed=2))),
    (
        "multihead-masked",
        lambda x, w, b, o, p, m: F.multi_head_attention_forward(
            x, x, x, 8, 2, w, b, None, None, False, 0.0, o, p, training=False, key_padding_mask=m, need_weights=False
        )[0],
        (f32(5, 2, 8), f32(24, 8, scale=0.5), f32(24), f32(8, 8), f32(8), torch.tensor([[False] * 5, [False, False, True, True, False]])),
    ),
    ("encoder", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (f32(2, 5, 8),)),
    ("decoder", nn.TransformerDecoderLayer(8, 2, 16), (f32(5, 2, 8), f32(4, 2, 8, seed=1))),
]

MASK = torch.tensor([[True, False, True], [False, False, False], [True, True, True], [False, True, False]])
QKV = (f32(2, 3, 4, 8), f32(2, 3, 3, 8, seed=1), f32(2, 3, 3, 6, seed=2))

NETWORKS: list[Case] = [
    ("mm", torch.mm, (f32(3, 5), f32(5, 2))),
    ("bmm", torch.bmm, (f32(4, 3, 5), f32(4, 5, 2))),
    ("matmul-broadcast", torch.matmul, (f32(4, 1, 3, 5), f32(2, 5, 2))),
    ("matmul-vectors", torch.matmul, (f32(5), f32(5, seed=1))),
    ("matrix-vector", torch.matmul, (f32(3, 5), f32(5))),
    ("vector-matrix", torch.matmul, (f32(3), f32(2, 3, 5))),
    ("mv", torch.mv, (f32(3, 5), f32(5))),
    ("dot", torch.dot, (f32(5), f32(5, seed=1))),
    ("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), (f32(2, 3, 5), f32(2, 4, 5))),
    ("addmm", torch.addmm, (f32(2), f32(3, 5), f32(5, 2))),
    ("addmm-scaled", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (f32(3, 2), f32(3, 5), f32(5, 2))),
    ("addmm-ignored", lambda c, a, b: torch.addmm(c, a, b, beta=0), (torch.full((3, 2), NAN), f32(3, 5), f32(5, 2))),
    ("baddbmm", torch.baddbmm, (f32(4, 1, 2), f32(4, 3, 5), f32(4, 5, 2))),
    ("linear", F.linear, (f32(2, 3, 5), f32(4, 5), f32(4))),
    ("linear-no-bias", F.linear, (f32(3, 5), f32(4, 5))),
    ("linear-vector", F.linear, (f32(5), f32(4, 5), f32(4))),
    ("linear-vector-weight", F.linear, (f32(3, 5), f32(5))),
    ("conv2d", nn.Conv2d(3, 4, 3, padding=1), (f32(2, 3, 7, 6),)),
    ("conv2d-strided", nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 2), bias=False), (f32(1, 3, 9, 8),)),
    ("conv2d-groups", nn.Conv2d(4, 6, 3, groups=2), (f32(1, 4, 5, 5),)),
    ("conv2d-depthwise", nn.Conv2d(4, 4, 3, groups=4, padding="same"), (f32(1, 4, 5, 6),)),
    ("conv2d-same-even", nn.Conv2d(2, 3, 4, padding="same"), (f32(1, 2, 5, 6),)),
    ("conv2d-reflect", nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (f32(1, 2, 5, 6),)),
    ("conv2d-unbatched", nn.Conv2d(3, 4, 3), (f32(3, 5, 5),)),
    ("conv2d-channels-last", nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (f32(2, 3, 5, 5),)),
    ("conv1d", nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), (f32(2, 3, 11),)),
    ("conv3d", nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=1, groups=2), (f32(1, 2, 4, 5, 6),)),
    ("conv-transpose", nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), (f32(1, 4, 3, 5),)),
    ("conv-transpose-groups", nn.ConvTranspose2d(4, 6, (2, 3), stride=(1, 3), groups=2, dilation=2, bias=False), (f32(2, 4, 3, 4),)),
    ("conv-transpose1d", nn.ConvTranspose1d(3, 4, 4, stride=3, padding=2), (f32(2, 3, 5),)),
    ("adaptive-max", lambda x: F.adaptive_max_pool2d(x, (2, 3)), (f32(1, 2, 4, 6),)),
    ("cdist", lambda a, b: torch.cdist(a, b), (f32(2, 3, 4), f32(2, 5, 4, seed=1))),
    ("cdist-cubed", lambda a, b: torch.cdist(a, b, p=3.0), (f32(3, 4), f32(5, 4, seed=1))),
    ("max-pool", lambda x: F.max_pool2d(x, 3, 2, 1), (f32(2, 3, 7, 8),)),
    ("max-pool-ceil", lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), (f32(2, 3, 7, 8),)),
    ("max-pool-ceil-last-in-pad", lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True), (f32(1, 1, 3, 5),)),
    ("max-pool-dilated", lambda x: F.max_pool2d(x, 2, 1, dilation=(2, 1)), (f32(2, 3, 7, 8),)),
    ("max-pool-nan", lambda x: F.max_pool2d(x.reshape(1, 1, 1, -1), (1, 2)), (torch.tensor([1.0, NAN, 3.0, 4.0]),)),
    ("max-pool-unbatched", lambda x: F.max_pool2d(x, 2), (f32(3, 6, 6),)),
    ("max-pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), (f32(2, 3, 9),)),
    ("max-pool3d", lambda x: F.max_pool3d(x, 2), (f32(1, 2, 4, 4, 6),)),
    ("avg-pool", lambda x: F.avg_pool2d(x, 3, 2, 1), (f32(2, 3, 7, 8),)),
    ("avg-pool-exclude", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (f32(2, 3, 7, 8),)),
    ("avg-pool-ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (f32(2, 3, 7, 8),)),
    ("avg-pool-ceil-unpadded", lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), (f32(2, 3, 6, 8),)),
    ("avg-pool-ceil-exclude", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (f32(2, 3, 8, 8),)),
    ("avg-pool-beyond", lambda x: F.avg_pool2d(x, 50, ceil_mode=True), (f32(2, 3, 6, 8),)),
    ("avg-pool-divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), (f32(2, 3, 6, 8),)),
    ("avg-pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), (f32(2, 3, 9),)),
    ("avg-pool3d", lambda x: F.avg_pool3d(x, 2, ceil_mode=True), (f32(1, 2, 3, 4, 5),)),
    ("avg-pool-unbatched", lambda x: F.avg_pool2d(x, 2, ceil_mode=True, padding=1), (f32(3, 6, 6),)),
    ("adaptive-global", lambda x: F.adaptive_avg_pool2d(x, 1), (f32(2, 3, 7, 8),)),
    ("adaptive-divisible", lambda x: F.adaptive_avg_pool2d(x, (2, 4)), (f32(2, 3, 6, 8),)),
    ("adaptive-uneven", lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (f32(2, 3, 7, 8),)),
    ("adaptive1d-uneven", lambda x: F.adaptive_avg_pool1d(x, 3), (f32(2, 3, 7),)),
    ("adaptive3d-sizes", lambda x: F.adaptive_avg_pool3d(x, (3, 2, 1)), (f32(1, 2, 3, 4, 5),)),
    ("max-pool-with-indices", lambda x: torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [1, 2])[0], (f32(1, 2, 4, 6),)),
    ("max-pool3d-with-indices", lambda x: torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2])[0], (f32(1, 2, 4, 6, 2),)),
    ("native-layer-norm", lambda x, w: torch.native_layer_norm(x, (5,), w, None, 1e-5)[0], (f32(3, 5), f32(5, seed=1))),
    ("native-group-norm", lambda x, w: torch.native_group_norm(x, w, None, 2, 4, 15, 2, 1e-5)[0], (f32(2, 4, 5, 3), f32(4, seed=1))),
    ("adaptive3d", lambda x: F.adaptive_avg_pool3d(x, 1), (f32(1, 2, 3, 4, 5),)),
    ("layer-norm", lambda x, w, b: F.layer_norm(x, (4, 5), w, b), (f32(3, 4, 5), f32(4, 5, seed=1), f32(4, 5, seed=2))),
    ("layer-norm-plain", lambda x: F.layer_norm(x, (5,), eps=1e-3), (f32(3, 5),)),
    ("group-norm", lambda x, w, b: F.group_norm(x, 2, w, b), (f32(2, 4, 5, 3), f32(4, seed=1), f32(4, seed=2))),
    ("group-norm-plain", lambda x: F.group_norm(x, 2), (f32(2, 4, 5),)),
    ("instance-norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (f32(2, 4, 5, 3), f32(4, seed=1), f32(4, seed=2))),
    ("batch-statistics", nn.BatchNorm2d(4, track_running_stats=False), (f32(2, 4, 5, 3),)),
    (
        "batch-norm",
        lambda x, *stats: F.batch_norm(x, *stats, eps=1e-2),
        (f32(2, 4, 5, 3), f32(4), positive(4), f32(4, seed=1), f32(4, seed=2)),
    ),
    ("batch-norm-plain", nn.BatchNorm1d(4, affine=False), (f32(2, 4),)),
    ("rms-norm-default", lambda x: F.rms_norm(x, (4, 5)), (f32(3, 4, 5),)),
    ("instance-norm-batch", nn.InstanceNorm1d(4, affine=True), (f32(3, 4, 6),)),
    ("local-response-norm", lambda x: F.local_response_norm(x, 3), (f32(1, 5, 3, 4),)),
    ("rms-norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-6), (f32(3, 5), f32(5, seed=1))),
    ("softmax", lambda x: x.softmax(1), (f32(3, 5, 2),)),
    ("softmax-masked", lambda x: x.softmax(0), (torch.tensor([-float("inf")] * 3),)),
    ("softmax-scalar", lambda x: x.softmax(0), (f32(1)[0],)),
    ("log-softmax", lambda x: x.log_softmax(-1), (f32(3, 5),)),
    ("softmax-half-to-float", lambda x: x.softmax(-1, dtype=torch.float32), (f32(3, 5).half(),)),
    ("attention", F.scaled_dot_product_attention, QKV),
    ("attention-written-out", lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -1) @ v, QKV),
    ("attention-scale", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2), QKV),
    ("attention-bool", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (*QKV, MASK)),
    ("attention-additive", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (*QKV, torch.where(MASK, 0.5, -float("inf")))),
    ("attention-causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (f32(2, 3, 4, 8),)),
    (
        "attention-causal-mask",
        lambda q: F.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.bool).tril()[None, None]),
        (f32(2, 3, 4, 8),),
    ),
    ("attention-open-mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.zeros(4, 3)), QKV),
    ("attention-causal-wide", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), QKV),
    ("attention-no-heads", F.scaled_dot_product_attention, (f32(3, 4, 8), f32(3, 5, 8, seed=1), f32(3, 5, 8, seed=2))),
    (
        "attention-grouped",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (f32(2, 6, 4, 8), f32(2, 2, 4, 8, seed=1), f32(2, 2, 4, 8, seed=2)),
    ),
]


FAMILIES = {
    "elementwise": ELEMENTWISE,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "networks": NETWORKS,
    "indexing": INDEXING,
    "sorting": SORTING,
    "sampling": SAMPLING,
    "recurrent": RECURRENT,
}


class Family(nn.Module):
    """All cases of a family in one model: tracing has a high fixed price. Inputs and outputs are named after the case."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = {id: function for id, function, _ in cases}
        self.modules_ = nn.ModuleDict({id: function for id, function, _ in cases if isinstance(function, nn.Module)})

    def forward(self, x: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {id: self.cases[id](*inputs) for id, inputs in x.items()}


def test_case_names_are_unique() -> None:
    names = [id for cases in FAMILIES.values() for id, _, _ in cases]
    assert sorted(set(names)) == sorted(names)


@functools.cache
def exported(family: str) -> tuple[Any, Any, Any, frozenset[str]]:
    """Returns (graph, inputs, torch's outputs, names of the lowerings that took part) of a family."""
    from exporters.from_torch import to_graph
    from exporters.from_torch.context import ATEN

    model = Family(FAMILIES[family]).eval()
    example = {id: inputs for id, _, inputs in FAMILIES[family]}
    with torch.no_grad():
        expected = {name: leaf.contiguous().numpy() for name, leaf in name_outputs(model(example))}
    used = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ATEN, "get", lambda name: (used.add(name), ATEN._functions.get(name))[1])
        graph = to_graph(model, [example], name=family, input_names=["x"])
    return graph, {f"x.{name}": tensor.numpy() for name, tensor in name_outputs(example)}, expected, frozenset(used)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_torch_gives(family: str, assert_graph_gives: Any) -> None:
    graph, inputs, expected, _ = exported(family)
    assert_graph_gives(graph, inputs, expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_lowering_has_a_case() -> None:
    from exporters.from_torch.context import ATEN

    used = frozenset().union(*(exported(family)[3] for family in FAMILIES))
    created = {"aten.arange.start_step", "aten.empty", "aten.empty_strided", "aten.full", "aten.scalar_tensor"}
    assert set(ATEN.names()) - used == created  # needed for symbolic sizes alone: a test of the zoo has them
