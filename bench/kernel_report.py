"""Rounds of the kernel benchmark as rows, and rows as a table or JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.kernel_arms import PEERS, Block
from bench.kernel_cases import Case

__all__ = ["Row", "as_json", "print_report", "summary"]

_WIDTH = 210
"""Columns of a table that goes into a file or a pipe."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report; every number is a median of rounds, and ratios are taken within a round.

    Attributes:
        kernel: what was measured.
        shape: its sizes; MxNxK where there is a matrix product.
        model: the model of the zoo that has it, or empty.
        isa: instruction set.
        threads: how many ran it.
        native: the native kernels of a call; "numpy" among them if there is none.
        microseconds: of a call.
        gflops: operations of a call per nanosecond; a convolution by Winograd's method counts as if it were direct.
        gbytes: bytes that a call has to read and write at least, per nanosecond.
        peak_gflops: what the cores reached on multiply-adds alone.
        bandwidth_gbytes: what they read, or copied, from a working set as large as the call's.
        bound: "compute" or "memory": what the roofline is at this row.
        of_peak: gflops / peak_gflops.
        fraction: of the roofline: the least time that peak and bandwidth allow, over the time taken.
        peers: library -> its time over ours.
    """

    kernel: str
    shape: str
    model: str
    isa: str
    threads: int
    native: str
    microseconds: float
    gflops: float
    gbytes: float
    peak_gflops: float
    bandwidth_gbytes: float
    bound: str
    of_peak: float
    fraction: float
    peers: Mapping[str, float]


def summary(case: Case, isa: str, threads: int, blocks: Sequence[Block], peers: Mapping[str, Sequence[float]]) -> Row:
    """Returns the row of a case: ``blocks`` one per round, ``peers`` the seconds of each library in the same rounds."""
    work = blocks[0].work
    moved = work.read + work.written

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    compute, memory = [work.flops / block.peak for block in blocks], [moved / block.bandwidth for block in blocks]
    seconds = median([block.seconds for block in blocks])
    fractions = [max(pair) / block.seconds for *pair, block in zip(compute, memory, blocks, strict=True)]
    return Row(
        kernel=case.kernel,
        shape=case.shape,
        model=case.model,
        isa=isa,
        threads=threads,
        native=blocks[0].native,
        microseconds=round(seconds * 1e6, 3),
        gflops=round(work.flops / seconds / 1e9, 2),
        gbytes=round(moved / seconds / 1e9, 2),
        peak_gflops=round(median([block.peak for block in blocks]) / 1e9, 1),
        bandwidth_gbytes=round(median([block.bandwidth for block in blocks]) / 1e9, 1),
        bound="compute" if median(compute) > median(memory) else "memory",
        of_peak=round(median([least / block.seconds for least, block in zip(compute, blocks, strict=True)]), 3),
        fraction=round(median(fractions), 3),
        peers={
            name: round(median([theirs / block.seconds for theirs, block in zip(times, blocks, strict=True)]), 3)
            for name, times in peers.items()
        },
    )


def as_json(rows: Sequence[Row], levels: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    """Returns the report as JSON: ``machine``, ``limits`` (per instruction set and thread count, in GFLOP/s and GB/s) and ``rows``."""
    return json.dumps({"machine": machine, "limits": list(levels), "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def print_report(rows: Sequence[Row], levels: Sequence[Mapping[str, Any]]) -> None:
    """Prints limits and rows as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for level in levels:
        numbers = ", ".join(f"{name} {value:.0f} GB/s" for name, value in level.items() if name not in ("isa", "threads", "peak"))
        console.print(f"{level['isa']}, {level['threads']} thread(s): {level['peak']:.1f} GFLOP/s; reading {numbers}", highlight=False)
    peers = [peer for peer in PEERS if any(peer in row.peers for row in rows)]
    table = Table("kernel", "shape", "model", "isa", "runs")
    for heading in ("thr", "us", "GFLOP/s", "GB/s", "of peak", "bound", "of roof", *(f"{peer} / us" for peer in peers)):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (
            f"{row.microseconds:.1f}",
            f"{row.gflops:.1f}",
            f"{row.gbytes:.1f}",
            f"{row.of_peak:.2f}",
            row.bound,
            f"{row.fraction:.2f}",
        )
        ratios = (f"{row.peers[peer]:.2f}" if peer in row.peers else "" for peer in peers)
        table.add_row(row.kernel, row.shape, row.model, row.isa, row.native, str(row.threads), *cells, *ratios)
    console.print(table)
