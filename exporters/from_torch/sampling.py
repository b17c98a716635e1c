"""Lowerings of the operators that resample images: every kind of ``F.interpolate`` is one ``resize``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.from_torch.context import ATEN, Context

Sizes = Sequence[int] | None
Scales = Sequence[float] | None


def _resize(ctx: Context, x: str, scales: Scales, *, mode: str, coord: str, antialias: bool = False) -> str:
    """A given scale factor counts as it is, also where it is not the quotient of the sizes."""
    return str(
        ctx.add(
            "resize",
            [x],
            mode=mode,
            coord=coord,
            nearest_round="floor" if mode == "nearest" else None,
            cubic_a=(-0.5 if antialias else -0.75) if mode == "cubic" else None,
            exclude_outside=antialias,
            antialias=antialias,
            scales=tuple(map(float, scales)) if scales else None,
            sizes=ctx.result().shape[2:],
            data_layout="NCHW",
        )
    )


def _nearest(spatial: int) -> None:
    @ATEN.lowers(f"aten.upsample_nearest{spatial}d.vec")
    def lower(ctx: Context, x: str, output_size: Sizes, scales: Scales) -> str:
        """Takes element floor(i * size / output size), the quotient in float32; where that matters, the elements one by one."""
        shape, result = ctx.type(x).shape, ctx.result().shape
        places = {}
        exact = True
        for number, axis in enumerate(range(2, 2 + spatial)):
            quotient = np.float32(1 / scales[number] if scales else shape[axis] / result[axis])
            taken = np.floor(np.arange(result[axis], dtype=np.float32) * quotient).astype(np.int64)
            scale = scales[number] if scales else result[axis] / shape[axis]
            exact &= bool((taken == np.floor(np.arange(result[axis]) / scale)).all())
            places[axis] = np.minimum(taken, shape[axis] - 1)
        if exact:
            return _resize(ctx, x, scales, mode="nearest", coord="asymmetric")
        for axis, taken in places.items():
            indices = ctx.builder.constant(taken, f"{ctx.node.name}.indices")
            x = ctx.step("take", [x, indices], axis=axis, oob="error", wrap_negative=False, fill_value=None)
        return x

    @ATEN.lowers(f"aten._upsample_nearest_exact{spatial}d.vec")
    def lower_exact(ctx: Context, x: str, output_size: Sizes, scales: Scales) -> str:
        return _resize(ctx, x, scales, mode="nearest", coord="tf_half_pixel_for_nn")


for _rank in (1, 2, 3):
    _nearest(_rank)


def _smooth(packet: str, mode: str, *, antialias: bool = False) -> None:
    @ATEN.lowers(f"aten.{packet}.vec")
    def lower(ctx: Context, x: str, output_size: Sizes, align_corners: bool, scales: Scales) -> str:
        return _resize(ctx, x, scales, mode=mode, coord="align_corners" if align_corners else "half_pixel", antialias=antialias)


_smooth("upsample_linear1d", "linear")
_smooth("upsample_bilinear2d", "linear")
_smooth("upsample_trilinear3d", "linear")
_smooth("upsample_bicubic2d", "cubic")
_smooth("_upsample_bilinear2d_aa", "linear", antialias=True)
_smooth("_upsample_bicubic2d_aa", "cubic", antialias=True)
