"""The processes that the supervisor starts: how they are started, stopped while others have their turn, and ended so that none is left."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench
from bench.protocol import Channel, WorkerGoneError

__all__ = ["CACHE_VARIABLE", "PYTHON_VARIABLE", "WorkerProcess", "child_environment", "die_with_parent"]

CACHE_VARIABLE = "RML_BENCH_CACHE"
"""Environment variable by which a worker is told where its framework keeps compiled code: empty when the first worker of a cell begins."""

PYTHON_VARIABLE = "RML_BENCH_PYTHON"
"""Environment variable by which a worker, which may be of another interpreter, is told the supervisor's."""

_MARK = "RML_BENCH_WORKER"
_PR_SET_PDEATHSIG = 1
_ROOT = Path(bench.__file__).parent.parent


def child_environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a Python child that must import the same ``bench`` and ``exporters`` as this process.

    Start it with ``-P``: else a source tree that is the current directory comes before what is installed.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, however that ends: a stopped process cannot notice it by itself.

    Args:
        parent: process id of the parent; if that has ended already, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")


class WorkerProcess:
    """A worker process, seen from the supervisor: it runs while :meth:`ask` waits for it, is stopped otherwise, and leaves nothing behind.

    Args:
        cell: what the worker is told on its command line.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, cell: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._asked = 0
        self._mark = uuid.uuid4().hex
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self._process = subprocess.Popen(
            [
                *_command(cell.get("python")),
                json.dumps({**cell, "supervisor": os.getpid()}),
                str(command_read),
                str(answer_write),
            ],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=_environment(cell, self._mark),
            start_new_session=True,
        )
        os.close(command_read)
        os.close(answer_write)
        self._exit = os.pidfd_open(self._process.pid)
        self._channel = Channel(answer_read, command_write, self._exit)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Returns the worker's answer to a command; raises WorkerGoneError, with its last words, if it crashes, hangs or sends garbage."""
        self._asked += 1
        try:
            self._signal(signal.SIGCONT)
            self._channel.send({"do": do, "id": self._asked, "arguments": arguments})
            answer = self._channel.receive(self._timeout_s)
            if answer.pop("id", None) != self._asked:
                raise WorkerGoneError(f"sent something that is no answer: {json.dumps(answer)[:80]}")
        except WorkerGoneError as error:
            raise WorkerGoneError(f"the worker {error}{self._last_words()}") from None
        self._stop()
        return answer

    def close(self) -> int:
        """Ends the worker and whatever it started; returns how many processes had left its process group and ran on beside other arms."""
        strays = [pid for pid in self._marked() if _group(pid) not in (self._process.pid, None)]
        self._signal(signal.SIGKILL)
        self._process.wait()
        for _ in range(100):
            if not (left := self._marked()):
                break
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._channel.close()
        os.close(self._exit)
        self._output.close()
        return len(strays)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _stop(self) -> None:
        """Stops the worker's process group and waits until the worker has stopped (or has ended)."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PIDFD, self._exit, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _marked(self) -> list[int]:
        """Returns the live processes with this worker's mark in their environment: itself and its descendants, whatever their session."""
        mark, found = f"{_MARK}={self._mark}".encode(), []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if mark in Path("/proc", entry, "environ").read_bytes():
                        found.append(int(entry))
        return found

    def _last_words(self) -> str:
        """Returns exit code and last line of output of a worker that has ended; nothing of one that still runs."""
        if not select.select([self._exit], [], [], 1.0)[0]:
            return ""
        # Not reaped before close(): until then its number, which is that of the process group, cannot become another process's.
        ended = os.waitid(os.P_PIDFD, self._exit, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        by_signal = ended.si_code != os.CLD_EXITED
        how = f"signal {signal.Signals(ended.si_status).name}" if by_signal else f"exit code {ended.si_status}"
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - 4096))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return f" ({how}{': ' + lines[-1].strip() if lines else ''})"


def _command(python: str | None) -> list[str]:
    """Returns how to start a worker under this interpreter, or under another one, which must not see what is installed for this one."""
    if python is None:
        return [sys.executable, "-P", "-m", "bench.worker"]
    native = importlib.util.find_spec("rml_exec._native")  # of an editable install it lies elsewhere than the package
    return [python, "-P", str(_ROOT / "bench" / "bootstrap.py"), str(_ROOT), (native and native.origin) or ""]


def _environment(cell: Mapping[str, Any], mark: str) -> dict[str, str]:
    """Returns the environment of a worker; one that is to find things as they come is told no number of threads."""
    own = {_MARK: mark, PYTHON_VARIABLE: sys.executable}
    if cell.get("cache"):
        os.makedirs(cell["cache"], exist_ok=True)
        own[CACHE_VARIABLE] = cell["cache"]
    if cell.get("setup") != "installed":
        own |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cell["threads"]))
    if cell.get("python") is None:
        return child_environment(**own)
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")} | own


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
