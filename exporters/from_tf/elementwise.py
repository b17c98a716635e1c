"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from exporters.from_tf.table import TABLE, Context, Known, RefusalError, Value
from rml_exec.types import DType

__all__ = ["cast_to", "offsets"]

_ALIKE = (
    "abs neg floor ceil exp expm1 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc relu"
)
_RENAMED = {"IsNan": "is_nan", "IsInf": "is_inf", "LogicalNot": "not", "Invert": "not"}
_BINARY = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Maximum": "max",
    "Minimum": "min",
    "Pow": "pow",
    "LogicalAnd": "and",
    "LogicalOr": "or",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
    "Atan2": "atan2",
}
_COMPARE = {"Equal": "eq", "NotEqual": "ne", "Less": "lt", "LessEqual": "le", "Greater": "gt", "GreaterEqual": "ge"}
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _same(op: str, **attrs: str) -> Callable[..., Value]:
    """Returns the lowering of an operation that is one node with these attributes."""

    def lower(ctx: Context, *operands: Value) -> Value:
        return ctx.add(op, *operands, **attrs)

    return lower


for _op in _ALIKE.split():
    TABLE.lowers(_op.capitalize())(_same(_op))
for _name, _op in {**_RENAMED, **_BINARY}.items():
    TABLE.lowers(_name)(_same(_op))
for _name, _dir in _COMPARE.items():
    TABLE.lowers(_name)(_same("compare", dir=_dir))
TABLE.lowers("Sign")(_same("sign", nan="propagate"))
TABLE.lowers("RealDiv")(_same("div", rounding="true"))
TABLE.lowers("TruncateDiv")(_same("div", rounding="trunc"))
TABLE.lowers("FloorMod")(_same("rem", sign="divisor"))
TABLE.lowers("TruncateMod", "Mod")(_same("rem", sign="dividend"))


@TABLE.lowers("Div")
def _div(ctx: Context, x: Value, y: Value) -> Value:
    """The raw operation truncates integers; Python's ``/`` casts them to float64 first and never gets here."""
    return ctx.add("div", x, y, rounding="true" if ctx.type(x).dtype.is_float else "trunc")


@TABLE.lowers("FloorDiv")
def _floor_div(ctx: Context, x: Value, y: Value) -> Value:
    """Floats: the floor of the rounded quotient, so 1.0 // 0.1 is 10.0 where Python and ``div`` say 9.0."""
    if ctx.type(x).dtype.is_float:
        return ctx.add("floor", ctx.add("div", x, y, rounding="true"))
    return ctx.add("div", x, y, rounding="floor")


@TABLE.lowers("Round", "Rint")
def _round(ctx: Context, x: Value) -> Value:
    return ctx.add("round", x, mode="half_even") if ctx.type(x).dtype.is_float else x


@TABLE.lowers("IsFinite")
def _is_finite(ctx: Context, x: Value) -> Value:
    return ctx.add("not", ctx.add("or", ctx.add("is_nan", x), ctx.add("is_inf", x)))


@TABLE.lowers("Reciprocal", "Inv")
def _reciprocal(ctx: Context, x: Value) -> Value:
    return ctx.add("div", ctx.scalar(1, x), x, rounding="true" if ctx.type(x).dtype.is_float else "trunc")


@TABLE.lowers("Square")
def _square(ctx: Context, x: Value) -> Value:
    return ctx.add("mul", x, x)


@TABLE.lowers("SquaredDifference")
def _squared_difference(ctx: Context, x: Value, y: Value) -> Value:
    difference = ctx.add("sub", x, y)
    return ctx.add("mul", difference, difference)


@TABLE.lowers("AddN", "AccumulateNV2")
def _add_n(ctx: Context, *operands: Value) -> Value:
    return reduce(lambda total, operand: ctx.add("add", total, operand), operands)


def _or_zero(ctx: Context, decides: Value, result: Value) -> Value:
    """Returns 0 where ``decides`` is 0, ``result`` elsewhere."""
    zero = ctx.scalar(0, decides)
    return ctx.add("select", ctx.add("compare", decides, zero, dir="eq"), zero, result)


@TABLE.lowers("DivNoNan")
def _div_no_nan(ctx: Context, x: Value, y: Value) -> Value:
    return _or_zero(ctx, y, ctx.add("div", x, y, rounding="true"))


@TABLE.lowers("MulNoNan")
def _mul_no_nan(ctx: Context, x: Value, y: Value) -> Value:
    return _or_zero(ctx, y, ctx.add("mul", x, y))


@TABLE.lowers("Xdivy")
def _xdivy(ctx: Context, x: Value, y: Value) -> Value:
    return _or_zero(ctx, x, ctx.add("div", x, y, rounding="true"))


@TABLE.lowers("Xlogy")
def _xlogy(ctx: Context, x: Value, y: Value) -> Value:
    return _or_zero(ctx, x, ctx.add("mul", x, ctx.add("log", y)))


@TABLE.lowers("Xlog1py")
def _xlog1py(ctx: Context, x: Value, y: Value) -> Value:
    return _or_zero(ctx, x, ctx.add("mul", x, ctx.add("log1p", y)))


@TABLE.lowers("ClipByValue")
def _clip(ctx: Context, x: Value, low: Value, high: Value) -> Value:
    return ctx.add("max", ctx.add("min", x, high), low)  # the order matters where low > high: TensorFlow gives low


@TABLE.lowers("Relu6")
def _relu6(ctx: Context, x: Value) -> Value:
    return ctx.add("clamp", x, lo=0.0, hi=6.0)


