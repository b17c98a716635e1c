"""Where in the arena each buffer lies: computed from a plan's actions alone.

Buffers that share storage (views, in-place reuse) are merged first, each group living from its first allocation to its last release.
Groups are then placed one by one, largest first, each into the smallest gap that fits between the groups alive at the same time (Pisarchyk
and Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288, greedy by size; XNNPACK's planner is alike).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rml_exec.errors import PlanError
from rml_exec.plan.actions import Action, ActionKind

if TYPE_CHECKING:
    from rml_exec.plan.execution_plan import ExecutionPlan

__all__ = ["MemoryPlan", "plan_memory"]

_BUDGET = 8000  # placements spent on a better order: about 0.1 s
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets into one arena, all in bytes.

    Attributes:
        offsets: value that has storage in the arena (views left out) -> offset; values that share storage have the same one.
        scratch: node name -> offset of its temporary.
        external: value that lives outside the arena -> the member of ``external`` in whose buffer it lies (itself, or what overwrites it).
        arena_bytes: size of the arena.
        peak_bytes: largest sum of buffers alive together.
        lower_bound_bytes: the same with each buffer rounded up to the alignment: no arena can be smaller.
        live: (index of an action, bytes alive after it), where that changes.
    """

    offsets: Mapping[str, int]
    scratch: Mapping[str, int]
    external: Mapping[str, str]
    arena_bytes: int
    peak_bytes: int
    lower_bound_bytes: int
    live: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Group:
    """Values in one piece of storage, alive from action ``start`` until action ``end``."""

    size: int
    start: int
    end: int
    values: list[str] = field(default_factory=list)
    scratch_of: str | None = None
    open: int = 1  # members allocated and not yet released


