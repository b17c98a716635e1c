"""``python -m exporters.accuracy DIR``: the table of errors against float64, for every export in a directory, as Markdown.

Both errors are root mean squares relative to that of the output, against the reference interpreter in float64: the framework's, and that of
the executor on one thread. The bound is that of the design: the executor within twice the framework's error (three times where Winograd
convolutions are allowed), plus half a unit in the last place of the output's rms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rml_exec import Executor, InputError
from rml_exec.command import run_command
from rml_exec.graph_run import compare_with_golden
from rml_exec.ir.golden import Golden, read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from rml_exec.runtime.reference import run_reference

__all__ = ["accuracy_rows"]

_COLUMNS = ("model", "nodes", "check", "framework's error", "executor's error", "quotient", "within bound", "steps without a native kernel")
_CONVOLUTIONS = {"conv2d", "conv2d_transpose", "conv3d"}


def accuracy_rows(directory: Path) -> Iterator[str]:
    """Yields the head of the table, then the row of every finished export, by name."""
    yield f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
    for path in sorted(directory.glob("*.golden.safetensors")):
        prefix = directory / path.name.removesuffix(".golden.safetensors")
        yield _row(prefix.name, load_graph(prefix), read_golden(path))


def _row(name: str, graph: Graph, golden: Golden) -> str:
    inputs = {key: np.array(array) for key, array in golden.inputs.items()}
    executor = Executor.create(graph, threads=1)
    outputs = executor.run(inputs)
    reference = run_reference(graph, inputs, precision="f64")
    floats = [key for key, array in reference.items() if array.dtype.kind == "f" and array.size]
    scale = {key: float(np.sqrt(np.mean(reference[key] ** 2))) or 1.0 for key in floats}
    ours, theirs = (
        max((float(np.sqrt(np.mean((given[key] - reference[key]) ** 2))) / scale[key] for key in floats), default=0.0)
        for given in (outputs, golden.outputs)
    )
    factor = 3 if any(node.op in _CONVOLUTIONS for node in graph.nodes) else 2
    within = ours <= factor * theirs + 0.5 * float(np.finfo(np.float32).eps)
    passed = "pass" if compare_with_golden(outputs, golden).passed else "FAIL"
    slow = ", ".join(dict.fromkeys(step.label for step in executor.steps if not step.native)) or "none"
    quotient = f"{ours / theirs:.2f}" if theirs else "-"
    return f"| {name} | {len(graph.nodes)} | {passed} | {theirs:.1e} | {ours:.1e} | {quotient} | {'yes' if within else 'NO'} | {slow} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; exit codes 0 ok, 2 bad usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m exporters.accuracy", description="Errors of exports against float64, as a Markdown table."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of exported models")
    directory = parser.parse_args(argv).directory

    def run() -> int:
        if not directory.is_dir():
            raise InputError.of(str(directory), "must be a directory of exported models")
        for row in accuracy_rows(directory):
            print(row, flush=True)
        return 0

    return run_command("exporters.accuracy", run)


if __name__ == "__main__":
    sys.exit(main())
