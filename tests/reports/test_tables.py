"""The table model: what is in which row, what is averaged, what is warned of."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records import CellRecord
from bench.statistics import MIN_ROUNDS
from reports.details import break_even, start_ms
from reports.model import Table, words
from reports.tables import build_report, to_frame
from tests.reports.records import ENVIRONMENT, RECORDS, ok
from tests.reports.snapshots import recorded


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]


def comparison(records: list[CellRecord]) -> list[dict[str, Any]]:
    return rows(build_report(records).tables[0])


def means(records: list[CellRecord]) -> dict[tuple[int, str], dict[str, Any]]:
    found = [table for table in build_report(records).tables if table.name.endswith("/means")]
    return {(row["threads"], row["framework"]): row for table in found for row in rows(table)}


def test_rows_are_grouped_by_model_and_threads_in_order_of_appearance_the_reference_first():
    assert [(row["model"], row["threads"], row["framework"]) for row in comparison(RECORDS)] == [
        ("torch_cnn", 1, "rml"), ("torch_cnn", 1, "torch"), ("torch_cnn", 2, "rml"), ("torch_cnn", 2, "torch"), ("torch_gpt", 1, "rml"),
        ("torch_gpt", 1, "torch"), ("jax_mlp", 1, "rml"), ("jax_mlp", 1, "jax"), ("tf_mlp", 1, "rml"), ("tf_mlp", 1, "tf"),
    ]  # fmt: skip


def test_every_number_is_the_field_of_the_record_that_the_row_names():
    records = recorded()
    names = {entry.name for entry in fields(CellRecord)}
    report = build_report(records, details=True)
    seen = 0
    for table in report.tables:
        if table.name.endswith("/means") or table.name in ("break_even", "arms"):
            continue
        for row in rows(table):
            (record,) = (r for r in records if (r.model, r.framework, r.threads) == (row["model"], row["framework"], row["threads"]))
            assert (record.run or "").startswith(row.get("run", record.run))
            for key in set(row) & names - {"check", "run", "graph_sha256", "weights_sha256", "inputs_sha256"}:
                assert row[key] == getattr(record, key)
                seen += row[key] is not None
    assert seen > 200


def test_a_cell_shows_interval_verdict_and_check():
    torch = comparison(RECORDS)[1]
    assert torch["ratio_interval"] == (3.0 * 0.99, 3.0 * 1.01)
    assert (torch["median_ms"], torch["ratio"], torch["verdict"], torch["check"]) == (1.5, 3.0, "slower", "pass")
    assert comparison(RECORDS)[0]["ratio_interval"] is None  # that of the reference is no measurement
    assert [row["check"] for row in comparison(RECORDS)[6:]] == ["mismatch", "pass", "failed", "unavailable"]


def test_each_scenario_and_setup_has_its_own_table():
    records = [
        ok("m", "torch", 1, 1.0, 2.0),
        ok("m", "torch", 1, 1.0, 3.0, setup="installed"),
        ok("m", "torch", 1, 1.0, 4.0, scenario="paced"),
    ]
    tables = build_report(records).tables
    assert [table.name for table in tables] == [
        "latency/tuned", "latency/installed", "paced/tuned", "latency/tuned/means", "latency/installed/means", "paced/tuned/means",
    ]  # fmt: skip


def test_geometric_means_are_per_thread_count_and_arm():
    found = means(RECORDS)
    assert set(found) == {(1, "torch"), (2, "torch"), (1, "jax"), (1, "tf")}  # the reference's would be 1
    assert found[1, "torch"]["ratio"] == pytest.approx(6.0)
    assert found[2, "torch"]["ratio"] == pytest.approx(1.02)
    assert found[1, "jax"]["ratio"] is None
    # two independent errors of 1 % of the mean of two logarithms: each counts half, and squares add up
    low, high = found[1, "torch"]["ratio_interval"]
    assert math.log(high / 6.0) == pytest.approx(math.hypot(math.log(1.01), math.log(1.01)) / 2)
    assert math.log(6.0 / low) == pytest.approx(math.hypot(math.log(0.99), math.log(0.99)) / 2)


def test_verdicts_are_counted():
    records = [ok(f"m{i}", "torch", 1, 1.0, ratio) for i, ratio in enumerate((0.5, 1.0, 2.0, 3.0))]
    records.append(ok("m9", "torch", 1, 1.0, 1.5, verdict="unresolved"))
    found = means(records)[1, "torch"]
    assert [found[name] for name in ("cells", "faster", "same", "slower", "unresolved", "left_out")] == [5, 1, 1, 2, 1, 0]


@pytest.mark.parametrize("fault", [{"parity": False}, {"check": "fail"}, {"status": "mismatch"}, {"check": None}, {"ratio": None}])
def test_a_cell_that_is_unfair_or_unchecked_is_left_out_of_the_mean(fault):
    found = means([ok("m1", "torch", 1, 1.0, 2.0), replace(ok("m2", "torch", 1, 1.0, 9.0), **fault)])[1, "torch"]
    assert (found["ratio"], found["cells"], found["left_out"]) == (pytest.approx(2.0), 1, 1)


def test_means_over_different_models_are_said_to_be_incomparable():
    same = [ok("m1", "torch", 1, 1.0, 2.0), ok("m1", "tf", 1, 1.0, 3.0)]
    assert build_report(same).notes == ()
    (note,) = build_report([*same, ok("m2", "jax", 1, 1.0, 3.0)]).notes
    assert note.startswith("geometric means, latency, tuned, 1 thread: not all over the same models")
    assert note.endswith(": torch, tf | jax")


def test_of_several_records_of_one_cell_the_last_one_counts():
    found = comparison([*RECORDS, ok("torch_cnn", "rml", 1, 0.25, 1.0)])
    assert len(found) == len(RECORDS)
    assert found[0]["median_ms"] == 0.25


def test_every_reason_is_a_note_once():
    missing = [CellRecord("torch_bert", arm, threads, "unavailable", "no transformers") for threads in (1, 2) for arm in ("rml", "torch")]
    assert build_report(missing).notes == ("torch_bert on rml and torch, 1 and 2 threads: unavailable: no transformers",)
    assert build_report(RECORDS).notes[:4] == (
        "torch_cnn on rml, 2 threads: ok: a remark",
        "jax_mlp on rml, 1 thread: mismatch: output 'y': 3 of 10 elements differ",
        "tf_mlp on rml, 1 thread: failed: the worker ended before its work was done (signal SIGSEGV)",
        "tf_mlp on tf, 1 thread: unavailable: TensorFlow is not installed; pip install rml-exec[tensorflow]",
    )


def test_the_environment_names_machine_and_versions():
    assert dict(build_report(RECORDS).environment) == {
        "machine": "Fake CPU, cores 2, ISA avx2", "software": "Linux 6.1, Python 3.12.1, NumPy 2.2.0",
        "arms": "torch 2.9.0, rml 0.1.0, jax 0.8.0", "load before": "0.5",
    }  # fmt: skip
    assert build_report([CellRecord("m", "rml", 1, "failed", "x")]).environment == ()


def test_the_fingerprint_of_several_cells_depends_on_all_of_them():
    def shown(*fingerprints: str) -> str:
        records = [ok(f"m{number}", "rml", 1, 1.0, 1.0, fingerprint=text) for number, text in enumerate(fingerprints)]
        return dict(build_report(records).environment)["fingerprint"]

    assert shown("a" * 16, "a" * 16) == "a" * 16
    assert shown("a" * 16, "b" * 16) == shown("b" * 16, "a" * 16) != shown("a" * 16, "c" * 16)


QUIET = ok("m", "torch", 1, 1.0, 2.0, rounds=20, blocks_flagged=1, noise_floor=0.01, parity=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"parity": False, "parity_reasons": ["used 2 cores, granted 1"]},
            "unequal: torch: used 2 cores, granted 1, in m (torch; 1 thread)",
        ),
        ({"check": None}, "not checked: the outputs of m (torch; 1 thread)"),
        ({"noise_floor": 0.031}, "noisy: two runs of the same arm could only be told apart to ±3.1 %"),
        ({"blocks_flagged": 5}, "noisy: 5 of 20 blocks are flagged"),
        ({"verdict": "unresolved"}, "unresolved: m (torch; 1 thread)"),
        ({"environment": {**ENVIRONMENT, "load_average_1min": 1.5}}, "busy: the load of the machine was 1.5 on 2 cores"),
        ({"environment": {**ENVIRONMENT, "governor": "powersave"}}, "the CPU changes its frequency (governor powersave)"),
        ({"settings": {"cores": [0, 1], "supervisor_cores": [1]}}, "with --threads 1 the measured cores were all there are"),
    ],
)
def test_what_casts_doubt_is_warned_of_with_advice(fields, said):
    assert build_report([QUIET]).warnings == ()
    (warning,) = build_report([replace(QUIET, **fields)]).warnings
    assert warning.startswith(said)
    assert ":" in warning.removeprefix(said)


def test_warnings_and_notes_name_scenario_and_setup_where_there_are_several():
    paced = replace(
        QUIET, scenario="paced", setup="installed", verdict="unresolved", parity=False, parity_reasons=["used 2 cores, granted 1"], noise_floor=0.05,
        reason="a remark",
    )  # fmt: skip
    report = build_report([QUIET, replace(QUIET, noise_floor=0.03, model="m2"), paced])
    where = "m (torch; 1 thread; paced, installed)"
    unequal, noisy, unresolved = report.warnings
    assert f"granted 1, in {where}: " in unequal
    assert "only be told apart to ±3.0 % (latency, tuned) and ±5.0 % (paced, installed), so" in noisy
    assert unresolved.startswith(f"unresolved: {where}: ")
    assert dict(report.environment)["noise floor"].startswith("±3.0 % in latency, tuned, ±5.0 % in paced, installed (")
    assert report.notes[0] == "m on torch, 1 thread (paced, installed): ok: a remark"
    assert build_report([QUIET, replace(paced, noise_floor=0.01)]).warnings[1:] == (unresolved,)


def test_an_unresolved_cell_without_an_interval_is_said_to_lack_clean_rounds():
    wide = replace(QUIET, verdict="unresolved")
    bare = [
        replace(wide, model=f"m{rounds}", ratio_low=None, ratio_high=None, rounds=rounds, blocks_flagged=flagged)
        for rounds, flagged in ((8, 3), (9, 3))
    ]
    *_, first, second = build_report([wide, *bare]).warnings
    assert first.startswith("unresolved: m (torch; 1 thread): nothing can be said")
    assert second.startswith(f"unresolved: m8 (torch; 1 thread), m9 (torch; 1 thread): no interval, which takes {MIN_ROUNDS} clean rounds,")
    assert "rounds: 8 to 9, flagged blocks of the arm: 3: nothing" in second
    *_, unknown = build_report([replace(bare[0], rounds=None, blocks_flagged=None)]).warnings
    assert "rounds: unknown, flagged blocks of the arm: unknown: " in unknown


def test_a_reason_of_several_scenarios_names_arms_only_where_they_have_it():
    missing = [
        CellRecord("m", arm, 1, "unavailable", "gone", scenario=scenario)
        for scenario, arm in (("latency", "jax"), ("paced", "jax"), ("cold", "torch"))
    ]
    assert build_report(missing).notes == (
        "m on jax, 1 thread (latency, tuned; paced, tuned): unavailable: gone", "m on torch, 1 thread (cold, tuned): unavailable: gone",
    )  # fmt: skip


def test_records_of_two_machines_are_not_shown_without_a_word():
    other = ok("m", "rml", 1, 1.0, 1.0, environment={**ENVIRONMENT, "cpu": "Other CPU"})
    assert "records differ in cpu (Fake CPU and Other CPU)" in build_report([QUIET, other]).warnings[0]


cost = st.floats(0.1, 1e5)


@given(cost, st.floats(0.01, 100), cost, st.floats(0.01, 100))
def test_break_even_is_where_the_sums_cross(start, call, other_start, other_call):
    record = ok("m", "torch", 1, call, 2.0, import_ms=0.0, load_ms=start, first_call_ms=0.0)
    other = ok("m", "jax", 1, other_call, 2.0, import_ms=0.0, load_ms=other_start, first_call_ms=0.0)

    def ahead(calls: int) -> float:
        """Returns by how much the arm has cost less after so many calls, the first included in the start."""
        return (other_start + (calls - 1) * other_call) - (start + (calls - 1) * call)

    said = break_even(record, other)
    slack = 1e-6 * (start + other_start)
    if said == "always":
        assert all(ahead(calls) >= -slack for calls in (1, 10, 10**6))
    elif said == "never":
        assert all(ahead(calls) <= slack for calls in (1, 10, 10**6))
    elif said.startswith("from call "):
        n = int(said.removeprefix("from call "))
        assert ahead(n) >= -slack - abs(other_call - call) * 1e-3
        assert ahead(n - 1) <= slack + abs(other_call - call) * 1e-3
    else:
        n = int(said.removeprefix("until call "))
        assert ahead(n) >= -slack - abs(other_call - call) * 1e-3
        assert ahead(n + 1) <= slack + abs(other_call - call) * 1e-3


def test_a_cost_that_is_not_known_gives_no_break_even():
    known, unknown = ok("m", "torch", 1, 1.0, 2.0), ok("m", "jax", 1, 1.0, 2.0, load_ms=None)
    assert start_ms(known) == 106.0
    assert start_ms(unknown) is None
    assert break_even(known, unknown) is None


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.001234, "ms", "0.00123"), (0.0321, "ms", "0.0321"), (0.5, "ms", "0.500"), (1.5, "ms", "1.500"), (12.345, "ms", "12.35"),
        (1234.5, "ms", "1234.5"), (0.0, "ms", "0.000"), (1.004, "ratio", "1.004x"), (2.5, "ratio", "2.50x"), (123.4, "ratio", "123x"),
        ((0.5, 1.25), "ratio interval", "[0.50, 1.25]"), (3 * 2**20, "mib", "3.0"), (True, "flag", "yes"), (None, "ms", ""),
        ("slower", "verdict", "▼ slower"), ("gone", "verdict", "gone"), (math.nan, "ms", "nan"), (math.inf, "ms", "inf"),
        (1.5e-6, "error", "1.5e-06"),
    ],
)  # fmt: skip
def test_values_as_people_read_them(value, kind, text):
    assert words(value, kind) == text


def test_no_records_make_an_empty_report():
    assert build_report([]).tables == ()


def test_the_frame_has_one_row_per_record_and_keeps_whole_numbers():
    frame = to_frame(RECORDS)
    assert len(frame) == len(RECORDS)
    assert frame["iterations"].tolist()[:1] == [100]
    assert frame["iterations"].isna().sum() == 3
    assert not {"options", "settings", "environment", "schema_version"} & set(frame.columns)
