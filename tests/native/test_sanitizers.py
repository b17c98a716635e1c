"""The native core under sanitizers: built with each of them, it is walked without Python (sanitized_walk.c) and runs the conformance matrix as
an extension (sanitized_matrix.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_NATIVE = _ROOT / "rml_exec" / "native"
_CORE = ("program.c", "threads.c", "dispatch.c")
_EXTENSION = ("module.c", "buffer_pool.c")
_COMPILER = shutil.which("gcc") or shutil.which("clang")
_OPTIONS = {
    "thread": {"TSAN_OPTIONS": "halt_on_error=1"},
    "address,undefined": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
}
_LIBRARIES = {"thread": "libtsan.so", "address,undefined": "libasan.so"}


def _run(command: Sequence[str | Path], env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def _built(command: Sequence[str | Path]) -> None:
    done = _run(command)
    assert done.returncode == 0, done.stderr[-4000:]


@dataclass(frozen=True)
class Sanitized:
    """Objects of the core and of the kernels of the baseline (building all instruction sets takes minutes), built with a sanitizer."""

    sanitizer: str
    directory: Path
    objects: tuple[Path, ...]
    flags: tuple[str, ...]

    def compile(self, source: Path, *flags: str) -> Path:
        """Returns the object of a source."""
        target = self.directory / f"{source.name}.o"
        _built([str(_COMPILER), *self.flags, *flags, "-c", source, "-o", target])
        return target

    def link(self, target: str, objects: Sequence[Path], *flags: str) -> Path:
        """Returns what objects and the core are linked to."""
        path = self.directory / target
        _built([str(_COMPILER), f"-fsanitize={self.sanitizer}", *flags, *objects, *self.objects, "-pthread", "-lm", "-o", path])
        return path


def _needs(sanitizer: str, directory: Path) -> None:
    """Skips the test where the sanitizer cannot be linked or a program that is built with it does not run."""
    if _COMPILER is None:
        pytest.skip("needs gcc or clang")
    source, program = directory / "empty.c", directory / "empty"
    source.write_text("int main(void) { return 0; }\n")
    built = _run([_COMPILER, f"-fsanitize={sanitizer}", source, "-o", program])
    ran = _run([program]) if built.returncode == 0 else built
    if ran.returncode != 0:
        pytest.skip(f"-fsanitize={sanitizer} does not work here: {ran.stderr.strip()[:200]}")


@pytest.fixture(scope="module", params=_OPTIONS)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    directory = tmp_path_factory.mktemp("sanitized")
    _needs(request.param, directory)
    flags = ["-std=gnu11", "-g", "-O1", "-fPIC", f"-fsanitize={request.param}", "-fno-sanitize-recover=all", "-fno-math-errno"]
    flags += ["-ffp-contract=off", f"-I{_NATIVE}", "-DRML_ISA=baseline", "-DRML_HAS_baseline"]
    core = Sanitized(request.param, directory, (), tuple(flags))
    sources = [*sorted((_NATIVE / "kernels").glob("*.c")), *(_NATIVE / name for name in _CORE)]
    with ThreadPoolExecutor(2) as pool:
        return Sanitized(request.param, directory, tuple(pool.map(core.compile, sources)), core.flags)


@pytest.mark.slow
def test_program_walked_by_many_callers_and_workers_is_clean(sanitized: Sanitized) -> None:
    program = sanitized.link("walk", [sanitized.compile(Path(__file__).with_name("sanitized_walk.c"))])
    ran = _run([program, "25"], {**_OPTIONS[sanitized.sanitizer], "ASAN_OPTIONS": "detect_leaks=1"})
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.slow
def test_the_conformance_matrix_is_clean(sanitized: Sanitized) -> None:
    python = (f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030B0000")
    extension = sanitized.link("_native.so", [sanitized.compile(_NATIVE / name, *python) for name in _EXTENSION], "-shared")
    # The interpreter is not built with the sanitizer, whose library must be the first one loaded all the same.
    library = _run([str(_COMPILER), f"-print-file-name={_LIBRARIES[sanitized.sanitizer]}"]).stdout.strip()
    environment = {
        **os.environ,
        **_OPTIONS[sanitized.sanitizer],
        "LD_PRELOAD": library,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
        "RML_ISA": "baseline",
    }
    probe = _run([sys.executable, "-c", "pass"], environment)
    if probe.returncode != 0:
        pytest.skip(f"{library} cannot be loaded before the interpreter: {probe.stderr.strip()[:200]}")
    ran = _run([sys.executable, Path(__file__).with_name("sanitized_matrix.py"), extension], environment, _ROOT)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert int(ran.stdout.split()[0]) > 500, ran.stdout
