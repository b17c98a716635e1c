"""The table model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.records import CellRecord
from reports.tables import Cell, Row, build_table, to_frame
from tests.reports.records import RECORDS, ok


def test_the_reference_comes_first_and_the_other_arms_in_order_of_appearance():
    assert build_table(RECORDS).arms == ("rml", "torch", "jax", "tf")


def test_a_row_is_a_model_and_a_thread_count_in_order_of_appearance():
    rows = build_table(RECORDS).rows
    assert [(row.model, row.threads) for row in rows] == [
        ("torch_cnn", 1), ("torch_cnn", 2), ("torch_gpt", 1), ("jax_mlp", 1), ("tf_mlp", 1), (None, 1), (None, 2),
    ]  # fmt: skip
    assert rows[0] == Row("torch_cnn", 1, (Cell("ok", "pass", 0.5, 1.0), Cell("ok", "pass", 1.5, 3.0), Cell(), Cell()))


def test_geometric_means_are_per_thread_count_and_arm_over_cells_that_are_ok():
    means = {row.threads: [cell.ratio for cell in row.cells] for row in build_table(RECORDS).rows if row.model is None}
    assert means == {1: [1.0, pytest.approx(math.sqrt(3 * 12)), None, None], 2: [1.0, pytest.approx(1.02), None, None]}


def test_without_any_ratio_there_is_no_mean():
    assert [row.model for row in build_table([ok("m", "torch", 1, 1.0, None)]).rows] == ["m"]
    assert [row.model for row in build_table([replace(RECORDS[0], status="mismatch")]).rows] == ["torch_cnn"]


def test_of_several_records_of_one_cell_the_last_one_counts():
    table = build_table([*RECORDS, ok("torch_cnn", "rml", 1, 0.25, 1.0)])
    assert len(table.rows) == len(build_table(RECORDS).rows)
    assert table.rows[0].cells[0].median_ms == 0.25


def test_every_reason_is_a_note():
    assert build_table(RECORDS).notes == (
        "torch_cnn on rml, 2 threads: ok: a remark",
        "jax_mlp on rml, 1 thread: mismatch: output 'y': 3 of 10 elements differ",
        "tf_mlp on rml, 1 thread: failed: the worker ended before its work was done (signal SIGSEGV)",
        "tf_mlp on tf, 1 thread: unavailable: TensorFlow is not installed; pip install rml-exec[tensorflow]",
    )


def test_one_reason_is_one_note_for_all_its_cells():
    missing = [CellRecord("torch_bert", arm, threads, "unavailable", "no transformers") for threads in (1, 2) for arm in ("rml", "torch")]
    assert build_table(missing).notes == ("torch_bert on rml and torch, 1 and 2 threads: unavailable: no transformers",)


def test_the_environment_names_machine_and_versions():
    expected = "Fake CPU, 2 cores, ISA avx2, Linux 6.1, load 0.5, Python 3.12.1, numpy 2.2.0, torch 2.9.0, rml 0.1.0, jax 0.8.0"
    assert build_table(RECORDS).environment == expected
    assert build_table([CellRecord("m", "rml", 1, "failed", "x")]).environment == ""


def test_no_records_make_an_empty_table():
    table = build_table([])
    assert (table.arms, table.rows, table.notes, table.environment) == ((), (), (), "")


def test_the_frame_has_one_row_per_record_and_keeps_whole_numbers():
    frame = to_frame(RECORDS)
    assert len(frame) == len(RECORDS)
    assert frame["iterations"].tolist()[:1] == [100]
    assert frame["iterations"].isna().sum() == 3
    assert not {"options", "settings", "environment", "schema_version"} & set(frame.columns)
