"""A model of one's own by the command line: what a build function may return, and what is said when it does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporters import __main__ as command
from exporters.bundle import is_finished, write_export
from exporters.entry import build_entry
from exporters.errors import ExportError
from exporters.progress import listener, report, shown_on
from rml_exec.ir.graph import Graph

MODULE = """
import helper_of_mine
count = 3
def build():
    return "the model", [1, 2]
def by_name():
    return "the model", {"x": 1}
def raises():
    return helper_of_mine.divide(1, 0)
def one():
    return "the model"
def three():
    return 1, 2, 3
def no_inputs():
    return "the model", 7
def text():
    return "the model", "xy"
def exits():
    import sys
    sys.exit(3)
def leaves():
    import os
    if os.fork() == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    os._exit(0)
def draws():
    import random
    import numpy
    import torch
    return (random.random(), numpy.random.rand(), torch.rand(()).item()), [1]
def moves():
    import os
    os.chdir("/")
    return "the model", [1]
"""


@pytest.fixture
def my_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the working directory one with modules in it."""
    (tmp_path / "code_of_mine.py").write_text(MODULE)
    (tmp_path / "helper_of_mine.py").write_text("def divide(a, b):\n    return a // b\n")
    (tmp_path / "broken_of_mine.py").write_text("x = 1\nraise RuntimeError('no\\n luck')\n")
    (tmp_path / "incomplete_of_mine.py").write_text("import nosuchpackage\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    yield tmp_path
    for name in ("code_of_mine", "helper_of_mine", "broken_of_mine", "incomplete_of_mine"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("my_code")
def test_a_build_function_is_called() -> None:
    assert build_entry("code_of_mine:build") == ("the model", [1, 2])
    assert build_entry("code_of_mine:by_name") == ("the model", {"x": 1})


@pytest.mark.usefixtures("my_code")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("code_of_mine", "must be package.module:function"),
        (":build", "must be package.module:function"),
        ("nosuch_of_mine:build", "there is no module 'nosuch_of_mine' here or among the installed packages"),
        ("code_of_mine.inner:build", "there is no module 'code_of_mine.inner'|must be importable"),
        ("broken_of_mine:build", r"must be importable; got RuntimeError: no luck at broken_of_mine.py:2"),
        ("incomplete_of_mine:build", "must be importable; got ModuleNotFoundError: No module named 'nosuchpackage'"),
        ("code_of_mine:nothing", "'nothing' must be a function of code_of_mine; got nothing of that name"),
        ("code_of_mine:count", "'count' must be a function of code_of_mine; got int"),
        ("code_of_mine:raises", r"got ZeroDivisionError: integer division or modulo by zero at helper_of_mine.py:2"),
        ("code_of_mine:one", r"must return \(model, example inputs\), the inputs as a list or a dict; got str"),
        ("code_of_mine:three", "got 3 values"),
        ("code_of_mine:no_inputs", "got inputs of type int"),
        ("code_of_mine:text", "got inputs of type str"),
    ],
)
def test_a_wrong_entry_is_one_sentence(entry: str, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        build_entry(entry)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, small_graph: Graph, small_run: dict[str, Any]) -> list[Any]:
    """Makes the exporters of torch and TensorFlow ones that need neither; gives what they were called with."""
    found: list[Any] = []

    def export(model: Any, inputs: Any, prefix: Any, **options: Any) -> Any:
        found.append((model, inputs, options))
        return write_export(small_graph, prefix, **small_run)

    fake = SimpleNamespace(export=export, open_saved_model=lambda directory, _: (f"model in {directory}", [0]))
    monkeypatch.setitem(sys.modules, "exporters.from_torch", fake)
    monkeypatch.setitem(sys.modules, "exporters.from_tf", fake)
    return found


def test_a_model_of_ones_own_is_exported(my_code: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--from", "torch", "--entry", "code_of_mine:build", "--out", "out/mine"]) == 0
    assert is_finished(my_code / "out" / "mine")
    assert calls == [("the model", [1, 2], {"name": None})]
    assert capsys.readouterr().err.startswith("small: 3 nodes of 3 ops, 40 parameters, 0.00 MB")
    arguments = [
        "--from",
        "tf",
        "--saved-model",
        "there",
        "--out",
        "out/mine",
        "--name",
        "n",
        "--goldens",
        "3",
        "--dim",
        "b=1..",
        "--seed",
        "4",
    ]
    assert command.main(arguments) == 0
    model, inputs, options = calls[1]
    assert (model, inputs) == ("model in there", [0])
    assert (options["name"], options["goldens"], options["seed"], options["dims"][0].name) == ("n", 3, 4, "b")


@pytest.mark.usefixtures("my_code", "calls")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entry", "code_of_mine:build", "--out", "x"], "needs --from torch, jax, tf or onnx"),
        (["--from", "torch", "--out", "x"], "needs either --entry or --saved-model; got neither"),
        (["--from", "tf", "--entry", "a:b", "--saved-model", "d", "--out", "x"], "got both"),
        (["--from", "torch", "--saved-model", "d", "--out", "x"], "--saved-model is for --from tf"),
        (["--from", "torch", "--entry", "code_of_mine:build"], "needs --out"),
        (["--from", "torch", "--entry", "code_of_mine:build", "--out", "x", "--batch", "2"], "has no --models, --size or --batch"),
        (["--from", "torch", "--entry", "code_of_mine:one", "--out", "x"], "x: entry 'code_of_mine:one'"),
        *((["--from", "torch", "--entry", "code_of_mine:raises", "--out", out], "not a directory") for out in ("k/..", ".", "z/", "", "/")),
        (["--from", "torch", "--entry", "code_of_mine:raises", "--out", "z.golden"], "takes a path without suffix"),
        (["--models", "all", "--dim", "b"], "--dim: must be NAME=LOW..HIGH"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("function", "code"), [("exits", 3), ("leaves", 0)])
def test_a_build_that_ends_the_process_is_one_line(my_code: Path, function: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    leave = os._exit
    assert command.main(["--from", "torch", "--entry", f"code_of_mine:{function}", "--out", "mine"]) == 2
    assert capsys.readouterr().err == f"mine: export: the model's own code must return, it ended the process; got exit({code}).\n"
    assert os._exit is leave
    assert not list(my_code.glob("mine*"))


def test_random_weights_are_the_same_in_every_build(my_code: Path) -> None:
    pytest.importorskip("torch")
    assert build_entry("code_of_mine:draws") == build_entry("code_of_mine:draws")


@pytest.mark.usefixtures("calls")
def test_a_build_that_changes_the_directory_does_not_change_where_the_export_goes(my_code: Path) -> None:
    assert command.main(["--from", "torch", "--entry", "code_of_mine:moves", "--out", "out/mine"]) == 0
    assert is_finished(my_code / "out" / "mine")


def test_progress_reaches_the_listener_and_a_terminal_only() -> None:
    class Stream(list[str]):
        terminal = True

        def isatty(self) -> bool:
            return self.terminal

        def write(self, text: str) -> None:
            self.append(text)

        def flush(self) -> None:
            pass

    heard: list[str] = []
    report("nobody listens")
    with listener(heard.append):
        report("tracing")
    report("nobody listens any more")
    assert heard == ["tracing"]
    stream: Any = Stream()
    with shown_on(stream, "mine"):
        report("tracing")
    assert stream == ["\r\x1b[Kmine: tracing ...", "\r\x1b[K"]
    quiet: Any = Stream()
    quiet.terminal = False
    with shown_on(quiet, "mine"):
        report("tracing")
    assert quiet == []
