"""The JAX exporter as its caller sees it: names, constants, refusals, and the zoo's models end to end."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_jax import export, to_graph
from exporters.models.zoo import export_model
from rml_exec.ir.golden import read_golden
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference
from tests.exporters.jax_support import check, normal, ops

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

pytestmark = pytest.mark.jax

X = normal(2, 4)


def constants(graph: Any) -> dict[str, str | None]:
    return {constant.name: constant.key for constant in graph.constants}


def test_parameters_are_named_by_their_path() -> None:
    params = {"layers": [{"w": normal(4, 4), "b": normal(4)}, {"w": normal(4, 3)}]}

    def function(p: Any, x: Any) -> Any:
        return (x @ p["layers"][0]["w"] + p["layers"][0]["b"]) @ p["layers"][1]["w"]

    graph = check(function, (X,), params=params)
    assert constants(graph) == {name: name for name in ("layers.0.w", "layers.0.b", "layers.1.w")}
    np.testing.assert_array_equal(graph.constants[0].data, params["layers"][0]["w" if graph.constants[0].name.endswith("w") else "b"])


def test_partial_binds_the_parameters() -> None:
    def function(p: Any, x: Any, *, scale: float) -> Any:
        return (x @ p["w"]) * scale

    graph = to_graph(functools.partial(function, {"w": normal(4, 3)}, scale=2.0), (X,), name="t")
    assert "w" in constants(graph)
    assert [value.name for value in graph.inputs] == ["x"]


def test_one_array_at_two_places_is_one_constant() -> None:
    table = normal(4, 4)
    graph = check(lambda p, x: (x @ p["embed"]) @ p["out"], (X,), params={"embed": table, "out": table})
    assert list(constants(graph)) == ["embed"]


def test_a_weight_used_both_ways_is_stored_once() -> None:
    graph = check(lambda p, i: p["embed"][i] @ p["embed"].T, (np.array([1, 0], np.int32),), params={"embed": normal(5, 4)})
    assert list(constants(graph)) == ["embed"]
    assert ops(graph) == ["take", "linear"]


def test_leaves_that_are_no_arrays_keep_their_values() -> None:
    params = {"w": normal(4, 4), "repeat": 2, "activation": None, "scale": 0.5}

    def function(p: Any, x: Any) -> Any:
        for _ in range(p["repeat"]):
            x = x @ p["w"] * p["scale"]
        return x

    assert ops(check(function, (X,), params=params)) == ["linear", "mul", "linear", "mul"]


def test_captured_arrays_are_named_by_their_variables() -> None:
    weights, offset = {"kernel": normal(4, 3)}, jnp.asarray(normal(3))
    graph = check(lambda x: jnp.tanh(x @ weights["kernel"]) - offset, (X,))
    assert constants(graph) == {"weights.kernel": "weights.kernel", "offset": "offset"}


def test_an_empty_parameter_tree_is_still_passed() -> None:
    assert ops(check(lambda p, x: x * 2, (X,), params={})) == ["mul"]


def test_a_name_of_an_input_and_of_a_parameter_may_be_the_same() -> None:
    graph = check(lambda p, x: x * p["x"], (X,), params={"x": normal(4)})
    assert constants(graph) == {"x_1": "x"}


def test_what_depends_on_parameters_alone_is_computed() -> None:
    params = {"variance": np.abs(normal(4)) + 1, "scale": normal(4, seed=3), "bias": normal(4, seed=4)}

    def norm(p: Any, x: Any) -> Any:
        return x * (lax.rsqrt(p["variance"] + 1e-5) * p["scale"]) + p["bias"]

    graph = check(norm, (X,), params=params)
    assert ops(graph) == ["mul", "add"]
    assert list(constants(graph)) == ["variance.folded", "bias"]


def test_float64_parameters_and_inputs_have_the_type_that_jax_gives_them() -> None:
    graph = to_graph(lambda p, x: x @ p, (X.astype(np.float64),), params=normal(4, 4).astype(np.float64), name="t")
    assert {str(value.type.dtype) for value in (*graph.inputs, *graph.constants)} == {"f32"}


@pytest.mark.parametrize(
    ("function", "inputs", "names"),
    [
        (lambda image: image + 1, [X], ["image"]),
        (lambda *xs: xs[0] + xs[1], [X, X], ["x0", "x1"]),
        (lambda a, b: a + b, {"b": X, "a": X}, ["b", "a"]),
        (lambda pair: pair["u"] - pair["v"][0], [{"u": X, "v": [X]}], ["pair.u", "pair.v.0"]),
    ],
)
def test_input_names(function: Any, inputs: Any, names: list[str]) -> None:
    assert [value.name for value in to_graph(function, inputs, name="t").inputs] == names


def test_input_names_can_be_chosen() -> None:
    graph = to_graph(lambda a, b: a - b, [X, X + 1], name="t", input_names=["left", "right"])
    assert [value.name for value in graph.inputs] == ["left", "right"]
    got = run_reference(graph, {"left": X, "right": X + 1}, precision="f32")["y"]
    np.testing.assert_allclose(got, -1, rtol=1e-6)


def test_mapping_inputs_are_passed_by_name() -> None:
    graph = to_graph(lambda a, b: a - b, {"b": X, "a": X + 1}, name="t")
    np.testing.assert_allclose(run_reference(graph, {"b": X, "a": X + 1}, precision="f32")["y"], 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ["y"]),
        (lambda x: (x + 1,), ["y"]),
        (lambda x: (x + 1, x - 1), ["y0", "y1"]),
        (lambda x: [x, [x + 1, x]], ["y0", "y1.0", "y1.1"]),
        (lambda x: {"logits": x + 1, "hidden": (x, x)}, ["hidden.0", "hidden.1", "logits"]),
        (lambda x: (x, np.ones(3, np.float32)), ["y0", "y1"]),
    ],
)
def test_output_names(function: Any, names: list[str]) -> None:
    assert [output.name for output in check(function, (X,)).outputs] == names


def test_unsupported_primitives_are_listed_all_at_once() -> None:
    def function(x: Any) -> Any:
        a = lax.lgamma(x)
        b = lax.erf_inv(a + 1)
        c = lax.lgamma(b)
        return jnp.fft.fft(c).real + lax.top_k(c, 4)[0]

    with pytest.raises(UnsupportedOperatorsError) as caught:
        to_graph(function, (X,), name="t")
    refused = caught.value.operators
    assert [record.op for record in refused] == ["lgamma", "erf_inv", "lgamma", "convert_element_type", "fft", "real"]
    first = function.__code__.co_firstlineno
    assert [record.where for record in refused[:3]] == [f"test_jax.py:{first + line} ({function.__qualname__})" for line in (1, 2, 3)]
    assert "complex64" in refused[3].reason
    assert "lgamma (2x)" in str(caught.value)


def test_what_the_op_set_cannot_type_is_refused_with_the_rule() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="bf16"):
        to_graph(lambda x: jnp.exp(x.astype(jnp.bfloat16)).astype(jnp.float32), (X,), name="t")


def test_random_keys_that_nothing_reads_are_dropped() -> None:
    def function(x: Any) -> Any:
        keys = jax.random.split(jax.random.key(x[0, 0].astype(jnp.int32)))
        jax.debug.print("{}", x)
        jax.random.normal(keys[0], (3,))
        return x * 2

    assert ops(check(function, (X,))) == ["mul"]


def test_numbers_drawn_from_a_fixed_key_are_constants() -> None:
    graph = check(lambda x: x + jax.random.normal(jax.random.key(3), (2, 4)), (X,))
    assert ops(graph) == ["add"]


def test_numbers_drawn_at_run_time_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="random"):
        to_graph(lambda x, seed: x + jax.random.normal(jax.random.key(seed), (2, 4)), (X, np.int32(1)), name="t")


def test_a_condition_known_at_export_is_decided() -> None:
    flag = np.array(True)
    assert ops(check(lambda x: lax.cond(flag, jnp.sin, jnp.cos, x), (X,))) == ["sin"]


def test_a_function_that_fails_is_reported() -> None:
    with pytest.raises(ExportError, match="TypeError"):
        to_graph(lambda x: x @ "nonsense", (X,), name="t")


def test_nodes_carry_their_source() -> None:
    def layer(x: Any) -> Any:
        return jnp.sin(x)

    (node,) = check(layer, (X,)).nodes
    assert node.source == {"op": "sin", "where": f"test_jax.py:{layer.__code__.co_firstlineno + 1} ({layer.__qualname__})"}


@pytest.mark.parametrize("name", ["jax_mlp", "jax_cnn"])
def test_zoo_model_exports_and_agrees(name: str, tmp_path: Path) -> None:
    summary = export_model(name, tmp_path)
    assert is_finished(tmp_path / name)
    assert summary.golden_error < 1e-5
    graph = load_graph(tmp_path / name)
    golden = read_golden(tmp_path / f"{name}.golden.safetensors")
    assert golden.metadata["framework"] == "jax"
    got = run_reference(graph, golden.inputs, precision="f32")
    np.testing.assert_allclose(got["y"], golden.outputs["y"], rtol=1e-4, atol=1e-4)
    assert all(np.ptp(constant.data) > 0 for constant in graph.constants)


def test_zoo_models_are_the_same_every_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        export_model("jax_mlp", tmp_path / folder)
    assert (tmp_path / "a/jax_mlp.safetensors").read_bytes() == (tmp_path / "b/jax_mlp.safetensors").read_bytes()
    assert (tmp_path / "a/jax_mlp.json").read_bytes() == (tmp_path / "b/jax_mlp.json").read_bytes()


def test_name_defaults_to_the_file(tmp_path: Path) -> None:
    summary = export(lambda x: {"out": x * 2}, [X], tmp_path / "double.v1")
    assert summary.name == "double.v1"
    assert list(read_golden(tmp_path / "double.v1.golden.safetensors").outputs) == ["out"]


def test_importing_the_exporter_imports_no_jax() -> None:
    code = "import sys, exporters.from_jax, exporters.models.jax_models; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_jax_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ExportError, match=r"pip install rml-exec\[jax\]") as caught:
        to_graph(lambda x: x, (X,), name="t")
    assert caught.value.exit_code == 5
