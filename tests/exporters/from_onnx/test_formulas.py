"""Formulas that ONNX files spell out: each is found, gives the same numbers, and what is nearly it stays as written."""

from __future__ import annotations

import numpy as np
import pytest

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


def attention(mask: str = "", scores: str = "scaled", constants: str = "", body: str = BODY, **inputs: np.ndarray) -> list[tuple[str, str]]:
    """Returns (op, kind of mask) of the nodes of an attention that is spelt out."""
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
    graph = assert_matches(model, {"q": Q, "k": K, "v": V, **inputs})
    return [(node.op, node.attrs.get("mask", "")) for node in graph.nodes]


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
