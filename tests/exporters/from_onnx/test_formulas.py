"""Formulas that ONNX files spell out: each is found, gives the same numbers, and what is nearly it stays as written."""

from __future__ import annotations

import numpy as np
import pytest

from rml_exec.ir.graph import Graph
from tests.exporters.from_onnx.text_models import assert_matches, onnx, parsed

pytestmark = pytest.mark.onnx

X = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32) * 2
HEAD = "g (float[2,4,6] x) => (float[2,4,6] y)"


def ops(body: str, constants: str = "", head: str = HEAD, **inputs: np.ndarray) -> list[str]:
    """Returns the ops of a model that gives what the reference evaluator gives."""
    model = parsed(f"{head} {f'<{constants}>' if constants else ''} {{ {body} }}", opset=17, ir_version=8)
    return [node.op for node in assert_matches(model, {"x": X, **inputs}).nodes]


GELU_TANH = "float half = {0.5}, float one = {1}, float three = {3}, float k = {0.044715}, float c = {0.7978845608}"


@pytest.mark.parametrize(
    ("body", "constants", "found"),
    [
        ("s = Sigmoid(x) y = Mul(x, s)", "", "silu"),
        ("s = Sigmoid(x) y = Mul(s, x)", "", "silu"),
        (
            "d = Div(x, r) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)",
            "float r = {1.41421356}, float one = {1}, float half = {0.5}",
            "gelu",
        ),
        (
            "h = Mul(x, half) d = Mul(x, r) e = Erf(d) p = Add(one, e) y = Mul(h, p)",
            "float r = {0.70710678}, float one = {1}, float half = {0.5}",
            "gelu",
        ),
        (
            "q = Pow(x, three) a = Mul(q, k) b = Add(x, a) d = Mul(b, c) t = Tanh(d) p = Add(t, one) h = Mul(half, x) y = Mul(h, p)",
            GELU_TANH,
            "gelu",
        ),
        (
            "s = Mul(x, x) a = Mul(s, k) b = Add(one, a) w = Mul(x, b) d = Mul(w, c) t = Tanh(d) p = Add(one, t) h = Mul(x, p) y = Mul(half, h)",
            GELU_TANH,
            "gelu",
        ),
    ],
)
def test_activations(body: str, constants: str, found: str) -> None:
    assert ops(body, constants) == [found]


def test_gelu_of_a_product() -> None:
    body = "z = Sin(x) g = Mul(x, z) d = Div(g, r) e = Erf(d) p = Add(e, one) m = Mul(g, p) y = Mul(m, half)"
    assert ops(body, "float r = {1.41421356}, float one = {1}, float half = {0.5}") == ["sin", "mul", "gelu"]


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("s = Sigmoid(x) n = Neg(x) y = Mul(n, s)", ""),
        ("d = Div(x, r) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)", "float r = {1.5}, float one = {1}, float half = {0.5}"),
        (
            "d = Div(x, r) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)",
            "float r = {1.41421356}, float one = {2}, float half = {0.5}",
        ),
        (
            "q = Pow(x, three) a = Mul(q, k) b = Add(x, a) d = Mul(b, c) t = Tanh(d) p = Add(t, one) h = Mul(one, x) y = Mul(h, p)",
            GELU_TANH,
        ),
    ],
)
def test_what_is_nearly_an_activation_stays(body: str, constants: str) -> None:
    assert not {"silu", "gelu"} & set(ops(body, constants))


def test_what_is_read_elsewhere_too_stays() -> None:
    found = ops("s = Sigmoid(x) y = Mul(x, s)", head="g (float[2,4,6] x) => (float[2,4,6] y, float[2,4,6] s)")
    assert found == ["sigmoid", "mul"]


CENTRED = "m = ReduceMean <axes: ints = [-1]> (x) d = Sub(x, m)"
SQUARE = "q = Pow(d, two) v = ReduceMean <axes: ints = [-1]> (q) e = Add(v, eps) r = Sqrt(e)"
WEIGHTS = "float two = {2}, float one = {1}, float eps = {0.001}, float[6] w = {1, 2, 3, 4, 5, 6}, float[6] b = {6, 5, 4, 3, 2, 1}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{CENTRED} {SQUARE} y = Div(d, r)", "layer_norm"),
        (f"{CENTRED} {SQUARE} n = Div(d, r) s = Mul(n, w) y = Add(s, b)", "layer_norm"),
        (f"{CENTRED} {SQUARE} n = Div(d, r) s = Mul(w, n) y = Add(b, s)", "layer_norm"),
        (f"{CENTRED} {SQUARE} i = Div(one, r) n = Mul(d, i) y = Mul(n, w)", "layer_norm"),
        (f"d = Identity(x) {SQUARE} n = Div(d, r) y = Mul(w, n)", "rms_norm"),
        (f"d = Identity(x) {SQUARE} i = Reciprocal(r) n = Mul(d, i) y = Mul(w, n)", "rms_norm"),
    ],
)
def test_norms(body: str, found: str) -> None:
    assert ops(body, WEIGHTS) == [found]


