"""``bench_frameworks compare``: two results files of the same cells, measured at different times: what became slower, and is that certain?

Within a run arms take turns, so a ratio of two arms does not care what the machine did meanwhile. Two runs have no such luck: a machine that is
slower as a whole looks like a regression everywhere. Two things are done about it. The canaries of both runs, a fixed piece of work, tell by how
much the machine itself changed; where that is more than 2 %, ``faster`` and ``slower`` have to hold with and without it. And ``--anchor ARM``
compares ratios to an arm that did not change (a framework of the same version) in place of times.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cells import Cell
from bench.comparison_report import comparison_report
from bench.fingerprint import comparable_facts, fingerprint
from bench.recompute import paired_ratios
from bench.records import CellRecord
from bench.report import load_renderer
from bench.statistics import MARGIN, Interval, bootstrap_median, verdict
from bench.stored import Stored, read_results
from rml_exec.command import run_command
from rml_exec.errors import InputError
from rml_exec.graph_run.latency import nearest_rank

__all__ = ["REGRESSION", "UNRESOLVED", "Change", "compare", "exit_code", "main", "quotient", "verdict_between_runs"]

MISMATCH, REGRESSION, UNRESOLVED = 1, 3, 4


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a cell.

    Attributes:
        old: its last record in the old file.
        new: in the new one; None if it has none.
        interval: new / old, below 1 is faster; None where there is no number.
        verdict: ``faster``, ``slower``, ``same``, ``unresolved``; ``mismatch`` (its output became wrong) or ``gone`` (it has no number any more).
        machine: time of the canaries, new / old; None if they are not known or of no importance.
        reason: one sentence, where there is something to say.
    """

    old: CellRecord
    new: CellRecord | None
    interval: Interval | None
    verdict: str
    machine: float | None = None
    reason: str = ""


def quotient(new: Interval, old: Interval) -> Interval:
    """Returns the interval of new / old of two independent intervals.

    The distances to the ends add up by their squares on the logarithmic scale (method of variance estimates recovery: Zou and Donner,
    Statistics in Medicine 27, 2008).
    """
    centre = math.log(new.estimate) - math.log(old.estimate)
    below = math.hypot(math.log(new.estimate / new.low), math.log(old.high / old.estimate))
    above = math.hypot(math.log(new.high / new.estimate), math.log(old.estimate / old.low))
    return Interval(math.exp(centre), math.exp(centre - below), math.exp(centre + above))


def verdict_between_runs(interval: Interval) -> str:
    """Returns the verdict on new / old: ``faster`` and ``slower`` need an estimate that is itself more than 2 % from 1.

    An interval is about the processes of its run. Two processes of the same code differ a little for as long as they live, by the layout of
    their memory, and no number of blocks shows that.
    """
    said = verdict(interval)
    return "unresolved" if said in ("faster", "slower") and 1 - MARGIN <= interval.estimate <= 1 + MARGIN else said


def compare(old: Stored, new: Stored, *, arms: Collection[str] | None = None, anchor: str | None = None) -> list[Change]:
    """Returns what became of every cell that has a number in the old file; of several records of a cell the last one counts.

    Args:
        old: the old results, block data included.
        new: the new ones.
        arms: those to look at; None for all of the old results.
        anchor: the arm whose ratios are compared in place of times; its own cells are left out.
    """
    before, after = ({record.cell: record for record in stored.records} for stored in (old, new))
    timed = [record for record in before.values() if record.median_ms is not None and record.framework != anchor]
    timed = [record for record in timed if arms is None or record.framework in arms]
    return [_change(record, after.get(record.cell), old, new, anchor) for record in timed]


def _change(was: CellRecord, now: CellRecord | None, old: Stored, new: Stored, anchor: str | None) -> Change:
    if now is None:
        return Change(was, None, None, "gone", reason="the new file has no such cell")
    if now.status == "mismatch":
        return Change(was, now, None, "mismatch", reason=now.reason)
    if now.median_ms is None:
        return Change(was, now, None, "gone", reason=f"{now.status}: {now.reason}")
    after, before = _measured(now, new, anchor), _measured(was, old, anchor)
    if after is None or before is None:
        record, stored = (now, new) if after is None else (was, old)
        return Change(was, now, None, "unresolved", reason=f"{stored.path}: {_lack(record, stored, anchor)}")
    found = quotient(after, before)
    if anchor is not None:
        return Change(was, now, found, verdict_between_runs(found))
    machine = _machine(was, now, old, new)
    said = verdict_between_runs(found)
    corrected = verdict_between_runs(Interval(found.estimate / machine, found.low / machine, found.high / machine))
    if said == corrected or said not in ("slower", "faster") or abs(machine - 1) <= MARGIN:
        return Change(was, now, found, said, machine)
    reason = f"the canaries took {machine:.2f} times as long: allowing for that the cell is {corrected}, otherwise {said}"
    return Change(was, now, found, "unresolved", machine, reason)


def _measured(record: CellRecord, stored: Stored, anchor: str | None) -> Interval | None:
    """Returns the time of a call, or its ratio to the anchor's, over the clean blocks of a run."""
    blocks = stored.of(record)
    if blocks is None:
        return None
    if anchor is not None:
        return bootstrap_median(paired_ratios(blocks, stored.of(record, anchor), record.scenario), record.seed or 0)
    clean = [block.value(record.scenario) / 1e6 for block, flagged in zip(blocks.blocks, blocks.flags, strict=True) if not flagged]
    return bootstrap_median(clean, record.seed or 0)


