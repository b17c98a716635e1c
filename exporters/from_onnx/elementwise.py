"""Elementwise operators: arithmetic, logic, comparisons, casts, activations; and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from exporters.from_onnx.context import ONNX, Context, RefusedError
from exporters.from_onnx.reading import dtype_of
from rml_exec.types import DType

_SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "Abs": ("abs", {}),
    "Acos": ("acos", {}),
    "Acosh": ("acosh", {}),
    "Asin": ("asin", {}),
    "Asinh": ("asinh", {}),
    "Atan": ("atan", {}),
    "Atanh": ("atanh", {}),
    "BitwiseNot": ("not", {}),
    "Ceil": ("ceil", {}),
    "Cos": ("cos", {}),
    "Cosh": ("cosh", {}),
    "Erf": ("erf", {}),
    "Exp": ("exp", {}),
    "Floor": ("floor", {}),
    "HardSwish": ("hard_swish", {}),
    "IsNaN": ("is_nan", {}),
    "Log": ("log", {}),
    "Neg": ("neg", {}),
    "Not": ("not", {}),
    "Relu": ("relu", {}),
    "Round": ("round", {"mode": "half_even"}),
    "Sigmoid": ("sigmoid", {}),
    "Sign": ("sign", {"nan": "propagate"}),
    "Sin": ("sin", {}),
    "Sinh": ("sinh", {}),
    "Softplus": ("softplus", {"beta": 1.0, "threshold": None}),
    "Sqrt": ("sqrt", {}),
    "Tan": ("tan", {}),
    "Tanh": ("tanh", {}),
}
"""Operators of one operand that are one op."""

_BINARY: dict[str, tuple[str, dict[str, Any]]] = {
    "Add": ("add", {}),
    "Sub": ("sub", {}),
    "Mul": ("mul", {}),
    "And": ("and", {}),
    "Or": ("or", {}),
    "Xor": ("xor", {}),
    "BitwiseAnd": ("and", {}),
    "BitwiseOr": ("or", {}),
    "BitwiseXor": ("xor", {}),
    "Equal": ("compare", {"dir": "eq"}),
    "Less": ("compare", {"dir": "lt"}),
    "LessOrEqual": ("compare", {"dir": "le"}),
    "Greater": ("compare", {"dir": "gt"}),
    "GreaterOrEqual": ("compare", {"dir": "ge"}),
}
"""Operators of two operands that are one op."""

_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


@ONNX.lowers(*_SAME)
def _unary(ctx: Context, node: onnx.NodeProto) -> str:
    op, attrs = _SAME[node.op_type]
    return str(ctx.add(op, [ctx.need(0)], **attrs))


@ONNX.lowers(*_BINARY)
def _binary(ctx: Context, node: onnx.NodeProto) -> str:
    op, attrs = _BINARY[node.op_type]
    return str(ctx.add(op, _pair(ctx), **attrs))


def _pair(ctx: Context) -> list[str]:
    """Returns two operands that broadcast as in NumPy; before operator set 7 an attribute says where the second one's axes are."""
    a, b = ctx.need(0), ctx.need(1)
    axis = ctx.attr("axis") if ctx.opset < 7 else None
    if axis is not None:
        rank, shape = ctx.type(a).rank, ctx.type(b).shape
        b = ctx.reshape(b, (*shape, *(1,) * (rank - ctx.axis(axis, rank) - len(shape))))
    return [a, b]


@ONNX.lowers("Constant")
def _constant(ctx: Context, node: onnx.NodeProto) -> str:
    for attribute in node.attribute:
        value = ctx.attr(attribute.name)
        if attribute.name in ("value_float", "value_floats"):
            return ctx.constant(np.array(value, np.float32))
        if attribute.name in ("value_int", "value_ints"):
            return ctx.constant(np.array(value, np.int64))
        if attribute.name in ("value", "sparse_value"):
            return ctx.constant(value)
    raise RefusedError("strings are not tensors of numbers" if node.attribute else "it has no value")


@ONNX.lowers("Cast")
def _cast(ctx: Context, node: onnx.NodeProto) -> str:
    return _as_type(ctx, _dtype(ctx))


@ONNX.lowers("CastLike")
def _cast_like(ctx: Context, node: onnx.NodeProto) -> str:
    return _as_type(ctx, ctx.type(ctx.need(1)).dtype)


def _as_type(ctx: Context, dtype: DType) -> str:
    x = ctx.need(0)
    return x if ctx.type(x).dtype is dtype else str(ctx.add("cast", [x], to=dtype.value, f2i="wrap_x86"))


@ONNX.lowers("BitCast")
def _bit_cast(ctx: Context, node: onnx.NodeProto) -> str:
    """A bool is a byte of 0 or 1, and any byte that is not 0 is true."""
    x, to = ctx.need(0), _dtype(ctx)
    if ctx.type(x).dtype is DType.BOOL:
        x = ctx.cast(x, DType.U8)
    bits = DType.U8 if to is DType.BOOL else to
    if ctx.type(x).dtype is not bits:
        x = ctx.step("bitcast", [x], to=bits.value)
    return ctx.cast(x, to)


