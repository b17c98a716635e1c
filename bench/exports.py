"""Results as files that public tools read: Google Benchmark's ``compare.py``, ``pytest-benchmark compare``, github-action-benchmark.

Field names follow ``json_reporter.cc`` and ``tools/gbench`` of google/benchmark, ``pytest_benchmark.stats`` (format 5), and the tool
``customSmallerIsBetter`` of benchmark-action/github-action-benchmark. Cells without a number are no entries, except for Google Benchmark, which
has a place for errors.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import CellRecord
from bench.stored import CellBlocks
from rml_exec.errors import InputError

__all__ = ["EXPORTS", "write_exports"]

Blocks = Mapping[tuple[str, str], CellBlocks]


def write_exports(exports: Iterable[Sequence[str]], records: Iterable[CellRecord], blocks: Blocks) -> None:
    """Writes files for other tools; of several records of one cell the last one counts.

    Args:
        exports: pairs of the tool, one of :data:`EXPORTS`, and the file to write.
        records: the records.
        blocks: their raw block data, by run and cell.

    Raises:
        InputError: an unknown tool, block data that the tool's format needs are missing, or a file that cannot be written.
    """
    cells = list({record.cell: record for record in records}.values())
    for tool, path in exports:
        if tool not in EXPORTS:
            raise InputError.of("--export", f"must name one of {', '.join(EXPORTS)}", repr(tool))
        text = json.dumps(EXPORTS[tool](cells, blocks), indent=1, allow_nan=False) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError.of(f"--export {tool} {path}", "must be a file that can be written", error.strerror) from error


def _blocks(record: CellRecord, blocks: Blocks) -> CellBlocks:
    found = blocks.get((record.run or "", record.cell))
    if found is None:
        raise InputError.of(
            "--export", "needs the raw block data of every cell", f"none for {record.cell}", hint="measure with --results FILE"
        )
    return found


def _google_benchmark(records: Sequence[CellRecord], blocks: Blocks) -> dict[str, Any]:
    """Returns one entry per block, a repetition of its cell, and one aggregate: ``compare.py`` tests the repetitions of two files."""
    facts = records[0].environment if records else {}
    context = {
        "date": facts.get("started"), "host_name": "", "executable": "bench_frameworks", "num_cpus": facts.get("cores"), "mhz_per_cpu": 0,
        "cpu_scaling_enabled": facts.get("governor") not in (None, "performance"), "caches": [],
        "load_avg": [facts["load_average_1min"]] if "load_average_1min" in facts else [], "library_version": facts.get("rml_exec"),
        "library_build_type": "release", "json_schema_version": 1, "cpu": facts.get("cpu"),
    }  # fmt: skip
    entries: list[dict[str, Any]] = []
    for family, record in enumerate(records):
        common = {
            "family_index": family, "per_family_instance_index": 0, "run_name": record.cell, "threads": record.threads, "time_unit": "ns",
            "label": record.verdict or "",
        }  # fmt: skip
        if record.status != "ok":
            message = f"{record.status}: {record.reason}"
            entries.append({"name": record.cell, **common, "run_type": "iteration", "error_occurred": True, "error_message": message})
            continue
        measured = _blocks(record, blocks).blocks
        counters = {name: value for name in ("ratio", "ratio_low", "ratio_high") if (value := getattr(record, name)) is not None}
        means = [statistics.fmean(block.times_ns) for block in measured]
        cpu = [block.cpu_ns / len(block.times_ns) for block in measured]
        for index, block in enumerate(measured):
            entries.append({
                "name": record.cell, **common, "run_type": "iteration", "repetitions": len(measured), "repetition_index": index,
                "iterations": len(block.times_ns), "real_time": means[index], "cpu_time": cpu[index], **counters,
            })  # fmt: skip
        entries.append({
            "name": f"{record.cell}_median", **common, "run_type": "aggregate", "repetitions": len(measured), "aggregate_name": "median",
            "aggregate_unit": "time", "iterations": len(measured), "real_time": statistics.median(means), "cpu_time": statistics.median(cpu),
            **counters,
        })  # fmt: skip
    return {"context": context, "benchmarks": entries}


def _pytest_benchmark(records: Sequence[CellRecord], blocks: Blocks) -> dict[str, Any]:
    """Returns one benchmark per cell; a round of pytest-benchmark is one call. Models are its groups."""
    facts = records[0].environment if records else {}
    machine = {
        "node": "", "processor": "", "machine": "", "python_compiler": "", "python_implementation": "CPython",
        "python_implementation_version": facts.get("python"), "python_version": facts.get("python"), "python_build": ["", ""],
        "release": str(facts.get("system", "")).partition(" ")[2], "system": str(facts.get("system", "")).partition(" ")[0],
        "cpu": {"brand_raw": facts.get("cpu"), "count": facts.get("cores")},
    }  # fmt: skip
    commit = {
        "id": "unversioned", "time": None, "author_time": None, "dirty": False, "error": None, "project": "bench_frameworks",
        "branch": "(unknown)",
    }  # fmt: skip
    kept = ("check", "ratio", "ratio_low", "ratio_high", "verdict", "parity", "framework_version", "fingerprint", "run")
    found = [
        {
            "group": record.model, "name": record.cell, "fullname": f"bench_frameworks::{record.cell}", "params": None, "param": None,
            "extra_info": {name: getattr(record, name) for name in kept},
            "options": {"disable_gc": False, "timer": "perf_counter_ns", "min_rounds": 1, "max_time": 0.0, "min_time": 0.0, "warmup": True},
            "stats": _statistics([time / 1e9 for block in _blocks(record, blocks).blocks for time in block.times_ns]),
        }
        for record in records
        if record.status == "ok"
    ]  # fmt: skip
    return {"machine_info": machine, "commit_info": commit, "benchmarks": found, "datetime": facts.get("started"), "version": "5.0.0"}


def _statistics(seconds: Sequence[float]) -> dict[str, Any]:
    """Returns the statistics of pytest-benchmark over calls, its quartiles included."""
    ordered, n = sorted(seconds), len(seconds)
    mean, middle = statistics.fmean(ordered), statistics.median(ordered)
    deviation = statistics.stdev(ordered, mean) if n > 1 else 0.0
    q1, q3 = (float(end) for end in np.quantile(ordered, (0.25, 0.75), method="hazen"))
    fence = 1.5 * (q3 - q1)
    outside = sum(value < q1 - fence or value > q3 + fence for value in ordered)
    far = sum(abs(value - mean) > deviation for value in ordered)
    return {
        "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": deviation, "rounds": n, "median": middle, "iqr": q3 - q1, "q1": q1,
        "q3": q3, "iqr_outliers": outside, "stddev_outliers": far, "outliers": f"{far};{outside}",
        "ld15iqr": next(value for value in ordered if value >= q1 - fence),
        "hd15iqr": next(value for value in reversed(ordered) if value <= q3 + fence),
        "ops": n / sum(ordered), "total": sum(ordered), "iterations": 1,
    }  # fmt: skip


def _github_action(records: Sequence[CellRecord], blocks: Blocks) -> list[dict[str, Any]]:
    """Returns what the tool ``customSmallerIsBetter`` takes."""
    return [
        {
            "name": record.cell,
            "unit": "ms",
            "value": record.median_ms,
            **({} if record.p90_ms is None else {"range": f"p90 {record.p90_ms:.6g}"}),
            "extra": "\n".join(
                [f"check: {record.check}", f"run: {record.run}"]
                + ([] if record.ratio is None else [f"ratio to {record.reference}: {record.ratio:.4g}"])
                + ([] if record.ratio_low is None else [f"interval: {record.ratio_low:.4g} to {record.ratio_high:.4g}"])
                + ([] if record.verdict is None else [f"verdict: {record.verdict}"])
            ),
        }
        for record in records
        if record.median_ms is not None
    ]


EXPORTS = {"google-benchmark": _google_benchmark, "pytest-benchmark": _pytest_benchmark, "github-action": _github_action}
"""Tool -> function of records and blocks that returns what its file holds."""
