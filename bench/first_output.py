"""A process that runs a model once and says how long that took: ``python -m bench.first_output MODEL THREADS``. Made by serving_benchmark.

It imports nothing that a user's process would not, so what it measures is the executor's.
"""

from __future__ import annotations

import sys
import time

_began = time.monotonic()


def main() -> None:
    """Prints a line of JSON: when the first output was there (``time.monotonic``), seconds of each phase, memory."""
    import numpy as np

    from rml_exec import Executor, load_graph

    imported = time.monotonic()
    graph = load_graph(sys.argv[1])
    loaded = time.monotonic()
    executor = Executor.create(graph, threads=int(sys.argv[2]))
    created = time.monotonic()
    executor.run({name: np.zeros(type_.shape, type_.dtype.numpy) for name, type_ in executor.input_types.items()})
    ran = time.monotonic()

    import json
    from pathlib import Path

    from rml_exec.ir.derived import held_bytes

    # Not getrusage: the largest size it knows may be that of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    facts = {
        "first_output": ran,
        "import_s": imported - _began,
        "load_s": loaded - imported,
        "create_s": created - loaded,
        "run_s": ran - created,
        "cpu_seconds": time.process_time(),
        "peak_rss_bytes": 1024 * int(status["VmHWM"].split()[0]),
        "packed_bytes": held_bytes(),
        "arena_bytes": executor.memory.arena_bytes,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
