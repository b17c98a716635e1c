"""The native core without Python under sanitizers: sanitized_walk.c is built with each of them and run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_NATIVE = Path(__file__).parents[2] / "rml_exec" / "native"
_CORE = ("program.c", "threads.c", "dispatch.c")
_COMPILER = shutil.which("gcc") or shutil.which("clang")


def _run(command: Sequence[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)


def _compile(sources: Sequence[Path], flags: Sequence[str], output: Path) -> None:
    built = _run(
        [str(_COMPILER), "-std=gnu11", "-g", "-O1", f"-I{_NATIVE}", *flags, *map(str, sources), "-pthread", "-lm", "-o", str(output)]
    )
    assert built.returncode == 0, built.stderr


def _needs(sanitizer: str, directory: Path) -> None:
    """Skips the test where the sanitizer cannot be linked or a program that is built with it does not run."""
    if _COMPILER is None:
        pytest.skip("needs gcc or clang")
    source, program = directory / "empty.c", directory / "empty"
    source.write_text("int main(void) { return 0; }\n")
    built = _run([_COMPILER, f"-fsanitize={sanitizer}", str(source), "-o", str(program)])
    ran = _run([str(program)]) if built.returncode == 0 else built
    if ran.returncode != 0:
        pytest.skip(f"-fsanitize={sanitizer} does not work here: {ran.stderr.strip()[:200]}")


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_program_walked_by_many_callers_and_workers_is_clean(tmp_path, sanitizer):
    _needs(sanitizer, tmp_path)
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-math-errno", "-ffp-contract=off"]
    kernels = sorted((_NATIVE / "kernels").glob("*.c"))
    sources = [Path(__file__).with_name("sanitized_walk.c"), *(_NATIVE / name for name in _CORE), *kernels]
    program = tmp_path / "walk"
    _compile(sources, [*flags, "-DRML_ISA=baseline"], program)  # one instruction set: building all takes minutes
    options = {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
    ran = _run([str(program), "25"], options)
    assert ran.returncode == 0, ran.stderr[-4000:]
