"""The statistics: against what is known of them, on drawn numbers, and on rounds recorded on a noisy machine."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist, median

import pytest

from bench.statistics import (
    MIN_ROUNDS,
    Interval,
    block_value,
    bootstrap_median,
    flag_blocks,
    noise_floor,
    percentile,
    round_ratios,
    usual_canary,
    verdict,
)  # fmt: skip


def test_the_lower_quartile_of_its_calls_stands_for_a_block():
    assert block_value([5, 1, 9, 2, 9, 3, 9, 4]) == 2
    assert block_value([7]) == 7


def test_the_value_of_a_block_is_unmoved_while_less_than_three_in_four_calls_are_interrupted():
    assert block_value([100] * 30 + [4000] * 70) == block_value([100] * 100) == 100


def test_calls_of_several_kinds_count_kind_by_kind():
    assert block_value([1, 100, 2, 200, 3, 300, 4, 400], "shapes", kinds=2) == (1 + 100) / 2


def test_of_callers_at_the_same_time_the_mean_counts():
    assert block_value([1, 1, 1, 5], "concurrent") == 2


def test_ratios_are_those_within_rounds():
    values, reference, clean = [4, 10, 3], [2, 20, 3], [False] * 3
    assert round_ratios(values, reference, clean, clean) == [2.0, 0.5, 1.0]
    assert round_ratios(values[:2], reference, clean[:2], clean) == [2.0, 0.5]


def test_a_round_with_a_flagged_block_on_either_side_is_left_out():
    assert round_ratios([2, 4, 6], [1, 1, 1], [True, False, False], [False, False, True]) == [4.0]


def test_the_usual_canary_is_unmoved_while_less_than_a_quarter_is_late():
    assert usual_canary([100] * 75 + [400] * 25) == 100
    assert usual_canary([100] * 50 + [400] * 50) == 400
    assert usual_canary([]) == 0


def test_a_block_is_flagged_by_the_canary_on_either_side():
    assert flag_blocks([(100, 100), (151, 100), (100, 151), (150, 150)], usual=100) == [False, True, True, False]
    assert flag_blocks([(100, 260)], usual=100, limit=3.0) == [False]


def test_an_interval_holds_the_estimate_and_comes_out_again_with_the_same_seed():
    generator = random.Random(1)
    values = [generator.gauss(1.5, 0.1) for _ in range(20)]
    found = bootstrap_median(values, 7)
    assert found.low < found.estimate == median(values) < found.high
    assert found == bootstrap_median(values, 7)
    assert found != bootstrap_median(values, 8)


def test_equal_values_have_an_interval_without_width():
    assert bootstrap_median([1.25] * 8, 0) == Interval(1.25, 1.25, 1.25)


def test_too_few_rounds_have_no_interval():
    assert bootstrap_median([1.0] * (MIN_ROUNDS - 1), 0) is None
    assert bootstrap_median([1.0] * MIN_ROUNDS, 0) is not None
    assert 2 / 2**MIN_ROUNDS <= 0.05 < 2 / 2 ** (MIN_ROUNDS - 1)


@pytest.mark.parametrize("count", [6, 12])
@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_the_interval_covers_the_truth_as_often_as_it_says(count, noise):
    generator = random.Random(count)

    def draw() -> float:
        spike = generator.expovariate(2.0) * generator.choice([-1, 1]) if noise == "heavy" and generator.random() < 0.2 else 0.0
        return math.exp(generator.gauss(0.0, 0.05) + spike)

    cells = 200
    intervals = [bootstrap_median([draw() for _ in range(count)], seed) for seed in range(cells)]
    assert sum(found.low <= 1 <= found.high for found in intervals) >= 0.93 * cells


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.98, 1.02, "same"), (0.99, 0.995, "same"), (1.005, 1.015, "same"), (0.9799, 1.0, "unresolved"), (0.9799, 0.9999, "faster"),
        (1.0001, 1.0201, "slower"), (0.5, 0.6, "faster"), (2.0, 9.0, "slower"), (0.9, 1.1, "unresolved"), (0.97, 1.01, "unresolved"),
    ],
)  # fmt: skip
def test_the_verdict_is_same_inside_the_margin_else_goes_by_side(low, high, expected):
    assert verdict(Interval((low + high) / 2, low, high)) == expected


def test_without_an_interval_the_verdict_is_unresolved():
    assert verdict(None) == "unresolved"


def test_the_noise_floor_is_half_the_width_of_the_twins_interval():
    assert noise_floor(Interval(1.0, 0.99, 1.03)) == pytest.approx(0.02)
    assert noise_floor(None) is None


@pytest.mark.parametrize(("percent", "least"), [(90, 36), (99, 368)])
def test_a_percentile_needs_a_least_number_of_values(percent, least):
    assert percentile([1.0] * (least - 1), percent) is None
    assert percentile([1.0] * least, percent) == Interval(1.0, 1.0, 1.0)


def test_the_ends_of_a_percentiles_interval_are_the_tabulated_ranks():
    # The interval of the median of 20 values goes from the 6th to the 15th, of 100 from the 40th to the 61st (standard tables).
    assert percentile(list(range(1, 21)), 50) == Interval(10, 6, 15)
    assert percentile(list(range(1, 101)), 50) == Interval(50, 40, 61)


def test_a_percentiles_interval_covers_the_truth():
    generator, truth, covered = random.Random(3), NormalDist().inv_cdf(0.9), 0
    for _ in range(400):
        found = percentile(sorted(generator.gauss(0, 1) for _ in range(200)), 90)
        covered += found.low <= truth <= found.high
    assert covered >= 0.93 * 400


def test_a_percentile_of_very_many_values_is_exact_enough():
    found = percentile([float(value) for value in range(1_000_000)], 99)
    assert found.estimate == 989_999
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(1e6 * 0.99 * 0.01), rel=0.02)


RECORDED = json.loads((Path(__file__).parent / "noisy_rounds.json").read_text())
"""Rounds recorded on two cores that ten other processes used as well, ten calls of 2 ms a block.

