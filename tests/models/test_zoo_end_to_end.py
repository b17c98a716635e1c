"""Every zoo model from its framework to a checked run, as a user does it: in processes of their own, on every instruction set."""

import json
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from exporters.bundle import is_finished
from exporters.models.zoo import all_models
from rml_exec import Executor, isa_info, load_graph
from rml_exec.graph_run import compare_with_golden, load_golden
from rml_exec.runtime.reference import run_reference


def named(models):
    return [pytest.param(model.name, marks=getattr(pytest.mark, model.framework)) for model in models]


ZOO = named(model for model in all_models().values() if model.default)
TWINS = named(model.variant(size="tiny") for model in all_models().values() if "tiny" in model.sizes)
"""The small twins of the large models: the same architectures."""


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """Returns a function from a model's name to its path prefix; all models of a framework are exported by one process, once."""
    folder = tmp_path_factory.mktemp("graphs")

    @cache
    def export_all(framework):
        names = [param.values[0] for param in ZOO + TWINS if param.values[0].startswith(framework)]
        command = [sys.executable, "-m", "exporters", "--models", ",".join(names), "--out", str(folder)]
        return subprocess.run(command, check=False, capture_output=True, text=True).stderr

    def run(name):
        said = export_all(name.partition("_")[0])
        if not is_finished(folder / name):
            reason = next((line for line in said.splitlines() if line.startswith(f"{name}: ")), said)
            assert "must be installed" in reason, reason
            pytest.skip(reason)
        return folder / name

    return run


@cache
def wanted(model):
    """Returns the outputs of a model in float64."""
    return run_reference(load_graph(model), load_golden(model).inputs, precision="f64")


def graph_run(model, isa, *arguments):
    command = [sys.executable, "-m", "rml_exec.graph_run", str(model), "--check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "RML_ISA": isa})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("isa", isa_info()["available"])
@pytest.mark.parametrize("name", ZOO)
def test_the_check_passes_on_every_instruction_set(export, name, isa):
    model = export(name)
    golden = load_golden(model)
    rms = min(float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) for array in golden.outputs.values())
    for arguments in ([], ["--numerics", "exact"], ["--no-fuse", "--threads", "1"]):
        found = graph_run(model, isa, *arguments)
        assert found["check"] == "pass"
        assert "exact" not in arguments or found["max_abs_error"] <= 1e-5 * rms


@pytest.mark.parametrize("name", ZOO + TWINS)
def test_every_step_is_native_and_the_arena_close_to_its_lower_bound(export, name):
    executor = Executor.create(load_graph(export(name)))
    assert [step.label for step in executor.steps if not step.native] == []
    assert executor.memory.arena_bytes <= 1.10 * executor.memory.lower_bound_bytes


_EXACT_BITS = """
import hashlib, json, sys
from rml_exec import Executor, load_graph
from rml_exec.graph_run import load_golden
found = {}
for model in sys.argv[1:]:
    graph, inputs = load_graph(model), load_golden(model).inputs
    for threads in (1, 2):
        outputs = Executor.create(graph, numerics="exact", threads=threads).run(inputs)
        found[f"{model} {threads}"] = hashlib.sha256(b"".join(array.tobytes() for array in outputs.values())).hexdigest()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def exact_bits(export):
    """Returns a function from an instruction set and a framework to the hashes of all its models' outputs, on 1 and 2 threads."""

    @cache
    def run(isa, framework):
        models = [str(export(param.values[0])) for param in ZOO + TWINS if param.values[0].startswith(framework)]
        command = [sys.executable, "-c", _EXACT_BITS, *models]
        return json.loads(subprocess.run(command, check=True, capture_output=True, env={**os.environ, "RML_ISA": isa}).stdout)

    return run


@pytest.mark.parametrize("name", ZOO + TWINS)
def test_exact_gives_the_same_bits_on_every_instruction_set_with_fma_and_any_threads(export, exact_bits, name):
    model = export(name)
    isas = [isa for isa in isa_info()["available"] if isa != "baseline"]
    found = {(isa, threads): exact_bits(isa, name.partition("_")[0])[f"{model} {threads}"] for isa in isas for threads in (1, 2)}
    assert len(set(found.values())) <= 1, found


def rms(array):
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", ZOO + TWINS)
def test_the_error_against_float64_is_close_to_the_frameworks_own(export, name, numerics):
    graph, golden = load_graph(export(name)), load_golden(export(name))
    want = wanted(export(name))
    got = Executor.create(graph, numerics=numerics).run(golden.inputs)
    factor = 3 if numerics == "fast" and any(node.op == "conv2d" for node in graph.nodes) else 2
    if name.endswith("-tiny"):  # a handful of outputs: the ratio of two small errors scatters
        factor *= 2
    for output, array in got.items():
        half_ulp = float(np.spacing(np.float32(rms(want[output])))) / 2
        assert rms(array - want[output]) <= factor * float(golden.metadata[f"rms_error.{output}"]) + half_ulp


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_passes_its_check_with_and_without_fusion(export, name):
    golden = load_golden(export(name))
    for options in ({}, {"numerics": "exact"}, {"fuse": False, "threads": 1}):
        found = compare_with_golden(Executor.create(load_graph(export(name)), **options).run(golden.inputs), golden)
        assert found.passed, found.reason
