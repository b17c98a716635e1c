"""Arms that behave as badly as frameworks can, for the tests of the harness; a worker process imports ``tests.bench.fake_arms:CLASS``.

All of them "run" whatever model lies at ``graphs/model``: they give back the golden's own outputs, more or less. What they did is left in
files beside the model: ``calls`` (one line per call, the class's name) and ``CLASS.pid``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.base import ArmFacts, UnavailableError
from bench.probe import PRECISIONS, round_to
from bench.processes import CACHE_VARIABLE
from rml_exec.ir.golden import read_golden

FOREVER_S = 600
_PIECE = bytes(65_536)


class Honest:
    """Gives the right outputs."""

    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        self.directory = Path(graphs)
        self.golden = read_golden(self.directory / f"{model}.golden.safetensors").outputs
        self.number = 0
        (self.directory / f"{type(self).__name__}.pid").write_text(str(os.getpid()))
        self.misbehave_on_load()

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self.inputs = inputs

    def call(self) -> Any:
        self.number += 1
        with (self.directory / "calls").open("a") as file:
            print(type(self).__name__, file=file)
        self.misbehave_on_call()
        return dict(self.golden)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return result

    def facts(self) -> ArmFacts:
        options = {"affinity": sorted(os.sched_getaffinity(0)), "inputs": list(self.inputs)}
        return ArmFacts("1.2.3", import_ms=1.0, load_ms=2.0, options=options)

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        return None, None

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x @ w

    def misbehave_on_load(self) -> None:
        pass

    def misbehave_on_call(self) -> None:
        pass


class Second(Honest):
    """Another honest one."""


class Wrong(Honest):
    """Gives wrong outputs from the first call on."""

    def call(self) -> Any:
        return {name: array + 1 for name, array in super().call().items()}


class WrongAt(Honest):
    """Gives a wrong output in its n-th call alone, the first being 1."""

    wrong_call = 0

    def call(self) -> Any:
        found = super().call()
        return {name: np.full_like(array, np.nan) for name, array in found.items()} if self.number == self.wrong_call else found


class WrongAtFour(WrongAt):
    """Right in the first call, the warm-up and the first block; wrong in the second block, if each is of one call."""

    wrong_call = 4


class WrongAtOne(WrongAt):
    wrong_call = 1


class WrongAtFive(WrongAt):
    wrong_call = 5


class ExtraOutput(Honest):
    """Gives an output that no golden knows."""

    def call(self) -> Any:
        return {**super().call(), "surprise": np.zeros(1)}


class Raises(Honest):
    def misbehave_on_load(self) -> None:
        raise ValueError("no such\nlayer")


class Crashes(Honest):
    def misbehave_on_call(self) -> None:
        print("about to crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class CrashesLater(Honest):
    def misbehave_on_call(self) -> None:
        if self.number == 4:
            os._exit(7)


class CrashesBesideChild(Honest):
    """Its child, a fork, holds the worker's pipes open when the worker is gone."""

    def misbehave_on_call(self) -> None:
        if os.fork() == 0:
            time.sleep(FOREVER_S)
        os._exit(9)


class Hangs(Honest):
    def misbehave_on_call(self) -> None:
        time.sleep(FOREVER_S)


class HangsOnTwo(Honest):
    """Runs the model ``torch_one`` and hangs on any other."""

    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        super().load(model, graphs, threads, setup)
        self.hangs = model != "torch_one"

    def misbehave_on_call(self) -> None:
        if self.hangs:
            (self.directory / "hanging.pid").write_text(str(os.getpid()))
            time.sleep(FOREVER_S)


class Works(Honest):
    """Uses CPU time in its calls."""

    def misbehave_on_call(self) -> None:
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            hashlib.sha256(_PIECE)


class Escapes(Works):
    """A second thread works on a core that was not granted while it is called."""

    def misbehave_on_load(self) -> None:
        self.working = threading.Event()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        escape()
        while True:
            self.working.wait()
            hashlib.sha256(_PIECE)

    def misbehave_on_call(self) -> None:
        self.working.set()
        super().misbehave_on_call()
        self.working.clear()


class EscapesBriefly(Honest):
    """Every call is done by a thread of its own on a core that was not granted."""

    def misbehave_on_call(self) -> None:
        thread = threading.Thread(target=self.work)
        thread.start()
        thread.join()

    def work(self) -> None:
        escape()
        time.sleep(0.03)