def plan_memory(plan: ExecutionPlan, *, alignment: int = 64, external: Collection[str] = frozenset()) -> MemoryPlan:
    """Returns the offset of every buffer and temporary of a plan.

    Args:
        plan: only its actions are read. Inputs and constants are never in the arena: nothing allocates them.
        alignment: of every offset, in bytes.
        external: values that are written straight into a caller's buffer of exactly their size; what shares their storage follows them.

    Raises:
        PlanError: an external value is a view, or shares its storage with a larger value.
    """
    groups = list(_groups(plan.actions))
    outside: dict[str, str] = {}
    inside = []
    for group in groups:
        owner = next((name for name in group.values if name in external), None)
        if owner is None:
            inside.append(group)
            continue
        outside.update(dict.fromkeys(group.values, owner))
    _check_external(plan.actions, external, outside)

    raw = np.array([group.size for group in inside], np.int64)
    sizes = -(-raw // alignment) * alignment
    spans = np.array([(group.start, group.end) for group in inside], np.int64).reshape(-1, 2)
    live = _live(raw, spans, len(plan.actions))
    bound = int(_live(sizes, spans, len(plan.actions)).max(initial=0))
    places, arena = _place(sizes, spans, bound)
    offsets = {name: place for group, place in zip(inside, places, strict=True) for name in group.values}
    scratch = {group.scratch_of: place for group, place in zip(inside, places, strict=True) if group.scratch_of is not None}
    changes = np.flatnonzero(np.diff(live, prepend=0))
    return MemoryPlan(
        offsets, scratch, outside, arena, int(live.max(initial=0)), bound, tuple(zip(changes.tolist(), live[changes].tolist(), strict=True))
    )


def _groups(actions: Sequence[Action]) -> Iterator[_Group]:
    """Yields the groups of values that share storage, temporaries as groups of their own."""
    groups: dict[str, _Group] = {}
    temporaries: dict[str, _Group] = {}
    for index, action in enumerate(actions):
        match action.kind:
            case ActionKind.ALLOCATE_BUFFER | ActionKind.CREATE_SHAPE:
                shared = action.reuses or action.views
                if shared is None:
                    groups[action.name] = _Group(action.bytes, index, len(actions), [action.name])
                    yield groups[action.name]
                elif shared in groups:  # else it looks into an input or a constant
                    group = groups[action.name] = groups[shared]
                    group.open += 1
                    group.size = max(group.size, action.bytes)
                    if action.reuses:
                        group.values.append(action.name)
            case ActionKind.DELETE_BUFFER | ActionKind.DELETE_SHAPE if action.name in groups:
                group = groups[action.name]
                group.open -= 1
                group.end = index if group.open == 0 else group.end
            case ActionKind.ALLOCATE_TEMPORARY:
                temporaries[action.name] = _Group(action.bytes, index, len(actions), scratch_of=action.name)
                yield temporaries[action.name]
            case ActionKind.DELETE_TEMPORARY:
                temporaries[action.name].end = index


def _check_external(actions: Sequence[Action], external: Collection[str], outside: Mapping[str, str]) -> None:
    """Raises PlanError where a caller's buffer cannot hold what the plan would put there."""
    allocations = (ActionKind.ALLOCATE_BUFFER, ActionKind.CREATE_SHAPE)  # others may carry the name of a node, which may be a value's too
    sizes = {action.name: action.bytes for action in actions if action.kind in allocations}
    for name in external:
        if name not in outside:
            raise PlanError.of(f"value '{name}'", "only what a node makes, and no view, can be written straight into a caller's buffer")
    for name, owner in outside.items():
        if sizes[name] > sizes[owner]:
            got = f"'{name}' of {sizes[name]} bytes"
            raise PlanError.of(f"value '{owner}'", "must not share a caller's buffer with a larger value", got)


def _live(sizes: np.ndarray, spans: np.ndarray, length: int) -> np.ndarray:
    """Returns the bytes alive after each action."""
    change = np.zeros(length + 1, np.int64)
    np.add.at(change, spans[:, 0], sizes)
    np.subtract.at(change, spans[:, 1], sizes)
    return np.cumsum(change)[:length]


def _place(sizes: np.ndarray, spans: np.ndarray, bound: int) -> tuple[list[int], int]:
    """Returns an offset per group and the size of the arena.

    The order decides how well greedy placing does. Two orders are tried, and each is mended: the groups that ended up on top go first in
    the next round. That ends at the lower bound or when the budget is spent.
    """
    start, end = spans[:, 0], spans[:, 1]
    count = len(sizes)
    best: tuple[list[int], int] = [0] * count, 0
    left = _BUDGET
    for order in (np.lexsort((start, start - end, -sizes)), np.lexsort((start, -sizes, start - end))):
        for _ in range(max(1, min(_ROUNDS, _BUDGET // 2 // max(1, count)))):
            lows = _place_in_order(order, sizes, start, end)
            highs = lows + sizes
            arena = int(highs.max(initial=0))
            if left == _BUDGET or arena < best[1]:
                best = lows.tolist(), arena
            left -= count
            if best[1] == bound or left < count:
                return best
            on_top = highs[order] == arena
            order = np.concatenate((order[on_top], order[~on_top]))
    return best


def _place_in_order(order: np.ndarray, sizes: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Returns offsets: each group goes into the smallest gap that fits, among equals the most recently freed and hence cached one."""
    count = len(order)
    starts, ends = start[order], end[order]
    lows, highs = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for k, group in enumerate(order):
        size = sizes[group]
        if size == 0:
            continue
        beside = np.flatnonzero((starts[:k] < ends[k]) & (ends[:k] > starts[k]))
        low = 0
        if len(beside):
            beside = beside[np.argsort(lows[beside])]
            below = np.maximum.accumulate(highs[beside])  # upper end of each gap's floor
            gaps = lows[beside] - np.concatenate(((0,), below[:-1]))
            fits = np.flatnonzero(gaps >= size)
            low = below[-1]
            if len(fits):
                tightest = fits[gaps[fits] == gaps[fits].min()]
                bottoms = [int(below[gap - 1]) if gap else 0 for gap in tightest]
                if len(bottoms) > 1:
                    bottoms.sort(key=lambda bottom: -_freed(bottom, bottom + size, k, starts, ends, lows, highs))
                low = bottoms[0]
        lows[k], highs[k] = low, low + size
    offsets = np.zeros(count, np.int64)
    offsets[order] = lows
    return offsets


def _freed(low: int, high: int, k: int, starts: np.ndarray, ends: np.ndarray, lows: np.ndarray, highs: np.ndarray) -> int:
    """Returns when the range low..high was last freed before group k needs it; -1 if no group placed so far was there."""
    return int(ends[:k].max(initial=-1, where=(lows[:k] < high) & (highs[:k] > low) & (ends[:k] <= starts[k])))
