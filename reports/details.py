"""The tables shown on request: percentiles, the whole cost of an arm, break-even calls, how arms were set up, where records are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from bench.records import CellRecord
from reports.model import Column, Table, Value

__all__ = ["break_even", "detail_tables", "is_twin", "start_ms"]

_Field = tuple[Column, Callable[[CellRecord], Value]]


def _field(name: str, title: str, kind: str) -> _Field:
    return Column(name, title, kind), lambda record: getattr(record, name)


def _interval(name: str, kind: str = "ms interval") -> _Field:
    def get(record: CellRecord) -> Value:
        low, high = getattr(record, f"{name}_low_ms"), getattr(record, f"{name}_high_ms")
        return None if low is None or high is None else (low, high)

    return Column(f"{name}_interval_ms", "95 % interval", kind), get


_CELL: tuple[_Field, ...] = (
    _field("model", "model", "text"),
    _field("threads", "threads", "count"),
    _field("scenario", "scenario", "text"),
    _field("setup", "setup", "text"),
    _field("framework", "arm", "text"),
)
_LATENCY: tuple[_Field, ...] = (
    _field("iterations", "calls", "count"), _field("rounds", "rounds", "count"), _field("blocks_flagged", "flagged", "count"),
    _field("min_ms", "min ms", "ms"), _field("p10_ms", "p10 ms", "ms"), _field("median_ms", "median ms", "ms"),
    _field("mean_ms", "mean ms", "ms"), _field("p90_ms", "p90 ms", "ms"), _interval("p90"), _field("p99_ms", "p99 ms", "ms"),
    _interval("p99"), _field("max_abs_error", "max abs error", "error"), _field("max_rel_error", "max rel error", "error"),
)  # fmt: skip
_COST: tuple[_Field, ...] = (
    _field("import_ms", "import ms", "ms"), _field("load_ms", "load ms", "ms"), _field("compile_cold_ms", "compile, cold ms", "ms"),
    _field("compile_warm_ms", "compile, warm ms", "ms"), _field("first_call_ms", "first call ms", "ms"),
    (Column("start_ms", "start ms", "ms"), lambda record: start_ms(record)), _field("median_ms", "median ms", "ms"),
)  # fmt: skip
_RESOURCES: tuple[_Field, ...] = (
    _field("rss_after_import_bytes", "RSS: import MiB", "mib"), _field("rss_after_load_bytes", "load MiB", "mib"),
    _field("rss_after_first_call_bytes", "first call MiB", "mib"), _field("rss_bytes", "timed MiB", "mib"),
    _field("rss_peak_bytes", "peak MiB", "mib"),
    (Column("cpu_ms_per_call", "CPU ms/call", "ms"), lambda record: None if record.cpu_s_per_call is None else 1e3 * record.cpu_s_per_call),
    _field("idle_cpu_s", "idle CPU s/s", "number"), _field("effective_cores", "cores used", "number"),
    _field("threads_seen", "threads seen", "count"), _field("precision", "precision", "text"),
    _field("flush_denormals", "flushes denormals", "flag"), _field("throttled", "throttled", "flag"),
    _field("cpu_outside_affinity_s", "CPU s elsewhere", "number"),
)  # fmt: skip
_RECORD: tuple[_Field, ...] = (
    _field("run", "run", "text"), _field("blocks_file", "blocks", "text"), _field("started", "started", "text"),
    _field("seed", "seed", "count"), _field("order", "order", "text"), _field("fingerprint", "fingerprint", "text"),
    (Column("graph_sha256", "graph", "text"), lambda record: (record.graph_sha256 or "")[:12]),
    (Column("weights_sha256", "weights", "text"), lambda record: (record.weights_sha256 or "")[:12]),
    (Column("inputs_sha256", "inputs", "text"), lambda record: (record.inputs_sha256 or "")[:12]),
)  # fmt: skip


def detail_tables(records: Sequence[CellRecord]) -> list[Table]:
    """Returns the tables; those that have nothing to say have no rows."""
    timed = [record for record in records if record.status == "ok" and record.median_ms is not None]
    return [
        _table("latency", "calls", _LATENCY, timed),
        _table("cost", "whole cost: start = import + load + first call", _COST, timed),
        _table("resources", "memory, CPU time, and what the arm was seen to use", _RESOURCES, timed),
        _break_even_table(timed),
        _arms(records),
        _table("records", "records", _RECORD, records),
    ]


def _table(name: str, title: str, own: tuple[_Field, ...], records: Sequence[CellRecord]) -> Table:
    """Returns a table with a row per record; the columns that name the cell come first, constant ones of them left out."""
    latency_only = {(record.scenario, record.setup) for record in records} == {("latency", "tuned")}
    named = tuple(pair for pair in _CELL if not (latency_only and pair[0].key in ("scenario", "setup")))
    rows = tuple(tuple(get(record) for _, get in (*named, *own)) for record in records)
    return Table(name, title, tuple(column for column, _ in (*named, *own)), rows, group_by=len(named) - 1).filled()


def is_twin(record: CellRecord) -> bool:
    """Returns whether the record is of the second run of the reference."""
    return record.framework == f"{record.reference}#2"


def start_ms(record: CellRecord) -> float | None:
    """Returns the time until the first output: import, loading and first call, one after the other; None if one of them is unknown."""
    parts = (record.import_ms, record.load_ms, record.first_call_ms)
    return None if None in parts else sum(part for part in parts if part is not None)


def break_even(record: CellRecord, other: CellRecord) -> str | None:
    """Returns from how many calls on an arm has cost less time in all than another one: start included, the first output is call 1.

    Args:
        record: the arm.
        other: the other one.

    Returns:
        ``always``, ``from call N``, ``until call N`` or ``never``; None where a cost is unknown.
    """
    mine, theirs = start_ms(record), start_ms(other)
    if mine is None or theirs is None or record.median_ms is None or other.median_ms is None:
        return None
    saved, behind = other.median_ms - record.median_ms, mine - theirs
    if behind <= 0:
        # after n more calls it is ahead by -behind + n * saved
        return "always" if saved >= 0 else f"until call {1 + math.floor(behind / saved)}"
    return "never" if saved <= 0 else f"from call {1 + math.ceil(behind / saved)}"


def _break_even_table(records: Sequence[CellRecord]) -> Table:
    """Returns for every two arms of a model when the arm of the row has cost less than that of the column."""
    usual = [record for record in records if record.scenario == "latency" and not is_twin(record)]
    arms = list(dict.fromkeys(record.framework for record in usual))
    keys = (
        Column("model", "model"),
        Column("threads", "threads", "count"),
        Column("setup", "setup"),
        Column("framework", "cheaper in all"),
    )
    rows: list[tuple[Value, ...]] = []
    for record in usual:
        beside = {
            other.framework: other
            for other in usual
            if (other.model, other.threads, other.setup) == (record.model, record.threads, record.setup) and other is not record
        }
        found = [break_even(record, beside[arm]) if arm in beside else None for arm in arms]
        if any(found):
            rows.append((record.model, record.threads, record.setup, record.framework, *found))
    columns = (*keys, *(Column(f"than {arm}", f"than {arm}") for arm in arms))
    title = "break-even: calls from which the arm of the row has cost less than that of the column"
    return Table("break_even", title, columns, tuple(rows), group_by=3).filled()


def _arms(records: Sequence[CellRecord]) -> Table:
    """Returns how each arm was set up: one row per arm and distinct options."""
    found: dict[tuple[str, str, str, str], None] = {}
    for record in records:
        if record.framework_version is not None and not is_twin(record):
            options = json.dumps(record.options, sort_keys=True)
            found.setdefault((record.framework, record.framework_version, record.setup, options))
    columns = (Column("framework", "arm"), Column("framework_version", "version"), Column("setup", "setup"), Column("options", "options"))
    return Table("arms", "how the arms were set up", columns, tuple(found), group_by=1)
