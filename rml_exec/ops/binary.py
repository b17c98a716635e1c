"""Elementwise ops of two and three operands; all broadcast as NumPy does and none promotes types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rml_exec.ops.registry import Attr, OpDef, Rule, Tolerance, case, count, define
from rml_exec.ops.rules import BITS, FLOATS, INTEGERS, NO_BF16, NUMBERS, broadcast, dtype_in, same_dtype
from rml_exec.types import DType, TensorType

_DIRECTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("scalar", (), ()),
    ("scalar-left", (), (5, 3)),
    ("scalar-right", (5, 3), ()),
    ("empty", (0, 4), (1, 4)),
    ("row", (7, 17), (17,)),
    ("column", (7, 17), (7, 1)),
    ("outer", (7, 1), (1, 17)),
    ("channels", (2, 3, 5, 7), (3, 1, 1)),
    ("tail", (1027,), (1027,)),
)


def _broadcasting(allowed: Sequence[DType]) -> Callable[..., TensorType]:
    def infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
        dtype = same_dtype(a, b)
        dtype_in(dtype, allowed)
        return TensorType(dtype, broadcast(a.shape, b.shape))

    return infer


def _binary(
    name: str,
    reference: Callable[..., np.ndarray],
    doc: str,
    *,
    dtypes: Sequence[DType] = NUMBERS,
    attrs: Mapping[str, Attr] | None = None,
    example: Mapping[str, Any] | None = None,
    cases: tuple[Any, ...] = (),
    flops: int = 1,
    **fields: Any,
) -> OpDef:
    """Adds an elementwise op of two operands of one element type, which is also the result's unless ``infer`` says otherwise."""
    base = DType.F32 if DType.F32 in dtypes else DType.BOOL if DType.BOOL in dtypes else DType.I32
    made = [case(id, TensorType(base, a), TensorType(base, b), **(example or {})) for id, a, b in _SHAPES]
    if base is DType.F32:
        made += [case(str(d), TensorType(d, (3, 5)), TensorType(d, (5,)), **(example or {})) for d in (DType.F64, DType.F16)]
    fields.setdefault("infer", _broadcasting(dtypes))
    return define(
        name=name,
        inputs=("a", "b"),
        attrs=attrs or {},
        reference=reference,
        elementwise=True,
        inplace=((0, 0), (0, 1)),
        flops=lambda types, outputs, attrs: flops * count(outputs),
        cases=(*made, *cases),
        limits=NO_BF16,
        doc=doc,
        **fields,
    )


def _integers(*values: Sequence[int], dtype: type = np.int32) -> tuple[np.ndarray, ...]:
    return tuple(np.array(value, dtype) for value in values)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if b.dtype.kind == "i" and np.any(b < 0):
        raise Rule("integer exponents must not be negative", b[b < 0].flat[0], "cast to a float type first")
    shape = np.broadcast_shapes(a.shape, b.shape)
    # Where an exponent of 0.5 repeats, NumPy takes the square root, which makes pow(-inf, 0.5) NaN and pow(-0.0, 0.5) -0.0.
    return np.power(a, np.array(np.broadcast_to(b, shape), order="C", ndmin=1)).reshape(shape)


def _refuse_zero(b: np.ndarray) -> None:
    if b.dtype.kind in "iu" and not np.all(b):
        raise Rule("an integer divisor must not be 0", 0)


def _div(a: np.ndarray, b: np.ndarray, *, rounding: str) -> np.ndarray:
    _refuse_zero(b)
    if rounding == "true":
        return np.true_divide(a, b)
    if rounding == "floor":
        return np.floor_divide(a, b)
    if a.dtype.kind == "f":
        return np.trunc(np.true_divide(a, b))
    down = np.floor_divide(a, b)
    # Toward zero is one up from the floor where the quotient is negative and not whole.
    return down + ((down < 0) & (down * b != a)).astype(a.dtype)


def _infer_div(a: TensorType, b: TensorType, *, rounding: str) -> TensorType:
    dtype = same_dtype(a, b)
    dtype_in(dtype, NUMBERS)
    if rounding == "true" and dtype.is_integer:
        raise Rule("integers need rounding floor or trunc", rounding, "cast to a float type for a true quotient")
    return TensorType(dtype, broadcast(a.shape, b.shape))


def _rem(a: np.ndarray, b: np.ndarray, *, sign: str) -> np.ndarray:
    _refuse_zero(b)
    return np.remainder(a, b) if sign == "divisor" else np.fmod(a, b)


def _shift(a: np.ndarray, b: np.ndarray, *, dir: str, arithmetic: bool) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    by = np.where(inside, b, 0).astype(b.dtype)
    if dir == "left":
        return np.where(inside, np.left_shift(a, by), a.dtype.type(0))
    if arithmetic:
        return np.right_shift(a, np.where(inside, by, bits - 1).astype(b.dtype))
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    moved = np.right_shift(a.view(unsigned), by.view(unsigned)).view(a.dtype)
    return np.where(inside, moved, a.dtype.type(0))


