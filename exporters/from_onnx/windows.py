"""What convolutions and pools share: explicit pads from ONNX's ways of asking for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporters.from_onnx.context import Context, RefusedError

__all__ = ["Windows", "per_axis", "read_windows", "split_pads"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial axes of an image: one entry per axis.

    Attributes:
        extents: elements of a window.
        strides: distance of neighbouring windows.
        dilations: distance of neighbouring elements of a window.
        pads: (low, high) padding that ONNX asks for.
        overhang: what the last window of ``ceil_mode`` hangs over the padded image.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    overhang: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.extents)

    @property
    def all_pads(self) -> tuple[tuple[int, int], ...]:
        """The pads that make plain windows, rounded down, be ONNX's: the overhang is padding at the high end."""
        return tuple((low, high + more) for (low, high), more in zip(self.pads, self.overhang, strict=True))

    @property
    def reaches(self) -> tuple[int, ...]:
        """Elements from the first to the last of a window."""
        return tuple((extent - 1) * dilation + 1 for extent, dilation in zip(self.extents, self.dilations, strict=True))


def read_windows(ctx: Context, sizes: Sequence[int], extents: Sequence[int] | None = None) -> Windows:
    """Returns the windows that the node's attributes describe.

    Args:
        ctx: the node.
        sizes: spatial sizes of the image.
        extents: sizes of a window; None: they stand in the attribute ``kernel_shape``.
    """
    rank = len(sizes)
    kernel = extents if extents is not None else per_axis(ctx, "kernel_shape", rank, 0)
    strides, dilations = per_axis(ctx, "strides", rank, 1), per_axis(ctx, "dilations", rank, 1)
    plain = Windows(tuple(kernel), strides, dilations, ((0, 0),) * rank, (0,) * rank)
    auto_pad = ctx.attr("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        return plain
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // stride) - 1) * stride + reach - size, 0)
            for size, stride, reach in zip(sizes, strides, plain.reaches, strict=True)
        ]
        return Windows(tuple(kernel), strides, dilations, split_pads(totals, auto_pad), (0,) * rank)
    if auto_pad not in ("NOTSET", ""):
        raise RefusedError(f"auto_pad {auto_pad} is not supported")
    flat = per_axis(ctx, "pads", 2 * rank, 0)
    pads = tuple(zip(flat[:rank], flat[rank:], strict=True))
    overhang = [0] * rank
    if ctx.attr("ceil_mode", 0):
        for axis, (size, (low, high), stride, reach) in enumerate(zip(sizes, pads, strides, plain.reaches, strict=True)):
            count = -(-(size + low + high - reach) // stride) + 1
            if (count - 1) * stride >= size + low:  # a window that would start in the padding at the end is left out
                count -= 1
            overhang[axis] = max(0, (count - 1) * stride + reach - size - low - high)
    return Windows(tuple(kernel), strides, dilations, pads, tuple(overhang))


def per_axis(ctx: Context, name: str, count: int, default: int) -> tuple[int, ...]:
    """Returns an attribute with one integer per axis."""
    values = ctx.attr(name) or [default] * count
    if len(values) != count:
        raise RefusedError(f"{name} must have {count} entries, got {len(values)}")
    return tuple(values)


def split_pads(totals: Sequence[int], auto_pad: str) -> tuple[tuple[int, int], ...]:
    """Returns (low, high) of each axis; an odd total has one more at the end for SAME_UPPER, at the beginning for any other."""
    lows = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
    return tuple((low, total - low) for low, total in zip(lows, totals, strict=True))