@pytest.mark.parametrize(
    "change",
    [
        ("[-1]> (q)", "[1]> (q)"),
        ("Pow(d, two)", "Pow(x, two)"),
        ("ReduceMean <axes: ints = [-1]> (q)", "ReduceMax <axes: ints = [-1]> (q)"),
    ],
)
def test_what_is_nearly_a_norm_stays(change: tuple[str, str]) -> None:
    body = f"{CENTRED} {SQUARE} y = Div(d, r)"
    assert change[0] in body
    assert not {"layer_norm", "rms_norm"} & set(ops(body.replace(*change), WEIGHTS))


SHARED = "float three = {3}, float zero = {0}, float six = {6}, float[1] t = {20}"


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) y = Mul(d, x)",
        "h = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (x) y = Mul(x, h)",
    ],
)
def test_hard_swish(body: str) -> None:
    assert ops(body, SHARED) == ["hard_swish"]
    assert "hard_swish" not in ops(body.replace("six)", "three)").replace("0.16666667", "0.2"), SHARED)


def test_softplus_with_a_threshold() -> None:
    assert ops("s = Softplus(x) g = Greater(x, t) y = Where(g, x, s)", SHARED) == ["softplus"]
    assert "select" in ops("s = Softplus(x) g = Less(x, t) y = Where(g, x, s)", SHARED)


NORM_OF_GROUPS = (
    "r = Reshape(x, groups) i = InstanceNormalization <epsilon: float = 0.001> (r, ones, zeros) b = Reshape(i, whole) "
    "m = Mul(b, w) y = Add(m, s)"
)


@pytest.mark.parametrize(("weight", "found"), [("float[4,1]", True), ("float[1,4,1]", True), ("float[4,6]", False)])
def test_group_norm(weight: str, found: bool) -> None:
    count = 24 if weight == "float[4,6]" else 4
    numbers = ", ".join(str(k % 5) for k in range(count))
    constants = "int64[3] groups = {0, 2, -1}, int64[3] whole = {2, 4, 6}, float[2] ones = {1, 1}, float[2] zeros = {0, 0}"
    constants += f", {weight} w = {{{numbers}}}, {weight} s = {{{numbers}}}"
    assert (ops(NORM_OF_GROUPS, constants)[-1] == "group_norm") is found
    assert ops(NORM_OF_GROUPS, constants.replace("ones = {1, 1}", "ones = {1, 2}"))[-1] == "add"


def test_a_matrix_product_and_its_bias() -> None:
    weights = (
        "float[6,6] w = {"
        + ", ".join(str(k % 7) for k in range(36))
        + "}, float[6] b = {1, 2, 3, 4, 5, 6}, float[4,6] c = {"
        + "1, " * 23
        + "2}"
    )
    assert ops("m = MatMul(x, w) y = Add(b, m)", weights) == ["linear"]
    assert ops("m = MatMul(x, w) y = Add(m, c)", weights) == ["linear", "add"]


Q, K, V = (
    np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    for seed, shape in ((1, (2, 3, 5, 8)), (2, (2, 3, 5, 8)), (3, (2, 3, 5, 4)))
)
BODY = (
    "kt = Transpose <perm: ints = [0, 1, 3, 2]> (k) s = MatMul(q, kt) scaled = Div(s, c) "
    "MASK p = Softmax <axis: int = -1> (SCORES) y = MatMul(p, v)"
)


def attention(*args: str, **inputs: np.ndarray) -> list[tuple[str, str]]:
    """Returns (op, kind of mask) of the nodes of an attention that is spelt out."""
    return [(node.op, node.attrs.get("mask", "")) for node in attended(*args, **inputs).nodes]


