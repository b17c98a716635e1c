"""The real arms, as far as they can be tested without a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.adapters.base import ARMS, Adapter, UnavailableError, make_adapter
from bench.processes import child_environment
from exporters.models.zoo import all_models
from rml_exec.graph_run import compare_with_golden, load_golden

METHODS = ("load", "bind", "call", "outputs", "facts")


@pytest.mark.parametrize("arm", ARMS)
def test_an_adapter_has_the_methods_of_the_protocol(arm):
    adapter = make_adapter(ARMS[arm].adapter)
    assert all(callable(getattr(adapter, method)) for method in METHODS)
    assert set(METHODS) <= set(dir(Adapter))


def test_every_model_runs_on_the_reference_and_on_its_own_framework():
    for model in all_models().values():
        assert {"rml", model.framework} <= {name for name, arm in ARMS.items() if model.framework in arm.runs}


@pytest.mark.parametrize(
    ("arm", "module", "extra"), [("torch", "torch", "torch"), ("jax", "jax", "jax"), ("tf", "tensorflow", "tensorflow")]
)
def test_a_framework_that_is_not_installed_is_unavailable(monkeypatch, arm, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match=rf"is not installed \(.*\); pip install rml-exec\[{extra}\]"):
        make_adapter(ARMS[arm].adapter).load(f"{arm}_mlp", "graphs", 1)


def test_the_executors_arm_gives_the_golden(graphs: Path):
    adapter = make_adapter(ARMS["rml"].adapter)
    adapter.load("tiny_mlp", str(graphs), 1)
    golden = load_golden(graphs / "tiny_mlp")
    adapter.bind(golden.inputs)
    outputs = adapter.outputs(adapter.call())
    assert compare_with_golden(outputs, golden).passed
    assert all(isinstance(array, np.ndarray) for array in outputs.values())
    facts = adapter.facts()
    assert facts.options["threads"] == 1
    assert facts.load_ms > 0


def test_a_worker_imports_no_numpy_before_it_has_pinned_itself():
    code = "import bench.worker, sys; assert not {'numpy', 'rml_exec', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=child_environment(), check=True)
