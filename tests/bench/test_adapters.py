"""The real arms: each by itself, and all that can run a model side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.adapters.base import ARMS, Adapter, UnavailableError, make_adapter
from bench.adapters.torch_compile import TorchCompileAdapter
from bench.processes import CACHE_VARIABLE, child_environment
from bench.records import CellRecord
from bench.supervisor import run_cells
from exporters.models.zoo import all_models
from rml_exec.graph_run import compare_with_golden, load_golden
from tests.bench.conftest import QUICK

METHODS = ("load", "bind", "call", "outputs", "facts", "compile_times", "product")
MODULES = {
    "torch": ("torch", "torch"),
    "torch-compile": ("torch", "torch"),
    "jax": ("jax", "jax"),
    "tf": ("tensorflow", "tensorflow"),
    "tf-xla": ("tensorflow", "tensorflow"),
    "onnxruntime": ("onnxruntime", "peers"),
    "openvino": ("openvino", "peers"),
}
"""Arm -> its module, and the extra that installs it."""


@pytest.mark.parametrize("arm", ARMS)
def test_an_adapter_has_the_methods_of_the_protocol(arm):
    adapter = make_adapter(ARMS[arm].adapter)
    assert all(callable(getattr(adapter, method)) for method in METHODS)
    assert set(METHODS) <= set(dir(Adapter))


def test_every_model_runs_on_the_executor_on_its_own_framework_and_on_those_that_take_graphs():
    for model in all_models().values():
        able = {name for name, arm in ARMS.items() if model.framework in arm.runs}
        assert {"rml", "rml-exact", "onnxruntime", "openvino", model.framework} <= able


@pytest.mark.parametrize("arm", MODULES)
def test_a_framework_that_is_not_installed_is_unavailable(monkeypatch, arm):
    module, extra = MODULES[arm]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("HOME", "/")  # which an adapter may change
    with pytest.raises(UnavailableError, match=rf"is not installed \(.*\); pip install rml-exec\[{extra}\]"):
        make_adapter(ARMS[arm].adapter).load("tiny_mlp", "graphs", 1)


def test_another_interpreter_may_lack_the_executor(monkeypatch):
    monkeypatch.setitem(sys.modules, "rml_exec", None)
    with pytest.raises(UnavailableError, match=r"rml-exec is not installed \(.*\); pip install rml-exec$"):
        make_adapter(ARMS["rml"].adapter).load("tiny_mlp", "graphs", 1)


@pytest.mark.parametrize(("arm", "numerics"), [("rml", "fast"), ("rml-exact", "exact")])
@pytest.mark.parametrize("setup", ["tuned", "installed"])
def test_the_executors_arms_give_the_golden(graphs: Path, arm, numerics, setup):
    adapter = make_adapter(ARMS[arm].adapter)
    adapter.load("tiny_mlp", str(graphs), 1, setup)
    golden = load_golden(graphs / "tiny_mlp")
    adapter.bind(golden.inputs)
    outputs = adapter.outputs(adapter.call())
    assert compare_with_golden(outputs, golden).passed
    assert all(isinstance(array, np.ndarray) for array in outputs.values())
    facts = adapter.facts()
    assert facts.options["numerics"] == numerics
    assert facts.options["threads"] == 1 or setup == "installed"
    assert facts.load_ms > 0
    assert 0 < facts.rss_after_import_bytes <= facts.rss_after_load_bytes
    assert adapter.compile_times(1.0) == (None, None)


def test_a_worker_imports_no_numpy_before_it_has_pinned_itself():
    code = "import bench.worker, sys; assert not {'numpy', 'rml_exec', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=child_environment(), check=True)


def test_a_cache_without_a_supervisor_ends_with_the_process():
    code = "from bench.adapters.framework import cache_directory; print(cache_directory())"
    environment = {name: value for name, value in child_environment().items() if name != CACHE_VARIABLE}
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert found
    assert not Path(found).exists()


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., dict[str, CellRecord]]:
    """Returns a function that exports a model and measures arms on it; those whose framework is missing skip the test."""

    def measure(model: str, *arms: str, setup: str = "tuned") -> dict[str, CellRecord]:
        export = [sys.executable, "-P", "-m", "exporters", "--models", model, "--out", str(tmp_path)]
        subprocess.run(export, env=child_environment(), check=True, capture_output=True)
        settings = replace(QUICK, setup=setup, calls=2)
        records = run_cells(model, 1, ["rml", *arms], graphs=str(tmp_path), settings=settings, environment={}).records
        assert [(record.framework, record.status, record.reason) for record in records] == [(arm, "ok", "") for arm in ("rml", *arms)]
        return {record.framework: record for record in records}

    return measure


def check_whole(record: CellRecord) -> None:
    """Checks what every arm must tell."""
    assert record.check == "pass"
    assert [reason for reason in record.parity_reasons if "throttled" not in reason] == []
    assert (record.precision, record.cpu_outside_affinity_s) == ("f32", 0.0)
    assert record.flush_denormals is not None
    assert min(record.import_ms, record.load_ms, record.first_call_ms) > 0
    phases = (record.rss_after_import_bytes, record.rss_after_load_bytes, record.rss_after_first_call_bytes)
    assert 0 < min(phases) <= max(phases) <= record.rss_peak_bytes
    assert record.framework_version[0].isdigit()


@pytest.mark.torch
def test_torch(measure):
    pytest.importorskip("torch")
    found = measure("torch_mlp", "torch")["torch"]
    check_whole(found)
    assert (found.options["inference_mode"], found.options["num_threads"], found.options["num_interop_threads"]) == (True, 1, 1)
    assert found.options["float32_matmul_precision"] == "highest"
    assert (found.compile_cold_ms, found.compile_warm_ms) == (None, None)


@pytest.mark.torch
def test_torch_as_installed(measure):
    pytest.importorskip("torch")
    found = measure("torch_mlp", "torch", setup="installed")["torch"]
    check_whole(found)
    assert (found.options["inference_mode"], found.options["channels_last"]) == (False, False)


@pytest.mark.torch
@pytest.mark.slow
def test_torch_compile(measure):
    pytest.importorskip("torch")
    found = measure("torch_mlp", "torch-compile")["torch-compile"]
    check_whole(found)
    assert (found.options["freezing"], found.options["graph_breaks"]) == (True, 0)
    assert found.compile_cold_ms > found.compile_warm_ms > 0


@pytest.mark.torch
def test_torch_compile_without_a_compiler_is_unavailable(graphs):
    pytest.importorskip("torch")
    cell = {"adapter": ARMS["torch-compile"].adapter, "model": "torch_mlp", "graphs": str(graphs), "threads": 1}
    code = f"from bench.worker import Session; Session({cell!r}).load()"
    found = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(CXX="/no/such/compiler"), capture_output=True, text=True, check=False
    )
    assert "UnavailableError: torch.compile needs a C++ compiler" in found.stderr.splitlines()[-1]


def test_a_compile_that_fails_says_why_in_one_short_sentence():
    def fails() -> None:
        raise ValueError("the compiler\nsaid: " + "no " * 1000)

    adapter = TorchCompileAdapter()
    adapter.tuned, adapter._compiled, adapter._inputs, adapter._module = False, False, [], fails
    with pytest.raises(RuntimeError, match=r"^torch\.compile: ValueError: the compiler said: no no") as raised:
        adapter.call()
    assert len(str(raised.value)) < 400


@pytest.mark.jax
def test_jax(measure):
    pytest.importorskip("jax")
    found = measure("jax_mlp", "jax")["jax"]
    check_whole(found)
    assert found.options["compilation_cache"] is True
    assert found.compile_cold_ms > 0
    assert found.compile_warm_ms is not None


@pytest.mark.tf
def test_tensorflow_without_and_with_xla(measure):
    pytest.importorskip("tensorflow")
    found = measure("tf_mlp", "tf", "tf-xla")
    for arm, compiled in (("tf", False), ("tf-xla", True)):
        check_whole(found[arm])
        options = found[arm].options
        assert (options["intra_op_threads"], options["inter_op_threads"], options["tensor_float_32"]) == (1, 1, False)
        assert options["jit_compile"] is compiled
        assert (found[arm].compile_cold_ms is not None) is compiled


@pytest.fixture
def measure_tiny(graphs: Path) -> Callable[..., CellRecord]:
    """Returns a function that measures one arm on tiny_mlp."""

    def measure(arm: str, **changes: object) -> CellRecord:
        pytest.importorskip("onnx")
        return run_cells("tiny_mlp", 1, [arm], graphs=str(graphs), settings=replace(QUICK, calls=2, **changes), environment={}).records[0]

    return measure


@pytest.mark.onnx
def test_onnxruntime_runs_the_graph(measure_tiny):
    pytest.importorskip("onnxruntime")
    found = measure_tiny("onnxruntime")
    assert (found.status, found.reason) == ("ok", "")
    check_whole(found)
    options = found.options
    assert (options["intra_op_num_threads"], options["inter_op_num_threads"]) == (1, 1)
    assert (options["execution_mode"], options["graph_optimization_level"]) == ("ORT_SEQUENTIAL", "ORT_ENABLE_ALL")
    assert options["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.onnx
def test_onnxruntime_as_installed(measure_tiny):
    pytest.importorskip("onnxruntime")
    found = measure_tiny("onnxruntime", setup="installed")
    assert (found.status, found.check, found.precision) == ("ok", "pass", "f32")
    assert (found.options["intra_op_num_threads"], found.options["io_binding"]) == (0, False)
    assert found.options["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.onnx
def test_openvino_runs_the_graph_in_float32(measure_tiny):
    pytest.importorskip("openvino")
    found = measure_tiny("openvino")
    assert (found.status, found.reason) == ("ok", "")
    check_whole(found)
    options = found.options
    assert (options["PERFORMANCE_HINT"], options["NUM_STREAMS"], options["INFERENCE_NUM_THREADS"]) == ("LATENCY", 1, 1)
    assert (options["INFERENCE_PRECISION_HINT"], options["ENABLE_CPU_PINNING"]) == ("f32", False)
    assert options["telemetry"] == "opted out"
    assert found.compile_cold_ms > 0
    assert found.compile_warm_ms > 0


@pytest.mark.onnx
def test_openvino_as_installed_tells_the_precision_it_computes_in(measure_tiny):
    pytest.importorskip("openvino")
    found = measure_tiny("openvino", setup="installed")
    assert found.options["INFERENCE_PRECISION_HINT"] == found.precision
    assert (found.precision == "f32") == (found.status == "ok")


@pytest.mark.onnx
@pytest.mark.parametrize("arm", ["onnxruntime", "openvino"])
def test_callers_at_once_do_not_share_a_request(measure_tiny, arm):
    pytest.importorskip(arm)
    found = measure_tiny(arm, scenario="concurrent", callers=3)
    assert (found.status, found.reason, found.check) == ("ok", "", "pass")
    assert found.iterations == 2 * 3 * QUICK.min_rounds