@TABLE.lowers("LeakyRelu")
def _leaky_relu(ctx: Context, x: Value) -> Value:
    return ctx.add("leaky_relu", x, alpha=ctx.attr("alpha"))


@TABLE.lowers("Elu")
def _elu(ctx: Context, x: Value) -> Value:
    return ctx.add("elu", x, alpha=1.0, scale=1.0, input_scale=1.0)


@TABLE.lowers("Selu")
def _selu(ctx: Context, x: Value) -> Value:
    return ctx.add("elu", x, alpha=_SELU_ALPHA, scale=_SELU_SCALE, input_scale=1.0)


@TABLE.lowers("Softplus")
def _softplus(ctx: Context, x: Value) -> Value:
    return ctx.add("softplus", x, beta=1.0, threshold=None)


@TABLE.lowers("Softsign")
def _softsign(ctx: Context, x: Value) -> Value:
    return ctx.add("div", x, ctx.add("add", ctx.add("abs", x), ctx.scalar(1, x)), rounding="true")


@TABLE.lowers("L2Loss")
def _l2_loss(ctx: Context, x: Value) -> Value:
    axes = tuple(range(len(ctx.shape(x))))
    total = ctx.add("reduce", ctx.add("mul", x, x), kind="sum", axes=axes, keepdims=False, nan="propagate", empty="identity")
    return ctx.add("mul", total, ctx.scalar(0.5, x))


@TABLE.lowers("Cast")
def _cast(ctx: Context, x: Value) -> Value:
    """TensorFlow's kernels convert out-of-range floats as x86 does, XLA saturates."""
    if ctx.attr("Truncate"):
        raise RefusalError("a cast that truncates instead of rounding is not supported")
    return cast_to(ctx, x, ctx.output_dtype())


@TABLE.lowers("Bitcast")
def _bitcast(ctx: Context, x: Value) -> Value:
    wanted = ctx.output_dtype()
    if wanted.numpy.itemsize != ctx.type(x).dtype.numpy.itemsize:
        raise RefusalError("a bitcast between types of different width is not supported")
    return ctx.add("bitcast", x, to=wanted)


@TABLE.lowers("LeftShift", "RightShift")
def _shift(ctx: Context, x: Value, places: Value) -> Value:
    """A shift is at least 0 and at most the width less 1; to the right it keeps the sign."""
    dtype = ctx.type(x).dtype
    within = ctx.add("clamp", places, lo=0.0, hi=float(8 * dtype.numpy.itemsize - 1))
    right = ctx.op.type == "RightShift"
    return ctx.add("shift", x, within, dir="right" if right else "left", arithmetic=right and dtype.numpy.kind == "i")


def cast_to(ctx: Context, x: Value, dtype: DType) -> Value:
    """Returns ``x`` as another element type."""
    if ctx.type(x).dtype is dtype:
        return x
    return ctx.add("cast", x, to=dtype, f2i="saturate" if ctx.xla else "wrap_x86")


@TABLE.lowers("SelectV2")
def _select(ctx: Context, condition: Value, x: Value, y: Value) -> Value:
    return ctx.add("select", condition, x, y)


@TABLE.lowers("Select")
def _select_v1(ctx: Context, condition: Value, x: Value, y: Value) -> Value:
    """A condition of rank 1 picks along the first axis."""
    rank, shape = len(ctx.shape(x)), ctx.shape(condition)
    if len(shape) == 1 and rank > 1:
        condition = ctx.reshape(condition, shape + (1,) * (rank - 1))
    return ctx.add("select", condition, x, y)


@TABLE.lowers("OneHot")
def _one_hot(ctx: Context, indices: Value, depth: Value, on: Value, off: Value) -> Value:
    """An index out of range gives a row of ``off``, as it equals no position."""
    (size,) = ctx.ints(depth, "the depth")
    shape = list(ctx.shape(indices))
    axis = ctx.attr("axis")
    axis = len(shape) if axis == -1 else axis
    positions = np.arange(size, dtype=ctx.type(indices).dtype.numpy).reshape([-1] + [1] * (len(shape) - axis))
    hit = ctx.add("compare", ctx.reshape(indices, (*shape[:axis], 1, *shape[axis:])), ctx.constant(positions), dir="eq")
    return ctx.add("select", hit, on, off)


@TABLE.lowers("MatrixBandPart")
def _matrix_band_part(ctx: Context, x: Value, lower: Value, upper: Value) -> Value:
    """Keeps ``lower`` diagonals below and ``upper`` above the main one; negative keeps all."""
    (below,), (above,) = ctx.ints(lower, "num_lower"), ctx.ints(upper, "num_upper")
    distance = offsets(ctx, *ctx.shape(x)[-2:])
    if isinstance(distance, Known):
        inside = ((below < 0) | (-distance.array <= below)) & ((above < 0) | (distance.array <= above))
        return ctx.add("select", ctx.constant(inside), x, ctx.scalar(0, x))
    for bound, dir in ((-below, "ge"), (above, "le")):
        if (below if dir == "ge" else above) >= 0:
            x = ctx.add("select", ctx.add("compare", distance, ctx.constant(np.asarray(bound, np.int32)), dir=dir), x, ctx.scalar(0, x))
    return x


def offsets(ctx: Context, rows: int, columns: int) -> Value:
    """Returns how far right of the main diagonal each element of a matrix is; nodes in a symbolic graph, else a constant."""
    row, column = np.arange(rows, dtype=np.int32)[:, None], np.arange(columns, dtype=np.int32)
    return ctx.add("sub", ctx.constant(column), ctx.constant(row)) if ctx.symbolic else ctx.constant(column - row)
