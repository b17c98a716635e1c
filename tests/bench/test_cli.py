"""The command: options, errors and exit codes, with fake arms; and one real run."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bench.cli
import bench.options
from bench.cli import main
from bench.commands import COMMANDS, find_command
from bench.exporting import ExportFailure
from bench.processes import child_environment
from bench.records import read_records
from bench.settings import Settings
from exporters.models.zoo import all_models
from rml_exec.graph_run import RunOptions, run_model
from tests.bench.conftest import process_ends, wait_for
from tests.bench.fake_cli import ZOO


@pytest.fixture
def zoo_graphs(graphs: Path) -> Path:
    """Returns a directory in which the fake zoo's models are exported."""
    for name in ZOO:
        for path in list(graphs.glob("tiny_mlp.*")):
            shutil.copy(path, graphs / path.name.replace("tiny_mlp", name))
    return graphs


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, zoo_graphs: Path, use_arms: Callable[..., list[str]]) -> Callable[..., int]:
    """Returns a function that runs the command with fake arms (default: two honest ones) on the fake zoo and returns its exit code."""
    monkeypatch.setattr(bench.cli, "all_models", lambda: ZOO)
    monkeypatch.setattr(bench.options, "Settings", functools.partial(Settings, warm_up_s=0.0, min_rounds=2, max_rounds=2, idle_s=0.01))

    def run(*arguments: str, **arms: str) -> int:
        use_arms(**(arms or {"rml": "Honest", "torch": "Second"}))
        return main(["--graphs", str(zoo_graphs), "--min-time", "1x", *arguments])

    return run


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the one sentence on standard error; nothing else may have been printed."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("bench_frameworks: ").rstrip("\n")


def test_all_cells_are_rows_and_the_exit_code_is_0(command, capsys):
    assert command("--format", "json") == 0
    out, err = capsys.readouterr()
    cells = json.loads(out)["cells"]
    assert [(cell["model"], cell["framework"], cell["status"], cell["check"]) for cell in cells] == [
        (model, arm, "ok", "pass") for model in ZOO for arm in ("rml", "torch")
    ]
    assert err.splitlines() == ["bench_frameworks: [1/2] torch_one, 1 thread", "bench_frameworks: [2/2] torch_two, 1 thread"]


def test_a_mismatch_gives_exit_code_1_and_a_failure_0(command, capsys):
    assert command("--models", "torch_one", rml="Honest", torch="Wrong") == 1
    assert "mismatch" in capsys.readouterr().out
    assert command("--models", "torch_one", rml="Honest", torch="Crashes", jax="Unavailable") == 0
    out = capsys.readouterr().out
    assert "failed" in out
    assert "SIGSEGV" in out
    assert "unavailable" in out


@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_every_format_names_models_and_arms(command, capsys, form):
    assert command("--format", form, "--models", "torch_two") == 0
    out = capsys.readouterr().out
    assert "torch_two" in out
    assert "pass" in out
    assert "torch_one" not in out


def test_results_are_appended(command, tmp_path):
    path = tmp_path / "results.jsonl"
    assert command("--results", str(path), "--models", "torch_one") == 0
    with path.open("a") as file:
        file.write('{"model": "torch_o')  # as a killed run leaves it
    assert command("--results", str(path), "--models", "torch_two", "--frameworks", "rml") == 0
    with path.open() as file:
        records = read_records(file)
    assert [(record.model, record.framework, record.status) for record in records] == [
        ("torch_one", "rml", "ok"), ("torch_one", "torch", "ok"), ("torch_two", "rml", "ok"),
    ]  # fmt: skip
    assert records[0].environment["cores"] == len(os.sched_getaffinity(0))


def test_too_many_threads_are_rows(command, capsys):
    many = len(os.sched_getaffinity(0)) + 1
    assert command("--threads", f"1,{many}", "--models", "torch_one", "--format", "json") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["threads"], cell["status"]) for cell in cells] == [(1, "ok"), (1, "ok"), (many, "unavailable"), (many, "unavailable")]