A round is [value of the reference's block, of the arm's (ns), whether the canary flagged either]. ``equal`` is 20 pairs of processes with the same
work, ``slower`` 20 pairs in which the arm has 5 % more to do.
"""


def short_cells(pairs: list[list[list[int]]], rounds: int) -> Iterator[list[list[int]]]:
    """Returns disjoint cells of so many rounds each."""
    for pair in pairs:
        for start in range(0, len(pair) - rounds + 1, rounds):
            yield pair[start : start + rounds]


def paired_verdict(cell: list[list[int]], seed: int) -> str:
    flagged = [bool(bad) for _, _, bad in cell]
    ratios = round_ratios([arm for _, arm, _ in cell], [reference for reference, _, _ in cell], flagged, flagged)
    return verdict(bootstrap_median(ratios, seed))


def one_pass_verdict(cell: list[list[int]], seed: int) -> str:
    """The old way: one arm after the other, each its own samples, the ratio of their medians with a bootstrap interval."""
    half = len(cell) // 2
    first, second = [reference for reference, _, _ in cell[:half]], [arm for _, arm, _ in cell[half:]]
    generator = random.Random(seed)
    ratios = sorted(
        median(generator.choices(second, k=len(second))) / median(generator.choices(first, k=half)) for _ in range(400)
    )  # fmt: skip
    return verdict(Interval(median(ratios), ratios[10], ratios[389]))


def test_of_100_short_cells_of_equal_arms_at_most_9_have_a_false_verdict():
    cells = list(short_cells(RECORDED["equal"], 12))
    assert len(cells) == 100
    found = Counter(paired_verdict(cell, seed) for seed, cell in enumerate(cells))
    assert found["faster"] + found["slower"] <= 9
    # Measured one after the other, which also leaves half the rounds, the same data accuse equal arms more often.
    old = Counter(one_pass_verdict(cell, seed) for seed, cell in enumerate(cells))
    assert old["faster"] + old["slower"] > found["faster"] + found["slower"]


def test_a_slowdown_of_5_percent_is_found_in_19_of_20_cells():
    cells = list(short_cells(RECORDED["slower"], 24))
    assert len(cells) == 40
    assert sum(paired_verdict(cell, seed) == "slower" for seed, cell in enumerate(cells)) >= 38
