"""What casts doubt on numbers, and what to do about it. Each rule looks at records only and says one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bench.fingerprint import comparable_facts
from bench.records import CellRecord

__all__ = ["kinds", "noise_floors", "warnings"]

_Names = Callable[[Iterable[CellRecord]], str]

_MARGIN = 0.02
"""Half the width of the range that counts as ``same``."""

_MIN_ROUNDS = 6
"""Clean rounds that an interval takes, as in :mod:`bench.statistics`, which stored results are read without."""

_FLAGGED = 0.1
"""More than so many of all blocks polluted: the machine was busy."""


def kinds(records: Iterable[CellRecord]) -> list[str]:
    """Returns the scenarios and setups of records, in order of appearance: ``latency, tuned``."""
    return list(dict.fromkeys(f"{record.scenario}, {record.setup}" for record in records))


def noise_floors(records: Iterable[CellRecord]) -> dict[str, float]:
    """Returns the widest noise floor of each scenario and setup that has one: a pause or a default that is noisy says nothing of others."""
    found: dict[str, float] = {}
    for record in records:
        if record.status == "ok" and record.noise_floor is not None:
            (kind,) = kinds([record])
            found[kind] = max(found.get(kind, 0.0), record.noise_floor)
    return found


def warnings(records: Sequence[CellRecord]) -> tuple[str, ...]:
    """Returns one sentence per doubt, in the order of how much it matters."""
    ok = [record for record in records if record.status == "ok"]
    several = len(kinds(records)) > 1
    names = partial(_names, several=several)
    return (
        *_unfair(ok, names), *_unchecked(ok, names), *_mixed(ok), *_noisy(ok, several=several), *_polluted(ok), *_load(ok), *_governor(ok),
        *_unresolved(ok, names), *_shared(ok),
    )  # fmt: skip


def _names(records: Iterable[CellRecord], *, several: bool) -> str:
    """Returns the cells by model, as many as one reads: ``torch_cnn (torch, jax; 2 threads)``.

    Args:
        records: the cells.
        several: the report has more than one scenario or setup, so that a cell is not known without them:
            ``torch_cnn (torch; 1 thread; paced, installed)``.
    """
    arms: dict[tuple[str, str], list[str]] = {}
    for record in records:
        threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
        arms.setdefault((record.model, "; ".join((threads, *(kinds([record]) if several else ())))), []).append(record.framework)
    found = [f"{model} ({', '.join(dict.fromkeys(of))}; {where})" for (model, where), of in arms.items()]
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")


def _unfair(records: Sequence[CellRecord], names: _Names) -> list[str]:
    """An arm used more, or other, than it was granted: one sentence per arm and reason."""
    found: dict[tuple[str, str], list[CellRecord]] = {}
    for record in records:
        if record.parity is False:
            for reason in record.parity_reasons or ["no reason given"]:
                found.setdefault((record.framework, reason), []).append(record)
    advice = "its ratio does not compare like with like and is left out of the mean; set the arm up to keep to the threads and precision asked for"
    return [f"unequal: {arm}: {reason}, in {names(cells)}: {advice}" for (arm, reason), cells in found.items()]


def _unchecked(records: Sequence[CellRecord], names: _Names) -> list[str]:
    found = [record for record in records if record.check is None and record.median_ms is not None]
    return [f"not checked: the outputs of {names(found)} were compared with nothing: export the model with its golden"] if found else []


def _mixed(records: Sequence[CellRecord]) -> list[str]:
    """Records of one table that come from different machines or settings."""
    differing: dict[str, set[str]] = {}
    for record in records:
        for name, value in comparable_facts(record).items():
            if name.startswith("environment."):
                differing.setdefault(name.removeprefix("environment."), set()).add(str(value))
    found = [f"{name} ({' and '.join(sorted(values))})" for name, values in differing.items() if len(values) > 1]
    advice = "only ratios within a run compare; report them one by one"
    return [f"several machines or systems: records differ in {', '.join(found)}: {advice}"] if found else []


def _noisy(records: Sequence[CellRecord], *, several: bool) -> list[str]:
    wide = {kind: floor for kind, floor in noise_floors(records).items() if floor > _MARGIN}
    if not wide:
        return []
    told = " and ".join(f"±{100 * floor:.1f} %{f' ({kind})' if several else ''}" for kind, floor in wide.items())
    return [
        f"noisy: two runs of the same arm could only be told apart to {told}, so smaller differences {'there' if several else 'here'} mean"
        " nothing: close what else runs, or raise --budget and --min-time"
    ]


def _polluted(records: Sequence[CellRecord]) -> list[str]:
    flagged = sum(record.blocks_flagged or 0 for record in records)
    blocks = sum(record.rounds or 0 for record in records if record.blocks_flagged is not None)
    if not blocks or flagged <= _FLAGGED * blocks:
        return []
    return [
        f"noisy: {flagged} of {blocks} blocks are flagged, because a fixed piece of work beside them took far longer than usual; they count in"
        " the percentiles but not in ratios: close what else runs on the machine, or use other cores"
    ]


def _load(records: Sequence[CellRecord]) -> list[str]:
    busiest = max(records, key=lambda record: record.environment.get("load_average_1min", 0.0), default=None)
    if busiest is None:
        return []
    load, cores = busiest.environment.get("load_average_1min", 0.0), busiest.environment.get("cores", 1)
    if load <= cores / 2:
        return []
    return [f"busy: the load of the machine was {load:g} on {cores} cores before the run began: wait until it is idle"]


def _governor(records: Sequence[CellRecord]) -> list[str]:
    found = sorted({str(governor) for record in records if (governor := record.environment.get("governor")) not in (None, "performance")})
    if not found:
        return []
    return [
        f"the CPU changes its frequency (governor {', '.join(found)}): cpupower frequency-set --governor performance gives steadier numbers"
    ]


def _unresolved(records: Sequence[CellRecord], names: _Names) -> list[str]:
    """An interval that is too wide, and none at all, have different causes."""
    found = [record for record in records if record.verdict == "unresolved"]
    bare = [record for record in found if record.ratio_low is None or record.ratio_high is None]
    wide = [record for record in found if record not in bare]
    advice = "nothing can be said of who is faster; raise --budget or --min-time, or quieten the machine"
    said = [f"unresolved: {names(wide)}: {advice}"] if wide else []
    if bare:
        rounds, flagged = (_range([getattr(record, name) for record in bare]) for name in ("rounds", "blocks_flagged"))
        said.append(
            f"unresolved: {names(bare)}: no interval, which takes {_MIN_ROUNDS} clean rounds, those in which neither the arm's block nor the"
            f" reference's is flagged; rounds: {rounds}, flagged blocks of the arm: {flagged}: {advice}"
        )
    return said


def _range(counts: Iterable[int | None]) -> str:
    known = {count for count in counts if count is not None}
    return "unknown" if not known else " to ".join(str(count) for count in sorted({min(known), max(known)}))


def _shared(records: Sequence[CellRecord]) -> list[str]:
    """The supervisor had no core of its own."""
    found = [record for record in records if set(record.settings.get("cores", ())) & set(record.settings.get("supervisor_cores", ()))]
    threads = ", ".join(str(count) for count in sorted({record.threads for record in found}))
    return [f"with --threads {threads} the measured cores were all there are: what else runs on the machine disturbs them"] if found else []
