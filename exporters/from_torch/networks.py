"""Lowerings of the operators of neural networks: products, convolutions, pools, normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from exporters.from_torch.context import ATEN, Context, RefusedError, Scalar

Ints = Sequence[int]


@ATEN.lowers("aten.mm", "aten.bmm")
def _matmul(ctx: Context, a: str, b: str) -> str:
    return str(ctx.add("matmul", [a, b], transpose_a=False, transpose_b=False))


@ATEN.lowers("aten.matmul", "aten.dot", "aten.mv")
def _any_product(ctx: Context, a: str, b: str) -> str:
    """A vector is a row on the left, a column on the right."""
    if min(ctx.type(a).rank, ctx.type(b).rank) > 1:
        return _matmul(ctx, a, b)
    rows = a if ctx.type(a).rank > 1 else ctx.reshape(a, [1, ctx.type(a).size])
    columns = b if ctx.type(b).rank > 1 else ctx.reshape(b, [ctx.type(b).size, 1])
    return ctx.reshape(ctx.step("matmul", [rows, columns], transpose_a=False, transpose_b=False), ctx.result().shape)


@ATEN.lowers("aten.addmm", "aten.baddbmm")
def _addmm(ctx: Context, bias: str, a: str, b: str, beta: Scalar, alpha: Scalar) -> str:
    """Adds a product: beta * bias + alpha * (a @ b)."""
    if beta == alpha == 1 and ctx.type(b).rank == 2 and ctx.type(bias).shape == ctx.type(b).shape[1:]:
        return str(ctx.add("linear", [a, b, bias], weight_layout="io"))
    product = ctx.step("matmul", [a, b], transpose_a=False, transpose_b=False)
    if beta == 0:  # torch ignores the bias then, also where it is NaN
        return ctx.step("mul", [product, ctx.scalar(alpha, ctx.type(product).dtype)])
    dtype = ctx.result().dtype
    terms = [(bias, beta), (product, alpha)]
    scaled = [value if factor == 1 else ctx.step("mul", [value, ctx.scalar(factor, dtype)]) for value, factor in terms]
    return str(ctx.add("add", scaled))


@ATEN.lowers("aten.linear")
def _linear(ctx: Context, x: str, weight: str, bias: str | None) -> str:
    shape = ctx.type(x).shape
    if ctx.type(weight).rank == 1:
        column = ctx.reshape(weight, [1, *ctx.type(weight).shape])
        return ctx.reshape(ctx.step("linear", [x, column, bias], weight_layout="oi"), ctx.result().shape)
    if len(shape) == 1:
        return ctx.reshape(ctx.step("linear", [ctx.reshape(x, [1, *shape]), weight, bias], weight_layout="oi"), ctx.result().shape)
    return str(ctx.add("linear", [x, weight, bias], weight_layout="oi"))


@ATEN.lowers("aten.convolution")
def _convolution(
    ctx: Context,
    x: str,
    weight: str,
    bias: str | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> str:
    """A 1-D convolution is a 2-D one over a height of 1."""
    spatial = ctx.type(x).rank - 2
    if spatial > (2 if transposed else 3):
        raise RefusedError(f"{'transposed ' if transposed else ''}convolutions over {spatial} axes are not supported")
    flat = spatial == 1
    pads = [(pad, pad) for pad in _spatial(padding, spatial)]
    image, kernel = (_with_height(ctx, value) if flat else value for value in (x, weight))
    transposing = {"output_padding": _two(_spatial(output_padding, spatial), 0)} if transposed else {}
    result = (ctx.step if flat else ctx.add)(
        "conv2d_transpose" if transposed else "conv3d" if spatial == 3 else "conv2d",
        [image, kernel, bias],
        strides=_two(_spatial(stride, spatial), 1),
        pads=((0, 0), *pads) if flat else tuple(pads),
        dilations=_two(_spatial(dilation, spatial), 1),
        groups=groups,
        data_layout="NCHW",
        **transposing,
    )
    return ctx.reshape(result, ctx.result().shape)


def _with_height(ctx: Context, value: str) -> str:
    batch, channels, length = ctx.type(value).shape
    return ctx.reshape(value, [batch, channels, 1, length])


def _spatial(values: int | Ints, rank: int) -> tuple[int, ...]:
    """Returns one number per spatial axis; torch allows a single one for all."""
    listed = [values] if isinstance(values, int) else list(values)
    return tuple(listed * rank if len(listed) == 1 else listed)


def _two(values: tuple[int, ...], first: int) -> tuple[int, ...]:
    return (first, *values) if len(values) == 1 else values


@ATEN.lowers(*(f"aten.max_pool{rank}d_with_indices" for rank in (2, 3)), *(f"aten.max_pool{rank}d" for rank in (1, 2, 3)))
def _max_pool(ctx: Context, x: str, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> object:
    rank = int(ctx.packet[len("max_pool")])
    window, dilations = _spatial(kernel, rank), _spatial(dilation, rank)
    strides, low = _spatial(stride or kernel, rank), _spatial(padding, rank)
    extents = [step * (size - 1) + 1 for size, step in zip(window, dilations, strict=True)]
    pads = _pool_pads(ctx.type(x).shape[-rank:], extents, strides, low, ceil_mode)
    value = _pool(ctx, "max_pool", x, rank, window=window, strides=strides, pads=pads, dilations=dilations, nan="propagate")
    return (value, None) if ctx.packet.endswith("with_indices") else value


def _pool(ctx: Context, op: str, x: str, spatial: int, **attrs: object) -> str:
    """Adds a pooling node; an image without a batch axis gets one for it."""
    shape = ctx.type(x).shape
    if len(shape) == spatial + 2:
        return str(ctx.add(op, [x], data_layout="NCHW", **attrs))
    pooled = ctx.step(op, [ctx.reshape(x, [1, *shape])], data_layout="NCHW", **attrs)
    return ctx.reshape(pooled, ctx.type(pooled).shape[1:])


def _pool_pads(sizes: Ints, extents: Ints, strides: Ints, low: Ints, ceil_mode: bool) -> tuple[tuple[int, int], ...]:
    """Returns the pads that make plain windows, rounded down, be torch's windows.

    ``ceil_mode`` adds a window that hangs over the high end, unless it would start in the padding there.
    """
    pads = []
    for size, extent, stride, pad in zip(sizes, extents, strides, low, strict=True):
        high = pad
        if ceil_mode:
            count = -(-(size + 2 * pad - extent) // stride) + 1
            if (count - 1) * stride >= size + pad:
                count -= 1
            high = max(pad, (count - 1) * stride + extent - size - pad)
        pads.append((pad, high))
    return tuple(pads)


def _avg_pool(spatial: int) -> None:
    @ATEN.lowers(f"aten.avg_pool{spatial}d")
    def lower(
        ctx: Context,
        x: str,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> str:
        """The divisor counts padding if asked to, but never what ``ceil_mode`` adds: then padding becomes part of the image."""
        window, strides, low = _spatial(kernel, spatial), _spatial(stride or kernel, spatial), _spatial(padding, spatial)
        pads = _pool_pads(ctx.type(x).shape[-spatial:], window, strides, low, ceil_mode)
        if count_include_pad and divisor is None and any(high > pad for pad, high in pads):
            if any(low):
                edges = (*(0 for _ in ctx.type(x).shape[:-spatial]), *low)
                x = ctx.step("pad", [x], mode="constant", low=edges, high=edges, interior=(0,) * len(edges), value=0.0)
            pads = tuple((0, high - pad) for pad, high in pads)
            count_include_pad = False
        kind = "fixed" if divisor is not None else "window" if count_include_pad else "valid"
        image = ctx.type(x).shape[-spatial:]
        covers = all(extent >= size and not pad[0] for extent, size, pad in zip(window, image, pads, strict=True))
        if kind == "valid" and covers and math.prod(ctx.result().shape[-spatial:]) == 1:
            return _image_mean(ctx, x, spatial)  # EfficientNet asks for a window far larger than the image
        return _pool(ctx, "avg_pool", x, spatial, window=window, strides=strides, pads=pads, divisor=kind, divisor_value=divisor)


for _rank in (1, 2, 3):
    _avg_pool(_rank)


def _adaptive_avg_pool(spatial: int, packet: str) -> None:
    @ATEN.lowers(packet)
    def lower(ctx: Context, x: str, output_size: Ints) -> str:
        """Global: a mean. Window sizes all alike: an average pool. Else along each axis a product with a matrix of the windows' weights."""
        shape, sizes = ctx.type(x).shape, ctx.result().shape[-spatial:]
        inputs = shape[-spatial:]
        if all(size == 1 for size in sizes):
            return _image_mean(ctx, x, spatial)
        if all(size and n % size == 0 for n, size in zip(inputs, sizes, strict=True)):
            window = tuple(n // size for n, size in zip(inputs, sizes, strict=True))
            pads = ((0, 0),) * spatial
            return _pool(ctx, "avg_pool", x, spatial, window=window, strides=window, pads=pads, divisor="valid", divisor_value=None)
        for axis, size in zip(range(len(shape) - spatial, len(shape)), sizes, strict=True):
            x = _window_means(ctx, x, axis, size)
        return x


def _image_mean(ctx: Context, x: str, spatial: int) -> str:
    rank = ctx.type(x).rank
    return str(
        ctx.add("reduce", [x], kind="mean", axes=tuple(range(rank - spatial, rank)), keepdims=True, nan="propagate", empty="identity")
    )


def _window_means(ctx: Context, x: str, axis: int, size: int) -> str:
    """Averages windows floor(i n / size) to ceil((i + 1) n / size) along one of the last axes."""
    type_ = ctx.type(x)
    n = type_.shape[axis]
    weights = np.zeros((n, size), type_.dtype.numpy)
    for i in range(size):
        start, end = i * n // size, -(-(i + 1) * n // size)
        weights[start:end, i] = 1 / (end - start)
    perm = (*(a for a in range(type_.rank) if a != axis), axis)
    back = tuple(int(a) for a in np.argsort(perm))
    turned = x if perm == back == tuple(range(type_.rank)) else ctx.step("transpose", [x], perm=perm)
    means = ctx.step("matmul", [turned, ctx.builder.constant(weights, f"{ctx.node.name}.windows")], transpose_a=False, transpose_b=False)
    return str(means if turned == x else ctx.step("transpose", [means], perm=back))


@ATEN.lowers("aten.adaptive_max_pool2d")
def _adaptive_max_pool(ctx: Context, x: str, output_size: Ints) -> tuple[str, None]:
    shape, sizes = ctx.type(x).shape[-2:], _spatial(output_size, 2)
    if any(n % size for n, size in zip(shape, sizes, strict=True)):
        raise RefusedError("adaptive max pools with windows of different sizes are not supported")
    window = tuple(n // size for n, size in zip(shape, sizes, strict=True))
    attrs = {"window": window, "strides": window, "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "nan": "propagate"}
    return _pool(ctx, "max_pool", x, 2, **attrs), None


@ATEN.lowers("aten._cdist_forward")
def _distances(ctx: Context, a: str, b: str, order: float, mode: object) -> str:
    """Distances of every row of ``a`` from every row of ``b``, each difference taken: no digits are lost as by way of a product."""
    *batch, rows, width = ctx.type(a).shape
    left = ctx.reshape(a, [*batch, rows, 1, width])
    right = ctx.reshape(b, [*ctx.type(b).shape[:-2], 1, *ctx.type(b).shape[-2:]])
    size = ctx.step("abs", [ctx.step("sub", [left, right])])
    axes = (ctx.type(size).rank - 1,)
    if math.isinf(order):
        return str(ctx.add("reduce", [size], kind="max", axes=axes, keepdims=False, nan="propagate", empty="error"))
    dtype = ctx.type(size).dtype
    power = ctx.step("mul", [size, size]) if order == 2 else ctx.step("pow", [size, ctx.scalar(order, dtype)])
    total = ctx.step("reduce", [power], kind="sum", axes=axes, keepdims=False, nan="propagate", empty="identity")
    return str(ctx.add("sqrt", [total]) if order == 2 else ctx.add("pow", [total, ctx.scalar(1 / order, dtype)]))


_adaptive_avg_pool(1, "aten.adaptive_avg_pool1d")
_adaptive_avg_pool(2, "aten._adaptive_avg_pool2d")
_adaptive_avg_pool(3, "aten._adaptive_avg_pool3d")


@ATEN.lowers("aten._native_batch_norm_legit_no_training")
def _batch_norm(
    ctx: Context, x: str, weight: str | None, bias: str | None, mean: str, variance: str, momentum: float, eps: float
) -> tuple[str | None, ...]:
    dtype = ctx.type(x).dtype
    channels = ctx.type(mean).shape
    scale = weight or ctx.step("broadcast", [ctx.scalar(1, dtype)], shape=channels)
    shift = bias or ctx.step("broadcast", [ctx.scalar(0, dtype)], shape=channels)
    return str(ctx.add("batch_norm", [x, scale, shift, mean, variance], eps=eps, axis=1)), None, None


@ATEN.lowers("aten._native_batch_norm_legit.no_stats")
def _instance_norm(
    ctx: Context, x: str, weight: str | None, bias: str | None, training: bool, momentum: float, eps: float
) -> tuple[str | None, ...]:
    """A group norm with one channel per group if the batch is 1, as it is for what instance norms become."""
    batch, channels, *image = ctx.type(x).shape
    swap = (1, 0, *range(2, len(image) + 2))
    rows = x if batch == 1 else ctx.reshape(ctx.step("transpose", [x], perm=swap), [1, channels, batch * math.prod(image)])
    y = str(ctx.step("group_norm", [rows, weight, bias], groups=channels, axis=1, eps=eps))
    if batch > 1:
        y = ctx.step("transpose", [ctx.reshape(y, [channels, batch, *image])], perm=swap)
    return y, None, None


@ATEN.lowers("aten.layer_norm")
def _layer_norm(ctx: Context, x: str, shape: Ints, weight: str | None, bias: str | None, eps: float, cudnn_enable: bool) -> str:
    rank = ctx.type(x).rank
    return str(ctx.add("layer_norm", [x, weight, bias], axes=tuple(range(rank - len(shape), rank)), eps=eps, variance="two_pass"))


@ATEN.lowers("aten.native_layer_norm")
def _native_layer_norm(ctx: Context, x: str, shape: Ints, weight: str | None, bias: str | None, eps: float) -> tuple[str | None, ...]:
    return _layer_norm(ctx, x, shape, weight, bias, eps, False), None, None


@ATEN.lowers("aten.rms_norm")
def _rms_norm(ctx: Context, x: str, shape: Ints, weight: str | None, eps: float | None) -> str:
    type_ = ctx.type(x)
    smallest = float(np.finfo(type_.dtype.numpy).eps) if eps is None else eps
    return str(ctx.add("rms_norm", [x, weight], axes=tuple(range(type_.rank - len(shape), type_.rank)), eps=smallest))


@ATEN.lowers("aten.group_norm")
def _group_norm(ctx: Context, x: str, groups: int, weight: str | None, bias: str | None, eps: float, cudnn_enabled: bool) -> str:
    return str(ctx.add("group_norm", [x, weight, bias], groups=groups, axis=1, eps=eps))


@ATEN.lowers("aten.native_group_norm")
def _native_group_norm(
    ctx: Context, x: str, weight: str | None, bias: str | None, batch: int, channels: int, size: int, groups: int, eps: float
) -> tuple[str | None, ...]:
    return _group_norm(ctx, x, groups, weight, bias, eps, False), None, None


def _softmax(packet: str, op: str, **attrs: str) -> None:
    @ATEN.lowers(f"aten.{packet}")
    def lower(ctx: Context, x: str, dim: int, half_to_float: bool) -> str:
        wide = ctx.cast(x, ctx.result().dtype)
        if not ctx.type(x).rank:
            return ctx.reshape(ctx.step(op, [ctx.reshape(wide, [1])], axis=0, **attrs), [])
        return str(ctx.add(op, [wide], axis=ctx.axis(x, dim), **attrs))


_softmax("_softmax", "softmax", fully_masked="nan")
_softmax("_log_softmax", "log_softmax")
