"""Runs the native cases of the conformance matrix with an extension that is built with a sanitizer; test_sanitizers.py starts it.

Usage: sanitized_matrix.py EXTENSION. Buffers end where their data ends, so that the sanitizer sees what is read or written behind them.
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np


def load_extension(path: str) -> None:
    """Puts the extension at ``path`` in the place of the package's own."""
    spec = importlib.util.spec_from_file_location("rml_exec._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module
    import rml_exec

    rml_exec._native = module  # type: ignore[attr-defined]


def main(path: str) -> None:
    load_extension(path)
    from rml_exec import Executor
    from tests.runtime.test_conformance import CASES, graph_of

    ran = 0
    for parameter in CASES:
        op, case = parameter.values
        graph, _, inputs = graph_of(op, case, constant=False)
        executor = Executor.create(graph, numerics="exact", threads=3)
        if not any(step.native for step in executor.steps):
            continue
        results = []
        for threads in (1, 3):
            arena = np.full(executor.memory.arena_bytes, 0xFF, np.uint8)
            outputs = [np.full(type_.shape, 0xFF, np.uint8).astype(type_.dtype.numpy) for type_ in executor.output_types.values()]
            executor.program.run(arena, [np.array(array, order="C") for array in inputs], outputs, threads)
            results.append([output.tobytes() for output in outputs])
        assert results[0] == results[1], f"{op.name}-{case.id}: 1 and 3 threads differ"
        ran += 1
    print(f"{ran} cases")


if __name__ == "__main__":
    main(sys.argv[1])
