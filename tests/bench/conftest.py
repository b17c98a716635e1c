"""What the tests of the harness share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.adapters.base import ARMS, Arm
from bench.canary import Canary
from bench.settings import Settings

DATA = Path(__file__).parent.parent / "data"
FRAMEWORKS = ("torch", "jax", "tf", "file")

QUICK = Settings(warm_up_s=0.0, calls=1, min_rounds=4, budget_s=0.0, order="abba", idle_s=0.01)
"""One call of warm-up, and four rounds with one call per block."""


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """Returns a directory with a finished export, ``tiny_mlp``."""
    directory = tmp_path / "graphs"
    directory.mkdir()
    for path in DATA.glob("tiny_mlp.*"):
        shutil.copy(path, directory)
    return directory


@pytest.fixture
def use_arms(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Returns a function that makes fake arms the only ones: ``use_arms(rml="Honest")``; it returns their names."""

    def use(**arms: str) -> list[str]:
        for name in list(ARMS):
            monkeypatch.delitem(ARMS, name)
        for name, cls in arms.items():
            monkeypatch.setitem(ARMS, name, Arm(f"tests.bench.fake_arms:{cls}", FRAMEWORKS))
        return list(arms)

    return use


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a machine on which no canary is ever late."""
    monkeypatch.setattr(Canary, "measure", lambda _: 1000)


def process_ends(pid: int) -> bool:
    """True as soon as a process has ended; False if it lives on for half a minute."""
    for _ in range(3000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def wait_for(path: Path) -> str:
    """Returns the text of a file as soon as it has any."""
    for _ in range(6000):
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")