def _dtype(ctx: Context) -> DType:
    return dtype_of(ctx.attr("to", 0))


@ONNX.lowers("Div")
def _div(ctx: Context, node: onnx.NodeProto) -> str:
    a, b = _pair(ctx)
    return str(ctx.add("div", [a, b], rounding="true" if ctx.type(a).dtype.is_float else "trunc"))


@ONNX.lowers("Mod")
def _mod(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("rem", [ctx.need(0), ctx.need(1)], sign="dividend" if ctx.attr("fmod", 0) else "divisor"))


@ONNX.lowers("BitShift")
def _bit_shift(ctx: Context, node: onnx.NodeProto) -> str:
    """Of signed integers the sign moves in from the left."""
    x, direction = ctx.need(0), str(ctx.attr("direction", "")).lower()
    signed = ctx.type(x).dtype in (DType.I8, DType.I16, DType.I32, DType.I64)
    return str(ctx.add("shift", [x, ctx.need(1)], dir=direction, arithmetic=signed and direction == "right"))


@ONNX.lowers("Pow")
def _pow(ctx: Context, node: onnx.NodeProto) -> str:
    """The result has the base's type. Usual exponents become multiplications or a root, as in ONNX Runtime: faster, and the same rounding."""
    base, exponent = _pair(ctx)
    dtype, other = ctx.type(base).dtype, ctx.type(exponent).dtype
    number = ctx.known(exponent)
    if number is not None and number.size == 1 and number.ndim <= ctx.type(base).rank:
        match float(number.item()):
            case 1.0:
                return base
            case 2.0:
                return str(ctx.add("mul", [base, base]))
            case 3.0:
                return str(ctx.add("mul", [ctx.step("mul", [base, base]), base]))
            case 0.5 if dtype.is_float:
                return str(ctx.add("sqrt", [base]))
            case -0.5 if dtype.is_float:
                return str(ctx.add("rsqrt", [base]))
            case -1.0 if dtype.is_float:
                return str(ctx.add("div", [ctx.scalar(1, dtype), base], rounding="true"))
    if dtype.is_float or not other.is_float:
        return str(ctx.add("pow", [base, ctx.cast(exponent, dtype)]))
    return ctx.cast(ctx.step("pow", [ctx.cast(base, DType.F64), ctx.cast(exponent, DType.F64)]), dtype)