def escape() -> None:
    """Lets this thread run on the other cores of the machine alone."""
    granted = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - granted)


class LeavesWork(Works):
    """A child process works while it is called."""

    def misbehave_on_load(self) -> None:
        subprocess.Popen([sys.executable, "-c", "while True: pass"])


class Bfloat16(Honest):
    """Rounds the operands of its products to bfloat16."""

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return round_to(x, PRECISIONS["bf16"]) @ round_to(w, PRECISIONS["bf16"])


class WrongInBfloat16(Bfloat16, Wrong):
    pass


class Compiles(Honest):
    """Says where it keeps compiled code, and what compiling took."""

    def facts(self) -> ArmFacts:
        told = {"cache": os.environ[CACHE_VARIABLE], "threads": os.environ.get("OMP_NUM_THREADS")}
        return ArmFacts("1", 1.0, 2.0, {**told, "setup": self.setup})

    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        super().load(model, graphs, threads, setup)
        self.setup = setup

    def compile_times(self, first_call_ms: float) -> tuple[float | None, float | None]:
        return 30.0, 3.0


class Reuses(Honest):
    """Writes every result where the one before it lies, as an arm does that shares its outputs; the second one is wrong."""

    def call(self) -> Any:
        found = super().call()
        if not hasattr(self, "held"):
            self.held = {name: array.copy() for name, array in found.items()}
        for name, array in found.items():
            self.held[name][...] = array + (self.number == self.wrong)
        return self.held

    wrong = 5

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in result.items()}


class Talks(Honest):
    """Prints garbage where frameworks print it."""

    def misbehave_on_call(self) -> None:
        sys.stdout.write("\x00\x1b[2J{]")
        sys.stdout.flush()
        os.write(2, b"\xff\xfe\n")


class Garbles(Honest):
    """Writes ``garbage`` into everything it can write to, the worker's pipe too."""

    garbage = b"garbage {\n"

    def misbehave_on_call(self) -> None:
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if "pipe:" in os.readlink(f"/proc/self/fd/{entry}"):
                    os.write(int(entry), self.garbage)


class GarblesJson(Garbles):
    garbage = b'{"times_ns": [1]}\n'


class LeavesChildren(Honest):
    """Starts one child in its process group and one in a session of its own."""

    def misbehave_on_load(self) -> None:
        for name, own_session in (("inside", False), ("outside", True)):
            child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"], start_new_session=own_session)
            (self.directory / f"{name}.pid").write_text(str(child.pid))


class Unavailable(Honest):
    def load(self, model: str, graphs: str, threads: int, setup: str = "tuned") -> None:
        raise UnavailableError("Fake is not installed; pip install fake")


class Watches(Honest):
    """Notes in ``states`` the state of the process of :class:`Honest` during its own calls."""

    def misbehave_on_call(self) -> None:
        status = Path("/proc", (self.directory / "Honest.pid").read_text(), "stat").read_text()
        with (self.directory / "states").open("a") as file:
            print(status.rpartition(")")[2].split()[0], file=file)


class Busy(Honest):
    """Works for about two milliseconds each call: the same work, not the same time, and none of it in the interpreter.

    How fast that runs a loop differs from process to process by up to a tenth, with the layout of its memory.
    """

    pieces = 40

    def call(self) -> Any:
        work = hashlib.sha256()
        for _ in range(self.pieces):
            work.update(_PIECE)
        return dict(self.golden)


class BusySlower(Busy):
    """Has 5 % more to do."""

    pieces = 42


class Meets(Honest):
    """Returns from a call of the timed loop only when three threads are in it at once."""

    meeting = threading.Barrier(3, timeout=60)

    def misbehave_on_call(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.meeting.wait()


class RaisesElsewhere(Honest):
    """Cannot be called from any thread but the main one."""

    def misbehave_on_call(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not from this thread")


class CrashesInThirdProcess(Honest):
    def misbehave_on_load(self) -> None:
        with (self.directory / "processes").open("a+") as file:
            file.write("x")
            file.seek(0)
            if len(file.read()) == 3:
                os._exit(3)


class Relu(Honest):
    """Computes a graph of one relu, at whatever shape."""

    def call(self) -> Any:
        return {"y": np.maximum(self.inputs["x"], 0)}
