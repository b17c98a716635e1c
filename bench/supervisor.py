"""Measures the cells of one model and thread count side by side: a worker process per arm, loaded one by one, timed in alternating blocks.

Arms measured minutes apart see different machines. Here every round gives each arm one block of calls, in an order that turns from round to
round, so that a slow moment of the machine falls on all arms alike; a ratio is the median over rounds of the ratios within a round.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.adapters.base import UnavailableError
from bench.cells import TWIN, Cell
from bench.cores import place
from bench.inputs import draw_shapes, further_goldens, model_hashes
from bench.records import CellRecord
from bench.rounds import Rounds
from bench.scratch import scratch_folder
from bench.settings import Settings
from bench.statistics import noise_floor
from rml_exec.errors import RmlError

__all__ = ["Measured", "base_record", "run_cells"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One record per arm, in order, and the raw data of all blocks as lines for the file of blocks."""

    records: list[CellRecord]
    blocks: list[dict[str, Any]]


def base_record(model: str, threads: int, *, graphs: str, settings: Settings, environment: Mapping[str, Any]) -> CellRecord:
    """Returns what is known of all cells of a measurement before it begins; ``framework`` is empty."""
    record = CellRecord(model, "", threads, "ok", scenario=settings.scenario, setup=settings.setup)
    return replace(record, settings=settings.recorded(), environment=dict(environment), **model_hashes(Path(graphs) / model))


def run_cells(
    model: str,
    threads: int,
    frameworks: Sequence[str],
    *,
    graphs: str,
    settings: Settings,
    environment: Mapping[str, Any],
    blocks_file: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Returns what was measured. Whatever ends this call, none of its workers outlives it.

    Args:
        model: name of an exported model.
        threads: threads for every arm.
        frameworks: full names of arms that can run the model.
        graphs: directory of exported models.
        settings: how to measure.
        environment: facts of the machine for the records.
        blocks_file: where the caller keeps the raw data, for the records.
        progress: told what is being done.
    """
    began = time.monotonic()
    cells = [Cell(framework) for framework in frameworks]
    base = base_record(model, threads, graphs=graphs, settings=settings, environment=environment)
    base = replace(base, order=settings.order, seed=settings.seed, run=uuid.uuid4().hex, blocks_file=blocks_file)
    home = os.sched_getaffinity(0)
    try:
        placement = place(threads)
    except UnavailableError as error:
        for cell in cells:
            cell.end("unavailable", str(error))
        return _measured(cells, base, settings, 0.0)
    base.settings.update(cores=list(placement.measured), supervisor_cores=list(placement.supervisor))
    rounds = Rounds(cells, settings, placement.measured, began, progress)
    common = {"model": model, "threads": threads, "graphs": graphs, "setup": settings.setup, "cores": placement.measured}
    with scratch_folder() as directory:
        try:
            goldens = _goldens(Path(graphs) / model, settings, directory)
            os.sched_setaffinity(0, placement.supervisor)
            rounds.load({**common, "goldens": goldens, "caches": str(directory)})
            rounds.run()
        except RmlError as error:  # the model's files are not what they should be
            for cell in cells:
                cell.end("failed", str(error))
        finally:
            for cell in cells:
                cell.end()
            os.sched_setaffinity(0, home)
    return _measured(cells, replace(base, reason=placement.remark), settings, rounds.usual_ns)


def _goldens(prefix: Path, settings: Settings, directory: Path) -> list[str]:
    """Returns the golden sets that workers use beside the first one."""
    drawn = draw_shapes(prefix, settings.seed, directory) if settings.scenario == "shapes" else []
    return [str(path) for path in (*further_goldens(prefix), *drawn)]


def _measured(cells: Sequence[Cell], base: CellRecord, settings: Settings, usual_ns: float) -> Measured:
    reference = next((cell for cell in cells if cell.framework == settings.reference), None)
    twin = next((cell for cell in cells if cell.framework == settings.reference + TWIN), None)
    floor = None
    if reference is not None and twin is not None and reference.status == twin.status == "ok":
        floor = noise_floor(twin.ratio_to(reference, usual_ns, settings))
    records, lines = [], []
    for cell in cells:
        fields: dict[str, Any] = {"reference": settings.reference, "noise_floor": floor, **cell.observed(base.threads)}
        if cell.status == "ok":
            fields |= cell.measured() | cell.compared(reference, usual_ns, settings)
        records.append(cell.record(base, fields))
        lines += cell.lines(records[-1], cell.flags(usual_ns, settings.canary_limit))
    return Measured(records, lines)