def attended(mask: str = "", scores: str = "scaled", constants: str = "", body: str = BODY, **inputs: np.ndarray) -> Graph:
    """Returns the graph of an attention that is spelt out, which gives what the reference evaluator gives."""
    kinds = {"f": "float", "b": "bool"}
    more = "".join(f", {kinds[array.dtype.kind]}[{','.join(map(str, array.shape))}] {name}" for name, array in inputs.items())
    given = f"<float c = {{2.5}}, float ninf = {{0}}, float zero = {{0}}{constants}>"
    model = parsed(
        f"g (float[2,3,5,8] q, float[2,3,5,8] k, float[2,3,5,4] v{more}) => (float[2,3,5,4] y) {given} "
        f"{{ {body.replace('MASK', mask).replace('SCORES', scores)} }}",
        opset=17,
        ir_version=8,
    )
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "ninf"))
    return assert_matches(model, {"q": Q, "k": K, "v": V, **inputs})


def causal(low: float) -> str:
    return ", float[5,5] m = {" + ", ".join("0" if column <= row else str(low) for row in range(5) for column in range(5)) + "}"


def test_attention_without_and_with_masks() -> None:
    assert attention() == [("attention", "none")]
    assert attention("masked = Add(scaled, m)", "masked", m=np.random.default_rng(4).standard_normal((2, 1, 5, 5)).astype(np.float32)) == [
        ("attention", "additive")
    ]
    assert attention("masked = Add(scaled, m)", "masked", causal(-3e38)) == [("attention", "causal")]
    assert attention("masked = Add(scaled, m)", "masked", causal(0.0)) == [("attention", "none")]
    allowed = np.random.default_rng(5).random((2, 1, 1, 5)) < 0.7
    allowed[..., 0] = True
    assert attention("masked = Where(b, scaled, ninf)", "masked", b=allowed) == [("attention", "bool")]


def test_attention_with_scaled_operands_and_a_guard() -> None:
    body = (
        "qs = Mul(q, c) kt = Transpose <perm: ints = [0, 1, 3, 2]> (k) ks = Mul(kt, c) s = MatMul(qs, ks) t = Add(s, m) "
        "p = Softmax <axis: int = -1> (t) n = IsNaN(p) g = Where(n, zero, p) y = MatMul(g, v)"
    )
    mask = np.zeros((5, 5), np.float32)
    mask[2] = -np.inf
    assert attention(body=body, m=mask) == [("attention", "additive")]


HIDDEN = np.random.default_rng(6).random((2, 1, 5, 5)) < 0.4
HIDDEN[:, :, 2], HIDDEN[..., 0] = True, True
HIDDEN[:, :, [0, 1, 3, 4], 0] = False  # row 2 sees nothing, all others something
BIAS = np.random.default_rng(7).standard_normal((1, 3, 5, 5)).astype(np.float32)
HUGE = ", float huge = {-3.0e38}"


def fully_masked(*steps: str, bias: bool = False, guard: bool = False) -> tuple[list[str], str]:
    """Returns the ops, and what a row without keys gives, of an attention with masks: steps from ``scaled`` to ``masked``."""
    body = BODY.replace("y = MatMul(p, v)", "n = IsNaN(p) g = Where(n, zero, p) y = MatMul(g, v)") if guard else BODY
    more = {"bias": BIAS} if bias else {}
    found: list[str] = []
    attrs: list[str] = []
    for node in attended(" ".join(steps), "masked", HUGE, body, hidden=HIDDEN, **more).nodes:
        found.append(node.op)
        attrs += [node.attrs["fully_masked"]] if node.op == "attention" else []
    return found, "".join(attrs)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_rows_that_see_nothing_give_what_the_formula_gives() -> None:
    """Each model is compared with the reference evaluator, the hidden row included."""
    chosen, added = "masked = Where(hidden, FILL, scaled)", "m = Where(hidden, FILL, zero) masked = Add(m, scaled)"
    for masking in (chosen, added):
        assert fully_masked(masking.replace("FILL", "ninf")) == (["not", "attention"], "nan")
        assert fully_masked(masking.replace("FILL", "ninf"), guard=True) == (["not", "attention"], "zero")
        assert fully_masked(masking.replace("FILL", "huge")) == (["not", "attention"], "uniform")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_several_masks_become_one() -> None:
    hide = "m = Where(hidden, FILL, zero) h = Add(scaled, m)"
    for fill, gives in (("ninf", "nan"), ("huge", "nan")):
        assert fully_masked(hide.replace("FILL", fill), "masked = Add(h, bias)", bias=True) == (["not", "select", "attention"], gives)
        assert fully_masked("h = Add(bias, scaled)", f"masked = Where(hidden, {fill}, h)", bias=True) == (
            ["not", "select", "attention"],
            gives,
        )
    again = "masked = Where(hidden, FILL, h)"
    assert fully_masked(hide.replace("FILL", "ninf"), again.replace("FILL", "ninf")) == (["not", "not", "and", "attention"], "nan")
    assert "attention" not in fully_masked(hide.replace("FILL", "ninf"), again.replace("FILL", "huge"))[0]


