"""What every command of the project has in common: how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from rml_exec.errors import RmlError

__all__ = ["BAD_USAGE", "INTERRUPTED", "UNAVAILABLE", "run_command"]

BAD_USAGE, UNAVAILABLE, INTERRUPTED = 2, 5, 130


def run_command(name: str, run: Callable[[], int]) -> int:
    """Returns the exit code of a command, which says one sentence on standard error, never a traceback, when something around it is wrong.

    0 ok, 1 wrong result, 2 bad usage or input, 5 unavailable, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP, which unwind as Ctrl-C
    does. A reader of standard output that goes away early, as ``head`` does, is no error.

    Args:
        name: what to call the command in messages.
        run: does the work and returns the exit code.
    """
    if sys.stdout is None:  # started with a closed standard output
        return _say(name, "standard output is closed", BAD_USAGE)
    if isinstance(
        getattr(sys.stdout, "buffer", None), io.RawIOBase
    ):  # PYTHONUNBUFFERED: what a full disk does not take would be lost silently
        sys.stdout = open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, buffering=1, closefd=False)  # noqa: SIM115  (lives to the end)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no reason to lose the rest
    try:
        with _signals_raised():
            code = run()
            sys.stdout.flush()
            return code
    except RmlError as error:
        return _say(name, str(error), error.exit_code)
    except _SignalReceived as error:
        return _say(name, f"ended by {error.signal.name}", 128 + error.signal)
    except KeyboardInterrupt:
        return _say(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_standard_output()
        return 0
    except OSError as error:
        _drop_standard_output()
        return _say(name, f"cannot write its output: {error.strerror or error}", BAD_USAGE)


class _SignalReceived(KeyboardInterrupt):
    """A signal that asks the process to end; what handles Ctrl-C handles it too."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise within the ``with``, once each; those that are ignored, as under ``nohup``, or handled stay as they are."""

    def receive(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _SignalReceived(number)

    main = threading.current_thread() is threading.main_thread()
    mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _say(name: str, text: str, code: int) -> int:
    print(f"{name}: {text}", file=sys.stderr)
    return code


def _drop_standard_output() -> None:
    """Sends what is still buffered nowhere: Python would fail on it once more when it exits."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (lives to the end)
