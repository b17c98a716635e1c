"""How a comparison is made, and the words for it."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from bench.fingerprint import comparable_facts, fingerprint
from bench.options import parse_options
from bench.settings import PRESETS, Settings, duration, min_time, precision
from tests.bench.test_records import FULL


@pytest.mark.parametrize(
    ("text", "seconds"), [("40s", 40.0), ("10ms", 0.01), ("2m", 120.0), ("0.2", 0.2), ("1e-3", 1e-3), ("500us", 5e-4), ("1h", 3600.0)]
)
def test_times_are_read_with_their_units(text, seconds):
    assert duration(text) == pytest.approx(seconds)
    assert min_time(text) == (pytest.approx(seconds), None)


def test_a_block_may_be_given_in_calls():
    assert min_time("100x") == (0.0, 100)


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02)])
def test_precision_is_a_part_of_one(text, value):
    assert precision(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (duration, "0s"), (duration, "soon"), (duration, "-1s"), (duration, "3 weeks"), (duration, "inf"), (duration, "nan"), (duration, ""),
        (min_time, "0x"), (min_time, "x"), (precision, "0%"), (precision, "100%"), (precision, "nan"), (precision, "fine"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        parse(text)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_what_is_not_named(preset):
    flag = [] if preset == "default" else [f"--{preset}"]
    options = parse_options([*flag, "--precision", "7%"])
    assert options.precision == 0.07
    assert (options.budget, options.min_time) == (PRESETS[preset]["budget"], PRESETS[preset]["min_time"])


def test_two_presets_are_bad_usage():
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--quick", "--rigorous"])


def test_a_seed_is_drawn_unless_it_is_given():
    assert parse_options(["--seed", "7"]).seed == 7
    assert parse_options([]).seed != parse_options([]).seed


def test_settings_are_recorded_as_far_as_they_play_a_part():
    assert "gap_s" not in Settings().recorded()
    assert Settings(scenario="paced", gap_s=0.5).recorded()["gap_s"] == 0.5
    assert Settings(scenario="concurrent", callers=3).recorded()["callers"] == 3
    assert not {"seed", "order", "scenario"} & set(Settings().recorded())


@pytest.mark.parametrize(
    "change",
    [
        {"environment": {**FULL.environment, "cpu": "Y"}}, {"environment": {**FULL.environment, "governor": "performance"}}, {"threads": 1},
        {"scenario": "cold"}, {"setup": "installed"}, {"graph_sha256": "a"}, {"inputs_sha256": "b"}, {"settings": {"callers": 2}},
    ],
)  # fmt: skip
def test_the_fingerprint_changes_with_all_that_makes_records_incomparable(change):
    other = replace(FULL, **change)
    assert fingerprint(other) != fingerprint(FULL)
    mine, theirs = comparable_facts(FULL), comparable_facts(other)
    assert [name for name in mine if mine[name] != theirs[name]] == [
        name if name in mine else f"{name}.{key}" for name in change for key in ([None] if name in mine else [_changed(FULL, change, name)])
    ]


def _changed(record, change, name):
    return next(key for key, value in change[name].items() if getattr(record, name).get(key) != value)


def test_the_fingerprint_stays_the_same_when_the_arm_or_the_effort_changes():
    other = replace(FULL, framework_version="9", seed=3, settings={"budget_s": 1.0}, median_ms=7.0)
    assert fingerprint(other) == fingerprint(FULL)