@ONNX.lowers("Reciprocal")
def _reciprocal(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    return str(ctx.add("div", [ctx.scalar(1, ctx.type(x).dtype), x], rounding="true"))


@ONNX.lowers("Where")
def _where(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("select", [ctx.need(0), ctx.need(1), ctx.need(2)]))


@ONNX.lowers("Max", "Min", "Sum")
def _variadic(ctx: Context, node: onnx.NodeProto) -> str:
    return _chain(ctx, {"Max": "max", "Min": "min", "Sum": "add"}[node.op_type])


@ONNX.lowers("Mean")
def _mean(ctx: Context, node: onnx.NodeProto) -> str:
    count = len(ctx.inputs)
    if count == 1:
        return ctx.need(0)
    total = _chain(ctx, "add", last=False)
    return str(ctx.add("div", [total, ctx.scalar(count, ctx.type(total).dtype)], rounding="true"))


def _chain(ctx: Context, op: str, *, last: bool = True) -> str:
    """Returns all inputs combined, one after the other."""
    result = ctx.need(0)
    for index in range(1, len(ctx.inputs)):
        add = ctx.add if last and index == len(ctx.inputs) - 1 else ctx.step
        result = add(op, [result, ctx.need(index)])
    return result


@ONNX.lowers("Clip")
def _clip(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    dtype = ctx.type(x).dtype
    if ctx.opset < 11:
        low, high = ((None if bound is None else ctx.scalar(bound, dtype)) for bound in (ctx.attr("min"), ctx.attr("max")))
    else:
        low, high = ctx.input(1), ctx.input(2)
    if low is None and high is None:
        return x
    numbers = [None if bound is None else _exact_float(ctx, bound) for bound in (low, high)]
    if all(bound is None or number is not None for bound, number in zip((low, high), numbers, strict=True)):
        return str(ctx.add("clamp", [x], lo=numbers[0], hi=numbers[1]))
    if low is not None:
        x = (ctx.step if high is not None else ctx.add)("max", [x, low])
    return x if high is None else str(ctx.add("min", [x, high]))


def _exact_float(ctx: Context, bound: str) -> float | None:
    """Returns a known bound as a Python float, None where it is not known or no float holds it."""
    array = ctx.known(bound)
    if array is None or array.size != 1 or (array.dtype.kind in "iu" and abs(int(array.item())) > 2**53):
        return None
    number = float(array.item())
    return None if np.isnan(number) else number


@ONNX.lowers("IsInf")
def _is_inf(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    dtype = ctx.type(x).dtype
    match bool(ctx.attr("detect_negative", 1)), bool(ctx.attr("detect_positive", 1)):
        case True, True:
            return str(ctx.add("is_inf", [x]))
        case False, False:
            return str(ctx.add("compare", [x, x], dir="lt"))
        case negative, _:
            return str(ctx.add("compare", [x, ctx.scalar(-np.inf if negative else np.inf, dtype)], dir="eq"))


@ONNX.lowers("LeakyRelu")
def _leaky_relu(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("leaky_relu", [ctx.need(0)], alpha=ctx.attr("alpha", 0.01)))


@ONNX.lowers("PRelu")
def _prelu(ctx: Context, node: onnx.NodeProto) -> str:
    x, slope = ctx.need(0), ctx.need(1)
    type_ = ctx.type(x)
    if ctx.opset < 7 and ctx.type(slope).size > 1:  # one per channel
        slope = ctx.reshape(slope, (ctx.type(slope).size, *(1,) * (type_.rank - 2)))
    alpha = ctx.known(slope)
    if alpha is not None and alpha.size == 1 and alpha.ndim <= type_.rank and type_.dtype.is_float:
        return str(ctx.add("leaky_relu", [x], alpha=float(alpha.item())))
    below = ctx.step("compare", [x, ctx.scalar(0, type_.dtype)], dir="lt")
    return str(ctx.add("select", [below, ctx.step("mul", [x, slope]), x]))


@ONNX.lowers("Elu", "Celu", "Selu")
def _elu(ctx: Context, node: onnx.NodeProto) -> str:
    scale, input_scale = 1.0, 1.0
    alpha = ctx.attr("alpha", _SELU_ALPHA if node.op_type == "Selu" else 1.0)
    if node.op_type == "Selu":
        scale = ctx.attr("gamma", _SELU_GAMMA)
    elif node.op_type == "Celu":
        input_scale = 1.0 / alpha
    return str(ctx.add("elu", [ctx.need(0)], alpha=alpha, scale=scale, input_scale=input_scale))


@ONNX.lowers("HardSigmoid")
def _hard_sigmoid(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("hard_sigmoid", [ctx.need(0)], alpha=ctx.attr("alpha", 0.2), beta=ctx.attr("beta", 0.5)))


@ONNX.lowers("Softsign")
def _softsign(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    below = ctx.step("add", [ctx.step("abs", [x]), ctx.scalar(1, ctx.type(x).dtype)])
    return str(ctx.add("div", [x, below], rounding="true"))


@ONNX.lowers("Mish")
def _mish(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    return str(ctx.add("mul", [x, ctx.step("tanh", [ctx.step("softplus", [x], beta=1.0, threshold=None)])]))


@ONNX.lowers("Gelu")
def _gelu(ctx: Context, node: onnx.NodeProto) -> str:
    return str(ctx.add("gelu", [ctx.need(0)], approximate=ctx.attr("approximate", "none")))


@ONNX.lowers("Swish")
def _swish(ctx: Context, node: onnx.NodeProto) -> str:
    x, alpha = ctx.need(0), ctx.attr("alpha", 1.0)
    if alpha == 1.0:
        return str(ctx.add("silu", [x]))
    inner = ctx.step("mul", [x, ctx.scalar(alpha, ctx.type(x).dtype)])
    return str(ctx.add("mul", [x, ctx.step("sigmoid", [inner])]))


@ONNX.lowers("ThresholdedRelu")
def _thresholded_relu(ctx: Context, node: onnx.NodeProto) -> str:
    x = ctx.need(0)
    dtype = ctx.type(x).dtype
    above = ctx.step("compare", [x, ctx.scalar(ctx.attr("alpha", 1.0), dtype)], dir="gt")
    return str(ctx.add("select", [above, x, ctx.scalar(0, dtype)]))


@ONNX.lowers("Shrink")
def _shrink(ctx: Context, node: onnx.NodeProto) -> str:
    """Integers are shrunk in float64, for the two attributes may be fractions."""
    given = ctx.type(ctx.need(0)).dtype
    dtype = given if given.is_float else DType.F64
    x = ctx.cast(ctx.need(0), dtype)
    bias, edge = ctx.attr("bias", 0.0), ctx.attr("lambd", 0.5)
    above = ctx.step("compare", [x, ctx.scalar(edge, dtype)], dir="gt")
    below = ctx.step("compare", [x, ctx.scalar(-edge, dtype)], dir="lt")
    up, down = ctx.step("add", [x, ctx.scalar(bias, dtype)]), ctx.step("sub", [x, ctx.scalar(bias, dtype)])
    lower = ctx.step("select", [below, up, ctx.scalar(0, dtype)])
    result = (ctx.add if given is dtype else ctx.step)("select", [above, down, lower])
    return ctx.cast(result, given)