def test_the_models_are_listed(command, capsys):
    assert command("--list") == 0
    assert capsys.readouterr().out.splitlines() == [f"{name:20} torch  the fake {name}" for name in ZOO]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "nonsense"], "--models: must be all, or name some of torch_one, torch_two; got 'nonsense'."),
        (["--models", "torch_one,"], "--models: must be all, or name some of torch_one, torch_two; got ''."),
        (["--frameworks", "caffe,rml"], "--frameworks: must name some of rml, torch; got 'caffe'."),
        (["--threads", "0"], "--threads: must be whole numbers of at least 1, with commas between them; got '0'."),
        (["--threads", "1,two"], "--threads: must be whole numbers of at least 1, with commas between them; got '1,two'."),
        (
            ["--results", "/no/such/directory/file"],
            "--results /no/such/directory/file: must be a file that records can be appended to; got No ",
        ),
        (["--results", "/"], "--results /: must be a file that records can be appended to; got Is a directory."),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(command, capsys, arguments, words):
    assert command(*arguments) == 2
    assert said(capsys).startswith(words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "0"], "--timeout: must be a time above 0 such as 40s, 10ms or 2m; got 0."),
        (["--timeout", "nan"], "--timeout: must be a time above 0 such as 40s, 10ms or 2m; got nan."),
        (["--gap", "-1ms"], "--gap: must be a time above 0 such as 40s, 10ms or 2m; got -1ms."),
        (["--min-time", "-1s"], "--min-time: must be a time above 0 such as 40s, 10ms or 2m; got -1s."),
        (["--precision", "-1%"], "--precision: must be a part of 1, such as 1% or 0.01; got -1%."),
        (["--budget", "-.5h"], "--budget: must be a time above 0 such as 40s, 10ms or 2m; got -.5h."),
        (["--format", "xml"], "--format: invalid choice: 'xml'"),
        (["--gap"], "--gap: expected one argument."),
        (["--nonsense"], "unrecognized arguments: --nonsense."),
        (["--quick", "--rigorous"], "--rigorous: not allowed with argument --quick."),
        (["--entry", "a:build", "--entry", "b:build"], "--entry: may be given once; got a:build and b:build."),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(command, capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        command(*arguments)
    assert caught.value.code == 2
    sentence = said(capsys)
    assert sentence.startswith(words)
    assert sentence.endswith(". Hint: bench_frameworks --help.")


def test_a_results_file_that_holds_something_else_is_refused(command, capsys, tmp_path, zoo_graphs):
    path = tmp_path / "notes"
    path.write_text("precious\n")
    assert command("--results", str(path)) == 2
    assert said(capsys).endswith("got line 1: is not a record.")
    assert path.read_text() == "precious\n"
    assert not (zoo_graphs / "calls").exists()


def test_a_results_file_that_fills_the_disk_ends_the_run_but_not_the_table(command, capsys):
    assert command("--results", "/dev/full", "--models", "torch_one") == 2
    out, err = capsys.readouterr()
    assert "torch_one" in out
    assert "must stay writable" in err


def test_arms_that_can_run_none_of_the_models_are_bad_usage(monkeypatch, capsys):
    assert main(["--models", "jax_mlp", "--frameworks", "torch"]) == 2
    assert said(capsys) == "--frameworks: must name an arm that can run one of the models; got torch."


@pytest.mark.parametrize("module", ["pandas", "rich.console"])
def test_without_the_libraries_of_the_table_one_sentence_says_what_to_install(monkeypatch, command, capsys, module):
    for name in ("reports.render", "reports.tables"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert command() == 5
    sentence = said(capsys)
    assert sentence.startswith("the table needs pandas and rich (")
    assert sentence.endswith("pip install rml-exec[bench]")


@pytest.mark.parametrize(("statuses", "code"), [([], 0), (["unavailable"], 5), (["unavailable", "failed"], 2), (["failed"], 2)])
def test_the_exit_code_of_export_only_tells_failures_from_missing_frameworks(monkeypatch, command, capsys, statuses, code):
    failures = {name: ExportFailure(status, f"a reason to be {status}") for name, status in zip(ZOO, statuses, strict=False)}
    monkeypatch.setattr(bench.cli, "export_missing", lambda *_, **__: failures)
    assert command("--export-only") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"bench_frameworks: {name}: {failure.reason}" for name, failure in failures.items()]


def test_a_model_that_cannot_be_exported_is_a_row_for_each_arm(monkeypatch, command, capsys):
    failures = {"torch_one": ExportFailure("unavailable", "no torch"), "torch_two": ExportFailure("failed", "crashed")}
    monkeypatch.setattr(bench.cli, "export_missing", lambda *_, **__: failures)
    assert command("--format", "json") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["framework"], cell["status"], cell["reason"]) for cell in cells] == [
        ("rml", "unavailable", "not exported: no torch"), ("torch", "unavailable", "not exported: no torch"),
        ("rml", "failed", "not exported: crashed"), ("torch", "failed", "not exported: crashed"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGHUP, 129, "ended by SIGHUP")],
)
def test_a_signal_keeps_and_prints_what_is_done_and_leaves_nothing_behind(zoo_graphs, tmp_path, number, code, said):
    results, temporary = tmp_path / "results.jsonl", tmp_path / "temporary"
    temporary.mkdir()
    arguments = ["rml=Honest,torch=HangsOnTwo", "--graphs", str(zoo_graphs), "--results", str(results), "--format", "json"]
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.fake_cli", *arguments],
        env=child_environment(TMPDIR=str(temporary)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        worker = int(wait_for(zoo_graphs / "hanging.pid"))
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == code
    assert err.splitlines()[-1] == f"bench_frameworks: {said}"
    assert not list(temporary.glob("bench_frameworks.scratch.*"))
    assert [(cell["model"], cell["framework"], cell["status"]) for cell in json.loads(out)["cells"]] == [
        ("torch_one", "rml", "ok"), ("torch_one", "torch", "ok"),
    ]  # fmt: skip
    with results.open() as file:
        assert [(record.model, record.framework) for record in read_records(file)] == [("torch_one", "rml"), ("torch_one", "torch")]
    assert process_ends(worker)
    assert process_ends(int((zoo_graphs / "Honest.pid").read_text()))


def test_python_m_bench_lists_the_real_zoo():
    done = subprocess.run([sys.executable, "-m", "bench", "--list"], env=child_environment(), capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(all_models())


@pytest.mark.torch
def test_a_real_run_from_nothing(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(bench.options, "Settings", functools.partial(Settings, warm_up_s=0.01, max_rounds=2))
    results = tmp_path / "results.jsonl"
    arguments = ["--models", "torch_mlp", "--frameworks", "rml,torch", "--graphs", str(tmp_path / "graphs")]
    assert main([*arguments, "--results", str(results), "--format", "json"]) == 0
    cells = {cell["framework"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert {arm: (cell["status"], cell["check"]) for arm, cell in cells.items()} == {"rml": ("ok", "pass"), "torch": ("ok", "pass")}
    assert [json.loads(line) for line in results.read_text().splitlines()] == list(cells.values())
    # The cell carries what rml-graph-run prints for the same model.
    line = run_model(tmp_path / "graphs" / "torch_mlp", RunOptions(check=True, bench=2, threads=1)).to_dict()
    assert set(line) <= set(cells["rml"])
    for field in ("model", "threads", "check", "max_abs_error", "max_rel_error"):
        assert cells["rml"][field] == line[field]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--reference", "caffe"], "--reference: must be one of the arms that run, rml, torch; got 'caffe'."),
        (["--seed", "-1"], "--seed: must be at least 0; got -1."),
        (["--callers", "0"], "--callers: must be at least 1; got 0."),
        (["--scenario", "fast"], "--scenario: must name some of latency, paced, concurrent, shapes, cold; got 'fast'."),
        (["--setup", "none"], "--setup: must name some of tuned, installed; got 'none'."),
        (["--resume"], "--resume: needs the results file of the run to go on with. Hint: --results FILE."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(command, capsys, arguments, words):
    assert command(*arguments) == 2
    assert said(capsys) == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--export", "google-benchmark", "nowhere/out.json"], "must be a file that can be written, in a folder that exists."),
        (["--export", "google-benchmark", "."], "must be a file that can be written, in a folder that exists."),
        (["--gap", "1e9s"], "--gap: must be shorter than --timeout, 120 s; got 1e+09 s."),
        (["--scenario", "paced", "--gap", "3s", "--timeout", "2s"], "--gap: must be shorter than --timeout, 2 s; got 3 s."),
        (["--graphs", "file"], "--graphs file: must be a folder; it is a file."),
        (["--graphs", "nowhere/a"], "--graphs nowhere/a: must lie in a folder that exists; got no folder "),
        (["--entry", "nosuch:build", "--from", "torch"], "there is no module 'nosuch' here or among the installed packages."),
        (["--entry", "here.x:build", "--from", "torch", "--graphs", "file"], "must be a folder"),  # only about that
    ],
)
def test_what_can_be_known_to_be_wrong_is_said_before_anything_runs(command, monkeypatch, capsys, tmp_path, zoo_graphs, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "here.py").touch()
    before = sorted(tmp_path.rglob("*"))
    assert command(*arguments) == 2
    assert words in said(capsys)
    assert sorted(tmp_path.rglob("*")) == before
    assert not (zoo_graphs / "calls").exists()


def test_models_may_be_named_in_several_options(command, capsys):
    assert command("--models", "torch_two", "--models", "torch_one", "--frameworks", "rml", "--format", "json") == 0
    assert [cell["model"] for cell in json.loads(capsys.readouterr().out)["cells"]] == ["torch_two", "torch_one"]


def test_the_twin_and_further_scenarios_are_rows(command, capsys):
    assert command("--models", "torch_one", "--aa", "--scenario", "latency,paced", "--gap", "1ms", "--format", "json", "--seed", "4") == 0
    out, err = capsys.readouterr()
    cells = json.loads(out)["cells"]
    assert [(cell["scenario"], cell["framework"]) for cell in cells] == [
        (scenario, arm) for scenario in ("latency", "paced") for arm in ("rml", "rml#2", "torch")
    ]
    assert {cell["seed"] for cell in cells} == {4}
    assert err.splitlines()[-1] == "bench_frameworks: [2/2] torch_one, 1 thread, paced"


def test_a_first_word_that_is_a_command_gets_the_rest_of_the_line(monkeypatch):
    monkeypatch.setitem(COMMANDS, "recite", "tests.bench.test_cli:recite")
    assert main(["recite", "--format", "x"]) == 17
    assert all(find_command([name]) for name in COMMANDS)


def recite(arguments) -> int:
    assert list(arguments) == ["--format", "x"]
    return 17


def test_a_supervisor_without_a_core_of_its_own_says_so(command, capsys):
    everything = len(os.sched_getaffinity(0))
    assert command("--models", "torch_one", "--threads", str(everything)) == 0
    sentence = "the supervisor has no core of its own; it sleeps while blocks run, but whatever else runs here disturbs them"
    assert capsys.readouterr().err.splitlines()[0] == f"bench_frameworks: --threads {everything}: {sentence}"
