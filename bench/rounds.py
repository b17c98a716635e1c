"""The rounds of a measurement: loading, turns, canaries between them, and when it is enough.

While one arm has its turn the others are stopped, and the supervisor sleeps until the answer is there.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.canary import Canary
from bench.cells import Block, Cell
from bench.settings import Settings
from bench.statistics import MIN_ROUNDS, Interval, usual_canary

__all__ = ["Rounds", "turns"]

_MAX_BLOCK_CALLS = 100_000
_GROWTH = 1.2
"""Rounds between two looks at the intervals grow like this: the more often one looks, the more often chance ends the run."""


def turns(cells: Sequence[Cell], number: int, settings: Settings) -> list[Cell]:
    """Returns the cells in the order of their turns in a round. Two rounds mirror each other, so that a steady drift falls on all alike."""
    order = list(cells)
    if settings.order == "random":
        random.Random(f"{settings.seed}/{number // 2}").shuffle(order)
    return order[::-1] if number % 2 else order


class Rounds:
    """Loads the arms and gives each its turns.

    Args:
        cells: the arms; their blocks are added to them.
        settings: how to measure.
        cores: the measured cores.
        began: when the budget began, on the monotonic clock.
        progress: told what is being done.
    """

    def __init__(
        self, cells: Sequence[Cell], settings: Settings, cores: Sequence[int], began: float, progress: Callable[[str], None]
    ) -> None:
        self._cells, self._settings, self._began, self._progress = cells, settings, began, progress
        self._reference = next((cell for cell in cells if cell.framework == settings.reference), None)
        self._canary = Canary(cores)
        self._canaries: list[int] = []
        self._shapes = [0]

    @property
    def usual_ns(self) -> float:
        """What the canary usually takes, by all that there were so far."""
        return usual_canary(self._canaries)

    def load(self, common: Mapping[str, Any]) -> None:
        """Starts the workers one after the other, so that none loads beside another, and sizes their blocks.

        Args:
            common: what every worker is told.
        """
        self._common = common
        for cell in self._cells:
            self._progress(f"loading and checking {cell.framework}")
            cell.start(common, self._settings.timeout_s)
            if (loaded := cell.ask("load")) is None:
                continue
            self._shapes = loaded["shapes"]
            if cell.ask("examine") is None:
                continue
            if self._settings.scenario == "cold":
                cell.end()
            elif self._settings.scenario == "shapes" and not self._ask_new_shapes(cell):
                continue
            else:
                self._size_block(cell)

    def _ask_new_shapes(self, cell: Cell) -> bool:
        """Has the arm run at every shape once; returns whether it could."""
        new = [number for number, shape in enumerate(self._shapes) if number == shape and number]
        if not new:
            cell.end("unavailable", "the scenario shapes needs golden sets of several shapes, or a graph with dims")
        return bool(new) and cell.ask("new_shapes", inputs=new) is not None

    def _size_block(self, cell: Cell) -> None:
        settings = self._settings
        if (warm := cell.ask("warm_up", seconds=settings.warm_up_s)) is None:
            return
        cell.escaped = warm["escaped"]
        if settings.calls is not None:
            cell.calls_per_block = settings.calls
            return
        waiting = {"paced": settings.gap_s, "concurrent": warm["call_s"] * (settings.callers - 1)}.get(settings.scenario, 0.0)
        calls = math.ceil(settings.min_time_s / max(warm["call_s"] + waiting, 1e-9))
        if settings.scenario == "shapes":  # every block has every shape equally often
            calls = math.ceil(calls / len(self._shapes)) * len(self._shapes)
        cell.calls_per_block = min(max(1, calls), _MAX_BLOCK_CALLS)

    def run(self) -> None:
        """Gives every arm that still runs one block per round, until the intervals are narrow enough or the budget is spent."""
        settings = self._settings
        number, look, widest = 0, settings.min_rounds, ""
        while number < settings.max_rounds and any(cell.status == "ok" for cell in self._cells):
            spent = time.monotonic() - self._began
            self._progress(f"round {number + 1}{widest}, {spent:.0f} s of {settings.budget_s:g} s")
            self._round(number)
            number += 1
            if number < settings.min_rounds:
                continue
            if time.monotonic() - self._began >= settings.budget_s and not self._lacks_clean_rounds(number):
                break
            if number >= look:
                look = math.ceil(number * _GROWTH)
                width = self._widest()
                if width <= settings.precision:
                    break
                widest = f", widest interval ±{100 * width:.1f} %" if math.isfinite(width) else ""
        if settings.scenario != "cold":
            for cell in self._cells:
                if cell.status == "ok":
                    self._progress(f"watching {cell.framework} idle")
                    cell.ask("finish", seconds=settings.idle_s)

    def _lacks_clean_rounds(self, number: int) -> bool:
        """Whether more rounds may give an interval that there is none of only because rounds were flagged; twice the fewest rounds at most."""
        fewest = self._settings.min_rounds
        return MIN_ROUNDS <= fewest <= number < 2 * fewest and math.isinf(self._widest())

    def _widest(self) -> float:
        """Returns half the width of the widest interval as a part of its ratio; infinite if one has too few clean rounds."""
        found: list[Interval | None] = [
            cell.ratio_to(self._reference, self.usual_ns, self._settings)
            for cell in self._cells
            if self._reference is not None and self._reference.status == "ok" and cell.status == "ok" and cell is not self._reference
        ]
        return max((math.inf if one is None else one.half_width / one.estimate for one in found), default=0.0)

    def _round(self, number: int) -> None:
        before = self._measure_canary()
        for position, cell in enumerate(turns(self._cells, number, self._settings)):
            if cell.status != "ok":
                continue
            start_ns = time.perf_counter_ns()
            inputs = self._inputs(number)
            answer = (
                self._cold(cell, start_ns) if self._settings.scenario == "cold" else cell.ask("block", **self._asked(cell, number, inputs))
            )
            after = self._measure_canary()
            if answer is not None:
                measured = {key: answer[key] for key in ("times_ns", "wall_ns", "cpu_ns")}
                cell.blocks.append(
                    Block(number, position, start_ns, inputs=inputs, canary_ns=(before, after), ledger=answer.get("ledger", {}), **measured)
                )
            before = after

    def _measure_canary(self) -> int:
        self._canaries.append(self._canary.measure())
        return self._canaries[-1]

    def _inputs(self, number: int) -> list[int]:
        """Returns the golden sets of a round: the same for every arm."""
        if self._settings.scenario == "cold":
            return [0]
        if self._settings.scenario == "shapes":
            return random.Random(f"{self._settings.seed}/inputs/{number}").sample(range(len(self._shapes)), len(self._shapes))
        same = [index for index, shape in enumerate(self._shapes) if shape == 0]
        return [same[number % len(same)]]

    def _asked(self, cell: Cell, number: int, inputs: Sequence[int]) -> dict[str, Any]:
        """Returns what the worker is asked for in a block."""
        settings, calls = self._settings, cell.calls_per_block
        drawn = random.Random(f"{settings.seed}/check/{number}/{cell.framework}").randrange(calls)
        asked: dict[str, Any] = {"iterations": calls, "inputs": inputs, "check": [0, -1, drawn]}
        if settings.scenario == "paced":
            asked["gap_s"] = settings.gap_s
        if settings.scenario == "concurrent":
            asked["callers"] = settings.callers
        return asked

    def _cold(self, cell: Cell, start_ns: int) -> dict[str, Any] | None:
        """Measures from the start of a new process to its first output."""
        cell.start(self._common, self._settings.timeout_s)
        answer = cell.ask("load")
        if answer is None:
            return None
        cell.end()
        elapsed = answer["first_output"]["clock_ns"] - start_ns
        return {"times_ns": [elapsed], "wall_ns": elapsed, "cpu_ns": answer["first_output"]["cpu_ns"]}
