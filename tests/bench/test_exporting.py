"""What is exported, what is not, and what is said about it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.exporting import ExportFailure, export_missing
from exporters.bundle import is_finished
from exporters.models.zoo import ZooModel

FAKE = Path(__file__).with_name("fake_exporters.py")


def model(name: str) -> ZooModel:
    return ZooModel(name, name.partition("_")[0], lambda: (None, None), "a fake")


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., tuple[dict[str, ExportFailure], list[str]]]:
    """Returns a function that exports models by name and returns the failures, and the ``--models`` of each call of the exporter."""

    def export(*names: str, timeout_s: float = 60.0) -> tuple[dict[str, ExportFailure], list[str]]:
        log = tmp_path / "log"
        log.write_text("")
        command = [sys.executable, str(FAKE), str(log)]
        failures = export_missing([model(name) for name in names], tmp_path / "graphs", timeout_s=timeout_s, command=command)
        return failures, log.read_text().split()

    return export


def test_each_framework_gets_one_process_and_what_is_finished_none(export):
    assert export("torch_a", "jax_a", "torch_b") == ({}, ["torch_a,torch_b", "jax_a"])
    assert export("torch_a", "jax_a", "torch_b") == ({}, [])
    assert export("torch_a", "torch_c") == ({}, ["torch_c"])


@pytest.mark.parametrize("suffix", [".json", ".safetensors", ".golden.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "half"])
def test_what_a_killed_export_left_is_exported_again(export, tmp_path, suffix, damage):
    export("torch_a")
    path = tmp_path / "graphs" / f"torch_a{suffix}"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert export("torch_a") == ({}, ["torch_a"])
    assert is_finished(tmp_path / "graphs" / "torch_a")


def test_a_golden_of_other_weights_is_stale(export, tmp_path):
    export("torch_a")
    path = tmp_path / "graphs" / "torch_a.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert export("torch_a") == ({}, ["torch_a"])


def test_failures_carry_their_first_line_and_spare_the_others(export):
    failures, _ = export("torch_a", "torch_refused", "jax_missing", "torch_b")
    assert failures == {
        "torch_refused": ExportFailure("failed", "export: 2 operators cannot be exported."),
        "jax_missing": ExportFailure("unavailable", "its framework must be installed. Hint: pip install rml-exec[x]."),
    }


def test_a_crash_is_blamed_on_one_model_and_the_rest_is_tried_again(export):
    failures, calls = export("torch_a", "torch_crash", "torch_b", "torch_c")
    assert failures == {"torch_crash": ExportFailure("failed", "the export ended with exit code -6: Fatal: out of luck")}
    assert calls == ["torch_a,torch_crash,torch_b,torch_c", "torch_b,torch_c"]


def test_a_hanging_export_is_ended(export):
    failures, _ = export("torch_hang", timeout_s=0.5)
    assert failures == {"torch_hang": ExportFailure("failed", "the export ended with exit code 124: it took more than 0.5 s")}
