"""A fault in one kernel is planted into every step of every graph, fused and not, and must be found there and nowhere else."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rml_exec.graph_run import bisect, culprit, single_step
from rml_exec.graph_run.main import main
from rml_exec.graph_run.rounding import expected_rounding
from rml_exec.ir.format import model_paths
from rml_exec.ir.golden import Golden, write_golden
from rml_exec.loading import GraphBuilder, load_graph, save_graph
from rml_exec.runtime import compilation, winograd
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.places import ARENA, CONSTANT, INPUT, OUTPUT
from tests.helpers.graphs import chain_graph, pattern, random_inputs
from tests.helpers.step_graphs import STEP_GRAPHS, residual_graph


def scaled(array):
    array *= array.dtype.type(1.001)


def one_element(array):
    worst = np.unravel_index(np.argmax(np.abs(array)), array.shape)
    array[worst] *= array.dtype.type(1.001)


def plant(monkeypatch, node, fault):
    """Makes every program that runs the node spoil its first float result right after it."""

    class Linker(compilation._Linker):
        planted = False

        def _append(self, kind, params, places, in_python=None):
            if self._steps[-1].node != node:
                self._plant()
            super()._append(kind, params, places, in_python)

        def _add_observer(self, observer, node):
            self._plant()
            super()._add_observer(observer, node)

        def _add_output_copies(self):
            self._plant()
            super()._add_output_copies()

        def _plant(self):
            index = next((number for number, step in enumerate(self._steps) if step.node == node), None)
            if self.planted or index is None:
                return
            self.planted = True
            lowered = next(member for member in self._graph.nodes if member.name == node)
            value = self._strided(next(value.name for value in lowered.outputs if value.type.dtype.is_float))

            def spoil(arena, inputs, outputs):
                fault(value.array({ARENA: (arena,), INPUT: inputs, OUTPUT: outputs, CONSTANT: self._constants}))

            self._program.append((-1, np.zeros(0, np.int64), np.zeros((0, 3), np.int64), spoil))
            self._step_of.append(index)

    monkeypatch.setattr(compilation, "_Linker", Linker)


def inputs_of(graph):
    inputs = random_inputs(graph)
    if graph.name == "loop":
        inputs |= {"limit": np.array(7, np.int32), "n": np.array(0, np.int32), "factor": np.array(1.25, np.float32)}
    return inputs


def faulty_steps(graph, fuse):
    """Returns the nodes of the steps whose result a fault of 1e-3 shows in."""
    return [
        step.node.name
        for step in single_step.single_steps(Executor.create(graph, fuse=fuse))
        if any(value.type.dtype.is_float for value in step.node.outputs)
    ]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", STEP_GRAPHS)
def test_a_planted_fault_is_found_in_its_step(monkeypatch, name, fuse):
    graph = STEP_GRAPHS[name]()
    inputs = inputs_of(graph)
    nodes = faulty_steps(graph, fuse)
    assert nodes
    for node in nodes:
        for fault in (scaled, one_element):
            with monkeypatch.context() as patch:
                plant(patch, node, fault)
                executor = Executor.create(graph, fuse=fuse, threads=1)
                wrong = [found.error.node for found in bisect.bisect_steps(executor, inputs) if found.error.is_wrong()]
            assert wrong == [node], (node, fault.__name__)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", STEP_GRAPHS)
def test_no_step_is_wrong_without_a_fault(name, fuse, numerics):
    graph = STEP_GRAPHS[name]()
    executor = Executor.create(graph, fuse=fuse, numerics=numerics)
    found = [finding.error for finding in bisect.bisect_steps(executor, inputs_of(graph))]
    assert [error.label for error in found] == [step.label for step in executor.steps if step.label != "output"]
    assert max(max(error.excess, error.rewrite_excess) for error in found) < bisect.FACTOR / 2
    assert all(error.propagated_relative < 1e-4 for error in found)


def test_the_graphs_have_steps_of_every_kind():
    labels, kernels = set(), set()
    for build in STEP_GRAPHS.values():
        steps = Executor.create(build()).steps
        labels |= {step.label for step in steps}
        kernels |= {kernel for step in steps for kernel in step.kernel.split(",")}
    assert {"conv2d+batch_norm+relu", "linear+gelu", "attention", "lstm", "gru", "softmax", "scan", "while"} <= labels
    assert any(label.startswith("fused(") for label in labels)
    assert {"winograd4", "conv_depthwise", "gemm", "elementwise", "control"} <= kernels


def test_wrong_packed_weights_are_found(monkeypatch):
    transformed = winograd.transformed_weights

    def spoilt(weights, *arguments):
        points = np.array(transformed(weights, *arguments))
        points[int(np.argmax(np.abs(points)))] *= np.float32(1.001)
        return points

    graph = residual_graph()
    monkeypatch.setattr(winograd, "transformed_weights", spoilt)
    found = bisect.first_wrong(Executor.create(graph), inputs_of(graph))
    assert found is not None
    assert found.error.kernel == "winograd4"


def test_a_wrong_pass_is_told_from_a_wrong_kernel(monkeypatch):
    graph = residual_graph()
    executor = Executor.create(graph)
    lowered = executor.lowered
    biased = next(node for node in lowered.nodes if node.label == "conv2d+batch_norm+relu")
    bias = next(name for name in biased.reads() if executor.lowered.types()[name].shape == (32,))
    constants = tuple(c if c.name != bias else type(c)(c.name, c.type, np.array(c.data) + np.float32(0.01)) for c in lowered.constants)
    monkeypatch.setattr("rml_exec.runtime.executor.lower_graph", lambda *_, **__: lowered.with_nodes(lowered.nodes, constants))
    found = bisect.first_wrong(Executor.create(graph), inputs_of(graph))
    assert found is not None
    assert found.error.node == biased.name
    assert found.error.excess < bisect.FACTOR < found.error.rewrite_excess


def test_cancellation_is_not_a_fault():
    b = GraphBuilder("cancelling")
    x = b.input("x", "f32", (4, 512))
    w = b.constant(np.tile(np.array([1.1, -1.1], np.float32), 256)[None], name="w", key="w")
    b.output("y", b.add("linear", [x, w, None], weight_layout="oi"))
    graph = b.build()
    (found,) = bisect.bisect_steps(Executor.create(graph), {"x": random_inputs(graph)["x"] + np.float32(1e4)})
    assert found.error.local_error > 1e-5 * np.abs(found.wanted[0].value).max()
    assert found.error.excess < 1


def test_expected_errors_grow_with_the_length_of_the_sum():
    errors = []
    for length in (16, 4096):
        b = GraphBuilder("sum")
        w = b.constant(np.full((1, length), 1 / length, np.float32), name="w", key="w")
        b.output("y", b.add("linear", [b.input("x", "f32", (1, length)), w, None], weight_layout="oi"))
        (step,) = single_step.single_steps(Executor.create(b.build()))
        (wanted,) = expected_rounding(step, [np.ones((1, length))], "gemm")
        assert wanted.terms == length
        errors.append(float(wanted.error[0, 0]))
    assert errors[1] > 3 * errors[0] > 2**-24


@pytest.mark.parametrize(("limit", "runs"), [(1, "one per step"), (1 << 30, 1)])
def test_a_run_is_made_for_a_few_values_at_a_time(monkeypatch, limit, runs):
    monkeypatch.setattr(bisect, "TAP_BYTES", limit)
    graph = STEP_GRAPHS["transformer"]()
    executor = Executor.create(graph)
    calls = []
    run = bisect.run_compiled

    def counting(compiled, lowered, *arguments):
        calls.append(lowered is executor.lowered)
        return run(compiled, lowered, *arguments)

    monkeypatch.setattr(bisect, "run_compiled", counting)
    found = list(bisect.bisect_steps(executor, inputs_of(graph)))
    assert not any(finding.error.is_wrong() for finding in found)
    assert sum(calls) == (len(found) if runs == "one per step" else runs)


def test_overwritten_memory_is_found_where_it_is_read(monkeypatch):
    graph = STEP_GRAPHS["softmax"]()
    sound = Executor.create(graph)
    weights, logs = (next(node for node in sound.lowered.nodes if node.op == op) for op in ("softmax", "log_softmax"))
    reader = next(node for node in sound.lowered.nodes if weights.outputs[0].name in node.reads())
    plan_memory = compilation.plan_memory

    def overlapping(plan, external):
        memory = plan_memory(plan, external=external)
        offsets = dict(memory.offsets)
        if {weights.outputs[0].name, logs.outputs[0].name} <= set(offsets):
            offsets[logs.outputs[0].name] = offsets[weights.outputs[0].name]
        return replace(memory, offsets=offsets)

    monkeypatch.setattr(compilation, "plan_memory", overlapping)
    found = bisect.first_wrong(Executor.create(graph), inputs_of(graph))
    assert found is not None
    assert found.error.node == reader.name
    assert found.error.differs_in_run
    assert max(found.error.excess, found.error.rewrite_excess) < bisect.FACTOR
    assert found.error.propagated_relative > 1e-3


@pytest.fixture
def model(tmp_path):
    def save(graph):
        prefix = tmp_path / "model"
        save_graph(graph, prefix)
        write_golden(model_paths(prefix).golden, Golden(inputs_of(graph), {}, {}))
        return prefix

    return save


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", STEP_GRAPHS)
def test_the_culprit_is_written_as_a_model_that_fails_until_it_is_mended(model, monkeypatch, capsys, tmp_path, name, fuse):
    graph = STEP_GRAPHS[name]()
    prefix, out, flags = model(graph), tmp_path / "culprit", [] if fuse else ["--no-fuse"]
    for node in faulty_steps(graph, fuse):
        with monkeypatch.context() as patch:
            plant(patch, node, one_element)
            code, found, err = run(capsys, prefix, "--bisect", "--out", out, *flags)
            assert code == 1
            assert (found["culprit"]["node"], found["repro"], found["reproduces"]) == (node, str(out), True)
            assert f"'{node}'" in err
            code, report, _ = run(capsys, out, "--check", *flags)
            assert (code, report["check"]) == (1, "fail")
        assert run(capsys, out, "--check", *flags)[0] == 0
        assert len(load_graph(out).nodes) <= len(graph.nodes)


def test_a_sound_model_is_exit_code_0_and_writes_nothing(model, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prefix = model(STEP_GRAPHS["cnn"]())
    before = sorted(path.name for path in tmp_path.iterdir())
    code, found, err = run(capsys, prefix, "--bisect")
    assert (code, found["culprit"], found["wrong"], found["repro"]) == (0, None, [], None)
    assert len(found["steps"]) == 5
    assert "no step of 5" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_graph_with_dims_is_bound_to_its_inputs(tmp_path, capsys, monkeypatch):
    b = GraphBuilder("dims")
    x = b.input("x", "f32", (3, 8))
    w = b.constant(pattern(4, 8), name="w", key="w")
    b.output("y", b.add("softmax", [b.add("linear", [x, w, None], weight_layout="oi")], axis=1, fully_masked="nan"))
    save_graph(b.build(), tmp_path / "dims")
    path = tmp_path / "dims.json"
    document = json.loads(path.read_text())
    document["dims"] = {"n": {"min": 1, "max": None, "hint": 3}}
    for value in (*document["inputs"], *(value for node in document["nodes"] for value in node["outputs"])):
        value["shape"] = ["n", *value["shape"][1:]]
    path.write_text(json.dumps(document))
    write_golden(tmp_path / "dims.golden.safetensors", Golden({"x": pattern(5, 8, step=3)}, {}, {}))
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "dims", "--bisect")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bisect", "--check"], "does not go with"),
        (["--bisect", "--bench", "3"], "does not go with"),
        (["--bisect", "--show", "graph"], "--show runs nothing"),
        (["--out", "x"], "--out goes with --bisect"),
    ],
)
def test_options_that_do_not_go_together_are_refused(model, capsys, arguments, text):
    prefix = model(chain_graph(3))
    with pytest.raises(SystemExit) as ended:
        main([str(prefix), *arguments])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_the_model_itself_is_never_overwritten(model, capsys):
    prefix = model(chain_graph(3))
    code, _, err = run(capsys, prefix, "--bisect", "--out", prefix)
    assert code == 2
    assert "must name files of its own" in err


def test_the_culprit_is_named_after_the_model(model, capsys, tmp_path, monkeypatch):
    graph = chain_graph(3)
    prefix = model(graph)
    plant(monkeypatch, faulty_steps(graph, True)[0], scaled)
    monkeypatch.chdir(tmp_path)
    assert culprit.bisect_model(prefix).repro == "model.culprit"
    assert run(capsys, "model.culprit", "--check")[0] == 1
