"""An exporter whose lowering is wrong: the export is refused, and the first node that differs is named with the line of the model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.dims import Dim
from exporters.errors import ExportError

X = np.random.default_rng(0).uniform(0, 1, (3, 4)).astype(np.float32)


def torch_model() -> Callable[[Any], Any]:
    torch = pytest.importorskip("torch")

    def model(x: Any) -> Any:
        soft = (x * 2).cos().softmax(1)
        return torch.exp(torch.sin(soft)).sum(1)  # torch's sine

    return model


def jax_model() -> Callable[[Any], Any]:
    jax = pytest.importorskip("jax")

    def model(x: Any) -> Any:
        soft = jax.nn.softmax(jax.numpy.cos(x * 2), axis=1)
        return jax.numpy.exp(jax.numpy.sin(soft)).sum(1)  # jax's sine

    return model


def tf_model() -> Callable[[Any], Any]:
    tf = pytest.importorskip("tensorflow")

    @tf.function
    def inner(x: Any) -> Any:
        return tf.sin(tf.nn.softmax(x))  # tf's sine

    def model(x: Any) -> Any:
        return tf.reduce_sum(tf.exp(inner(tf.cos(x * 2))), 1)

    return model


def torch_fault(ctx: Any, x: str) -> str:
    return str(ctx.add("mul", [ctx.step("sin", [x]), ctx.scalar(1.01, ctx.type(x).dtype)]))


def jax_fault(ctx: Any, equation: Any) -> str:
    return str(ctx.add("mul", ctx.add("sin", equation.inputs[0]), ctx.scalar(1.01, equation.inputs[0].dtype)))


def tf_fault(ctx: Any, x: Any) -> str:
    return str(ctx.add("mul", ctx.add("sin", x), ctx.scalar(1.01, x)))


FRAMEWORKS = {  # framework -> model, table, operator, its wrong lowering, how the error calls it
    "torch": (torch_model, "exporters.from_torch.context.ATEN", "aten.sin", torch_fault, r"mul 'sin' \(aten\.sin\.default"),
    "jax": (jax_model, "exporters.from_jax.context.TABLE", "sin", jax_fault, r"mul 'mul_1' \(sin"),
    "tf": (tf_model, "exporters.from_tf.table.TABLE", "Sin", tf_fault, r"mul 'Sin_1' \(Sin"),
}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in FRAMEWORKS])
@pytest.mark.parametrize("dims", [(), (Dim("rows", 1, 9),)], ids=["static", "symbolic"])
def test_the_first_node_that_differs_is_named(
    framework: str, dims: tuple[Dim, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, table, operator, fault, node = FRAMEWORKS[framework]
    model = make()
    exporter = importlib.import_module(f"exporters.from_{framework}")
    assert exporter.export(model, [X], tmp_path / "model", dims=dims).golden_error < 1e-6
    module, _, attribute = table.rpartition(".")
    monkeypatch.setitem(getattr(importlib.import_module(module), attribute)._functions, operator, fault)
    lines = Path(__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# {framework}'s sine")]
    with pytest.raises(ExportError, match=rf"^output 'y': .* First node that differs: {node}, test_planted_faults\.py:{line}") as caught:
        exporter.export(model, [X], tmp_path / "model", dims=dims)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
