"""RNN, GRU and LSTM as imported from ONNX, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.errors import UnsupportedOperatorsError
from exporters.from_onnx import to_graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.from_onnx.ort_support import feeds, matches_ort, node_model

TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = np.array([5, 2, 3], np.int32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def operands(op: str, directions: int = 1, *, bias: bool = True, lengths: np.ndarray | None = None, peepholes: bool = False) -> list[Any]:
    gates = GATES[op] * HIDDEN
    states = [normal(directions, BATCH, HIDDEN, seed=5 + index) for index in range(2 if op == "LSTM" else 1)]
    inputs = [normal(TIME, BATCH, FEATURES), normal(directions, gates, FEATURES, seed=1), normal(directions, gates, HIDDEN, seed=2)]
    inputs += [normal(directions, 2 * gates, seed=3) if bias else None, lengths, *states]
    return [*inputs, normal(directions, 3 * HIDDEN, seed=7)] if peepholes else inputs


def check(op: str, inputs: list[Any], **attrs: Any) -> list[str]:
    graph = matches_ort(op, *inputs, outputs=3 if op == "LSTM" else 2, known=(1, 2, 3, 7), hidden_size=HIDDEN, at_opset=14, **attrs)
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [True, False])
def test_directions(op: str, direction: str, bias: bool) -> None:
    ops = check(op, operands(op, 2 if direction == "bidirectional" else 1, bias=bias), direction=direction)
    own = "scan" if op == "RNN" else op.lower()
    assert ops.count(own) == (2 if direction == "bidirectional" else 1)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_of_different_lengths(op: str, direction: str) -> None:
    check(op, operands(op, 2 if direction == "bidirectional" else 1, lengths=LENGTHS), direction=direction)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_known_full_lengths_change_nothing(op: str) -> None:
    inputs = operands(op, lengths=np.full(BATCH, TIME, np.int32))
    graph = matches_ort(op, *inputs, outputs=2, known=(1, 2, 3, 4), hidden_size=HIDDEN, at_opset=14)
    assert op.lower() in [node.op for node in graph.nodes]


@pytest.mark.parametrize("reset_after", [0, 1])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "cut"])
def test_gru_resets_before_or_after_the_product(reset_after: int, lengths: np.ndarray | None) -> None:
    check("GRU", operands("GRU", lengths=lengths), linear_before_reset=reset_after)


def test_lstm_peepholes() -> None:
    check("LSTM", operands("LSTM", 2, peepholes=True), direction="bidirectional")


def test_lstm_with_coupled_gates() -> None:
    check("LSTM", operands("LSTM"), input_forget=1)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_clip(op: str) -> None:
    check(op, operands(op), clip=0.3)


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Affine", (0.7, 0.1)),
        ("Elu", (0.6,)),
        ("HardSigmoid", (0.3, 0.4)),
        ("LeakyRelu", (0.2,)),
        ("Relu", ()),
        ("ScaledTanh", (1.5, 0.6)),
        ("Sigmoid", ()),
        ("Softplus", ()),
        ("Softsign", ()),
        ("ThresholdedRelu", (0.4,)),
    ],
)
def test_activations(activation: str, numbers: tuple[float, ...]) -> None:
    lists = {name: [number] for name, number in zip(("activation_alpha", "activation_beta"), numbers, strict=False)}
    check("RNN", operands("RNN"), activations=[activation], **lists)
    check("LSTM", operands("LSTM"), activations=["Sigmoid", activation, "Tanh"], **lists)


def test_activations_take_their_numbers_in_turn() -> None:
    check("LSTM", operands("LSTM"), activations=["HardSigmoid", "Tanh", "LeakyRelu"], activation_alpha=[0.3, 0.1], activation_beta=[0.4])


def test_batch_first() -> None:
    """ONNX Runtime has no layout 1: the same numbers come from layout 0 with the axes turned round."""
    inputs = operands("LSTM", 2)
    turned = [value.swapaxes(0, 1) if index in (0, 5, 6) else value for index, value in enumerate(inputs) if index != 4]
    turned.insert(4, None)
    attrs = {"direction": "bidirectional", "hidden_size": HIDDEN}
    results = []
    for given, layout in ((inputs, 0), (turned, 1)):
        graph = to_graph(node_model("LSTM", given, 3, layout=layout, **attrs))
        results.append(run_reference(graph, feeds(given), precision="f32"))
    plain, batch_first = results
    np.testing.assert_array_equal(batch_first["y0"], plain["y0"].transpose(2, 0, 1, 3))
    for name in ("y1", "y2"):
        np.testing.assert_array_equal(batch_first[name], plain[name].swapaxes(0, 1))


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="activations cubic are not supported"):
        to_graph(node_model("RNN", operands("RNN"), 2, activations=["Cubic"], hidden_size=HIDDEN))