def _lack(record: CellRecord, stored: Stored, anchor: str | None) -> str:
    """Returns why nothing could be measured of a record."""
    if stored.of(record) is None:
        return "no raw block data"
    if anchor is None or stored.of(record, anchor) is not None:
        return "too few clean blocks"
    beside = replace(record, framework=anchor).cell
    status = next((other.status for other in stored.records if other.cell == beside and other.run == record.run), None)
    if status is None:
        return f"the anchor {anchor} has no cell there"
    return f"no raw block data of the anchor {anchor}" if status == "ok" else f"the anchor {anchor} is {status} there"


def _machine(was: CellRecord, now: CellRecord, old: Stored, new: Stored) -> float:
    """Returns by what factor the machine takes longer for a canary when nothing disturbs it: of their 10th percentiles beside a cell."""
    found = []
    for record, stored in ((now, new), (was, old)):
        cell = stored.of(record)
        assert cell is not None
        found.append(nearest_rank(sorted(ns for block in cell.blocks for ns in block.canary_ns), 10))
    return found[0] / found[1]


def exit_code(changes: Sequence[Change]) -> int:
    """Returns 1 if an output became wrong, else 3 for a regression, else 4 if something is unresolved or gone, else 0."""
    found = {change.verdict for change in changes}
    return MISMATCH if "mismatch" in found else REGRESSION if "slower" in found else UNRESOLVED if found & {"unresolved", "gone"} else 0


def main(arguments: Sequence[str]) -> int:
    """Runs ``bench_frameworks compare``."""
    parser = argparse.ArgumentParser(
        prog="bench_frameworks compare",
        description="Says of every cell of an old results file what became of it in a new one. A cell is same if its 95 % interval"
        " lies within 2 % of 1, slower or faster if it lies on one side of 1 and the estimate more than 2 % from 1, else unresolved.",
        epilog="exit codes: 0 nothing is slower, 1 an output became wrong, 2 bad input, or not comparable, 3 something is slower, 4 something is"
        " unresolved or has no number any more, 5 unavailable",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="results file")
    parser.add_argument("new", type=Path, metavar="NEW", help="results file")
    parser.add_argument("--arms", metavar="A,B", help="arms to look at (default: all of OLD)")
    parser.add_argument("--anchor", metavar="ARM", help="compare ratios to this arm, which did not change, in place of times")
    parser.add_argument("--force", action="store_true", help="compare in spite of different machines, models, settings or fingerprints")
    parser.add_argument("--format", choices=("table", "markdown", "csv", "json", "html"), default="table", help="default %(default)s")
    options = parser.parse_args(arguments)
    return run_command("bench_frameworks compare", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    render_report = load_renderer().render_report
    old, new = (read_results(path, blocks=True) for path in (options.old, options.new))
    arms = None if options.arms is None else [name.strip() for name in options.arms.split(",")]
    if arms is not None:
        have = dict.fromkeys(record.framework for record in old.records)
        if unknown := [name for name in arms if name not in have]:
            raise InputError.of("--arms", f"must name some of {', '.join(have)}", ", ".join(map(repr, unknown)))
    if options.anchor is not None and options.anchor not in {record.framework for record in new.records}:
        raise InputError.of("--anchor", f"must be an arm in {new.path}", repr(options.anchor))
    changes = compare(old, new, arms=arms, anchor=options.anchor)
    if not any(change.new for change in changes):
        raise InputError.of(str(options.new), f"must have cells of {options.old}", "none" if changes else f"{options.old} has no numbers")
    for stored, records in ((old, [change.old for change in changes]), (new, [change.new for change in changes if change.new])):
        if wrong := contradictions(records, stored):
            rule = "must agree with its raw blocks"
            raise InputError.of(str(stored.path), rule, ", ".join(wrong), hint="one of the two was changed after the run; measure again")
    differing = incomparable(changes, old.path, new.path)
    if differing and not options.force:
        rule = f"must be comparable with {options.old}"
        raise InputError.of(str(options.new), rule, ", ".join(differing), hint="--force compares all the same")
    render_report(comparison_report(changes, differing, anchor=options.anchor), options.format, sys.stdout)
    return exit_code(changes)


def contradictions(records: Sequence[CellRecord], stored: Stored) -> list[str]:
    """Returns one phrase per record whose median, which is printed, is not that of its blocks, which the verdict is about."""
    found = []
    for record in records:
        cell = stored.of(record)
        if cell is None or record.median_ms is None:
            continue
        median_ms = Cell(record.framework, blocks=cell.blocks).measured()["median_ms"]
        if not math.isclose(record.median_ms, median_ms, rel_tol=1e-9):
            found.append(f"median_ms {record.median_ms} of {record.cell} where the blocks give {median_ms}")
    return found


def incomparable(changes: Sequence[Change], old: Path, new: Path) -> list[str]:
    """Returns what keeps records from being comparable, one phrase each: facts that differ, and fingerprints that do not follow from facts.

    A fingerprint alone is no evidence: it is a string in a file, and may be older than what stands beside it.
    """
    found: dict[str, None] = {}
    pairs = [(change.old, change.new) for change in changes if change.new is not None]
    for was, now in pairs:
        before, after = comparable_facts(was), comparable_facts(now)
        for name in before:
            if before[name] != after[name]:
                of = f" of {was.model}" if name.endswith("sha256") else ""
                found.setdefault(f"{name}{of} {_shown(after[name])} in place of {_shown(before[name])}")
    for path, records in zip((old, new), zip(*pairs, strict=True), strict=False):
        # one phrase per wrong fingerprint: arms that were measured together share theirs
        wrong = {(record.fingerprint, fingerprint(record)): record.cell for record in records if record.fingerprint != fingerprint(record)}
        for (stated, follows), cell in wrong.items():
            found.setdefault(f"fingerprint {_shown(stated)} of {cell} in {path} where its facts give {_shown(follows)}")
    return list(found)


def _shown(fact: object) -> str:
    return "nothing" if fact is None else repr(fact)
