"""Results files for tests, made of block times that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.cells import Block
from bench.fingerprint import fingerprint
from bench.recompute import recompute
from bench.records import CellRecord
from bench.results import blocks_path
from bench.stored import CellBlocks, Stored

RECORDED = Path(__file__).parents[1] / "reports" / "data" / "results.jsonl"
"""A real run, shortened."""

CANARY_NS = 500_000


def block(number: int, times_ns: Sequence[int], *, canary_ns: int = CANARY_NS, position: int = 0) -> Block:
    """Returns one block; the canaries around it took equally long."""
    return Block(number, position, number * 10**9, sum(times_ns), list(times_ns), sum(times_ns), [0], (canary_ns, canary_ns))


def write_run(
    path: Path, arms: Mapping[str, Sequence[float]], *, run: str = "r1", model: str = "m", canary_ns: int = CANARY_NS, **fields: Any
) -> Path:
    """Writes a results file with one cell per arm, measured in one run, and its file of blocks.

    Args:
        path: the results file; an existing one is appended to.
        arms: per arm the median of every block in milliseconds; the first one is the reference.
        run: name of the run.
        model: the model.
        canary_ns: time of every canary.
        fields: further fields of all records.
    """
    reference = next(iter(arms))
    base = CellRecord(model, "", 1, "ok", check="pass", reference=reference, seed=3, order="random", run=run, environment={"cpu": "X"})
    base = replace(base, **fields)
    cells: dict[tuple[str, str], CellBlocks] = {}
    for position, (arm, medians) in enumerate(arms.items()):
        blocks = [
            block(number, [round(1e6 * ms * part) for part in (0.99, 1.0, 1.02)], canary_ns=canary_ns, position=position)
            for number, ms in enumerate(medians)
        ]
        cells[run, replace(base, framework=arm).cell] = CellBlocks(blocks, [False] * len(blocks))
    stored = Stored(path, [], cells, [])
    with path.open("a") as file:
        for arm in arms:
            record = replace(base, framework=arm, verdict="unresolved")
            record = replace(record, **(recompute(record, stored) or {}))
            file.write(replace(record, fingerprint=fingerprint(record)).to_json() + "\n")
    with blocks_path(path).open("a") as file:
        for (_, cell), found in cells.items():
            for one in found.blocks:
                file.write(json.dumps({"run": run, "cell": cell, **asdict(one), "flagged": False}) + "\n")
    return path
