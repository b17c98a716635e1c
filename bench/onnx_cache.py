"""Exported models as ONNX files, for the arms that run those: each is written once, beside the models, by a process of its own.

A file is named by a hash over the graph, its weights, and the code that writes it, so that none is ever stale. The process that writes it is
not the worker, which would keep the memory of it, and may be of another interpreter, which need not have onnx.

Run as ``python -m bench.onnx_cache PREFIX FILE``, or with an empty PREFIX for the product of :mod:`bench.probe`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import exporters.to_onnx
from bench.adapters.base import UnavailableError
from bench.probe import operands
from bench.processes import PYTHON_VARIABLE, child_environment
from exporters.to_onnx import to_onnx
from rml_exec.command import UNAVAILABLE, run_command
from rml_exec.ir.golden import graph_hashes
from rml_exec.loading import GraphBuilder

__all__ = ["FOLDER", "main", "model_file", "product_file"]

FOLDER = "onnx"
"""Folder beside the exported models."""

_PRODUCT = "product"


def model_file(prefix: Path) -> Path:
    """Returns the ONNX file of an exported model, which is written if it is not there.

    Raises:
        UnavailableError: onnx is not installed.
        RuntimeError: the model cannot be written as ONNX.
    """
    hashes = graph_hashes(prefix)
    return _file(prefix.parent, prefix.name, str(prefix), hashes["graph_sha256"] + hashes["weights_sha256"])


def product_file(graphs: Path) -> Path:
    """Returns an ONNX file that multiplies ``x`` by the constant of the probe; errors as for :func:`model_file`."""
    return _file(graphs, _PRODUCT, "", "")


def _file(graphs: Path, name: str, prefix: str, key: str) -> Path:
    digest = hashlib.sha256(f"{key} {_writer()}".encode()).hexdigest()[:16]
    target = graphs / FOLDER / f"{name}-{digest}.onnx"
    if not target.exists():
        _write(prefix, target)
    return target


def _writer() -> str:
    """Returns a hash of the code that writes ONNX files."""
    source = hashlib.sha256()
    for path in sorted(Path(exporters.to_onnx.__file__).parent.glob("*.py")):
        source.update(path.read_bytes())
    return source.hexdigest()


def _write(prefix: str, target: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    command = [python, "-P", "-m", "bench.onnx_cache", prefix, str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=child_environment(), stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines()
    reason = lines[-1].partition(": ")[2] if lines else f"exit code {done.returncode}"
    raise UnavailableError(reason) if done.returncode == UNAVAILABLE else RuntimeError(reason)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes one file; returns the exit code."""
    prefix, target = sys.argv[1:] if argv is None else argv
    return run_command("bench.onnx_cache", lambda: _export(prefix, Path(target)))


def _export(prefix: str, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    if prefix:
        to_onnx(prefix, target, check=False)  # the benchmark compares the outputs with the golden itself
    else:
        x, w = operands()
        builder = GraphBuilder(_PRODUCT)
        left, right = builder.input("x", "f32", x.shape), builder.constant(w, name="w", key="w")
        builder.output("y", builder.add("matmul", [left, right], transpose_a=False, transpose_b=False))
        to_onnx(builder.build(), target, check=False)
    own = re.compile(re.escape(target.name[: -len("0123456789abcdef.onnx")]) + r"[0-9a-f]{16}\.onnx(\.data)?")
    for path in target.parent.iterdir():  # those of earlier weights, or of earlier code
        if own.fullmatch(path.name) and not path.name.startswith(target.name):
            path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