def _infer_shift(a: TensorType, b: TensorType, *, dir: str, arithmetic: bool) -> TensorType:
    dtype = same_dtype(a, b)
    dtype_in(dtype, INTEGERS)
    if arithmetic and (dir == "left" or dtype.value.startswith("u")):
        raise Rule("arithmetic is for right shifts of signed integers only", f"dir {dir} of {dtype}")
    return TensorType(dtype, broadcast(a.shape, b.shape))


def _infer_compare(a: TensorType, b: TensorType, *, dir: str) -> TensorType:
    dtype_in(same_dtype(a, b), (*NUMBERS, DType.BOOL))
    return TensorType(DType.BOOL, broadcast(a.shape, b.shape))


def _infer_select(c: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if c.dtype is not DType.BOOL:
        raise Rule("c must be bool", c.dtype)
    return TensorType(same_dtype(a, b), broadcast(c.shape, a.shape, b.shape))


_INT = _integers([7, -7, 7, -7, 2147483647, -2147483648], [2, 2, -2, -2, 2, 3])
_INT_CASES = (case("i32", *_INT), case("wrap-u8", *_integers([250, 3], [10, 5], dtype=np.uint8)))
_DIVISIONS = (*_integers([7, -7, 7, -7, 6, -2147483648, 0], [3, 3, -3, -3, -3, -1, 5]),)
_UNSIGNED = _integers([250, 7], [7, 250], dtype=np.uint8)
_UNORDERED = (np.array([np.nan, 1, 2, -0.0, 3], np.float32), np.array([np.nan, 2, 2, 0.0, np.nan], np.float32))
_SIGNED = (np.array([7.5, -7.5, 7.5, -7.5, 1.0, 5.0], np.float32), np.array([2, 2, -2, -2, 0.0, np.inf], np.float32))
_ZEROS = (np.array([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, np.inf], np.float32), np.array([0.0, 0.0, -0.0, -0.0, 0.0, -2.0, -np.inf], np.float32))
_SHIFTS = {
    dtype: (np.array(values, dtype_), np.array([1, 0, 3, 7, width, -1 if dtype[0] == "i" else width + 1, width - 1], dtype_))
    for dtype, dtype_, width, values in (
        ("i8", np.int8, 8, [-128, 127, -5, -128, -1, -7, 64]),
        ("i32", np.int32, 32, [-(2**31), 2**31 - 1, -5, 1000, -1, -7, 2**30]),
        ("i64", np.int64, 64, [-(2**63), 2**63 - 1, -5, 1000, -1, -7, 2**62]),
        ("u8", np.uint8, 8, [255, 127, 5, 128, 1, 7, 64]),
        ("u32", np.uint32, 32, [2**32 - 1, 2**31, 5, 1000, 1, 7, 2**30]),
    )
}

_binary("add", np.add, "y = a + b. Integers wrap.", cases=_INT_CASES)
_binary("sub", np.subtract, "y = a - b. Integers wrap.", cases=_INT_CASES)
_binary("mul", np.multiply, "y = a * b. Integers wrap.", cases=_INT_CASES)
_binary(
    "pow",
    _pow,
    "y = a to the power b. Floats as C's pow: NaN for a negative a and a b that is not whole, 1 for b = 0 and for a = 1, NaN operands too. "
    "Integers wrap; a negative integer exponent is an error of the run.",
    cases=(
        case("i32", *_integers([2, -3, 0, 7], [10, 3, 0, 30])),
        case("whole", (17,), np.array([2], np.float32)),
        *(case(f"root-{size}", np.array([-np.inf, -0.0, 0.0, -1.0, 4.0], np.float32)[:size], np.array(0.5, np.float32)) for size in (1, 5)),
    ),
    flops=20,
    tolerance=Tolerance(rtol=4e-6, atol_rms=1e-6),
    domain=(0.1, 4.0),
)
_binary(
    "max",
    np.maximum,
    "y = the larger of a and b; NaN if either is NaN. Which zero max(0.0, -0.0) gives is not specified.",
    cases=_INT_CASES,
)
_binary(
    "min",
    np.minimum,
    "y = the smaller of a and b; NaN if either is NaN. Which zero min(0.0, -0.0) gives is not specified.",
    cases=_INT_CASES,
)
_binary("and", np.bitwise_and, "y = a and b: logical on bool, bitwise on integers.", dtypes=BITS, cases=(case("i32", *_INT),))
_binary("or", np.bitwise_or, "y = a or b: logical on bool, bitwise on integers.", dtypes=BITS, cases=(case("i32", *_INT),))
_binary("xor", np.bitwise_xor, "y = a exclusive-or b: logical on bool, bitwise on integers.", dtypes=BITS, cases=(case("i32", *_INT),))
_binary(
    "div",
    _div,
    "y = a / b. rounding true: the quotient (floats only); floor: toward minus infinity, for floats as Python's // (1.0 // "
    "0.1 is 9.0, and not floor(10.0)); trunc: toward zero, for floats trunc of the rounded quotient (1.0 by 0.1 in f32 is "
    "10). Floats divide by zero as IEEE says; an integer divisor of 0 is an error of the run (torch raises, jax gives -1). "
    "The lowest integer divided by -1 wraps to itself.",
    infer=_infer_div,
    attrs={"rounding": Attr("str", ("true", "floor", "trunc"))},
    example={"rounding": "true"},
    cases=tuple(
        case(f"{name}-{rounding}", *operands, rounding=rounding)
        for rounding in ("floor", "trunc")
        for name, operands in (("i32", _DIVISIONS), ("u8", _UNSIGNED), ("f32-signs", _SIGNED))
    ),
    domain=(0.25, 4.0),
)
_binary(
    "rem",
    _rem,
    "y = the remainder of a / b with the sign of the divisor (divisor: a - floor(a/b)*b, torch.remainder, jnp and tf "
    "floormod) or of the dividend (dividend: C's fmod, lax.rem, torch.fmod). Float x rem 0 is NaN; an integer divisor of 0 "
    "is an error of the run (jax gives a).",
    attrs={"sign": Attr("str", ("divisor", "dividend"))},
    example={"sign": "divisor"},
    cases=tuple(
        case(f"{name}-{sign}", *operands, sign=sign)
        for sign in ("divisor", "dividend")
        for name, operands in (
            ("i32", _DIVISIONS),
            ("u8", _UNSIGNED),
            ("f32-whole", (np.array([7, -7, 0], np.float32), np.array([3, 3, -3], np.float32))),
        )
    ),
    domain=(0.25, 4.0),
    flops=4,
)
_binary(
    "atan2",
    np.arctan2,
    "y = the angle of the point (b, a), a across and b along: atan(a / b) in the right quadrant, from -pi to pi. Zeros count by their "
    "sign, as in C: atan2(0.0, -0.0) is pi.",
    dtypes=FLOATS,
    cases=(case("signed-zeros", *_ZEROS),),
    flops=20,
    tolerance=Tolerance(rtol=1e-6, atol_rms=1e-6),
)
_binary(
    "shift",
    _shift,
    "y = the bits of a moved by b places, to the left or to the right. What moves in is 0; with arithmetic (signed integers to the right "
    "only) the sign. A b that is negative or at least the width moves all bits out, as in XLA.",
    infer=_infer_shift,
    dtypes=INTEGERS,
    attrs={"dir": Attr("str", ("left", "right")), "arithmetic": Attr("bool")},
    example={"dir": "left", "arithmetic": False},
    cases=(
        *(case(f"{d}-{dtype}", *operands, dir=d, arithmetic=False) for d in ("left", "right") for dtype, operands in _SHIFTS.items()),
        *(case(f"arithmetic-{dtype}", *_SHIFTS[dtype], dir="right", arithmetic=True) for dtype in ("i8", "i32", "i64")),
    ),
)
_binary(
    "compare",
    lambda a, b, *, dir: _DIRECTIONS[dir](a, b),
    "y = a dir b as bool: eq, ne, lt, le, gt, ge. Any comparison with NaN is false but ne, which is true; -0.0 equals 0.0; "
    "false is below true.",
    infer=_infer_compare,
    attrs={"dir": Attr("str", tuple(_DIRECTIONS))},
    example={"dir": "lt"},
    cases=(
        *(case(f"{dir}-nan", *_UNORDERED, dir=dir) for dir in _DIRECTIONS),
        case("i32", *_INT, dir="ge"),
        case("bool", TensorType(DType.BOOL, (3, 5)), TensorType(DType.BOOL, (5,)), dir="eq"),
    ),
)

_FLAGS = TensorType(DType.BOOL, (7, 17))
define(
    name="select",
    inputs=("c", "a", "b"),
    infer=_infer_select,
    reference=lambda c, a, b: np.where(c, a, b),
    elementwise=True,
    inplace=((0, 1), (0, 2)),
    flops=lambda types, outputs, attrs: count(outputs),
    cases=(
        case("scalar", TensorType(DType.BOOL, ()), (), ()),
        case("empty", TensorType(DType.BOOL, (0, 4)), (1, 4), ()),
        case("matrix", _FLAGS, (7, 17), (7, 17)),
        case("rows", TensorType(DType.BOOL, (7, 1)), (17,), (7, 17)),
        case("tail", TensorType(DType.BOOL, (1027,)), (1027,), ()),
        case("i64", _FLAGS, TensorType(DType.I64, (17,)), TensorType(DType.I64, ())),
        case("bool", _FLAGS, _FLAGS, _FLAGS),
        case("bf16", _FLAGS, TensorType(DType.BF16, (7, 17)), TensorType(DType.BF16, (17,))),
    ),
    doc="y = a where c is true, b elsewhere; all three broadcast. (jax's select_n takes its cases the other way round.)",
)
