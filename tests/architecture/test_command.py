"""How commands end, whatever happens around them."""

import os
import resource
import signal
import subprocess
import sys

import pytest

COMMANDS = {
    "rml-graph-run": ["-m", "rml_exec.graph_run", "tests/data/tiny_cnn", "--show", "plan"],
    "executor_benchmark": ["-m", "bench.executor_benchmark", "--benchmark_list_tests"],
    "bench_frameworks": ["-m", "bench", "--list"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_reader_that_goes_away_is_no_error(arguments):
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | true', "bash", sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_full_disk_is_one_sentence(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


def small_files():
    """Has files end at 20 bytes, in a child: a write is cut there, and the next one fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_is_cut_is_one_sentence(tmp_path, arguments, unbuffered):
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, *arguments],
            stdout=out, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=small_files,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    assert (tmp_path / "out").stat().st_size == 20
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot write its output: File too large" in done.stderr


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_closed_standard_output_is_one_sentence(arguments):
    done = subprocess.run(["bash", "-c", '"$@" >&-', "bash", sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("standard output is closed\n")


_MAIN = """
import sys
from rml_exec.command import run_command
from rml_exec.errors import InputError, IsaError
def run():
    {}
sys.exit(run_command("name", run))
"""


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("return 1", 1, ""),
        ("raise InputError('what is wrong.')", 2, "name: what is wrong.\n"),
        ("raise IsaError('not here.')", 5, "name: not here.\n"),
        ("raise KeyboardInterrupt", 130, "name: interrupted\n"),
        ("print('\\u2603'); return 0", 0, ""),
    ],
)
def test_each_end_has_its_code_and_at_most_one_sentence(body, code, stderr):
    done = subprocess.run(
        [sys.executable, "-c", _MAIN.format(body)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (code, stderr)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_end_is_an_interrupt_with_a_name(number, code):
    # The second one, which comes while the command tidies up, changes nothing.
    body = (
        f"import os\n    try:\n        os.kill(os.getpid(), {number})\n    finally:\n        os.kill(os.getpid(), {number}); print('tidy')"
    )
    done = subprocess.run([sys.executable, "-c", _MAIN.format(body)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "tidy\n", f"name: ended by {number.name}\n")


def test_a_hangup_that_is_ignored_stays_ignored():
    body = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); return 0"
    ignored = ["bash", "-c", "trap '' HUP; exec \"$@\"", "bash", sys.executable, "-c", _MAIN.format(body)]
    done = subprocess.run(ignored, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_may_run_a_command():
    body = "return 1"
    in_a_thread = (
        "from concurrent.futures import ThreadPoolExecutor\nsys.exit(ThreadPoolExecutor().submit(run_command, 'name', run).result())"
    )
    program = _MAIN.replace('sys.exit(run_command("name", run))', in_a_thread)
    assert subprocess.run([sys.executable, "-c", program.format(body)], check=False).returncode == 1