def test_sums_of_sums_are_not_searched_for_ever() -> None:
    body = " ".join(f"a{k + 1} = Add(a{k}, a{k})" for k in range(60))
    assert len(fully_masked("a0 = Add(scaled, bias)", body, "masked = Tanh(a60)", bias=True)[0]) > 60


def test_soft_caps_and_shared_heads() -> None:
    body = (
        "k5 = Unsqueeze(k, axis) kw = Expand(k5, wide) kr = Reshape(kw, flat) v5 = Unsqueeze(v, axis) vw = Expand(v5, vwide) vr = Reshape(vw, vflat) "
        "k3 = Reshape(kr, joined) kt3 = Transpose <perm: ints = [0, 2, 1]> (k3) kt = Reshape(kt3, apart) s = MatMul(q, kt) d = Div(s, c) "
        "t = Tanh(d) e = Mul(t, c) p = Softmax <axis: int = -1> (e) y = MatMul(p, vr)"
    )
    model = parsed(
        "g (float[2,6,5,8] q, float[2,3,5,8] k, float[2,3,5,4] v) => (float[2,6,5,4] y) <float c = {2.5}, int64[1] axis = {2}, "
        "int64[5] wide = {2, 3, 2, 5, 8}, int64[5] vwide = {2, 3, 2, 5, 4}, int64[4] flat = {2, 6, 5, 8}, int64[4] vflat = {2, 6, 5, 4}, "
        f"int64[3] joined = {{12, 5, 8}}, int64[4] apart = {{2, 6, 8, 5}}> {{ {body} }}",
        opset=17,
        ir_version=8,
    )
    q = np.concatenate([Q, -Q], axis=1)
    attended = [node for node in assert_matches(model, {"q": q, "k": K, "v": V}).nodes if node.op not in ("reshape", "broadcast")]
    assert [(node.op, node.attrs["kv_groups"], node.attrs["softcap"]) for node in attended] == [("attention", 2, 2.5)]


def test_keys_that_arrive_transposed_are_turned_once() -> None:
    body = BODY.replace("[0, 1, 3, 2]> (k)", "[0, 2, 3, 1]> (k4)").replace("q, kt", "q, kt")
    keys = np.ascontiguousarray(K.transpose(0, 2, 1, 3))
    model = parsed(
        "g (float[2,3,5,8] q, float[2,5,3,8] k4, float[2,3,5,4] v) => (float[2,3,5,4] y) <float c = {2.5}> {"
        + body.replace("MASK", "").replace("SCORES", "scaled")
        + "}",
        opset=17,
        ir_version=8,
    )
    graph = assert_matches(model, {"q": Q, "k4": keys, "v": V})
    assert [(node.op, node.attrs.get("perm")) for node in graph.nodes] == [("transpose", (0, 2, 1, 3)), ("attention", None)]


def test_what_is_nearly_attention_stays() -> None:
    assert ("attention", "none") not in attention(body=BODY.replace("axis: int = -1", "axis: int = 1"))
    assert ("attention", "none") not in attention(body=BODY.replace("y = MatMul(p, v)", "w = Exp(p) y = MatMul(w, v)"))


def test_formulas_within_functions() -> None:
    model = parsed(
        """g (bool c, float[2,4,6] x) => (float[2,4,6] y) {
            y = If (c) <
                then_branch = a () => (float[2,4,6] t) { s = Sigmoid(x) t = Mul(x, s) },
                else_branch = b () => (float[2,4,6] e) { e = Neg(x) }>
        }"""
    )
    graph = assert_matches(model, {"c": np.array(True), "x": X})
    assert sorted(node.op for function in graph.functions.values() for node in function.nodes) == ["neg", "silu"]


def test_long_chains_of_products_take_no_time() -> None:
    body = "".join(f"a{k + 1} = Mul(a{k}, a{k}) " for k in range(60))
    found = ops(f"a0 = Tanh(x) {body} y = Identity(a60)")
    assert found == ["tanh", *["mul"] * 60]


def test_annotated_models_keep_their_nodes() -> None:
    model = parsed(f"{HEAD} {{ s = Sigmoid(x) y = Mul(x, s) }}")
    model.graph.node[1].metadata_props.add(key="onnx_light.release_after", value="s")
    assert [node.op for node in assert_matches(model, {"x": X}).nodes] == ["sigmoid", "mul"]
