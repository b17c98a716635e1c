"""What every command of the project has in common: how it reads its options, and how it ends."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from rml_exec.errors import RmlError

__all__ = ["BAD_USAGE", "INTERRUPTED", "UNAVAILABLE", "CommandParser", "run_command"]

BAD_USAGE, UNAVAILABLE, INTERRUPTED = 2, 5, 130

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _Ended(KeyboardInterrupt):
    """A signal that asks the process to end: whatever tidies up after Ctrl-C does so after it, too."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others are, without the usage; ``--gap -1ms`` is an option with a value to it."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses arguments, see the base class, which takes what begins with a minus for an option unless it is a plain number."""
        joined: list[str] = []
        for argument in sys.argv[1:] if args is None else args:
            if joined and re.fullmatch(r"--[^=]+", joined[-1]) and re.match(r"-(\.?\d|inf|nan)", argument):
                joined[-1] += f"={argument}"
            else:
                joined.append(argument)
        return super().parse_known_args(joined, namespace)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the options and exits with 2."""
        sentence = " ".join(message.removeprefix("argument ").split()).rstrip(".")
        self.exit(BAD_USAGE, f"{self.prog}: {sentence}. Hint: {self.prog} --help.\n")


def run_command(name: str, run: Callable[[], int]) -> int:
    """Returns the exit code of a command, which says one sentence on standard error, never a traceback, when something around it is wrong.

    0 ok, 1 wrong result, 2 bad usage or input, 5 unavailable, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP. A reader of standard
    output that goes away early, as ``head`` does, is no error.

    Args:
        name: what to call the command in messages.
        run: does the work and returns the exit code.
    """
    if sys.stdout is None:  # started with a closed standard output
        return _say(name, "standard output is closed", BAD_USAGE)
    _write_everything()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no reason to lose the rest
    try:
        with _signals_as_interrupts():
            code = run()
            sys.stdout.flush()
        return code
    except RmlError as error:
        return _say(name, str(error), error.exit_code)
    except _Ended as ended:
        return _say(name, f"ended by {signal.Signals(ended.number).name}", 128 + ended.number)
    except KeyboardInterrupt:
        return _say(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_standard_output()
        return 0
    except OSError as error:
        _drop_standard_output()
        return _say(name, f"cannot write its output: {error.strerror or error}", BAD_USAGE)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Raises :class:`_Ended` on the first of :data:`_ENDING` that arrives in the block; a signal that is ignored, as under nohup, stays so."""
    handles = threading.current_thread() is threading.main_thread()  # no other may set a handler
    taken = [number for number in _ENDING if handles and signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in taken:  # a terminal that closes and a shell that ends may send several: tidying up goes on
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _say(name: str, text: str, code: int) -> int:
    with contextlib.suppress(OSError):  # standard error may lie on the same full disk: the exit code is what is left
        print(f"{name}: {text}", file=sys.stderr)
    return code


def _write_everything() -> None:
    """Puts a buffer behind a standard output that has none (``python -u``, ``PYTHONUNBUFFERED``).

    Python drops what a write to it leaves over, so a disk that fills up in the middle would go unnoticed; a buffer writes on until it fails.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115  (lives to the end)
            sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1, closefd=False
        )


def _drop_standard_output() -> None:
    """Sends what is still buffered nowhere: Python would fail on it once more when it exits."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (lives to the end)
