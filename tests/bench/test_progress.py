"""What is said while it runs."""

from __future__ import annotations

import io

from bench.progress import Progress


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def speak(file: io.StringIO) -> str:
    with Progress(file) as progress:
        progress.task("[1/7] torch_mlp, 1 thread")
        progress.step("round 1 of 10")
        progress.step("round 2 of 10")
    return file.getvalue()


def test_a_file_gets_one_line_per_task():
    assert speak(io.StringIO()) == "bench_frameworks: [1/7] torch_mlp, 1 thread\n"


def test_a_terminal_gets_one_line_that_is_clean_in_the_end():
    text = speak(Terminal())
    assert "\n" not in text
    assert text.split("\r\x1b[2K") == [
        "", "[1/7] torch_mlp, 1 thread", "[1/7] torch_mlp, 1 thread: round 1 of 10", "[1/7] torch_mlp, 1 thread: round 2 of 10", "",
    ]  # fmt: skip


def test_a_line_is_cut_to_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert all(len(line) < 20 for line in speak(Terminal()).split("\r\x1b[2K"))
