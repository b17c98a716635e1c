import json
import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bench.kernel_arms import ArmProcess, Block, installed_peers
from bench.kernel_benchmark import main
from bench.kernel_cases import Case, Work, all_cases, elementwise_graph, work_of
from bench.kernel_peers import PREPARE
from bench.kernel_report import summary
from rml_exec import KernelError, isa_info
from rml_exec.passes import lower_graph
from rml_exec.runtime.compilation import compile_graph
from rml_exec.runtime.reference import run_reference

QUICK = ["--repeat", "2", "--block-ms", "1"]
CASES = {case.name: case for case in all_cases()}


def report(capsys, *arguments):
    assert main([*QUICK, *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_say_what_was_measured_and_the_limits_of_the_same_run(capsys):
    found = report(capsys, "--filter", "^gemm 8x768x768")
    (row,), (limits,) = found["rows"], found["limits"]
    assert (row["kernel"], row["shape"], row["isa"], row["threads"]) == ("gemm", "8x768x768", isa_info()["name"], 1)
    assert row["native"] == "gemm"
    assert row["of_peak"] == pytest.approx(row["gflops"] / row["peak_gflops"], rel=0.5)
    assert row["gflops"] * row["microseconds"] == pytest.approx(2 * 8 * 768 * 768 / 1e3, rel=0.01)
    assert row["peers"] == {}
    assert {"isa", "threads", "peak", "L1", "L2", "L3", "DRAM"} == set(limits)
    assert min(limits[name] for name in ("peak", "L1", "L2", "L3", "DRAM")) > 0
    assert found["machine"]["isa"] == isa_info()["name"]


def test_every_instruction_set_and_thread_count_has_a_row(capsys):
    isas = isa_info()["available"]
    found = report(capsys, "--filter", "^softmax 1x1000|^take 128", "--isa", "all")
    assert sorted((row["isa"], row["kernel"]) for row in found["rows"]) == sorted(
        (isa, kernel) for isa in isas for kernel in ("softmax", "take")
    )
    assert [level["isa"] for level in found["limits"]] == list(isas)


def test_peers_run_what_they_can(capsys):
    rows = report(capsys, "--filter", "^layer_norm 64x256|^depthwise3x3 7x7x960|^mul_add_sigmoid_mul 4096", "--peers")["rows"]
    peers, names = {row["kernel"]: row["peers"] for row in rows}, installed_peers()
    assert list(peers["layer_norm"]) == [name for name in names if name != "hand"]
    assert list(peers["mul_add_sigmoid_mul"]) == [name for name in names if name == "hand"]
    assert peers["depthwise3x3"] == {}
    assert min(peers["layer_norm"].values()) > 0


FIRST = ("gemm 8x768x768", "layer_norm 64x256", "softmax 1x1000", "attention 8x64x32")
COMPARED = [case for case in all_cases() if case.name.startswith(FIRST)]
COMPARED += [replace(case, graph=partial(elementwise_graph, case.kernel, 1000)) for case in all_cases() if case.shape == "1048576"]
LACKING = {("numpy", "erf"), ("numpy", "gelu")}


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: case.name)
@pytest.mark.parametrize("peer", ["numpy", "torch", "onnxruntime"])
def test_peers_compute_the_same(case, peer):
    if peer not in installed_peers():
        pytest.skip(f"{peer} is not installed")
    graph = case.graph()
    inputs = case.inputs(graph)
    call = PREPARE[peer](graph, inputs)
    if (peer, case.kernel) in LACKING:
        assert call is None
        return
    found = call()
    found = found.numpy() if hasattr(found, "numpy") else found
    (expected,) = run_reference(graph, dict(zip((value.name for value in graph.inputs), inputs, strict=True)), precision="f64").values()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("count", [1, 127, 128, 1000])
def test_the_loop_by_hand_computes_the_same(count):
    if "hand" not in installed_peers():
        pytest.skip("needs a compiler and the sources of the kernels")
    graph = elementwise_graph("mul_add_sigmoid_mul", count)
    x = np.linspace(-9, 9, count, dtype=np.float32)
    (expected,) = run_reference(graph, {"x": x}, precision="f64").values()
    np.testing.assert_allclose(PREPARE["hand"](graph, [x])(), expected, rtol=1e-5, atol=1e-6)


def test_the_report_goes_to_a_file_and_a_table_to_standard_output(capsys, tmp_path):
    assert main([*QUICK, "--filter", "^softmax 1x1000", "--json", str(tmp_path / "report.json")]) == 0
    assert len(json.loads((tmp_path / "report.json").read_text())["rows"]) == 1
    assert "softmax" in capsys.readouterr().out


def test_the_list_names_every_row_once(capsys):
    assert main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == list(CASES)
    assert len(names) == len(all_cases())


SMALL = [case for case in all_cases() if "50257" not in case.shape and "30522" not in case.shape]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_no_row_runs_in_numpy(case):
    compiled = compile_graph(lower_graph(case.graph()), threads=1, numerics=case.numerics)
    assert compiled.native


def kernels(name):
    case = CASES[name]
    return ",".join(step.kernel for step in compile_graph(lower_graph(case.graph()), threads=1, numerics=case.numerics).steps)


def test_a_row_measures_the_kernel_that_an_executor_would_choose():
    assert kernels("conv3x3 56x56x64x576 resnet50") == "conv"
    assert kernels("conv3x3_fast 56x56x64x576 resnet50").startswith("winograd")
    assert kernels("conv1x1 56x56x64x256 resnet50") == kernels("gemm+gelu 128x3072x768 bert") == "gemm"
    assert kernels("pack_b 768x768").startswith("pack_b")


def test_work_counts_operations_and_what_moves_once():
    assert work_of(CASES["gemm 8x768x768"].graph()) == Work(2 * 8 * 768 * 768, 4 * (8 * 768 + 768 * 768 + 768), 4 * 8 * 768)
    read = work_of(CASES["take 128 of 30522x768 bert"].graph()).read
    assert read == 128 * 768 * 4 + 128 * 8, "a table is not read as a whole"


def block(seconds, *, flops=1000, read=100, written=0):
    return Block(seconds, 2e9, 1e9, "gemm", Work(flops, read, written))


def test_a_row_is_made_of_medians_and_of_ratios_within_rounds():
    case = CASES["gemm 8x768x768"]
    row = summary(case, "avx2", 1, [block(1e-6), block(2e-6), block(4e-6)], {"numpy": [1e-6, 4e-6, 16e-6]})
    assert (row.microseconds, row.gflops, row.gbytes) == (2.0, 0.5, 0.05)
    assert (row.bound, row.of_peak, row.fraction) == ("compute", 0.25, 0.25)
    assert row.peers == {"numpy": 2.0}
    memory = summary(case, "avx2", 1, [block(1e-6, flops=100, read=400, written=100)], {})
    assert (memory.bound, memory.of_peak, memory.fraction) == ("memory", 0.05, 0.5)


def test_an_arm_that_fails_says_why():
    arm = ArmProcess(isa_info()["name"], [0])
    try:
        with pytest.raises(KeyError, match="no such row"):
            arm.block(Case("no such row", "", "", lambda: None), 1, 0.001)
        os.kill(arm.pid, signal.SIGKILL)
        with pytest.raises(KernelError, match="row 'gemm 8x768x768'"):
            arm.block(CASES["gemm 8x768x768"], 1, 0.001)
    finally:
        arm.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--filter", "("],
        ["--filter", "nothing"],
        ["--repeat", "0"],
        ["--block-ms", "nan"],
        ["--threads", "0"],
        ["--threads", "x"],
        ["--isa", "mmx"],
        ["--peers", "mkl"],
    ],
)
def test_bad_usage_is_exit_code_2(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
