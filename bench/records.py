"""The record of one cell, and how a line of JSON becomes one. The only definition; standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["REFERENCE", "SCENARIOS", "SCHEMA_VERSION", "SETUPS", "VERDICTS", "CellRecord", "read_records"]

SCHEMA_VERSION = 2

REFERENCE = "rml"
"""The arm that ratios refer to unless another one is asked for."""

SCENARIOS = ("latency", "paced", "concurrent", "shapes", "cold")
SETUPS = ("tuned", "installed")
VERDICTS = ("reference", "faster", "slower", "same", "unresolved")


@dataclass(frozen=True, slots=True)
class CellRecord:
    """What happened in one cell: one model under one arm with one number of threads, in one scenario and setup.

    Whatever is not known, not asked for or does not apply is None. Times that end in ``_ms`` are wall time.

    What was measured:

    Attributes:
        model: zoo name, or the path prefix of an exported model.
        framework: full name of the arm: ``torch``, ``onnxruntime@/path/to/python``; ``rml#2`` is the twin of ``rml`` in an A/A run.
        threads: threads asked for, which is also the number of cores the worker is pinned to.
        status: ``ok``; ``mismatch`` (outputs differ from the golden: nothing was timed, or a timed output was wrong); ``unavailable``
            (framework not installed, too few cores); ``failed`` (crash, timeout, error).
        reason: one sentence where the status is not ``ok``, or a remark where it is; empty where there is nothing to say.
        scenario: ``latency`` (call after call), ``paced`` (a pause before every call), ``concurrent`` (several callers at once), ``shapes``
            (every call with inputs of another shape), ``cold`` (new process to first output; a call is a process).
        setup: ``tuned`` (equal threads, what the arm's documentation says is best for latency) or ``installed`` (its defaults).
        framework_version: version of the framework.
        options: how the arm was set up, for the reader who wants to repeat it.
        settings: how the harness was set up: block length, precision, budget, pause, callers...
        environment: facts of the machine, the same in all records of a run.
        graph_sha256: hash of NAME.json.
        weights_sha256: hash of NAME.safetensors.
        inputs_sha256: hash over the golden files, the inputs and the wanted outputs, in their order.
        fingerprint: hash over everything that must be equal for two records to be comparable; see :mod:`bench.fingerprint`.
        started: when the worker of the cell was started, UTC, ISO 8601.
        finished: when the cell had its last block, or ended otherwise.
        run: identifies the measurement that the cell was part of: the block data of a cell have the same one.
        blocks_file: name of the file beside the results file that holds the raw block data.

    Whether it is right:

    Attributes:
        check: ``pass`` or ``fail`` of the outputs against the golden: first call, and first, last and a random call of every timed block;
            None if not run.
        max_abs_error: largest absolute error of any output of any call that was checked; None where it is not finite.
        max_rel_error: largest error relative to max(|want|, rms(want)); likewise.

    How long a call takes (nothing is left out as an outlier):

    Attributes:
        iterations: timed calls, in all blocks.
        mean_ms: their mean.
        min_ms: their minimum; likewise the nearest-rank percentiles.
        p10_ms: 10th percentile.
        median_ms: median.
        p90_ms: 90th percentile.
        p90_low_ms: lower end of its 95 % order-statistic interval (independent calls assumed); None if there are too few calls for one.
        p90_high_ms: upper end.
        p99_ms: 99th percentile; None if there are too few calls (368) for an interval.
        p99_low_ms: lower end of its interval.
        p99_high_ms: upper end.
        cpu_s_per_call: CPU time of the whole process per timed call.
        idle_cpu_s: CPU time per second that the worker uses after the last block when nobody calls it.

    How it compares:

    Attributes:
        reference: the arm that the ratio refers to.
        ratio: median over rounds of the value of this arm's block divided by that of the reference's in the same round; 1 for the reference.
            The value of a block is the lower quartile of its calls; of ``concurrent`` callers their mean, of several ``shapes`` the mean of
            the quartiles of each.
        ratio_low: lower end of its 95 % bootstrap interval.
        ratio_high: upper end.
        verdict: ``reference``; ``same`` if the interval lies within 2 % of 1; else ``faster`` or ``slower`` if it lies on one side of 1;
            else, or where there are too few clean rounds, ``unresolved``. None without a reference.
        rounds: rounds that the arm was part of.
        blocks_flagged: blocks of the arm that the canary marked as polluted: in the percentiles, but not in ratio and verdict.
        noise_floor: half the width of the ratio interval of the reference's twin, which should be 1; None without a twin.
        order: how arms take turns: ``random`` or ``abba``.
        seed: seed of the order, of the calls that are checked, and of the bootstrap.

    Whether it was fair (observed during the timed blocks):

    Attributes:
        parity: false if the arm used more, or other, than it was granted.
        parity_reasons: one sentence per reason for that.
        effective_cores: CPU time of the process divided by wall time.
        threads_seen: threads that used CPU time.
        precision: effective precision of float32 products by a probe: ``f32``, ``tf32``, ``bf16``, ``f16``, or ``other``.
        flush_denormals: whether denormal numbers are flushed to zero.
        throttled: whether the control group was throttled.
        cpu_outside_affinity_s: CPU time used outside the cores granted.

    What it costs besides:

    Attributes:
        import_ms: import of the framework.
        load_ms: for ``rml`` load + create; for a framework the building of the model, weights included.
        compile_cold_ms: compilation with empty caches.
        compile_warm_ms: compilation when the caches on disk are filled.
        first_call_ms: the first call, with whatever tracing and compilation happens in it.
        new_shape_ms: median of the first calls at shapes not seen before; scenario ``shapes`` only.
        rss_after_import_bytes: resident memory of the process after the import of the framework.
        rss_after_load_bytes: after loading.
        rss_after_first_call_bytes: after the first call.
        rss_bytes: after the timed blocks.
        rss_peak_bytes: the largest it ever was.
        schema_version: 2.
    """

    model: str
    framework: str
    threads: int
    status: str
    reason: str = ""
    check: str | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    scenario: str = "latency"
    setup: str = "tuned"
    iterations: int | None = None
    mean_ms: float | None = None
    min_ms: float | None = None
    p10_ms: float | None = None
    median_ms: float | None = None
    p90_ms: float | None = None
    p90_low_ms: float | None = None
    p90_high_ms: float | None = None
    p99_ms: float | None = None
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    cpu_s_per_call: float | None = None
    idle_cpu_s: float | None = None
    reference: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: str | None = None
    rounds: int | None = None
    blocks_flagged: int | None = None
    noise_floor: float | None = None
    order: str | None = None
    seed: int | None = None
    parity: bool | None = None
    parity_reasons: list[str] = field(default_factory=list)
    effective_cores: float | None = None
    threads_seen: int | None = None
    precision: str | None = None
    flush_denormals: bool | None = None
    throttled: bool | None = None
    cpu_outside_affinity_s: float | None = None
    import_ms: float | None = None
    load_ms: float | None = None
    compile_cold_ms: float | None = None
    compile_warm_ms: float | None = None
    first_call_ms: float | None = None
    new_shape_ms: float | None = None
    rss_after_import_bytes: int | None = None
    rss_after_load_bytes: int | None = None
    rss_after_first_call_bytes: int | None = None
    rss_bytes: int | None = None
    rss_peak_bytes: int | None = None
    framework_version: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    graph_sha256: str | None = None
    weights_sha256: str | None = None
    inputs_sha256: str | None = None
    fingerprint: str | None = None
    run: str | None = None
    blocks_file: str | None = None
    started: str | None = None
    finished: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def cell(self) -> str:
        """Names the cell: ``model/framework/threads/scenario/setup``."""
        return f"{self.model}/{self.framework}/{self.threads}/{self.scenario}/{self.setup}"

    def to_json(self) -> str:
        """Returns one line of JSON, without the newline."""
        return json.dumps(asdict(self), allow_nan=False)


def read_records(lines: Iterable[str]) -> list[CellRecord]:
    """Returns the records of JSON lines; a last line without its end, as a killed run leaves it, is passed over.

    Raises:
        ValueError: a line that is no record, or one of another schema version, with its line number.
    """
    known = {entry.name for entry in fields(CellRecord)}
    records = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            found = json.loads(line)
            version = found.get("schema_version")
        except (ValueError, AttributeError):
            raise ValueError(f"line {number}: is not a record") from None
        if not {"model", "framework", "threads", "status", "schema_version"} <= set(found):
            raise ValueError(f"line {number}: is not a record")
        if version != SCHEMA_VERSION:
            raise ValueError(f"line {number}: schema version must be {SCHEMA_VERSION}; got {version}, of another release of rml-exec")
        if set(found) - known:
            raise ValueError(f"line {number}: is not a record")
        records.append(CellRecord(**found))
    return records
