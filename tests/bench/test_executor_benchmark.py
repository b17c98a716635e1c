import json

import pytest

from bench.executor_benchmark import main, register
from rml_exec import save_graph
from tests.helpers.graphs import cnn_graph, mlp_graph


@pytest.fixture
def folder(tmp_path, monkeypatch):
    save_graph(mlp_graph(), tmp_path / "mlp")
    save_graph(cnn_graph(), tmp_path / "cnn")
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.setenv("RML_GRAPH_DIR", str(tmp_path))
    return tmp_path


def run(capsys, *arguments):
    assert main(["--benchmark_min_time=3x", "--benchmark_min_warmup_time=0", *arguments]) == 0
    return capsys.readouterr().out


def test_every_graph_is_a_benchmark_in_the_json_of_google_benchmark(folder, capsys):
    found = json.loads(run(capsys, "--benchmark_format=json"))
    assert found["context"]["json_schema_version"] == 1
    assert {"date", "host_name", "executable", "num_cpus", "mhz_per_cpu", "cpu_scaling_enabled", "caches", "load_avg", "library_version",
            "library_build_type"} <= set(found["context"])  # fmt: skip
    rows = {row["name"]: row for row in found["benchmarks"]}
    assert list(rows) == ["executor/broken", "executor/cnn", "executor/mlp"]
    row = rows["executor/mlp"]
    assert (row["run_name"], row["run_type"], row["repetitions"], row["repetition_index"], row["threads"]) == (
        "executor/mlp",
        "iteration",
        1,
        0,
        1,
    )
    assert (row["iterations"], row["time_unit"]) == (3, "us")
    assert row["real_time"] > 0
    assert row["cpu_time"] > 0


def test_a_graph_that_does_not_load_is_skipped_with_its_reason(folder, capsys):
    row = json.loads(run(capsys, "--benchmark_format=json", "--benchmark_filter=broken"))["benchmarks"][0]
    assert row["skipped"]
    assert "broken.json" in row["skip_message"]
    assert "SKIPPED" in run(capsys, "--benchmark_filter=broken")


def test_repetitions_have_aggregates(folder, capsys):
    arguments = [
        "--benchmark_format=json",
        "--benchmark_filter=mlp",
        "--benchmark_repetitions=4",
        "--benchmark_enable_random_interleaving=true",
    ]
    rows = json.loads(run(capsys, *arguments))["benchmarks"]
    assert [row["run_type"] for row in rows] == ["iteration"] * 4 + ["aggregate"] * 4
    assert [row["aggregate_name"] for row in rows[4:]] == ["mean", "median", "stddev", "cv"]
    times = [row["real_time"] for row in rows[:4]]
    assert rows[4]["real_time"] == pytest.approx(sum(times) / 4)
    assert rows[7]["real_time"] == pytest.approx(rows[6]["real_time"] / rows[4]["real_time"])
    only = json.loads(run(capsys, *arguments, "--benchmark_report_aggregates_only"))["benchmarks"]
    assert {row["run_type"] for row in only} == {"aggregate"}


@pytest.mark.parametrize(("pattern", "names"), [("mlp|cnn", ["cnn", "mlp"]), ("-broken", ["cnn", "mlp"]), ("", ["broken", "cnn", "mlp"])])
def test_the_filter_chooses_and_negates(folder, capsys, pattern, names):
    assert run(capsys, "--benchmark_list_tests", f"--benchmark_filter={pattern}").split() == [f"executor/{name}" for name in names]


def test_results_go_to_a_file_too(folder, capsys, tmp_path):
    out = tmp_path / "results" / "out.json"
    assert main(["--benchmark_min_time=1x", "--benchmark_min_warmup_time=0", f"--benchmark_out={out}"]) == 2
    out.parent.mkdir()
    console = run(capsys, f"--benchmark_out={out}", "--benchmark_context=commit=abc")
    assert "Iterations" in console
    assert json.loads(out.read_text())["context"]["commit"] == "abc"
    assert run(capsys, "--benchmark_format=csv").splitlines()[0].startswith("name,iterations,real_time")


@pytest.mark.parametrize("option", ["min_time=fast", "min_time=0x", "repetitions=0", "filter=(", "context=x", "nonsense"])
def test_bad_usage_is_exit_code_2(folder, option):
    with pytest.raises(SystemExit) as caught:
        main([f"--benchmark_{option}"])
    assert caught.value.code == 2


def test_a_folder_without_graphs_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RML_GRAPH_DIR", str(tmp_path / "empty"))
    assert main([]) == 2
    assert "holds no graph" in capsys.readouterr().err


def test_without_the_variable_the_test_models_run(monkeypatch, capsys):
    monkeypatch.delenv("RML_GRAPH_DIR", raising=False)
    assert run(capsys, "--benchmark_list_tests").split() == ["executor/tiny_chain", "executor/tiny_cnn", "executor/tiny_mlp"]


def test_threads_and_fusion_are_those_asked_for(folder, capsys):
    context = json.loads(run(capsys, "--benchmark_format=json", "--threads=1", "--no-fuse"))["context"]
    assert (context["rml_threads"], context["rml_fuse"]) == ("1", "false")
    (fused, plain) = (register(folder, threads=1, fuse=fuse) for fuse in (True, False))
    assert len(plain[1].executor.steps) > len(fused[1].executor.steps)
