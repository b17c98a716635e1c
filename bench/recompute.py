"""The numbers of a record, computed once more from raw blocks: by the same functions as the measurement itself, but from what was stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from bench.cells import TWIN, Block, Cell
from bench.parity import judge
from bench.records import CellRecord
from bench.statistics import CANARY_LIMIT, Interval, bootstrap_median, flag_blocks, noise_floor, round_ratios, usual_canary, verdict
from bench.stored import CellBlocks, Stored

__all__ = ["flags_differ", "paired_ratios", "recompute"]

_PERCENTILES = ("p90_ms", "p90_low_ms", "p90_high_ms", "p99_ms", "p99_low_ms", "p99_high_ms")
_SEEN = ("parity", "threads_seen", "throttled", "cpu_outside_affinity_s")
"""What ledgers say; without any, nothing of it is known."""


def recompute(record: CellRecord, stored: Stored) -> dict[str, Any] | None:
    """Returns the fields of a record that follow from blocks: percentiles, CPU time, ratio, interval, verdict; None where it has no blocks.

    What the blocks say of which of them are polluted is taken as it is; see :func:`flags_differ` for that.
    """
    mine = stored.of(record)
    if mine is None or not mine.blocks:
        return None
    fields: dict[str, Any] = {
        **dict.fromkeys(_PERCENTILES),  # with few calls there are none, and then none may be recorded
        **Cell(record.framework, blocks=mine.blocks).measured(),
        **_observed(record, mine),
        "blocks_flagged": sum(mine.flags),
    }
    if record.reference is None:
        return fields
    if record.framework == record.reference:
        fields |= {"ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0, "verdict": "reference"}
    elif record.verdict is not None or _is_ok(record, record.reference, stored):
        ratios = paired_ratios(mine, stored.of(record, record.reference), record.scenario)
        interval = bootstrap_median(ratios, record.seed or 0)
        fields |= {"ratio": median(ratios) if ratios else None, "verdict": verdict(interval), **_ends(interval)}
    return fields | _noise_floor(record, stored)


def _is_ok(record: CellRecord, framework: str, stored: Stored) -> bool:
    """Returns whether another arm, measured beside that of the record, ended well: then there is something to compare with."""
    cell = replace(record, framework=framework).cell
    return any(other.status == "ok" for other in stored.records if other.run == record.run and other.cell == cell)


def paired_ratios(mine: CellBlocks, theirs: CellBlocks | None, scenario: str) -> list[float]:
    """Returns the ratio of the values of blocks of every round in which both have a clean block."""
    if theirs is None:
        return []
    return round_ratios([b.value(scenario) for b in mine.blocks], [b.value(scenario) for b in theirs.blocks], mine.flags, theirs.flags)


def _observed(record: CellRecord, cell: CellBlocks) -> dict[str, Any]:
    """Returns what the ledgers of the blocks say. That an arm was fair they cannot say alone: threads were watched in the warm-up too."""
    ledgers = [block.ledger for block in cell.blocks if block.ledger]
    fields = {**dict.fromkeys(_SEEN), **judge(ledgers, record.threads, record.precision)}
    if fields["parity"]:
        del fields["parity"]
    fields.pop("parity_reasons", None)
    return fields


def _ends(interval: Interval | None) -> dict[str, Any]:
    return {"ratio_low": None if interval is None else interval.low, "ratio_high": None if interval is None else interval.high}


def _noise_floor(record: CellRecord, stored: Stored) -> dict[str, Any]:
    """Returns the noise floor where the record has one, or has a reference and a twin that ended well."""
    if record.reference is None:
        return {}
    if record.noise_floor is None and not all(_is_ok(record, record.reference + end, stored) for end in ("", TWIN)):
        return {}
    twin = stored.of(record, record.reference + TWIN)
    ratios = [] if twin is None else paired_ratios(twin, stored.of(record, record.reference), record.scenario)
    return {"noise_floor": noise_floor(bootstrap_median(ratios, record.seed or 0))}


def flags_differ(records: Sequence[CellRecord], stored: Stored) -> list[str]:
    """Returns one sentence per cell whose blocks are not flagged as the rule says.

    Args:
        records: all records of one run. Where one of them is not ``ok`` a canary may be missing that belonged to a block which failed; then
            nothing can be said.
        stored: where their blocks are.
    """
    found = {key: cell for key, cell in stored.blocks.items() if records and key[0] == records[0].run}
    if not found or any(record.status != "ok" for record in records):
        return []
    usual = usual_canary(_canaries(block for cell in found.values() for block in cell.blocks))
    limit = records[0].settings.get("canary_limit", CANARY_LIMIT)
    said = []
    for (_, name), cell in found.items():
        expected = flag_blocks([block.canary_ns for block in cell.blocks], usual, limit)
        if wrong := sum(one != other for one, other in zip(expected, cell.flags, strict=True)):
            said.append(f"{name}: {wrong} of its blocks are flagged otherwise than the canary rule says")
    return said


def _canaries(blocks: Iterable[Block]) -> list[int]:
    """Returns the canaries of a run, each once: the one after a block is that before the next one of its round."""
    rounds: dict[int, list[Block]] = {}
    for block in blocks:
        rounds.setdefault(block.round, []).append(block)
    canaries: list[int] = []
    for of_round in rounds.values():
        ordered = sorted(of_round, key=lambda block: block.position)
        canaries += [ordered[0].canary_ns[0], *(block.canary_ns[1] for block in ordered)]
    return canaries
