"""Type inference refuses what an op does not allow, in one sentence that names the node, the rule and the values."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.errors import TypeInferenceError
from rml_exec.ops import Attr, all_ops, get_op
from rml_exec.ops.rules import broadcast, window_counts
from rml_exec.types import DType, TensorType
from tests.ops.operands import operands_of, types_of

OP_NAMES = """
neg abs floor ceil exp expm1 log2 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc
is_nan is_inf not sign round clamp relu leaky_relu elu silu gelu softplus hard_sigmoid hard_swish cast bitcast
add sub mul pow max min and or xor div rem atan2 shift compare select reshape transpose broadcast slice reverse concat pad iota
take take_along_axis gather_nd dynamic_slice scatter_along_axis scatter_nd dynamic_update_slice reduce argreduce sort topk cumulative
matmul linear conv2d conv3d conv2d_transpose max_pool avg_pool resize batch_norm layer_norm rms_norm group_norm softmax log_softmax
attention lstm gru nms call cond while scan fused epilogue
""".split()  # noqa: SIM905  (a name per line would be longer than the rest of the test)
WRONG = {
    "int": (1.5, True, "1", None),
    "float": ("1", True, (1.0,)),
    "bool": (0, "true", None),
    "str": ("nonsense", 1, None),
    "ints": (1, [1], (1.5,), (True,), None),
    "floats": (1.5, [1.5], ("1",), (True,), None),
    "pads": ((1, 1), ((1,),), [[1, 1]], None),
    "dtype": ("float32", 32, None),
    "strs": ("a", (1,), None),
    "function": (("f",), 1, None),
    "functions": ("f", (1,), None),
    "body": ([], "add", None),
}
ATTRIBUTES = [(op, name, attr) for op in all_ops() for name, attr in op.attrs.items()]


def test_all_ops_of_the_set_are_there():
    assert [op.name for op in all_ops()] == OP_NAMES
    assert [op.name for op in all_ops() if op.internal] == ["fused", "epilogue"]


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_unknown_attribute_is_refused(op):
    case = op.cases[0]
    with pytest.raises(TypeInferenceError, match=f"^{op.name} 'n7': has no attribute 'colour'.*Hint: {op.name} has"):
        op.infer_types(f"{op.name} 'n7'", types_of(case, operands_of(op, case)), {**case.attrs, "colour": 1})


@pytest.mark.parametrize(("op", "name", "attr"), ATTRIBUTES, ids=[f"{op.name}-{name}" for op, name, _ in ATTRIBUTES])
def test_missing_and_ill_typed_attributes_are_refused(op, name, attr: Attr):
    case = op.cases[0]
    types = types_of(case, operands_of(op, case))
    with pytest.raises(TypeInferenceError, match=f"^{op.name} 'n7': attribute '{name}' must be given"):
        op.infer_types(f"{op.name} 'n7'", types, {key: value for key, value in case.attrs.items() if key != name})
    for value in WRONG[attr.kind]:
        if value is None and attr.optional:
            continue
        with pytest.raises(TypeInferenceError, match=f"^{op.name} 'n7': attribute '{name}' must be "):
            op.infer_types(f"{op.name} 'n7'", types, {**case.attrs, name: value})


@pytest.mark.parametrize("op", [op for op in all_ops() if not op.variadic], ids=lambda op: op.name)
def test_number_and_presence_of_operands(op):
    case = op.cases[0]
    types = types_of(case, operands_of(op, case))
    with pytest.raises(TypeInferenceError, match=f"^{op.name} 'n7': takes operands"):
        op.infer_types(f"{op.name} 'n7'", [*types, TensorType(DType.F32, (1,))], case.attrs)
    for index, name in enumerate(op.inputs):
        if not op.is_optional(index):
            with pytest.raises(TypeInferenceError, match=f"operand {name} must be present"):
                op.infer_types(f"{op.name} 'n7'", [*types[:index], None, *types[index + 1 :]], case.attrs)


@pytest.mark.parametrize("op", [op for op in all_ops() if op.limits], ids=lambda op: op.name)
def test_bf16_is_refused_with_its_reason(op):
    case = op.cases[0]
    types = [type_ and TensorType(DType.BF16, type_.shape) for type_ in types_of(case, operands_of(op, case))]
    with pytest.raises(TypeInferenceError, match="bf16 is not supported: NumPy has no bfloat16"):
        op.infer_types(op.name, types, case.attrs)


CONV = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1), "groups": 1, "data_layout": "NCHW"}
POOL = {"window": (2, 2), "strides": (2, 2), "pads": ((0, 0), (0, 0)), "data_layout": "NCHW", "divisor": "window", "divisor_value": None}
PAD = {"mode": "constant", "low": (1, 1), "high": (0, 0), "interior": (0, 0), "value": 0.0}
TAKE = {"axis": 0, "oob": "error", "wrap_negative": False, "fill_value": None}
GATHER = {"batch_dims": 0, "oob": "error", "wrap_negative": False, "fill_value": None}
WRITE = {"reduce": "none", "oob": "error", "wrap_negative": False}
TURNED = {**CONV, "output_padding": (0, 0)}
RESIZE = {
    "mode": "linear",
    "coord": "half_pixel",
    "nearest_round": None,
    "cubic_a": None,
    "exclude_outside": False,
    "antialias": False,
    "scales": None,
    "sizes": (4, 4),
    "data_layout": "NCHW",
}
FORWARD = {"direction": "forward"}
NMS = {"max_outputs": 3, "iou_threshold": 0.5, "score_threshold": None, "index_dtype": "i64"}
REDUCE = {"kind": "sum", "axes": (1,), "keepdims": False, "nan": "propagate", "empty": "error"}
ARG = {"kind": "max", "axis": 1, "keepdims": False, "tie": "first", "nan": "first", "index_dtype": "i64"}
ATTENTION = {"scale": 1.0, "softcap": None, "mask": "none", "fully_masked": "nan", "kv_groups": 1}
GROUPED = {**ATTENTION, "kv_groups": 2}
PLAIN = {"transpose_a": False, "transpose_b": False}
REFUSED = [
    ("exp", ["i32[3]"], {}, "element type must be one of f16, f32, f64; got i32"),
    ("neg", ["bool[3]"], {}, "element type must be one of .*got bool"),
    ("not", ["f32[3]"], {}, "must be one of bool, i8"),
    ("is_nan", ["i32[3]"], {}, "must be one of f16"),
    ("clamp", ["i32[3]"], {"lo": 0.5, "hi": None}, "lo must be a value of i32; got 0.5"),
    ("clamp", ["u8[3]"], {"lo": None, "hi": 256.0}, "hi must be a value of u8; got 256.0"),
    ("cast", ["f32[3]"], {"to": "bf16", "f2i": "error"}, "cannot cast to bf16"),
    ("add", ["f32[3]", "f64[3]"], {}, "one element type; got f32 and f64. Inputs: a=f32.3. b=f64.3.. Hint: insert cast"),
    ("add", ["f32[2,3]", "f32[2]"], {}, r"must broadcast together; got \[2, 3\] and \[2\]"),
    ("add", ["bool[3]", "bool[3]"], {}, "element type must be one of"),
    ("and", ["f32[3]", "f32[3]"], {}, "element type must be one of bool"),
    ("div", ["i32[3]", "i32[3]"], {"rounding": "true"}, "integers need rounding floor or trunc"),
    ("select", ["f32[3]", "f32[3]", "f32[3]"], {}, "c must be bool; got f32"),
    ("select", ["bool[3]", "f32[3]", "i32[3]"], {}, "one element type; got f32 and i32"),
    ("reshape", ["f32[3,5]"], {"shape": (4, 4)}, r"hold the 15 elements of x; got \[4, 4\] with 16"),
    ("reshape", ["f32[3,5]"], {"shape": (-1, 5)}, "sizes are at least 0"),
    ("transpose", ["f32[3,5]"], {"perm": (0, 0)}, "each of the 2 axes once"),
    ("broadcast", ["f32[3,5]"], {"shape": (5,)}, "exactly shape"),
    ("broadcast", ["f32[3]"], {"shape": (4,)}, "must broadcast together"),
    ("slice", ["f32[7]"], {"start": (0,), "limit": (8,), "strides": (1,)}, "start <= limit <= 7; got start 0, limit 8"),
    ("slice", ["f32[7]"], {"start": (0,), "limit": (7,), "strides": (0,)}, "strides must be at least 1"),
    ("slice", ["f32[7]"], {"start": (0, 0), "limit": (7,), "strides": (1,)}, "start needs one entry for each of 1 axes"),
    ("reverse", ["f32[3,5]"], {"axes": (1, 0)}, "ascend without repeats"),
    ("concat", [], {"axis": 0}, "at least one operand"),
    ("concat", ["f32[3,5]", "f32[3,4]"], {"axis": 0}, r"agree on every axis but 0; got xs\[1\] \[3, 4\]"),
    ("concat", ["f32[3]", "f32[3,1]"], {"axis": 0}, "agree on every axis"),
    ("concat", ["f32[]"], {"axis": 0}, "below the rank 0"),
    ("pad", ["f32[3,5]"], {**PAD, "value": None}, "value must be given for mode constant"),
    ("pad", ["f32[3,5]"], {**PAD, "mode": "edge"}, "value must be given for mode constant and null"),
    ("pad", ["f32[3,5]"], {**PAD, "mode": "edge", "value": None, "interior": (1, 0)}, "interior padding needs mode constant"),
    ("pad", ["f32[3,5]"], {**PAD, "mode": "reflect", "value": None, "low": (3, 0)}, "axis 0 reflects at most 2"),
    ("pad", ["f32[0,5]"], {**PAD, "mode": "edge", "value": None}, "no edge to repeat"),
    ("pad", ["f32[3,5]"], {**PAD, "low": (-4, 0)}, "cropped by more than it has"),
    ("pad", ["f32[3,5]"], {**PAD, "interior": (-1, 0)}, "interior must be at least 0"),
    ("pad", ["bf16[3,5]"], PAD, "bf16 takes the modes reflect and edge only"),
    ("iota", [], {"dtype": "bool", "shape": (3,), "axis": 0}, "dtype must be one of"),
    ("iota", [], {"dtype": "i32", "shape": (), "axis": 0}, "below the rank 0"),
    ("take", ["f32[3]", "f32[2]"], TAKE, "element type of indices must be one of i32, i64; got f32"),
    ("take", ["f32[3]", "i64[2]"], {**TAKE, "oob": "fill"}, "fill_value must be given for oob fill"),
    ("take", ["i32[3]", "i64[2]"], {**TAKE, "oob": "fill", "fill_value": float("nan")}, "fill_value must be a value of i32; got nan"),
    ("take", ["f32[0]", "i64[2]"], {**TAKE, "oob": "clamp"}, "axis 0 is empty"),
    ("shift", ["i32[3]", "i32[3]"], {"dir": "left", "arithmetic": True}, "arithmetic is for right shifts of signed integers only"),
    ("shift", ["u8[3]", "u8[3]"], {"dir": "right", "arithmetic": True}, "right of u8"),
    ("shift", ["f32[3]", "f32[3]"], {"dir": "left", "arithmetic": False}, "must be one of i8"),
    ("atan2", ["i32[3]", "i32[3]"], {}, "must be one of f16"),
    ("bitcast", ["f32[3]"], {"to": "i64"}, "both types must have one width; got f32 and i64"),
    ("bitcast", ["f32[3]"], {"to": "bool"}, "to must be one of f16"),
    ("take_along_axis", ["f32[3,5]", "i64[3]"], {**TAKE, "axis": 1}, "indices must have the rank of x; got ranks 1 and 2"),
    ("take_along_axis", ["f32[3,5]", "i64[4,2]"], {**TAKE, "axis": 1}, r"at most the size of x; got \[4, 2\] and \[3, 5\]"),
    ("take_along_axis", ["f32[3,0]", "i64[3,2]"], {**TAKE, "axis": 1}, "axis 1 is empty"),
    ("gather_nd", ["f32[3,5]", "i64[4,3]"], GATHER, "at most the 2 axes it can address; got 3"),
    ("gather_nd", ["f32[3,5]", "i64[4,1]"], {**GATHER, "batch_dims": 1}, "agree on the first 1 axes"),
    ("gather_nd", ["f32[3,5]", "i64[3]"], {**GATHER, "batch_dims": 1}, "below that of indices; got 1"),
    ("gather_nd", ["f32[3,5]", "i64[]"], GATHER, "batch_dims must be"),
    ("dynamic_slice", ["f32[3,5]", "i64[3]"], {"sizes": (1, 1)}, r"start must have the shape \[2\]"),
    ("dynamic_slice", ["f32[3,5]", "f32[2]"], {"sizes": (1, 1)}, "element type of start"),
    ("dynamic_slice", ["f32[3,5]", "i64[2]"], {"sizes": (1, 6)}, "sizes must be at most the sizes of x"),
    ("dynamic_update_slice", ["f32[3,5]", "f32[4,5]", "i64[2]"], {}, "the sizes of update must be at most"),
    ("dynamic_update_slice", ["f32[3,5]", "i32[1,5]", "i64[2]"], {}, "one element type"),
    ("scatter_along_axis", ["f32[3,5]", "i64[3,2]", "f32[3,3]"], {**WRITE, "axis": 1}, r"updates must have the shape \[3, 2\]"),
    ("scatter_along_axis", ["bool[5]", "i64[2]", "bool[2]"], {**WRITE, "axis": 0, "reduce": "add"}, "element type for reduce add"),
    ("scatter_along_axis", ["f32[0]", "i64[2]", "f32[2]"], {**WRITE, "axis": 0}, "axis 0 is empty"),
    ("scatter_nd", ["f32[3,5]", "i64[4,1]", "f32[4]"], WRITE, r"updates must have the shape \[4, 5\]"),
    ("scatter_nd", ["f32[3,5]", "i64[]", "f32[]"], WRITE, "at least 1 axis"),
    ("sort", ["f32[]"], {"axis": 0, "descending": False, "stable": True, "index_dtype": "i64"}, "below the rank 0"),
    ("topk", ["f32[3]"], {"k": 4, "axis": 0, "largest": True, "sorted": True, "index_dtype": "i64"}, "at most the size 3 of axis 0; got 4"),
    ("cumulative", ["i32[3]"], {"kind": "logsumexp", "axis": 0, "exclusive": False, "reverse": False}, "kind logsumexp must be one of"),
    ("reduce", ["i32[3,5]"], {**REDUCE, "kind": "mean"}, "element type for kind mean must be one of f16"),
    ("reduce", ["f32[3,5]"], {**REDUCE, "kind": "any"}, "must be one of bool; got f32"),
    ("reduce", ["f32[3,0]"], {**REDUCE, "kind": "max"}, "reduces no elements and empty is error"),
    ("reduce", ["f32[3,5]"], {**REDUCE, "axes": (-1,)}, "at least 0 and below the rank 2; got -1"),
    ("argreduce", ["f32[3,0]"], ARG, "axis 1 is empty"),
    ("matmul", ["f32[3]", "f32[3,4]"], PLAIN, "a must have at least 2 axes; got rank 1"),
    ("matmul", ["f32[2,3]", "f32[4,5]"], PLAIN, "inner sizes must agree; got 3 and 4"),
    ("matmul", ["f32[2,3,4]", "f32[5,4,1]"], PLAIN, "must broadcast together"),
    ("linear", ["f32[2,3]", "f32[5,4]", None], {"weight_layout": "oi"}, "must have the 4 inputs of w .oi.; got 3"),
    ("linear", ["f32[2,3]", "f32[5,3]", "f32[3]"], {"weight_layout": "oi"}, r"bias must have the shape \[5\]; got \[3\]"),
    ("conv2d", ["f32[1,3,8,8]", "f32[4,2,3,3]", None], CONV, r"channels of x over groups \(3/1\); got 2"),
    ("conv2d", ["f32[1,4,8,8]", "f32[3,2,3,3]", None], {**CONV, "groups": 2}, "divide into 2 groups; got 3"),
    ("conv2d", ["f32[1,3,8]", "f32[4,3,3]", None], CONV, "must have 4 axes"),
    ("conv2d", ["f32[1,3,8,8]", "f32[4,3,3,3]", None], {**CONV, "pads": ((-1, 0), (0, 0))}, "pads must be at least 0"),
    ("conv2d", ["f32[1,3,8,8]", "f32[4,3,3,3]", None], {**CONV, "strides": (1,)}, "strides needs one entry for each of 2 axes"),
    ("conv2d", ["f32[1,3,8,8]", "f32[4,3,3,3]", None], {**CONV, "groups": 0}, "groups must be at least 1"),
    ("conv2d", ["f32[1,3,8,8]", "f32[4,3,0,3]", None], CONV, "window must be at least 1"),
    ("conv3d", ["f32[1,3,8,8]", "f32[4,3,3,3]", None], CONV, "must have 5 axes"),
    ("conv2d_transpose", ["f32[1,3,8,8]", "f32[4,3,3,3]", None], TURNED, "first axis must be the 3 channels of x; got 4"),
    ("conv2d_transpose", ["f32[1,3,8,8]", "f32[3,4,3,3]", None], {**TURNED, "groups": 2}, "divide into 2 groups; got 3"),
    ("conv2d_transpose", ["f32[1,4,8,8]", "f32[4,3,3,3]", "f32[3]"], {**TURNED, "groups": 2}, r"bias must have the shape \[6\]"),
    (
        "conv2d_transpose",
        ["f32[1,3,8,8]", "f32[3,4,3,3]", None],
        {**TURNED, "output_padding": (0, -1)},
        "output_padding must be at least 0",
    ),
    ("resize", ["f32[1,3,8,8]"], {**RESIZE, "nearest_round": "floor"}, "null for the others; got floor"),
    ("resize", ["f32[1,3,8,8]"], {**RESIZE, "mode": "cubic"}, "cubic_a must be given for mode cubic"),
    ("resize", ["i32[1,3,8,8]"], RESIZE, "element type for mode linear must be one of f16"),
    ("resize", ["f32[1,3,8,8]"], {**RESIZE, "sizes": (4,)}, "sizes needs one entry for each of 2 axes"),
    ("resize", ["f32[1,3,8,8]"], {**RESIZE, "scales": (2.0, 0.0)}, "scales must be positive"),
    ("resize", ["f32[1,3,0,8]"], RESIZE, "axis 2 is empty"),
    ("resize", ["f32[1,3,8]"], {**RESIZE, "mode": "nearest", "nearest_round": "ceil", "antialias": True, "sizes": (4,)}, "antialias"),
    ("avg_pool", ["f32[1,3]"], POOL, "1 to 3 spatial axes; got rank 2"),
    ("avg_pool", ["i32[1,3,8,8]"], POOL, "element type must be one of f16"),
    ("avg_pool", ["f32[1,3,8,8]"], {**POOL, "divisor": "fixed"}, "divisor_value must be given for divisor fixed"),
    ("avg_pool", ["f32[1,3,8,8]"], {**POOL, "divisor": "fixed", "divisor_value": 0}, "must not be 0"),
    ("layer_norm", ["f32[2,3,5]", None, None], {"axes": (1,), "eps": 1e-5, "variance": "fast"}, "must be the last axes of x"),
    ("layer_norm", ["f32[2,3,5]", "f32[3]", None], {"axes": (2,), "eps": 1e-5, "variance": "fast"}, r"scale must have the shape \[5\]"),
    ("batch_norm", ["f32[2,3]", "f32[3]", "f32[3]", "f32[2]", "f32[3]"], {"eps": 0.0, "axis": 1}, "mean must have the shape"),
    ("rms_norm", ["f32[2,3,5]", "f32[3]"], {"axes": (2,), "eps": 1e-5}, r"scale must have the shape \[5\]"),
    ("group_norm", ["f32[2,6,5]", "f32[6]", None], {"groups": 4, "axis": 1, "eps": 1e-5}, "divide the 6 channels; got 4"),
    ("group_norm", ["f32[2,6,5]", "f32[5]", None], {"groups": 3, "axis": 1, "eps": 1e-5}, r"scale must have the shape \[6\]"),
    ("group_norm", ["f32[2,6,5]", None, None], {"groups": 1, "axis": 0, "eps": 1e-5}, "axis must not be 0"),
    ("softmax", ["f32[]"], {"axis": 0, "fully_masked": "nan"}, "below the rank 0"),
    ("lstm", ["f32[3,2,4]", "f32[19,4]", "f32[20,5]", None, None, None], FORWARD, r"w must have the shape \[20, 4\]: 4 gates of 5"),
    ("lstm", ["f32[3,2,4]", "f32[20,4]", "f32[20,5]", "f32[5]", None, None], FORWARD, r"bias must have the shape \[20\]"),
    ("lstm", ["f32[3,2,4]", "f32[20,4]", "f32[20,5]", None, None, "f32[5]"], FORWARD, r"c0 must have the shape \[2, 5\]"),
    ("lstm", ["f32[2,4]", "f32[20,4]", "f32[20,5]", None, None, None], FORWARD, "time, batch, features"),
    ("gru", ["f32[3,2,4]", "f32[15,4]", "f32[15,5]", None, "f32[5]", None], {**FORWARD, "reset": "after"}, "recurrent_bias must have"),
    ("gru", ["f32[3,2,4]", "f64[15,4]", "f32[15,5]", None, None, None], {**FORWARD, "reset": "after"}, "one element type"),
    ("nms", ["f32[3,4]", "f32[2]"], NMS, r"scores must have the shape \[3\]"),
    ("nms", ["f32[3,5]", "f32[3]"], NMS, r"boxes must have the shape \[n, 4\]"),
    ("nms", ["f32[3,4]", "f32[3]"], {**NMS, "max_outputs": -1}, "max_outputs must be at least 0"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[5,3]", None], ATTENTION, "k and v must have one length; got 4 and 5"),
    ("attention", ["f32[2,3]", "f32[4,2]", "f32[4,3]", None], ATTENTION, "one width; got 3 and 2"),
    ("attention", ["f32[1,2,3]", "f32[2,4,3]", "f32[2,4,3]", None], ATTENTION, "agree on all axes but the last two"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[4,3]", "bool[2,4]"], ATTENTION, "null for none and causal"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[4,3]", "f32[2,4]"], {**ATTENTION, "mask": "bool"}, "must be bool for mask bool"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[4,3]", "bool[3,4]"], {**ATTENTION, "mask": "bool"}, "must broadcast"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[4,3]", None], GROUPED, "kv_groups must be 1, or with an axis of heads"),
    ("attention", ["f32[4,2,3]", "f32[4,5,3]", "f32[4,5,3]", None], GROUPED, "q with 2 times the heads of k and v"),
    ("attention", ["f32[5,2,3]", "f32[2,5,3]", "f32[2,5,3]", None], GROUPED, "q with 2 times the heads of k and v"),
    ("attention", ["f32[2,3]", "f32[4,3]", "f32[4,3]", None], {**ATTENTION, "softcap": 0.0}, "softcap must be above 0"),
]


def parsed(text: str | None) -> TensorType | None:
    if text is None:
        return None
    dtype, _, shape = text.removesuffix("]").partition("[")
    return TensorType(DType(dtype), tuple(map(int, shape.split(","))) if shape else ())


@pytest.mark.parametrize(("op", "types", "attrs", "message"), REFUSED, ids=[f"{op}-{index}" for index, (op, *_) in enumerate(REFUSED)])
def test_types_an_op_does_not_allow(op, types, attrs, message):
    with pytest.raises(TypeInferenceError, match=message) as caught:
        get_op(op).infer_types(f"{op} 'node'", [parsed(text) for text in types], attrs)
    assert str(caught.value).startswith(f"{op} 'node': ")


def test_broadcast_is_that_of_numpy():
    for shapes in [((), ()), ((3,), ()), ((2, 1), (3,)), ((0, 4), (1, 4)), ((1,), (0,)), ((5, 1, 7), (3, 1), (1,))]:
        assert broadcast(*shapes) == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize(
    ("size", "window", "stride", "pads", "dilation", "want"),
    [
        (7, 3, 1, (1, 1), 1, 7),
        (8, 3, 2, (0, 1), 1, 4),
        (7, 3, 2, (1, 1), 2, 3),
        (5, 5, 1, (0, 0), 1, 1),
        (3, 5, 1, (0, 0), 1, 0),
        (3, 9, 4, (1, 1), 1, 0),
        (0, 1, 1, (0, 0), 1, 0),
    ],
)
def test_window_counts(size, window, stride, pads, dilation, want):
    assert window_counts((size,), (window,), (stride,), (pads,), (dilation,)) == (want,)
